package model

// The forward pass: one canon.Program, built once from a Spec and the packed weights. Here is the skeleton that the
// architectures share (pre-norm attention and feed-forward, two residual adds) and the feed-forward block; kinds of
// attention have a file each. What differs is read from the Spec.
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
	tables  []*canon.ExpertTable // [MoE layers]
	inputs  []*canon.Buffer      // [MoE layers] what goes into the experts
	scores  []*canon.Buffer      // [MoE layers] router logits; one buffer for all layers unless margins are wanted
	live    [][]*canon.Buffer    // [MoE layers] what is read from a router on
}

// builder lays out a program. Buffers are shared by all layers.
type builder struct {
	forward
	spec       *Spec
	arena      *canon.Arena
	caches     map[cacheName]*canon.KV
	margins    bool
	x          *canon.Buffer // residual stream, [hidden]
	h          *canon.Buffer // normed input of a block, [hidden]
	branch     *canon.Buffer // output of a block, [hidden]
	router     *canon.Buffer // [experts]
	sharedGate *canon.Buffer // [1]; nil = shared experts have no gate
	gqa        groupedQuery
	mla        latentAttention
	compress   compressedAttention
	streams    streams
	delta      deltaBuffers
}

// build lays out the program of a model.
func build(spec *Spec, t *tensors, pool *canon.Pool, arena *canon.Arena, caches map[cacheName]*canon.KV, state *canon.State, limits canon.Limits, margins bool) (*forward, error) {
	p := canon.NewProgram(pool, arena, limits)
	b := &builder{forward: forward{program: p}, spec: spec, arena: arena, caches: caches, margins: margins,
		x: p.Buffer(spec.Hidden), h: p.Buffer(spec.Hidden), branch: p.Buffer(spec.Hidden), router: p.Buffer(spec.MoE.Experts)}
	if spec.MoE.SharedGate {
		b.sharedGate = p.Buffer(1)
	}
	attention, start := b.groupedQuery, b.newGroupedQuery
	switch {
	case spec.Attention.Latent != nil:
		attention, start = b.latent, b.newLatent
	case spec.Attention.Compressed != nil:
		attention, start = b.compressed, b.newCompressed
	}
	if spec.Delta != nil {
		b.newDelta(state)
	}
	if err := start(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}

	p.Label("embedding")
	p.Embed(b.x, t.embed)
	if spec.EmbedScale != 1 {
		p.Scale(b.x, spec.EmbedScale)
	}
	if spec.Streams != nil {
		b.newStreams()
		b.startStreams()
	}
	for l := range t.layers {
		y := &t.layers[l]
		p.Label(fmt.Sprintf("layer %d attention", l))
		b.enter(&y.attentionMixer, y.attentionNorm)
		if spec.Recurrent(l) {
			b.deltaNet(l, y)
		} else {
			attention(l, y)
		}
		b.residual()

		p.Label(fmt.Sprintf("layer %d feed-forward", l))
		b.enter(&y.mlpMixer, y.mlpNorm)
		if err := b.feedForward(l, y); err != nil {
			return nil, fmt.Errorf("model: layer %d: %w", l, err)
		}
		b.residual()
	}

	p.Label("head")
	last := p.LogitBuffer(spec.Hidden)
	b.logits = p.LogitBuffer(spec.Vocab)
	if spec.Streams != nil {
		b.joinLast(last, &t.mixer)
	} else {
		p.GatherRows(last, b.x)
	}
	b.norm(last, last, t.norm)
	p.MatMul(b.logits, last, t.head, t.headBias)
	if spec.LogitDivisor != 1 {
		p.Divide(b.logits, spec.LogitDivisor)
	}
	p.CheckFinite(b.logits)
	p.Keep(b.logits)
	if margins {
		p.Keep(b.scores...)
	}
	if err := p.Build(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return &b.forward, nil
}

// norm is the architecture's norm over the hidden width.
func (b *builder) norm(dst, src *canon.Buffer, n norm) {
	if b.spec.LayerNorm {
		b.program.LayerNorm(dst, src, n.weight, n.bias, b.spec.NormEps)
		return
	}
	b.program.RMSNorm(dst, src, n.weight, b.spec.NormEps, b.spec.NormPlusOne)
}

// enter leaves a block's normed input in h.
func (b *builder) enter(m *mixer, n norm) {
	if b.spec.Streams != nil {
		b.join(m)
	}
	b.norm(b.h, b.x, n)
}

// residual adds branch to the residual stream, or takes it to all of them.
func (b *builder) residual() {
	if b.spec.Streams != nil {
		b.part()
		return
	}
	if b.spec.ResidualScale != 1 {
		b.program.AddScaled(b.x, b.branch, b.spec.ResidualScale)
		return
	}
	b.program.Add(b.x, b.branch)
}

// feedForward leaves the block's output in branch.
func (b *builder) feedForward(l int, y *layer) error {
	p, m := b.program, b.spec.MoE
	if b.spec.Dense[l] {
		p.FFN(b.branch, b.h, y.dense)
		return nil
	}
	table, err := b.arena.NewExpertTable(m.Experts)
	if err != nil {
		return err
	}
	b.tables, b.inputs = append(b.tables, table), append(b.inputs, b.h)
	if y.places != nil {
		table.SetLayout(y.places[0].Layout)
	}
	for id, record := range y.experts {
		if err := table.Set(id, record); err != nil {
			return err
		}
	}
	if b.margins && len(b.scores) > 0 {
		b.router = p.Buffer(m.Experts)
	}
	b.scores = append(b.scores, b.router)
	live := []*canon.Buffer{b.x, b.h, b.router}
	if m.SharedGate {
		live = append(live, b.sharedGate)
	}
	b.live = append(b.live, live)
	p.MatMul(b.router, b.h, y.router, y.routerBias)
	if m.SharedGate {
		p.MatMul(b.sharedGate, b.h, y.sharedGate, nil)
	}
	router := m.Router
	router.Bias, router.Table = y.correction, y.table
	choice := p.Router(b.router, router)
	b.choices = append(b.choices, choice)
	p.FeedForward(b.branch, b.h, canon.FeedForward{Choice: choice, Table: table, Shared: y.shared, SharedGate: b.sharedGate, Activation: m.Activation})
	return nil
}
