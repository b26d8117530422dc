package atlas

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"covey/engine/route"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files")

// golden compares text with the file of that name in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, diff)
	}
}

// small is a measured atlas of two layers with two experts each, made by hand.
func small() *Atlas {
	a := &Atlas{
		Format: Format, Version: Version, Name: "Small", Kind: Measured, Created: time.Date(2026, 11, 30, 4, 0, 0, 0, time.UTC),
		Provenance: Provenance{
			ModelID: "tiny", ModelName: "Tiny", Architecture: "olmoe", ModelHash: "0123456789abcdef", NumericsID: "5ca1ab1e", ProbeSet: "two",
			ProbeSetHash: "fedcba9876543210", Open: 20, SealedTexts: 4, Crossed: 2, Tokens: 2400, Phase: "prefill", Seed: 1, Permutations: 2000, Draws: 2000,
			Shuffles: 200, Alpha: 0.05, MinLift: 1.5, MinSupport: 0.5, Notes: []string{"made by hand"},
		},
		Shape:  Shape{Layers: []int{1, 2}, Experts: 2, TopK: 1},
		Topics: []string{"code", "law"},
		Experts: []Expert{
			{Layer: 1, ID: 0, State: Specialist, Counts: []int64{900, 100}, Prompts: 20, Share: []float64{0.9, 0.1}, Mass: []float64{0.8, 0.1}, Estimate: []float64{1.79, 0.21}, Low: []float64{1.7, 0.1}, High: []float64{1.9, 0.3}, P: []float64{0.0005, 1}, Q: []float64{0.001, 1}, Support: []float64{1, 0.8}, Specificity: 0.5},
			{Layer: 1, ID: 1, State: Generalist, Counts: []int64{100, 900}, Prompts: 20, Share: []float64{0.1, 0.9}, Mass: []float64{0.2, 0.9}, Estimate: []float64{0.21, 1.79}, Low: []float64{0.1, 1.7}, High: []float64{0.3, 1.9}, P: []float64{1, 0.06}, Q: []float64{1, 0.04}, Support: []float64{0.8, 1}, Specificity: 0.5},
			{Layer: 2, ID: 0, State: Generalist, Counts: []int64{990, 1000}, Prompts: 20, Share: []float64{0.99, 1}, Mass: []float64{1, 1}, Estimate: []float64{0.995, 1.005}, Low: []float64{0.9, 0.9}, High: []float64{1.1, 1.1}, P: []float64{1, 1}, Q: []float64{1, 1}, Support: []float64{1, 1}},
			{Layer: 2, ID: 1, State: Insufficient, Counts: []int64{10, 0}, Prompts: 1, Share: []float64{0.01, 0}, Mass: []float64{0.01, 0}, Support: []float64{0.1, 0}},
		},
		Labels:   []Label{{Layer: 1, ID: 0, Topic: 0, Lift: 1.8, Low: 1.7, High: 1.9, P: 0.0005, Q: 0.001, Support: 1, Within: 1.6, WithinP: 0.001, Shuffled: 1.2, Crossed: 1.6, Confirmed: &Confirmation{Lift: 1.7, Low: 1.2, High: 1.9, Sign: true, Held: true}}},
		Layers:   []Layer{{Layer: 1, Information: 0.4, Lexical: 0.2, Reliability: 0.9, LengthPart: 0.01, PositionPart: 0.002}, {Layer: 2, Information: 0.001}},
		Controls: Controls{Shuffles: 200, ShuffledLabels: 0.01, FalseLabelRate: 0.01, CommonTokens: 0.7, ShuffledWords: 12, PositionSurvival: 1, CrossedLabels: 1, CrossedHeld: 1},
		Sealed: &Sealed{Texts: 4, Chance: 0.5, Best: 0, LabelsHeld: 1, LabelsSigns: 1, Crossed: []Crossing{{Topic: "law+code", Texts: 2, First: 1}},
			Decoding: []Decoding{{Method: "logistic", Features: "shares", Correct: 4, N: 4, Accuracy: 1, Low: 0.51, High: 1, Confusion: [][]int{{2, 0}, {0, 2}}}}},
		Summary: Summary{Experts: 3, Specialists: 1, Labels: 1, FalseLabelRate: 0.01, Seconds: 12.5, SealedDecoding: &SealedDecoding{Accuracy: 1, Low: 0.51, High: 1, N: 4, Chance: 0.5}},
	}
	a.ID = a.digest()
	return a
}

