package tokenizer

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// atoms are what random texts are made of: every class that the split patterns tell apart, alone and where it meets others.
var atoms = []string{
	"a", "Z", "word", "Word", "WORD", "camelCase", "é", "Ω", "ß", "ſ", "'ſ", "ǅ", "ʰ", "ª", "中", "文字", "龥", "かな", "カナ", "ー", "한국어",
	"שלום", "العالم", "हिन्दी", "ไทย", "e\u0301", "\u0301", "\u0300\u0316", "\u20dd", "1", "12", "123", "1234567", "½", "Ⅷ", "٣", "１",
	" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\r", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\ufeff", "\u180e", " \n ", "\n  ",
	"'", "''", "'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'LL", "'ll", "'d", "'x", "’s", "don't", ".", "...", ",", "!?", "/", "//", "\\", "-", "_", "`",
	"#", "$", "€", "+", "=", "<|im_end|>", "<think>", "(", ")", "…", "“", "—", "🙂", "👩‍👩‍👧", "🏳️‍🌈", "🇮🇹", "\x00", "\x01", "\x7f", "\u00ad", "\ue000", "\U000e0001",
}

// randomText joins n random atoms.
func randomText(r *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(atoms[r.IntN(len(atoms))])
	}
	return b.String()
}

// cuts runs a finder and lists the matches.
func cuts(t *testing.T, find finder, text string) []span {
	t.Helper()
	var out []span
	if err := find(&encoder{}, text, func(start, end int) { out = append(out, span{start, end}) }); err != nil {
		t.Fatal(err)
	}
	return out
}

// regexpCuts lists the matches that regexp2 finds.
func regexpCuts(t *testing.T, re *regexp2.Regexp, text string) []span {
	t.Helper()
	var out []span
	m, err := re.FindStringMatch(text)
	for ; m != nil && err == nil; m, err = re.FindNextMatch(m) {
		start, n := m.ByteRange()
		out = append(out, span{start, start + n})
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// references is the general engine's program of each pattern that has a scanner.
var references = sync.OnceValue(func() map[string]*regexp2.Regexp {
	out := make(map[string]*regexp2.Regexp, len(scanners))
	for expr := range scanners {
		out[expr] = regexp2.MustCompile(expr)
	}
	return out
})

// compareScanners compares every scanner with regexp2. The general engine does not fold "ſ" to s as the reference's engine
// does; the contraction it would start is left out of the comparison.
func compareScanners(t *testing.T, text string) {
	t.Helper()
	text = strings.ReplaceAll(strings.ReplaceAll(valid(text), "'ſ", "ſ"), "'ſ", "ſ")
	for _, r := range text {
		for _, n := range newerCharacters {
			if r >= n.first && r <= n.last {
				t.Skip("character newer than the general engine's tables")
			}
		}
	}
	for expr, re := range references() {
		scan := scanners[expr]
		got, want := cuts(t, scanned(scan), text), regexpCuts(t, re, text)
		if len(got) != len(want) {
			t.Fatalf("%.30s on %q: %d matches, want %d:\n%q\n%q", expr, text, len(got), len(want), texts(text, got), texts(text, want))
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%.30s on %q: match %d is %q, want %q", expr, text, i, text[got[i].start:got[i].end], text[want[i].start:want[i].end])
			}
		}
	}
}

func texts(text string, spans []span) []string {
	var out []string
	for _, s := range spans {
		out = append(out, text[s.start:s.end])
	}
	return out
}

func TestScannersFindWhatTheirPatternsFind(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1500 {
		compareScanners(t, randomText(r, 1+r.IntN(24)))
	}
}

func TestLongSFollowsAnApostropheAsAnS(t *testing.T) {
	got := texts("it'ſ so", cuts(t, scanned(scanners[PatternLlama3]), "it'ſ so"))
	if want := []string{"it", "'ſ", " so"}; strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzScanners(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		f.Add(randomText(r, 12))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if utf8.RuneCountInString(text) > 200 {
			t.Skip()
		}
		compareScanners(t, text)
	})
}

func TestWordsOfPatternsAreThoseOfUnicode(t *testing.T) {
	re, err := compile(`\w+|[^\w\s]+|\W`)
	if err != nil {
		t.Fatal(err)
	}
	for r := rune(1); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) || unicode.IsSpace(r) {
			continue
		}
		m, err := re.FindStringMatch("a" + string(r))
		if err != nil || m == nil {
			t.Fatalf("U+%04X: %v, %v", r, m, err)
		}
		if joined := m.String() != "a"; joined != isWord(r) {
			t.Errorf("U+%04X beside a letter: one word %v, of Unicode's %v", r, joined, isWord(r))
		}
	}
}
