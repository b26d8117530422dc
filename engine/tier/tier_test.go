package tier

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"covey/engine/canon"
	"covey/engine/weights"
)

// fixture is a store over slots records of 4 KiB and what it read.
func fixture(t *testing.T, layers, experts, slots int, fail func(name string) error) (*Store, *atomic.Int64) {
	t.Helper()
	arena := canon.NewArena(0)
	t.Cleanup(func() { arena.Close() })
	layout, err := canon.NewRecordLayout("gate", canon.Layout{Form: canon.BF16, Rows: 8, Cols: 16}, canon.Layout{Form: canon.BF16, Rows: 8, Cols: 16}, canon.Layout{Form: canon.BF16, Rows: 16, Cols: 8})
	if err != nil {
		t.Fatal(err)
	}
	var list []Layer
	for l := range layers {
		table, err := arena.NewExpertTable(experts)
		if err != nil {
			t.Fatal(err)
		}
		var records []weights.Record
		for e := range experts {
			records = append(records, weights.Record{Name: fmt.Sprintf("%d.%d", l, e), Layout: layout, Size: Align})
		}
		list = append(list, Layer{Records: records, Table: table})
	}
	block, err := arena.Bytes((slots + 1) * Align)
	if err != nil {
		t.Fatal(err)
	}
	skip := -int(uintptr(unsafe.Pointer(&block[0]))) & (Align - 1)
	var reads atomic.Int64
	s, err := New(list, block[skip:][:slots*Align], 3, func(r weights.Record, block []byte) error {
		reads.Add(1)
		if fail != nil {
			return fail(r.Name)
		}
		copy(block, r.Name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, &reads
}

func (s *Store) content(layer, id int) string {
	at := s.where[layer][id]
	if at < 0 {
		return ""
	}
	return strings.TrimRight(string(s.block[int64(at)*s.size:][:8]), "\x00")
}

func resolve(t *testing.T, s *Store, layer int, ids ...int32) {
	t.Helper()
	if err := s.Resolve(layer, slices.Values(ids)); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if id >= 0 && s.content(layer, int(id)) != fmt.Sprintf("%d.%d", layer, id) {
			t.Fatalf("layer %d, expert %d: the slot holds %q", layer, id, s.content(layer, int(id)))
		}
	}
}

func TestLeastRecentlyUsedExpertMakesRoom(t *testing.T) {
	s, reads := fixture(t, 2, 4, 3, nil)
	resolve(t, s, 0, 0, 1, 1, -1)
	resolve(t, s, 1, 2)
	resolve(t, s, 0, 0)
	resolve(t, s, 1, 3) // in place of expert 1 of layer 0
	if s.content(0, 1) != "" || s.content(0, 0) == "" || s.content(1, 2) == "" {
		t.Errorf("expert 1 of layer 0 is still there, or another one went")
	}
	if s.Resident(0, 1) || !s.Resident(0, 0) || !s.Resident(1, 3) || s.Resident(1, 0) {
		t.Error("others are told that expert 1 of layer 0 is there, or that one of those that are is not")
	}
	if c := s.Counters(); c.Hits != 1 || c.Misses != 4 || c.Bytes != 4*Align || reads.Load() != 4 {
		t.Errorf("%+v, %d reads", c, reads.Load())
	}
}

func TestStepThatNeedsMoreThanFitsIsAnError(t *testing.T) {
	s, _ := fixture(t, 1, 4, 2, nil)
	if err := s.Resolve(0, slices.Values([]int32{0, 1, 2})); err == nil || !strings.Contains(err.Error(), "more than the 2 experts") {
		t.Errorf("error is %v", err)
	}
	resolve(t, s, 0, 2, 3)
}

func TestFailedReadIsAnErrorOfItsStepOnly(t *testing.T) {
	broken := errors.New("medium error")
	var bad atomic.Bool
	bad.Store(true)
	s, _ := fixture(t, 1, 4, 4, func(name string) error {
		if name == "0.2" && bad.Load() {
			return broken
		}
		return nil
	})
	if err := s.Resolve(0, slices.Values([]int32{1, 2, 3})); !errors.Is(err, broken) || !strings.Contains(err.Error(), "layer 0, expert 2") {
		t.Fatalf("error is %v", err)
	}
	if s.where[0][1] < 0 || s.where[0][2] >= 0 {
		t.Error("what was read went, or what was not is there")
	}
	bad.Store(false)
	if err := s.Resolve(0, slices.Values([]int32{1, 2, 3})); err != nil {
		t.Error(err)
	}
}

// Random steps never mix records up, and hits and misses add up to what was asked for.
func TestSlotsAlwaysHoldWhatTheTablesSay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s, _ := fixture(t, 3, 8, 5, nil)
	asked := uint64(0)
	for range 500 {
		ids := make([]int32, 1+r.IntN(5))
		for i := range ids {
			ids[i] = int32(r.IntN(8))
		}
		resolve(t, s, r.IntN(3), ids...)
		slices.Sort(ids)
		asked += uint64(len(slices.Compact(ids)))
		seen := map[int32]bool{}
		for l := range s.where {
			for id, at := range s.where[l] {
				if at >= 0 && (seen[at] || s.slots[at].layer != int32(l) || s.slots[at].id != int32(id)) {
					t.Fatalf("slot %d is taken twice", at)
				}
				seen[at] = at >= 0
			}
		}
	}
	if c := s.Counters(); c.Hits+c.Misses != asked {
		t.Errorf("%d hits and %d misses of %d", c.Hits, c.Misses, asked)
	}
}
