package canon

/*
#include "engine.h"
*/
import "C"

import "unsafe"

// ActivationKind is what lies between gate and up on one side and down on the other.
type ActivationKind uint8

// Activations, g being gate and u up.
const (
	SwiGLU        ActivationKind = iota // silu(g) u
	SwiGLULimited                       // the same with g at most Limit and u within ±Limit (deepseek_v4)
	SwiGLUOss                           // (u + 1) g sigmoid(1.702 g) with the same limits (gpt_oss)
)

// Activation is an activation with its limit, which SwiGLU does not have.
type Activation struct {
	Kind  ActivationKind
	Limit float32
}

// FeedForward describes a feed-forward block: routed experts, a shared one, or both.
type FeedForward struct {
	Choice     *Choice      // routed experts of each row; nil without a table
	Table      *ExpertTable // their records; at least one must be set, which fixes the layout
	Shared     *Record      // for all rows; nil = none
	SharedGate *Buffer      // [1]: the shared output is scaled by its sigmoid; nil = not; needs a table
	Activation Activation
}

// FeedForward: dst = shared(src) * sigmoid(gate) + sum over ranks of weight * expert(src), in rank order (rule 9), each
// block being activation(src gate^T, src up^T) down^T with the biases of its record. dst must not be src. An expert that is
// not in the table when a row needs it is a fault of that row.
func (p *Program) FeedForward(dst, src *Buffer, f FeedForward) {
	if !p.same(dst, src) {
		return
	}
	h := src.Width()
	op := C.canon_op{kind: C.CANON_OP_FFN, dst: dst.c, src: src.c}
	groups := map[int]bool{}
	switch {
	case (f.Choice == nil) != (f.Table == nil), f.Table == nil && f.Shared == nil, dst.Width() != h, dst.c.data == src.c.data:
		p.fail("feed-forward of width %d into %d needs a table with its choice, or a shared record, or both", h, dst.Width())
		return
	case f.Table != nil && (f.Table.layout == nil || f.Table.layout.Down.Rows != h || f.Choice.ids == nil || dst.c.logits != 0):
		p.fail("expert table is empty or not of width %d", h)
		return
	case f.Shared != nil && f.Shared.Hidden() != h:
		p.fail("shared expert of width %d in a layer of width %d", f.Shared.Hidden(), h)
		return
	case f.SharedGate != nil && (f.Shared == nil || f.Table == nil || !p.same(dst, f.SharedGate) || f.SharedGate.Width() != 1):
		p.fail("a shared gate needs width 1, a shared record and a table")
		return
	case f.Activation.Kind > SwiGLUOss, (f.Activation.Kind == SwiGLU) != (f.Activation.Limit == 0), f.Activation.Limit < 0:
		p.fail("activation %d with limit %v", f.Activation.Kind, f.Activation.Limit)
		return
	}
	op.i[2], op.f[0] = C.int32_t(f.Activation.Kind), C.float(f.Activation.Limit)
	if f.Table != nil {
		op.ids, op.weights = (*C.int32_t)(&f.Choice.ids[0]), (*C.float)(&f.Choice.weights[0])
		op.table = (*unsafe.Pointer)(unsafe.Pointer(unsafe.SliceData(f.Table.ptrs)))
		op.routed = f.Table.layout.c
		op.i[0], op.i[1] = C.int32_t(f.Table.experts), C.int32_t(f.Choice.k)
		groups[int(f.Table.layout.c.gate.group)] = true
		p.tables = append(p.tables, routed{f.Table, f.Choice.router})
	}
	if f.Shared != nil {
		op.shared = f.Shared.layout.c
		op.shared_block = unsafe.Pointer(unsafe.SliceData(f.Shared.block))
		groups[f.Shared.gate.Group()] = true
	}
	if f.SharedGate != nil {
		op.src2 = f.SharedGate.c
	}
	delete(groups, 0)
	if len(groups) > 1 {
		p.fail("shared and routed experts differ in group size")
		return
	}
	for g := range groups {
		p.quantise(src, g)
	}
	p.add(op)
}

// MoE is FeedForward with SwiGLU and an ungated shared expert.
func (p *Program) MoE(dst, src *Buffer, choice *Choice, table *ExpertTable, shared *Record) {
	p.FeedForward(dst, src, FeedForward{Choice: choice, Table: table, Shared: shared})
}

// FFN is a dense FeedForward with SwiGLU.
func (p *Program) FFN(dst, src *Buffer, r *Record) { p.FeedForward(dst, src, FeedForward{Shared: r}) }
