package canon

/*
#include "engine.h"
*/
import "C"

import "unsafe"

// Slice returns a view of the channels [from, from+width) of b: the same memory under another shape.
func (b *Buffer) Slice(from, width int) *Buffer {
	v := *b
	if b.p.err != nil {
		return &v
	}
	if from < 0 || width <= 0 || from+width > b.Width() {
		b.p.fail("channels %d to %d of a buffer of width %d", from, from+width, b.Width())
		return &v
	}
	v.c.data = (*C.float)(unsafe.Add(unsafe.Pointer(b.c.data), from*4))
	v.c.width = C.int32_t(width)
	return &v
}

// HeadMatMul multiplies each of heads equal parts of src by a matrix of its own: m is [heads*out, in] in F32, F16 or BF16, head h
// having its rows h*out and on, and the channels at+j of head h of dst become the product of row j with the channels from+i
// of head h of src (rule 3).
func (p *Program) HeadMatMul(dst *Buffer, at int, src *Buffer, from int, m *Matrix, heads int) {
	if !p.same(dst, src) {
		return
	}
	if heads <= 0 || m.Rows()%heads != 0 || dst.Width()%heads != 0 || src.Width()%heads != 0 || at < 0 || at+m.Rows()/heads > dst.Width()/heads ||
		from < 0 || from+m.Cols() > src.Width()/heads || m.Form() > BF16 || dst.c.data == src.c.data || dst.c.logits != 0 {
		p.fail("products of %d heads by %s [%d, %d]: channels %d on of width %d into channels %d on of %d", heads, m.Form(), m.Rows(), m.Cols(), from, src.Width(), at, dst.Width())
		return
	}
	op := C.canon_op{kind: C.CANON_OP_HEADS, dst: dst.c, src: src.c, m: m.c}
	op.i[0], op.i[1], op.i[2] = C.int32_t(heads), C.int32_t(at), C.int32_t(from)
	p.add(op)
}

// HeadCopy copies n channels of each of heads equal parts of src, from channel from on, to those of dst, from channel at on.
func (p *Program) HeadCopy(dst *Buffer, at int, src *Buffer, from, n, heads int) {
	if !p.same(dst, src) {
		return
	}
	if heads <= 0 || dst.Width()%heads != 0 || src.Width()%heads != 0 || n <= 0 || at < 0 || at+n > dst.Width()/heads || from < 0 || from+n > src.Width()/heads {
		p.fail("copying %d channels of %d heads: from channel %d of width %d to channel %d of %d", n, heads, from, src.Width(), at, dst.Width())
		return
	}
	op := C.canon_op{kind: C.CANON_OP_COPY, dst: dst.c, src: src.c}
	op.i[0], op.i[1], op.i[2], op.i[3] = C.int32_t(heads), C.int32_t(at), C.int32_t(from), C.int32_t(n)
	p.add(op)
}
