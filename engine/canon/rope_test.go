package canon

import (
	"math"
	"testing"
)

func TestRopeFrequencies(t *testing.T) {
	a := newArena(t)
	pow := func(theta float64, j, rot int) float64 { return math.Pow(theta, float64(2*j)/float64(rot)) }
	for _, c := range []struct {
		name   string
		spec   RopeSpec
		inv    func(j int) float64
		factor float64
	}{
		{"default", RopeSpec{Theta: 1e5, Rot: 64}, func(j int) float64 { return 1 / pow(1e5, j, 64) }, 1},
		{"alpha", RopeSpec{Theta: 1e4, Rot: 128, Alpha: 1000}, func(j int) float64 { return 1 / pow(1e4*math.Pow(1000, 128.0/126), j, 128) }, 1},
		{"linear", RopeSpec{Kind: RopeLinear, Theta: 1e4, Rot: 32, Factor: 4}, func(j int) float64 { return 1 / (4 * pow(1e4, j, 32)) }, 1},
		{"llama3", RopeSpec{Kind: RopeLlama3, Theta: 5e5, Rot: 128, Factor: 8, Original: 8192, LowFreq: 1, HighFreq: 4}, func(j int) float64 {
			v := 1 / pow(5e5, j, 128)
			wave := 2 * math.Pi / v
			if wave > 8192 {
				return v / 8
			}
			if wave < 8192.0/4 {
				return v
			}
			m := (8192/wave - 1) / 3
			return (1-m)*v/8 + m*v
		}, 1},
		{"yarn", RopeSpec{Kind: RopeYarn, Theta: 1.5e5, Rot: 64, Factor: 32, Original: 4096}, func(j int) float64 {
			cd := func(r float64) float64 { return 64 * math.Log(4096/(2*math.Pi*r)) / (2 * math.Log(1.5e5)) }
			lo, hi := cd(32), cd(1)
			ramp := min(max((float64(j)-lo)/(hi-lo), 0), 1)
			return ramp/(32*pow(1.5e5, j, 64)) + (1-ramp)/pow(1.5e5, j, 64)
		}, 0.1*math.Log(32) + 1},
		{"yarn with mscale", RopeSpec{Kind: RopeYarn, Theta: 1e4, Rot: 64, Factor: 40, Original: 4096, MScale: 0.707, MScaleAll: 0.707, Truncate: true}, func(j int) float64 {
			lo, hi := 10.0, 23.0
			ramp := min(max((float64(j)-lo)/(hi-lo), 0), 1)
			return ramp/(40*pow(1e4, j, 64)) + (1-ramp)/pow(1e4, j, 64)
		}, 1},
	} {
		r, err := a.NewRope(c.spec)
		if err != nil {
			t.Fatal(c.name, err)
		}
		if math.Abs(r.AttentionFactor(false)-c.factor) > 1e-12 {
			t.Errorf("%s: attention factor %v, want %v", c.name, r.AttentionFactor(false), c.factor)
		}
		for j, v := range r.InvFreq(false) {
			if want := c.inv(j); math.Abs(float64(v)-want) > 6.1e-8*want {
				t.Errorf("%s: frequency %d is %v, want %v", c.name, j, v, want)
			}
		}
	}
	if _, err := a.NewRope(RopeSpec{Theta: 1e4, Rot: 7}); err == nil {
		t.Error("an odd width was accepted")
	}
}

// With divisors long sequences turn by frequencies and a factor of their own; the factor follows from the stretch unless given.
func TestLongSequencesHaveFrequenciesOfTheirOwn(t *testing.T) {
	a := newArena(t)
	r := must(a.NewRope(RopeSpec{Kind: RopeLong, Theta: 1e4, Rot: 8, Factor: 32, Original: 4096, Short: []float64{1, 1.5, 2, 3}, Long: []float64{4, 5, 6, 7}, LongAttention: 1.25}))
	for long, divisors := range map[bool][]float64{false: {1, 1.5, 2, 3}, true: {4, 5, 6, 7}} {
		for j, v := range r.InvFreq(long) {
			if want := 1 / (divisors[j] * math.Pow(1e4, float64(j)/4)); math.Abs(float64(v)-want) > 6.1e-8*want {
				t.Errorf("long %v: frequency %d is %v, want %v", long, j, v, want)
			}
		}
	}
	if want := math.Sqrt(1 + math.Log(32)/math.Log(4096)); math.Abs(r.AttentionFactor(false)-want) > 1e-12 || r.AttentionFactor(true) != 1.25 {
		t.Errorf("factors %v and %v, want %v and 1.25", r.AttentionFactor(false), r.AttentionFactor(true), want)
	}
	if _, err := a.NewRope(RopeSpec{Kind: RopeLong, Theta: 1e4, Rot: 8, Factor: 1, Original: 4096, Short: []float64{1}, Long: []float64{1}}); err == nil {
		t.Error("one divisor for four pairs was accepted")
	}
	pool := must(NewPool(1, Portable))
	t.Cleanup(pool.Close)
	p := NewProgram(pool, a, Limits{Rows: 4, Sequences: 2})
	x := p.Buffer(8)
	p.Embed(x, table(a, [][]float32{{1, 1, 1, 1, 0, 0, 0, 0}})) // the unit vector turns into (cosine, sine)
	p.Rope(x, 1, r, Half, 0)
	p.Keep(x)
	if err := p.Build(); err != nil {
		t.Fatal(err)
	}
	if err := p.Run(&Step{Tokens: make([]int32, 4), Positions: []int32{7, 100, 7, 100}, Sequence: []int32{0, 0, 1, 1}, Pages: make([][]int32, 2), Long: []bool{false, true}}); err != nil {
		t.Fatal(err)
	}
	for row, pos := range []int{7, 100, 7, 100} {
		for j, inv := range r.InvFreq(row >= 2) {
			s, c := math.Sincos(float64(float32(pos) * inv))
			f := r.AttentionFactor(row >= 2)
			if got := x.Row(row); math.Abs(float64(got[j])-f*c) > 1e-7 || math.Abs(float64(got[j+4])-f*s) > 1e-7 {
				t.Errorf("row %d pair %d: (%v, %v), want (%v, %v)", row, j, got[j], got[j+4], f*c, f*s)
			}
		}
	}
	if err := p.Run(&Step{Tokens: make([]int32, 1), Positions: []int32{0}, Sequence: []int32{0}, Pages: make([][]int32, 1), Long: []bool{false, true}}); err == nil {
		t.Error("lengths of more sequences than there are were accepted")
	}
}

// Cosine and sine by the package's own double code agree with the true ones to the last bit or two at any position.
func TestRotationAnglesAreAccurate(t *testing.T) {
	a := newArena(t)
	r := must(a.NewRope(RopeSpec{Theta: 1e4, Rot: 8}))
	for _, pos := range []int{0, 1, 11, 355, 8191, 131071, 1 << 20} {
		x := []float32{1, 1, 1, 1, 0, 0, 0, 0} // the unit vector turns into (cosine, sine)
		RuleRotate(x, r, Half, pos)
		for j, inv := range r.InvFreq(false) {
			s, c := math.Sincos(float64(float32(pos) * inv))
			if float64(x[j])-c > 6e-8 || c-float64(x[j]) > 6e-8 || math.Abs(float64(x[j+4])-s) > 6e-8 {
				t.Errorf("position %d frequency %d: (%v, %v), want (%v, %v)", pos, j, x[j], x[j+4], c, s)
			}
		}
	}
}
