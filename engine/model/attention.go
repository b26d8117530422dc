package model

import "covey/engine/canon"

// groupedQuery is what grouped-query attention keeps beside the builder: buffers that all layers share.
type groupedQuery struct {
	rope        *canon.Rope
	q, attended *canon.Buffer // [heads*head dim]
	k, v        *canon.Buffer // [key/value heads*head dim]
}

func (b *builder) newGroupedQuery() error {
	p, a := b.program, b.spec.Attention
	rope, err := b.arena.NewRope(b.spec.Rope)
	b.gqa = groupedQuery{
		rope: rope,
		q:    p.Buffer(a.Heads * a.HeadDim), attended: p.Buffer(a.Heads * a.HeadDim),
		k: p.Buffer(a.KVHeads * a.HeadDim), v: p.Buffer(a.KVHeads * a.HeadDim),
	}
	return err
}

// groupedQuery attends with h as input and leaves the output in branch.
func (b *builder) groupedQuery(l int, y *layer) {
	p, a, g := b.program, b.spec.Attention, &b.gqa
	p.MatMulN(b.h, canon.Product{Dst: g.q, M: y.q, Bias: y.qBias}, canon.Product{Dst: g.k, M: y.k, Bias: y.kBias}, canon.Product{Dst: g.v, M: y.v, Bias: y.vBias})
	if !a.NormAfterRope {
		b.normHeads(y)
	}
	if a.Clip > 0 {
		for _, buffer := range []*canon.Buffer{g.q, g.k, g.v} {
			p.Clamp(buffer, -a.Clip, a.Clip)
		}
	}
	p.Rope(g.q, a.Heads, g.rope, b.spec.Pairing, 0)
	p.Rope(g.k, a.KVHeads, g.rope, b.spec.Pairing, 0)
	if a.NormAfterRope {
		b.normHeads(y)
	}
	p.KVAppend(b.kv, l, g.k, g.v)
	p.Attention(g.attended, g.q, b.kv, l, canon.AttentionSpec{Heads: a.Heads, Scale: a.Scale, Window: a.Window[l], Sinks: y.sinks})
	p.MatMul(b.branch, g.attended, y.o, y.oBias)
}

// normHeads normalises queries and keys as the architecture says.
func (b *builder) normHeads(y *layer) {
	p, a, g, eps := b.program, b.spec.Attention, &b.gqa, b.spec.NormEps
	switch a.QKNorm {
	case QKNormPerHead:
		p.HeadNorm(g.q, a.Heads, y.qNorm, eps, false)
		p.HeadNorm(g.k, a.KVHeads, y.kNorm, eps, false)
	case QKNormWhole:
		p.RMSNorm(g.q, g.q, y.qNorm, eps, false)
		p.RMSNorm(g.k, g.k, y.kNorm, eps, false)
	}
}
