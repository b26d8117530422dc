package canon

/*
#include "engine.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"unsafe"
)

// DeltaNet describes a layer of gated delta net (rule 7). Heads of values outnumber those of queries and keys; each key head
// serves ValueHeads/KeyHeads consecutive value heads.
type DeltaNet struct {
	KeyHeads, ValueHeads int
	KeyDim, ValueDim     int
	Taps                 int       // of the convolution, 2 or more
	Conv                 []float32 // [2*KeyHeads*KeyDim + ValueHeads*ValueDim, Taps]: all queries, all keys, all values; the last tap is the row's own
	Decay                []float32 // [ValueHeads] A_log
	Shift                []float32 // [ValueHeads] dt_bias
	Norm                 []float32 // [ValueDim] weight of the norm of outputs
	Eps                  float32   // of that norm
}

// Floats is the state of one sequence in one layer.
func (d *DeltaNet) Floats() int {
	per := d.ValueHeads / d.KeyHeads
	return d.KeyHeads * ((d.Taps-1)*(2*d.KeyDim+per*d.ValueDim) + per*d.KeyDim*d.ValueDim)
}

// State is recurrent state of sequences, a slot each: float32, whatever the form of keys and values. A step names the slot of
// a sequence in Step.States; its contents are void until the sequence's position 0 has run, which starts from zero. Slots are
// committed as they are first used.
type State struct {
	slots, floats int
	mem           []float32
}

// NewState returns state for slots sequences of floats values each.
func (a *Arena) NewState(slots, floats int) (*State, error) {
	if slots <= 0 || floats <= 0 || slots > 1<<20 || floats > 1<<30 {
		return nil, fmt.Errorf("canon: state: %d slots of %d values are out of range", slots, floats)
	}
	mem, err := a.Floats(slots * floats)
	if err != nil {
		return nil, fmt.Errorf("canon: state: %w", err)
	}
	return &State{slots: slots, floats: floats, mem: mem}, nil
}

// Slot returns the values of one slot (for saving, restoring and copying).
func (s *State) Slot(i int) []float32 { return s.mem[i*s.floats : (i+1)*s.floats : (i+1)*s.floats] }

// deltaEps keeps the norm of queries and keys from dividing by zero.
const deltaEps = 1e-6

// DeltaNet: dst [ValueHeads*ValueDim] = the gated, normalised outputs of the recurrence over projections, which hold for each
// key head in turn its query, key, the values of its value heads and their gates, and over rates, which hold for each key
// head the writing rates of its value heads and then their decays. The layer's state lies from value at on in each slot.
func (p *Program) DeltaNet(dst, projections, rates *Buffer, d DeltaNet, state *State, at int) {
	if !p.same(dst, projections, rates) {
		return
	}
	if d.KeyHeads <= 0 || d.ValueHeads <= 0 || d.ValueHeads%d.KeyHeads != 0 || d.KeyDim <= 0 || d.ValueDim <= 0 || d.Taps < 2 || dst.c.logits != 0 {
		p.fail("delta net of %d key heads of %d, %d value heads of %d, %d taps", d.KeyHeads, d.KeyDim, d.ValueHeads, d.ValueDim, d.Taps)
		return
	}
	per, values := d.ValueHeads/d.KeyHeads, d.ValueHeads*d.ValueDim
	channels := 2*d.KeyHeads*d.KeyDim + values
	if dst.Width() != values || projections.Width() != channels+values || rates.Width() != 2*d.ValueHeads || len(d.Conv) != channels*d.Taps ||
		len(d.Decay) != d.ValueHeads || len(d.Shift) != d.ValueHeads || len(d.Norm) != d.ValueDim || at < 0 || at+d.Floats() > state.floats {
		p.fail("delta net of %d channels and %d values: widths %d, %d and %d, %d taps, %d decays, %d shifts, %d norm weights, state %d of %d",
			channels, values, projections.Width(), rates.Width(), dst.Width(), len(d.Conv), len(d.Decay), len(d.Shift), len(d.Norm), at, state.floats)
		return
	}
	if p.state != nil && p.state != state {
		p.fail("a second state in one program")
		return
	}
	p.state = state
	// The taps of a key head's channels side by side, tap after tap.
	var conv []float32
	for g := range d.KeyHeads {
		first, whole := []int{g * d.KeyDim, (d.KeyHeads + g) * d.KeyDim, 2*d.KeyHeads*d.KeyDim + g*per*d.ValueDim}, []int{d.KeyDim, d.KeyDim, per * d.ValueDim}
		for tap := range d.Taps {
			for i := range first {
				for c := first[i]; c < first[i]+whole[i]; c++ {
					conv = append(conv, d.Conv[c*d.Taps+tap])
				}
			}
		}
	}
	op := C.canon_op{kind: C.CANON_OP_DELTA, dst: dst.c, src: projections.c, src2: rates.c, vec: p.vector(slices.Concat(conv, d.Decay, d.Shift, d.Norm)),
		state: (*C.float)(unsafe.SliceData(state.mem)), state_floats: C.int64_t(state.floats)}
	for i, v := range []int{d.KeyHeads, per, d.KeyDim, d.ValueDim, d.Taps, at} {
		op.i[i] = C.int32_t(v)
	}
	op.f[0], op.f[1], op.f[2] = C.float(d.Eps), deltaEps, C.canon_attention_scale(C.int32_t(d.KeyDim))
	p.add(op)
}

// Gate: dst = dst * sigmoid(gate).
func (p *Program) Gate(dst, gate *Buffer) { p.elementwise(C.CANON_OP_GATE, 0, 0, dst, gate) }
