//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"testing"

	"covey/engine/canon"
)

// Operations that carry something from row to row: indexers, compressed memories, delta nets.

// walk is steps over positions of one sequence in pieces of these lengths.
func (g *rig) walk(pages int, lengths ...int) []*canon.Step {
	var steps []*canon.Step
	at := 0
	for _, n := range lengths {
		steps = append(steps, g.step(at, n, pages))
		at += n
	}
	return steps
}

func TestIndexedAttentionEqualsTheCPU(t *testing.T) {
	for _, c := range []struct {
		form      canon.Form
		most      int
		dim       int
		positions int
	}{{canon.F16, 24, 32, 100}, {canon.F32, 300, 16, 340}, {canon.BF16, 5, 8, 60}} {
		t.Run(fmt.Sprintf("%v/%d", c.form, c.most), func(t *testing.T) {
			const heads, dim, values, indexHeads = 4, 16, 8, 6
			pages := (c.positions + 63) / 64
			g := newRig(t, canon.Limits{Pages: pages})
			q, k, y := g.input(heads*dim, false), g.input(dim, false), g.p.Buffer(heads*values)
			iq, ik, w := g.input(indexHeads*c.dim, false), g.input(c.dim, false), g.input(indexHeads, false)
			for _, b := range []*canon.Buffer{q, k, iq, ik} {
				g.p.Clamp(b, -3, 3)
			}
			kv := must(g.arena.NewKV(canon.KVSpec{Layers: 1, Heads: 1, Dim: dim, Pages: pages, Form: c.form, Single: true}))
			index := must(g.arena.NewKV(canon.KVSpec{Layers: 2, Heads: 1, Dim: c.dim, Pages: pages, Form: c.form, Single: true}))
			kept := g.p.NewSelection(c.most, 1)
			g.p.KVAppend(kv, 0, k, nil)
			g.p.KVAppend(index, 1, ik, nil)
			g.p.Index(kept, iq, w, index, 1)
			g.p.Attention(y, q, kv, 0, canon.AttentionSpec{Heads: heads, Scale: 0.125, Values: values, Kept: kept})
			g.keep(y)
			var steps []*canon.Step
			for at := 0; at+rigRows <= c.positions; at += rigRows {
				steps = append(steps, g.step(at, rigRows, pages))
			}
			at := len(steps) * rigRows
			g.same(append(steps, g.step(at-rigRows, 1, pages), g.step(at-7, 3, pages), g.step(at-1, 1, pages))...)
		})
	}
}

// Equal scores are kept by position; zeros of both signs are equal, infinities have their place, NaN comes last.
func TestIndexersOrderAwkwardScoresAsTheCPU(t *testing.T) {
	inf, minus := float32(math.Inf(1)), float32(math.Copysign(0, -1))
	keys := [][2]float32{{0, inf}, {minus, 0}, {0, 0}, {-1, 0}, {1, 0}, {-inf, 0}, {0x1p-140, 0}, {inf, 0}, {minus, 0}, {0, inf}, {-0x1p-140, 0}}
	for most := 1; most < len(keys); most++ {
		g := newRig(t, canon.Limits{Rows: len(keys), Pages: 1})
		table := func(width int, row func(i int) []float32) *canon.Buffer {
			var v []float32
			for i := range keys {
				v = append(v, append(row(i), make([]float32, width)...)[:width]...)
			}
			b := g.p.Buffer(width)
			g.p.Embed(b, must(g.arena.Pack(canon.Source{Name: "input", Form: canon.F32, Rows: len(keys), Cols: width, Codes: littleEndian(v)})))
			return b
		}
		k := table(8, func(i int) []float32 { return keys[i][:] })
		w := table(4, func(int) []float32 { return []float32{1, -1, 1, -1} })
		iq := table(32, func(int) []float32 {
			q := make([]float32, 32)
			q[0], q[8], q[17], q[25] = 1, -1, 1, 1
			return q
		})
		q := table(8, func(i int) []float32 { return []float32{1, float32(i)} })
		values := table(8, func(i int) []float32 { return []float32{float32(i), float32(i * i), 1} }) // which keys were kept shows in their values
		index := must(g.arena.NewKV(canon.KVSpec{Layers: 1, Heads: 1, Dim: 8, Pages: 1, Form: canon.F32, Single: true}))
		kv := must(g.arena.NewKV(canon.KVSpec{Layers: 1, Heads: 1, Dim: 8, Pages: 1, Form: canon.F32, Single: true}))
		kept, y := g.p.NewSelection(most, 1), g.p.Buffer(8)
		g.p.KVAppend(index, 0, k, nil)
		g.p.KVAppend(kv, 0, values, nil)
		g.p.Index(kept, iq, w, index, 0)
		g.p.Attention(y, q, kv, 0, canon.AttentionSpec{Heads: 1, Scale: 0.01, Kept: kept})
		g.keep(y)
		g.same(g.step(0, len(keys), 1))
	}
}

