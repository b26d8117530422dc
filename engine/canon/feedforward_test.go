package canon

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// The activation of gpt_oss and deepseek_v4 clamps what a checkpoint may never reach: the gate from above, up on both sides.
func TestActivationsClampAtTheirLimit(t *testing.T) {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for _, test := range []struct {
		activation     Activation
		gate, up, want float64
	}{
		{Activation{SwiGLU, 0}, 9, -8, 9 * sigmoid(9) * -8},
		{Activation{SwiGLULimited, 7}, 9, -8, 7 * sigmoid(7) * -7},
		{Activation{SwiGLULimited, 7}, -9, 8, -9 * sigmoid(-9) * 7},
		{Activation{SwiGLUOss, 7}, 9, 8, 7 * sigmoid(1.702*7) * (7 + 1)},
		{Activation{SwiGLUOss, 7}, -9, -8, -9 * sigmoid(1.702*-9) * (-7 + 1)},
		{Activation{SwiGLUOss, 7}, 2, 0, 2 * sigmoid(1.702*2)},
	} {
		got := RuleGated(test.activation, []float32{float32(test.gate)}, []float32{float32(test.up)})[0]
		if math.Abs(float64(got)-test.want) > 1e-6*math.Abs(test.want) {
			t.Errorf("%+v of %v and %v is %v, want %v", test.activation, test.gate, test.up, got, test.want)
		}
	}
}

// biased gives a block's matrices biases.
func (b block) biased(r *rand.Rand) block {
	for _, s := range []*Source{&b.gate, &b.up, &b.down} {
		s.Bias = normals(r, s.Rows, 3)
	}
	return b
}

// with is the block by the scalar rules, biases and activation included.
func (b block) with(x []float32, a Activation) []float32 {
	times := func(s Source, x []float32) []float32 {
		y := make([]float32, s.Rows)
		for o := range y {
			y[o] = must(RuleProduct(s, o, x))
			if s.Bias != nil {
				y[o] += s.Bias[o]
			}
		}
		return y
	}
	return times(b.down, RuleGated(a, times(b.gate, x), times(b.up, x)))
}

// Biases are added after each product, the activation is the block's own, and the shared expert is scaled by the sigmoid of
// its gate before the routed experts are added.
func TestFeedForwardWithBiasesLimitsAndSharedGateEqualsTheRule(t *testing.T) {
	const experts, k, rows, hidden, inner = 4, 2, 35, 96, 40
	for _, form := range []Form{F32, BF16, Int4, Int8} {
		for _, activation := range []Activation{{SwiGLU, 0}, {SwiGLULimited, 0.5}, {SwiGLUOss, 2}} {
			r := rand.New(rand.NewPCG(19, uint64(form)))
			var blocks []block
			for range experts {
				blocks = append(blocks, newBlock(r, form, hidden, inner, 32).biased(r))
			}
			shared := newBlock(r, form, hidden, 72, 32).biased(r)
			gate, router := weight(r, F32, 1, hidden, 0, F32), weight(r, F32, experts, hidden, 0, F32)
			x := make([][]float32, rows)
			for i := range x {
				x[i] = normals(r, hidden, 2)
			}
			t.Run(fmt.Sprintf("%v/%d", form, activation.Kind), func(t *testing.T) {
				families(t, func(t *testing.T, pool *Pool) {
					a := newArena(t)
					records := must(a.NewExpertTable(experts))
					for i, b := range blocks {
						if err := records.Set(i, must(a.PackRecord(b.gate, b.up, b.down))); err != nil {
							t.Fatal(err)
						}
					}
					p := NewProgram(pool, a, Limits{Rows: rows, Sequences: 1})
					in, logits, g, y := p.Buffer(hidden), p.Buffer(experts), p.Buffer(1), p.Buffer(hidden)
					p.Embed(in, table(a, x))
					p.MatMul(logits, in, must(a.Pack(router)), nil)
					p.MatMul(g, in, must(a.Pack(gate)), nil)
					choice := p.Router(logits, RouterSpec{Score: ScoreSoftmax, Experts: experts, TopK: k})
					p.FeedForward(y, in, FeedForward{Choice: choice, Table: records, Shared: must(a.PackRecord(shared.gate, shared.up, shared.down)), SharedGate: g, Activation: activation})
					if err := p.Build(); err != nil {
						t.Fatal(err)
					}
					if err := p.Run(rowsStep(rows)); err != nil {
						t.Fatal(err)
					}
					for i := range rows {
						want, share := shared.with(x[i], activation), []float32{must(RuleProduct(gate, 0, x[i]))}
						RuleElementary(Sigmoid, share, share)
						for d := range want {
							want[d] *= share[0]
						}
						for rank, id := range choice.IDs(i) {
							for d, v := range blocks[id].with(x[i], activation) {
								want[d] = RuleFMA(choice.Weights(i)[rank], v, want[d], false)
							}
						}
						sameRow(t, fmt.Sprintf("row %d", i), y.Row(i), want)
					}
				})
			})
		}
	}
}
