package atlas

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"covey/atlas/probes"
	"covey/engine/route"
	"covey/store"
)

// Example is a text that a job read, with how often it chose one expert.
type Example struct {
	Probe      probes.Probe
	Selections int // of the expert
	Tokens     int // counted positions; a layer makes top-k selections for each
}

// Share is the part of the text's positions that chose the expert.
func (e Example) Share() float64 { return float64(e.Selections) / float64(max(1, e.Tokens)) }

// Examples lists the n texts whose positions chose expert id of a model layer most, from the results that a job keeps
// in the store; none when the job is gone. a is the atlas that the job made. Word-shuffled readings are left out. It
// decodes every result: some 0.1 ms a text of the bundled model.
func Examples(ctx context.Context, st *store.Store, job string, a *Atlas, layer, id, n int) ([]Example, error) {
	shape := route.Shape{Layers: a.Shape.Layers, Experts: a.Shape.Experts, TopK: a.Shape.TopK}
	at := slices.Index(shape.Layers, layer)
	if job == "" || at < 0 {
		return nil, nil
	}
	text, err := st.JobProbes(ctx, job)
	if err != nil {
		return nil, fmt.Errorf("atlas: reading the texts of job %s: %w", job, err)
	}
	set, err := probes.Read(a.Provenance.ProbeSet, strings.NewReader(string(text)))
	if err != nil {
		return nil, fmt.Errorf("atlas: reading the texts of job %s: %w", job, err)
	}
	byID := make(map[string]probes.Probe, len(set.Probes))
	for _, p := range set.Probes {
		byID[p.ID] = p
	}
	var out []Example
	err = st.Results(ctx, job, a.Provenance.NumericsID, func(r store.JobResult) error {
		probe, ok := byID[r.Prompt]
		if !ok {
			return nil
		}
		o, err := decodeObservation(shape, r.Data)
		if err != nil {
			return fmt.Errorf("result of %q: %w", r.Prompt, err)
		}
		e := Example{Probe: probe, Tokens: len(o.Tokens)}
		for row := range o.Tokens {
			from := (row*len(shape.Layers) + at) * shape.TopK
			for _, chosen := range o.IDs[from : from+shape.TopK] {
				if int(chosen) == id {
					e.Selections++
				}
			}
		}
		if e.Selections > 0 {
			out = append(out, e)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("atlas: reading the results of job %s: %w", job, err)
	}
	slices.SortStableFunc(out, func(x, y Example) int { return cmp.Compare(y.Share(), x.Share()) })
	return out[:min(n, len(out))], nil
}
