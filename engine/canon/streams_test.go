package canon

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// compressed is a sequence whose windows are pooled into entries that its rows attend behind a window of positions.
type compressed struct {
	dim, heads, rate, window, most int
	overlap                        bool
	form                           Form
}

// entriesOf pools values and gates of all windows that are complete, by the formulas: a softmax over time, norm, rotation.
func (c compressed) entriesOf(values, gates, places [][]float32, norm []float32, rope *Rope) [][]float32 {
	var out [][]float32
	for w := 0; (w+1)*c.rate <= len(values); w++ {
		var g, p, v [][]float32
		add := func(window, series int) {
			for i := range c.rate {
				t := window*c.rate + i
				g, p, v = append(g, gates[t][series*c.dim:][:c.dim]), append(p, places[i][series*c.dim:][:c.dim]), append(v, values[t][series*c.dim:][:c.dim])
			}
		}
		if c.overlap && w > 0 {
			add(w-1, 0)
		}
		add(w, map[bool]int{false: 0, true: 1}[c.overlap])
		e := RuleNorm(RulePool(g, p, v), norm, 1e-6, false)
		RuleRotate(e[c.dim-rope.spec.Rot:], rope, Pairs, w*c.rate)
		for i, x := range e {
			e[i] = RuleStore(c.form, x)
		}
		out = append(out, e)
	}
	return out
}

// Entries equal the rule whatever the chunks, and a row attends the positions of its window, then the visible entries (all
// of them, or those that the indexer keeps) in blocks of their own, then the sink; a window that ends at the row counts.
func TestCompressedAttentionEqualsTheRule(t *testing.T) {
	const positions = 400
	for _, c := range []compressed{
		{dim: 24, heads: 3, rate: 8, window: 20, form: F32},
		{dim: 16, heads: 5, rate: 1, window: 3, form: F16},
		{dim: 16, heads: 2, rate: 128, window: 150, form: BF16},
		{dim: 40, heads: 2, rate: 4, window: 8, overlap: true, form: F16},
		{dim: 72, heads: 4, rate: 4, window: 300, overlap: true, most: 30, form: F32},
	} {
		r := rand.New(rand.NewPCG(41, uint64(c.dim*c.rate)))
		series, places, norm := 1, [][]float32(nil), normals(r, c.dim, 1)
		if c.overlap {
			series = 2
		}
		var flat []float32
		for range c.rate {
			places = append(places, normals(r, series*c.dim, 1))
			flat = append(flat, places[len(places)-1]...)
		}
		var q, k, values, gates, iq, w [][]float32
		for range positions {
			q, k = append(q, normals(r, c.heads*c.dim, 1)), append(k, normals(r, c.dim, 1))
			values, gates = append(values, normals(r, series*c.dim, 1)), append(gates, normals(r, series*c.dim, 2))
			iq, w = append(iq, normals(r, 2*c.dim, 1)), append(w, normals(r, 2, 1))
		}
		sinks := normals(r, c.heads, 1)
		rope := must(newArena(t).NewRope(RopeSpec{Theta: 1e4, Rot: 8}))
		entries := c.entriesOf(values, gates, places, norm, rope)
		want := map[int][]float32{}
		for pos := range positions {
			if pos%c.rate != c.rate-1 && pos%17 != 0 && pos < positions-2 || pos > 40 && pos < 380 && pos%29 != 0 {
				continue
			}
			visible := entries[:(pos+1)/c.rate]
			if c.most > 0 {
				var kept [][]float32
				for _, id := range best(RuleIndex(iq[pos], w[pos], slices.Concat(visible...)), c.most) {
					kept = append(kept, visible[id])
				}
				visible = kept
			}
			lo := max(0, pos-c.window+1)
			var keys []float32 // from the first block that is attended
			for u := lo / 256 * 256; u <= pos; u++ {
				for _, x := range k[u] {
					keys = append(keys, RuleStore(c.form, x))
				}
			}
			for h := range c.heads {
				want[pos] = append(want[pos], RuleMemory(q[pos][h*c.dim:(h+1)*c.dim], keys, lo%256, slices.Concat(visible...), 0.25, &sinks[h])...)
			}
		}
		families(t, func(t *testing.T, pool *Pool) {
			for _, chunk := range []int{1, 17, 256} {
				if chunk != 17 && pool.ISA() == Portable {
					continue
				}
				a := newArena(t)
				const pages = 7
				single := func(dim, slots int, form Form) *KV {
					return must(a.NewKV(KVSpec{Layers: 2, Heads: 1, Dim: dim, Pages: pages, Form: form, Single: true, Slots: slots}))
				}
				compressor := Compressor{Rate: c.rate, Overlap: c.overlap, Places: flat, Norm: norm, Eps: 1e-6, Rope: rope}
				kv, memory, state := single(c.dim, 64, c.form), single(c.dim, max(64/c.rate, 1), c.form), single(compressor.Parts()*c.dim, 1, F32)
				p := NewProgram(pool, a, Limits{Rows: chunk, Sequences: 1, Pages: pages})
				bq, bk, o, bv, bg := p.Buffer(c.heads*c.dim), p.Buffer(c.dim), p.Buffer(c.heads*c.dim), p.Buffer(series*c.dim), p.Buffer(series*c.dim)
				biq, bw := p.Buffer(2*c.dim), p.Buffer(2)
				for _, x := range []struct {
					b    *Buffer
					rows [][]float32
				}{{bq, q}, {bk, k}, {bv, values}, {bg, gates}, {biq, iq}, {bw, w}} {
					p.Embed(x.b, table(a, x.rows))
				}
				p.KVAppend(kv, 1, bk, nil)
				p.Compress(memory, 1, state, 1, p.Buffer(c.dim), bv, bg, compressor)
				spec := AttentionSpec{Heads: c.heads, Scale: 0.25, Window: c.window, Sinks: sinks, Memory: memory, MemoryLayer: 1, Rate: c.rate}
				if c.most > 0 {
					spec.Kept = p.NewSelection(c.most, c.rate)
					p.Index(spec.Kept, biq, bw, memory, 1)
				}
				p.Attention(o, bq, kv, 1, spec)
				if err := p.Build(); err != nil {
					t.Fatal(err)
				}
				for at := 0; at < positions; at += chunk {
					s := rowsStep(min(chunk, positions-at))
					s.Pages = [][]int32{{2, 0, 4, 1, 3, 6, 5}}
					for i := range s.Tokens {
						s.Tokens[i], s.Positions[i] = int32(at+i), int32(at+i)
					}
					if err := p.Run(s); err != nil {
						t.Fatal(err)
					}
					for i := range s.Tokens {
						if res, ok := want[at+i]; ok {
							sameRow(t, fmt.Sprintf("%+v chunk %d position %d", c, chunk, at+i), o.Row(i), res)
						}
					}
				}
			}
		})
	}
}

