package model

import (
	"fmt"

	"covey/engine/canon"
)

// DeltaNet is the geometry of the layers that have a gated delta net in place of attention. They keep a state of fixed size
// for each sequence, which cannot go back: a sequence begins at position 0 or goes on where it is.
type DeltaNet struct {
	KeyHeads, ValueHeads int // each key head serves ValueHeads/KeyHeads consecutive value heads
	KeyDim, ValueDim     int
	Taps                 int    // of the convolution
	Layers               []bool // [layers]
}

// Recurrent says whether layer l has a gated delta net.
func (s *Spec) Recurrent(l int) bool { return s.Delta != nil && s.Delta.Layers[l] }

// shape is what the layers have in common in the form that canon wants.
func (s *Spec) deltaNet() canon.DeltaNet {
	d := s.Delta
	return canon.DeltaNet{KeyHeads: d.KeyHeads, ValueHeads: d.ValueHeads, KeyDim: d.KeyDim, ValueDim: d.ValueDim, Taps: d.Taps, Eps: s.NormEps}
}

// stateFloats is the recurrent state of one sequence over all layers, and its part before layer l.
func (s *Spec) stateFloats(l int) int {
	total := 0
	for i := range l {
		if s.Recurrent(i) {
			shape := s.deltaNet()
			total += shape.Floats()
		}
	}
	return total
}

// attentionPlace is the number of layers before l that keep keys and values.
func (s *Spec) attentionPlace(l int) int {
	n := 0
	for i := range l {
		if !s.Recurrent(i) {
			n++
		}
	}
	return n
}

// deltaLayer holds the weights of one layer of gated delta net.
type deltaLayer struct {
	projections, rates, out  *canon.Matrix
	conv, decay, shift, norm []float32
}

// deltaNet returns the jobs that read the delta net of layer i.
func (l *loader) deltaNet(y *layer, i int) []job {
	d, names, hidden := l.spec.Delta, l.spec.Names.Delta, l.spec.Hidden
	values := d.ValueHeads * d.ValueDim
	channels := 2*d.KeyHeads*d.KeyDim + values
	at := func(pattern string) string { return fmt.Sprintf(pattern, i) }
	x := &deltaLayer{}
	y.delta = x
	return []job{
		l.matrix(&x.projections, at(names.Projections), channels+values, hidden),
		l.matrix(&x.rates, at(names.Rates), 2*d.ValueHeads, hidden),
		l.matrix(&x.out, at(names.Out), hidden, values),
		l.vector(&x.conv, at(names.Conv), channels*d.Taps),
		l.vector(&x.decay, at(names.Decay), d.ValueHeads),
		l.vector(&x.shift, at(names.Shift), d.ValueHeads),
		l.vector(&x.norm, at(names.Norm), d.ValueDim),
	}
}

// deltaBuffers are what all layers of delta net share.
type deltaBuffers struct {
	state                     *canon.State
	projections, rates, mixed *canon.Buffer
}

func (b *builder) newDelta(state *canon.State) {
	p, d := b.program, b.spec.Delta
	values := d.ValueHeads * d.ValueDim
	b.delta = deltaBuffers{state: state, projections: p.Buffer(2*d.KeyHeads*d.KeyDim + 2*values), rates: p.Buffer(2 * d.ValueHeads), mixed: p.Buffer(values)}
}

// deltaNet mixes over positions with h as input and leaves the output in branch.
func (b *builder) deltaNet(l int, y *layer) {
	p, x, g := b.program, y.delta, &b.delta
	shape := b.spec.deltaNet()
	shape.Conv, shape.Decay, shape.Shift, shape.Norm = x.conv, x.decay, x.shift, x.norm
	p.MatMulN(b.h, canon.Product{Dst: g.projections, M: x.projections}, canon.Product{Dst: g.rates, M: x.rates})
	p.DeltaNet(g.mixed, g.projections, g.rates, shape, g.state, b.spec.stateFloats(l))
	p.MatMul(b.branch, g.mixed, x.out, nil)
}