func encode(t *testing.T, a *Atlas) []byte {
	t.Helper()
	out, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestADocumentReadsBackAsItWasWritten(t *testing.T) {
	a := small()
	data := encode(t, a)
	golden(t, "small.atlas.json", data)
	back, err := Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if again := encode(t, back); !bytes.Equal(again, data) {
		t.Errorf("written again it is\n%s\nwas\n%s", again, data)
	}
	if e := back.Expert(2, 1); e == nil || e.State != Insufficient {
		t.Errorf("layer 2 expert 1 is %+v", e)
	}
	if back.Expert(3, 0) != nil {
		t.Error("an expert of no layer was found")
	}
}

func TestARunsDocumentReadsBack(t *testing.T) {
	p, set := planted(t, 1)
	a, err := Run(context.Background(), p, set, quick, nil)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(bytes.NewReader(encode(t, a)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(encode(t, a), encode(t, back)) {
		t.Error("the document changed on the way through its file")
	}
	if a.Summary.SealedDecoding == nil || a.Sealed.Texts != 48 || len(a.Sealed.Decoding) != 6 {
		t.Errorf("sealed: %+v", a.Sealed)
	}
}

func TestAChangedDocumentIsNoticed(t *testing.T) {
	data := strings.Replace(string(encode(t, small())), `"lift_low":[1.7,0.1]`, `"lift_low":[1.75,0.1]`, 1)
	if _, err := Decode(strings.NewReader(data)); err == nil || !strings.Contains(err.Error(), "it was changed after it was made") {
		t.Errorf("error %v", err)
	}
	renamed := strings.Replace(string(encode(t, small())), `"name":"Small"`, `"name":"Tiny"`, 1)
	if _, err := Decode(strings.NewReader(renamed)); err != nil {
		t.Errorf("a name is not part of what was measured, but: %v", err)
	}
}

func TestNamesThatSpreadsheetsWouldRunAreTextInCSV(t *testing.T) {
	for topic, want := range map[string]string{
		"=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@SUM(A1)": "'@SUM(A1)", "\t=1": "'\t=1", "law": "law", "": "", "a=b": "a=b",
	} {
		if got := PlainCell(topic); got != want {
			t.Errorf("%q is written %q, want %q", topic, got, want)
		}
	}
	a := small()
	a.Topics[1] = "=cmd|' /C calc'!A0"
	var table bytes.Buffer
	if err := a.WriteCSV(&table); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(table.String(), ",'=cmd|"); n != 4 {
		t.Errorf("%d of 4 cells are marked as text:\n%s", n, table.String())
	}
}

func TestBrokenDocumentsAreRefusedByName(t *testing.T) {
	change := func(f func(*Atlas)) string {
		a := small()
		f(a)
		a.ID = a.digest()
		return string(encode(t, a))
	}
	whole := string(encode(t, small()))
	cases := map[string]struct{ text, want string }{
		"another format":      {strings.Replace(whole, Format, "covey.container", 1), `"covey.container"`},
		"a later version":     {strings.Replace(whole, `"version":1`, `"version":2`, 1), "version 2"},
		"an unknown field":    {strings.Replace(whole, `"name":`, `"nome":`, 1), "nome"},
		"a repeated field":    {strings.Replace(whole, `"name":`, `"id":"x","name":`, 1), "id: it stands twice (at byte"},
		"a text for a number": {regexp.MustCompile(`"prompts":\d+`).ReplaceAllString(whole, `"prompts":"x"`), "experts[0].prompts: string, want a whole number"},
		"half a document":     {whole[:len(whole)/2], "unexpected EOF"},
		"shares of one topic": {change(func(a *Atlas) { a.Experts[0].Share = a.Experts[0].Share[:1] }), "1 shares for 2 topics"},
		"a negative share":    {change(func(a *Atlas) { a.Experts[1].Share[0] = -1 }), "-1"},
		"a missing expert":    {change(func(a *Atlas) { a.Experts = a.Experts[:3] }), "3 experts for a shape"},
		"experts out of order": {change(func(a *Atlas) { a.Experts[0], a.Experts[1] = a.Experts[1], a.Experts[0] }),
			"out of order"},
		"a label of no topic":      {change(func(a *Atlas) { a.Labels[0].Topic = 2 }), "topic 2 does not exist"},
		"a tested expert untested": {change(func(a *Atlas) { a.Experts[0].Low = nil }), "0 values of lift_low"},
		"topics twice":             {change(func(a *Atlas) { a.Topics = []string{"law", "law"} }), "there already"},
		"a short confusion matrix": {change(func(a *Atlas) { a.Sealed.Decoding[0].Confusion = nil }), "2 by 2"},
		"a label twice":            {change(func(a *Atlas) { a.Labels = append(a.Labels, a.Labels[0]) }), "has one already"},
		"a name of a megabyte":     {change(func(a *Atlas) { a.Name = strings.Repeat("n", 1<<20) }), "a text of 1048576 bytes"},
		"a thousand notes":         {change(func(a *Atlas) { a.Provenance.Notes = make([]string, 1000) }), "1000 notes, at most 64"},
		"a layer below zero":       {change(func(a *Atlas) { a.Shape.Layers[0] = -1 }), "layer -1 is out of range"},
		"a layer twice":            {change(func(a *Atlas) { a.Shape.Layers[1] = a.Shape.Layers[0] }), "out of order"},
		"a layer beyond models":    {change(func(a *Atlas) { a.Shape.Layers[1] = 1 << 40 }), "out of range"},
		"top-k beyond experts":     {change(func(a *Atlas) { a.Shape.TopK = 3 }), "top 3 of 2 experts"},
		"facts of another layer":   {change(func(a *Atlas) { a.Layers[1].Layer = 7 }), "is of layer 7"},
		"a share above one":        {change(func(a *Atlas) { a.Experts[0].Share[0] = 1e300 }), "share of 1e+300, want 0 to 1"},
		"a probability above one":  {change(func(a *Atlas) { a.Experts[0].P[0] = 1.5 }), "p of 1.5, want 0 to 1"},
		"a negative probability":   {change(func(a *Atlas) { a.Experts[0].Q[0] = -0.1 }), "q of -0.1"},
		"a lift beyond the topics": {change(func(a *Atlas) { a.Experts[0].High[0] = 2.5 }), "lift_high of 2.5, want 0 to 2"},
		"an interval backwards":    {change(func(a *Atlas) { e := &a.Experts[0]; e.Low[0], e.High[0] = e.High[0], e.Low[0] }), "lift from"},
		"a lift outside":           {change(func(a *Atlas) { a.Experts[0].Estimate[1] = 0 }), "lift 0 outside its interval from 0.1 to 0.3"},
		"negative counts":          {change(func(a *Atlas) { a.Experts[0].Counts[0] = -4 }), "counts [-4"},
		"labels in an import": {change(func(a *Atlas) {
			a.Kind = Imported
			for i := range a.Experts {
				a.Experts[i].State = Unmeasured
			}
		}), "no label without an interval"},
	}
	for name, c := range cases {
		if _, err := Decode(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
}

func TestReportAndTableOfASmallAtlas(t *testing.T) {
	var report, table bytes.Buffer
	if err := Show(&report, small()); err != nil {
		t.Fatal(err)
	}
	golden(t, "small.txt", report.Bytes())
	if err := small().WriteCSV(&table); err != nil {
		t.Fatal(err)
	}
	golden(t, "small.csv", table.Bytes())
}

func TestColibriExportsImportBackAsUnmeasured(t *testing.T) {
	for _, c := range []struct {
		name, source string
		write        func(*Atlas, *bytes.Buffer) error
		experts      int
	}{
		{"colibri-v1.json", "colibri v1", func(a *Atlas, b *bytes.Buffer) error { return a.WriteColibriV1(b) }, 4},
		{"colibri-v2.json", "colibri v2 (list)", func(a *Atlas, b *bytes.Buffer) error { return a.WriteColibriV2(b) }, 3},
		{"colibri-web.json", "colibri v2 (dashboard)", func(a *Atlas, b *bytes.Buffer) error { return a.WriteColibriWeb(b) }, 3},
	} {
		var b bytes.Buffer
		if err := c.write(small(), &b); err != nil {
			t.Fatal(err)
		}
		golden(t, c.name, b.Bytes())
		a, err := Import("theirs", &b)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if a.Kind != Imported || a.Provenance.Source != c.source || len(a.Experts) != c.experts || len(a.Labels) != 0 {
			t.Errorf("%s: kind %s, source %q, %d experts, %d labels", c.name, a.Kind, a.Provenance.Source, len(a.Experts), len(a.Labels))
		}
		if e := a.Expert(1, 0); e == nil || e.State != Unmeasured || e.Claim != "specialist: code" || e.Affinity(0) != 0.9 || e.Low != nil {
			t.Errorf("%s: layer 1 expert 0 is %+v", c.name, e)
		}
		if _, err := Decode(bytes.NewReader(encode(t, a))); err != nil {
			t.Errorf("%s: the imported atlas does not read back: %v", c.name, err)
		}
	}
}

func TestImportsThatHoldNothingAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"version":1,"canonical_specialists":[],"categories":["a","b"]}`: "canonical specialists",
		`{"categories":["a","b"]}`:                                        "no \"experts\"",
		`{"format":"covey.atlas"}`:                                        "needs no import",
		`[]`:                                                              "not an atlas",
		`{"categories":["a","b"],"experts":{"1-2":{"affinity":{"a":1}}}}`:                                  "not layer:id",
		`{"categories":["a","b"],"experts":{"1:2":{"affinity":{"c":1}}}}`:                                  `topic "c"`,
		`{"categories":["a","b"],"experts":{"1:2":{"affinity":{"a":7}}}}`:                                  "affinity 7",
		`{"categories":["a","b"],"experts":[{"layer":-1,"expert":0,"p":{"a":1}}]}`:                         "out of bounds",
		`{"categories":["a"],"experts":[]}`:                                                                "1 topics",
		`{"categories":["a","b"],"experts":[{"layer":1,"expert":0,"p":{}},{"layer":1,"expert":0,"p":{}}]}`: "out of order",
	} {
		if _, err := Import("x", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", text, err, want)
		}
	}
}

func TestObservationsReadBackAndBrokenOnesAreRefused(t *testing.T) {
	s := route.Shape{Layers: []int{1, 2}, Experts: 3, TopK: 2}
	o := &Observation{Tokens: []int32{5, 70000}, IDs: []uint16{0, 1, 2, 0, 1, 0, 2, 1}, Mass: []float32{1, 0.5, 0, 0.25, 0, 2}}
	b := o.encode(s)
	want := []byte{1, 2, 3, 2, 2, 5, 0xf0, 0xa2, 4, 0, 1, 2, 0, 1, 0, 2, 1,
		0, 0, 0x80, 0x3f, 0, 0, 0, 0x3f, 0, 0, 0, 0, 0, 0, 0x80, 0x3e, 0, 0, 0, 0, 0, 0, 0, 0x40}
	if !bytes.Equal(b, want) {
		t.Errorf("bytes\n% x\nwant\n% x", b, want)
	}
	back, err := decodeObservation(s, b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(o, back); diff != "" {
		t.Error(diff)
	}
	if got := back.selections(s, 0); !slices.Equal(got, []int64{2, 2, 0, 1, 1, 2}) {
		t.Errorf("selections %v", got)
	}
	if got := back.selections(s, 1); !slices.Equal(got, []int64{1, 1, 0, 0, 1, 1}) {
		t.Errorf("selections without the first position %v", got)
	}
	for n := range b {
		if _, err := decodeObservation(s, b[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were accepted", n, len(b))
		}
	}
	other := s
	other.Experts = 4
	if _, err := decodeObservation(other, b); err == nil {
		t.Error("an observation of another shape was accepted")
	}
}

func FuzzDecode(f *testing.F) {
	data, err := small().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"format":"covey.atlas","version":1,"experts":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		// The id keeps changed documents out; give each its own, so that the checks behind it are reached.
		loose := &Atlas{}
		if err := json.Unmarshal(data, loose); err == nil {
			loose.ID = loose.digest()
			if data, err = loose.Encode(); err != nil {
				return
			}
		}
		a, err := Decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		// What was accepted must be safe to report and to write in every form.
		var b bytes.Buffer
		for _, write := range []func() error{
			func() error { return Show(&b, a) }, func() error { return a.WriteCSV(&b) }, func() error { return a.WriteColibriV1(&b) },
			func() error { return a.WriteColibriV2(&b) }, func() error { return a.WriteColibriWeb(&b) },
		} {
			if err := write(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzImport(f *testing.F) {
	for _, name := range []string{"colibri-v1.json", "colibri-v2.json", "colibri-web.json"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := Import("fuzz", bytes.NewReader(data))
		if err != nil {
			return
		}
		out, err := a.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(bytes.NewReader(out)); err != nil {
			t.Fatalf("an imported atlas does not read back: %v", err)
		}
	})
}

func FuzzDecodeObservation(f *testing.F) {
	s := route.Shape{Layers: []int{1, 2}, Experts: 3, TopK: 2}
	o := &Observation{Tokens: []int32{5}, IDs: []uint16{0, 1, 2, 0}, Mass: make([]float32, 6)}
	f.Add(o.encode(s))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := decodeObservation(s, data)
		if err != nil {
			return
		}
		if back, err := decodeObservation(s, o.encode(s)); err != nil || !cmp.Equal(o, back) {
			t.Fatalf("an accepted observation does not read back: %v", err)
		}
	})
}
