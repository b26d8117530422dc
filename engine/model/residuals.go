package model

// Residuals let a step begin in the middle of the model. What removes experts of one layer changes nothing before it, so a
// text that is read under many removals is read once as it is, with the values of its rows kept at the routers, and then
// from the router of each removal on: half the layers on average, and the same bits, because the operations from there on
// are those of a whole step.

import (
	"errors"
	"fmt"
	"slices"

	"covey/engine/canon"
)

// ErrNoResiduals says that this model cannot begin a step at a router: it carries more from layer to layer than one residual
// stream, or it does not run on the cpu backend.
var ErrNoResiduals = errors.New("steps of this model cannot begin at a router")

// Residuals are the values with which the rows of one sequence arrived at some routers, and which experts the routers then
// chose. A step that keeps them writes them; afterwards they are read only. They belong to one model.
type Residuals struct {
	model  *Model
	rows   int
	values [][]float32 // [MoE layers] [rows, width], nil = not kept
	width  []int       // [MoE layers]
	chosen [][]uint64  // [MoE layers] bits of the experts that some row chose
}

// NewResiduals makes room for rows positions at the routers of some model layers (info.Shape.Layers). It takes rows x
// (2 hidden + experts) floats a layer.
func (m *Model) NewResiduals(layers []int, rows int) (*Residuals, error) {
	s := m.spec
	if s.Streams != nil || s.Attention.Compressed != nil || s.Attention.Latent != nil && s.Attention.Latent.Index != nil || m.settings.Backend != canon.CPU {
		return nil, fmt.Errorf("model: %w", ErrNoResiduals)
	}
	all := m.info.Shape.Layers
	r := &Residuals{model: m, rows: rows, values: make([][]float32, len(all)), width: make([]int, len(all)), chosen: make([][]uint64, len(all))}
	for router := range all {
		r.chosen[router] = make([]uint64, (s.MoE.Experts+63)/64)
		for _, b := range m.forward.live[router] {
			r.width[router] += b.Width()
		}
	}
	for _, layer := range layers {
		router := slices.Index(all, layer)
		if router < 0 {
			return nil, fmt.Errorf("model: residuals: layer %d has no experts", layer)
		}
		r.values[router] = make([]float32, rows*r.width[router])
	}
	return r, nil
}

// Has says whether rows rows of a sequence can begin at a router.
func (r *Residuals) Has(router, rows int) bool {
	return router >= 0 && router < len(r.values) && r.values[router] != nil && rows == r.rows
}

// Unchanged says whether a reading without these experts is the reading that was kept, bit for bit: no row chose any of
// them, and the router weighs the chosen ones without regard to the others.
func (r *Residuals) Unchanged(experts []Expert) bool {
	s := r.model.spec.MoE.Router
	if s.Score == canon.ScoreSparseMixer || s.Groups > 1 {
		return false
	}
	for _, e := range experts {
		router := slices.Index(r.model.info.Shape.Layers, e.Layer)
		if router < 0 || e.ID < 0 || e.ID >= r.model.info.Shape.Experts { // NewBan says what is wrong
			return false
		}
		if r.chosen[router][e.ID/64]>>(e.ID%64)&1 == 1 {
			return false
		}
	}
	return true
}

// checkResiduals refuses a batch whose rows could not be kept or resumed.
func (m *Model) checkResiduals(b *Batch) error {
	for _, list := range [][]*Residuals{b.Keep, b.From} {
		if list == nil {
			continue
		}
		if len(list) != len(b.Pages) {
			return fmt.Errorf("residuals for %d of %d sequences", len(list), len(b.Pages))
		}
		for i, slot := range b.Sequence {
			if slot < 0 || int(slot) >= len(list) || i >= len(b.Positions) || b.Positions[i] < 0 { // the program says so
				return nil
			}
			if r := list[slot]; r != nil && (r.model != m || int(b.Positions[i]) >= r.rows) {
				return fmt.Errorf("row %d at position %d: the residuals hold %d rows, or are of another model", i, b.Positions[i], r.rows)
			}
		}
	}
	for slot, r := range b.From {
		if r == nil || r.model != m || !r.Has(b.Router, r.rows) {
			return fmt.Errorf("sequence %d has no residuals at router %d", slot, b.Router)
		}
	}
	return nil
}

// row is the place of one row at a router.
func (r *Residuals) row(router int, position int32) []float32 {
	w := r.width[router]
	return r.values[router][int(position)*w : (int(position)+1)*w]
}

// keep copies a step's rows out of the program, behind a router.
func (m *Model) keep(b *Batch, router int) {
	for i, slot := range b.Sequence {
		if b.Keep == nil || b.Keep[slot] == nil {
			continue
		}
		r := b.Keep[slot]
		for _, id := range m.forward.choices[router].IDs(i) {
			if id >= 0 {
				r.chosen[router][id/64] |= 1 << (id % 64)
			}
		}
		if r.values[router] == nil {
			continue
		}
		to := r.row(router, b.Positions[i])
		for _, live := range m.forward.live[router] {
			to = to[copy(to, live.Row(i)):]
		}
	}
}

// resume copies a step's rows into the program, in front of a router.
func (m *Model) resume(b *Batch) {
	for i, slot := range b.Sequence {
		from := b.From[slot].row(b.Router, b.Positions[i])
		for _, live := range m.forward.live[b.Router] {
			from = from[copy(live.Row(i), from):]
		}
	}
}
