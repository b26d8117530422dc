//go:build cuda

package cuda

/*
#include <string.h>
#include "driver.h"
*/
import "C"

import (
	"fmt"
	"sort"
	"unsafe"

	"gorgonia.org/cu"

	"covey/engine/canon"
)

// Loading: the operations are copied with every address replaced by its mirror in device memory. Weights are copied once
// each, whatever the number of operations that use them; integer forms are laid out for the kernels on the way.

// loader mirrors one image.
type loader struct {
	memory  *memory
	image   *canon.Image
	stage   unsafe.Pointer // pinned, stageBytes
	blocks  []mirror       // buffers, by host address
	seen    map[unsafe.Pointer]C.CUdeviceptr
	caches  []mirror      // by host address
	state   C.CUdeviceptr // recurrent state of all slots
	vocab   int64         // rows of the embedding
	angles  []C.covey_angles
	scratch C.covey_scratch

	places    []int                          // of the experts of the operation in hand: numbers of devices; nil = all are here
	number    int                            // this device's
	exchanges map[[6]C.int32_t]C.CUdeviceptr // by kind and geometry of the operation
}

// mirror is a piece of host memory and its place on the device.
type mirror struct {
	host   canon.Block
	device C.CUdeviceptr
}

// stageBytes bounds a copy: weights pass through pinned memory in pieces of whole tiles.
const stageBytes = 16 << 20

