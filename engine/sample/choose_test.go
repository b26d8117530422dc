package sample_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"covey/engine/canon"
	"covey/engine/sample"
)

// choose draws once at a position.
func choose(t testing.TB, p sample.Params, choice int, logits []float32, position int) int32 {
	t.Helper()
	id, err := sample.NewState(p, choice, nil).Choose(logits, position)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// reachable is the set of tokens that n seeds draw, ascending.
func reachable(t *testing.T, p sample.Params, logits []float32, n int) []int32 {
	t.Helper()
	seen := map[int32]bool{}
	for seed := range n {
		p.Seed = uint64(seed)
		seen[choose(t, p, 0, logits, 10)] = true
	}
	var ids []int32
	for id := range seen {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func TestGreedyTakesTheFirstOfEqualLogits(t *testing.T) {
	if got := choose(t, sample.Params{}, 0, []float32{1, 3, 2, 3}, 5); got != 1 {
		t.Errorf("token %d, want 1", got)
	}
}

// The logits are the logarithms of 0.5, 0.25, 0.125, 0.125 in the order of tokens 2, 0, 3, 1.
var quarters = []float32{-1.3862944, -2.0794415, -0.6931472, -2.0794415}

func TestCutsKeepTheCandidatesThatTheRuleNames(t *testing.T) {
	for _, c := range []struct {
		name   string
		params sample.Params
		want   []int32
	}{
		{"nothing cut", sample.Params{Temperature: 1}, []int32{0, 1, 2, 3}},
		{"top-k of one", sample.Params{Temperature: 1, TopK: 1}, []int32{2}},
		{"top-k takes the lower id of equals", sample.Params{Temperature: 1, TopK: 3}, []int32{0, 1, 2}},
		{"top-p below the first", sample.Params{Temperature: 1, TopP: 0.4}, []int32{2}},
		{"top-p needs two", sample.Params{Temperature: 1, TopP: 0.7}, []int32{0, 2}},
		{"top-p needs three", sample.Params{Temperature: 1, TopP: 0.8}, []int32{0, 1, 2}},
		{"top-p of one is off", sample.Params{Temperature: 1, TopP: 1}, []int32{0, 1, 2, 3}},
		{"min-p between a quarter and a half", sample.Params{Temperature: 1, MinP: 0.4}, []int32{0, 2}},
		{"min-p of one", sample.Params{Temperature: 1, MinP: 1}, []int32{2}},
		{"top-p counts what top-k kept", sample.Params{Temperature: 1, TopK: 2, TopP: 0.66}, []int32{2}},
		{"bias lifts a token over the others", sample.Params{Temperature: 1, LogitBias: map[int32]float32{1: 100}}, []int32{1}},
		{"bias bans a token", sample.Params{Temperature: 1, LogitBias: map[int32]float32{2: -100}}, []int32{0, 1, 3}},
	} {
		if got := reachable(t, c.params, quarters, 400); !slices.Equal(got, c.want) {
			t.Errorf("%s: tokens %v, want %v", c.name, got, c.want)
		}
	}
}

func TestPenaltiesChangeLogitsAsDocumented(t *testing.T) {
	for _, c := range []struct {
		name           string
		params         sample.Params
		prompt, answer []int32
		logits         []float32
		want           int32
	}{
		{"repetition divides a positive logit: 3/2 < 2", sample.Params{RepetitionPenalty: 2}, []int32{1}, nil, []float32{2, 3}, 0},
		{"repetition divides once however often: 3/1.4 > 2", sample.Params{RepetitionPenalty: 1.4}, []int32{1, 1, 1}, []int32{1}, []float32{2, 3}, 1},
		{"repetition multiplies a negative logit: -1*2 < -1.5", sample.Params{RepetitionPenalty: 2}, []int32{1}, nil, []float32{-1.5, -1}, 0},
		{"frequency counts the answer: 3-0.6*2 < 2", sample.Params{FrequencyPenalty: 0.6}, nil, []int32{1, 1}, []float32{2, 3}, 0},
		{"frequency for one: 3-0.6 > 2", sample.Params{FrequencyPenalty: 0.6}, nil, []int32{1}, []float32{2, 3}, 1},
		{"frequency ignores the prompt", sample.Params{FrequencyPenalty: 2}, []int32{1, 1, 1}, nil, []float32{2, 3}, 1},
		{"presence counts once: 3-0.6 > 2", sample.Params{PresencePenalty: 0.6}, nil, []int32{1, 1}, []float32{2, 3}, 1},
		{"presence: 3-1.5 < 2", sample.Params{PresencePenalty: 1.5}, nil, []int32{1}, []float32{2, 3}, 0},
		{"both: 3-0.6-0.6 < 2", sample.Params{PresencePenalty: 0.6, FrequencyPenalty: 0.6}, nil, []int32{1}, []float32{2, 3}, 0},
		{"bias comes before repetition: (1+2)/2 < 2", sample.Params{RepetitionPenalty: 2, LogitBias: map[int32]float32{1: 2}}, []int32{1}, nil, []float32{2, 1}, 0},
		{"the window forgets", sample.Params{RepetitionPenalty: 2, PenaltyWindow: 2}, []int32{1, 0}, []int32{0}, []float32{-1, 3}, 1},
	} {
		s := sample.NewState(c.params, 0, c.prompt)
		for _, id := range c.answer {
			s.Add(id)
		}
		before := slices.Clone(c.logits)
		got, err := s.Choose(c.logits, 7)
		if err != nil || got != c.want {
			t.Errorf("%s: token %d (%v), want %d", c.name, got, err, c.want)
		}
		if !slices.Equal(before, c.logits) {
			t.Errorf("%s: the caller's logits were changed", c.name)
		}
	}
}

func TestDrawsFollowTheDistribution(t *testing.T) {
	const draws = 20000
	for _, c := range []struct {
		name   string
		params sample.Params
		p      []float64
	}{
		{"temperature 1", sample.Params{Temperature: 1}, []float64{0.25, 0.125, 0.5, 0.125}},
		{"temperature 0.5 squares", sample.Params{Temperature: 0.5}, []float64{4.0 / 22, 1.0 / 22, 16.0 / 22, 1.0 / 22}},
		{"temperature 2 takes roots", sample.Params{Temperature: 2}, roots(0.25, 0.125, 0.5, 0.125)},
		{"top-p renormalises", sample.Params{Temperature: 1, TopP: 0.7}, []float64{1.0 / 3, 0, 2.0 / 3, 0}},
	} {
		for name, key := range map[string]func(i int) (seed uint64, choice, position int){
			"seeds":     func(i int) (uint64, int, int) { return uint64(i), 0, 10 },
			"positions": func(i int) (uint64, int, int) { return 42, 0, i },
			"choices":   func(i int) (uint64, int, int) { return 42, i, 10 },
		} {
			var counts [4]float64
			for i := range draws {
				seed, choice, position := key(i)
				c.params.Seed = seed
				counts[choose(t, c.params, choice, quarters, position)]++
			}
			chi := 0.0
			for id, p := range c.p {
				if p == 0 && counts[id] > 0 {
					t.Errorf("%s over %s: token %d was drawn", c.name, name, id)
				}
				if p > 0 {
					chi += (counts[id] - draws*p) * (counts[id] - draws*p) / (draws * p)
				}
			}
			if chi > 16.27 { // 0.999 quantile of chi-square with three degrees of freedom
				t.Errorf("%s over %s: chi-square %.1f, counts %v", c.name, name, chi, counts)
			}
		}
	}
}

func roots(p ...float64) []float64 {
	sum := 0.0
	for i := range p {
		p[i] = math.Sqrt(p[i])
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

func TestEqualKeysDrawAlike(t *testing.T) {
	p := sample.Params{Temperature: 1, Seed: 7}
	first, second := sample.NewState(p, 3, nil), sample.NewState(p, 3, []int32{1, 2, 3})
	for position := range 50 {
		a, _ := first.Choose(quarters, position)
		b, _ := second.Choose(quarters, position)
		if a != b {
			t.Fatalf("position %d: %d and %d", position, a, b)
		}
	}
}

func TestNonFiniteLogitsAreAnError(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		logits := []float32{1, bad, 2}
		if _, err := sample.NewState(sample.Params{}, 0, nil).Choose(logits, 0); !errors.Is(err, canon.ErrNonFinite) {
			t.Errorf("choosing with %v: %v", bad, err)
		}
		if _, _, err := sample.Logprobs(logits, 0, 1); !errors.Is(err, canon.ErrNonFinite) {
			t.Errorf("log-probabilities with %v: %v", bad, err)
		}
	}
}

func TestLogprobsListTheMostLikelyFirst(t *testing.T) {
	lp, top, err := sample.Logprobs(quarters, 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	near := func(got float32, p float64) bool { return math.Abs(float64(got)-math.Log(p)) < 1e-6 }
	if !near(lp, 0.125) {
		t.Errorf("token 3: %v, want ln 1/8", lp)
	}
	if len(top) != 3 || top[0].ID != 2 || top[1].ID != 0 || top[2].ID != 1 || !near(top[0].Logprob, 0.5) || !near(top[1].Logprob, 0.25) || !near(top[2].Logprob, 0.125) {
		t.Errorf("top %v", top)
	}
}

// zipf is a vocabulary of logits that fall with the logarithm of the rank, as those of language models do.
func zipf() []float32 {
	logits := make([]float32, 49152)
	for i := range logits {
		logits[i*40505%len(logits)] = float32(15 - 1.5*math.Log(float64(1+i)))
	}
	return logits
}

func BenchmarkChooseOf49152(b *testing.B) {
	logits := zipf()
	s := sample.NewState(sample.Params{Temperature: 0.6, TopP: 0.92, RepetitionPenalty: 1.1}, 0, []int32{1, 2, 3})
	for b.Loop() {
		if _, err := s.Choose(logits, 5); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLogprobsOf49152(b *testing.B) {
	logits := zipf()
	for b.Loop() {
		if _, _, err := sample.Logprobs(logits, 5, 5); err != nil {
			b.Fatal(err)
		}
	}
}
