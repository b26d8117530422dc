//go:build cuda

package cuda

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"gorgonia.org/cu"
)

// Several devices. The first one runs the whole program; the others hold a share of the routed experts of every layer and run
// those. Each expert's output is a row of its own that the first device combines in rank order, so where an expert lies changes
// no bit.
//
// In a layer's experts the streams fork and join: the others wait for the first one's choices and quantised rows, and it for
// their outputs before it combines. Where every other device reaches the first one's memory, their kernels read its rows and
// write its outputs directly. Where one does not, inputs are copied to pinned host memory, and outputs are written and read
// there. A table holds 1 for an expert that lies on another device; null is missing, as ever.

// elsewhere is the table entry of an expert on another device (covey_elsewhere of abi.h).
const elsewhere = 1

// alreadyEnabled is CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.
const alreadyEnabled = 704

// link lets the other devices reach the first one's memory, if all of them can.
func (b *Backend) link() error {
	if len(b.far) == 0 {
		return nil
	}
	b.direct = !b.options.Bounce
	for _, d := range b.devices() {
		if err := b.use(d); err != nil {
			return err
		}
		if err := call("cuEventCreate", func() (err error) { d.event, err = cu.MakeEvent(cu.DisableTiming); return }); err != nil {
			return err
		}
		b.direct = b.direct && (d.info.Ordinal == b.info.Ordinal || slices.Contains(d.info.Peers, b.info.Ordinal))
	}
	for _, d := range b.far {
		if !b.direct || d.info.Ordinal == b.info.Ordinal {
			continue
		}
		if err := b.use(d); err != nil {
			return err
		}
		err := call("cuCtxEnablePeerAccess", func() error { return b.context.EnablePeerAccess(0) })
		if e := (*Error)(nil); err != nil && !(errors.As(err, &e) && e.Code == alreadyEnabled) {
			return err
		}
	}
	return b.use(b.device)
}

// share is what another device does for a program.
type share struct {
	d       *device
	memory  memory
	program C.covey_program // its scratch, the first device's inputs and outputs
	state   C.CUdeviceptr   // the program in its memory
	at      int64           // and in the pinned step
	ops     []C.canon_op    // the operations with routed experts, in order; ids are the host's
}

// bounce is pinned host memory that stands in for the first device's where the others do not reach it; nil pointers otherwise.
type bounce struct {
	codes C.covey_codes
	ids   *C.int32_t
	rows  map[unsafe.Pointer]unsafe.Pointer // of an operation's float inputs, by the host's buffer
}

// routed are the operations with routed experts.
func (r *runner) routed() []C.canon_op {
	var ops []C.canon_op
	for _, op := range unsafe.Slice((*C.canon_op)(r.image.Ops), r.image.OpCount) {
		if op.kind == C.CANON_OP_FFN && op.table != nil {
			ops = append(ops, op)
		}
	}
	return ops
}

// placement says on which device the experts of each routed operation lie: so that in the end every device holds as many bytes
// as the others, as far as that goes with everything else being on the first one, and every layer is spread alike.
func (r *runner) placement() [][]int {
	rest, size := int64(0), func(m *C.canon_matrix) (n int64) {
		var at C.int64_t
		C.covey_matrix(m, &at)
		return int64(at)
	}
	for _, b := range r.image.Buffers {
		rest += b.Size
	}
	for _, kv := range r.image.Caches {
		rest += kv.Block().Size
	}
	rest += r.image.State.Size
	seen := map[*C.uint8_t]bool{}
	for _, op := range unsafe.Slice((*C.canon_op)(r.image.Ops), r.image.OpCount) {
		if op.m.codes != nil && !seen[op.m.codes] {
			seen[op.m.codes] = true
			rest += size(&op.m)
		}
		if op.shared_block != nil {
			rest += int64(C.covey_record(&op.shared, &op.shared))
		}
	}
	ops := r.routed()
	total := int64(0)
	for i := range ops {
		total += int64(ops[i].i[0]) * int64(C.covey_record(&ops[i].routed, &ops[i].routed))
	}
	n := len(r.b.devices())
	part := make([]float64, n) // of every layer's experts
	own := max(0, float64(rest+total)/float64(n)-float64(rest)) / float64(max(total, 1))
	part[0] = own
	for d := 1; d < n; d++ {
		part[d] = (1 - own) / float64(n-1)
	}
	given, want := make([]float64, n), make([]float64, n)
	places := make([][]int, len(ops))
	for i := range ops {
		places[i] = make([]int, ops[i].i[0])
		for e := range places[i] {
			to := 0
			for d := range want {
				want[d] += part[d]
				if want[d]-given[d] > want[to]-given[to] {
					to = d
				}
			}
			given[to]++
			places[i][e] = to
		}
	}
	return places
}

