package daemon

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"covey/atlas"
	"covey/atlas/probes"
)

var update = flag.Bool("update", false, "write the bundled model's report anew")

// report renders the report of a stored atlas.
func report(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	a, err := atlas.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := WriteReport(context.Background(), &b, a); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAReportSaysWhatWasFoundAndWhatWasNot(t *testing.T) {
	page := report(t, "../atlas/testdata/small.atlas.json")
	for _, want := range []string{
		"3 of 4 experts were chosen often enough", "with 1 label in all", "What survives the controls", "Token identity", "1 of the 1 labels whose topic occurs in such texts keep a lift above 1.5",
		"Nothing was removed", "law and code", "1.79 [1.70, 1.90]", "mutual information", "covey atlas run --model DIR --probes FILE --seed 1",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
}

func TestAReportNamesTheCommandOfItsRemovals(t *testing.T) {
	bundled := atlas.Provenance{ModelID: bundledID, ProbeSet: probes.BuiltinName}
	other := atlas.Provenance{ModelID: "other", ProbeSet: "mine"}
	removed := []atlas.Label{{}, {Causal: &atlas.Effect{Controls: 9}}, {Causal: &atlas.Effect{Controls: 10}}}
	group := []atlas.Group{{Effect: atlas.Effect{Controls: 4}}}
	for want, a := range map[string]*atlas.Atlas{
		"": {Provenance: bundled, Labels: removed[:1]},
		"covey atlas ablate ATLAS --labels 2 --controls 10 --no-groups":              {Provenance: bundled, Labels: removed},
		"covey atlas ablate ATLAS --labels=-1 --controls 4":                          {Provenance: bundled, Labels: removed[:1], Groups: group},
		"covey atlas ablate ATLAS --model DIR --probes FILE --labels 1 --controls 9": {Provenance: other, Labels: removed[:2], Groups: group},
	} {
		if got := remove(a); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestAReportNeedsNothingButItself(t *testing.T) {
	page := report(t, "../atlas/testdata/small.atlas.json")
	for _, pattern := range []string{`<script`, `<link`, `<img`, `\shref=`, `\ssrc=`, `url\(`, `@import`, `<form`, `<button`} {
		if found := regexp.MustCompile(pattern).FindString(page); found != "" {
			t.Errorf("found %q", found)
		}
	}
}

func TestAReportNamesTheTopicsWhoseExpertsMatterTogether(t *testing.T) {
	a := &atlas.Atlas{Topics: []string{"law", "code", "math"}, Labels: []atlas.Label{{}}, Groups: []atlas.Group{
		{Topic: 0, Effect: atlas.Effect{Low: -0.2, High: -0.1, Matters: true}}, {Topic: 1, Effect: atlas.Effect{Low: -0.1, High: 0.1}}, {Topic: 2, Effect: atlas.Effect{Low: 0.1, High: 0.2}},
	}}
	if got, want := strings.Join(found(a), "\n"), "matter more in 1 (law) and less in 1 (math) of 3 topics; by chance about 0.1 of each would"; !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
}

// The report of the bundled model is that of the atlas beside it, which anyone can import or compare with their own run.
func TestTheBundledReportIsThatOfTheAtlasBesideIt(t *testing.T) {
	const path = "../docs/report/index.html"
	got := report(t, "../docs/report/covey.atlas.json")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs from the report of covey.atlas.json (%d and %d bytes): go test ./daemon -run BundledReport -update", path, len(want), len(got))
	}
}
