package model

import (
	"fmt"
	"math"
	"math/bits"

	"covey/engine/canon"
	"covey/engine/memory"
)

// Options say how a model is loaded. The zero value of a field means its default.
type Options struct {
	Threads     int    // C worker threads; 0 = physical cores available to the process
	ISA         string // kernel family, by a name that canon.Resolve takes; "" = the best of this machine
	KV          string // f16 (default), bf16 or f32
	Activations string // int8 (default: rule 1) or f32 (weights dequantised, rule 3; for checking)
	MaxRows     int    // most rows of a step; 0 = 256
	MaxSlots    int    // most sequences in a step; 0 = 16
	MaxLogits   int    // most rows of a step that want logits; 0 = MaxRows
	Context     int    // longest sequence in tokens; 0 = the model's own limit, which it must not exceed
	KVTokens    int    // capacity of the KV cache in tokens over all sequences; 0 = 2 * Context
	Memory      int64  // most bytes of weights, buffers and KV; 0 = fifteen sixteenths of what the machine has available
	Margins     bool   // keep router logits of every layer for ChoiceMargin

	// Observe, if not nil, is called in every step with what goes into the experts of each row, [hidden], router by router; the
	// slice is valid during the call. It needs the cpu backend.
	Observe func(router int, input []float32)

	// ExpertMemory is how many bytes may hold experts of a container: if they do not all fit, they are read on demand. 0 = all
	// that Memory leaves.
	ExpertMemory int64

	Backend canon.Backend // what runs the program; nil = canon.CPU
}

// settings are options with defaults filled in and names resolved.
type settings struct {
	Options
	isa         canon.ISA
	kv          canon.Form
	dequantised bool
	pages       int // KV pages in all
}

func (o Options) resolve(spec *Spec) (settings, error) {
	s := settings{Options: o}
	bad := func(name string, value any, want string) (settings, error) {
		return s, fmt.Errorf("model: option %s: %v, want %s", name, value, want)
	}
	var err error
	if s.isa, err = canon.Resolve(o.ISA); err != nil {
		return s, fmt.Errorf("model: option ISA: %w", err)
	}
	if s.kv, err = cacheForm(o.KV); err != nil {
		return s, err
	}
	s.KV = s.kv.String()
	switch o.Activations {
	case "", "int8":
		s.Activations = "int8"
	case "f32":
		s.dequantised = true
	default:
		return bad("Activations", o.Activations, "int8 or f32")
	}
	fill := func(value *int, absent int) {
		if *value == 0 {
			*value = absent
		}
	}
	if s.Backend == nil {
		s.Backend = canon.CPU
	}
	if s.Observe != nil && s.Backend != canon.CPU {
		return bad("Observe", "given", "the cpu backend with it")
	}
	fill(&s.MaxRows, 256)
	fill(&s.MaxSlots, 16)
	fill(&s.MaxLogits, s.MaxRows)
	fill(&s.Context, spec.Context)
	fill(&s.KVTokens, 2*s.Context)
	switch {
	case s.MaxRows < 1 || s.MaxRows > 1<<16:
		return bad("MaxRows", s.MaxRows, "1 to 65536")
	case s.MaxSlots < 1 || s.MaxSlots > 1<<16:
		return bad("MaxSlots", s.MaxSlots, "1 to 65536")
	case s.MaxLogits < 1 || s.MaxLogits > s.MaxRows:
		return bad("MaxLogits", s.MaxLogits, fmt.Sprintf("1 to MaxRows (%d)", s.MaxRows))
	case s.Context < 1 || s.Context > spec.Context:
		return bad("Context", s.Context, fmt.Sprintf("1 to the model's %d", spec.Context))
	case s.Memory < 0:
		return bad("Memory", s.Memory, "0 or more bytes")
	case s.ExpertMemory < 0:
		return bad("ExpertMemory", s.ExpertMemory, "0 or more bytes")
	case s.KVTokens < 1 || s.KVTokens > 1<<30:
		return bad("KVTokens", s.KVTokens, "1 to 2^30")
	}
	if s.Memory == 0 {
		s.Memory = memory.Available()
		s.Memory -= s.Memory / 16 // 0 = unknown, and then unlimited; next to nothing is not
	}
	s.pages = (s.KVTokens + canon.PageTokens - 1) / canon.PageTokens
	return s, nil
}

// cacheBytes is the size of the KV cache and of recurrent state; false and the largest number if it cannot be addressed.
func (s settings) cacheBytes(spec *Spec) (int64, bool) {
	page := uint64(spec.pageBytes(s.kv)) // at most 2^44
	high, low := bits.Mul64(page, uint64(s.pages))
	if high != 0 || low > math.MaxInt64 {
		return math.MaxInt64, false
	}
	if low += uint64(s.MaxSlots) * uint64(spec.stateFloats(spec.Layers)) * 4; low > math.MaxInt64 {
		return math.MaxInt64, false
	}
	return int64(low), true
}