// Turning back undoes a rotation, up to rounding: it is the rotation by the opposite angle.
func TestRopeBackTurnsByTheOppositeAngle(t *testing.T) {
	families(t, func(t *testing.T, pool *Pool) {
		a := newArena(t)
		x := inputs(rand.New(rand.NewPCG(42, 42)), 12, 40)
		rope := must(a.NewRope(RopeSpec{Theta: 1e4, Rot: 8}))
		p := NewProgram(pool, a, Limits{Rows: 12, Sequences: 1})
		b := p.Buffer(40)
		p.Embed(b, table(a, x))
		p.RopeBack(b, 2, rope, Pairs, 12)
		if err := p.Build(); err != nil {
			t.Fatal(err)
		}
		if err := p.Run(rowsStep(12)); err != nil {
			t.Fatal(err)
		}
		for i, row := range x {
			want := slices.Clone(row)
			for h := range 2 {
				RuleRotate(want[h*20+12:h*20+20], rope, Pairs, -i)
			}
			sameRow(t, fmt.Sprint("row ", i), b.Row(i), want)
		}
	})
}

// The streams meet a block by the formulas: joined by the first m weights, the output to stream j by weight m+j, and the
// mixing matrix's first index being the source.
func TestStreamsMixByTheFormulas(t *testing.T) {
	const m, width = 3, 20
	families(t, func(t *testing.T, pool *Pool) {
		r := rand.New(rand.NewPCG(43, 43))
		a := newArena(t)
		x, y, z := inputs(r, 11, m*width), inputs(r, 11, width), [][]float32(nil)
		for range 11 {
			z = append(z, normals(r, (2+m)*m, 1))
		}
		mixer := Mixer{Streams: m, Rounds: 4, Base: normals(r, (2+m)*m, 1), Scale: []float32{0.5, 2, 1.5}, Eps: 1e-6}
		head := Mixer{Streams: m, Base: normals(r, m, 1), Scale: []float32{0.7}, Eps: 1e-6}
		p := NewProgram(pool, a, Limits{Rows: 11, Sequences: 1})
		bx, by, bz, bh, in, out := p.Buffer(m*width), p.Buffer(width), p.Buffer((2+m)*m), p.Buffer((2+m)*m), p.Buffer(width), p.Buffer(width)
		p.Embed(bx, table(a, x))
		p.Embed(by, table(a, y))
		p.Embed(bz, table(a, z))
		p.Embed(bh, table(a, z))
		p.MixIn(in, bx, bz, mixer)
		p.MixHead(out, bx, bh.Slice(0, m), head)
		p.MixOut(bx, by, bz)
		if err := p.Build(); err != nil {
			t.Fatal(err)
		}
		if err := p.Run(rowsStep(11)); err != nil {
			t.Fatal(err)
		}
		for i := range x {
			w, last := RuleMix(z[i], mixer, false), RuleMix(z[i][:m], head, true)
			joined, end, mixed := make([]float32, width), make([]float32, width), make([]float32, m*width)
			for c := range width {
				for s := range m {
					joined[c] = RuleFMA(w[s], x[i][s*width+c], joined[c], true)
					end[c] = RuleFMA(last[s], x[i][s*width+c], end[c], true)
				}
				for j := range m {
					mixed[j*width+c] = y[i][c] * w[m+j]
					for s := range m {
						mixed[j*width+c] = RuleFMA(w[2*m+s*m+j], x[i][s*width+c], mixed[j*width+c], true)
					}
				}
			}
			sameRow(t, fmt.Sprint("joined ", i), in.Row(i), joined)
			sameRow(t, fmt.Sprint("joined at the end ", i), out.Row(i), end)
			sameRow(t, fmt.Sprint("mixed ", i), bx.Row(i), mixed)
		}
	})
}

