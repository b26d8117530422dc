package canon

/*
#include "engine.h"
*/
import "C"

// Selection is what an indexer kept for each row of a step: numbers of vectors, ascending. Layers may share one, each use
// seeing what the latest Index wrote.
type Selection struct {
	ids  []int32 // [rows, most]
	most int
	rate int
}

// NewSelection returns room for at most most vectors a row of a cache that has one for each rate positions.
func (p *Program) NewSelection(most, rate int) *Selection {
	s := &Selection{most: most, rate: rate}
	if most <= 0 || most > 1<<20 || rate <= 0 || 64%rate != 0 && rate%64 != 0 {
		p.fail("selection of %d vectors, one for %d positions", most, rate)
	}
	if p.err == nil {
		s.ids, p.err = p.arena.Int32s(p.lim.Rows * most)
	}
	return s
}

// Row returns what was kept for step row i at a position: numbers of vectors, ascending. Valid until the next step.
func (s *Selection) Row(i, position int) []int32 {
	n := min(s.most, (position+1)/s.rate)
	return s.ids[i*s.most : i*s.most+n : i*s.most+n]
}

// Index keeps for each row the visible vectors of one layer of kv with the best scores (rule 8's order), as many as the
// selection takes: the score of a key is the sum over heads of weights[h] * heads^-0.5 times max(0, q[h] . key * dim^-0.5).
// q is [heads*dim], weights [heads]; visible are the vectors whose last position is not after the row's.
func (p *Program) Index(s *Selection, q, weights *Buffer, kv *KV, layer int) {
	if !p.same(q, weights) {
		return
	}
	heads := weights.Width()
	if q.Width() != heads*kv.spec.Dim || kv.spec.Heads != 1 || !kv.spec.Single || kv.spec.Slots != max(PageTokens/s.rate, 1) || layer < 0 || layer >= kv.spec.Layers || q.c.logits != 0 {
		p.fail("indexer of %d heads, width %d, over layer %d of %d, keys of %d, %d a page", heads, q.Width(), layer, kv.spec.Layers, kv.spec.Dim, kv.spec.Slots)
		return
	}
	op := C.canon_op{kind: C.CANON_OP_INDEX, src: q.c, src2: weights.c, kv: kv.c, ids: (*C.int32_t)(&s.ids[0])}
	for i, v := range []int{layer, heads, s.most, s.rate} {
		op.i[i] = C.int32_t(v)
	}
	op.f[0], op.f[1] = C.canon_attention_scale(C.int32_t(kv.spec.Dim)), C.canon_attention_scale(C.int32_t(heads))
	p.add(op)
}

// RuleIndex is the indexer's rule for one query: scores of keys [n, dim].
func RuleIndex(q, weights, keys []float32) []float32 {
	dim := len(q) / len(weights)
	scores := make([]float32, len(keys)/dim)
	C.canon_rule_index(floats(q), floats(weights), C.int32_t(len(weights)), floats(keys), C.int32_t(len(scores)), C.int32_t(dim),
		C.canon_attention_scale(C.int32_t(dim)), C.canon_attention_scale(C.int32_t(len(weights))), floats(scores))
	return scores
}
