//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"covey/engine/canon"
)

// Shapes of real models, wholly in the device's memory. A few experts and layers are made and copied to places of their own for
// all others (Options.Distinct), so a step moves the bytes that a model of this shape would move.
var wholeShapes = []shape{
	{name: "qwen3-30b-a3b", layers: 48, hidden: 2048, inner: 768, heads: 32, kvHeads: 4, dim: 128, rot: 128, headNorm: true, vocab: 151936, router: canon.RouterSpec{Experts: 128, TopK: 8, Normalise: true}, group: 64},
	{name: "olmoe", layers: 16, hidden: 2048, inner: 1024, heads: 16, kvHeads: 16, dim: 128, rot: 128, headNorm: true, vocab: 50304, router: canon.RouterSpec{Experts: 64, TopK: 8}, group: 64},
	{name: "glm-4.5-air", layers: 45, hidden: 4096, inner: 1408, shared: 1408, heads: 96, kvHeads: 8, dim: 128, rot: 64, vocab: 151552, router: canon.RouterSpec{Score: canon.ScoreSigmoid, Experts: 128, TopK: 8, Normalise: true}, group: 64},
	{name: "glm-5.2, 24 layers", layers: 24, hidden: 6144, inner: 2048, shared: 2048, heads: 64, dim: 192, rot: 64, query: 2048, rank: 512, vocab: 154880, router: canon.RouterSpec{Score: canon.ScoreSigmoid, Experts: 256, TopK: 8, Normalise: true, Scale: 2.5}, group: 64},
	{name: "glm-5.2 with its indexer, 16 layers", layers: 16, hidden: 6144, inner: 2048, shared: 2048, heads: 64, dim: 192, rot: 64, query: 2048, indexers: 32, indexDim: 128, kept: 2048, rank: 512, vocab: 154880, router: canon.RouterSpec{Score: canon.ScoreSigmoid, Experts: 256, TopK: 8, Normalise: true, Scale: 2.5}, group: 64},
}

// bytes that a step of one row reads: weights of a layer, and of the head.
func (c shape) bytes() (layer, head float64) {
	code := 0.5 + 2/float64(c.group)
	attention := float64(c.hidden) * float64((c.heads+2*c.kvHeads)*c.dim+c.heads*c.dim) * code
	if c.rank > 0 {
		attention = float64(c.hidden*(c.query+c.rank+c.rot)+c.query*c.heads*(c.dim+c.rot)+c.hidden*c.heads*c.dim)*code + 2*float64(c.heads*c.rank*c.dim)*2
		if c.indexers > 0 {
			attention += 2 * float64(c.indexers*c.indexDim*c.query+(c.indexDim+c.indexers)*c.hidden)
		}
	}
	return attention + 3*float64(c.hidden*(c.router.TopK*c.inner+c.shared))*code + float64(c.router.Experts*c.hidden)*2, float64(c.vocab*c.hidden) * 2
}

