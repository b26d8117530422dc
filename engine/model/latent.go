package model

// Multi-head latent attention, absorbed: what the cache holds for a position is one latent and one rotated vector for all
// heads; the matrix that would expand the latent into keys is applied to the queries instead, and the one for values to
// what was attended (rule 6).

import (
	"fmt"

	"covey/engine/canon"
	"covey/engine/weights"
)

// Latent is the geometry of latent attention. Attention.KVHeads is 1 then and Attention.HeadDim is Rank+Rotary.
type Latent struct {
	Query  int     // width of the queries' own latent; 0 = queries come straight from the input
	Rank   int     // width of the latent
	Plain  int     // channels of a query head that are not rotated
	Rotary int     // channels that are, behind those
	Value  int     // channels of a value head
	Eps    float32 // of the norms of both latents, whatever Spec.NormEps is
	Bias   bool    // the products from the input have biases
	Index  *Index  // nil = every position is attended
}

// latentLayer holds the packed weights of one latent attention block; layer.q makes the queries, from their latent or from
// the input.
type latentLayer struct {
	down, kv         *canon.Matrix // to the queries' latent, nil without one; to latent and rotary part
	downBias, kvBias []float32
	downNorm, norm   []float32
	keys, values     *canon.Matrix // [heads*rank, plain] and [heads*value, rank]
	index            *indexLayer   // nil = the layer has no indexer of its own
}

