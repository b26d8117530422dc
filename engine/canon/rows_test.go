package canon

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestNormsEqualTheRule(t *testing.T) {
	families(t, func(t *testing.T, pool *Pool) {
		for _, width := range []int{4, 32, 45, 96, 160, 576, 2880} {
			r := rand.New(rand.NewPCG(4, uint64(width)))
			a := newArena(t)
			x, w := inputs(r, 20, width), normals(r, width, 1)
			p := NewProgram(pool, a, Limits{Rows: 20, Sequences: 1})
			in, y, one, bare, centred := p.Buffer(width), p.Buffer(width), p.Buffer(width), p.Buffer(width), p.Buffer(width)
			bias := normals(r, width, 1)
			p.Embed(in, table(a, x))
			p.RMSNorm(y, in, w, 1e-5, false)
			p.RMSNorm(one, in, w, 1e-6, true)
			p.RMSNorm(bare, in, nil, 1e-6, false)
			p.LayerNorm(centred, in, w, bias, 1e-5)
			p.HeadNorm(in, 2-width%2, w[:width/(2-width%2)], 1e-5, false)
			if err := p.Build(); err != nil {
				t.Fatal(err)
			}
			if err := p.Run(rowsStep(20)); err != nil {
				t.Fatal(err)
			}
			for i := range x {
				sameRow(t, fmt.Sprintf("width %d row %d", width, i), y.Row(i), RuleNorm(x[i], w, 1e-5, false))
				sameRow(t, fmt.Sprintf("width %d row %d plus one", width, i), one.Row(i), RuleNorm(x[i], w, 1e-6, true))
				sameRow(t, fmt.Sprintf("width %d row %d bare", width, i), bare.Row(i), RuleNorm(x[i], nil, 1e-6, false))
				sameRow(t, fmt.Sprintf("width %d row %d centred", width, i), centred.Row(i), RuleLayerNorm(x[i], w, bias, 1e-5))
				n := width / (2 - width%2)
				for h := 0; h < width; h += n {
					sameRow(t, fmt.Sprintf("width %d row %d part at %d", width, i, h), in.Row(i)[h:h+n], RuleNorm(x[i][h:h+n], w[:n], 1e-5, false))
				}
			}
		}
	})
}

func TestElementwiseEqualsTheRule(t *testing.T) {
	families(t, func(t *testing.T, pool *Pool) {
		for _, width := range []int{3, 8, 21, 64} {
			r := rand.New(rand.NewPCG(5, uint64(width)))
			a := newArena(t)
			x, z := inputs(r, 16, width), inputs(r, 16, width)
			for i := range z { // silu over its whole range
				z[i] = normals(r, width, 40)
			}
			p := NewProgram(pool, a, Limits{Rows: 16, Sequences: 1})
			var b [7]*Buffer
			for i := range b {
				b[i] = p.Buffer(width)
				p.Embed(b[i], table(a, x))
			}
			gate := p.Buffer(width)
			p.Embed(gate, table(a, z))
			p.SwiGLU(b[0], gate, b[0])
			p.SwiGLU(b[1], b[1], gate)
			p.Add(b[2], gate)
			p.AddScaled(b[3], gate, 0.22)
			p.Scale(b[4], 12.5)
			p.Clamp(b[5], -0.5, 0.75)
			if err := p.Build(); err != nil {
				t.Fatal(err)
			}
			if err := p.Run(rowsStep(16)); err != nil {
				t.Fatal(err)
			}
			silu := make([]float32, width)
			for i := range x {
				for j := range width {
					x, z := x[i][j], z[i][j]
					RuleElementary(SiLU, silu, []float32{z, x})
					scaled := float32(z * 0.22) // rounded: Go may fuse a product with a sum
					clamped := x
					if x < -0.5 {
						clamped = -0.5
					} else if x > 0.75 {
						clamped = 0.75
					}
					for k, want := range []float32{silu[0] * x, silu[1] * z, x + z, x + scaled, x * 12.5, clamped, x} {
						if got := b[k].Row(i)[j]; !equalBits(got, want) {
							t.Fatalf("operation %d width %d of %x and %x: %x, want %x", k, width, x, z, got, want)
						}
					}
				}
			}
		}
	})
}

func TestRotationEqualsTheRule(t *testing.T) {
	families(t, func(t *testing.T, pool *Pool) {
		for _, c := range []struct{ heads, dim, rot, offset int }{{3, 64, 64, 0}, {2, 16, 8, 0}, {2, 24, 6, 18}, {1, 40, 20, 4}} {
			r := rand.New(rand.NewPCG(6, uint64(c.dim)))
			a := newArena(t)
			rope := must(a.NewRope(RopeSpec{Theta: 1e5, Rot: c.rot}))
			width := c.heads * c.dim
			x := inputs(r, 12, width)
			p := NewProgram(pool, a, Limits{Rows: 12, Sequences: 1})
			half, pairs := p.Buffer(width), p.Buffer(width)
			p.Embed(half, table(a, x))
			p.Embed(pairs, table(a, x))
			p.Rope(half, c.heads, rope, Half, c.offset)
			p.Rope(pairs, c.heads, rope, Pairs, c.offset)
			if err := p.Build(); err != nil {
				t.Fatal(err)
			}
			s := rowsStep(12)
			for i := range s.Positions {
				s.Positions[i] = []int32{0, 1, 2, 77, 8191, 131071, 1000000, 5, 6, 7, 8, 9}[i]
			}
			if err := p.Run(s); err != nil {
				t.Fatal(err)
			}
			for i := range x {
				for _, b := range []struct {
					buf     *Buffer
					pairing Pairing
				}{{half, Half}, {pairs, Pairs}} {
					want := append([]float32(nil), x[i]...)
					for h := range c.heads {
						RuleRotate(want[h*c.dim+c.offset:], rope, b.pairing, int(s.Positions[i]))
					}
					sameRow(t, fmt.Sprintf("%+v pairing %d row %d", c, b.pairing, i), b.buf.Row(i), want)
				}
			}
		}
	})
}
