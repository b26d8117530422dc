package probes

import (
	"strings"
	"testing"

	"covey/engine/tokenizer"
)

const small = `{"id":"code-1","topic":"code","split":"open","cluster":"go","kind":"raw","text":"func main() {}"}
{"id":"code-2","topic":"code","split":"sealed","cluster":"c","kind":"raw","text":"int main(void) { return 0; }"}

{"id":"law-1","topic":"law","text":"The parties agree as follows."}
{"id":"x-1","topic":"law+code","text":"This licence covers the function main."}
`

func TestDefaultsAreFilledAndTopicsKeepTheirOrder(t *testing.T) {
	s, err := Read("small", strings.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.Topics, " "); got != "code law" {
		t.Errorf("topics = %q, want %q: crossed topics stay out", got, "code law")
	}
	want := Probe{"law-1", "law", Open, "law-1", Raw, "The parties agree as follows."}
	if s.Probes[2] != want {
		t.Errorf("third probe = %+v, want %+v", s.Probes[2], want)
	}
	if !s.Probes[3].Crossed() || s.Count(Open) != 2 || s.Count(Sealed) != 1 {
		t.Errorf("open %d, sealed %d", s.Count(Open), s.Count(Sealed))
	}
}

func TestCanonicalTextReadsBackToTheSameSetAndHash(t *testing.T) {
	s, err := Read("small", strings.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	again, err := Read("small", strings.NewReader(string(s.Text())))
	if err != nil {
		t.Fatal(err)
	}
	if again.Hash != s.Hash || len(again.Probes) != len(s.Probes) {
		t.Errorf("hash %s became %s", s.Hash, again.Hash)
	}
	// SHA-256 of the four lines with every field spelled out, computed apart from this package.
	const hash = "9728483708722fb4775cf341b2b7e9c5b37e041a58415e86644d1cc8c33d8434"
	if s.Hash != hash {
		t.Errorf("hash %s, want %s", s.Hash, hash)
	}
}

func TestBadLinesAreRefusedWithTheirNumber(t *testing.T) {
	good := `{"id":"a","topic":"code","text":"x"}` + "\n" + `{"id":"b","topic":"law","text":"y"}` + "\n"
	cases := map[string]string{
		`{"id":"c","topic":"law","text":"z","note":1}`:       `line 3: field "note" is unknown`,
		`{"id":"c","topic":"law","text":"z","text":"w"}`:     "duplicate",
		`{"ID":"c","topic":"law","text":"z"}`:                `field "ID" is unknown`,
		`{"id":"c","topic":"law","text":7}`:                  `field "text" is not a text`,
		`{"id":"a","topic":"law","text":"z"}`:                `"a" is there already`,
		`{"id":"c","topic":"","text":"z"}`:                   `"topic": is missing`,
		`{"id":"c","topic":"a+b+c","text":"z"}`:              "more than two",
		`{"id":"c d","topic":"law","text":"z"}`:              "' ' at byte 1",
		`{"id":"c","topic":"law","text":" \n"}`:              "empty",
		`{"id":"c","topic":"law","text":"z","split":"test"}`: `"test" is neither`,
		`{"id":"c","topic":"law","text":"z","kind":"html"}`:  `"html" is neither`,
		`{"id":"c","topic":"law","text":"` + "\xff" + `"}`:   "UTF-8",
		`[1]`: "line 3: it is not a JSON object",
		`{"id":"` + strings.Repeat("i", 121) + `","topic":"law"}`:                  "121 bytes",
		`{"id":"c","topic":"law","text":"` + strings.Repeat("x", MaxText+1) + `"}`: "at most 65536",
	}
	for line, want := range cases {
		_, err := Read("set", strings.NewReader(good+line))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 3") {
			t.Errorf("%.60s: error %v, want one with %q and the line", line, err, want)
		}
	}
}

func TestSetsThatCannotBeComparedAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"id":"a","topic":"code","text":"x"}`: "at least 2",
		"":                                     "at least 2",
		`{"id":"a","topic":"code","text":"x"}` + "\n" + `{"id":"b","topic":"law","text":"y"}` + "\n" + `{"id":"c","topic":"law+art","text":"y"}`: `crosses "art"`,
	} {
		if _, err := Read("set", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

func TestLintNamesWhatWeakensAMeasurement(t *testing.T) {
	var probes []Probe
	add := func(id, topic, split, cluster string, words int) {
		probes = append(probes, Probe{id, topic, split, cluster, Raw, id + strings.Repeat(" w", words-1)})
	}
	for i := range 10 {
		k := string(rune('a' + i))
		add("code-"+k, "code", Open, "code-"+k, 100)
		add("law-"+k, "law", Open, "law-1", 130)
	}
	add("code-s", "code", Sealed, "code-a", 100)
	add("law-long", "law", Open, "law-2", 251)
	probes = append(probes, Probe{"law-copy", "law", Open, "law-3", Raw, strings.ToUpper(probes[0].Text)})
	s, err := New("set", probes)
	if err != nil {
		t.Fatal(err)
	}
	findings, err := Lint(s, func(text string) (int, error) { return len(strings.Fields(text)), nil }, Rules{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		got = append(got, f.String())
	}
	want := []string{
		"law-long: 251 tokens: a text has 60 to 250",
		"law-copy: the same text as code-a",
		"topic code: mean length 100 tokens, 119 over topics: at most 10 % apart",
		"topic code: cluster code-a has open and sealed texts: sealed texts use other templates and sources",
		"topic law: mean length 138 tokens, 119 over topics: at most 10 % apart",
		"topic law: 3 clusters of open texts: at least 10",
		"topic law: cluster law-1 has 10 open texts: at most 6",
		"topic law: 0 sealed texts: 1 are wanted",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("findings:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTheBuiltinSetIsWhatItsDescriptionSays(t *testing.T) {
	s, err := Builtin()
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load("../../models/smollm2-moe-32x")
	if err != nil {
		t.Fatal(err)
	}
	// 60 to 250 tokens a text, mean lengths within 10 %, ten clusters a topic, none of them open and sealed.
	findings, err := Lint(s, func(text string) (int, error) {
		ids, err := tok.Encode(text, false)
		return len(ids), err
	}, Rules{Open: 40, Sealed: 12, Crossed: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		t.Error(f)
	}
	pairs := map[string]bool{}
	for _, p := range s.Probes {
		if p.Crossed() {
			pairs[p.Topic] = true
		}
	}
	if len(s.Topics) != 14 || len(pairs) != 12 {
		t.Errorf("%d topics and %d crossed pairs, want 14 and 12", len(s.Topics), len(pairs))
	}
}

func TestLintCountsTheTextsOfACrossedPair(t *testing.T) {
	s, err := Read("small", strings.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	findings, err := Lint(s, func(string) (int, error) { return 100, nil }, Rules{MinClusters: 1, Crossed: 3})
	if err != nil {
		t.Fatal(err)
	}
	want := "topic law+code: 1 texts: 3 are wanted"
	if got := findings[len(findings)-1].String(); got != want {
		t.Errorf("last finding %q, want %q", got, want)
	}
}

func TestShuffledWordsAreTheSameWordsInAnotherOrder(t *testing.T) {
	p := Probe{ID: "p", Text: "one two\n  three four 五六七 eight"}
	got := ShuffleWords(p, 1)
	if got.Text == p.Text {
		t.Fatal("nothing moved")
	}
	if got != ShuffleWords(p, 1) {
		t.Error("the order is not a function of seed and id")
	}
	count := func(s string) map[rune]int {
		m := map[rune]int{}
		for _, r := range s {
			m[r]++
		}
		return m
	}
	a, b := count(p.Text), count(got.Text)
	for r, n := range a {
		if b[r] != n {
			t.Errorf("%q occurs %d times, was %d", r, b[r], n)
		}
	}
	if parts, words := split(p.Text); len(words) != 8 || len(parts) != 13 {
		t.Errorf("split into %d parts with %d words: %q", len(parts), len(words), parts)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(small)
	f.Add(`{"id":"a","topic":"a+b"}`)
	f.Add("{\"id\":\"\xff\"}")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Read("fuzz", strings.NewReader(text))
		if err != nil {
			return
		}
		again, err := Read("fuzz", strings.NewReader(string(s.Text())))
		if err != nil {
			t.Fatalf("the canonical text of an accepted set is refused: %v", err)
		}
		if again.Hash != s.Hash {
			t.Fatalf("hash %s became %s", s.Hash, again.Hash)
		}
	})
}
