package answer

import (
	"testing"

	"covey/web/wire"
)

func token(channel wire.Channel, text string) wire.Token {
	return wire.Token{Channel: channel, Text: text}
}

func TestTextGrowsAndBlocksCutIt(t *testing.T) {
	var a Answer
	got, thought, ok := a.Add(wire.Tokens{Tokens: []wire.Token{token(wire.Reasoning, "hm"), token(wire.Hidden, "</think>"), token(wire.Answer, "one\n\n"), token(wire.Answer, "tw")}})
	if got != "one\n\ntw" || thought != "hm" || !ok {
		t.Fatalf("got %q, %q, %v", got, thought, ok)
	}
	if !a.Close(5) || a.Open() != "tw" || a.Blocks != 1 {
		t.Fatalf("open %q after %d blocks", a.Open(), a.Blocks)
	}
	got, _, ok = a.Add(wire.Tokens{First: 4, Answer: 7, Reasoning: 2, Tokens: []wire.Token{token(wire.Answer, "o")}})
	if got != "o" || !ok || a.Open() != "two" || a.Tokens != 5 {
		t.Fatalf("got %q, open %q, %d tokens", got, a.Open(), a.Tokens)
	}
}

func TestTextThatWasHadIsNotTakenTwice(t *testing.T) {
	a := Resume(2, 0, 4, 0, "abcd")
	got, _, ok := a.Add(wire.Tokens{First: 1, Answer: 2, Tokens: []wire.Token{token(wire.Answer, "cd"), token(wire.Answer, "ef")}})
	if got != "ef" || !ok || a.Open() != "abcdef" || a.Tokens != 3 {
		t.Fatalf("got %q, open %q, %d tokens", got, a.Open(), a.Tokens)
	}
}

func TestAGapIsReported(t *testing.T) {
	a := Resume(1, 0, 2, 0, "ab")
	for _, f := range []wire.Tokens{{First: 2, Answer: 2}, {First: 1, Answer: 3}, {First: 1, Answer: 2, Reasoning: 1}} {
		if _, _, ok := a.Add(f); ok {
			t.Errorf("%+v was taken", f)
		}
	}
	if a.Close(3) {
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