// spread loads the other devices' experts. l has loaded the first device's program.
func (r *runner) spread(l *loader, places [][]int) error {
	r.program.routed_far = r.program.routed_out
	if len(r.b.far) == 0 {
		return nil
	}
	ops, lim := r.routed(), r.image.Limits
	if !r.b.direct {
		if err := r.allocateBounce(l, ops); err != nil {
			return err
		}
	}
	for n, d := range r.b.far {
		s := &share{d: d, memory: memory{b: r.b, d: d}}
		r.shares = append(r.shares, s)
		far := &loader{memory: &s.memory, image: r.image, seen: map[unsafe.Pointer]C.CUdeviceptr{}, exchanges: map[[6]C.int32_t]C.CUdeviceptr{}}
		var err error
		if far.stage, err = s.memory.pin("upload", stageBytes); err != nil {
			return err
		}
		for i, op := range ops {
			C.covey_needs(&op, C.int32_t(lim.Rows), C.int32_t(lim.Pages), &far.scratch)
			op.shared_block, op.src2, op.dst.data = nil, C.canon_buffer{}, nil
			far.places, far.number = places[i], n+1
			if err := far.table(&op); err != nil {
				return fmt.Errorf("%s: %w", r.image.Labels[op.label], err)
			}
			if x := r.bounce.rows[unsafe.Pointer(op.src.data)]; x != nil {
				op.src.data = (*C.float)(x)
			} else {
				at, err := find(r.blocks, unsafe.Pointer(op.src.data))
				if err != nil {
					return err
				}
				op.src.data = (*C.float)(address(at))
			}
			s.ops = append(s.ops, op)
		}
		far.scratch.routed = 0
		if s.program, err = s.memory.program(&far.scratch); err != nil {
			return err
		}
		s.program.codes, s.program.routed_out = r.program.codes, r.program.routed_far
		if !r.b.direct {
			s.program.codes = r.bounce.codes
		}
		if s.state, err = s.memory.take("scratch", C.sizeof_covey_program); err != nil {
			return err
		}
		s.at = (r.size + 255) &^ 255
		r.size = s.at + C.sizeof_covey_program
	}
	return r.b.use(r.b.device)
}

// allocateBounce takes the pinned memory of a backend whose devices do not reach one another.
func (r *runner) allocateBounce(l *loader, ops []C.canon_op) error {
	rows := int64(r.image.Limits.Rows)
	ids := int64(0)
	r.bounce.rows = map[unsafe.Pointer]unsafe.Pointer{}
	pin := func(n C.int64_t) (unsafe.Pointer, error) { return r.memory.pin("exchange", int64(n)) }
	for i := range ops {
		op := &ops[i]
		ids = max(ids, rows*int64(op.i[1])*4)
		if op.routed.gate.group > 0 || r.bounce.rows[unsafe.Pointer(op.src.data)] != nil {
			continue
		}
		at, err := pin(C.int64_t(rows) * C.int64_t(op.src.stride) * 4)
		if err != nil {
			return err
		}
		r.bounce.rows[unsafe.Pointer(op.src.data)] = at
	}
	var p [5]unsafe.Pointer
	for i, n := range []C.int64_t{l.scratch.codes, l.scratch.groups * 4, l.scratch.groups * 4, C.int64_t(ids), l.scratch.routed * 4} {
		var err error
		if p[i], err = pin(n); err != nil {
			return err
		}
	}
	r.bounce.codes = C.covey_codes{q: (*C.int8_t)(p[0]), scale: (*C.float)(p[1]), sum: (*C.int32_t)(p[2])}
	r.bounce.ids = (*C.int32_t)(p[3])
	r.program.routed_far = (*C.float)(p[4])
	return nil
}

// segment is launches of one device in one piece, and what comes before them.
type segment struct {
	share  *share // nil = the first device
	from   *C.covey_launch
	n      C.int32_t
	copies []transfer // from the first device to pinned memory
	fork   bool       // the others wait for the first device
	join   bool       // the first device waits for the others
}

// segments cuts a plan's launches where devices wait for one another and puts the others' launches between.
func (r *runner) segments(p *plan, bucket C.covey_bucket, places map[unsafe.Pointer]C.CUdeviceptr) error {
	all, begin, layer := p.at(), 0, 0
	first := func(end int, join bool) {
		if end > begin || join {
			p.segments = append(p.segments, segment{from: &all[begin], n: C.int32_t(end - begin), join: join})
		}
		begin = end
	}
	join := false
	for i := range all {
		switch {
		case len(r.shares) == 0:
		case all[i].kernel == C.COVEY_K_group:
			first(i, join)
			join = false
			p.segments = append(p.segments, segment{from: &all[i], copies: r.inputs(layer, bucket, places), fork: true})
			for _, s := range r.shares {
				op := s.ops[layer]
				op.ids = (*C.int32_t)(address(places[unsafe.Pointer(op.ids)]))
				if r.bounce.ids != nil {
					op.ids = r.bounce.ids
				}
				launches, err := launchesOf([]C.canon_op{op}, &bucket, r.place(s.d), r.image)
				if err != nil {
					return err
				}
				p.far = append(p.far, launches)
				n := C.int32_t(0)
				for _, l := range unsafe.Slice(launches.from, int(launches.n)) {
					if l.kernel != C.COVEY_K_combine { // the last one
						n++
					}
				}
				if err := s.d.shared(unsafe.Slice(launches.from, int(n))); err != nil {
					return err
				}
				p.segments = append(p.segments, segment{share: s, from: launches.from, n: n})
			}
			layer++
		case all[i].kernel == C.COVEY_K_combine:
			first(i, join)
			join = true
		}
	}
	first(len(all), join)
	return nil
}

