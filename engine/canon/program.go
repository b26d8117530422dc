package canon

/*
#include "engine.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"unsafe"
)

// Limits are the largest dimensions of a step; buffers are sized by them.
type Limits struct {
	Rows      int // rows a step
	LogitRows int // rows a step that need logits; 0 = Rows
	Sequences int // sequence slots a step
	Pages     int // KV pages a sequence
}

// Buffer is a float32 matrix [rows, width] off-heap. Its rows are the step's rows, or the step's LogitRows for buffers made
// by LogitBuffer. Contents are valid until the next step.
type Buffer struct {
	p    *Program
	c    C.canon_buffer
	rows int
}

// Width is the number of columns.
func (b *Buffer) Width() int { return int(b.c.width) }

// Row returns row i, [width]: a view into off-heap memory that the next step overwrites.
func (b *Buffer) Row(i int) []float32 {
	if i < 0 || i >= b.rows {
		panic(fmt.Sprintf("canon: row %d of a buffer of %d", i, b.rows))
	}
	return unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(b.c.data), i*int(b.c.stride)*4)), int(b.c.width))
}

// Choice is a router's output for one layer: for each row k expert ids with their combination weights, in the router's
// order (choice score descending, id ascending). Valid until the next step.
type Choice struct {
	k       int
	router  int       // number of the router
	ids     []int32   // [rows, k]
	weights []float32 // [rows, k]
}

// K is the number of experts a row.
func (c *Choice) K() int { return c.k }

// IDs returns the experts of row i, [k].
func (c *Choice) IDs(i int) []int32 { return c.ids[i*c.k : (i+1)*c.k : (i+1)*c.k] }

// Weights returns the combination weights of row i, [k].
func (c *Choice) Weights(i int) []float32 { return c.weights[i*c.k : (i+1)*c.k : (i+1)*c.k] }

// Program is a list of operations on buffers, built once for a model and run for each step in one call into the pool.
// Operations run in order with every row complete before the next operation that needs it. Building methods record the
// first mistake (shapes, missing parts) for Build to return; after a mistake further calls do nothing. Not safe for
// concurrent use.
type Program struct {
	pool    *Pool
	arena   *Arena
	lim     Limits
	c       *C.canon_program
	labels  []string
	routers []RouterSpec
	tables  []routed // in the order of the operations that read them
	kvs     []*KV
	state   *State       // nil = nothing recurrent
	ops     []C.canon_op // as added, for Image
	buffers []Block
	choices []*Choice
	kept    []*Buffer
	vocab   int
	built   bool
	err     error
	step    stepMemory
}

// routed is a table with the number of the router whose choice it serves.
type routed struct {
	*ExpertTable
	router int
}

// NewProgram returns an empty program whose buffers lie in the arena.
func NewProgram(pool *Pool, arena *Arena, lim Limits) *Program {
	if lim.LogitRows == 0 {
		lim.LogitRows = lim.Rows
	}
	p := &Program{pool: pool, arena: arena, lim: lim, labels: []string{"start"}}
	if lim.Rows <= 0 || lim.Rows > 1<<16 || lim.LogitRows < 0 || lim.LogitRows > lim.Rows || lim.Sequences <= 0 || lim.Pages < 0 {
		p.err = fmt.Errorf("canon: program: limits %+v are out of range", lim)
	}
	return p
}

// Limits returns the largest dimensions of a step.
func (p *Program) Limits() Limits { return p.lim }

func (p *Program) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("canon: program: %s: %s", p.labels[len(p.labels)-1], fmt.Sprintf(format, args...))
	}
}

// Label names the operations that follow ("layer 3 attention") in errors and profiles.
func (p *Program) Label(name string) { p.labels = append(p.labels, name) }

// Buffer returns a zeroed buffer [Limits.Rows, width].
func (p *Program) Buffer(width int) *Buffer { return p.buffer(width, p.lim.Rows, 0) }

// LogitBuffer returns a zeroed buffer [Limits.LogitRows, width] whose rows are the step's LogitRows.
func (p *Program) LogitBuffer(width int) *Buffer { return p.buffer(width, p.lim.LogitRows, 1) }

func (p *Program) buffer(width, rows int, logits C.int32_t) *Buffer {
	stride := (width + 31) &^ 31
	b := &Buffer{p: p, rows: rows}
	if width <= 0 || width > 1<<24 {
		p.fail("buffer of width %d", width)
	}
	if p.err != nil {
		return b
	}
	f, err := p.arena.Floats(stride * max(rows, 1))
	if err != nil {
		p.err = err
		return b
	}
	p.buffers = append(p.buffers, Block{unsafe.Pointer(unsafe.SliceData(f)), int64(len(f)) * 4})
	b.c = C.canon_buffer{data: (*C.float)(unsafe.SliceData(f)), width: C.int32_t(width), stride: C.int32_t(stride), logits: logits}
	return b
}

// vector copies floats into the arena, since operations keep the pointer.
func (p *Program) vector(v []float32) *C.float {
	if len(v) == 0 || p.err != nil {
		return nil
	}
	f, err := p.arena.Floats(len(v))
	if err != nil {
		p.err = err
		return nil
	}
	copy(f, v)
	return (*C.float)(unsafe.SliceData(f))
}

func (p *Program) add(op C.canon_op) {
	if p.err != nil {
		return
	}
	if p.built {
		p.fail("operation added after Build")
		return
	}
	if p.c == nil {
		if p.pool.c != nil {
			p.c = C.canon_program_new(C.int32_t(p.lim.Rows), C.int32_t(p.lim.LogitRows), C.int32_t(p.lim.Pages), p.pool.c)
		}
		if p.c == nil {
			p.fail("out of memory, or the pool is closed")
			return
		}
	}
	op.label = C.int32_t(len(p.labels) - 1)
	if C.canon_program_add(p.c, &op) != 0 {
		p.fail("out of memory")
	}
	p.ops = append(p.ops, op)
}

// same fails unless all buffers have rows of one kind; widths are checked by the caller.
func (p *Program) same(bufs ...*Buffer) bool {
	for _, b := range bufs {
		if b == nil || b.p != p {
			p.fail("a buffer is missing or belongs to another program")
			return false
		}
		if b.c.logits != bufs[0].c.logits {
			p.fail("step rows and logit rows are mixed")
			return false
		}
	}
	return p.err == nil
}

// Embed writes the table's row of each row's token: dst = table[token], code times scale.
func (p *Program) Embed(dst *Buffer, table *Matrix) {
	if !p.same(dst) {
		return
	}
	if dst.Width() != table.Cols() || dst.c.logits != 0 {
		p.fail("embedding of width %d into a buffer of %d", table.Cols(), dst.Width())
	}
	p.vocab = table.Rows()
	p.add(C.canon_op{kind: C.CANON_OP_EMBED, dst: dst.c, m: table.c})
}

// RMSNorm: dst = (src / sqrt(mean(src^2) + eps)) * weight (rule 4); plusOne adds 1 to each weight first. A nil weight is
// left out. dst may be src. It is also the query/key norm over a whole projection.
func (p *Program) RMSNorm(dst, src *Buffer, weight []float32, eps float32, plusOne bool) {
	p.norm(dst, src, 1, weight, eps, plusOne)
}

// HeadNorm is RMSNorm in place over each of heads consecutive parts of buf, with one weight [width/heads] for all.
func (p *Program) HeadNorm(buf *Buffer, heads int, weight []float32, eps float32, plusOne bool) {
	p.norm(buf, buf, heads, weight, eps, plusOne)
}

func (p *Program) norm(dst, src *Buffer, heads int, weight []float32, eps float32, plusOne bool) {
	if !p.same(dst, src) {
		return
	}
	w := src.Width()
	if dst.Width() != w || heads <= 0 || w%heads != 0 || (weight != nil && len(weight) != w/heads) {
		p.fail("norm of width %d in %d parts into %d with %d weights", w, heads, dst.Width(), len(weight))
		return
	}
	op := C.canon_op{kind: C.CANON_OP_NORM, dst: dst.c, src: src.c, vec: p.vector(weight)}
	op.i[0], op.f[0] = C.int32_t(heads), C.float(eps)
	if plusOne {
		op.i[1] = 1
	}
	p.add(op)
}

// LayerNorm: dst = (src - mean) / sqrt(variance + eps) * weight + bias (rule 4), the variance being the population's. Weight
// and bias are [width]. dst may be src.
func (p *Program) LayerNorm(dst, src *Buffer, weight, bias []float32, eps float32) {
	if !p.same(dst, src) {
		return
	}
	if w := src.Width(); dst.Width() != w || len(weight) != w || len(bias) != w {
		p.fail("layer norm of width %d into %d with %d weights and %d biases", w, dst.Width(), len(weight), len(bias))
		return
	}
	op := C.canon_op{kind: C.CANON_OP_LAYER_NORM, dst: dst.c, src: src.c, vec: p.vector(slices.Concat(weight, bias))}
	op.f[0] = C.float(eps)
	p.add(op)
}

// Product is one matrix of a MatMulN.
type Product struct {
	Dst  *Buffer
	M    *Matrix
	Bias []float32 // nil = none
}

// MatMul: dst = src m^T + bias, by rule 2 for integer forms and rule 3 for float forms. dst must not be src.
func (p *Program) MatMul(dst, src *Buffer, m *Matrix, bias []float32) {
	p.MatMulN(src, Product{dst, m, bias})
}

// MatMulN multiplies one source by several matrices; it is quantised once for all that share a group size.
func (p *Program) MatMulN(src *Buffer, products ...Product) {
	for _, x := range products {
		if x.Dst == nil || x.M == nil {
			p.fail("product without a matrix or a destination")
			return
		}
		if !p.same(src, x.Dst) {
			return
		}
		if x.M.Cols() != src.Width() || x.M.Rows() != x.Dst.Width() || x.Dst.c.data == src.c.data || (x.Bias != nil && len(x.Bias) != x.M.Rows()) {
			p.fail("product of width %d by [%d, %d] into %d with %d biases", src.Width(), x.M.Rows(), x.M.Cols(), x.Dst.Width(), len(x.Bias))
			return
		}
	}
	// One group size at a time, so that the quantised rows of one are not overwritten while another still needs them.
	var done [5]bool
	for i, group := range []int{0, 32, 64, 128} {
		for _, x := range products {
			if x.M.Group() != group {
				continue
			}
			if group != 0 && !done[i] {
				p.quantise(src, group)
				done[i] = true
			}
			p.add(C.canon_op{kind: C.CANON_OP_MATMUL, dst: x.Dst.c, src: src.c, m: x.M.c, vec: p.vector(x.Bias)})
		}
	}
}

func (p *Program) quantise(src *Buffer, group int) {
	op := C.canon_op{kind: C.CANON_OP_QUANTISE, src: src.c}
	op.i[0] = C.int32_t(group)
	p.add(op)
}

// Rope rotates the channels [offset, offset+Rot) of each of heads parts of buf in place by the angle of the row's position.
func (p *Program) Rope(buf *Buffer, heads int, r *Rope, pairing Pairing, offset int) {
	p.turn(buf, heads, r, pairing, offset, false)
}

// RopeBack is Rope by the opposite angle.
func (p *Program) RopeBack(buf *Buffer, heads int, r *Rope, pairing Pairing, offset int) {
	p.turn(buf, heads, r, pairing, offset, true)
}

func (p *Program) turn(buf *Buffer, heads int, r *Rope, pairing Pairing, offset int, back bool) {
	if !p.same(buf) {
		return
	}
	if heads <= 0 || buf.Width()%heads != 0 || offset < 0 || offset+r.spec.Rot > buf.Width()/heads || r.spec.Rot > 4096 || buf.c.logits != 0 {
		p.fail("rope of %d channels at %d of %d heads in width %d", r.spec.Rot, offset, heads, buf.Width())
		return
	}
	op := C.canon_op{kind: C.CANON_OP_ROPE, dst: buf.c, vec: (*C.float)(&r.inv[0])}
	op.i[0], op.i[1], op.i[2], op.i[3], op.i[5] = C.int32_t(heads), C.int32_t(r.spec.Rot), C.int32_t(pairing), C.int32_t(offset), C.int32_t(b2i(back))
	op.d = C.double(r.factor)
	if r.longInv != nil {
		op.weights, op.long_factor = (*C.float)(&r.longInv[0]), C.double(r.longFactor)
	}
	p.add(op)
}

// KVAppend stores each row's keys and values [heads*dim] at its position in one layer of the cache, rounded to its form. A
// cache of single vectors takes them as k; v is nil then.
func (p *Program) KVAppend(kv *KV, layer int, k, v *Buffer) {
	if kv.spec.Single && v == nil {
		v = k
	}
	if !p.same(k, v) {
		return
	}
	if w := kv.spec.Heads * kv.spec.Dim; k.Width() != w || v.Width() != w || kv.spec.Slots != PageTokens || layer < 0 || layer >= kv.spec.Layers || k.c.logits != 0 {
		p.fail("keys of width %d and values of %d into layer %d of a cache of %d layers, %d heads of %d", k.Width(), v.Width(), layer, kv.spec.Layers, kv.spec.Heads, kv.spec.Dim)
		return
	}
	p.uses(kv)
	op := C.canon_op{kind: C.CANON_OP_KV_APPEND, src: k.c, src2: v.c, kv: kv.c}
	op.i[0] = C.int32_t(layer)
	p.add(op)
}

// uses makes steps check their pages against a cache.
func (p *Program) uses(kvs ...*KV) {
	for _, kv := range kvs {
		if !slices.Contains(p.kvs, kv) {
			p.kvs = append(p.kvs, kv)
		}
	}
}

// AttentionSpec says how a layer attends.
type AttentionSpec struct {
	Heads  int        // query heads; consecutive Heads/KVHeads of them share a key/value head
	Scale  float32    // factor on scores; 0 = dim^-0.5
	Window int        // keys seen, the row's own included; 0 = all
	Sinks  []float32  // [Heads] or nil
	Values int        // channels of a value in a cache of single vectors; 0 = all
	Kept   *Selection // without a memory: only these positions are attended; with one: only these of its vectors; nil = all

	// Memory holds further vectors, one for Rate positions, that a row attends behind the positions, in blocks by rank.
	Memory      *KV
	MemoryLayer int
	Rate        int
}

// Attention: dst [heads*values] = softmax(scale q k) v over the row's sequence up to its own position (rule 6); a value has the
// width of a key unless the spec says otherwise.
func (p *Program) Attention(dst, q *Buffer, kv *KV, layer int, s AttentionSpec) {
	if !p.same(dst, q) {
		return
	}
	if s.Values == 0 {
		s.Values = kv.spec.Dim
	}
	if s.Heads <= 0 || s.Heads%kv.spec.Heads != 0 || dst.Width() != s.Heads*s.Values || q.Width() != s.Heads*kv.spec.Dim ||
		s.Values != kv.spec.Dim && (!kv.spec.Single || s.Values < 0 || s.Values > kv.spec.Dim) || kv.spec.Single && kv.spec.Heads != 1 || layer < 0 || layer >= kv.spec.Layers ||
		s.Window < 0 || q.c.logits != 0 || (s.Sinks != nil && len(s.Sinks) != s.Heads) {
		p.fail("attention of %d heads, width %d into %d, over %d key/value heads of %d, window %d, %d sinks", s.Heads, q.Width(), dst.Width(), kv.spec.Heads, kv.spec.Dim, s.Window, len(s.Sinks))
		return
	}
	op := C.canon_op{kind: C.CANON_OP_ATTENTION, dst: dst.c, src: q.c, kv: kv.c, vec: p.vector(s.Sinks)}
	switch m := s.Memory; {
	case m != nil:
		if !kv.spec.Single || !m.spec.Single || m.spec.Dim != kv.spec.Dim || m.spec.Heads != 1 || m.spec.Form != kv.spec.Form || s.Rate <= 0 || m.spec.Slots != max(PageTokens/s.Rate, 1) ||
			s.MemoryLayer < 0 || s.MemoryLayer >= m.spec.Layers || s.Kept != nil && s.Kept.rate != s.Rate {
			p.fail("a memory of one vector for %d positions, %+v, does not fit", s.Rate, m.spec)
			return
		}
		op.memory, op.i[5], op.i[6] = m.c, C.int32_t(s.MemoryLayer), C.int32_t(s.Rate)
	case s.Kept != nil:
		if !kv.spec.Single || s.Kept.rate != 1 || s.Window != 0 {
			p.fail("chosen positions need a cache of single vectors and no window")
			return
		}
		op.memory, op.i[5], op.i[6], op.i[7] = kv.c, C.int32_t(layer), 1, 1
	}
	if s.Kept != nil {
		op.ids, op.i[4] = (*C.int32_t)(&s.Kept.ids[0]), C.int32_t(s.Kept.most)
	}
	op.i[0], op.i[1], op.i[2], op.i[3] = C.int32_t(layer), C.int32_t(s.Heads), C.int32_t(s.Window), C.int32_t(s.Values)
	op.f[0] = C.float(s.Scale)
	if s.Scale == 0 {
		op.f[0] = C.canon_attention_scale(C.int32_t(kv.spec.Dim))
	}
	p.add(op)
}

// SwiGLU: dst = silu(gate) * up. dst may be either.
func (p *Program) SwiGLU(dst, gate, up *Buffer) {
	p.elementwise(C.CANON_OP_SWIGLU, 0, 0, dst, gate, up)
}

// Add: dst = dst + src.
func (p *Program) Add(dst, src *Buffer) { p.elementwise(C.CANON_OP_ADD, 0, 0, dst, src) }

// AddScaled: dst = dst + (src * factor), two operations.
func (p *Program) AddScaled(dst, src *Buffer, factor float32) {
	p.elementwise(C.CANON_OP_ADD_SCALED, factor, 0, dst, src)
}

// Scale: buf = buf * factor.
func (p *Program) Scale(buf *Buffer, factor float32) {
	p.elementwise(C.CANON_OP_SCALE, factor, 0, buf)
}

// Divide: buf = buf / divisor.
func (p *Program) Divide(buf *Buffer, divisor float32) {
	p.elementwise(C.CANON_OP_DIVIDE, divisor, 0, buf)
}

// Clamp: buf = min(max(buf, lo), hi); NaN stays NaN.
func (p *Program) Clamp(buf *Buffer, lo, hi float32) { p.elementwise(C.CANON_OP_CLAMP, lo, hi, buf) }

func (p *Program) elementwise(kind C.int32_t, f0, f1 float32, dst *Buffer, src ...*Buffer) {
	all := append([]*Buffer{dst}, src...)
	if !p.same(all...) {
		return
	}
	op := C.canon_op{kind: kind, dst: dst.c}
	for i, b := range src {
		if b.Width() != dst.Width() {
			p.fail("widths %d and %d differ", b.Width(), dst.Width())
			return
		}
		if i == 0 {
			op.src = b.c
		} else {
			op.src2 = b.c
		}
	}
	op.f[0], op.f[1] = C.float(f0), C.float(f1)
	p.add(op)
}

// ScoreKind is what a router makes of its logits before choosing.
type ScoreKind uint8

// Scores. In all of them the weights of the chosen are their scores, without the bias.
const (
	ScoreSoftmax      ScoreKind = iota // softmax over all experts
	ScoreTopSoftmax                    // the logits choose; weights are a softmax over the chosen only
	ScoreSigmoid                       // sigmoid
	ScoreSqrtSoftplus                  // square root of softplus
	ScoreSparseMixer                   // the logits choose; each weight is a share among the experts near the chosen one (RouterSpec.Jitter)
)

// RouterSpec describes a router (rule 8).
type RouterSpec struct {
	Score     ScoreKind
	Experts   int
	TopK      int
	Bias      []float32 // [Experts], added to the scores for the choice only; nil = none
	Groups    int       // equal consecutive groups; 0 or 1 = none
	TopGroups int       // groups kept
	GroupMax  bool      // a group's score is its largest choice score instead of the sum of its two largest
	Normalise bool      // divide the weights by their sum
	Eps       float32   // added to that sum
	MinSum    float32   // the sum is at least this
	Scale     float32   // factor on the weights; 0 = 1
	Table     []int32   // [tokens, TopK]: the experts of each input token, in place of a choice by scores; nil = none
	Jitter    float32   // sparse mixer: with m the chosen logit, experts with (m - z) / max(|z|, m) <= 2 Jitter that are not yet chosen share
}

// Router chooses experts for each row from logits [experts] and returns where the choice is written. Routers are numbered
// in the order of these calls; Step.Banned speaks of those numbers.
func (p *Program) Router(logits *Buffer, s RouterSpec) *Choice {
	c := &Choice{k: s.TopK, router: len(p.routers)}
	if !p.same(logits) {
		return c
	}
	if s.Scale == 0 {
		s.Scale = 1
	}
	if s.Groups == 0 {
		s.Groups = 1
	}
	if s.Groups == 1 {
		s.TopGroups = 1
	}
	if s.Experts <= 0 || s.Experts > 1<<16 || s.TopK <= 0 || s.TopK > s.Experts || s.TopK > 64 || logits.Width() != s.Experts || (s.Bias != nil && len(s.Bias) != s.Experts) ||
		s.Experts%s.Groups != 0 || s.Groups > 256 || s.TopGroups <= 0 || s.TopGroups > s.Groups || s.TopGroups*(s.Experts/s.Groups) < s.TopK || s.Score > ScoreSparseMixer || logits.c.logits != 0 {
		p.fail("router of %d experts, top %d, %d of %d groups, %d biases on %d logits", s.Experts, s.TopK, s.TopGroups, s.Groups, len(s.Bias), logits.Width())
		return c
	}
	ids, err := p.arena.Int32s(p.lim.Rows * s.TopK)
	if err == nil {
		c.weights, err = p.arena.Floats(p.lim.Rows * s.TopK)
	}
	if err != nil {
		p.err = err
		return c
	}
	c.ids = ids
	p.choices = append(p.choices, c)
	op := C.canon_op{kind: C.CANON_OP_ROUTER, src: logits.c, vec: p.vector(s.Bias), ids: (*C.int32_t)(&c.ids[0]), weights: (*C.float)(&c.weights[0])}
	firstBan := 0
	for _, r := range p.routers {
		firstBan += r.Experts
	}
	for i, v := range []int{int(s.Score), s.Experts, s.TopK, s.Groups, s.TopGroups, b2i(s.GroupMax), b2i(s.Normalise), firstBan} {
		op.i[i] = C.int32_t(v)
	}
	if s.Table != nil {
		if p.vocab <= 0 || len(s.Table) != p.vocab*s.TopK || slices.ContainsFunc(s.Table, func(id int32) bool { return id < 0 || int(id) >= s.Experts }) {
			p.fail("router table of %d ids for %d tokens and %d of %d experts", len(s.Table), p.vocab, s.TopK, s.Experts)
			return c
		}
		table, err := p.arena.Int32s(len(s.Table))
		if err != nil {
			p.err = err
			return c
		}
		copy(table, s.Table)
		op.table = (*unsafe.Pointer)(unsafe.Pointer(&table[0]))
	}
	op.f[0], op.f[1], op.f[2], op.f[3] = C.float(s.Eps), C.float(s.MinSum), C.float(s.Scale), C.float(2*s.Jitter)
	p.routers = append(p.routers, s)
	p.add(op)
	return c
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// GatherRows copies the rows of src (step rows) that the step lists in LogitRows to dst (made by LogitBuffer).
func (p *Program) GatherRows(dst, src *Buffer) {
	if p.err != nil {
		return
	}
	if dst.p != p || src.p != p || dst.c.logits != 1 || src.c.logits != 0 || dst.Width() != src.Width() {
		p.fail("gathering rows of width %d into %d: a step buffer and a logit buffer of one width are needed", src.Width(), dst.Width())
		return
	}
	p.add(C.canon_op{kind: C.CANON_OP_GATHER, dst: dst.c, src: src.c})
}

// CheckFinite makes every row of buf with an infinite or NaN value a fault of its row (ErrNonFinite).
func (p *Program) CheckFinite(buf *Buffer) {
	if p.same(buf) {
		p.add(C.canon_op{kind: C.CANON_OP_CHECK, src: buf.c})
	}
}

// Build ends construction: it sizes scratch memory and returns the first mistake.
func (p *Program) Build() error {
	if p.err == nil && p.c == nil {
		p.fail("no operations")
	}
	if p.err != nil || p.built {
		return p.err
	}
	size := C.canon_program_scratch(p.c)
	scratch, err := p.arena.Bytes(int(size))
	if err == nil {
		err = p.step.allocate(p.arena, p.lim, p.routers)
	}
	if err != nil {
		p.err = fmt.Errorf("canon: program: scratch memory: %w", err)
		return p.err
	}
	C.canon_program_build(p.c, unsafe.Pointer(unsafe.SliceData(scratch)))
	p.built = true
	return nil
}

// Close frees the program. Buffers and weights belong to the arena.
func (p *Program) Close() {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	if p.c != nil {
		C.canon_program_free(p.c)
		p.c = nil
	}
	if p.err == nil {
		p.err = fmt.Errorf("canon: program: closed")
	}
}
