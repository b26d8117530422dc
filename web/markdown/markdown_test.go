package markdown

import (
	"strings"
	"testing"
)

func TestRenderedOutputHoldsNothingActive(t *testing.T) {
	for _, source := range []string{
		"<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))",
		"![x](data:text/html,<script>)", "<a href='javascript:x'>y</a>", "[x](vbscript:y)", "[x](data:text/html;base64,AAAA)",
		"```\"><script>alert(1)</script>\nx\n```", "$<script>$", "<javascript:alert(1)>", "[x](<\njavascript:alert(1)>)",
		"`<svg onload=x>`", "<style>*{}</style>", "[a]: javascript:alert(1)\n\n[a]", "| <b onclick=x> |\n|---|\n| x |",
	} {
		got := strings.ToLower(Render(source))
		for _, bad := range []string{"<script", "<img", "<svg", "<style", "<b ", "href=\"javascript", "href=\"data", "href=\"vbscript", " style=", "<a href='"} {
			if strings.Contains(got, bad) {
				t.Errorf("Render(%q) = %q contains %q", source, got, bad)
			}
		}
	}
}

func TestLinksOpenOutsideWithoutReferrer(t *testing.T) {
	want := `<p><a href="https://go.dev/a?b=1&amp;c=2" rel="noopener noreferrer" target="_blank">Go</a></p>` + "\n"
	if got := Render("[Go](https://go.dev/a?b=1&c=2)"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Render("see https://go.dev"); !strings.Contains(got, `rel="noopener noreferrer"`) {
		t.Errorf("bare address: %q", got)
	}
}

func TestCodeIsColouredByClassesOnly(t *testing.T) {
	got := Render("```go\nfunc main() {}\n```")
	for _, want := range []string{`<span>go</span>`, `class="chroma"`, `<span class="kd">func</span>`, `data-action="copy-code"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
}

func TestMathematicsKeepsItsUnderscores(t *testing.T) {
	for source, want := range map[string]string{
		"$a_1 + b_1$":             `<span class="math">a_1 + b_1</span>`,
		`\(x_1 * y_1 * z\)`:       `<span class="math">x_1 * y_1 * z</span>`,
		`\[E = mc^2\]`:            `<span class="math math-display">E = mc^2</span>`,
		"$$ s_{i} $$":             `<span class="math math-display">s_{i}</span>`,
		"it costs $5 or $6 a day": `it costs $5 or $6 a day`,
	} {
		if got := Render(source); !strings.Contains(got, want) {
			t.Errorf("Render(%q) = %q, want %q inside", source, got, want)
		}
	}
}

func TestLinesBreakWhereTheModelBrokeThem(t *testing.T) {
	if got, want := Render("roses are red\nviolets are blue"), "<p>roses are red<br>\nviolets are blue</p>\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The blocks of a text, and what is still open after them.
func pieces(text string) (closed []string, open string) {
	at := 0
	for _, end := range Closed(text, 0) {
		closed = append(closed, text[at:end])
		at = end
	}
	return closed, text[at:]
}

func TestBlocksCloseWhereLaterTextCannotChangeThem(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
		open string
	}{
		{"one", nil, "one"},
		{"one\n", nil, "one\n"},
		{"one\n\ntwo", []string{"one\n\n"}, "two"},
		{"# Title\ntext", []string{"# Title\n"}, "text"},
		{"```go\na\n\nb\n", nil, "```go\na\n\nb\n"},
		{"```go\na\n\nb\n```\nafter", []string{"```go\na\n\nb\n```\n"}, "after"},
		{"text\n```\nx\n```\n", []string{"text\n", "```\nx\n```\n"}, ""},
		{"````\n```\n````\n", []string{"````\n```\n````\n"}, ""},
		{"- a\n- b\n- c\n", []string{"- a\n", "- b\n"}, "- c\n"},
		{"- a\n  - b\n- c\n", []string{"- a\n  - b\n"}, "- c\n"},
		{"1. a\n\n   more\n\n2. b\n\nafter\n", []string{"1. a\n\n   more\n\n", "2. b\n\n"}, "after\n"},
		{"1. a\n   ```\n   x\n   ```\n2. b\n", []string{"1. a\n   ```\n   x\n   ```\n"}, "2. b\n"},
		{"| a |\n|---|\n| 1 |\n\nx", []string{"| a |\n|---|\n| 1 |\n\n"}, "x"},
		{"Title\n---\n\nx", []string{"Title\n---\n\n"}, "x"},
		{"\n\nx\n\n", []string{"\n\nx\n\n"}, ""},
	} {
		got, open := pieces(test.text)
		if strings.Join(got, "|") != strings.Join(test.want, "|") || open != test.open {
			t.Errorf("%q: got %q, open %q; want %q, open %q", test.text, got, open, test.want, test.open)
		}
	}
}

// However the text arrives, the cuts are those of the whole text, and earlier cuts never move.
func FuzzCutsDoNotDependOnArrival(f *testing.F) {
	f.Add("a\n\n- b\n- c\n\n```go\nx\n\n```\nend\n\n", uint8(3))
	f.Add("1. a\n\n    ```\n    b\n    ```\n2. c\n# h\n", uint8(1))
	f.Add("~~~\n```\n~~~\n* * *\n", uint8(2))
	f.Fuzz(func(t *testing.T, text string, step uint8) {
		whole := Closed(text, 0)
		var grown []int
		from := 0
		for n := 0; n <= len(text); n += int(step)%7 + 1 {
			for _, end := range Closed(text[:n], from) {
				grown = append(grown, end)
				from = end
			}
		}
		grown = append(grown, Closed(text, from)...)
		if len(whole) != len(grown) {
			t.Fatalf("%q: whole %v, grown %v", text, whole, grown)
		}
		for i := range whole {
			if whole[i] != grown[i] || whole[i] > len(text) || i > 0 && whole[i] <= whole[i-1] {
				t.Fatalf("%q: whole %v, grown %v", text, whole, grown)
			}
		}
	})
}

func FuzzRender(f *testing.F) {
	f.Add("# a\n\n[x](y) $z$ `c` **b**")
	f.Add("```go\nfunc\n```")
	f.Fuzz(func(t *testing.T, source string) {
		if got := Render(source); strings.Contains(strings.ToLower(got), "<script") {
			t.Fatalf("%q gives %q", source, got)
		}
	})
}
