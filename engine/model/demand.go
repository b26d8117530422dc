package model

// Experts on demand: a container's experts stay on disk where they do not fit, and a cache of records (package tier) brings
// those that routers choose. The program is the same one; a step stops before the experts of each layer.

import (
	"errors"
	"fmt"
	"unsafe"

	"covey/engine/canon"
	"covey/engine/tier"
	"covey/engine/weights"
)

// recordReaders is how many records are read at a time: enough to keep a solid-state disk's queue filled.
const recordReaders = 8

// demand is the cache of a model whose experts are read on demand.
type demand struct {
	reader *weights.RecordReader
	store  *tier.Store
	last   tier.Counters // at the end of the step before
}

// places finds the records of all routed experts; nil if the checkpoint does not hold them as records.
func places(checkpoint *weights.Checkpoint, spec *Spec) ([][]weights.Record, int64, error) {
	var all [][]weights.Record
	total := int64(0)
	for _, layer := range spec.MoELayers() {
		list := make([]weights.Record, spec.MoE.Experts)
		for id := range list {
			r, ok, err := checkpoint.Record(spec.expert(layer, id))
			if err != nil {
				return nil, 0, err
			}
			if !ok {
				return nil, 0, nil
			}
			if g := r.Layout.Gate; g.Rows != spec.MoE.Inner || g.Cols != spec.Hidden || id > 0 && !r.Layout.Equal(list[0].Layout) {
				return nil, 0, fmt.Errorf("model: %s: %s, but the configuration gives gate [%d, %d], alike for all experts of a layer; check config.json against the tensors", r.Name, r.Layout, spec.MoE.Inner, spec.Hidden)
			}
			list[id] = r
			total += r.Size
		}
		all = append(all, list)
	}
	return all, total, nil
}

// openDemand gives what is left of the memory, or as much as was asked for, to the cache.
func (m *Model) openDemand(checkpoint *weights.Checkpoint, all [][]weights.Record) error {
	s := m.settings
	layers := make([]tier.Layer, len(all))
	for i, list := range all {
		layers[i] = tier.Layer{Records: list, Table: m.forward.tables[i]}
	}
	size := tier.SlotSize(layers)
	total := int64(len(all)) * int64(m.spec.MoE.Experts)
	slots, err := s.slots(s.Memory-m.arena.Size(), size, total, int64(min(m.spec.MoE.Experts, s.MaxRows*m.spec.MoE.TopK)))
	if err != nil {
		return err
	}
	block, err := m.arena.Bytes(int(slots*size) + tier.Align)
	if err != nil {
		return fmt.Errorf("model: cache of experts: %w", err)
	}
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(block)))) & (tier.Align - 1)
	block = block[skip:][:slots*size]
	for at := int64(0); at < slots*size; at += size {
		m.arena.Settle(all[0][0].Layout, block[at:])
	}
	d := &demand{}
	if d.reader, err = checkpoint.RecordReader(); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if d.store, err = tier.New(layers, block, recordReaders, d.reader.Read); err != nil {
		return errors.Join(fmt.Errorf("model: %w", err), d.reader.Close())
	}
	m.demand, m.tiers = d, d.store
	for _, list := range all {
		m.info.Bytes -= int64(len(list)) * list[0].Layout.Bytes()
	}
	m.info.Bytes += slots * size
	m.info.ExpertSlots, m.info.ExpertMemory, m.info.Direct = int(slots), slots*size, d.reader.Direct()
	return nil
}

// bring puts the experts that rows rows chose into the table of their layer.
func (d *demand) bring(router int, choice *canon.Choice, rows int) error {
	return d.store.Resolve(router, func(yield func(int32) bool) {
		for r := range rows {
			for _, id := range choice.IDs(r) {
				if !yield(id) {
					return
				}
			}
		}
	})
}

// counters are what changed since the last call.
func (d *demand) counters() Fetched {
	now := d.store.Counters()
	f := Fetched{Hits: now.Hits - d.last.Hits, Misses: now.Misses - d.last.Misses, Bytes: now.Bytes - d.last.Bytes, Nanos: now.Nanos - d.last.Nanos}
	d.last = now
	return f
}

func (d *demand) close() error {
	d.store.Close()
	return d.reader.Close()
}

// Fetched says where the experts of a step came from: Hits were in memory, Misses were read. All zero in a model that is
// wholly in memory.
type Fetched = tier.Counters
