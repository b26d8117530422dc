package stats

// This file holds measures of one expert's or one layer's dependence on topic, whose values under no dependence are not
// 0 (small counts bias entropies), so that their mean under permuted labels is taken off.

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

// Specificity is 1 - H(p)/ln C of the affinities that the means [topics] give: 0 = the same share everywhere, 1 = one
// topic only. 0 for a column without any value.
func Specificity(means []float64) float64 {
	sum := 0.0
	for _, m := range means {
		sum += max(0, m)
	}
	if sum <= 0 {
		return 0
	}
	h := 0.0
	for _, m := range means {
		if p := m / sum; p > 0 {
			h -= p * math.Log(p)
		}
	}
	return 1 - h/math.Log(float64(len(means)))
}

// Information is one expert's part of I(expert; topic) in bits, topics weighing the same, where total is the sum of the
// means over a layer's experts (k of top-k for shares): sum over c of p(e|c) log2(p(e|c)/p(e)) / C with p(e|c) = m_c/total.
// The parts of a layer's experts add up to its information.
func Information(means []float64, total float64) float64 {
	average := 0.0
	for _, m := range means {
		average += max(0, m)
	}
	average /= float64(len(means))
	if average <= 0 || total <= 0 {
		return 0
	}
	sum := 0.0
	for _, m := range means {
		if m > 0 {
			sum += m * math.Log2(m/average)
		}
	}
	return sum / float64(len(means)) / total
}

// Functional is a number made from one column's means [topics].
type Functional func(col int, means []float64) float64

// PermutedMean returns, for each functional and column, its mean over n permutations of the labels within strata:
// what it shows when there is nothing to see. [functionals][cols].
func PermutedMean(x Matrix, d Design, n int, seed uint64, threads int, fs ...Functional) ([][]float64, error) {
	s, err := newStudent(x, d, LogRatio, nil)
	if err != nil {
		return nil, err
	}
	out := make([][]float64, len(fs))
	for i := range out {
		out[i] = make([]float64, x.Cols)
	}
	draws := s.units.permutations(n, seed)
	s.run(x, threads, func(_, from, cols int, b *block, m []moments) {
		means := make([]float64, d.Topics)
		for _, list := range draws {
			b.measure(list, m)
			for j := range cols {
				for c := range means {
					means[c] = m[c].mean[j]
				}
				for i, f := range fs {
					out[i][from+j] += f(from+j, means) / float64(n)
				}
			}
		}
	})
	return out, nil
}

// Deviations returns, for each functional and group of columns, the standard deviation of its sum over the group's columns
// when clusters are drawn anew within topics (n times): the standard error of that sum. group gives each column's group,
// numbered from 0 without gaps. [functionals][groups].
func Deviations(x Matrix, d Design, n int, seed uint64, threads int, group []int, fs ...Functional) ([][]float64, error) {
	s, err := newStudent(x, d, LogRatio, nil)
	if err != nil {
		return nil, err
	}
	if len(group) != x.Cols || n < 2 {
		return nil, errors.New("stats: deviations need a group for every column, and two draws")
	}
	// Values are kept by column and summed afterwards: a sum made by several goroutines would depend on their order.
	values := make([][]float32, len(fs)) // [functionals][draws*cols]
	for i := range values {
		values[i] = make([]float32, n*x.Cols)
	}
	draws := s.units.resamples(n, seed)
	s.run(x, threads, func(_, from, cols int, b *block, m []moments) {
		means := make([]float64, d.Topics)
		for k, list := range draws {
			b.measure(list, m)
			for j := range cols {
				for c := range means {
					means[c] = m[c].mean[j]
				}
				for i, f := range fs {
					values[i][k*x.Cols+from+j] = float32(f(from+j, means))
				}
			}
		}
	})
	groups := slices.Max(append(slices.Clone(group), -1)) + 1
	out := make([][]float64, len(fs))
	for i := range fs {
		sum, squares := make([]float64, groups), make([]float64, groups)
		for k := range n {
			total := make([]float64, groups)
			for e, g := range group {
				total[g] += float64(values[i][k*x.Cols+e])
			}
			for g, v := range total {
				sum[g] += v
				squares[g] += v * v
			}
		}
		out[i] = make([]float64, groups)
		for g := range out[i] {
			mean := sum[g] / float64(n)
			out[i][g] = math.Sqrt(max(0, squares[g]-float64(n)*mean*mean) / float64(n-1))
		}
	}
	return out, nil
}

// Pearson is the correlation of two series; 0 where one does not vary.
func Pearson(a, b []float64) float64 {
	n := float64(len(a))
	var sa, sb float64
	for i := range a {
		sa += a[i]
		sb += b[i]
	}
	sa, sb = sa/n, sb/n
	var ab, aa, bb float64
	for i := range a {
		x, y := a[i]-sa, b[i]-sb
		ab += x * y
		aa += x * x
		bb += y * y
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return ab / math.Sqrt(aa*bb)
}

// SpearmanBrown is the reliability of the whole from the correlation r of two halves: 2r/(1+r); 0 for r <= 0.
func SpearmanBrown(r float64) float64 {
	if r <= 0 {
		return 0
	}
	return 2 * r / (1 + r)
}

// Contrast is the difference between the means of two groups of prompts, with a 95 % interval by bootstrap-t over the
// prompts of each group. With fewer than two prompts in a group there is no interval: low and high are infinite.
func Contrast(a, b []float64, draws int, seed uint64) (difference, low, high float64) {
	meanA, errA := meanError(a)
	meanB, errB := meanError(b)
	difference = meanA - meanB
	if len(a) < 2 || len(b) < 2 {
		return difference, math.Inf(-1), math.Inf(1)
	}
	err := math.Hypot(errA, errB)
	random := rand.New(rand.NewPCG(seed, 0))
	t := make([]float64, draws)
	x, y := make([]float64, len(a)), make([]float64, len(b))
	for i := range t {
		for j := range x {
			x[j] = a[random.IntN(len(a))]
		}
		for j := range y {
			y[j] = b[random.IntN(len(b))]
		}
		mx, ex := meanError(x)
		my, ey := meanError(y)
		t[i] = ratio(mx-my-difference, math.Hypot(ex, ey))
	}
	slices.Sort(t)
	k := max(0, int(float64(draws+1)*0.025)-1)
	return difference, difference - t[len(t)-1-k]*err, difference - t[k]*err
}

// meanError is the mean and its standard error.
func meanError(v []float64) (mean, err float64) {
	n := float64(len(v))
	for _, x := range v {
		mean += x / n
	}
	for _, x := range v {
		err += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(err / (n * max(1, n-1)))
}
