package canon

/*
#include "engine.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrArenaFull says that an allocation would exceed an arena's limit.
var ErrArenaFull = errors.New("memory limit reached")

// arenaChunk is how much address space an arena asks for at a time; pages are committed by the kernel when first
// written, so a large chunk costs nothing until it is used.
const arenaChunk = 64 << 20

// Arena is off-heap memory for weights, buffers and caches: zeroed, 64-byte aligned, advised to huge pages, invisible to
// the garbage collector and so free to be kept by C. Slices stay valid until Close. Safe for concurrent use.
type Arena struct {
	mu     sync.Mutex
	limit  int64
	size   int64
	free   []byte
	chunks [][]byte
	near   *Pool // nil = packed weights lie where whoever writes them is
}

// NewArena returns an empty arena that hands out at most limit bytes; 0 means no limit of its own.
func NewArena(limit int64) *Arena { return &Arena{limit: limit} }

// Size is the number of bytes handed out so far.
func (a *Arena) Size() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.size
}

// Bytes returns n zeroed bytes, aligned to 64. The error wraps ErrArenaFull beyond the limit.
func (a *Arena) Bytes(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("canon: arena: negative size %d", n)
	}
	need := (n + 63) &^ 63
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limit > 0 && a.size+int64(need) > a.limit {
		return nil, fmt.Errorf("canon: arena: %d bytes more than the %d of %d in use: %w", n, a.size, a.limit, ErrArenaFull)
	}
	if need > len(a.free) {
		ask := max(need, arenaChunk)
		chunk, err := unix.Mmap(-1, 0, ask, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		if err != nil {
			return nil, fmt.Errorf("canon: arena: mapping %d bytes: %w", ask, err)
		}
		// Advice only: a kernel without huge pages refuses it, and the memory works all the same.
		_ = unix.Madvise(chunk, unix.MADV_HUGEPAGE)
		a.chunks = append(a.chunks, chunk)
		if ask == need { // a large block of its own leaves the rest of the current chunk in use
			a.size += int64(need)
			return chunk[:n:need], nil
		}
		a.free = chunk
	}
	out := a.free[:n:need]
	a.free = a.free[need:]
	a.size += int64(need)
	return out, nil
}

// Near makes packed weights lie near the threads of a pool: on a machine with several memory nodes, the pool's threads are the
// first to write to the pages that are taken from now on, each to its part of every matrix, which is what it reads at each
// step (canon_spread). With one node, or threads that are not pinned, nothing changes.
func (a *Arena) Near(pool *Pool) {
	if pool.nodes > 1 {
		a.near = pool
	}
}

// Packed is what lies packed in one block: a Layout or a *RecordLayout.
type Packed interface {
	Bytes() int64
	matrices() []C.canon_matrix // with offsets from the start of the block
}

// Room returns zeroed memory for a packed weight; see Near.
func (a *Arena) Room(l Packed) ([]byte, error) {
	block, err := a.Bytes(int(l.Bytes()))
	if err == nil {
		a.Settle(l, block)
	}
	return block, err
}

// Settle does what Near says for a block that was taken with others and has not been written to.
func (a *Arena) Settle(l Packed, block []byte) {
	if a.near == nil {
		return
	}
	var pieces []C.canon_piece
	for _, m := range l.matrices() {
		at := unsafe.Pointer(unsafe.SliceData(block))
		for _, span := range [][2]C.int64_t{{m.codes_at, C.canon_codes_size(&m)}, {m.scales_at, C.canon_scales_size(&m)}, {m.offsets_at, C.canon_offsets_size(&m)}} {
			pieces = append(pieces, C.canon_piece{at: unsafe.Add(at, int(span[0])), bytes: span[1]})
		}
	}
	a.near.touch(pieces)
}

// Floats returns n zeroed float32.
func (a *Arena) Floats(n int) ([]float32, error) { return arenaSlice[float32](a, n) }

// Int32s returns n zeroed int32.
func (a *Arena) Int32s(n int) ([]int32, error) { return arenaSlice[int32](a, n) }

func arenaSlice[T float32 | int32](a *Arena, n int) ([]T, error) {
	b, err := a.Bytes(n * 4)
	if err != nil || n == 0 {
		return nil, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n), nil
}

// Close returns all memory. Nothing that came from the arena may be used afterwards.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var first error
	for _, c := range a.chunks {
		if err := unix.Munmap(c); err != nil && first == nil {
			first = fmt.Errorf("canon: arena: unmapping: %w", err)
		}
	}
	a.chunks, a.free, a.size = nil, nil, 0
	return first
}
