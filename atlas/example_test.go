package atlas

import (
	"context"
	"encoding/json"
	"testing"

	"covey/atlas/probes"
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
	got, err := Examples(ctx, st, job.ID, a, 4, 2, 5)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Probe.ID != "all" || got[0].Selections != 2 || got[1].Probe.ID != "few" || got[1].Selections != 1 || got[1].Tokens != 3 {
		t.Errorf("got %+v", got)
	}
	if got, err := Examples(ctx, st, "", a, 4, 2, 5); len(got) != 0 || err != nil {
		t.Errorf("an atlas without a job has examples %v, error %v", got, err)
	}
}
