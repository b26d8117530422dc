package canon

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"testing"
)

// naiveSample is rule 11 word for word: the whole vocabulary sorted, every sum over everything.
func naiveSample(logits []float32, s *SampleParams) int32 {
	l := append([]float32(nil), logits...)
	for i, id := range s.BiasIDs {
		l[id] += s.Bias[i]
	}
	if s.Repetition != 0 && s.Repetition != 1 {
		for _, id := range s.SeenIDs {
			if l[id] > 0 {
				l[id] /= s.Repetition
			} else {
				l[id] *= s.Repetition
			}
		}
	}
	for i, id := range s.CountIDs {
		l[id] = RuleFMA(-s.Frequency, float32(s.Counts[i]), l[id], true)
		l[id] -= s.Presence
	}
	if s.Temperature != 0 {
		for i := range l {
			l[i] /= s.Temperature
		}
	}
	ids := make([]int32, len(l))
	for i := range ids {
		ids[i] = int32(i)
	}
	sort.SliceStable(ids, func(a, b int) bool { return l[ids[a]] > l[ids[b]] })
	if s.Temperature == 0 {
		return ids[0]
	}
	p := make([]float32, len(l))
	for i, id := range ids {
		p[i] = l[id] - l[ids[0]]
	}
	RuleElementary(Exp, p, p)
	sum := func(p []float32) (t float32) {
		for _, v := range p {
			t += v
		}
		return t
	}
	if s.TopK > 0 && s.TopK < len(p) {
		p = p[:s.TopK]
	}
	if s.TopP > 0 && s.TopP < 1 {
		goal, run := s.TopP*sum(p), float32(0)
		for i, v := range p {
			if run += v; run >= goal {
				p = p[:i+1]
				break
			}
		}
	}
	if s.MinP > 0 {
		for i, v := range p {
			if v < s.MinP {
				p = p[:i]
				break
			}
		}
	}
	goal, run := float32(Philox(s.Seed, s.Choice, s.Position)>>8)*0x1p-24*sum(p), float32(0)
	for i, v := range p {
		if run += v; run > goal {
			return ids[i]
		}
	}
	return ids[len(p)-1]
}

// Leaving out what cannot matter changes no draw.
func TestSampleDrawsAsTheRuleSays(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 12))
	for _, n := range []int{1, 2, 63, 64, 1000, 5000} {
		for trial := range 60 {
			logits := normals(r, n, []float64{0.01, 1, 3, 12}[trial%4])
			if trial%5 == 0 { // ties
				for i := range logits {
					logits[i] = float32(math.Round(float64(logits[i])))
				}
			}
			s := &SampleParams{Temperature: []float32{0, 0.3, 0.7, 1, 1.5}[trial%5], Seed: uint64(trial), Position: uint32(n), Choice: uint32(trial % 3)}
			if trial%2 == 0 {
				s.TopK = []int{1, 5, 40, 2000}[trial/2%4]
			}
			if trial%3 == 0 {
				s.TopP = []float32{0.1, 0.9, 0.999}[trial/3%3]
			}
			if trial%7 == 0 {
				s.MinP = 0.05
			}
			if trial%4 == 1 {
				s.Repetition, s.SeenIDs = 1.3, []int32{0, int32(n - 1)}[:min(n, 2)]
				s.CountIDs, s.Counts, s.Frequency, s.Presence = []int32{int32(n / 2)}, []int32{3}, 0.4, 0.2
				s.BiasIDs, s.Bias = []int32{int32(n / 3)}, []float32{2.5}
			}
			before := fmt.Sprint(logits)
			got, err := Sample(logits, s)
			if want := naiveSample(logits, s); err != nil || got != want {
				t.Fatalf("%d logits, trial %d: drew %d (%v), the rule draws %d", n, trial, got, err, want)
			}
			if before != fmt.Sprint(logits) {
				t.Fatal("logits were modified")
			}
		}
	}
}

func TestSampleFollowsTheDistribution(t *testing.T) {
	logits := []float32{0, float32(math.Log(3)), float32(math.Log(6))} // 1 : 3 : 6
	var count [3]int
	for i := range 10000 {
		count[must(Sample(logits, &SampleParams{Temperature: 1, Seed: 5, Position: uint32(i)}))]++
	}
	for i, want := range []int{1000, 3000, 6000} {
		if count[i] < want-150 || count[i] > want+150 { // three standard deviations and more
			t.Errorf("token %d was drawn %d times of 10000, expected about %d", i, count[i], want)
		}
	}
}

