package answer

import (
	"testing"

	"covey/web/wire"
)

func TestTextGrowsAndBlocksCutIt(t *testing.T) {
	var a Answer
	got, thought, ok := a.Add(wire.Tokens{Text: "one\n\ntw", Thought: "hm", Tokens: make([]wire.Token, 4)})
	if got != "one\n\ntw" || thought != "hm" || !ok {
		t.Fatalf("got %q, %q, %v", got, thought, ok)
	}
	if fresh, ok := a.Close(5); !fresh || !ok || a.Open() != "tw" || a.Blocks != 1 {
		t.Fatalf("open %q after %d blocks", a.Open(), a.Blocks)
	}
	if fresh, ok := a.Close(5); fresh || !ok || a.Blocks != 1 {
		t.Fatalf("a block that was had counts twice: %d blocks", a.Blocks)
	}
	got, _, ok = a.Add(wire.Tokens{First: 4, Answer: 7, Reasoning: 2, Text: "o", Tokens: make([]wire.Token, 1)})
	if got != "o" || !ok || a.Open() != "two" || a.Tokens != 5 {
		t.Fatalf("got %q, open %q, %d tokens", got, a.Open(), a.Tokens)
	}
}

func TestTextThatWasHadIsNotTakenTwice(t *testing.T) {
	a := Resume(2, 0, 4, 1, "abcd")
	got, thought, ok := a.Add(wire.Tokens{First: 1, Answer: 2, Text: "cdef", Thought: "x", Tokens: make([]wire.Token, 2)})
	if got != "ef" || thought != "" || !ok || a.Open() != "abcdef" || a.Tokens != 3 {
		t.Fatalf("got %q and %q, open %q, %d tokens", got, thought, a.Open(), a.Tokens)
	}
	if got, _, ok := a.Add(wire.Tokens{Text: "ab"}); got != "" || !ok {
		t.Fatalf("an old frame gives %q, %v", got, ok)
	}
}

func TestAGapIsReported(t *testing.T) {
	a := Resume(1, 0, 2, 0, "ab")
	for _, f := range []wire.Tokens{{First: 2, Answer: 2}, {First: 1, Answer: 3}, {First: 1, Answer: 2, Reasoning: 1}} {
		if _, _, ok := a.Add(f); ok {
			t.Errorf("%+v was taken", f)
		}
	}
	if _, ok := a.Close(3); ok {
		t.Error("a block beyond the text was taken")
	}
}

func TestAnOpenCodeBlockIsToldFromText(t *testing.T) {
	for _, test := range []struct {
		open, language, code string
		ok                   bool
	}{
		{"```go\nfunc", "go", "func", true},
		{"\n````\na\nb", "", "a\nb", true},
		{"```go", "", "", false},
		{"text\n```go\n", "", "", false},
		{"``x", "", "", false},
	} {
		language, code, ok := Fence(test.open)
		if language != test.language || code != test.code || ok != test.ok {
			t.Errorf("Fence(%q) = %q, %q, %v", test.open, language, code, ok)
		}
	}
}
