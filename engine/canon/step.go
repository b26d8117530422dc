package canon

/*
#include "engine.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"
)

// Kinds of fault; a FaultError matches those that it contains with errors.Is.
var (
	ErrNonFinite = errors.New("non-finite value")
	ErrKVRange   = errors.New("value beyond the range of the f16 kv cache")
	ErrBanned    = errors.New("fewer experts left than the router must choose")
	ErrMissing   = errors.New("expert record is not in memory")
)

// Fault is what went wrong in one row of a step; other rows are not affected.
type Fault struct {
	Row  int    // step row
	Kind error  // one of the sentinels above
	Op   string // label of the operation
}

// FaultError lists the rows of a step that failed, ascending, with the first fault of each. All other rows are valid.
type FaultError struct{ Faults []Fault }

func (e *FaultError) Error() string {
	var b strings.Builder
	b.WriteString("canon: step:")
	for i, f := range e.Faults {
		if i == 4 {
			fmt.Fprintf(&b, " and %d rows more", len(e.Faults)-i)
			break
		}
		fmt.Fprintf(&b, " row %d: %s: %v;", f.Row, f.Op, f.Kind)
	}
	return strings.TrimSuffix(b.String(), ";")
}

// Is reports whether any row failed in that way.
func (e *FaultError) Is(target error) bool {
	for _, f := range e.Faults {
		if f.Kind == target {
			return true
		}
	}
	return false
}

// Step is the work of one forward over a batch of rows. The slices are only read, during Run.
//
// Rows of one sequence must be in ascending position; the positions before the first of them must have been run before.
type Step struct {
	Tokens    []int32   // [rows] input token ids
	Positions []int32   // [rows] position in the row's sequence, from 0
	Sequence  []int32   // [rows] sequence slot of the row
	Pages     [][]int32 // [slots] KV page ids of each sequence; page i holds positions 64i..64i+63
	States    []int32   // [slots] slot of each sequence in the program's State; nil where it has none
	LogitRows []int32   // rows whose logits are wanted; their order is the order of logit buffers
	// Draws are the draws for logit rows of which nobody wants more than the token behind them: a Drawer may make them. Nil, or a
	// nil entry: the logits themselves are wanted.
	Draws  []*SampleParams // [len(LogitRows)]
	Long   []bool          // [slots] Ropes with frequencies for long sequences turn the slot's rows by those; nil = no slot. All rows of a sequence must be run alike
	Banned []*Ban          // [slots] experts removed from the routers' choice; nil = none at all, a nil entry = none for it
}

// Rows is the number of token positions.
func (s *Step) Rows() int { return len(s.Tokens) }

// Ban is a set of experts by router (in the order of Program.Router calls) and id.
type Ban struct {
	routers []RouterSpec
	at      []int    // first bit of each router
	bits    []uint64 // one bit an expert over all routers
	left    [][]int  // experts not banned, by router and group
}

// NewBan returns an empty set for a program's routers.
func (p *Program) NewBan() *Ban {
	b := &Ban{routers: p.routers}
	total := 0
	for _, r := range p.routers {
		b.at, b.left = append(b.at, total), append(b.left, slices.Repeat([]int{r.Experts / r.Groups}, r.Groups))
		total += r.Experts
	}
	b.bits = make([]uint64, (total+63)/64)
	return b
}

// Add removes one expert of a router from the choice. The error wraps ErrBanned if too few would remain in all; see Check.
func (b *Ban) Add(router, id int) error {
	if router < 0 || router >= len(b.at) || id < 0 || id >= b.routers[router].Experts {
		return fmt.Errorf("canon: ban: expert %d of router %d does not exist", id, router)
	}
	i := b.at[router] + id
	if b.bits[i/64]>>(i%64)&1 == 1 {
		return nil
	}
	if b.leftOf(router) <= b.routers[router].TopK {
		return fmt.Errorf("canon: ban: expert %d of router %d: %w", id, router, ErrBanned)
	}
	b.left[router][id*len(b.left[router])/b.routers[router].Experts]--
	b.bits[i/64] |= 1 << (i % 64)
	return nil
}

func (b *Ban) leftOf(router int) int {
	n := 0
	for _, left := range b.left[router] {
		n += left
	}
	return n
}

// Check says whether a router that keeps only some groups of experts can find enough in any of them: a group without experts is
// passed over, one with few is not. The error wraps ErrBanned.
func (b *Ban) Check(router int) error {
	spec := b.routers[router]
	left := slices.DeleteFunc(slices.Clone(b.left[router]), func(n int) bool { return n == 0 })
	slices.Sort(left)
	fewest := 0
	for _, n := range left[:min(spec.TopGroups, len(left))] {
		fewest += n
	}
	if fewest < spec.TopK {
		return fmt.Errorf("%w: of %d groups of experts %d count for a token, and these may hold as few as %d experts for its choice of %d: spread the ban over more groups, or ban whole ones", ErrBanned, spec.Groups, spec.TopGroups, fewest, spec.TopK)
	}
	return nil
}

// stepMemory is the step as C reads it, off-heap, sized once.
type stepMemory struct {
	tokens, positions, sequence, pages, states, logitRows, faults []int32
	bans, lengthened                                              []byte
	banWords                                                      int
	banPtrs                                                       []byte
}

func (m *stepMemory) allocate(a *Arena, lim Limits, routers []RouterSpec) error {
	var err error
	ints := func(n int) []int32 {
		var s []int32
		if err == nil {
			s, err = a.Int32s(max(n, 1))
		}
		return s
	}
	m.tokens, m.positions, m.sequence = ints(lim.Rows), ints(lim.Rows), ints(lim.Rows)
	m.logitRows, m.faults = ints(lim.LogitRows), ints(lim.Rows*2)
	m.pages, m.states = ints(lim.Sequences*lim.Pages), ints(lim.Sequences)
	total := 0
	for _, r := range routers {
		total += r.Experts
	}
	m.banWords = (total + 63) / 64
	if err == nil {
		m.bans, err = a.Bytes(lim.Sequences * m.banWords * 8)
	}
	if err == nil {
		m.banPtrs, err = a.Bytes(lim.Sequences * 8)
	}
	if err == nil {
		m.lengthened, err = a.Bytes(max(lim.Sequences, 1))
	}
	return err
}

// First is the first router that has banned experts; -1 without any.
func (b *Ban) First() int {
	for r, spec := range b.routers {
		if b.leftOf(r) < spec.Experts {
			return r
		}
	}
	return -1
}

// check refuses a step that C could not run safely.
func (p *Program) check(s *Step) error {
	rows := len(s.Tokens)
	bad := func(format string, args ...any) error {
		return fmt.Errorf("canon: step: %s", fmt.Sprintf(format, args...))
	}
	switch {
	case !p.built && p.err == nil:
		return bad("the program is not built")
	case p.err != nil:
		return p.err
	case rows == 0 || rows > p.lim.Rows:
		return bad("%d rows; 1 to %d are possible", rows, p.lim.Rows)
	case len(s.Positions) != rows || len(s.Sequence) != rows:
		return bad("%d tokens with %d positions and %d sequences", rows, len(s.Positions), len(s.Sequence))
	case s.Draws != nil && len(s.Draws) != len(s.LogitRows):
		return bad("draws for %d of %d logit rows", len(s.Draws), len(s.LogitRows))
	case len(s.LogitRows) > p.lim.LogitRows:
		return bad("%d logit rows of at most %d", len(s.LogitRows), p.lim.LogitRows)
	case len(s.Pages) > p.lim.Sequences:
		return bad("%d sequences of at most %d", len(s.Pages), p.lim.Sequences)
	case s.Long != nil && len(s.Long) != len(s.Pages):
		return bad("lengths of %d of %d sequences", len(s.Long), len(s.Pages))
	case s.Banned != nil && len(s.Banned) != len(s.Pages):
		return bad("bans for %d of %d sequences", len(s.Banned), len(s.Pages))
	}
	for i, pages := range s.Pages {
		if len(pages) > p.lim.Pages {
			return bad("sequence %d has %d pages of at most %d", i, len(pages), p.lim.Pages)
		}
		for _, id := range pages {
			for _, kv := range p.kvs {
				if id < 0 || int(id) >= kv.spec.Pages {
					return bad("sequence %d names page %d of %d", i, id, kv.spec.Pages)
				}
			}
		}
	}
	if p.state != nil {
		if len(s.States) != len(s.Pages) {
			return bad("slots of state for %d of %d sequences", len(s.States), len(s.Pages))
		}
		for i, slot := range s.States {
			if slot < 0 || int(slot) >= p.state.slots || slices.Contains(s.States[:i], slot) {
				return bad("sequence %d names slot %d of %d for its state, or shares it", i, slot, p.state.slots)
			}
		}
	}
	for i := range rows {
		seq := s.Sequence[i]
		if seq < 0 || int(seq) >= len(s.Pages) {
			return bad("row %d names sequence %d of %d", i, seq, len(s.Pages))
		}
		if pos := s.Positions[i]; pos < 0 || (len(p.kvs) > 0 && int(pos/PageTokens) >= len(s.Pages[seq])) {
			return bad("row %d at position %d has no page", i, pos)
		}
		if t := s.Tokens[i]; p.vocab > 0 && (t < 0 || int(t) >= p.vocab) {
			return bad("row %d has token %d of %d", i, t, p.vocab)
		}
	}
	for _, r := range s.LogitRows {
		if r < 0 || int(r) >= rows {
			return bad("logit row %d of %d", r, rows)
		}
	}
	for i, b := range s.Banned {
		if b != nil && len(b.bits) != p.step.banWords {
			return bad("the bans of sequence %d belong to another program", i)
		}
	}
	return nil
}

// Run executes the program for one step and returns when all of it is done: results lie in the program's buffers and
// choices. A *FaultError means that the named rows failed and all others are valid; any other error means that nothing ran.
// The call takes as long as the step; one program runs on a pool at a time.
func (p *Program) Run(s *Step) error { return p.run(s, 0, nil, nil) }

// RunInParts is Run with a stop before the routed experts of each layer: there ready is called with the number of the
// router (in the order of Program.Router), whose choice is complete for all rows, and may put the chosen records into the
// layer's table. An error of ready ends the step and is returned; the rows' results are then worthless. The arithmetic is
// that of Run.
func (p *Program) RunInParts(s *Step, ready func(router int) error) error {
	return p.run(s, 0, nil, ready)
}

// RunFrom is RunInParts from a router on, for rows whose values on the way to it are known: load is called once and puts them
// into the buffers that the operations from the router on read. The router must follow the product that makes its logits,
// and its feed-forward block must follow it. Choices of the routers before it are not changed.
func (p *Program) RunFrom(s *Step, router int, load func(), ready func(router int) error) error {
	return p.run(s, router, load, ready)
}

// tableOf is the place in p.tables of a router where a step can begin: only its choice and the quantised inputs of its
// experts lie between the products before it and the experts, so all that they read is in buffers.
func (p *Program) tableOf(router int) (int, bool) {
	table := slices.IndexFunc(p.tables, func(t routed) bool { return t.router == router })
	if table < 0 {
		return 0, false
	}
	n := 0
	at := slices.IndexFunc(p.ops, func(op C.canon_op) bool {
		if op.kind == C.CANON_OP_FFN && op.table != nil {
			n++
		}
		return n > table
	}) - 1
	for at > 0 && p.ops[at].kind == C.CANON_OP_QUANTISE {
		at--
	}
	return table, at > 0 && p.ops[at].kind == C.CANON_OP_ROUTER && p.ops[at-1].kind == C.CANON_OP_MATMUL
}

func (p *Program) run(s *Step, router int, load func(), ready func(router int) error) error {
	if err := p.check(s); err != nil {
		return err
	}
	first := 0
	if load != nil {
		var ok bool
		if first, ok = p.tableOf(router); !ok {
			return fmt.Errorf("canon: step: no step can begin at router %d", router)
		}
	}
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	if p.pool.c == nil {
		return errors.New("canon: step: the pool is closed")
	}
	m := &p.step
	copy(m.tokens, s.Tokens)
	copy(m.positions, s.Positions)
	copy(m.sequence, s.Sequence)
	copy(m.logitRows, s.LogitRows)
	copy(m.states, s.States)
	for i, pages := range s.Pages {
		copy(m.pages[i*p.lim.Pages:], pages)
	}
	var c C.canon_step
	if s.Banned != nil && m.banWords > 0 {
		bits := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(m.bans))), len(m.bans)/8)
		ptrs := unsafe.Slice((**uint64)(unsafe.Pointer(unsafe.SliceData(m.banPtrs))), len(m.banPtrs)/8)
		for i, b := range s.Banned {
			ptrs[i] = nil
			if b != nil {
				copy(bits[i*m.banWords:], b.bits)
				ptrs[i] = &bits[i*m.banWords]
			}
		}
		c.bans = (**C.uint64_t)(unsafe.Pointer(unsafe.SliceData(ptrs)))
	}
	if s.Long != nil {
		for i, long := range s.Long {
			m.lengthened[i] = byte(b2i(long))
		}
		c.lengthened = (*C.uint8_t)(&m.lengthened[0])
	}
	c.rows, c.logit_rows, c.pages_stride = C.int32_t(len(s.Tokens)), C.int32_t(len(s.LogitRows)), C.int32_t(p.lim.Pages)
	c.tokens, c.positions, c.sequence = (*C.int32_t)(&m.tokens[0]), (*C.int32_t)(&m.positions[0]), (*C.int32_t)(&m.sequence[0])
	c.states = (*C.int32_t)(&m.states[0])
	c.pages, c.logit_row, c.faults = (*C.int32_t)(&m.pages[0]), (*C.int32_t)(&m.logitRows[0]), (*C.int32_t)(&m.faults[0])
	clear(m.faults[:2*len(s.Tokens)])
	faults, from, all := C.int(0), C.int32_t(0), C.int32_t(1<<30)
	if load != nil {
		C.canon_run(p.c, &c, 0, 1) // what all layers read: the angles of the positions
		from = C.canon_program_stop(p.c, 0)
		for range first {
			from = C.canon_program_stop(p.c, from+1)
		}
		from-- // the phase before the experts is the router's
		load()
	}
	if ready == nil {
		faults = C.canon_run(p.c, &c, from, all)
	} else {
		stop := C.canon_program_stop(p.c, from)
		for _, t := range p.tables[first:] {
			C.canon_run(p.c, &c, from, stop)
			if err := ready(t.router); err != nil {
				return err
			}
			from, stop = stop, C.canon_program_stop(p.c, stop+1)
		}
		faults = C.canon_run(p.c, &c, from, all)
	}
	if faults == 0 {
		return nil
	}
	return p.Faults(m.faults[:2*len(s.Tokens)])
}
