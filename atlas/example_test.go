package atlas

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"covey/atlas/probes"
	"covey/engine"
	"covey/engine/route"
	"covey/store"
)

func TestExamplesAreTheTextsWithTheLargestShareAndNoShuffledOnes(t *testing.T) {
	ctx := context.Background()
	st, err := store.Open(ctx, store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	set, err := probes.New("s", []probes.Probe{{ID: "few", Topic: "a", Text: "x"}, {ID: "all", Topic: "a", Text: "y"}, {ID: "none", Topic: "b", Text: "z"}})
	if err != nil {
		t.Fatal(err)
	}
	job, err := st.CreateJob(ctx, store.NewJob{Kind: "probe", ProbeHash: set.Hash, Probes: set.Text(), Params: json.RawMessage(`{}`), Total: 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.StartJob(ctx, job.ID); err != nil {
		t.Fatal(err)
	}
	shape := route.Shape{Layers: []int{1, 4}, Experts: 3, TopK: 1}
	put := func(key string, ids ...uint16) { // [rows, 2 layers]
		o := Observation{Tokens: make([]int32, len(ids)/2), IDs: ids, Mass: make([]float32, 6)}
		if _, err := st.PutResults(ctx, job.ID, store.JobResult{Prompt: key, Numerics: "n", Data: o.encode(shape)}); err != nil {
			t.Fatal(err)
		}
	}
	put("few", 2, 2, 2, 0, 2, 1)
	put("all", 0, 2, 1, 2)
	put("none", 2, 0)
	put("all"+wordShuffled, 0, 2)
	a := &Atlas{Shape: Shape{Layers: shape.Layers, Experts: 3, TopK: 1}, Provenance: Provenance{NumericsID: "n"}}
	look, err := LookAt(ctx, st, job.ID, a, 4, 2, 5)
	if err != nil {
		t.Fatal(err)
	}
	got := look.Examples
	if len(got) != 2 || got[0].Probe.ID != "all" || got[0].Selections != 2 || got[1].Probe.ID != "few" || got[1].Selections != 1 || len(got[1].Tokens) != 3 {
		t.Errorf("got %+v", got)
	}
	if want := []bool{true, false, false}; !slices.Equal(got[1].Chosen, want) {
		t.Errorf("tokens of %s that chose it: %v, want %v", got[1].Probe.ID, got[1].Chosen, want)
	}
	if look, err := LookAt(ctx, st, "", a, 4, 2, 5); len(look.Examples) != 0 || err != nil {
		t.Errorf("an atlas without a job shows %v, error %v", look, err)
	}
}

func TestPairsAreRankedByHowMuchMoreOftenThanAnywhereTheyComeTogether(t *testing.T) {
	shape := route.Shape{Layers: []int{1, 4}, Experts: 3, TopK: 1}
	p := newPairs(shape, 0, 0)
	// Twelve texts of 6 tokens: expert 0 of layer 1 is followed by expert 2 of layer 4 at its three tokens, and the others
	// go half to 1 and half to 2; a thirteenth text in which it never occurs.
	for range 12 {
		o := &Observation{Tokens: make([]int32, 6), IDs: []uint16{0, 2, 0, 2, 0, 2, 1, 1, 1, 2, 2, 1}}
		p.add(o, []bool{true, true, true, false, false, false})
	}
	p.add(&Observation{Tokens: make([]int32, 6), IDs: []uint16{1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0}}, make([]bool, 6))
	got := p.best(5)
	want := []Together{{Expert: engine.Expert{Layer: 4, ID: 2}, Both: 36, Texts: 12, Part: 1, Base: 48.0 / 78}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
