package canon

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// Each head has a matrix of its own, reads its own channels and writes its own, and leaves the other channels alone.
func TestHeadProductEqualsTheRule(t *testing.T) {
	const heads, out, in, to, from, rows = 3, 20, 40, 24, 56, 5
	families(t, func(t *testing.T, pool *Pool) {
		for _, form := range []Form{F32, F16, BF16} {
			r := rand.New(rand.NewPCG(21, uint64(form)))
			a := newArena(t)
			source := weight(r, form, heads*out, in, 0, F32)
			x := inputs(r, rows, heads*from)
			p := NewProgram(pool, a, Limits{Rows: rows, Sequences: 1})
			src, dst := p.Buffer(heads*from), p.Buffer(heads*to)
			p.Embed(src, table(a, x))
			p.HeadMatMul(dst, 3, src, 9, must(a.Pack(source)), heads)
			p.HeadCopy(dst, 1, src, 50, 2, heads)
			if err := p.Build(); err != nil {
				t.Fatal(err)
			}
			if err := p.Run(rowsStep(rows)); err != nil {
				t.Fatal(err)
			}
			for i := range rows {
				want := make([]float32, heads*to)
				for h := range heads {
					for o := range out {
						want[h*to+3+o] = must(RuleProduct(source, h*out+o, x[i][h*from+9:][:in]))
					}
					copy(want[h*to+1:], x[i][h*from+50:][:2])
				}
				sameRow(t, fmt.Sprintf("%v row %d", form, i), dst.Row(i), want)
			}
		}
	})
}

// A slice is the same memory: a norm of some channels leaves the others alone, and a product does not run beside one that
// writes what it reads.
func TestSlicesShareMemory(t *testing.T) {
	pool := must(NewPool(2, Portable))
	defer pool.Close()
	a := newArena(t)
	p := NewProgram(pool, a, Limits{Rows: 1, Sequences: 1})
	x, y, z := p.Buffer(3), p.Buffer(4), p.Buffer(1)
	p.Embed(x, table(a, [][]float32{{3, 4, 7}}))
	p.RMSNorm(x.Slice(0, 2), x.Slice(0, 2), nil, 0, false)
	p.MatMul(y.Slice(1, 2), x, table(a, [][]float32{{0, 0, 1}, {0, 0, 2}}), nil)
	p.MatMul(z, y, table(a, [][]float32{{1, 1, 1, 1}}), nil)
	if err := p.Build(); err != nil {
		t.Fatal(err)
	}
	if err := p.Run(rowsStep(1)); err != nil {
		t.Fatal(err)
	}
	sameRow(t, "normed", x.Row(0), append(RuleNorm([]float32{3, 4}, nil, 0, false), 7))
	sameRow(t, "product into a slice", y.Row(0), []float32{0, 7, 14, 0})
	sameRow(t, "product of the whole", z.Row(0), []float32{21})
}

// Latent attention: one vector a position is the key of all heads, its leading channels are their value.
func TestLatentAttentionEqualsTheRule(t *testing.T) {
	const positions = 600
	for _, c := range []struct {
		heads, dim, values int
		form               Form
	}{{4, 40, 32, F32}, {8, 24, 16, F16}, {9, 40, 32, BF16}, {2, 32, 32, F16}} {
		r := rand.New(rand.NewPCG(22, uint64(c.dim)))
		var q, k [][]float32
		var keys, values []float32
		for range positions {
			q, k = append(q, normals(r, c.heads*c.dim, 1.5)), append(k, normals(r, c.dim, 1.5))
		}
		want := map[int][]float32{}
		for pos := range positions {
			for d, x := range k[pos] {
				keys = append(keys, RuleStore(c.form, x))
				if d < c.values {
					values = append(values, RuleStore(c.form, x))
				}
			}
			if pos%97 == 0 || pos%256 == 255 || pos == positions-1 {
				for h := range c.heads {
					want[pos] = append(want[pos], RuleAttention(q[pos][h*c.dim:(h+1)*c.dim], keys, values, 0, 0.125, nil)...)
				}
			}
		}
		families(t, func(t *testing.T, pool *Pool) {
			for _, chunk := range []int{1, 17, 256} {
				if chunk != 17 && pool.ISA() == Portable {
					continue
				}
				a := newArena(t)
				kv := must(a.NewKV(KVSpec{Layers: 2, Heads: 1, Dim: c.dim, Pages: 10, Form: c.form, Single: true}))
				p := NewProgram(pool, a, Limits{Rows: chunk, Sequences: 1, Pages: 10})
				in, key, o := p.Buffer(c.heads*c.dim), p.Buffer(c.dim), p.Buffer(c.heads*c.values)
				p.Embed(in, table(a, q))
				p.Embed(key, table(a, k))
				p.KVAppend(kv, 1, key, nil)
				p.Attention(o, in, kv, 1, AttentionSpec{Heads: c.heads, Scale: 0.125, Values: c.values})
				if err := p.Build(); err != nil {
					t.Fatal(err)
				}
				for at := 0; at < positions; at += chunk {
					s := rowsStep(min(chunk, positions-at))
					s.Pages = [][]int32{{7, 2, 9, 0, 4, 1, 8, 3, 6, 5}}
					for i := range s.Tokens {
						s.Tokens[i], s.Positions[i] = int32(at+i), int32(at+i)
					}
					if err := p.Run(s); err != nil {
						t.Fatal(err)
					}
					for i := range s.Tokens {
						if w := want[at+i]; w != nil {
							sameRow(t, fmt.Sprintf("%+v chunk %d position %d", c, chunk, at+i), o.Row(i), w)
						}
					}
				}
			}
		})
	}
}

// With yarn and mscale_all_dim the factor 0.1 ln(40) + 1, squared, sits on the scores; without it only dim^-0.5 does.
func TestLatentScaleCarriesYarnsFactor(t *testing.T) {
	a := newArena(t)
	yarn := RopeSpec{Kind: RopeYarn, Theta: 1e4, Rot: 8, Factor: 40, Original: 4096, MScale: 1, MScaleAll: 1}
	plain := yarn
	plain.MScaleAll = 0
	m := 0.1*math.Log(40) + 1
	for _, c := range []struct {
		spec   RopeSpec
		want   float64
		factor float64
	}{{yarn, m * m / math.Sqrt(192), 1}, {plain, 1 / math.Sqrt(192), m}, {RopeSpec{Theta: 1e4, Rot: 8, MScaleAll: 1}, 1 / math.Sqrt(192), 1}} {
		r := must(a.NewRope(c.spec))
		if got := r.LatentScale(192); got != float32(c.want) || math.Abs(r.AttentionFactor(false)-c.factor) > 1e-12 {
			t.Errorf("%+v: scale %v, want %v; factor on the rotation %v, want %v", c.spec, got, c.want, r.AttentionFactor(false), c.factor)
		}
	}
}
