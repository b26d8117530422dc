package canon

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

type block struct{ gate, up, down Source }

func newBlock(r *rand.Rand, form Form, hidden, inner, group int) block {
	scale := F16
	if form == MXFP4 {
		scale = E8M0
	}
	return block{weight(r, form, inner, hidden, group, scale), weight(r, form, inner, hidden, group, scale), weight(r, form, hidden, inner, group, scale)}
}

// forward is the block by the scalar rules.
func (b block) forward(x []float32) []float32 {
	inner := b.gate.Rows
	g, u := make([]float32, inner), make([]float32, inner)
	for o := range inner {
		g[o], u[o] = must(RuleProduct(b.gate, o, x)), must(RuleProduct(b.up, o, x))
	}
	RuleElementary(SiLU, g, g)
	for o := range g {
		g[o] *= u[o]
	}
	y := make([]float32, len(x))
	for o := range y {
		y[o] = must(RuleProduct(b.down, o, g))
	}
	return y
}

// A mixture layer equals the rules composed by hand: shared expert first, then experts in rank order by fused
// multiply-adds, whatever the batch.
func TestMoEEqualsTheRule(t *testing.T) {
	for _, c := range []struct {
		form                         Form
		hidden, inner, shared, group int
	}{{Int4, 96, 32, 96, 32}, {Int4, 160, 160, 0, 64}, {Int8, 64, 144, 32, 128}, {F32, 48, 40, 24, 0}, {Int4, 64, 48, 80, 32}, {Int4, 96, 48, 32, 16}, {FP8, 48, 40, 24, 16}, {MXFP4, 64, 96, 32, 32}} {
		const experts, k, rows = 6, 3, 40
		r := rand.New(rand.NewPCG(9, uint64(c.hidden)))
		var blocks []block
		for range experts {
			blocks = append(blocks, newBlock(r, c.form, c.hidden, c.inner, c.group))
		}
		var shared block
		if c.shared > 0 {
			shared = newBlock(r, c.form, c.hidden, c.shared, c.group)
		}
		gate := weight(r, F32, experts, c.hidden, 0, F32)
		x := inputs(r, rows, c.hidden)
		x[2], x[3], x[9] = normals(r, c.hidden, 1), normals(r, c.hidden, 1), normals(r, c.hidden, 1) // finite logits only
		t.Run(fmt.Sprintf("%v/%d/%d", c.form, c.hidden, c.inner), func(t *testing.T) {
			families(t, func(t *testing.T, pool *Pool) {
				a := newArena(t)
				table0 := must(a.NewExpertTable(experts))
				for i, b := range blocks {
					if err := table0.Set(i, must(a.PackRecord(b.gate, b.up, b.down))); err != nil {
						t.Fatal(err)
					}
				}
				var rec *Record
				if c.shared > 0 {
					rec = must(a.PackRecord(shared.gate, shared.up, shared.down))
				}
				p := NewProgram(pool, a, Limits{Rows: rows, Sequences: 1})
				in, logits, y, dense := p.Buffer(c.hidden), p.Buffer(experts), p.Buffer(c.hidden), p.Buffer(c.hidden)
				p.Embed(in, table(a, x))
				p.MatMul(logits, in, must(a.Pack(gate)), nil)
				choice := p.Router(logits, RouterSpec{Score: ScoreSigmoid, Experts: experts, TopK: k, Normalise: true, Eps: 1e-20, Scale: 2.5})
				p.MoE(y, in, choice, table0, rec)
				if rec != nil {
					p.FFN(dense, in, rec)
				}
				if err := p.Build(); err != nil {
					t.Fatal(err)
				}
				for _, n := range []int{1, 2, 7, 40} {
					if err := p.Run(rowsStep(n)); err != nil {
						t.Fatal(err)
					}
					for i := range n {
						want := make([]float32, c.hidden)
						if rec != nil {
							want = shared.forward(x[i])
							sameRow(t, fmt.Sprintf("dense row %d of %d", i, n), dense.Row(i), want)
						}
						for rank, id := range choice.IDs(i) {
							for d, v := range blocks[id].forward(x[i]) {
								want[d] = RuleFMA(choice.Weights(i)[rank], v, want[d], false)
							}
						}
						sameRow(t, fmt.Sprintf("row %d of %d", i, n), y.Row(i), want)
					}
				}
			})
		})
	}
}

func TestMissingExpertIsAFaultOfItsRowsOnly(t *testing.T) {
	a := newArena(t)
	pool := must(NewPool(2, Portable))
	defer pool.Close()
	r := rand.New(rand.NewPCG(10, 10))
	experts := must(a.NewExpertTable(2))
	b := newBlock(r, Int4, 32, 32, 32)
	if err := experts.Set(0, must(a.PackRecord(b.gate, b.up, b.down))); err != nil {
		t.Fatal(err)
	}
	p := NewProgram(pool, a, Limits{Rows: 2, Sequences: 1})
	logits, x, y := p.Buffer(2), p.Buffer(32), p.Buffer(32)
	p.Embed(logits, table(a, [][]float32{{1, 0}, {0, 1}}))
	p.Scale(x, 0)
	p.Label("layer 5 experts")
	p.MoE(y, x, p.Router(logits, RouterSpec{Score: ScoreTopSoftmax, Experts: 2, TopK: 1}), experts, nil)
	if err := p.Build(); err != nil {
		t.Fatal(err)
	}
	err := p.Run(rowsStep(2))
	var faults *FaultError
	if !errors.As(err, &faults) || len(faults.Faults) != 1 || faults.Faults[0] != (Fault{Row: 1, Kind: ErrMissing, Op: "layer 5 experts"}) || !errors.Is(err, ErrMissing) {
		t.Fatalf("error is %v", err)
	}
	if got := err.Error(); got != "canon: step: row 1: layer 5 experts: expert record is not in memory" {
		t.Errorf("text is %q", got)
	}
	other := newBlock(r, Int8, 32, 32, 32)
	if err := experts.Set(1, must(a.PackRecord(other.gate, other.up, other.down))); err == nil {
		t.Error("a record of another form was accepted")
	}
}
