package model

// Residual streams in place of one: a block's input is a weighted sum of them, its output goes to each, and they mix, all by
// weights computed from the streams themselves.

import (
	"fmt"

	"covey/engine/canon"
)

// Streams is the geometry of the residual streams.
type Streams struct {
	Count  int
	Rounds int // of balancing the mixing matrix
	Eps    float32
}

// mixer holds the weights that make a block's stream weights.
type mixer struct {
	fn          *canon.Matrix // [(2+count)*count, count*hidden], at the end of the model [count, count*hidden]
	base, scale []float32
}

// mixer returns the jobs that read a mixer of so many weights, under names that begin with prefix.
func (l *loader) mixer(to *mixer, prefix string, weights, scales int) []job {
	return []job{
		l.bare(&to.fn, prefix+"fn", weights, l.spec.Streams.Count*l.spec.Hidden),
		l.vector(&to.base, prefix+"base", weights),
		l.vector(&to.scale, prefix+"scale", scales),
	}
}

// streams is what residual streams keep beside the builder.
type streams struct {
	x, normed *canon.Buffer // [count*hidden]
	weights   *canon.Buffer // [(2+count)*count]
}

func (b *builder) newStreams() {
	n := b.spec.Streams.Count
	b.streams = streams{x: b.program.Buffer(n * b.spec.Hidden), normed: b.program.Buffer(n * b.spec.Hidden), weights: b.program.Buffer((2 + n) * n)}
}

// startStreams makes every stream the embedding.
func (b *builder) startStreams() {
	for i := range b.spec.Streams.Count {
		b.program.HeadCopy(b.streams.x.Slice(i*b.spec.Hidden, b.spec.Hidden), 0, b.x, 0, b.spec.Hidden, 1)
	}
}

// join leaves in x the streams joined for a block.
func (b *builder) join(m *mixer) {
	p, s := b.program, b.spec.Streams
	p.RMSNorm(b.streams.normed, b.streams.x, nil, b.spec.NormEps, false)
	p.MatMul(b.streams.weights, b.streams.normed, m.fn, nil)
	p.MixIn(b.x, b.streams.x, b.streams.weights, canon.Mixer{Streams: s.Count, Rounds: s.Rounds, Base: m.base, Scale: m.scale, Eps: s.Eps})
}

// part takes branch to the streams.
func (b *builder) part() { b.program.MixOut(b.streams.x, b.branch, b.streams.weights) }

// joinLast gathers the streams of the rows whose logits are wanted and joins them in last.
func (b *builder) joinLast(last *canon.Buffer, m *mixer) {
	p, s := b.program, b.spec.Streams
	x, normed, weights := p.LogitBuffer(s.Count*b.spec.Hidden), p.LogitBuffer(s.Count*b.spec.Hidden), p.LogitBuffer(s.Count)
	p.GatherRows(x, b.streams.x)
	p.RMSNorm(normed, x, nil, b.spec.NormEps, false)
	p.MatMul(weights, normed, m.fn, nil)
	p.MixHead(last, x, weights, canon.Mixer{Streams: s.Count, Base: m.base, Scale: m.scale, Eps: s.Eps})
}

// stream names a layer's tensors of the mixer before a block.
func (n Names) stream(layer int, block string) string {
	return fmt.Sprintf("%slayers.%d.hc_%s_", n.Root, layer, block)
}
