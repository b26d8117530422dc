//go:build cuda

package cuda

/*
#include <string.h>
#include "driver.h"
*/
import "C"

import (
	"errors"
	"slices"
	"strings"
	"unsafe"

	"gorgonia.org/cu"

	"covey/engine/canon"
)

// runner is a program in device memory. Run and Zero come from one goroutine at a time.
type runner struct {
	b      *Backend
	p      *canon.Program
	image  *canon.Image
	memory memory
	ops    []C.canon_op // device addresses; ids and weights are the host's until a plan places them
	caches []mirror
	blocks []mirror

	program C.covey_program // device addresses
	angles  int
	split   int // rows that the scratch of split attention has room for
	scored  int // rows that the scratch of indexers has room for; 0 without any

	step  unsafe.Pointer // pinned: covey_program and the step's arrays, sent as one piece
	state C.CUdeviceptr  // the same on the device
	at    stepOffsets
	sent  int64 // bytes of it that the first device gets
	size  int64 // the other devices' programs lie behind

	shares []*share // of the other devices
	bounce bounce

	logits   *canon.Array  // what tokens are drawn from; nil = nothing, or nobody knows which
	tokens   C.CUdeviceptr // [logit rows] drawn
	last     []int32       // drawn in the last step; nil = none
	drawings int64         // where the step's drawings lie

	choices C.CUdeviceptr  // ids and weights of the running step, packed for its bucket
	results unsafe.Pointer // pinned
	plans   map[C.covey_bucket]*plan

	recurrent bool // a step changes what it reads
	begun     bool // something of the running step may have run
}

// stepOffsets say where a step's arrays lie behind covey_program, in bytes.
type stepOffsets struct{ tokens, positions, sequence, logits, faults, pages, states, lengthened, bans, banned int64 }

// Run is canon.Program.Run. A call that fails without harm to the device is made good by running the step once more, with
// plain launches: a step writes nothing that it reads, so the second run gives what the first would have given. Recurrent
// state and the windows of compressors are the exception: with them a step that has begun is not repeated.
func (r *runner) Run(s *canon.Step) error {
	if err := r.p.Check(s); err != nil {
		return err
	}
	rows, logits, blocks := r.fill(s)
	bucket := r.bucket(rows, logits, blocks)
	if r.draws(s) {
		bucket.draws = 1
	}
	graph := !r.b.options.Launches && bucket.rows <= graphRows
	run := func(graph bool) error {
		return r.b.do("step", r.b.options.Watchdog, func() error { return r.run(bucket, graph) })
	}
	err := run(graph)
	if e := (*Error)(nil); errors.As(err, &e) && !errors.Is(err, ErrLost) && !(r.recurrent && r.begun) {
		err = run(false)
	}
	if err != nil {
		return err
	}
	plan := r.plans[bucket]
	if r.last = nil; bucket.draws != 0 {
		r.last = slices.Clone(unsafe.Slice((*int32)(unsafe.Add(r.results, plan.drawn)), logits))
		if err := r.undrawn(); err != nil {
			return err
		}
	}
	for _, d := range plan.downloads {
		n := rows
		if d.array.Logits {
			n = logits
		}
		if n > 0 {
			C.memcpy(d.array.At, unsafe.Add(r.results, d.at), C.size_t(int64(n)*d.array.Stride))
		}
	}
	return r.p.Faults(unsafe.Slice((*int32)(r.results), 2*rows))
}

// Drawn is canon.Drawer's.
func (r *runner) Drawn() []int32 { return r.last }

