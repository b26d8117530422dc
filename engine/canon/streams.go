package canon

/*
#include "engine.h"
*/
import "C"

// Compressor pools each window of Rate positions into one entry: a softmax over time of the gates, channel by channel,
// weighs the values (rule 7, token form); the result is normalised, its last channels turn by the angle of the window's
// first position, and it is stored at the window's last position. With Overlap, values and gates are two series wide and a
// window also pools the first series of the window before it, its own second one last.
type Compressor struct {
	Rate    int // positions a window, dividing 64 or a multiple of it
	Overlap bool
	Places  []float32 // [Rate, width of the gates]: added to the gates by place in the window
	Norm    []float32 // [width of an entry]
	Eps     float32
	Rope    *Rope
}

// Parts is the width of the state in entries.
func (c Compressor) Parts() int {
	if c.Overlap {
		return 6
	}
	return 3
}

// Compress runs a compressor over values and gates. entries is a cache of single vectors with max(64/Rate, 1) slots, state
// one in F32 with one slot of Parts entries; what is computed for a position there is left behind in its page, so positions
// of a sequence must come once and in order. pooled [width of an entry] is overwritten.
func (p *Program) Compress(entries *KV, layer int, state *KV, stateLayer int, pooled, values, gates *Buffer, c Compressor) {
	if !p.same(pooled, values, gates) {
		return
	}
	w, series := pooled.Width(), 1
	if c.Overlap {
		series = 2
	}
	if c.Rate <= 0 || PageTokens%c.Rate != 0 && c.Rate%PageTokens != 0 || values.Width() != series*w || gates.Width() != series*w || len(c.Places) != c.Rate*series*w || len(c.Norm) != w ||
		c.Rope == nil || c.Rope.spec.Rot > w || pooled.c.logits != 0 {
		p.fail("compressor of %d positions: values of %d and gates of %d into entries of %d", c.Rate, values.Width(), gates.Width(), w)
		return
	}
	e, s := entries.spec, state.spec
	if !e.Single || e.Heads != 1 || e.Dim != w || e.Slots != max(PageTokens/c.Rate, 1) || layer < 0 || layer >= e.Layers ||
		!s.Single || s.Heads != 1 || s.Dim != c.Parts()*w || s.Slots != 1 || s.Form != F32 || stateLayer < 0 || stateLayer >= s.Layers {
		p.fail("compressor of %d positions into entries of %d: caches %+v and %+v do not fit", c.Rate, w, e, s)
		return
	}
	p.uses(entries, state)
	op := C.canon_op{kind: C.CANON_OP_POOL, dst: pooled.c, src: values.c, src2: gates.c, kv: state.c, vec: p.vector(c.Places)}
	op.i[0], op.i[1], op.i[2] = C.int32_t(stateLayer), C.int32_t(c.Rate), C.int32_t(b2i(c.Overlap))
	p.add(op)
	op = C.canon_op{kind: C.CANON_OP_ENTRY, src: pooled.c, kv: entries.c, vec: p.vector(c.Norm), weights: (*C.float)(&c.Rope.inv[0])}
	op.i[0], op.i[1], op.i[2] = C.int32_t(layer), C.int32_t(c.Rate), C.int32_t(c.Rope.spec.Rot)
	op.f[0], op.d = C.float(c.Eps), C.double(c.Rope.factor)
	p.add(op)
}

// Mixer says how m residual streams meet a block (rule 10): from z [(2+m)*m], made of the streams, come the weights by which
// they join, those by which the block's output goes to each, and those by which they mix, balanced by Rounds of Sinkhorn's
// division by column and row sums.
type Mixer struct {
	Streams int
	Rounds  int
	Base    []float32 // [(2+m)*m]
	Scale   []float32 // [3]: joining, parting, mixing
	Eps     float32
}

// MixIn turns z into weights in place and writes to dst [width] the streams [m*width] joined by them.
func (p *Program) MixIn(dst, streams, z *Buffer, m Mixer) {
	n := (2 + m.Streams) * m.Streams
	if len(m.Base) != n || len(m.Scale) != 3 || m.Rounds <= 0 {
		p.fail("mixer of %d streams with %d bases, %d scales and %d rounds", m.Streams, len(m.Base), len(m.Scale), m.Rounds)
		return
	}
	p.mix(dst, streams, z, m, n, 0)
}

// MixHead is MixIn at the end of a model: z [m] and Base [m] only join the streams; Scale is [1].
func (p *Program) MixHead(dst, streams, z *Buffer, m Mixer) {
	if len(m.Base) != m.Streams || len(m.Scale) != 1 {
		p.fail("mixer of %d streams with %d bases and %d scales", m.Streams, len(m.Base), len(m.Scale))
		return
	}
	p.mix(dst, streams, z, m, m.Streams, 1)
}

func (p *Program) mix(dst, streams, z *Buffer, m Mixer, width, head int) {
	if !p.same(dst, streams, z) {
		return
	}
	if m.Streams <= 0 || streams.Width() != m.Streams*dst.Width() || z.Width() != width {
		p.fail("%d streams of width %d in %d, weights of %d", m.Streams, dst.Width(), streams.Width(), z.Width())
		return
	}
	op := C.canon_op{kind: C.CANON_OP_MIX_IN, dst: dst.c, src: streams.c, src2: z.c, vec: p.vector(append(append([]float32(nil), m.Base...), m.Scale...))}
	op.i[0], op.i[1], op.i[2], op.f[0] = C.int32_t(m.Streams), C.int32_t(m.Rounds), C.int32_t(head), C.float(m.Eps)
	p.add(op)
}

// MixOut mixes the streams and adds a block's output to each, by the weights that MixIn left in z.
func (p *Program) MixOut(streams, output, z *Buffer) {
	if !p.same(streams, output, z) {
		return
	}
	m := streams.Width() / output.Width()
	if streams.Width() != m*output.Width() || z.Width() != (2+m)*m || streams.c.logits != 0 {
		p.fail("output of width %d to streams of %d with %d weights", output.Width(), streams.Width(), z.Width())
		return
	}
	op := C.canon_op{kind: C.CANON_OP_MIX_OUT, dst: streams.c, src: output.c, src2: z.c}
	op.i[0] = C.int32_t(m)
	p.add(op)
}

// RulePool pools items (gates and values [n, width]) one after the other: the pooled value of each channel.
func RulePool(gates, places, values [][]float32) []float32 {
	n := len(gates[0])
	m, l, o := make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range m {
		m[i] = float32(C.canon_rule_lowest())
	}
	for i := range gates {
		C.canon_rule_pool(floats(m), floats(l), floats(o), floats(gates[i]), floats(places[i]), floats(values[i]), C.int32_t(n))
	}
	C.canon_rule_divide(floats(o), floats(l), C.int32_t(n))
	return o
}

// RuleMix is what MixIn (or MixHead) makes of z.
func RuleMix(z []float32, m Mixer, head bool) []float32 {
	out := append([]float32(nil), z...)
	C.canon_rule_mix(floats(out), floats(m.Base), floats(m.Scale), C.int32_t(m.Streams), C.int32_t(m.Rounds), C.float(m.Eps), C.int32_t(b2i(head)))
	return out
}