func TestCompressedMemoriesEqualTheCPU(t *testing.T) {
	for _, c := range []struct {
		name    string
		rate    int
		overlap bool
		most    int
		window  int
		form    canon.Form
	}{{"heavy", 128, false, 0, 40, canon.F16}, {"indexed", 4, true, 7, 24, canon.BF16}, {"all of many", 2, false, 0, 16, canon.F32}} {
		t.Run(c.name, func(t *testing.T) {
			const heads, dim, pages = 4, 16, 5
			series := 1
			if c.overlap {
				series = 2
			}
			g := newRig(t, canon.Limits{Pages: pages})
			single := func(dim, slots int, form canon.Form) *canon.KV {
				return must(g.arena.NewKV(canon.KVSpec{Layers: 2, Heads: 1, Dim: dim, Pages: pages, Form: form, Single: true, Slots: slots}))
			}
			rope := must(g.arena.NewRope(canon.RopeSpec{Theta: 1e4, Rot: 8}))
			compressor := canon.Compressor{Rate: c.rate, Overlap: c.overlap, Places: g.normals(c.rate*series*dim, 1), Norm: g.normals(dim, 1), Eps: 1e-6, Rope: rope}
			kv, memory, state := single(dim, canon.PageTokens, c.form), single(dim, max(canon.PageTokens/c.rate, 1), c.form), single(compressor.Parts()*dim, 1, canon.F32)
			q, k, y := g.input(heads*dim, false), g.input(dim, false), g.p.Buffer(heads*dim)
			values, gates, iq, w := g.input(series*dim, false), g.input(series*dim, false), g.input(2*dim, false), g.input(2, false)
			for _, b := range []*canon.Buffer{q, k, values, gates, iq} {
				g.p.Clamp(b, -3, 3)
			}
			pooled := g.p.Buffer(dim)
			g.p.KVAppend(kv, 1, k, nil)
			g.p.Compress(memory, 1, state, 1, pooled, values, gates, compressor)
			spec := canon.AttentionSpec{Heads: heads, Scale: 0.25, Window: c.window, Sinks: g.normals(heads, 1), Memory: memory, MemoryLayer: 1, Rate: c.rate}
			if c.most > 0 {
				spec.Kept = g.p.NewSelection(c.most, c.rate)
				g.p.Index(spec.Kept, iq, w, memory, 1)
			}
			g.p.Attention(y, q, kv, 1, spec)
			g.keep(y)
			// Each step runs once: a second run would pool its positions twice.
			g.once(g.walk(pages, 20, 1, 1, 19, 20, 3, 1, 20, 20, 20, 20, 1, 20, 20, 20, 1, 20, 20, 20, 1, 1)...)
		})
	}
}

func TestStreamsEqualTheCPU(t *testing.T) {
	for _, m := range []int{2, 4, 8} {
		g := newRig(t, canon.Limits{})
		const width = 48
		x, y, z, zh := g.input(m*width, true), g.input(width, false), g.input((2+m)*m, false), g.input(m, false)
		g.p.Clamp(z, -20, 20)
		mixer := canon.Mixer{Streams: m, Rounds: 20, Base: g.normals((2+m)*m, 1), Scale: []float32{0.5, 2, 1.5}, Eps: 1e-6}
		in, out := g.p.Buffer(width), g.p.Buffer(width)
		g.p.MixIn(in, x, z, mixer)
		g.p.MixHead(out, x, zh, canon.Mixer{Streams: m, Base: g.normals(m, 1), Scale: []float32{0.7}, Eps: 1e-6})
		g.p.MixOut(x, y, z)
		g.keep(in, out, z, x)
		g.same(g.step(0, 1, 0), g.step(0, rigRows, 0))
	}
}