// BenchmarkShapes prints the speed of whole shapes: decode of 1, 4, 16 and 64 sequences at 1,000 tokens, prefill of 4,096 in
// one step; by graphs and, unless the run is short, by plain launches.
//
//	COVEY_TEST_DEVICE=1 ./cuda.test -test.run '^$' -test.bench Shapes -test.benchtime 1x [-test.short]
func BenchmarkShapes(b *testing.B) {
	if !realDevice() {
		b.Skip("needs a device")
	}
	for _, c := range wholeShapes {
		b.Run(c.name, func(b *testing.B) {
			c.form, c.scale, c.head, c.routerForm, c.kv, c.stored, c.records = canon.Int4, canon.BF16, canon.BF16, canon.BF16, canon.F16, 1, 8
			probe := 0.0
			g := newRig(b, canon.Limits{Rows: 4096, Sequences: 64, Pages: 64, LogitRows: 64})
			c.build(g)
			if err := g.p.Build(); err != nil {
				b.Fatal(err)
			}
			for _, launches := range []bool{false, true} {
				if launches && testing.Short() {
					break
				}
				device := must(Open(0, Options{Launches: launches, Distinct: true}))
				if probe == 0 {
					probe = must(device.Measure()).Copy
				}
				r := must(device.Load(g.p))
				layer, head := c.bytes()
				bytes := float64(c.layers)*layer + head
				for _, rows := range []int{1, 4, 16, 64} {
					if rows > 1 && c.indexers > 0 {
						break // the plain kernels attend chosen positions then
					}
					t := timeStep(b, r, decodeStep(rows, 1000), 20)
					line := fmt.Sprintf("SHAPE %s, launches %v, %d rows at 1000: %.3f ms, %.0f tok/s", c.name, launches, rows, t*1e3, float64(rows)/t)
					if rows == 1 {
						line += fmt.Sprintf(", %.1f %% of %.0f GB/s, %.2f us a layer beyond its bytes, %.3f ms a layer", bytes/t/probe*100, probe/1e9, (t-bytes/probe)/float64(c.layers)*1e6, t/float64(c.layers)*1e3)
					}
					fmt.Println(line)
				}
				if !launches && c.indexers == 0 {
					t := timeStep(b, r, prefillStep(4096), 1)
					fmt.Printf("SHAPE %s, prefill of 4096: %.1f ms, %.0f tok/s\n", c.name, t*1e3, 4096/t)
				}
				if err := errors.Join(r.Close(), device.Close()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkKernels runs steps of 1, 4, 16, 64 and 4,096 rows of a few layers of a shape, launch by launch, for a profiler to look at:
//
//	COVEY_TEST_DEVICE=1 ncu --metrics gpu__time_duration.sum ./cuda.test -test.run '^$' -test.bench Kernels/qwen3 -test.benchtime 1x
func BenchmarkKernels(b *testing.B) {
	if !realDevice() {
		b.Skip("needs a device")
	}
	for _, c := range wholeShapes {
		b.Run(c.name, func(b *testing.B) {
			c.form, c.scale, c.head, c.routerForm, c.kv, c.stored, c.records, c.layers = canon.Int4, canon.BF16, canon.BF16, canon.BF16, canon.F16, 1, 8, 2
			device := open(b, Options{Launches: true, Distinct: true})
			g := newRig(b, canon.Limits{Rows: 4096, Sequences: 64, Pages: 64, LogitRows: 64})
			c.build(g)
			if err := g.p.Build(); err != nil {
				b.Fatal(err)
			}
			r := must(device.Load(g.p))
			for _, s := range []*canon.Step{decodeStep(1, 1000), decodeStep(4, 1000), decodeStep(16, 1000), decodeStep(64, 1000), prefillStep(4096)} {
				if err := r.Run(s); err != nil {
					b.Fatal(err)
				}
			}
			if err := r.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkChoices prints what it costs a step that its choices of experts come down with it, by one copy behind everything else:
// the same graph with and without that copy, in turn.
//
//	COVEY_TEST_DEVICE=1 ./cuda.test -test.run '^$' -test.bench Choices -test.benchtime 1x
func BenchmarkChoices(b *testing.B) {
	if !realDevice() {
		b.Skip("needs a device")
	}
	c := wholeShapes[0]
	c.form, c.scale, c.head, c.routerForm, c.kv, c.stored, c.records = canon.Int4, canon.BF16, canon.BF16, canon.BF16, canon.F16, 1, 8
	g := newRig(b, canon.Limits{Rows: 128, Sequences: 64, Pages: 64, LogitRows: 64})
	c.build(g)
	if err := g.p.Build(); err != nil {
		b.Fatal(err)
	}
	r := must(open(b, Options{}).Load(g.p)).(*runner)
	for _, rows := range []int{1, 8, 64} {
		s := decodeStep(rows, 1000)
		timeStep(b, r, s, 1)
		bucket, bytes := r.bucket(rows, rows, 4), int64(0)
		with := r.plans[bucket]
		without := *with // its graph goes with the device
		without.graph, without.copies = nil, slices.DeleteFunc(slices.Clone(with.copies), func(t transfer) bool {
			if t.from == r.choices {
				bytes = t.size
			}
			return t.from == r.choices
		})
		var times [2][]float64
		for range 20 {
			for i, p := range []*plan{with, &without} {
				r.plans[bucket] = p
				times[i] = append(times[i], timeStep(b, r, s, 5))
			}
		}
		r.plans[bucket] = with
		for i := range times {
			slices.Sort(times[i])
		}
		fmt.Printf("CHOICES of %d rows, %d bytes: step %.2f us with them, %.2f without\n", rows, bytes, times[0][10]*1e6, times[1][10]*1e6)
	}
	if err := r.Close(); err != nil {
		b.Fatal(err)
	}
}

// decodeStep is one row of each of some sequences at a position.
func decodeStep(rows, position int) *canon.Step {
	s := &canon.Step{}
	for i := range rows {
		s.Tokens, s.Positions, s.Sequence, s.LogitRows = append(s.Tokens, int32(i+16)), append(s.Positions, int32(position)), append(s.Sequence, int32(i)), append(s.LogitRows, int32(i))
		pages := make([]int32, 64)
		for k := range pages {
			pages[k] = int32(i*64 + k)
		}
		s.Pages = append(s.Pages, pages)
	}
	return s
}

// prefillStep is the first rows of a sequence.
func prefillStep(rows int) *canon.Step {
	s := decodeStep(1, 0)
	s.Tokens, s.Positions, s.Sequence, s.LogitRows = nil, nil, nil, []int32{int32(rows - 1)}
	for i := range rows {
		s.Tokens, s.Positions, s.Sequence = append(s.Tokens, int32(i%4080+16)), append(s.Positions, int32(i)), append(s.Sequence, 0)
	}
	return s
}

// timeStep is the median of runs of a step, in seconds, behind two that make its graph.
func timeStep(b *testing.B, r canon.Runner, s *canon.Step, runs int) float64 {
	var times []float64
	for i := range runs + 2 {
		start := time.Now()
		if err := r.Run(s); err != nil {
			b.Fatal(err)
		}
		if i > 1 {
			times = append(times, time.Since(start).Seconds())
		}
	}
	slices.Sort(times)
	return times[len(times)/2]
}
