package canon

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func newDelta(r *rand.Rand, keyHeads, per, key, value, taps int) DeltaNet {
	heads := keyHeads * per
	d := DeltaNet{KeyHeads: keyHeads, ValueHeads: heads, KeyDim: key, ValueDim: value, Taps: taps, Eps: 1e-6}
	d.Conv = normals(r, (2*keyHeads*key+heads*value)*taps, 0.5)
	d.Decay, d.Shift, d.Norm = normals(r, heads, 1), normals(r, heads, 1), normals(r, value, 1)
	return d
}

// Two sequences in steps of any cut equal the scalar rule over each whole sequence, and a slot that another sequence used
// starts from zero again.
func TestDeltaNetEqualsTheRuleHoweverTheRowsAreCut(t *testing.T) {
	for _, c := range []struct{ keyHeads, per, key, value, taps int }{{2, 2, 16, 16, 4}, {1, 3, 40, 36, 2}, {3, 1, 8, 64, 3}} {
		const rows = 23
		r := rand.New(rand.NewPCG(31, uint64(c.key)))
		d := newDelta(r, c.keyHeads, c.per, c.key, c.value, c.taps)
		width, values := 2*c.keyHeads*c.key+2*d.ValueHeads*c.value, d.ValueHeads*c.value
		var in, rates [2][][]float32
		var want [2][][]float32
		for s := range 2 {
			for range rows {
				in[s], rates[s] = append(in[s], normals(r, width, 1)), append(rates[s], normals(r, 2*d.ValueHeads, 2))
			}
			want[s] = must(RuleDeltaNet(d, in[s], rates[s]))
		}
		families(t, func(t *testing.T, pool *Pool) {
			a := newArena(t)
			state := must(a.NewState(3, 5+d.Floats()))
			p := NewProgram(pool, a, Limits{Rows: 2 * rows, Sequences: 2})
			x, ba, y := p.Buffer(width), p.Buffer(2*d.ValueHeads), p.Buffer(values)
			p.Embed(x, table(a, append(in[0], in[1]...)))
			p.Embed(ba, table(a, append(rates[0], rates[1]...)))
			p.DeltaNet(y, x, ba, d, state, 5)
			if err := p.Build(); err != nil {
				t.Fatal(err)
			}
			for _, cut := range []int{1, 7, rows} {
				for from := 0; from < rows; from += cut {
					s := &Step{Pages: make([][]int32, 2), States: []int32{2, 0}}
					for q := range 2 {
						for i := from; i < min(from+cut, rows); i++ {
							s.Tokens = append(s.Tokens, int32(q*rows+i))
							s.Positions, s.Sequence = append(s.Positions, int32(i)), append(s.Sequence, int32(q))
						}
					}
					if err := p.Run(s); err != nil {
						t.Fatal(err)
					}
					for i, q := range s.Sequence {
						sameRow(t, fmt.Sprintf("%+v: cut %d, sequence %d, position %d", c, cut, q, s.Positions[i]), y.Row(i), want[q][s.Positions[i]])
					}
				}
			}
			for _, v := range state.Slot(1) {
				if v != 0 {
					t.Fatal("a slot that no step names was written")
				}
			}
		})
	}
}

// A saved slot, put back, goes on with the same bits.
func TestDeltaNetGoesOnFromARestoredSlot(t *testing.T) {
	r := rand.New(rand.NewPCG(32, 1))
	d := newDelta(r, 2, 2, 16, 16, 4)
	a := newArena(t)
	pool := must(NewPool(2, Portable))
	defer pool.Close()
	state := must(a.NewState(2, d.Floats()))
	p := NewProgram(pool, a, Limits{Rows: 8, Sequences: 1})
	x, ba, y := p.Buffer(192), p.Buffer(8), p.Buffer(64)
	var in, rates [][]float32
	for range 8 {
		in, rates = append(in, normals(r, 192, 1)), append(rates, normals(r, 8, 1))
	}
	p.Embed(x, table(a, in))
	p.Embed(ba, table(a, rates))
	p.DeltaNet(y, x, ba, d, state, 0)
	if err := p.Build(); err != nil {
		t.Fatal(err)
	}
	run := func(slot int32, from, to int) {
		s := &Step{Pages: make([][]int32, 1), States: []int32{slot}}
		for i := from; i < to; i++ {
			s.Tokens, s.Positions, s.Sequence = append(s.Tokens, int32(i)), append(s.Positions, int32(i)), append(s.Sequence, 0)
		}
		if err := p.Run(s); err != nil {
			t.Fatal(err)
		}
	}
	run(0, 0, 5)
	copy(state.Slot(1), state.Slot(0))
	run(0, 5, 8)
	want := append([]float32(nil), y.Row(2)...)
	run(1, 5, 8)
	sameRow(t, "after the restored slot", y.Row(2), want)
}

