package canon

import (
	"flag"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

var sweepAll = flag.Bool("sweep", false, "check the elementary functions on every float32 instead of one in 9973")

// ulps is |got - want| in units of the last place of want, which must be normal.
func ulps(got float32, want float64) float64 {
	_, e := math.Frexp(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, e-24)
}

// Where the true result is a normal number exp is within 2 units of the last place and the others within 4; below that the
// error is at most 2^-126. silu is a product with sigmoid and has its accuracy where sigmoid is normal (above -87).
func TestElementaryFunctionsAreAccurate(t *testing.T) {
	functions := []struct {
		name  string
		f     Function
		limit float64
		exact func(x float64) float64
		in    func(x float64) bool
	}{
		{"exp", Exp, 2, math.Exp, func(x float64) bool { return x <= 0x1.62e42ep+6 }},
		{"log", Log, 4, math.Log, func(x float64) bool { return x > 0 }},
		{"log1p", Log1p, 4, math.Log1p, func(x float64) bool { return x > -1 }},
		{"tanh", Tanh, 4, math.Tanh, func(x float64) bool { return true }},
		{"sigmoid", Sigmoid, 4, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, func(x float64) bool { return true }},
		{"silu", SiLU, 4, func(x float64) float64 { return x / (1 + math.Exp(-x)) }, func(x float64) bool { return x > -87 }},
		{"softplus", Softplus, 4, func(x float64) float64 { return math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }, func(x float64) bool { return true }},
	}
	stride := uint64(9973)
	if *sweepAll {
		stride = 1
	}
	const block = 1 << 14
	worst := make([]float64, len(functions))
	at := make([]float32, len(functions))
	x, y := make([]float32, 0, block), make([]float32, block)
	flush := func() {
		for i, f := range functions {
			RuleElementary(f.f, y, x)
			for j, v := range x {
				if !f.in(float64(v)) {
					continue
				}
				want := f.exact(float64(v))
				if math.Abs(want) < 0x1p-126 {
					if math.Abs(float64(y[j])-want) > 0x1p-126 {
						t.Fatalf("%s(%x) is %x, the true value %g", f.name, v, y[j], want)
					}
				} else if u := ulps(y[j], want); u > worst[i] || u != u {
					worst[i], at[i] = u, v
				}
			}
		}
		x = x[:0]
	}
	for u := uint64(0); u < 1<<32; u += stride {
		v := math.Float32frombits(uint32(u))
		if v != v || math.IsInf(float64(v), 0) {
			continue
		}
		if x = append(x, v); len(x) == block {
			flush()
		}
	}
	flush()
	for i, f := range functions {
		t.Logf("%s: %.3f units in the last place at %x", f.name, worst[i], at[i])
		if !(worst[i] <= f.limit) {
			t.Errorf("%s is %.3f units in the last place off at %x, allowed are %v", f.name, worst[i], at[i], f.limit)
		}
	}
}

func TestElementaryFunctionsAtTheEdges(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		f    Function
		x, y float32
	}{
		{Exp, 0, 1}, {Exp, -inf, 0}, {Exp, inf, inf}, {Exp, nan, nan}, {Exp, 0x1.62e430p+6, inf}, {Exp, -1000, 0}, {Exp, -103.9, 0x1p-149},
		{Log, 1, 0}, {Log, 0, -inf}, {Log, -1, nan}, {Log, inf, inf}, {Log, nan, nan},
		{Log1p, 0, 0}, {Log1p, -1, -inf}, {Log1p, -2, nan}, {Log1p, inf, inf}, {Log1p, nan, nan},
		{Tanh, 0, 0}, {Tanh, inf, 1}, {Tanh, -inf, -1}, {Tanh, nan, nan},
		{Sigmoid, 0, 0.5}, {Sigmoid, inf, 1}, {Sigmoid, -inf, 0}, {Sigmoid, nan, nan},
		{SiLU, 0, 0}, {SiLU, inf, inf}, {SiLU, nan, nan},
		{Softplus, 21, 21}, {Softplus, -inf, 0}, {Softplus, inf, inf}, {Softplus, nan, nan},
	} {
		y := []float32{0}
		RuleElementary(c.f, y, []float32{c.x})
		if !equalBits(y[0], c.y) {
			t.Errorf("function %d of %v is %v, want %v", c.f, c.x, y[0], c.y)
		}
	}
}

// Fused multiply-add without the instruction: cases where rounding the exact product and sum twice would go wrong, results
// at the edge of the normal range, signed zeros and overflow.
func TestSoftFusedMultiplyAdd(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct{ a, b, c, want float32 }{
		{0x1.000002p+0, 0x1.000002p+0, -0x1.000004p+0, 0x1p-46},
		{0x1.fffffep+0, 0x1.000002p+0, 0x1p-60, 0x1.000000p+1},           // just above nothing: the exact sum is 2 - 2^-46 + 2^-60
		{0x1p-12, 0x1p-12, 0x1.000002p+0, 0x1.000004p+0},                 // exact tie, to even
		{0x1p-12, 0x1p-12, 0x1p+0, 0x1p+0},                               // exact tie, to even below
		{0x1.000002p-12, 0x1p-12, 0x1p+0, 0x1.000002p+0},                 // above the tie
		{0x1.fffffep-13, 0x1p-12, 0x1.000002p+0, 0x1.000002p+0},          // below the tie
		{0x1p-75, 0x1p-75, 0x1p-149, 0x1p-148},                           // one and a half least denormals: tie to even
		{0x1.fffffep-76, 0x1p-75, 0x1p-149, 0x1p-149},                    // a little less
		{0x1p-75, 0x1p-75, 0, 0}, {0x1.000002p-75, 0x1p-75, 0, 0x1p-149}, // around half the least denormal
		{0x1p+127, 2, -0x1.fffffep+127, 0x1p+104}, {0x1p+127, 2, 0, inf}, // the product alone would overflow
		{-1, 0, 0, 0}, {1, -1, 1, 0}, {inf, 1, -1, inf},
	} {
		got := RuleFMA(c.a, c.b, c.c, true)
		if math.Float32bits(got) != math.Float32bits(c.want) {
			t.Errorf("fma(%x, %x, %x) is %x, want %x", c.a, c.b, c.c, got, c.want)
		}
	}
	if got := RuleFMA(inf, 0, 1, true); got == got {
		t.Errorf("fma(inf, 0, 1) is %v, want NaN", got)
	}
	// Against exact arithmetic, with exponents close enough to matter.
	r := rand.New(rand.NewPCG(17, 17))
	number := func(lo, hi int) float32 {
		return float32(math.Ldexp(1+float64(r.IntN(1<<23))/(1<<23), lo+r.IntN(hi-lo))) * float32(1-2*r.IntN(2))
	}
	for i := range 20000 {
		a, b, c := number(-20, 20), number(-20, 20), number(-40, 40)
		if i%2 == 0 { // results around the edge of the normal range
			a, b, c = number(-80, -60), number(-80, -60), number(-149, -120)
		}
		exact := new(big.Float).SetPrec(600).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
		want, _ := exact.Add(exact, big.NewFloat(float64(c))).Float32()
		if got := RuleFMA(a, b, c, true); got != want {
			t.Fatalf("fma(%x, %x, %x) is %x, want %x", a, b, c, got, want)
		}
	}
}