// Balancing takes the given number of rounds: one divides columns only, each further one rows and then columns. The values
// are those of the formulas in float64.
func TestMixingMatrixIsBalancedInRounds(t *testing.T) {
	const m, eps = 2, 1e-6
	z := []float32{0.3, -0.2, 0.5, 0.1, 1.5, -0.5, 0.25, 2}
	base := []float32{0.1, 0, -0.3, 0.2, 0, 0.4, -1, 0.5}
	scale := []float32{2, 0.5, 1.25}
	for _, rounds := range []int{1, 2, 20} {
		sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
		var want [8]float64
		for i := range m {
			want[i] = sigmoid(float64(z[i])*float64(scale[0])+float64(base[i])) + eps
			want[m+i] = 2 * sigmoid(float64(z[m+i])*float64(scale[1])+float64(base[m+i]))
		}
		c := want[2*m:]
		for i := range m {
			sum := 0.0
			for j := range m {
				c[i*m+j] = math.Exp(float64(z[2*m+i*m+j])*float64(scale[2]) + float64(base[2*m+i*m+j]))
				sum += c[i*m+j]
			}
			for j := range m {
				c[i*m+j] = c[i*m+j]/sum + eps
			}
		}
		for round := range rounds {
			for i := 0; i < m && round > 0; i++ {
				sum := c[i*m] + c[i*m+1] + eps
				c[i*m], c[i*m+1] = c[i*m]/sum, c[i*m+1]/sum
			}
			for j := range m {
				sum := c[j] + c[m+j] + eps
				c[j], c[m+j] = c[j]/sum, c[m+j]/sum
			}
		}
		got := RuleMix(z, Mixer{Streams: m, Rounds: rounds, Base: base, Scale: scale, Eps: eps}, false)
		for i := range want {
			if math.Abs(float64(got[i])-want[i]) > 1e-6 {
				t.Errorf("%d rounds: weight %d is %v, want %v", rounds, i, got[i], want[i])
			}
		}
	}
}

// A table names the experts of a token, in its order and twice if it says so; their weights are their scores, normalised.
func TestRouterTableNamesTheExpertsOfAToken(t *testing.T) {
	families(t, func(t *testing.T, pool *Pool) {
		a := newArena(t)
		logits := [][]float32{{1, 2, 3, 4}, {4, 3, 2, 1}}
		p := NewProgram(pool, a, Limits{Rows: 2, Sequences: 1})
		b := p.Buffer(4)
		p.Embed(b, table(a, logits))
		fixed := p.Router(b, RouterSpec{Score: ScoreSigmoid, Experts: 4, TopK: 3, Normalise: true, Scale: 1.5, Table: []int32{2, 0, 2, 1, 3, 0}})
		if err := p.Build(); err != nil {
			t.Fatal(err)
		}
		if err := p.Run(rowsStep(2)); err != nil {
			t.Fatal(err)
		}
		for i, want := range [][]int32{{2, 0, 2}, {1, 3, 0}} {
			scores, sum := make([]float32, 3), float32(0)
			for n, id := range want {
				RuleElementary(Sigmoid, scores[n:n+1], logits[i][id:id+1])
				sum += scores[n]
			}
			for n := range scores {
				scores[n] = scores[n] / sum * 1.5
			}
			if !slices.Equal(fixed.IDs(i), want) {
				t.Errorf("token %d goes to %v, want %v", i, fixed.IDs(i), want)
			}
			sameRow(t, fmt.Sprint("weights ", i), fixed.Weights(i), scores)
		}
		other := NewProgram(pool, a, Limits{Rows: 2, Sequences: 1})
		c := other.Buffer(4)
		other.Embed(c, table(a, logits))
		other.Router(c, RouterSpec{Score: ScoreSigmoid, Experts: 4, TopK: 1, Table: []int32{4, 0}})
		if err := other.Build(); err == nil {
			t.Error("a table that names an expert too many was accepted")
		}
	})
}