// The scalar rule agrees with the recurrence written out in float64: decay before the read, taps oldest first, consecutive
// value heads on one key head, the gate after the norm.
func TestDeltaNetRuleIsTheGatedDeltaRule(t *testing.T) {
	const keyHeads, per, key, value, taps, rows = 2, 2, 8, 6, 4, 9
	r := rand.New(rand.NewPCG(33, 1))
	d := newDelta(r, keyHeads, per, key, value, taps)
	block := 2*key + 2*per*value
	var in, rates [][]float32
	for range rows {
		in, rates = append(in, normals(r, keyHeads*block, 1)), append(rates, normals(r, 2*keyHeads*per, 1))
	}
	got := must(RuleDeltaNet(d, in, rates))
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for h := range keyHeads * per {
		g, i := h/per, h%per
		var s [key][value]float64
		for row := range rows {
			mixed := func(at, channel int) float64 { // after the convolution and silu
				sum := 0.0
				for tap := range taps {
					if from := row - (taps - 1) + tap; from >= 0 {
						sum += float64(d.Conv[channel*taps+tap]) * float64(in[from][g*block+at])
					}
				}
				return sum * sigmoid(sum)
			}
			var q, k [key]float64
			var qq, kk float64
			for c := range key {
				q[c], k[c] = mixed(c, g*key+c), mixed(key+c, (keyHeads+g)*key+c)
				qq, kk = qq+q[c]*q[c], kk+k[c]*k[c]
			}
			beta := sigmoid(float64(rates[row][2*g*per+i]))
			alpha := math.Exp(-math.Exp(float64(d.Decay[h])) * math.Log1p(math.Exp(float64(rates[row][2*g*per+per+i])+float64(d.Shift[h]))))
			var o [value]float64
			squares := 0.0
			for j := range value {
				read := 0.0
				for c := range key {
					s[c][j] *= alpha
					read += s[c][j] * k[c] / math.Sqrt(kk+1e-6)
				}
				delta := beta * (mixed(2*key+i*value+j, 2*keyHeads*key+h*value+j) - read)
				for c := range key {
					s[c][j] += k[c] / math.Sqrt(kk+1e-6) * delta
					o[j] += s[c][j] * q[c] / math.Sqrt(qq+1e-6) / math.Sqrt(key)
				}
				squares += o[j] * o[j]
			}
			for j := range value {
				z := float64(in[row][g*block+2*key+per*value+i*value+j])
				want := o[j] / math.Sqrt(squares/value+1e-6) * float64(d.Norm[j]) * z * sigmoid(z)
				if math.Abs(float64(got[row][h*value+j])-want) > 1e-4*(1+math.Abs(want)) {
					t.Fatalf("head %d, row %d, channel %d: %v, want %v", h, row, j, got[row][h*value+j], want)
				}
			}
		}
	}
}

func TestStepsWithoutTheirStateAreRefused(t *testing.T) {
	a := newArena(t)
	pool := must(NewPool(1, Portable))
	defer pool.Close()
	d := newDelta(rand.New(rand.NewPCG(34, 1)), 2, 2, 16, 16, 4)
	p := NewProgram(pool, a, Limits{Rows: 2, Sequences: 2})
	x, ba, y := p.Buffer(192), p.Buffer(8), p.Buffer(64)
	p.DeltaNet(y, x, ba, d, must(a.NewState(2, d.Floats())), 0)
	if err := p.Build(); err != nil {
		t.Fatal(err)
	}
	for want, states := range map[string][]int32{"slots of state for 0 of 2": nil, "sequence 1 names slot 2 of 2": {0, 2}, "or shares it": {1, 1}} {
		err := p.Run(&Step{Tokens: []int32{0, 0}, Positions: []int32{0, 0}, Sequence: []int32{0, 1}, Pages: make([][]int32, 2), States: states})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", states, err, want)
		}
	}
}
