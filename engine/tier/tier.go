// Package tier brings routed experts to where a step computes them. A Store keeps as many expert records in memory as it was
// given room for and reads the others from a container when a router has chosen them: whole aligned records, by a fixed
// number of readers, straight into the slot that the kernels read. Where a record was found decides how long a step takes
// and never what it computes.
package tier

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"covey/engine/canon"
	"covey/engine/weights"
)

// Align is the alignment of slots and of what is read into them.
const Align = 4096

// Layer is one layer's experts: where their records lie and the table that a program reads.
type Layer struct {
	Records []weights.Record // by expert id
	Table   *canon.ExpertTable
}

// Counters count since the start. A hit is an expert that a step needed in a layer and found in memory.
type Counters struct {
	Hits, Misses uint64
	Bytes        uint64 // read
	Nanos        int64  // steps waited for reads
}

// Store is a cache of expert records, least recently used out. One goroutine calls Resolve; Counters and Resident may be
// read from any.
type Store struct {
	layers []Layer
	slots  []slot
	block  []byte // all slots
	size   int64  // bytes of one slot
	where  [][]int32
	inside [][]atomic.Bool // [layers][experts] whether where names a slot, for other goroutines
	recent int32           // most recently used slot
	oldest int32
	stamp  uint64
	misses []miss

	read   func(weights.Record, []byte) error
	work   chan *miss
	group  sync.WaitGroup
	hits   atomic.Uint64
	missed atomic.Uint64
	bytes  atomic.Uint64
	nanos  atomic.Int64
}

// slot holds one record, or none.
type slot struct {
	layer, id    int32 // -1 = empty
	newer, older int32
	stamp        uint64 // of the Resolve that needs it
}

// miss is a record on its way into a slot.
type miss struct {
	slot, id int32
	record   weights.Record
	block    []byte
	err      error
	done     *sync.WaitGroup
}

// SlotSize is the room that one record of the layers takes.
func SlotSize(layers []Layer) int64 {
	size := int64(0)
	for _, l := range layers {
		for _, r := range l.Records {
			size = max(size, r.Size)
		}
	}
	return size
}

// New makes a store over block, off-heap memory aligned to Align, with readers goroutines that call read; it must be able
// to hold every record that one layer of one step may need. The caller closes the store before it frees the memory.
func New(layers []Layer, block []byte, readers int, read func(weights.Record, []byte) error) (*Store, error) {
	s := &Store{layers: layers, block: block, size: SlotSize(layers), read: read, work: make(chan *miss)}
	if s.size == 0 || int64(len(block)) < s.size || readers < 1 {
		return nil, fmt.Errorf("tier: a cache of %d bytes for records of %d bytes, with %d readers", len(block), s.size, readers)
	}
	s.slots = make([]slot, int64(len(block))/s.size)
	for i := range s.slots {
		s.slots[i] = slot{layer: -1, id: -1, newer: int32(i) - 1, older: int32(i) + 1}
	}
	s.slots[len(s.slots)-1].older = -1
	s.oldest = int32(len(s.slots) - 1)
	for _, l := range layers {
		where := make([]int32, len(l.Records))
		for i := range where {
			where[i] = -1
		}
		s.where = append(s.where, where)
		s.inside = append(s.inside, make([]atomic.Bool, len(where)))
		l.Table.SetLayout(l.Records[0].Layout)
	}
	for range readers {
		s.group.Go(func() {
			for m := range s.work {
				m.err = s.read(m.record, m.block)
				m.done.Done()
			}
		})
	}
	return s, nil
}

// Slots is the number of records that fit.
func (s *Store) Slots() int { return len(s.slots) }

// Resolve puts the records of experts ids (repeats and negative ids are ignored) of a layer into its table and returns when
// all are there. It may take any other record out of any table. An error names the record that could not be read; what
// was read before it stays.
func (s *Store) Resolve(layer int, ids func(yield func(id int32) bool)) error {
	s.stamp++
	where := s.where[layer]
	s.misses = s.misses[:0]
	hits := uint64(0)
	for id := range ids {
		switch at := int32(-1); {
		case id < 0 || int(id) >= len(where):
			continue
		case where[id] >= 0:
			if at = where[id]; s.slots[at].stamp != s.stamp {
				s.slots[at].stamp = s.stamp
				s.touch(at)
				hits++
			}
		case where[id] == -1:
			where[id] = -2 // on the list
			s.misses = append(s.misses, miss{id: id, record: s.layers[layer].Records[id]})
		}
	}
	s.hits.Add(hits)
	if len(s.misses) == 0 {
		return nil
	}
	s.missed.Add(uint64(len(s.misses)))
	start := time.Now()
	for _, m := range s.misses {
		where[m.id] = -1
	}
	var done sync.WaitGroup
	var failed error
	for i := range s.misses {
		m := &s.misses[i]
		at := s.oldest
		if s.slots[at].stamp == s.stamp {
			failed = fmt.Errorf("tier: layer %d needs more than the %d experts that fit: give the cache more memory or a step fewer rows", layer, len(s.slots))
			s.misses = s.misses[:i]
			break
		}
		if err := s.empty(at); err != nil {
			return err
		}
		s.slots[at].stamp = s.stamp
		s.touch(at)
		m.slot, m.done = at, &done
		m.block = s.block[int64(at)*s.size:][:m.record.Size:m.record.Size]
		done.Add(1)
		s.work <- m
	}
	done.Wait()
	for i := range s.misses {
		m := &s.misses[i]
		if m.err == nil {
			s.bytes.Add(uint64(m.record.Size))
			m.err = s.layers[layer].Table.Set(int(m.id), m.record.Layout.View(m.block))
		}
		if m.err != nil {
			if failed == nil {
				failed = fmt.Errorf("tier: layer %d, expert %d: %w", layer, m.id, m.err)
			}
			continue
		}
		where[m.id] = m.slot
		s.inside[layer][m.id].Store(true)
		s.slots[m.slot].layer, s.slots[m.slot].id = int32(layer), m.id
	}
	s.nanos.Add(time.Since(start).Nanoseconds())
	return failed
}

// empty takes the record out of a slot.
func (s *Store) empty(at int32) error {
	o := &s.slots[at]
	if o.layer < 0 {
		return nil
	}
	if err := s.layers[o.layer].Table.Set(int(o.id), nil); err != nil {
		return fmt.Errorf("tier: %w", err)
	}
	s.where[o.layer][o.id] = -1
	s.inside[o.layer][o.id].Store(false)
	o.layer, o.id = -1, -1
	return nil
}

// touch makes a slot the most recently used one.
func (s *Store) touch(at int32) {
	if s.recent == at {
		return
	}
	o := &s.slots[at]
	s.slots[o.newer].older = o.older
	if o.older >= 0 {
		s.slots[o.older].newer = o.newer
	} else {
		s.oldest = o.newer
	}
	o.newer, o.older = -1, s.recent
	s.slots[s.recent].newer = at
	s.recent = at
}

// Resident says whether a record is in memory at this moment; false while it is being read.
func (s *Store) Resident(layer, id int) bool { return s.inside[layer][id].Load() }

// Counters are the sums so far.
func (s *Store) Counters() Counters {
	return Counters{Hits: s.hits.Load(), Misses: s.missed.Load(), Bytes: s.bytes.Load(), Nanos: s.nanos.Load()}
}

// Close ends the readers. The tables' records must not be used afterwards.
func (s *Store) Close() {
	close(s.work)
	s.group.Wait()
}
