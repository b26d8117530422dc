package stats

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// reference is testdata/scipy.json: values of an independent implementation in NumPy 2.4.6 and SciPy 1.17.1
// (testdata/reference.py checks them anew), written from these formulas alone (g clusters and n prompts in topic c, m_c their mean, a the mean of m over topics):
//
//	variances    g/(g-1) * sum over clusters (sum over its prompts (x - m_c))^2 / n^2
//	log_ratio    log((m_c + a)/(m_rest + a)) / sqrt(v_c/(m_c + a)^2 + v_rest/(m_rest + a)^2), m_rest the mean of the other
//	             topics' means, v_rest their variances' sum / (C-1)^2
//	difference   (m_c - m_rest) / sqrt(v_c + v_rest)
//	specificity  1 - scipy.stats.entropy(m) / ln C
//	bootstrap    s = m + pseudo, r = sum of the other s; lift C s/(s+r); clusters drawn anew within topics; bounds
//	             C/(1 + exp(-(L - q * e))) with L = log(s/r), e = sqrt(v_c/s^2 + v_rest/r^2) and q the 97.5 and 2.5 %
//	             quantiles of (L* - L)/e*
//	exact        all 252 labellings of ten values, the largest |Welch t|
//	bh, wilson, pearson   scipy.stats.false_discovery_control, binomtest(...).proportion_ci("wilson"), pearsonr
type reference struct {
	X                      [][]float64 // [rows, cols]
	Topic, Cluster, Length []int
	Means, Variances       [][]float64 // [cols, topics]
	LogRatio               [][]float64 `json:"log_ratio"`
	Difference             [][]float64
	Specificity            []float64
	Bootstrap              struct {
		Pseudo         float64
		Lift           [][]float64
		Low, High      [][]float64
		PercentileLow  [][]float64 `json:"percentile_low"`
		PercentileHigh [][]float64 `json:"percentile_high"`
	}
	Exact struct {
		Y, T, P []float64
	}
	BH      struct{ P, Q []float64 }
	Wilson  [][4]float64 // successes, n, low, high
	Pearson struct {
		A, B []float64
		R    float64
	}
	Information struct {
		Means [][]float64
		Bits  float64
	}
	Decode struct {
		Train, Test               [][]float64
		Topic, Logistic, Centroid []int
		Margin                    []float64
	}
}