func (l *loader) run(places [][]int) ([]C.canon_op, error) {
	var err error
	if l.stage, err = l.memory.pin("upload", stageBytes); err != nil {
		return nil, err
	}
	for _, block := range l.image.Buffers {
		at, err := l.memory.zeroed("activations", block.Size)
		if err != nil {
			return nil, err
		}
		l.blocks = append(l.blocks, mirror{block, at})
	}
	for _, kv := range l.image.Caches {
		block := kv.Block()
		at, err := l.memory.zeroed("KV cache", block.Size)
		if err != nil {
			return nil, err
		}
		l.caches = append(l.caches, mirror{block, at})
	}
	for _, m := range [][]mirror{l.blocks, l.caches} {
		sort.Slice(m, func(i, j int) bool { return uintptr(m[i].host.At) < uintptr(m[j].host.At) })
	}
	if n := l.image.State.Size; n > 0 { // void until a sequence's position 0 clears its slot
		if l.state, err = l.memory.take("recurrent state", n); err != nil {
			return nil, err
		}
	}
	ops := make([]C.canon_op, l.image.OpCount)
	copy(ops, unsafe.Slice((*C.canon_op)(l.image.Ops), l.image.OpCount))
	for i := range ops {
		if ops[i].kind == C.CANON_OP_FFN && ops[i].table != nil && places != nil {
			l.places, places = places[0], places[1:]
		}
		if err := l.op(&ops[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", l.image.Labels[ops[i].label], err)
		}
	}
	return ops, nil
}

// op replaces the addresses of one operation.
func (l *loader) op(op *C.canon_op) error {
	lim := l.image.Limits
	C.covey_needs(op, C.int32_t(lim.Rows), C.int32_t(lim.Pages), &l.scratch)
	for _, b := range []*C.canon_buffer{&op.dst, &op.src, &op.src2} {
		if b.data == nil {
			continue
		}
		at, err := find(l.blocks, unsafe.Pointer(b.data))
		if err != nil {
			return err
		}
		b.data = (*C.float)(address(at))
	}
	for _, kv := range []*C.canon_kv{&op.kv, &op.memory} {
		if kv.data == nil {
			continue
		}
		at, err := find(l.caches, unsafe.Pointer(kv.data))
		if err != nil {
			return err
		}
		kv.data = (*C.uint8_t)(address(at))
	}
	if op.state != nil {
		op.state = (*C.float)(address(l.state))
	}
	if op.m.codes != nil {
		if err := l.matrix(&op.m); err != nil {
			return err
		}
	}
	if op.shared_block != nil {
		at, err := l.record("shared experts", &op.shared, op.shared_block)
		if err != nil {
			return err
		}
		op.shared_block = address(at)
		C.covey_record(&op.shared, &op.shared)
	}
	if op.kind == C.CANON_OP_ATTENTION {
		if err := l.exchange(op); err != nil {
			return err
		}
	}
	switch {
	case op.kind == C.CANON_OP_EMBED:
		l.vocab = int64(op.m.rows)
	case op.table != nil && op.kind == C.CANON_OP_ROUTER: // the experts of each token
		at, err := l.once("weights", unsafe.Pointer(op.table), l.vocab*int64(op.i[2])*4)
		if err != nil {
			return err
		}
		op.table = (*unsafe.Pointer)(address(at))
	case op.table != nil:
		if err := l.table(op); err != nil {
			return err
		}
		if err := l.exchange(op); err != nil {
			return err
		}
	case op.kind == C.CANON_OP_ENTRY:
		at, err := l.once("weights", unsafe.Pointer(op.weights), int64(op.i[2])/2*4)
		if err != nil {
			return err
		}
		op.weights = (*C.float)(address(at))
	case op.ids != nil && op.kind != C.CANON_OP_ROUTER: // what an indexer kept, [rows, most]
		most := op.i[4]
		if op.kind == C.CANON_OP_INDEX {
			most = op.i[2]
		}
		at, ok := l.seen[unsafe.Pointer(op.ids)]
		if !ok {
			var err error
			if at, err = l.memory.take("scratch", int64(lim.Rows)*int64(most)*4); err != nil {
				return err
			}
			l.seen[unsafe.Pointer(op.ids)] = at
		}
		op.ids = (*C.int32_t)(address(at))
	}
	if op.vec != nil {
		return l.vector(op)
	}
	return nil
}

// address makes a device address a pointer, which the host must never follow.
func address(p C.CUdeviceptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// find translates an address inside a mirrored piece; mirrors ascend by host address.
func find(mirrors []mirror, p unsafe.Pointer) (C.CUdeviceptr, error) {
	i := sort.Search(len(mirrors), func(i int) bool { return uintptr(mirrors[i].host.At) > uintptr(p) }) - 1
	if i >= 0 {
		if offset := uintptr(p) - uintptr(mirrors[i].host.At); int64(offset) < mirrors[i].host.Size {
			return mirrors[i].device + C.CUdeviceptr(offset), nil
		}
	}
	return 0, fmt.Errorf("operation points outside the program's buffers: %w", ErrUnsupported)
}

// upload copies n bytes to the device; from may be any host memory.
func (l *loader) upload(to C.CUdeviceptr, from unsafe.Pointer, n int64) error {
	for at := int64(0); at < n; at += stageBytes {
		m := min(n-at, stageBytes)
		C.memcpy(l.stage, unsafe.Add(from, at), C.size_t(m))
		if err := l.copy(to+C.CUdeviceptr(at), m); err != nil {
			return err
		}
	}
	return nil
}

// once uploads n bytes that no earlier operation used and returns where they lie.
func (l *loader) once(line string, host unsafe.Pointer, n int64) (C.CUdeviceptr, error) {
	if at, ok := l.seen[host]; ok {
		return at, nil
	}
	at, err := l.memory.take(line, n)
	if err != nil {
		return 0, err
	}
	l.seen[host] = at
	return at, l.upload(at, host, n)
}

// copy sends the first n bytes of the stage.
func (l *loader) copy(to C.CUdeviceptr, n int64) error {
	return call("cuMemcpyHtoD", func() error { return cu.MemcpyHtoD(cu.DevicePtr(to), l.stage, n) })
}

// matrix uploads a weight and makes m the device's.
func (l *loader) matrix(m *C.canon_matrix) error {
	var size C.int64_t
	host := *m
	device := C.covey_matrix(&host, &size)
	at, ok := l.seen[unsafe.Pointer(host.codes)]
	if ok && l.memory.b.options.Distinct {
		var err error
		if at, err = l.another("weights", at, int64(size)); err != nil {
			return err
		}
	}
	if !ok {
		var err error
		if at, err = l.memory.take("weights", int64(size)); err != nil {
			return err
		}
		if err := l.weights(&host, &device, at); err != nil {
			return err
		}
		l.seen[unsafe.Pointer(host.codes)] = at
	}
	*m = C.covey_at(device, address(at))
	return nil
}

// weights sends a matrix (host: addresses; device: offsets) to the device, offsets counting from `to`.
func (l *loader) weights(host, device *C.canon_matrix, to C.CUdeviceptr) error {
	parts := [4]struct {
		at   C.int64_t
		from unsafe.Pointer
	}{{device.codes_at, unsafe.Pointer(host.codes)}, {device.scales_at, unsafe.Pointer(host.scales)}, {device.offsets_at, unsafe.Pointer(host.offsets)}, {device.bias_at, unsafe.Pointer(host.bias)}}
	tiled := C.covey_tiled(host) != 0
	for i, p := range parts {
		if n := int64(C.covey_plain_size(host, C.int32_t(i))); n > 0 && (i == 3 || !tiled) {
			if err := l.upload(to+C.CUdeviceptr(p.at), p.from, n); err != nil {
				return err
			}
		}
	}
	if !tiled {
		return nil
	}
	tile := int64(C.covey_tile_bytes(host))
	if tile > stageBytes {
		return fmt.Errorf("a tile of a [%d, %d] matrix exceeds the upload buffer: %w", host.rows, host.cols, ErrUnsupported)
	}
	tiles, per := int64(C.covey_ceil(host.rows, C.COVEY_TILE)), stageBytes/tile
	for t := int64(0); t < tiles; t += per {
		n := min(per, tiles-t)
		C.covey_repack(host, C.int32_t(t), C.int32_t(n), (*C.uint8_t)(l.stage))
		if err := l.copy(to+C.CUdeviceptr(device.codes_at)+C.CUdeviceptr(t*tile), n*tile); err != nil {
			return err
		}
	}
	return nil
}

// another copies what was uploaded already to a place of its own.
func (l *loader) another(line string, from C.CUdeviceptr, n int64) (C.CUdeviceptr, error) {
	at, err := l.memory.take(line, n)
	if err != nil {
		return 0, err
	}
	return at, call("cuMemcpyDtoD", func() error { return cu.MemcpyDtoD(cu.DevicePtr(at), cu.DevicePtr(from), n) })
}

// record uploads gate, up and down of a record with the host's layout.
func (l *loader) record(line string, host *C.canon_record, block unsafe.Pointer) (C.CUdeviceptr, error) {
	var device C.canon_record
	size := int64(C.covey_record(host, &device))
	if at, ok := l.seen[block]; ok && l.memory.b.options.Distinct {
		return l.another(line, at, size)
	} else if ok {
		return at, nil
	}
	at, err := l.memory.take(line, size)
	if err != nil {
		return 0, err
	}
	for _, m := range [][2]*C.canon_matrix{{&host.gate, &device.gate}, {&host.up, &device.up}, {&host.down, &device.down}} {
		from := C.covey_at(*m[0], block)
		if err := l.weights(&from, m[1], at); err != nil {
			return 0, err
		}
	}
	l.seen[block] = at
	return at, nil
}

// table uploads a layer's experts and the list of their addresses.
func (l *loader) table(op *C.canon_op) error {
	experts := unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(op.table)), int(op.i[0]))
	places := make([]C.CUdeviceptr, len(experts))
	for id, block := range experts {
		if block == nil && l.number == 0 {
			continue // the first device says that it is missing
		}
		if block == nil || l.places != nil && l.places[id] != l.number {
			places[id] = elsewhere
			continue
		}
		var err error
		if places[id], err = l.record("experts", &op.routed, block); err != nil {
			return err
		}
	}
	at, err := l.memory.take("expert tables", int64(len(places))*8)
	if err != nil {
		return err
	}
	if err := l.upload(at, unsafe.Pointer(&places[0]), int64(len(places))*8); err != nil {
		return err
	}
	op.table = (*unsafe.Pointer)(address(at))
	C.covey_record(&op.routed, &op.routed)
	return nil
}