// inputs lists what a layer's experts on other devices read, where it must go through pinned memory.
func (r *runner) inputs(layer int, bucket C.covey_bucket, places map[unsafe.Pointer]C.CUdeviceptr) []transfer {
	if r.b.direct {
		return nil
	}
	op := r.routed()[layer]
	rows := int64(bucket.rows)
	list := []transfer{{places[unsafe.Pointer(op.ids)], unsafe.Pointer(r.bounce.ids), rows * int64(op.i[1]) * 4}}
	device := func(p unsafe.Pointer) C.CUdeviceptr { return C.CUdeviceptr(uintptr(p)) }
	if g := &op.routed.gate; g.group > 0 {
		groups, c, b := rows*int64(g.groups), &r.program.codes, &r.bounce.codes
		return append(list, transfer{device(unsafe.Pointer(c.q)), unsafe.Pointer(b.q), groups * int64(g.group)},
			transfer{device(unsafe.Pointer(c.scale)), unsafe.Pointer(b.scale), groups * 4}, transfer{device(unsafe.Pointer(c.sum)), unsafe.Pointer(b.sum), groups * 4})
	}
	from, err := find(r.blocks, unsafe.Pointer(op.src.data))
	if err != nil { // spread has found it
		return nil
	}
	return append(list, transfer{from, r.bounce.rows[unsafe.Pointer(op.src.data)], rows * int64(op.src.stride) * 4})
}

// fork makes the other devices wait for what the first one has been given so far.
func (r *runner) fork() error {
	if err := call("cuEventRecord", func() error { return r.b.event.Record(r.b.stream) }); err != nil {
		return err
	}
	for _, s := range r.shares {
		if err := r.b.use(s.d); err != nil {
			return err
		}
		if err := call("cuStreamWaitEvent", func() error { return s.d.stream.Wait(r.b.event, 0) }); err != nil {
			return err
		}
	}
	return r.b.use(r.b.device)
}

// join makes the first device wait for the others.
func (r *runner) join() error {
	for _, s := range r.shares {
		if err := r.b.use(s.d); err != nil {
			return err
		}
		if err := call("cuEventRecord", func() error { return s.d.event.Record(s.d.stream) }); err != nil {
			return err
		}
	}
	if err := r.b.use(r.b.device); err != nil {
		return err
	}
	for _, s := range r.shares {
		if err := call("cuStreamWaitEvent", func() error { return r.b.stream.Wait(s.d.event, 0) }); err != nil {
			return err
		}
	}
	return nil
}

// begin sends the others their part of a step.
func (r *runner) begin() error {
	if len(r.shares) == 0 {
		return nil
	}
	if err := r.fork(); err != nil {
		return err
	}
	for _, s := range r.shares {
		if err := r.b.use(s.d); err != nil {
			return err
		}
		if err := call("cuMemcpyHtoDAsync", func() error {
			return cu.MemcpyHtoDAsync(cu.DevicePtr(s.state), unsafe.Add(r.step, s.at), C.sizeof_covey_program, s.d.stream)
		}); err != nil {
			return err
		}
	}
	return r.b.use(r.b.device)
}

// segment submits one.
func (r *runner) segment(s *segment) error {
	if s.join {
		if err := r.join(); err != nil {
			return err
		}
	}
	for _, c := range s.copies {
		if err := call("cuMemcpyDtoHAsync", func() error { return cu.MemcpyDtoHAsync(c.to, cu.DevicePtr(c.from), c.size, r.b.stream) }); err != nil {
			return err
		}
	}
	if s.fork {
		if err := r.fork(); err != nil {
			return err
		}
	}
	d, state := r.b.device, r.state
	if s.share != nil {
		d, state = s.share.d, s.share.state
	}
	if err := r.b.use(d); err != nil {
		return err
	}
	var at C.int32_t
	if code := C.covey_launch_all(s.from, s.n, &d.functions[0], state, streamOf(d.stream), &at); code != 0 {
		l := unsafe.Slice(s.from, int(s.n))[at]
		e := failure("cuLaunchKernel of "+C.GoString(C.covey_kernel_name(l.kernel))+" for "+r.image.Labels[l.label], int(code))
		e.Injected = code == C.CUDA_ERROR_OPERATING_SYSTEM
		return e
	}
	return r.b.use(r.b.device)
}

// settle waits until the others have ended what they were given before a failure.
func (r *runner) settle() error {
	var errs []error
	for _, s := range r.shares {
		errs = append(errs, r.b.use(s.d), call("cuStreamSynchronize", s.d.stream.Synchronize))
	}
	return errors.Join(append(errs, r.b.use(r.b.device))...)
}
