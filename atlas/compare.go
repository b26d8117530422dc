package atlas

import (
	"fmt"
	"slices"

	"covey/atlas/stats"
)

// Comparison is how far two atlases of one shape agree: of two numerics, two probe sets, a model and its fine-tune.
type Comparison struct {
	Topics       []string `json:"topics"`        // that both have; only these are compared
	Experts      int      `json:"experts"`       // that both say something about
	Correlation  float64  `json:"correlation"`   // Pearson, of affinities over experts and topics
	SameTop      float64  `json:"same_top"`      // part of the experts with the same top topic
	Both         int      `json:"both"`          // labels of both
	OnlyFirst    []Label  `json:"only_first"`    // labels of the first alone, topics as in the first
	OnlySecond   []Label  `json:"only_second"`   // labels of the second alone, topics as in the second
	SameModel    bool     `json:"same_model"`    // equal model hashes
	SameNumerics bool     `json:"same_numerics"` // equal numerics ids
	SameProbes   bool     `json:"same_probes"`   // equal probe-set hashes
}

// Compare compares two atlases. Their shapes must be the same and they must share two topics.
func Compare(a, b *Atlas) (*Comparison, error) {
	if !slices.Equal(a.Shape.Layers, b.Shape.Layers) || a.Shape.Experts != b.Shape.Experts {
		return nil, fmt.Errorf("atlas: comparing: %d layers with %d experts and %d with %d: the shapes must be the same",
			len(a.Shape.Layers), a.Shape.Experts, len(b.Shape.Layers), b.Shape.Experts)
	}
	out := &Comparison{
		SameModel: a.Provenance.ModelHash == b.Provenance.ModelHash, SameNumerics: a.Provenance.NumericsID == b.Provenance.NumericsID,
		SameProbes: a.Provenance.ProbeSetHash == b.Provenance.ProbeSetHash, OnlyFirst: []Label{}, OnlySecond: []Label{},
	}
	for _, t := range a.Topics {
		if slices.Contains(b.Topics, t) {
			out.Topics = append(out.Topics, t)
		}
	}
	if len(out.Topics) < 2 {
		return nil, fmt.Errorf("atlas: comparing: %q and %q share %d topics: at least 2", a.Topics, b.Topics, len(out.Topics))
	}
	var xs, ys []float64
	same := 0
	for i := range a.Experts {
		e := &a.Experts[i]
		f := b.Expert(e.Layer, e.ID)
		if f == nil || e.State == Insufficient || f.State == Insufficient {
			continue
		}
		out.Experts++
		x, y := affinities(a, e, out.Topics), affinities(b, f, out.Topics)
		xs, ys = append(xs, x...), append(ys, y...)
		if slices.Index(x, slices.Max(x)) == slices.Index(y, slices.Max(y)) {
			same++
		}
	}
	if out.Experts > 0 {
		out.Correlation, out.SameTop = round(stats.Pearson(xs, ys)), round(float64(same)/float64(out.Experts))
	}
	type key struct {
		layer, id int
		topic     string
	}
	keys := func(t *Atlas) map[key]bool {
		out := map[key]bool{}
		for _, l := range t.Labels {
			out[key{l.Layer, l.ID, t.Topics[l.Topic]}] = true
		}
		return out
	}
	first, second := keys(a), keys(b)
	for _, l := range a.Labels {
		if second[key{l.Layer, l.ID, a.Topics[l.Topic]}] {
			out.Both++
		} else {
			out.OnlyFirst = append(out.OnlyFirst, l)
		}
	}
	for _, l := range b.Labels {
		if !first[key{l.Layer, l.ID, b.Topics[l.Topic]}] {
			out.OnlySecond = append(out.OnlySecond, l)
		}
	}
	return out, nil
}

// affinities is p(c|e) over the named topics alone; all equal when the expert was selected in none of them.
func affinities(a *Atlas, e *Expert, topics []string) []float64 {
	out, sum := make([]float64, len(topics)), 0.0
	for i, t := range topics {
		out[i] = e.Share[slices.Index(a.Topics, t)]
		sum += out[i]
	}
	for i := range out {
		if sum > 0 {
			out[i] /= sum
		} else {
			out[i] = 1 / float64(len(out))
		}
	}
	return out
}
