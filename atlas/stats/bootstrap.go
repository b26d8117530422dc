package stats

// This file puts intervals on lift. Lift is C times affinity p(c|e) = m_c / sum of m, so an interval of one is an
// interval of the other. The bootstrap works on the logit of affinity, log(m_c / sum of the other m): it is log lift up
// to a monotone map, and its standard error stays away from 0 where lift comes near its bound C. Half a selection a
// topic is added to every mean, so that a topic without any has a finite logit.

import (
	"errors"
	"math"
)

// BootstrapOptions say how to resample.
type BootstrapOptions struct {
	Draws   int
	Seed    uint64
	Threads int
	Level   float64 // of confidence; 0 = 0.95
	Pseudo  float64 // share added to each topic's mean: half a selection over the tokens of a topic
}

// Intervals of lift; slices are [cols, topics], between 0 and the number of topics. A pair about which nothing is known
// (a column without any value) has the interval from 0 to C.
type Intervals struct {
	Lift           []float64 // as observed, Pseudo added: always within Low and High
	Low, High      []float64 // bootstrap-t (Hall 1988): the studentised error's quantiles around the observed value
	PercentileLow  []float64 // quantiles of the resampled lift itself, the plainer interval that reads too narrow when skewed
	PercentileHigh []float64
}

// Bootstrap resamples clusters within topics and returns intervals for every pair.
func Bootstrap(x Matrix, d Design, o BootstrapOptions) (*Intervals, error) {
	s, err := newStudent(x, d, LogRatio, nil)
	if err != nil {
		return nil, err
	}
	if o.Draws < 1 {
		return nil, errors.New("stats: a bootstrap needs draws")
	}
	level := o.Level
	if level == 0 {
		level = 0.95
	}
	// Order statistics of B draws: the k-th smallest and largest with k = (B+1) * tail.
	k := int(math.Floor(float64(o.Draws+1)*(1-level)/2+1e-9)) - 1
	if k < 0 {
		return nil, errors.New("stats: too few draws for this level of confidence")
	}
	topics := d.Topics
	n := x.Cols * topics
	out := &Intervals{make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)}
	draws := s.units.resamples(o.Draws, o.Seed)
	observed := s.units.identity()
	scratches := make([]*resampled, workerCount((x.Cols+width-1)/width, o.Threads))
	s.run(x, o.Threads, func(worker, from, cols int, b *block, m []moments) {
		if scratches[worker] == nil {
			scratches[worker] = newResampled(topics, len(draws))
		}
		sc := scratches[worker]
		b.measure(observed, m)
		sc.observe(m, o.Pseudo)
		for i, list := range draws {
			b.measure(list, m)
			sc.add(i, m, o.Pseudo)
		}
		for j := range cols {
			for c := range topics {
				at, p := (from+j)*topics+c, c*width+j
				out.Lift[at] = float64(topics) * sc.affinity[p]
				if s.level[from+j] == 0 {
					out.High[at], out.PercentileHigh[at] = float64(topics), float64(topics)
					continue
				}
				low, high := extremes(sc.t[p], k, sc.spare)
				// A skewed sample of few clusters can have all its studentised errors on one side; the estimate stays inside.
				out.Low[at] = min(out.Lift[at], lift(sc.logit[p]-unsquare(high)*sc.err[p], topics))
				out.High[at] = max(out.Lift[at], lift(sc.logit[p]-unsquare(low)*sc.err[p], topics))
				low, high = extremes(sc.p[p], k, sc.spare)
				out.PercentileLow[at], out.PercentileHigh[at] = float64(topics)*float64(low), float64(topics)*float64(high)
			}
		}
	})
	return out, nil
}

// resampled holds what one goroutine has drawn of a block: for pair (topic c, column j) at c*width+j, every draw's
// affinity and its studentised error in the form sign(t)*t*t, which needs no root.
type resampled struct {
	affinity, odds, logit, err []float64 // [topics*width] as observed
	t, p                       [][]float32
	spare                      []float32
}

func newResampled(topics, draws int) *resampled {
	n := topics * width
	r := &resampled{affinity: make([]float64, n), odds: make([]float64, n), logit: make([]float64, n), err: make([]float64, n)}
	r.t, r.p, r.spare = make([][]float32, n), make([][]float32, n), make([]float32, 0, draws)
	for i := range n {
		r.t[i], r.p[i] = make([]float32, draws), make([]float32, draws)
	}
	return r
}

// totals sums means and variances over topics.
func totals(m []moments) (mean, variance [width]float64) {
	for c := range m {
		for j := range width {
			mean[j] += m[c].mean[j]
			variance[j] += m[c].variance[j]
		}
	}
	return mean, variance
}

