package model

import (
	"fmt"

	"covey/engine/canon"
)

// groupedQuery returns the jobs that read the attention block of layer i.
func (l *loader) groupedQuery(y *layer, i int) []job {
	a, names, hidden := l.spec.Attention, l.spec.Names, l.spec.Hidden
	q, kv := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	at := func(pattern string) string { return fmt.Sprintf(pattern, i) }
	projected := q
	if a.Gate {
		projected *= 2
	}
	jobs := []job{
		l.matrix(&y.q, at(names.Q), projected, hidden),
		l.matrix(&y.k, at(names.K), kv, hidden),
		l.matrix(&y.v, at(names.V), kv, hidden),
		l.matrix(&y.o, at(names.O), hidden, q),
	}
	if a.QKVBias {
		jobs = append(jobs, l.vector(&y.qBias, at(names.Q)+".bias", projected), l.vector(&y.kBias, at(names.K)+".bias", kv), l.vector(&y.vBias, at(names.V)+".bias", kv))
	}
	if a.OutBias {
		jobs = append(jobs, l.vector(&y.oBias, at(names.O)+".bias", hidden))
	}
	switch a.QKNorm {
	case QKNormPerHead:
		jobs = append(jobs, l.vector(&y.qNorm, at(names.QNorm), a.HeadDim), l.vector(&y.kNorm, at(names.KNorm), a.HeadDim))
	case QKNormWhole:
		jobs = append(jobs, l.vector(&y.qNorm, at(names.QNorm), q), l.vector(&y.kNorm, at(names.KNorm), kv))
	}
	if a.Sinks {
		jobs = append(jobs, l.vector(&y.sinks, at(names.Sinks), a.Heads))
	}
	return jobs
}

// groupedQuery is what grouped-query attention keeps beside the builder: buffers that all layers share.
type groupedQuery struct {
	rope        *canon.Rope
	q, attended *canon.Buffer // [heads*head dim]
	k, v        *canon.Buffer // [key/value heads*head dim]

	both, gate *canon.Buffer // [2*heads*head dim] and [heads*head dim] where outputs are gated
}

func (b *builder) newGroupedQuery() error {
	p, a := b.program, b.spec.Attention
	rope, err := b.arena.NewRope(b.spec.Rope)
	b.gqa = groupedQuery{
		rope: rope,
		q:    p.Buffer(a.Heads * a.HeadDim), attended: p.Buffer(a.Heads * a.HeadDim),
		k: p.Buffer(a.KVHeads * a.HeadDim), v: p.Buffer(a.KVHeads * a.HeadDim),
	}
	if a.Gate {
		b.gqa.both, b.gqa.gate = p.Buffer(2*a.Heads*a.HeadDim), p.Buffer(a.Heads*a.HeadDim)
	}
	return err
}

// groupedQuery attends with h as input and leaves the output in branch.
func (b *builder) groupedQuery(l int, y *layer) {
	p, a, g := b.program, b.spec.Attention, &b.gqa
	query := g.q
	if a.Gate {
		query = g.both
	}
	p.MatMulN(b.h, canon.Product{Dst: query, M: y.q, Bias: y.qBias}, canon.Product{Dst: g.k, M: y.k, Bias: y.kBias}, canon.Product{Dst: g.v, M: y.v, Bias: y.vBias})
	if a.Gate {
		p.HeadCopy(g.q, 0, g.both, 0, a.HeadDim, a.Heads)
		p.HeadCopy(g.gate, 0, g.both, a.HeadDim, a.HeadDim, a.Heads)
	}
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
	place := b.spec.attentionPlace(l)
	p.KVAppend(b.caches[cacheKV], place, g.k, g.v)
	p.Attention(g.attended, g.q, b.caches[cacheKV], place, canon.AttentionSpec{Heads: a.Heads, Scale: a.Scale, Window: a.Window[l], Sinks: y.sinks})
	if a.Gate {
		p.Gate(g.attended, g.gate)
	}
	p.MatMul(b.branch, g.attended, y.o, y.oBias)
}

// normHeads normalises queries and keys as the architecture says.
func (b *builder) normHeads(y *layer) {
	p, a, g, eps, plusOne := b.program, b.spec.Attention, &b.gqa, b.spec.NormEps, b.spec.NormPlusOne
	switch a.QKNorm {
	case QKNormPerHead:
		p.HeadNorm(g.q, a.Heads, y.qNorm, eps, plusOne)
		p.HeadNorm(g.k, a.KVHeads, y.kNorm, eps, plusOne)
	case QKNormWhole:
		p.RMSNorm(g.q, g.q, y.qNorm, eps, plusOne)
		p.RMSNorm(g.k, g.k, y.kNorm, eps, plusOne)
	}
}
