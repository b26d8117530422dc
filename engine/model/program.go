package model

// The forward pass: one canon.Program, built once from a Spec and the packed weights. There is nothing here but the
// skeleton that all of these architectures share (pre-norm attention and feed-forward, two residual adds); what differs is
// read from the Spec.
//
// Bound: a decoded row reads every dense matrix, k experts a layer and the head once, so decode is bound by memory
// (Info.BytesPerToken); prefill is bound by integer products.

import (
	"fmt"

	"covey/engine/canon"
)

// forward is a built program with its results.
type forward struct {
	program *canon.Program
	logits  *canon.Buffer // one row for each of Batch.LogitRows
	choices []*canon.Choice
	scores  []*canon.Buffer // [MoE layers] router logits; one buffer for all layers unless margins are wanted
}

// build lays out the program of a model.
func build(spec *Spec, t *tensors, pool *canon.Pool, arena *canon.Arena, kv *canon.KV, limits canon.Limits, margins bool) (*forward, error) {
	a := spec.Attention
	rope, err := arena.NewRope(spec.Rope)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	p := canon.NewProgram(pool, arena, limits)
	f := &forward{program: p}
	x, h := p.Buffer(spec.Hidden), p.Buffer(spec.Hidden) // residual stream; normed input, then branch output
	branch := p.Buffer(spec.Hidden)
	q, attended := p.Buffer(a.Heads*a.HeadDim), p.Buffer(a.Heads*a.HeadDim)
	k, v := p.Buffer(a.KVHeads*a.HeadDim), p.Buffer(a.KVHeads*a.HeadDim)
	scores := p.Buffer(spec.MoE.Experts)

	p.Label("embedding")
	p.Embed(x, t.embed)
	for l := range t.layers {
		y := &t.layers[l]
		p.Label(fmt.Sprintf("layer %d attention", l))
		p.RMSNorm(h, x, y.attentionNorm, spec.NormEps, false)
		p.MatMulN(h, canon.Product{Dst: q, M: y.q, Bias: y.qBias}, canon.Product{Dst: k, M: y.k, Bias: y.kBias}, canon.Product{Dst: v, M: y.v, Bias: y.vBias})
		switch a.QKNorm {
		case QKNormPerHead:
			p.HeadNorm(q, a.Heads, y.qNorm, spec.NormEps, false)
			p.HeadNorm(k, a.KVHeads, y.kNorm, spec.NormEps, false)
		case QKNormWhole:
			p.RMSNorm(q, q, y.qNorm, spec.NormEps, false)
			p.RMSNorm(k, k, y.kNorm, spec.NormEps, false)
		}
		if a.Clip > 0 {
			for _, b := range []*canon.Buffer{q, k, v} {
				p.Clamp(b, -a.Clip, a.Clip)
			}
		}
		p.Rope(q, a.Heads, rope, spec.Pairing, 0)
		p.Rope(k, a.KVHeads, rope, spec.Pairing, 0)
		p.KVAppend(kv, l, k, v)
		p.Attention(attended, q, kv, l, canon.AttentionSpec{Heads: a.Heads, Scale: a.Scale, Window: a.Window[l]})
		p.MatMul(branch, attended, y.o, y.oBias)
		p.Add(x, branch)

		p.Label(fmt.Sprintf("layer %d feed-forward", l))
		p.RMSNorm(h, x, y.mlpNorm, spec.NormEps, false)
		if spec.Dense[l] {
			p.FFN(branch, h, y.dense)
		} else {
			table, err := arena.NewExpertTable(spec.MoE.Experts)
			if err != nil {
				return nil, fmt.Errorf("model: %w", err)
			}
			for id, record := range y.experts {
				if err := table.Set(id, record); err != nil {
					return nil, fmt.Errorf("model: layer %d: %w", l, err)
				}
			}
			router := spec.MoE.Router
			router.Bias = y.correction
			if margins && len(f.scores) > 0 {
				scores = p.Buffer(spec.MoE.Experts)
			}
			f.scores = append(f.scores, scores)
			p.MatMul(scores, h, y.router, nil)
			choice := p.Router(scores, router)
			f.choices = append(f.choices, choice)
			p.MoE(branch, h, choice, table, y.shared)
		}
		p.Add(x, branch)
	}

	p.Label("head")
	last := p.LogitBuffer(spec.Hidden)
	f.logits = p.LogitBuffer(spec.Vocab)
	p.GatherRows(last, x)
	p.RMSNorm(last, last, t.norm, spec.NormEps, false)
	p.MatMul(f.logits, last, t.head, nil)
	p.CheckFinite(f.logits)
	p.Keep(f.logits)
	if margins {
		p.Keep(f.scores...)
	}
	if err := p.Build(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return f, nil
}