// undrawn brings the logits that the device could not draw from.
func (r *runner) undrawn() error {
	if !slices.Contains(r.last, -1) {
		return nil
	}
	from, err := find(r.blocks, r.logits.At)
	if err != nil {
		return err
	}
	return r.b.do("logits", r.b.options.Watchdog, func() error {
		for i, token := range r.last {
			if token >= 0 {
				continue
			}
			at := int64(i) * r.logits.Stride
			if err := call("cuMemcpyDtoH", func() error {
				return cu.MemcpyDtoH(unsafe.Add(r.logits.At, at), cu.DevicePtr(from)+cu.DevicePtr(at), r.logits.Width)
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// draws says whether all tokens of a step are drawn on the device, and writes down how.
func (r *runner) draws(s *canon.Step) bool {
	if r.logits == nil || len(s.Draws) == 0 {
		return false
	}
	list := unsafe.Slice((*C.covey_drawing)(unsafe.Add(r.step, r.drawings)), len(s.Draws))
	for i, d := range s.Draws {
		if d == nil || !d.Plain() || !(d.Temperature >= 0) {
			return false
		}
		list[i] = C.covey_drawing{temperature: C.float(d.Temperature), top_p: C.float(d.TopP), min_p: C.float(d.MinP),
			top_k: C.int32_t(min(max(d.TopK, 0), int(r.logits.Width/4))), seed: C.uint64_t(d.Seed), choice: C.uint32_t(d.Choice), position: C.uint32_t(d.Position)}
	}
	return true
}

// Zero clears one page of a cache.
func (r *runner) Zero(kv *canon.KV, page int) error {
	for _, c := range r.caches {
		if c.host.At == kv.Block().At {
			spec := kv.Spec()
			part := kv.PageBytes() / int64(spec.Layers) // of a layer, whose pages lie together (kv_layer of kernels/device.h)
			at, pitch := cu.DevicePtr(c.device)+cu.DevicePtr(int64(page)*part), int64(spec.Pages)*part
			return r.b.do("clearing a page", r.b.options.Watchdog, func() error {
				return call("cuMemsetD2D8Async", func() error { return cu.MemsetD2D8Async(at, pitch, 0, part, int64(spec.Layers), r.b.stream) })
			})
		}
	}
	return errors.New("cuda: the cache belongs to another program")
}

// Close gives the program's memory back. What a lost device holds is left to the end of the process.
func (r *runner) Close() error {
	if r.b.alive() != nil {
		return nil
	}
	return r.b.do("closing a program", r.b.options.Watchdog, func() error {
		var errs []error
		for _, p := range r.plans {
			errs = append(errs, p.free())
		}
		r.plans = nil
		for _, s := range r.shares {
			errs = append(errs, s.memory.release())
		}
		r.shares = nil
		return errors.Join(append(errs, r.memory.release())...)
	})
}

// fill writes a step into pinned memory; it returns its rows, its logit rows and the blocks of 256 positions of its longest
// row.
func (r *runner) fill(s *canon.Step) (rows, logits, blocks int) {
	rows, logits = len(s.Tokens), len(s.LogitRows)
	st := &r.program.step
	st.rows, st.logit_rows, st.bans, st.lengthened = C.int32_t(rows), C.int32_t(logits), nil, nil
	ints := func(at int64, n int) []int32 { return unsafe.Slice((*int32)(unsafe.Add(r.step, at)), n) }
	copy(ints(r.at.tokens, rows), s.Tokens)
	copy(ints(r.at.positions, rows), s.Positions)
	copy(ints(r.at.sequence, rows), s.Sequence)
	copy(ints(r.at.logits, logits), s.LogitRows)
	copy(ints(r.at.states, len(s.States)), s.States)
	clear(ints(r.at.faults, 2*rows))
	for i, pages := range s.Pages {
		copy(ints(r.at.pages+int64(i*r.image.Limits.Pages)*4, len(pages)), pages)
	}
	if s.Long != nil {
		st.lengthened = (*C.uint8_t)(address(r.state + C.CUdeviceptr(r.at.lengthened)))
		long := unsafe.Slice((*bool)(unsafe.Add(r.step, r.at.lengthened)), len(s.Long)) // a byte each, 1 for true
		copy(long, s.Long)
	}
	if words := r.image.BanWords; s.Banned != nil && words > 0 {
		st.bans = (**C.uint64_t)(address(r.state + C.CUdeviceptr(r.at.banned)))
		places := unsafe.Slice((*C.CUdeviceptr)(unsafe.Add(r.step, r.at.banned)), len(s.Banned))
		for i, ban := range s.Banned {
			places[i] = 0
			if ban != nil {
				at := r.at.bans + int64(i*words)*8
				copy(unsafe.Slice((*uint64)(unsafe.Add(r.step, at)), words), ban.Words())
				places[i] = r.state + C.CUdeviceptr(at)
			}
		}
	}
	*(*C.covey_program)(r.step) = r.program
	for _, far := range r.shares {
		far.program.step.rows, far.program.step.logit_rows = st.rows, st.logit_rows
		*(*C.covey_program)(unsafe.Add(r.step, far.at)) = far.program
	}
	for _, p := range s.Positions {
		blocks = max(blocks, int(p)/C.CANON_BLOCK+1)
	}
	return rows, logits, blocks
}

// run makes one step of a bucket in the device's thread: as a graph from the second time on, or launch by launch.
func (r *runner) run(bucket C.covey_bucket, graph bool) error {
	p, err := r.plan(bucket)
	if err != nil {
		return err
	}
	p.used++
	r.begun = false
	switch {
	case graph && p.used > 1:
		if p.graph == nil {
			if err := r.capture(p); err != nil {
				return err
			}
		}
		if err = result("cuGraphLaunch", func() C.CUresult { return C.covey_graph_launch(p.graph, streamOf(r.b.stream)) }); err == nil {
			r.begun = true
		}
	default:
		r.begun = true
		err = r.submit(p)
	}
	// What was submitted before a failure runs on; nothing may touch its memory until it has ended.
	if err != nil {
		err = errors.Join(err, r.settle())
	}
	return errors.Join(err, call("cuStreamSynchronize", r.b.stream.Synchronize))
}

// kernels names the launches of a step of some rows, all of one block of positions and with logits.
func (r *runner) kernels(rows int) ([]string, error) {
	p, err := r.plan(r.bucket(rows, min(rows, r.image.Limits.LogitRows), 1))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, l := range p.at() {
		names = append(names, strings.TrimPrefix(C.GoString(C.covey_kernel_name(l.kernel)), "covey_"))
	}
	return names, nil
}

// submit puts a step's upload, launches and downloads into the stream.
func (r *runner) submit(p *plan) error {
	stream := r.b.stream
	if err := call("cuMemcpyHtoDAsync", func() error { return cu.MemcpyHtoDAsync(cu.DevicePtr(r.state), r.step, r.sent, stream) }); err != nil {
		return err
	}
	if err := r.begin(); err != nil {
		return err
	}
	for i := range p.segments {
		if err := r.segment(&p.segments[i]); err != nil {
			return err
		}
	}
	for _, d := range p.copies {
		if err := call("cuMemcpyDtoHAsync", func() error { return cu.MemcpyDtoHAsync(d.to, cu.DevicePtr(d.from), d.size, stream) }); err != nil {
			return err
		}
	}
	return nil
}

// capture records a step as a graph instead of running it.
func (r *runner) capture(p *plan) error {
	stream := streamOf(r.b.stream)
	if err := result("cuStreamBeginCapture", func() C.CUresult { return C.covey_begin_capture(stream) }); err != nil {
		return err
	}
	err := r.submit(p)
	var graph C.CUgraphExec
	// The capture must end whatever happened, so this call is made even where a failure is injected.
	end := result("cuStreamEndCapture", func() C.CUresult { return 0 })
	if code := C.covey_end_capture(stream, &graph); code != 0 {
		end = failure("cuStreamEndCapture", int(code))
	}
	if err = errors.Join(err, end); err != nil {
		if graph != nil {
			err = errors.Join(err, result("cuGraphExecDestroy", func() C.CUresult { return C.covey_graph_free(graph) }))
		}
		return err
	}
	p.graph = graph
	return nil
}