func load(t *testing.T) reference {
	t.Helper()
	data, err := os.ReadFile("testdata/scipy.json")
	if err != nil {
		t.Fatal(err)
	}
	var r reference
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func matrix(rows [][]float64) Matrix {
	m := NewMatrix(len(rows), len(rows[0]))
	for r, row := range rows {
		copy(m.Row(r), row)
	}
	return m
}

func (r reference) design() Design {
	return Design{Topics: 3, Topic: r.Topic, Cluster: r.Cluster, Length: r.Length}
}

// near reports values that differ by more than tol, relative to 1 or the value if that is larger.
func near(t *testing.T, what string, got, want []float64, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range want {
		if math.Abs(got[i]-want[i]) > tol*max(1, math.Abs(want[i])) {
			t.Errorf("%s[%d] = %.9g, want %.9g", what, i, got[i], want[i])
		}
	}
}

func TestMeansAndClusterVariancesMatchNumPy(t *testing.T) {
	r := load(t)
	x, d := matrix(r.X), r.design()
	near(t, "means", Means(x, d), slices.Concat(r.Means...), 1e-11)
	u, err := newUnits(d)
	if err != nil {
		t.Fatal(err)
	}
	b := newBlock(u)
	b.load(x, 0)
	m := make([]moments, 3)
	b.measure(u.identity(), m)
	var means, deviations, want []float64
	for e := range x.Cols {
		for c := range 3 {
			means = append(means, m[c].mean[e])
			deviations = append(deviations, math.Sqrt(m[c].variance[e]))
			want = append(want, math.Sqrt(r.Variances[e][c]))
		}
	}
	// Fixed point: a value is off by at most half of 1/2^18 of the column's largest sum of a unit.
	near(t, "fixed-point means", means, slices.Concat(r.Means...), 3e-6)
	near(t, "fixed-point standard errors", deviations, want, 3e-6)
}

func TestStatisticsMatchNumPy(t *testing.T) {
	r := load(t)
	for _, c := range []struct {
		name string
		kind Statistic
		want [][]float64
	}{{"log ratio", LogRatio, r.LogRatio}, {"difference", Difference, r.Difference}} {
		got, err := Permutation(matrix(r.X), r.design(), TestOptions{Statistic: c.kind, Permutations: 1, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		near(t, c.name, got.T, slices.Concat(c.want...), 1e-4)
	}
}

func TestPermutationMatchesTheExactTest(t *testing.T) {
	r := load(t)
	x := NewMatrix(len(r.Exact.Y), 1)
	copy(x.Data, r.Exact.Y)
	d := Design{Topics: 2, Topic: []int{0, 0, 0, 0, 0, 1, 1, 1, 1, 1}, Cluster: []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, Length: make([]int, 10)}
	got, err := Permutation(x, d, TestOptions{Statistic: Difference, Permutations: 20000, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "t", got.T, r.Exact.T, 1e-4)
	// 252 labellings enumerated; three standard errors of 20,000 draws.
	if p, want := got.P[0], r.Exact.P[0]; math.Abs(p-want) > 3*math.Sqrt(want*(1-want)/20000) {
		t.Errorf("p = %.4f, enumeration gives %.4f", p, want)
	}
	if got.P[1] != 1 {
		t.Errorf("the topic with the lower values has p %.3f, want 1", got.P[1])
	}
}

func TestIntervalsMatchAnIndependentBootstrap(t *testing.T) {
	r := load(t)
	got, err := Bootstrap(matrix(r.X), r.design(), BootstrapOptions{Draws: 40000, Seed: 5, Pseudo: r.Bootstrap.Pseudo})
	if err != nil {
		t.Fatal(err)
	}
	// 40,000 draws on either side; clusters are few, so the studentised tails are coarse.
	near(t, "lift", got.Lift, slices.Concat(r.Bootstrap.Lift...), 1e-4)
	near(t, "percentile low", got.PercentileLow, slices.Concat(r.Bootstrap.PercentileLow...), 0.01)
	near(t, "percentile high", got.PercentileHigh, slices.Concat(r.Bootstrap.PercentileHigh...), 0.01)
	near(t, "low", got.Low, slices.Concat(r.Bootstrap.Low...), 0.03)
	near(t, "high", got.High, slices.Concat(r.Bootstrap.High...), 0.03)
}

func TestMeasuresMatchSciPy(t *testing.T) {
	r := load(t)
	var specificity []float64
	for _, m := range r.Means {
		specificity = append(specificity, Specificity(m))
	}
	near(t, "specificity", specificity, r.Specificity, 1e-10)
	bits := Information(r.Information.Means[0], 1) + Information(r.Information.Means[1], 1)
	// The layer's means add up to 1 in every topic, so the parts add up to the mutual information.
	near(t, "information", []float64{bits}, []float64{r.Information.Bits}, 1e-10)
	near(t, "q", BenjaminiHochberg(r.BH.P), r.BH.Q, 1e-10)
	for _, w := range r.Wilson {
		low, high := Wilson(int(w[0]), int(w[1]))
		near(t, "Wilson", []float64{low, high}, w[2:], 1e-10)
	}
	near(t, "Pearson", []float64{Pearson(r.Pearson.A, r.Pearson.B)}, []float64{r.Pearson.R}, 1e-10)
}

func TestClosedForms(t *testing.T) {
	if v := Specificity([]float64{1, 0, 0, 0}); v != 1 {
		t.Errorf("one topic only: specificity %g, want 1", v)
	}
	if v := Specificity([]float64{2, 2, 2}); math.Abs(v) > 1e-15 {
		t.Errorf("all topics alike: specificity %g, want 0", v)
	}
	if v := Specificity([]float64{0, 0}); v != 0 {
		t.Errorf("never selected: specificity %g, want 0", v)
	}
	// An expert of share 1 in one of two topics and 0 in the other, beside its mirror image: one bit between them.
	if v := Information([]float64{1, 0}, 1) + Information([]float64{0, 1}, 1); math.Abs(v-1) > 1e-15 {
		t.Errorf("information %g bits, want 1", v)
	}
	if v := SpearmanBrown(0.5); math.Abs(v-2.0/3) > 1e-15 {
		t.Errorf("two halves that correlate 0.5: reliability %g, want 2/3", v)
	}
	if v := SpearmanBrown(-0.2); v != 0 {
		t.Errorf("reliability of a negative correlation %g, want 0", v)
	}
}

func TestTopicsAreNamedAsByAnIndependentFit(t *testing.T) {
	r := load(t)
	named, err := Decode(matrix(r.Decode.Train), r.Decode.Topic, 3, matrix(r.Decode.Test))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(named.Centroid, r.Decode.Centroid) {
		t.Errorf("nearest centroid %v, want %v", named.Centroid, r.Decode.Centroid)
	}
	for i, want := range r.Decode.Logistic {
		if r.Decode.Margin[i] > 0.1 && named.Logistic[i] != want {
			t.Errorf("row %d is named %d by the logistic fit, want %d (margin %.3f)", i, named.Logistic[i], want, r.Decode.Margin[i])
		}
	}
	if _, err := Decode(NewMatrix(2, 3), []int{0, 1}, 2, NewMatrix(1, 3)); !errors.Is(err, ErrAlike) {
		t.Errorf("training rows that do not differ: error %v", err)
	}
}

func TestResultsDoNotDependOnTheNumberOfGoroutines(t *testing.T) {
	x, d := family(4, 12, 21)
	for r := range d.Cluster {
		d.Cluster[r] = r / 3
	}
	one, err := Permutation(x, d, TestOptions{Permutations: 300, Seed: 9, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	many, err := Permutation(x, d, TestOptions{Permutations: 300, Seed: 9, Threads: 3})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(one.P, many.P) || !slices.Equal(one.Q, many.Q) || !slices.Equal(one.Maxima, many.Maxima) {
		t.Error("the test differs")
	}
	a, err := Bootstrap(x, d, BootstrapOptions{Draws: 300, Seed: 9, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Bootstrap(x, d, BootstrapOptions{Draws: 300, Seed: 9, Threads: 3})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.Low, b.Low) || !slices.Equal(a.High, b.High) {
		t.Error("the intervals differ")
	}
}

func TestPermutationsKeepClustersWholeAndStayInTheirStratum(t *testing.T) {
	d := Design{
		Topics:  2,
		Topic:   []int{0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1},
		Cluster: []int{1, 1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 9}, // 1 and 6 have two rows; 9 crosses the topics
		Length:  []int{50, 60, 55, 200, 210, 58, 50, 52, 205, 215, 120, 130},
	}
	u, err := newUnits(d)
	if err != nil {
		t.Fatal(err)
	}
	if len(u.rows) != 10 || u.first[1] != 5 {
		t.Fatalf("%d units, %d of the first topic; want 10 and 5", len(u.rows), u.first[1])
	}
	moved := 0
	for _, list := range u.permutations(200, 1) {
		got := u.relabel(d, list)
		if got.Topic[0] != got.Topic[1] || got.Topic[6] != got.Topic[7] {
			t.Fatal("a cluster was torn apart")
		}
		if got.Topic[10] == got.Topic[11] {
			t.Fatal("labels left the cluster that crosses topics")
		}
		if got.Topic[0] != 0 {
			moved++
		}
		long := got.Topic[3] + got.Topic[4] + got.Topic[8] + got.Topic[9]
		if long != 2 {
			t.Fatalf("%d of the four long texts have the second topic, two must", long)
		}
	}
	if moved < 50 || moved > 150 {
		t.Errorf("the first cluster changed its topic in %d of 200 permutations", moved)
	}
	for _, list := range u.resamples(50, 1) {
		for i, unit := range list {
			if (i < 5) != (unit < 5) {
				t.Fatal("a resample crossed topics")
			}
		}
	}
}

func TestDesignsWithoutAVarianceAreRefused(t *testing.T) {
	x := NewMatrix(4, 1)
	for name, d := range map[string]Design{
		"one cluster of a topic": {Topics: 2, Topic: []int{0, 0, 1, 1}, Cluster: []int{1, 2, 3, 3}, Length: make([]int, 4)},
		"one topic":              {Topics: 1, Topic: []int{0, 0, 0, 0}, Cluster: []int{1, 2, 3, 4}, Length: make([]int, 4)},
		"a topic out of range":   {Topics: 2, Topic: []int{0, 0, 1, 2}, Cluster: []int{1, 2, 3, 4}, Length: make([]int, 4)},
		"too few rows":           {Topics: 2, Topic: []int{0, 1}, Cluster: []int{1, 2}, Length: make([]int, 2)},
	} {
		if _, err := Permutation(x, d, TestOptions{Permutations: 10}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestColumnsWithoutValuesSayNothing(t *testing.T) {
	x, d := family(3, 10, 2)
	for r := range x.Rows {
		x.Row(r)[1] = 0
	}
	tests, err := Permutation(x, d, TestOptions{Permutations: 100, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	intervals, err := Bootstrap(x, d, BootstrapOptions{Draws: 100, Seed: 1, Pseudo: 1e-4})
	if err != nil {
		t.Fatal(err)
	}
	for c := range 3 {
		if i := 3 + c; tests.T[i] != 0 || tests.P[i] != 1 || intervals.Low[i] != 0 || intervals.High[i] != 3 {
			t.Errorf("topic %d: t %g, p %g, interval %g to %g", c, tests.T[i], tests.P[i], intervals.Low[i], intervals.High[i])
		}
	}
}

func TestDeviationsAreTheStandardErrorsOfSums(t *testing.T) {
	x, d := family(2, 200, 3)
	// The sum of two columns' means in topic 0 is a mean of 200 independent sums: its standard error is in closed form, but
	// for the factor (n-1)/n of a bootstrap.
	inFirst := func(_ int, means []float64) float64 { return means[0] }
	got, err := Deviations(x, d, 4000, 1, 0, []int{0, 0, 1}, inFirst)
	if err != nil {
		t.Fatal(err)
	}
	sums, third := make([]float64, 200), make([]float64, 200)
	for r := range 200 {
		sums[r], third[r] = x.Row(r)[0]+x.Row(r)[1], x.Row(r)[2]
	}
	_, first := meanError(sums)
	_, second := meanError(third)
	near(t, "standard errors", []float64{got[0][0] / first, got[0][1] / second}, []float64{1, 1}, 0.04)
	if _, err := Deviations(x, d, 1, 1, 0, []int{0, 0, 1}, inFirst); err == nil {
		t.Error("one draw was taken for a deviation")
	}
}

func TestAnEstimateLiesWithinItsInterval(t *testing.T) {
	x, d := family(3, 10, 40)
	for r := range x.Rows {
		for e := range x.Cols {
			// Column e is never selected in one topic, and in few prompts of the others.
			if d.Topic[r] == e%3 || (r+e)%7 > e%4 {
				x.Row(r)[e] = 0
			}
		}
	}
	got, err := Bootstrap(x, d, BootstrapOptions{Draws: 200, Seed: 1, Pseudo: 1e-3})
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got.Lift {
		if v < got.Low[i] || v > got.High[i] {
			t.Errorf("column %d topic %d: lift %g, interval %g to %g", i/3, i%3, v, got.Low[i], got.High[i])
		}
		if v == 0 {
			t.Errorf("column %d topic %d: lift 0 beside an interval of the smoothed lift", i/3, i%3)
		}
	}
}

func TestCriticalAgreesWithCorrectedP(t *testing.T) {
	x, d := family(3, 20, 16)
	for r := range x.Rows {
		if d.Topic[r] == 1 {
			x.Row(r)[0] *= 4
		}
	}
	tests, err := Permutation(x, d, TestOptions{Permutations: 500, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, alpha := range []float64{0.01, 0.05, 0.5} {
		critical := tests.Critical(alpha)
		for i, v := range tests.T {
			if (v > critical) != (tests.P[i] <= alpha) {
				t.Errorf("alpha %g: t %g against %g, p %g", alpha, v, critical, tests.P[i])
			}
		}
	}
	if tests.P[1] > 0.01 {
		t.Errorf("a lift of 2 in 20 texts has p %g", tests.P[1])
	}
	if !math.IsInf(tests.Critical(0.001), 1) {
		t.Error("500 permutations cannot reach alpha 0.001")
	}
}

// Over repeated null data the corrected test labels something in about alpha of the cases.
func TestTheFamilyErrorIsHeld(t *testing.T) {
	const rounds, alpha = 300, 0.2
	labelled := 0
	for round := range rounds {
		random := rand.New(rand.NewPCG(uint64(round), 77))
		x, d := family(3, 10, 8)
		for i := range x.Data {
			x.Data[i] = random.ExpFloat64()
		}
		tests, err := Permutation(x, d, TestOptions{Permutations: 99, Seed: uint64(round)})
		if err != nil {
			t.Fatal(err)
		}
		if slices.Min(tests.P) <= alpha {
			labelled++
		}
	}
	// Binomial: three standard errors are 0.07.
	if got := float64(labelled) / rounds; math.Abs(got-alpha) > 0.07 {
		t.Errorf("%.3f of null families had a label at alpha %g", got, alpha)
	}
}

func TestShuffledLabelsCountsWhatTheRuleWouldLabel(t *testing.T) {
	x, d := family(3, 20, 40)
	labels, err := ShuffledLabels(x, d, 50, 3, 0, nil, Rule{Critical: 2.5, MinLift: 1, MinSupport: 0.5, Bootstrap: BootstrapOptions{Draws: 200, Seed: 1, Pseudo: 1e-4}})
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, n := range labels {
		sum += n
	}
	// 120 null pairs, about 1 % of which exceed 2.5; nearly all of those have an interval above 1.
	if mean := float64(sum) / 50; mean < 0.2 || mean > 3 {
		t.Errorf("%.2f labels a shuffle", mean)
	}
	strict, err := ShuffledLabels(x, d, 50, 3, 0, nil, Rule{Critical: 2.5, MinLift: 1, MinSupport: 1.1, Bootstrap: BootstrapOptions{Draws: 200, Seed: 1, Pseudo: 1e-4}})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Max(strict) != 0 {
		t.Error("a support that no text set can have was met")
	}
}

func TestSelectionFindsOrderStatistics(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	for _, n := range []int{101, 600, 2000} {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(math.Round(random.NormFloat64()*20) / 4) // with ties
		}
		sorted := slices.Sorted(slices.Values(v))
		for _, k := range []int{0, 1, n / 40, n / 2} {
			low, high := extremes(slices.Clone(v), k, make([]float32, 0, n))
			if low != sorted[k] || high != sorted[n-1-k] {
				t.Errorf("n %d, k %d: %g and %g, want %g and %g", n, k, low, high, sorted[k], sorted[n-1-k])
			}
		}
	}
}

func TestLogRatioIsALogarithm(t *testing.T) {
	for _, a := range []float64{1e-9, 0.3, 0.51, 0.999, 1, 1.7, 2.01, 40, 1e9} {
		near(t, "log", []float64{logRatio(a, 1)}, []float64{math.Log(a)}, 1e-8)
	}
}

// testdata/contrast.json is from NumPy with 200,000 draws (testdata/reference.py).
func TestContrastIsThatOfAnIndependentImplementation(t *testing.T) {
	data, err := os.ReadFile("testdata/contrast.json")
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		A, B                         []float64
		Difference, Error, Low, High float64
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	difference, low, high := Contrast(want.A, want.B, 50000, 1)
	if math.Abs(difference-want.Difference) > 1e-12 {
		t.Errorf("difference %v, want %v", difference, want.Difference)
	}
	// Bounds are quantiles of draws: within a twentieth of the standard error.
	if math.Abs(low-want.Low) > want.Error/20 || math.Abs(high-want.High) > want.Error/20 {
		t.Errorf("interval [%v, %v], want [%v, %v]", low, high, want.Low, want.High)
	}
}

func TestContrastCoversTheTrueDifference(t *testing.T) {
	const rounds = 200
	covered := 0
	for round := range rounds {
		random := rand.New(rand.NewPCG(uint64(round), 5))
		a, b := make([]float64, 12), make([]float64, 14)
		for i := range a {
			a[i] = 1 + random.NormFloat64()
		}
		for i := range b {
			b[i] = 2 * random.NormFloat64()
		}
		if _, low, high := Contrast(a, b, 400, uint64(round)); low <= 1 && 1 <= high {
			covered++
		}
	}
	// 95 % of 200 with a standard error of 1.5 %.
	if got := float64(covered) / rounds; got < 0.90 || got > 0.99 {
		t.Errorf("95 %% intervals contain the difference in %.3f of cases", got)
	}
	if d, low, high := Contrast([]float64{3}, []float64{1, 2}, 100, 1); d != 1.5 || !math.IsInf(low, -1) || !math.IsInf(high, 1) {
		t.Errorf("one prompt: %g in %g to %g; want 1.5 and no interval", d, low, high)
	}
}

func TestSignFlipsHoldTheErrorOfTheLargestColumnAndFindAShift(t *testing.T) {
	const rounds, alpha = 200, 0.2
	labelled := 0
	for round := range rounds {
		random := rand.New(rand.NewPCG(uint64(round), 6))
		scores, cluster := NewMatrix(60, 5), make([]int, 60)
		for r := range scores.Rows {
			cluster[r] = r / 2
			for c := range scores.Cols {
				scores.Row(r)[c] = random.NormFloat64()
				if r%2 == 1 {
					scores.Row(r)[c] += scores.Row(r - 1)[c] // rows of a cluster move together
				}
			}
		}
		_, p, err := SignFlips(scores, cluster, 99, uint64(round))
		if err != nil {
			t.Fatal(err)
		}
		if slices.Min(p) <= alpha {
			labelled++
		}
		for r := range scores.Rows {
			scores.Row(r)[3] += 2
		}
		if _, p, err = SignFlips(scores, cluster, 99, uint64(round)); err != nil || p[3] > 0.02 {
			t.Fatalf("a mean of two standard deviations over 60 rows has p %v, error %v", p, err)
		}
	}
	// Binomial: three standard errors are 0.085.
	if got := float64(labelled) / rounds; math.Abs(got-alpha) > 0.085 {
		t.Errorf("%.3f of null families had a column at alpha %g", got, alpha)
	}
}