// exchange gives an operation what the blocks of its one-row kernel hand each other: one piece for all layers of a geometry, with
// all bits set and a count of 0 behind.
func (l *loader) exchange(op *C.canon_op) error {
	n := int64(C.covey_exchange(op, C.int32_t(l.image.Limits.Pages))) * 4
	if n == 0 {
		return nil
	}
	key := [6]C.int32_t{op.kind, op.i[0], op.i[1], op.routed.gate.rows, op.routed.gate.group, 0}
	switch {
	case op.kind == C.CANON_OP_ATTENTION:
		key = [6]C.int32_t{op.kind, op.i[1], op.kv.heads, op.kv.dim, op.kv.single}
	case op.shared_block != nil:
		key[5] = op.shared.gate.rows
	}
	at, ok := l.exchanges[key]
	if !ok {
		var err error
		if at, err = l.memory.take("scratch", n+4); err != nil {
			return err
		}
		for _, fill := range []struct {
			at C.CUdeviceptr
			v  byte
			n  int64
		}{{at, 0xff, n}, {at + C.CUdeviceptr(n), 0, 4}} {
			if err := call("cuMemsetD8", func() error { return cu.MemsetD8(cu.DevicePtr(fill.at), fill.v, fill.n) }); err != nil {
				return err
			}
		}
		l.exchanges[key] = at
	}
	op.state = (*C.float)(address(at))
	return nil
}

// vector uploads the float list of an operation; rotary frequencies join the table of angles.
func (l *loader) vector(op *C.canon_op) error {
	n := int64(C.covey_vector(op))
	if n <= 0 {
		return fmt.Errorf("operation %d has a list of unknown length: %w", op.kind, ErrUnsupported)
	}
	at, err := l.once("weights", unsafe.Pointer(op.vec), n*4)
	if err != nil {
		return err
	}
	op.vec = (*C.float)(address(at))
	if op.kind != C.CANON_OP_ROPE {
		return nil
	}
	if op.weights != nil { // the frequencies of long sequences
		at, err := l.once("weights", unsafe.Pointer(op.weights), n*4)
		if err != nil {
			return err
		}
		op.weights = (*C.float)(address(at))
	}
	for i, a := range l.angles {
		if a.inv == op.vec && a.factor == op.d && a.long_inv == op.weights && a.long_factor == op.long_factor {
			op.i[4] = C.int32_t(i)
			return nil
		}
	}
	if len(l.angles) == C.COVEY_ANGLES {
		return fmt.Errorf("more than %d kinds of rotary angles: %w", C.COVEY_ANGLES, ErrUnsupported)
	}
	a := C.covey_angles{inv: op.vec, rot: op.i[1], factor: op.d, long_inv: op.weights, long_factor: op.long_factor}
	for _, to := range []**C.float{&a.cosine, &a.sine} {
		table, err := l.memory.take("scratch", int64(l.image.Limits.Rows)*int64(a.rot)*2)
		if err != nil {
			return err
		}
		*to = (*C.float)(address(table))
	}
	op.i[4] = C.int32_t(len(l.angles))
	l.angles = append(l.angles, a)
	return nil
}
