package model

// Attention over a window and a compressed memory: one vector a position is key and value of all heads, a window of them is
// seen as it is, and what lies behind is seen through entries that pool a window of positions each. Where windows overlap,
// an indexer with entries of its own chooses which are seen.

import (
	"fmt"

	"covey/engine/canon"
	"covey/engine/weights"
)

// MemoryKind says what a layer sees beyond its window.
type MemoryKind uint8

// Kinds of memory.
const (
	MemoryNone    MemoryKind = iota // nothing
	MemoryHeavy                     // entries of windows side by side, all of them
	MemoryIndexed                   // entries of overlapping windows, those that an indexer chooses
)

// Compressed is the geometry of compressed attention. Attention.KVHeads is 1 then.
type Compressed struct {
	Query             int          // width of the queries' latent
	Groups, GroupRank int          // groups of heads whose outputs go through a matrix of their own, to GroupRank channels
	Kinds             []MemoryKind // [layers]
	HeavyRate         int          // positions an entry
	IndexedRate       int
	IndexHeads        int
	IndexDim          int
	IndexTopK         int
	Rope              canon.RopeSpec // of layers with a memory; Spec.Rope is that of the others
}

// place is a layer's number among those with the same kind of memory; for all layers, how many there are of a kind.
func (c *Compressed) place(layer int, kind MemoryKind) int {
	n := 0
	for _, k := range c.Kinds[:layer] {
		if k == kind {
			n++
		}
	}
	return n
}

// compressor holds the weights of one compressor.
type compressor struct {
	values, gates *canon.Matrix
	places, norm  []float32
}

// compressedLayer holds the packed weights of one compressed attention block; layer.q makes the queries from their latent.
type compressedLayer struct {
	down, kv       *canon.Matrix
	downNorm, norm []float32
	groups         []*canon.Matrix // [groups] of [group rank, heads/groups*head dim]
	memory         compressor
	index          compressor
	indexQ, each   *canon.Matrix
}

// matrices lists the matrices, nil where the layer has none.
func (z *compressedLayer) matrices() []*canon.Matrix {
	return append([]*canon.Matrix{z.down, z.kv, z.memory.values, z.memory.gates, z.index.values, z.index.gates, z.indexQ, z.each}, z.groups...)
}

// compressed returns the jobs that read the attention block of layer i.
func (l *loader) compressed(y *layer, i int) []job {
	spec, a, c := l.spec, l.spec.Attention, l.spec.Attention.Compressed
	at := fmt.Sprintf("%slayers.%d.attn.", spec.Names.Root, i)
	y.compressed = &compressedLayer{}
	z := y.compressed
	jobs := []job{
		l.matrix(&z.down, at+"wq_a", c.Query, spec.Hidden), l.vector(&z.downNorm, at+"q_norm.weight", c.Query),
		l.matrix(&y.q, at+"wq_b", a.Heads*a.HeadDim, c.Query),
		l.matrix(&z.kv, at+"wkv", a.HeadDim, spec.Hidden), l.vector(&z.norm, l.either(at+"norm.weight", at+"kv_norm.weight"), a.HeadDim),
		l.rowBlocks(&z.groups, at+"wo_a", c.Groups, c.GroupRank, a.Heads*a.HeadDim/c.Groups),
		l.matrix(&y.o, at+"wo_b", spec.Hidden, c.Groups*c.GroupRank),
		l.vector(&y.sinks, at+"attn_sink", a.Heads),
	}
	switch c.Kinds[i] {
	case MemoryHeavy:
		jobs = append(jobs, l.compressor(&z.memory, at+"compressor.", c.HeavyRate, 1, a.HeadDim)...)
	case MemoryIndexed:
		jobs = append(jobs, l.compressor(&z.memory, at+"compressor.", c.IndexedRate, 2, a.HeadDim)...)
		index := append(l.compressor(&z.index, at+"indexer.compressor.", c.IndexedRate, 2, c.IndexDim),
			l.matrix(&z.indexQ, at+"indexer.wq_b", c.IndexHeads*c.IndexDim, c.Query), l.matrix(&z.each, at+"indexer.weights_proj", c.IndexHeads, spec.Hidden))
		for i := range index {
			if index[i].item.Kind == MatrixItem {
				index[i].item.Kind = ExactItem // a choice is all or nothing
			}
		}
		jobs = append(jobs, index...)
	}
	return jobs
}

func (l *loader) compressor(to *compressor, at string, rate, series, dim int) []job {
	return []job{
		l.matrix(&to.values, at+"wkv", series*dim, l.spec.Hidden), l.matrix(&to.gates, at+"wgate", series*dim, l.spec.Hidden),
		l.vector(&to.places, at+"ape", rate*series*dim), l.vector(&to.norm, at+"norm.weight", dim),
	}
}

// rowBlocks returns a job that packs a module of n blocks of rows as n matrices; elsewhere it is one.
func (l *loader) rowBlocks(to *[]*canon.Matrix, module string, n, rows, cols int) job {
	var whole *canon.Matrix
	j := l.matrix(&whole, module, n*rows, cols)
	j.ready, j.run = nil, func(s *weights.Scratch) error {
		source, err := l.source(module, n*rows, cols, s)
		if err != nil {
			return err
		}
		*to = make([]*canon.Matrix, n)
		for i := range n {
			part, err := source.RowRange(i*rows, rows)
			if err != nil {
				return err
			}
			if (*to)[i], err = l.arena.Pack(part); err != nil {
				return err
			}
		}
		return nil
	}
	return j
}