func TestSampleErrorsAreNamed(t *testing.T) {
	inf := float32(math.Inf(1))
	if _, err := Sample([]float32{1, inf}, &SampleParams{}); !errors.Is(err, ErrNonFinite) {
		t.Errorf("infinite logit: %v", err)
	}
	if _, err := Sample([]float32{1, float32(math.NaN())}, &SampleParams{Temperature: 1}); !errors.Is(err, ErrNonFinite) {
		t.Errorf("NaN logit: %v", err)
	}
	if _, err := Sample([]float32{1, 2}, &SampleParams{BiasIDs: []int32{0, 1}, Bias: []float32{-inf, -inf}}); !errors.Is(err, ErrNoToken) {
		t.Errorf("all banned: %v", err)
	}
	if got := must(Sample([]float32{1, 2}, &SampleParams{Temperature: 1, BiasIDs: []int32{1}, Bias: []float32{-inf}})); got != 0 {
		t.Errorf("drew the banned token %d", got)
	}
	for _, s := range []SampleParams{{BiasIDs: []int32{2}, Bias: []float32{0}}, {SeenIDs: []int32{-1}}, {BiasIDs: []int32{0}}, {Temperature: -1}} {
		if _, err := Sample([]float32{1, 2}, &s); err == nil {
			t.Errorf("%+v was accepted", s)
		}
	}
}

// Known answers of Philox 4x32-10 (Random123's kat_vectors): counter and key all zero, and all ones in 32 bits where this
// keying reaches.
func TestPhiloxKnownAnswer(t *testing.T) {
	if got := Philox(0, 0, 0); got != 0x6627e8d5 {
		t.Errorf("philox(0) is %08x, want 6627e8d5", got)
	}
}

func TestLogprobs(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 13))
	for _, n := range []int{3, 64, 65, 1000} {
		logits := normals(r, n, 3)
		logits[n-1] = logits[0] // a tie
		var total float64
		highest := math.Inf(-1)
		for _, l := range logits {
			highest = max(highest, float64(l))
		}
		for _, l := range logits {
			total += math.Exp(float64(l) - highest)
		}
		ids, lp := make([]int32, min(n, 20)), make([]float32, min(n, 20))
		got, err := Logprobs(logits, 1, ids, lp)
		if want := float64(logits[1]) - highest - math.Log(total); err != nil || math.Abs(float64(got)-want) > 1e-5 {
			t.Errorf("log probability is %v (%v), want %v", got, err, want)
		}
		order := make([]int32, n)
		for i := range order {
			order[i] = int32(i)
		}
		sort.SliceStable(order, func(a, b int) bool { return logits[order[a]] > logits[order[b]] })
		for i := range ids {
			one := must(Logprobs(logits, ids[i], nil, nil))
			if ids[i] != order[i] || lp[i] != one {
				t.Errorf("%d logits: place %d is token %d at %v, want token %d at %v", n, i, ids[i], lp[i], order[i], one)
			}
		}
	}
	if _, err := Logprobs([]float32{1, float32(math.Inf(-1))}, 0, nil, nil); !errors.Is(err, ErrNonFinite) {
		t.Errorf("infinite logit: %v", err)
	}
}

func BenchmarkSample(b *testing.B) {
	r := rand.New(rand.NewPCG(14, 14))
	logits := normals(r, 49152, 3)
	for name, s := range map[string]*SampleParams{"greedy": {}, "top_p": {Temperature: 0.6, TopP: 0.92, Repetition: 1.1, SeenIDs: []int32{1, 2, 3}}, "all": {Temperature: 1}, "top_k": {Temperature: 1, TopK: 40}} {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				s.Position = uint32(i)
				if _, err := Sample(logits, s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("logprobs", func(b *testing.B) {
		ids, lp := make([]int32, 5), make([]float32, 5)
		for b.Loop() {
			if _, err := Logprobs(logits, 7, ids, lp); err != nil {
				b.Fatal(err)
			}
		}
	})
}