func TestDeltaNetsEqualTheCPU(t *testing.T) {
	for _, c := range []struct{ keyHeads, per, key, value, taps int }{{2, 2, 16, 24, 4}, {1, 3, 40, 8, 2}, {2, 1, 160, 160, 4}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			if !realDevice() && c.key > 100 {
				c.keyHeads = 1 // state beyond shared memory
			}
			heads := c.keyHeads * c.per
			values := heads * c.value
			channels := 2*c.keyHeads*c.key + values
			d := canon.DeltaNet{KeyHeads: c.keyHeads, ValueHeads: heads, KeyDim: c.key, ValueDim: c.value, Taps: c.taps, Eps: 1e-6}
			g := newRig(t, canon.Limits{Sequences: 3})
			d.Conv, d.Decay, d.Shift, d.Norm = g.normals(channels*c.taps, 0.5), g.normals(heads, 1), g.normals(heads, 1), g.normals(c.value, 1)
			x, ba, y, u := g.input(channels+values, false), g.input(2*heads, false), g.p.Buffer(values), g.p.Buffer(values)
			g.p.Clamp(x, -3, 3)
			state := must(g.arena.NewState(3, d.Floats()+5+d.Floats()))
			g.p.DeltaNet(y, x, ba, d, state, 5)
			g.p.DeltaNet(u, x, ba, d, state, 5+d.Floats())
			g.p.Gate(u, y)
			g.keep(y, u)
			// Three sequences whose rows lie among one another, cut anywhere; the second begins anew at the end.
			step := func(states []int32, rows ...[2]int32) *canon.Step { // sequence, position
				s := &canon.Step{Pages: make([][]int32, len(states)), States: states}
				for _, r := range rows {
					s.Tokens, s.Positions, s.Sequence = append(s.Tokens, (r[0]*7+r[1]*3)%rigRows), append(s.Positions, r[1]), append(s.Sequence, r[0])
				}
				return s
			}
			g.once(
				step([]int32{2}, [2]int32{0, 0}, [2]int32{0, 1}, [2]int32{0, 2}, [2]int32{0, 3}, [2]int32{0, 4}, [2]int32{0, 5}),
				step([]int32{2, 0}, [2]int32{1, 0}, [2]int32{0, 6}, [2]int32{1, 1}),
				step([]int32{0, 1, 2}, [2]int32{2, 7}, [2]int32{0, 2}, [2]int32{1, 0}, [2]int32{2, 8}),
				step([]int32{0, 1, 2}, [2]int32{0, 3}, [2]int32{1, 1}, [2]int32{2, 9}),
				step([]int32{1}, [2]int32{0, 2}),
				step([]int32{1}, [2]int32{0, 3}),
				step([]int32{0}, [2]int32{0, 0}, [2]int32{0, 1}, [2]int32{0, 2}),
			)
		})
	}
}

// Long sequences turn by frequencies of their own.
func TestRotationsByLengthEqualTheCPU(t *testing.T) {
	g := newRig(t, canon.Limits{Sequences: 2})
	x := g.input(48, false)
	spec := canon.RopeSpec{Kind: canon.RopeLong, Theta: 1e4, Rot: 8, Factor: 32, Original: 4096, Short: []float64{1, 1.5, 2, 3}, Long: []float64{4, 5, 6, 7}, LongAttention: 1.25}
	g.p.Rope(x, 3, must(g.arena.NewRope(spec)), canon.Half, 4)
	g.p.Rope(x, 3, must(g.arena.NewRope(canon.RopeSpec{Theta: 1e4, Rot: 8})), canon.Half, 0)
	g.keep(x)
	s := g.step(0, 6, 0)
	s.Pages, s.Long = make([][]int32, 2), []bool{false, true}
	s.Sequence[1], s.Sequence[2], s.Sequence[4] = 1, 1, 1
	g.same(s, g.step(0, 3, 0))
}

func TestRouterTablesNameTheExpertsAsOnTheCPU(t *testing.T) {
	g := newRig(t, canon.Limits{})
	const experts, k = 8, 3
	z := g.input(experts, false)
	table := make([]int32, rigRows*k)
	for i := range table {
		table[i] = int32(i * i % experts)
	}
	g.p.Label("router")
	g.choices = append(g.choices, g.p.Router(z, canon.RouterSpec{Score: canon.ScoreSqrtSoftplus, Experts: experts, TopK: k, Table: table, Normalise: true, Scale: 1.5}))
	banned := g.step(0, rigRows, 0)
	ban := g.p.NewBan()
	if err := ban.Add(0, 4); err != nil {
		t.Fatal(err)
	}
	banned.Banned = []*canon.Ban{ban}
	g.same(g.step(0, 1, 0), g.step(0, rigRows, 0), banned)
}
