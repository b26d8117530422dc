package model

import (
	"fmt"

	"covey/engine/canon"
	"covey/engine/tier"
	"covey/engine/weights"
)

// Placement says what a checkpoint takes and where that goes, as far as headers tell: before any weight is read. Sizes are in
// bytes; weights count as they are stored, which their packed forms hardly differ from, and buffers of a step do not count.
type Placement struct {
	Memory     int64 // that may be used; 0 = not known, and then unlimited
	Weights    int64 // all tensors of the checkpoint
	Experts    int64 // of these the routed experts, where they are records of a container; 0 = they cannot stay on disk
	Records    int   // routed experts of all layers
	Record     int64 // the largest one of a container; 0 = no container
	Chosen     int   // routed experts that one token takes
	KVTokens   int   // capacity of the KV cache over all sequences
	TokenBytes int64 // KV bytes of one token
	Cache      int64 // KV cache and recurrent state
	OnDemand   bool  // experts stay on disk and are read when a router chooses them
	Slots      int64 // records that then fit in memory
	LeastSlots int64 // records that one layer of the largest step can need
}

// Resident is what is held in memory.
func (p *Placement) Resident() int64 {
	if p.OnDemand {
		return p.Weights - p.Experts + p.Slots*p.Record + p.Cache
	}
	return p.Weights + p.Cache
}

// Place decides as Load does, without reading weights. The error says why the model cannot run so, and the placement then holds
// what is known; it is nil if the checkpoint or the options are at fault.
func Place(checkpoint *weights.Checkpoint, options Options) (*Placement, error) {
	spec, err := ReadSpec(checkpoint)
	if err != nil {
		return nil, err
	}
	s, err := options.resolve(spec)
	if err != nil {
		return nil, err
	}
	p, _, err := s.place(checkpoint, spec)
	return p, err
}

// place returns the records of the experts that stay on disk, nil if none do.
func (s settings) place(checkpoint *weights.Checkpoint, spec *Spec) (*Placement, [][]weights.Record, error) {
	if err := spec.noFurtherLayers(checkpoint); err != nil {
		return nil, nil, err
	}
	list, experts, err := places(checkpoint, spec)
	if err != nil {
		return nil, nil, err
	}
	cache, addressable := s.cacheBytes(spec)
	p := &Placement{
		Memory: s.Memory, Weights: checkpoint.Bytes(), Experts: experts, Records: len(spec.MoELayers()) * spec.MoE.Experts, Chosen: len(spec.MoELayers()) * spec.MoE.TopK,
		KVTokens: s.KVTokens, TokenBytes: spec.pageBytes(s.kv) / canon.PageTokens, Cache: cache,
		LeastSlots: int64(min(spec.MoE.Experts, s.MaxRows*spec.MoE.TopK)),
	}
	for _, layer := range list {
		p.Record = max(p.Record, tier.SlotSize([]tier.Layer{{Records: layer}}))
	}
	held := p.Weights
	fits := s.Memory == 0 || addressable && cache <= s.Memory-held-s.reserve()
	if p.OnDemand = list != nil && (s.ExpertMemory > 0 && experts > s.ExpertMemory || s.ExpertMemory == 0 && !fits); p.OnDemand {
		if s.dequantised || s.Backend != canon.CPU {
			return p, nil, fmt.Errorf("model: the %d MB of experts do not fit %w, and only the cpu backend with int8 activations reads them on demand", experts>>20, ErrMemory)
		}
		held -= experts
	} else {
		list = nil
	}
	if s.Memory > 0 && held > s.Memory {
		return p, nil, fmt.Errorf("model: the checkpoint holds %d MB of weights, but only %d MB of memory may be used: %w; use a smaller checkpoint, or covey convert it to a container, whose experts can stay on disk", held>>20, s.Memory>>20, ErrMemory)
	}
	if !addressable || s.Memory > 0 && cache > s.Memory-held {
		return p, nil, fmt.Errorf("model: a KV cache of %d tokens takes %d MB beside %d MB of weights, but only %d MB of memory may be used: %w; lower the context (%d tokens a sequence) or the cache (%d tokens), or use a smaller checkpoint",
			s.KVTokens, cache>>20, held>>20, s.Memory>>20, ErrMemory, s.Context, s.KVTokens)
	}
	if p.OnDemand {
		if p.Slots, err = s.slots(s.Memory-held-cache, p.Record, int64(p.Records), p.LeastSlots); err != nil {
			return p, nil, err
		}
	}
	return p, list, nil
}

// reserve is left to buffers whose size is not known before the program is built.
func (s settings) reserve() int64 { return s.Memory / 64 }

// slots is how many of total records fit when left bytes are not taken by anything else; an error if a step could need more.
func (s settings) slots(left, record, total, least int64) (int64, error) {
	budget := s.ExpertMemory
	if budget == 0 {
		budget = left - s.reserve()
	}
	n := min(max(budget, 0)/record, total)
	if n < least {
		return n, fmt.Errorf("model: %d MB are left for experts, which hold %d records of %d KB, but a step of %d rows can need %d of one layer: %w; raise ExpertMemory (%d MB would do) or lower MaxRows (%d)",
			max(budget, 0)>>20, n, record>>10, s.MaxRows, least, ErrMemory, (least*record)>>20+1, s.MaxRows)
	}
	return n, nil
}