// compressedAttention is what compressed attention keeps beside the builder: buffers that all layers share.
type compressedAttention struct {
	main, long    *canon.Rope   // of layers without and with a memory
	down, kv      *canon.Buffer // [query], [head dim]
	q, attended   *canon.Buffer // [heads*head dim]
	grouped       *canon.Buffer // [groups*group rank]
	values, gates *canon.Buffer // of a compressor, one or two series
	pooled        *canon.Buffer // [head dim]
	indexQ, each  *canon.Buffer // [index heads*index dim], [index heads]
	kept          *canon.Selection
}

func (b *builder) newCompressed() error {
	p, a, c := b.program, b.spec.Attention, b.spec.Attention.Compressed
	main, err := b.arena.NewRope(b.spec.Rope)
	if err != nil {
		return err
	}
	long, err := b.arena.NewRope(c.Rope)
	if err != nil {
		return err
	}
	width := max(a.HeadDim, c.IndexDim)
	b.compress = compressedAttention{
		main: main, long: long, down: p.Buffer(c.Query), kv: p.Buffer(a.HeadDim), q: p.Buffer(a.Heads * a.HeadDim), attended: p.Buffer(a.Heads * a.HeadDim),
		grouped: p.Buffer(c.Groups * c.GroupRank), values: p.Buffer(2 * width), gates: p.Buffer(2 * width), pooled: p.Buffer(width),
		indexQ: p.Buffer(c.IndexHeads * c.IndexDim), each: p.Buffer(c.IndexHeads),
	}
	if c.place(len(c.Kinds), MemoryIndexed) > 0 {
		b.compress.kept = p.NewSelection(c.IndexTopK, c.IndexedRate)
	}
	return nil
}

// compressed attends with h as input and leaves the output in branch.
func (b *builder) compressed(l int, y *layer) {
	p, a, c, g, z := b.program, b.spec.Attention, b.spec.Attention.Compressed, &b.compress, y.compressed
	eps, kind := b.spec.NormEps, c.Kinds[l]
	rope := g.main
	if kind != MemoryNone {
		rope = g.long
	}
	tail := a.HeadDim - b.spec.Rope.Rot
	p.MatMulN(b.h, canon.Product{Dst: g.down, M: z.down}, canon.Product{Dst: g.kv, M: z.kv})
	p.RMSNorm(g.down, g.down, z.downNorm, eps, false)
	p.MatMul(g.q, g.down, y.q, nil)
	p.HeadNorm(g.q, a.Heads, nil, eps, false)
	p.Rope(g.q, a.Heads, rope, canon.Pairs, tail)
	p.RMSNorm(g.kv, g.kv, z.norm, eps, false)
	p.Rope(g.kv, 1, rope, canon.Pairs, tail)
	p.KVAppend(b.caches[cacheKV], l, g.kv, nil)

	spec := canon.AttentionSpec{Heads: a.Heads, Window: a.Window[l], Sinks: y.sinks}
	place := c.place(l, kind)
	switch kind {
	case MemoryHeavy:
		spec.Memory, spec.MemoryLayer, spec.Rate = b.caches[cacheHeavy], place, c.HeavyRate
		b.pool(&z.memory, place, cacheHeavy, cacheHeavyState, a.HeadDim, canon.Compressor{Rate: c.HeavyRate})
	case MemoryIndexed:
		spec.Memory, spec.MemoryLayer, spec.Rate, spec.Kept = b.caches[cacheIndexed], place, c.IndexedRate, g.kept
		overlap := canon.Compressor{Rate: c.IndexedRate, Overlap: true}
		b.pool(&z.memory, place, cacheIndexed, cacheIndexedState, a.HeadDim, overlap)
		b.pool(&z.index, place, cacheIndex, cacheIndexState, c.IndexDim, overlap)
		p.MatMul(g.indexQ, g.down, z.indexQ, nil)
		p.MatMul(g.each, b.h, z.each, nil)
		p.Rope(g.indexQ, c.IndexHeads, rope, canon.Pairs, c.IndexDim-c.Rope.Rot)
		p.Index(g.kept, g.indexQ, g.each, b.caches[cacheIndex], place)
	}
	p.Attention(g.attended, g.q, b.caches[cacheKV], l, spec)
	p.RopeBack(g.attended, a.Heads, rope, canon.Pairs, tail)
	width := a.Heads * a.HeadDim / c.Groups
	for i, m := range z.groups {
		p.MatMul(g.grouped.Slice(i*c.GroupRank, c.GroupRank), g.attended.Slice(i*width, width), m, nil)
	}
	p.MatMul(b.branch, g.grouped, y.o, nil)
}

// pool runs a compressor of one layer.
func (b *builder) pool(z *compressor, place int, entries, state cacheName, dim int, c canon.Compressor) {
	p, g, width := b.program, &b.compress, z.values.Rows()
	values, gates := g.values.Slice(0, width), g.gates.Slice(0, width)
	p.MatMulN(b.h, canon.Product{Dst: values, M: z.values}, canon.Product{Dst: gates, M: z.gates})
	c.Places, c.Norm, c.Eps, c.Rope = z.places, z.norm, b.spec.NormEps, g.long
	p.Compress(b.caches[entries], place, b.caches[state], place, g.pooled.Slice(0, dim), values, gates, c)
}