// latent returns the jobs that read the attention block of layer i.
func (l *loader) latent(y *layer, i int) []job {
	spec, a := l.spec, l.spec.Attention
	n, at := a.Latent, fmt.Sprintf("model.layers.%d.self_attn.", i)
	y.latent = &latentLayer{}
	z := y.latent
	jobs := []job{
		l.matrix(&z.kv, at+"kv_a_proj_with_mqa", n.Rank+n.Rotary, spec.Hidden),
		l.vector(&z.norm, at+"kv_a_layernorm.weight", n.Rank),
		l.expansion(z, at+"kv_b_proj"),
		l.matrix(&y.o, at+"o_proj", spec.Hidden, a.Heads*n.Value),
	}
	width, queries := spec.Hidden, at+"q_proj"
	if n.Query > 0 {
		jobs = append(jobs, l.matrix(&z.down, at+"q_a_proj", n.Query, spec.Hidden), l.vector(&z.downNorm, at+"q_a_layernorm.weight", n.Query))
		width, queries = n.Query, at+"q_b_proj"
	}
	jobs = append(jobs, l.matrix(&y.q, queries, a.Heads*(n.Plain+n.Rotary), width))
	if n.Bias {
		jobs = append(jobs, l.vector(&z.kvBias, at+"kv_a_proj_with_mqa.bias", n.Rank+n.Rotary), l.vector(&y.oBias, at+"o_proj.bias", spec.Hidden))
		if n.Query > 0 {
			jobs = append(jobs, l.vector(&z.downBias, at+"q_a_proj.bias", n.Query))
		}
	}
	if n.Index != nil && n.Index.Full[i] {
		for _, j := range l.indexer(z, i) {
			if j.item.Kind == MatrixItem { // the choice of positions is all or nothing, like that of experts
				j.item.Kind = ExactItem
			}
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// expansion returns a job that reads the matrix [heads*(plain+value), rank] that makes keys and values of latents, and packs
// its two halves: that of the keys turned round, since queries go through it. It is kept as floats, as stored if it is
// stored so and in f32 otherwise.
func (l *loader) expansion(z *latentLayer, module string) job {
	a, n := l.spec.Attention, l.spec.Attention.Latent
	rows := a.Heads * (n.Plain + n.Value)
	item := Item{Kind: ExactItem, Expert: -1, Layer: -1, Names: []string{module}, Rows: rows, Cols: n.Rank}
	item.Sources = func(s *weights.Scratch) ([]canon.Source, error) {
		source, err := l.source(module, rows, n.Rank, s)
		return []canon.Source{source}, err
	}
	return job{item: item, size: int64(rows) * int64(n.Rank), run: func(s *weights.Scratch) error {
		source, err := l.source(module, rows, n.Rank, s)
		if err != nil {
			return err
		}
		switch source.Form {
		case canon.F32, canon.F16, canon.BF16:
		default:
			if source, err = canon.Dequantised(source); err != nil {
				return err
			}
		}
		keys, values := source, source
		keys.Rows, keys.Cols, keys.Codes = a.Heads*n.Rank, n.Plain, make([]byte, 0, len(source.Codes))
		values.Rows, values.Codes = a.Heads*n.Value, make([]byte, 0, len(source.Codes))
		size := source.Form.Bits() / 8
		for head := range a.Heads {
			block := source.Codes[head*(n.Plain+n.Value)*n.Rank*size:]
			for channel := range n.Rank {
				for i := range n.Plain {
					at := (i*n.Rank + channel) * size
					keys.Codes = append(keys.Codes, block[at:at+size]...)
				}
			}
			values.Codes = append(values.Codes, block[n.Plain*n.Rank*size:(n.Plain+n.Value)*n.Rank*size]...)
		}
		if z.keys, err = l.arena.Pack(keys); err != nil {
			return err
		}
		z.values, err = l.arena.Pack(values)
		return err
	}}
}

// latentAttention is what latent attention keeps beside the builder: buffers that all layers share.
type latentAttention struct {
	rope       *canon.Rope
	down       *canon.Buffer // [query], nil without a query latent
	kv, latent *canon.Buffer // [rank+rotary] and its first part
	q          *canon.Buffer // [heads*(plain+rotary)]
	absorbed   *canon.Buffer // [heads*(rank+rotary)]
	attended   *canon.Buffer // [heads*rank]
	values     *canon.Buffer // [heads*value]
	scale      float32
	index      indexBuffers
}

func (b *builder) newLatent() error {
	p, a, n := b.program, b.spec.Attention, b.spec.Attention.Latent
	rope, err := b.arena.NewRope(b.spec.Rope)
	if err != nil {
		return err
	}
	b.mla = latentAttention{
		rope: rope, scale: rope.LatentScale(n.Plain + n.Rotary),
		kv: p.Buffer(n.Rank + n.Rotary), q: p.Buffer(a.Heads * (n.Plain + n.Rotary)), absorbed: p.Buffer(a.Heads * (n.Rank + n.Rotary)),
		attended: p.Buffer(a.Heads * n.Rank), values: p.Buffer(a.Heads * n.Value),
	}
	b.mla.latent = b.mla.kv.Slice(0, n.Rank)
	if n.Query > 0 {
		b.mla.down = p.Buffer(n.Query)
	}
	if n.Index != nil {
		b.newIndexer()
	}
	return nil
}

// latent attends with h as input and leaves the output in branch.
func (b *builder) latent(l int, y *layer) {
	p, a, n, g, z := b.program, b.spec.Attention, b.spec.Attention.Latent, &b.mla, y.latent
	kv := canon.Product{Dst: g.kv, M: z.kv, Bias: z.kvBias}
	if n.Query > 0 {
		p.MatMulN(b.h, canon.Product{Dst: g.down, M: z.down, Bias: z.downBias}, kv)
		p.RMSNorm(g.down, g.down, z.downNorm, n.Eps, false)
		p.MatMul(g.q, g.down, y.q, nil)
	} else {
		p.MatMulN(b.h, canon.Product{Dst: g.q, M: y.q}, kv)
	}
	p.RMSNorm(g.latent, g.latent, z.norm, n.Eps, false)
	p.Rope(g.kv, 1, g.rope, b.spec.Pairing, n.Rank)
	p.KVAppend(b.caches[cacheKV], l, g.kv, nil)
	p.HeadMatMul(g.absorbed, 0, g.q, 0, z.keys, a.Heads)
	p.HeadCopy(g.absorbed, n.Rank, g.q, n.Plain, n.Rotary, a.Heads)
	p.Rope(g.absorbed, a.Heads, g.rope, b.spec.Pairing, n.Rank)
	if z.index != nil {
		b.choose(l, z.index)
	}
	p.Attention(g.attended, g.absorbed, b.caches[cacheKV], l, canon.AttentionSpec{Heads: a.Heads, Scale: g.scale, Values: n.Rank, Kept: g.index.kept})
	p.HeadMatMul(g.values, 0, g.attended, 0, z.values, a.Heads)
	p.MatMul(b.branch, g.values, y.o, y.oBias)
}