// observe takes the values that the draws vary around.
func (r *resampled) observe(m []moments, pseudo float64) {
	mean, variance := totals(m)
	for c := range m {
		for j := range width {
			own, rest, square := parts(&m[c], j, mean[j], variance[j], len(m), pseudo)
			p := c*width + j
			r.affinity[p], r.odds[p], r.logit[p], r.err[p] = 0, 1, 0, 0
			if own > 0 && rest > 0 {
				r.affinity[p], r.odds[p], r.logit[p], r.err[p] = own/(own+rest), own/rest, math.Log(own/rest), math.Sqrt(square)/(own*rest)
			}
		}
	}
}

// add takes draw i.
func (r *resampled) add(i int, m []moments, pseudo float64) {
	mean, variance := totals(m)
	for c := range m {
		for j := range width {
			own, rest, square := parts(&m[c], j, mean[j], variance[j], len(m), pseudo)
			p := c*width + j
			r.p[p][i] = float32(own / (own + rest))
			l := logRatio(own, rest*r.odds[p])
			r.t[p][i] = float32(studentised(l*own*rest, square))
		}
	}
}

// parts returns the smoothed mean of a topic, that of the others' sum, and the squared standard error of
// log(own/rest) times (own*rest)^2: var(own)*rest^2 + var(rest)*own^2, by the delta method.
func parts(m *moments, j int, mean, variance float64, topics int, pseudo float64) (own, rest, square float64) {
	own = m.mean[j] + pseudo
	rest = max(0, mean-m.mean[j]) + pseudo*float64(topics-1)
	return own, rest, m.variance[j]*rest*rest + max(0, variance-m.variance[j])*own*own
}

// studentised is sign(d) * d*d / square. A resample without variance says nothing unless it lies on the observed value;
// otherwise it counts as extreme on its side.
func studentised(d, square float64) float64 {
	if square > 0 {
		return d * math.Abs(d) / square
	}
	if math.Abs(d) < 1e-12 || math.IsNaN(d) {
		return 0
	}
	return math.Copysign(math.Inf(1), d)
}

// unsquare undoes the square of studentised.
func unsquare(v float32) float64 { return math.Copysign(math.Sqrt(math.Abs(float64(v))), float64(v)) }

// logRatio is log(a/b) for positive a and b. Near 1 it is the series of 2 atanh((a-b)/(a+b)), whose error there is below
// 1e-8 and which costs a third of a logarithm.
func logRatio(a, b float64) float64 {
	z := (a - b) / (a + b)
	if z > -1.0/3 && z < 1.0/3 {
		s := z * z
		return 2 * z * (1 + s*(1.0/3+s*(1.0/5+s*(1.0/7+s*(1.0/9+s*(1.0/11+s*(1.0/13)))))))
	}
	return math.Log(a / b)
}

// lift maps a logit of affinity to lift: C / (1 + exp(-x)).
func lift(x float64, topics int) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return float64(topics) / (1 + math.Exp(-x))
}

// extremes returns the k-th smallest and k-th largest value (k from 0). It may reorder v. A sample bounds each tail, so
// that one pass over v leaves few values to select from; spare has capacity for len(v).
func extremes(v []float32, k int, spare []float32) (low, high float32) {
	const sample, rank = 64, 5
	if len(v) < 8*sample {
		low = nth(v, k)
		return low, nth(v, len(v)-1-k)
	}
	first := append(spare[:0], v[:sample]...)
	below := nth(first, rank)
	above := nth(first, sample-1-rank)
	few := spare[:0]
	for _, x := range v {
		if x <= below {
			few = append(few, x)
		}
	}
	if len(few) > k {
		low = nth(few, k)
	} else {
		low = nth(v, k)
	}
	few = spare[:0]
	for _, x := range v {
		if x >= above {
			few = append(few, x)
		}
	}
	if len(few) > k {
		return low, nth(few, len(few)-1-k)
	}
	return low, nth(v, len(v)-1-k)
}

// nth returns the value that would stand at place k if v were sorted (Hoare's selection with a median of three).
func nth(v []float32, k int) float32 {
	lo, hi := 0, len(v)-1
	for lo < hi {
		mid := lo + (hi-lo)/2
		if v[mid] < v[lo] {
			v[mid], v[lo] = v[lo], v[mid]
		}
		if v[hi] < v[lo] {
			v[hi], v[lo] = v[lo], v[hi]
		}
		if v[hi] < v[mid] {
			v[hi], v[mid] = v[mid], v[hi]
		}
		pivot := v[mid]
		i, j := lo, hi
		for i <= j {
			for v[i] < pivot {
				i++
			}
			for v[j] > pivot {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			hi = j
		case k >= i:
			lo = i
		default:
			return v[k]
		}
	}
	return v[k]
}
