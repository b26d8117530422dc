package atlas

// This file looks at one expert through the texts that a job has read: which texts chose it most and at which tokens, and
// which experts the same tokens chose with it.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"covey/atlas/probes"
	"covey/engine"
	"covey/engine/route"
	"covey/store"
)

// Example is a text that a job read, with how often it chose one expert.
type Example struct {
	Probe      probes.Probe
	Selections int     // of the expert
	Tokens     []int32 // counted positions; a layer makes top-k selections for each
	Chosen     []bool  // [Tokens] whether the position chose the expert
}

// Share is the part of the text's positions that chose the expert.
func (e Example) Share() float64 { return float64(e.Selections) / float64(max(1, len(e.Tokens))) }

// Together is how often positions that chose one expert chose another.
type Together struct {
	Expert engine.Expert
	Both   int     // positions that chose both
	Texts  int     // texts in which that happened
	Part   float64 // of the positions that chose the first
	Base   float64 // part of all positions that chose the other
}

// Look is what a job's texts show of one expert.
type Look struct {
	Examples []Example  // that chose it most, by share
	Together []Together // by Part over Base; only pairs with enough positions and texts
}

// Support below which a pair of experts is not named.
const (
	minBoth      = 30
	minBothTexts = 10
)

// LookAt looks at expert id of a model layer through the results that a job keeps in the store: examples from all its
// texts, pairs from the open ones, n of each at most. Nothing when the job is gone. a is the atlas that the job made.
// Word-shuffled readings are left out. It decodes every result: some 0.2 ms a text of the bundled model.
func LookAt(ctx context.Context, st *store.Store, job string, a *Atlas, layer, id, n int) (*Look, error) {
	shape := route.Shape{Layers: a.Shape.Layers, Experts: a.Shape.Experts, TopK: a.Shape.TopK}
	at := slices.Index(shape.Layers, layer)
	if job == "" || at < 0 {
		return &Look{}, nil
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
	out := &Look{}
	p := newPairs(shape, at, id)
	err = st.Results(ctx, job, a.Provenance.NumericsID, func(r store.JobResult) error {
		probe, ok := byID[r.Prompt]
		if !ok {
			return nil
		}
		o, err := decodeObservation(shape, r.Data)
		if err != nil {
			return fmt.Errorf("result of %q: %w", r.Prompt, err)
		}
		e := Example{Probe: probe, Tokens: o.Tokens, Chosen: make([]bool, len(o.Tokens))}
		for row := range o.Tokens {
			if p.chosen(o, row) {
				e.Chosen[row] = true
				e.Selections++
			}
		}
		if e.Selections > 0 {
			out.Examples = append(out.Examples, e)
		}
		if probe.Split == probes.Open && !probe.Crossed() {
			p.add(o, e.Chosen)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("atlas: reading the results of job %s: %w", job, err)
	}
	slices.SortStableFunc(out.Examples, func(x, y Example) int { return cmp.Compare(y.Share(), x.Share()) })
	out.Examples = out.Examples[:min(n, len(out.Examples))]
	out.Together = p.best(n)
	return out, nil
}

// pairs counts what is chosen together with one expert.
type pairs struct {
	shape     route.Shape
	layer, id int // place of the layer in the shape, expert
	positions int
	own       int   // positions that chose the expert
	all, both []int // [layers*experts] positions that chose the other; that chose both
	texts     []int // [layers*experts]
	inText    []int // number of the last text that counted, for texts
	text      int
}

func newPairs(s route.Shape, layer, id int) *pairs {
	cells := len(s.Layers) * s.Experts
	return &pairs{shape: s, layer: layer, id: id, all: make([]int, cells), both: make([]int, cells), texts: make([]int, cells), inText: make([]int, cells)}
}

// chosen tells whether a position chose the expert.
func (p *pairs) chosen(o *Observation, row int) bool {
	from := (row*len(p.shape.Layers) + p.layer) * p.shape.TopK
	return slices.Contains(o.IDs[from:from+p.shape.TopK], uint16(p.id))
}

func (p *pairs) add(o *Observation, chosen []bool) {
	p.text++
	slots := p.shape.Slots()
	for row, own := range chosen {
		p.positions++
		if own {
			p.own++
		}
		for i, id := range o.IDs[row*slots : (row+1)*slots] {
			cell := i/p.shape.TopK*p.shape.Experts + int(id)
			p.all[cell]++
			if !own {
				continue
			}
			p.both[cell]++
			if p.inText[cell] != p.text {
				p.inText[cell] = p.text
				p.texts[cell]++
			}
		}
	}
}

// best lists the n others that come most above their own share.
func (p *pairs) best(n int) []Together {
	var out []Together
	for cell, both := range p.both {
		layer, id := cell/p.shape.Experts, cell%p.shape.Experts
		if both < minBoth || p.texts[cell] < minBothTexts || layer == p.layer && id == p.id {
			continue
		}
		out = append(out, Together{Expert: engine.Expert{Layer: p.shape.Layers[layer], ID: id}, Both: both, Texts: p.texts[cell],
			Part: float64(both) / float64(p.own), Base: float64(p.all[cell]) / float64(p.positions)})
	}
	slices.SortStableFunc(out, func(x, y Together) int { return cmp.Compare(y.Part/y.Base, x.Part/x.Base) })
	return out[:min(n, len(out))]
}
