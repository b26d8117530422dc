package atlas

// This file makes lists of experts from an atlas: which to keep (pin, or leave when the rest is pruned) for some topics.

import (
	"cmp"
	"fmt"
	"slices"

	"covey/engine"

	"github.com/go-json-experiment/json"
)

// MaskRule chooses experts. Exactly one of Coverage and PerLayer is set.
type MaskRule struct {
	Topics   []string // whose shares count, equally; nil = all
	Coverage float64  // keep, in every layer, the fewest experts that take at least this part of the selections
	PerLayer int      // keep this many in every layer
}

// Mask is a choice of experts with what it is expected to cover.
type Mask struct {
	Keep     []engine.Expert `json:"keep"`     // by layer, then id
	Drop     []engine.Expert `json:"drop"`     // the others
	Coverage []float64       `json:"coverage"` // [topics of the atlas] part of the selections that fall on kept experts, mean over layers
	Least    []float64       `json:"least"`    // [topics of the atlas] the same in the worst layer
}

// Mask applies a rule. Coverage is expected from the atlas's own texts; other texts will cover less.
func (a *Atlas) Mask(r MaskRule) (*Mask, error) {
	if (r.Coverage > 0) == (r.PerLayer > 0) {
		return nil, fmt.Errorf("atlas: mask: coverage %g and %d experts a layer: give one of them", r.Coverage, r.PerLayer)
	}
	if r.Coverage > 1 || r.PerLayer > a.Shape.Experts {
		return nil, fmt.Errorf("atlas: mask: coverage %g of at most 1, %d experts of %d a layer", r.Coverage, r.PerLayer, a.Shape.Experts)
	}
	if a.Kind != Measured {
		return nil, fmt.Errorf("atlas: mask: an imported atlas has affinities but no shares: which experts take most selections is not known")
	}
	var topics []int
	for _, name := range r.Topics {
		c := slices.Index(a.Topics, name)
		if c < 0 {
			return nil, fmt.Errorf("atlas: mask: no topic %q; the topics are %q", name, a.Topics)
		}
		topics = append(topics, c)
	}
	if topics == nil {
		for c := range a.Topics {
			topics = append(topics, c)
		}
	}
	m := &Mask{Coverage: make([]float64, len(a.Topics)), Least: make([]float64, len(a.Topics))}
	for c := range m.Least {
		m.Least[c] = 1
	}
	weight := func(e *Expert) float64 {
		sum := 0.0
		for _, c := range topics {
			sum += e.Share[c]
		}
		return sum
	}
	for j := range a.Shape.Layers {
		layer := a.Experts[j*a.Shape.Experts : (j+1)*a.Shape.Experts]
		order := make([]int, len(layer))
		total := 0.0
		for i := range layer {
			order[i] = i
			total += weight(&layer[i])
		}
		slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(weight(&layer[y]), weight(&layer[x])) })
		keep, taken := make([]bool, len(layer)), 0.0
		for n, i := range order {
			if r.PerLayer > 0 && n >= r.PerLayer || r.Coverage > 0 && taken >= r.Coverage*total {
				break
			}
			keep[i] = true
			taken += weight(&layer[i])
		}
		kept, all := make([]float64, len(a.Topics)), make([]float64, len(a.Topics))
		for i := range layer {
			x := engine.Expert{Layer: layer[i].Layer, ID: layer[i].ID}
			if keep[i] {
				m.Keep = append(m.Keep, x)
			} else {
				m.Drop = append(m.Drop, x)
			}
			for c, s := range layer[i].Share {
				all[c] += s
				if keep[i] {
					kept[c] += s
				}
			}
		}
		for c := range kept {
			part := 1.0
			if all[c] > 0 {
				part = kept[c] / all[c]
			}
			m.Coverage[c] += part / float64(len(a.Shape.Layers))
			m.Least[c] = min(m.Least[c], part)
		}
	}
	for c := range m.Coverage {
		m.Coverage[c], m.Least[c] = round(m.Coverage[c]), round(m.Least[c])
	}
	return m, nil
}

// MaskFile is a mask as it is written: with the atlas and the model that it belongs to.
type MaskFile struct {
	Format    string      `json:"format"` // "covey.mask"
	Version   int         `json:"version"`
	Atlas     string      `json:"atlas"` // its id
	ModelName string      `json:"model_name"`
	ModelHash string      `json:"model_hash"`
	Topics    []string    `json:"topics"`   // of the atlas: the order of coverage and least
	Coverage  []float64   `json:"coverage"` // as in Mask
	Least     []float64   `json:"least"`    // as in Mask
	Layers    []MaskLayer `json:"layers"`
}

// MaskLayer is a layer's part of a mask: expert ids, ascending.
type MaskLayer struct {
	Layer int   `json:"layer"`
	Keep  []int `json:"keep"`
	Drop  []int `json:"drop"`
}

// File is the mask's file.
func (m *Mask) File(a *Atlas) MaskFile {
	f := MaskFile{Format: "covey.mask", Version: 1, Atlas: a.ID, ModelName: a.Provenance.ModelName, ModelHash: a.Provenance.ModelHash,
		Topics: a.Topics, Coverage: m.Coverage, Least: m.Least}
	for _, layer := range a.Shape.Layers {
		f.Layers = append(f.Layers, MaskLayer{Layer: layer, Keep: []int{}, Drop: []int{}})
	}
	for _, x := range m.Keep {
		l := &f.Layers[slices.Index(a.Shape.Layers, x.Layer)]
		l.Keep = append(l.Keep, x.ID)
	}
	for _, x := range m.Drop {
		l := &f.Layers[slices.Index(a.Shape.Layers, x.Layer)]
		l.Drop = append(l.Drop, x.ID)
	}
	return f
}

// Encode returns the file as JSON.
func (f MaskFile) Encode() ([]byte, error) {
	out, err := json.Marshal(f, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("atlas: writing a mask: %w", err)
	}
	return append(out, '\n'), nil
}
