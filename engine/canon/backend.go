package canon

/*
#include "engine.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// ErrLost says that a backend's device is gone for good, and with it what the caches and the state of a program held there. The
// program's own memory is whole: the CPU can run it from the first position of every sequence on.
var ErrLost = errors.New("device lost")

// Backend runs built programs: CPU does it on the pool's threads, another one may copy a program's weights and state to a
// device and run it there. Results are equal bit for bit, so a backend is a choice of speed only.
type Backend interface {
	// Name is what reports call it.
	Name() string
	// Load makes a built program ready to run. The program, its arena and its caches outlive the runner.
	Load(p *Program) (Runner, error)
}

// Runner runs one program. One goroutine at a time.
type Runner interface {
	// Run is Program.Run: afterwards the step's choices and the buffers that Keep named lie in the program's memory.
	Run(s *Step) error
	// Zero clears one page of a cache of the program, as KV.Zero does.
	Zero(kv *KV, page int) error
	// Close frees what Load took.
	Close() error
}

// Drawer is a runner that draws tokens where the logits are (Step.Draws) and then keeps those to itself.
type Drawer interface {
	Runner
	// Drawn are the tokens of the last step's logit rows: -1 where none was drawn and the logits lie in the program's memory.
	// Nil if the step drew none. Valid until the next step.
	Drawn() []int32
}

// CPU is the backend of this package.
var CPU Backend = cpu{}

type cpu struct{}

func (cpu) Name() string                    { return "cpu" }
func (cpu) Load(p *Program) (Runner, error) { return onPool{p}, nil }

type onPool struct{ *Program }

func (onPool) Zero(kv *KV, page int) error { kv.Zero(page); return nil }
func (onPool) Close() error                { return nil }

// Keep marks buffers as results: their rows are wanted after a step. Choices always are.
func (p *Program) Keep(buffers ...*Buffer) { p.kept = append(p.kept, buffers...) }

// Block is a piece of off-heap memory.
type Block struct {
	At   unsafe.Pointer
	Size int64 // bytes
}

// Array is a result of a step: Width bytes for each row, rows Stride bytes apart.
type Array struct {
	At            unsafe.Pointer
	Width, Stride int64
	Logits        bool // a row for each of Step.LogitRows instead of one for each of the step's rows
}

// Image is a built program as another backend reads it: the list of operations with everything that they point to. It is
// only read; memory lives until the arena closes.
type Image struct {
	Limits   Limits
	Ops      unsafe.Pointer // [OpCount] canon_op (engine.h), in the order of the program's methods
	OpCount  int
	Labels   []string // by canon_op.label
	Buffers  []Block  // what dst, src and src2 point into
	Caches   []*KV    // caches of the operations
	State    Block    // recurrent state of all slots; empty without any
	Choices  []Array  // what routers write: ids and weights, rows packed
	Kept     []Array  // buffers that Keep named
	BanWords int      // 64-bit words of a ban set
}

// Image describes a built program.
func (p *Program) Image() (*Image, error) {
	if p.err != nil {
		return nil, p.err
	}
	if !p.built {
		return nil, errors.New("canon: program: not built")
	}
	i := &Image{Limits: p.lim, Ops: unsafe.Pointer(unsafe.SliceData(p.ops)), OpCount: len(p.ops), Labels: p.labels, Buffers: p.buffers, Caches: p.kvs, BanWords: p.step.banWords}
	if p.state != nil {
		i.State = Block{unsafe.Pointer(unsafe.SliceData(p.state.mem)), int64(len(p.state.mem)) * 4}
	}
	for _, c := range p.choices {
		row := int64(c.k) * 4
		i.Choices = append(i.Choices, Array{At: unsafe.Pointer(unsafe.SliceData(c.ids)), Width: row, Stride: row}, Array{At: unsafe.Pointer(unsafe.SliceData(c.weights)), Width: row, Stride: row})
	}
	for _, b := range p.kept {
		i.Kept = append(i.Kept, Array{At: unsafe.Pointer(b.c.data), Width: int64(b.c.width) * 4, Stride: int64(b.c.stride) * 4, Logits: b.c.logits != 0})
	}
	return i, nil
}

// Block is the memory of the cache: Spec().Pages pages of PageBytes.
func (kv *KV) Block() Block {
	return Block{unsafe.Pointer(unsafe.SliceData(kv.mem)), int64(len(kv.mem))}
}

// Check refuses a step that could not be run safely.
func (p *Program) Check(s *Step) error { return p.check(s) }

// Words is a ban set as routers read it: one bit an expert over all routers. Read only.
func (b *Ban) Words() []uint64 { return b.bits }

// Faults makes an error of faults [rows, 2] (kind and label, as canon_step.faults); nil if no row has one.
func (p *Program) Faults(faults []int32) error {
	e := &FaultError{}
	kinds := [...]error{C.CANON_FAULT_NONFINITE: ErrNonFinite, C.CANON_FAULT_KV: ErrKVRange, C.CANON_FAULT_BANNED: ErrBanned, C.CANON_FAULT_MISSING: ErrMissing}
	for i := range len(faults) / 2 {
		k, label := faults[2*i], faults[2*i+1]
		if k == 0 {
			continue
		}
		if k < 0 || int(k) >= len(kinds) || label < 0 || int(label) >= len(p.labels) {
			return fmt.Errorf("canon: step: row %d has the unknown fault %d of operation %d", i, k, label)
		}
		e.Faults = append(e.Faults, Fault{Row: i, Kind: kinds[k], Op: p.labels[label]})
	}
	if e.Faults == nil {
		return nil
	}
	return e
}
