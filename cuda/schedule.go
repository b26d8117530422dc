//go:build cuda

package cuda

/*
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"covey/engine/canon"
)

// Steps are planned by bucket: rows and logit rows rounded up to powers of two, blocks of positions likewise. A plan's
// launches read the true numbers from device memory, so it serves every step of its bucket, and so does its graph.

// graphRows is the largest bucket that is captured: beyond it the launches of a step take less time than its work.
const graphRows = 64

// partialBytes bounds the scratch of attention that is split over blocks of positions.
const partialBytes = 256 << 20

// scoreBytes bounds the scores of an indexer.
const scoreBytes = 256 << 20

// sharedDefault is the dynamic shared memory of a block that needs no permission: 48 KiB, less what kernels declare, 17 KiB at most
// where they also ask for some (attend_blocks8).
const sharedDefault = 31 << 10

// plan is what a step of one bucket does.
type plan struct {
	launches             // of the first device
	far       []launches // of the others
	segments  []segment
	copies    []transfer
	downloads []download
	used      int
	drawn     int64 // where in pinned memory drawn tokens lie
	graph     C.CUgraphExec
}

// launches is a list in C memory.
type launches struct {
	from *C.covey_launch // [n]
	n    C.int32_t
}

func (l launches) at() []C.covey_launch { return unsafe.Slice(l.from, int(l.n)) }

// transfer is one copy to pinned memory.
type transfer struct {
	from C.CUdeviceptr
	to   unsafe.Pointer
	size int64
}

// download says where in pinned memory a result lies, in rows as the host has them.
type download struct {
	array canon.Array
	at    int64
}

func (p *plan) free() error {
	for _, l := range append(p.far, p.launches) {
		C.free(unsafe.Pointer(l.from))
	}
	p.launches, p.far = launches{}, nil
	if p.graph == nil {
		return nil
	}
	return result("cuGraphExecDestroy", func() C.CUresult { return C.covey_graph_free(p.graph) })
}

// powerOfTwo rounds up, at most to most.
func powerOfTwo(n, most int) int {
	if n <= 1 {
		return min(n, most)
	}
	return min(1<<bits.Len(uint(n-1)), most)
}

func (r *runner) bucket(rows, logits, blocks int) C.covey_bucket {
	lim := r.image.Limits
	b := C.covey_bucket{rows: C.int32_t(powerOfTwo(rows, lim.Rows)), logit_rows: C.int32_t(powerOfTwo(logits, lim.LogitRows)), blocks: C.int32_t(powerOfTwo(blocks, (lim.Pages+3)/4)), pages: C.int32_t(lim.Pages), scored: C.int32_t(r.scored)}
	if int(b.rows) <= r.split {
		b.split = 1
	} else if r.scored == 0 {
		b.blocks = 0 // a kernel that folds as it goes does not ask, an indexer does
	}
	return b
}

// plan returns the plan of a bucket, made at its first use.
func (r *runner) plan(bucket C.covey_bucket) (*plan, error) {
	if p := r.plans[bucket]; p != nil {
		return p, nil
	}
	p := &plan{}
	// Choices lie packed: for each array the bucket's rows.
	places := map[unsafe.Pointer]C.CUdeviceptr{}
	packed := int64(0)
	faults := int64(r.image.Limits.Rows) * 8
	for _, a := range r.image.Choices {
		places[a.At] = r.choices + C.CUdeviceptr(packed)
		p.downloads = append(p.downloads, download{a, faults + packed})
		packed += int64(bucket.rows) * a.Width
	}
	p.copies = append(p.copies, transfer{r.state + C.CUdeviceptr(r.at.faults), r.results, int64(bucket.rows) * 8})
	if packed > 0 {
		p.copies = append(p.copies, transfer{r.choices, unsafe.Add(r.results, faults), packed})
	}
	at := faults + packed
	for i, a := range r.image.Kept {
		if bucket.draws != 0 && &r.image.Kept[i] == r.logits {
			continue
		}
		rows := int64(bucket.rows)
		if a.Logits {
			rows = int64(bucket.logit_rows)
		}
		if rows == 0 {
			continue
		}
		from, err := find(r.blocks, a.At)
		if err != nil {
			return nil, err
		}
		p.copies = append(p.copies, transfer{from, unsafe.Add(r.results, at), rows * a.Stride})
		p.downloads = append(p.downloads, download{a, at})
		at += rows * a.Stride
	}

	ops := slices.Clone(r.ops)
	if bucket.draws != 0 {
		from, err := find(r.blocks, r.logits.At)
		if err != nil {
			return nil, err
		}
		ops = append(ops, C.canon_op{kind: C.COVEY_OP_DRAW, label: ops[len(ops)-1].label,
			src: C.canon_buffer{data: (*C.float)(address(from)), width: C.int32_t(r.logits.Width / 4), stride: C.int32_t(r.logits.Stride / 4), logits: 1}})
		p.copies, p.drawn = append(p.copies, transfer{r.tokens, unsafe.Add(r.results, at), int64(bucket.logit_rows) * 4}), at
	}
	for i := range ops {
		if op := &ops[i]; op.kind == C.CANON_OP_ROUTER || op.kind == C.CANON_OP_FFN {
			op.ids, op.weights = (*C.int32_t)(address(places[unsafe.Pointer(op.ids)])), (*C.float)(address(places[unsafe.Pointer(op.weights)]))
		}
	}
	var err error
	if p.launches, err = launchesOf(ops, &bucket, r.place(r.b.device), r.image, r.table(bucket)...); err == nil {
		err = r.b.shared(p.at())
	}
	if err == nil {
		err = r.segments(p, bucket, places)
	}
	if err != nil {
		return nil, errors.Join(err, p.free())
	}
	r.plans[bucket] = p
	return p, nil
}

// table is the launch that makes a step's angles, if it needs any.
func (r *runner) table(bucket C.covey_bucket) []C.covey_launch {
	if r.angles == 0 {
		return nil
	}
	return []C.covey_launch{{kernel: C.COVEY_K_angles_table, grid: [3]C.uint32_t{C.uint32_t(bucket.rows), C.uint32_t(r.angles), 1}, threads: 64}}
}

// place is what plans on a device depend on beside the step.
func (r *runner) place(d *device) C.covey_place {
	p := C.covey_place{fast: d.fast, multiprocessors: C.int32_t(d.info.Multiprocessors), shared: C.int32_t(d.info.SharedMemoryBlock), overlap: d.overlap, program: (*C.covey_program)(address(r.state))}
	if len(r.shares) > 0 { // devices meet between the launches of a layer's experts
		p.spread = 1
	}
	for _, a := range r.image.Kept {
		if !a.Logits {
			p.fast &^= C.COVEY_FAST_ROW | C.COVEY_FAST_ATTEND_ROW // they keep what is between their operations to themselves
		}
	}
	return p
}

// launchesOf plans operations, behind other launches.
func launchesOf(ops []C.canon_op, bucket *C.covey_bucket, place C.covey_place, image *canon.Image, before ...C.covey_launch) (launches, error) {
	count := C.int32_t(len(ops))
	room := int(C.covey_most_launches(&ops[0], count)) + len(before)
	l := launches{from: (*C.covey_launch)(C.malloc(C.size_t(room) * C.sizeof_covey_launch))}
	if l.from == nil {
		return launches{}, errors.New("out of memory for the launches of a step")
	}
	all := unsafe.Slice(l.from, room)
	l.n = C.int32_t(copy(all, before))
	n := C.covey_plan(&ops[0], count, bucket, &place, &all[l.n])
	if n < 0 {
		C.free(unsafe.Pointer(l.from))
		op := &ops[-1-n]
		return launches{}, fmt.Errorf("%s: operation %d: %w", image.Labels[op.label], op.kind, ErrUnsupported)
	}
	for _, made := range all[l.n : l.n+n] {
		if made.grid[0] > 0 && made.grid[1] > 0 && made.grid[2] > 0 { // a step without logit rows has none of their launches
			all[l.n] = made
			l.n++
		}
	}
	if small := C.realloc(unsafe.Pointer(l.from), C.size_t(max(l.n, 1))*C.sizeof_covey_launch); small != nil {
		l.from = (*C.covey_launch)(small)
	}
	return l, nil
}

// shared asks for the shared memory of launches that need more than a block has by itself.
func (d *device) shared(launches []C.covey_launch) error {
	for i := range launches {
		l := &launches[i]
		n := int(l.shared)
		if n <= max(sharedDefault, d.granted[l.kernel]) {
			continue
		}
		if n > d.info.SharedMemoryBlock {
			return fmt.Errorf("kernel %s wants %d bytes of shared memory, a block of device %d has %d: %w", C.GoString(C.covey_kernel_name(l.kernel)), n, d.info.Ordinal, d.info.SharedMemoryBlock, ErrUnsupported)
		}
		if err := result("cuFuncSetAttribute", func() C.CUresult { return C.covey_shared_limit(d.functions[l.kernel], C.int(n)) }); err != nil {
			return err
		}
		d.granted[l.kernel] = n
	}
	return nil
}

// Load copies a program to the device. See canon.Backend.
func (b *Backend) Load(p *canon.Program) (canon.Runner, error) {
	image, err := p.Image()
	if err != nil {
		return nil, err
	}
	r := &runner{b: b, p: p, image: image, memory: memory{b: b, d: b.device}, plans: map[C.covey_bucket]*plan{}}
	if err := b.do("loading", loadLimit, r.load); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *runner) load() error {
	l := &loader{memory: &r.memory, image: r.image, seen: map[unsafe.Pointer]C.CUdeviceptr{}, exchanges: map[[6]C.int32_t]C.CUdeviceptr{}}
	var places [][]int
	if len(r.b.far) > 0 {
		places = r.placement()
	}
	var err error
	if r.ops, err = l.run(places); err != nil {
		return err
	}
	r.blocks, r.caches = l.blocks, l.caches
	for i := range r.ops {
		r.recurrent = r.recurrent || r.ops[i].kind == C.CANON_OP_DELTA || r.ops[i].kind == C.CANON_OP_POOL
	}
	if err := r.allocate(l, places); err != nil {
		return err
	}
	// What has no kernel is said now, not at the first step.
	lim := r.image.Limits
	for _, rows := range []int{1, lim.Rows} {
		if _, err := r.plan(r.bucket(rows, min(rows, lim.LogitRows), 1)); err != nil {
			return err
		}
	}
	return nil
}

// floats returns scratch memory; nil for none.
func (m *memory) floats(n C.int64_t) (*C.float, error) {
	if n == 0 {
		return nil, nil
	}
	at, err := m.zeroed("scratch", int64(n)*4)
	return (*C.float)(address(at)), err
}

// program returns a program with the scratch that its products and experts need.
func (m *memory) program(s *C.covey_scratch) (C.covey_program, error) {
	var err error
	floats := func(n C.int64_t) (at *C.float) {
		if err == nil {
			at, err = m.floats(n)
		}
		return at
	}
	ints := func(n C.int64_t) *C.int32_t { return (*C.int32_t)(unsafe.Pointer(floats(n))) }
	codes := func(n, groups C.int64_t) C.covey_codes {
		return C.covey_codes{q: (*C.int8_t)(unsafe.Pointer(floats((n + 3) / 4))), scale: floats(groups), sum: ints(groups)}
	}
	p := C.covey_program{codes: codes(s.codes, s.groups)}
	for i := range p.inner {
		p.inner[i] = codes(s.inner_codes[i], s.inner_groups[i])
		p.inner_float[i] = floats(s.inner[i])
	}
	p.routed_out = floats(s.routed)
	p.item_n, p.order_row, p.order_slot = ints(1), ints(s.slots), ints(s.slots)
	p.items = (*C.covey_item)(unsafe.Pointer(floats(s.experts * C.sizeof_covey_item / 4)))
	return p, err
}

// allocate sizes scratch, the step's arrays and the results for the largest step.
func (r *runner) allocate(l *loader, places [][]int) error {
	lim, s := r.image.Limits, &l.scratch
	program, err := r.memory.program(s)
	if err != nil {
		return err
	}
	floats := func(n C.int64_t) (at *C.float) {
		if err == nil {
			at, err = r.memory.floats(n)
		}
		return at
	}
	p := &r.program
	*p = program
	blocks := int64(s.partial_blocks)
	if row := blocks * int64(s.partial_row) * 4; row > 0 {
		r.split = int(min(partialBytes/row, C.COVEY_SPLIT_ROWS, int64(lim.Rows)))
		p.partial, p.partial_blocks = floats(C.int64_t(int64(r.split)*row/4)), C.int32_t(blocks)
	}
	if row := int64(s.scores) * 4; row > 0 { // at least an eighth of a step, since an operation has a bounded number of launches
		r.scored = int(min(int64(lim.Rows), max(scoreBytes/row, int64(lim.Rows+7)/8)))
		p.scores, p.score_stride = floats(C.int64_t(int64(r.scored)*row/4)), C.int32_t(s.scores)
	}
	p.mixed = floats(s.mixed)
	r.angles = len(l.angles)
	copy(p.angles[:], l.angles)

	r.size = int64(unsafe.Sizeof(r.program))
	place := func(n int) int64 {
		at := (r.size + 255) &^ 255
		r.size = at + int64(n)
		return at
	}
	words := r.image.BanWords
	r.at = stepOffsets{tokens: place(lim.Rows * 4), positions: place(lim.Rows * 4), sequence: place(lim.Rows * 4), logits: place(lim.LogitRows * 4), faults: place(lim.Rows * 8),
		pages: place(lim.Sequences * lim.Pages * 4), states: place(lim.Sequences * 4), lengthened: place(lim.Sequences), bans: place(lim.Sequences * words * 8), banned: place(lim.Sequences * 8)}
	results := int64(lim.Rows) * 8
	for _, a := range r.image.Choices {
		results += int64(lim.Rows) * a.Width
	}
	choices := results - int64(lim.Rows)*8
	rows := 0
	for i, a := range r.image.Kept {
		results += int64(lim.Rows) * a.Stride
		if a.Logits {
			r.logits = &r.image.Kept[i]
			rows++
		}
	}
	if rows > 1 {
		r.logits = nil // nobody has said which of them are logits
	}
	results += int64(lim.LogitRows) * 4
	if r.logits != nil {
		r.drawings = place(lim.LogitRows * C.sizeof_covey_drawing)
	}
	if err != nil {
		return err
	}
	r.sent = r.size
	if r.state, err = r.memory.take("scratch", r.sent); err != nil {
		return err
	}
	if r.tokens, err = r.memory.take("scratch", int64(lim.LogitRows)*4); err != nil {
		return err
	}
	p.drawings, p.drawn = (*C.covey_drawing)(address(r.state+C.CUdeviceptr(r.drawings))), (*C.int32_t)(address(r.tokens))
	if r.choices, err = r.memory.zeroed("scratch", choices); err != nil {
		return err
	}
	if err := r.spread(l, places); err != nil {
		return err
	}
	if r.step, err = r.memory.pin("step", r.size); err != nil {
		return err
	}
	if r.results, err = r.memory.pin("results", results); err != nil {
		return err
	}
	device := func(at int64) *C.int32_t { return (*C.int32_t)(address(r.state + C.CUdeviceptr(at))) }
	st := &p.step
	st.tokens, st.positions, st.sequence, st.logit_row = device(r.at.tokens), device(r.at.positions), device(r.at.sequence), device(r.at.logits)
	st.faults, st.pages, st.states, st.pages_stride = device(r.at.faults), device(r.at.pages), device(r.at.states), C.int32_t(lim.Pages)
	return nil
}
