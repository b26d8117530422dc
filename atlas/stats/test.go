package stats

// This file is the test of (column, topic) pairs: labels are permuted among units within strata, and the largest
// studentised statistic of each permutation corrects for the whole family.

import (
	"errors"
	"math"
	"slices"
)

// Statistic is what a test compares.
type Statistic int

const (
	// LogRatio is log((m_c + a) / (m_rest + a)) over its standard error, for shares: m_c is the mean in topic c, m_rest the
	// mean of the other topics' means, a the column's mean over all rows. The logarithm makes its scale that of lift, and
	// adding a keeps a column that few rows select from making large values out of one of them.
	LogRatio Statistic = iota
	// Difference is (m_c - m_rest) over its standard error, for values of either sign (residuals).
	Difference
)

// TestOptions say how to test.
type TestOptions struct {
	Statistic    Statistic
	Permutations int
	Seed         uint64
	Threads      int    // 0 = GOMAXPROCS
	Family       []bool // [cols, topics] pairs that are tested; nil = all
	Group        []int  // [cols] group (layer) whose null values are pooled for Q; nil = one group
}

// Tests holds the result; slices are [cols, topics]. Pairs outside the family have P and Q of 1 and a T of 0.
type Tests struct {
	T []float64 // statistic as observed
	P []float64 // corrected: part of permutations whose largest statistic over the family reaches T (one-sided, upper)
	Q []float64 // Benjamini-Hochberg over the family, from nulls pooled in a group
	// Maxima are the largest statistic of every permutation, ascending.
	Maxima []float64
}

// Critical is the statistic that a pair must exceed to be significant at alpha after correction.
func (t *Tests) Critical(alpha float64) float64 {
	// P(T) = (1 + #{maxima >= T}) / (B+1) <= alpha allows at most floor(alpha (B+1)) - 1 maxima at or above T.
	above := int(math.Floor(alpha*float64(len(t.Maxima)+1)+1e-9)) - 1
	if above < 0 {
		return math.Inf(1)
	}
	return t.Maxima[len(t.Maxima)-1-above]
}

// Permutation tests every pair of the family.
func Permutation(x Matrix, d Design, o TestOptions) (*Tests, error) {
	s, err := newStudent(x, d, o.Statistic, o.Family)
	if err != nil {
		return nil, err
	}
	if o.Permutations < 1 {
		return nil, errors.New("stats: a permutation test needs permutations")
	}
	draws := s.units.permutations(o.Permutations, o.Seed)
	groups := 1
	for _, g := range o.Group {
		groups = max(groups, g+1)
	}
	blocks := (x.Cols + width - 1) / width
	workers := workerCount(blocks, o.Threads)
	maxima := make([][]float64, workers)
	nulls := make([][]tail, workers)
	for w := range workers {
		maxima[w] = slices.Repeat([]float64{evidence}, len(draws))
		nulls[w] = make([]tail, groups)
	}
	t := make([]float64, x.Cols*d.Topics)
	group := func(col int) int {
		if o.Group == nil {
			return 0
		}
		return o.Group[col]
	}
	observed := s.units.identity()
	s.run(x, o.Threads, func(worker, from, cols int, b *block, m []moments) {
		b.measure(observed, m)
		s.each(m, from, cols, 0, func(col, c int, v float64) { t[col*d.Topics+c] = v })
		for i, list := range draws {
			b.measure(list, m)
			top := maxima[worker][i]
			s.each(m, from, cols, evidence, func(col, _ int, v float64) {
				top = max(top, v)
				nulls[worker][group(col)].add(v)
			})
			maxima[worker][i] = top
		}
	})
	out := &Tests{T: t, P: make([]float64, len(t)), Q: make([]float64, len(t)), Maxima: maxima[0]}
	for w := 1; w < workers; w++ {
		for i, v := range maxima[w] {
			out.Maxima[i] = max(out.Maxima[i], v)
		}
		for g := range groups {
			nulls[0][g].merge(&nulls[w][g])
		}
	}
	slices.Sort(out.Maxima)
	// Every permutation gave every family pair of the group a null value, most of them below evidence.
	for i := range t {
		if s.in(i) {
			nulls[0][group(i/d.Topics)].total += int64(len(draws))
		}
	}
	var raw []float64
	var pairs []int
	for i, v := range t {
		if !s.in(i) {
			out.P[i], out.Q[i] = 1, 1
			continue
		}
		at, _ := slices.BinarySearch(out.Maxima, v) // maxima below v
		out.P[i] = float64(1+len(out.Maxima)-at) / float64(len(out.Maxima)+1)
		raw = append(raw, nulls[0][group(i/d.Topics)].p(v))
		pairs = append(pairs, i)
	}
	for i, q := range BenjaminiHochberg(raw) {
		out.Q[pairs[i]] = q
	}
	return out, nil
}

// student computes studentised statistics for blocks of columns.
type student struct {
	units  *units
	kind   Statistic
	family []bool    // nil = all
	level  []float64 // [cols] a of LogRatio
	floor  []float64 // [cols] smallest variance of the statistic, against division by rounding noise
}

func newStudent(x Matrix, d Design, kind Statistic, family []bool) (*student, error) {
	if err := d.check(x.Rows); err != nil {
		return nil, err
	}
	if family != nil && len(family) != x.Cols*d.Topics {
		return nil, errors.New("stats: the family does not cover the pairs")
	}
	u, err := newUnits(d)
	if err != nil {
		return nil, err
	}
	s := &student{units: u, kind: kind, family: family, level: make([]float64, x.Cols), floor: make([]float64, x.Cols)}
	square := make([]float64, x.Cols)
	for r := range x.Rows {
		for e, v := range x.Row(r) {
			s.level[e] += v
			square[e] += v * v
		}
	}
	for e := range s.level {
		s.level[e] /= float64(x.Rows)
		// The fixed point has 17 bits; a standard error below a millionth of the column's magnitude is rounding.
		s.floor[e] = 1e-12
		if kind == Difference {
			s.floor[e] *= square[e] / float64(x.Rows)
		}
	}
	return s, nil
}

func (s *student) in(pair int) bool { return s.family == nil || s.family[pair] }

// run loads every block of columns and hands it over.
func (s *student) run(x Matrix, threads int, visit func(worker, from, cols int, b *block, m []moments)) {
	blocks := (x.Cols + width - 1) / width
	scratch := make([]*block, workerCount(blocks, threads))
	means := make([][]moments, len(scratch))
	inBlocks(blocks, threads, func(worker, i int) {
		if scratch[worker] == nil {
			scratch[worker] = newBlock(s.units)
			means[worker] = make([]moments, s.units.topics)
		}
		from := i * width
		cols := scratch[worker].load(x, from)
		visit(worker, from, cols, scratch[worker], means[worker])
	})
}

// each calls f with the statistic of every family pair of the block that is at least least. Comparing comes first and
// costs a few products: log x <= (x-1)/sqrt(x) for x >= 1, so t*t*var < (own-rest)^2/(own*rest) wherever t is exceeded.
// Without a bound (least <= 0) every pair is computed.
func (s *student) each(m []moments, from, cols int, least float64, f func(col, topic int, t float64)) {
	per := 1 / float64(len(m)-1)
	mean, variance := totals(m)
	for c := range m {
		for j := range cols {
			col := from + j
			if s.family != nil && !s.family[col*len(m)+c] {
				continue
			}
			own, rest := m[c].mean[j], (mean[j]-m[c].mean[j])*per
			v, w := m[c].variance[j], max(0, variance[j]-m[c].variance[j])*(per*per)
			if s.kind == Difference {
				d := own - rest
				if least > 0 && (d < 0 || d*d < least*least*(v+w)) {
					continue
				}
				f(col, c, ratio(d, math.Sqrt(v+w+s.floor[col])))
				continue
			}
			own += s.level[col]
			rest += s.level[col]
			if d := own - rest; least > 0 && (d < 0 || d*d*own*rest < least*least*(v*rest*rest+w*own*own)) {
				continue
			}
			f(col, c, ratio(math.Log(own/rest), math.Sqrt(v/(own*own)+w/(rest*rest)+s.floor[col])))
		}
	}
}

// ratio is a / b, 0 where neither exists (a column without any value).
func ratio(a, b float64) float64 {
	if b == 0 || math.IsNaN(a) || math.IsNaN(b) {
		return 0
	}
	return a / b
}

// evidence is the statistic below which a pair shows none: it is not counted among the null values, and its p is 1. With
// fewer than about 20 pairs this makes a p of 0.02 to 1 larger than it would be; it never makes one smaller.
const evidence = 2.0

// tail counts the null statistics of a group that reach evidence, by size, finely enough that its rounding (1/64 of a
// standard error, always towards the larger p) does not matter.
type tail struct {
	bins  [2048]int64
	total int64 // null values in all
}

func bin(t float64) int { return min(int(t*64), len(tail{}.bins)-1) }

func (h *tail) add(t float64) { h.bins[bin(t)]++ }

func (h *tail) merge(o *tail) {
	for i, n := range o.bins {
		h.bins[i] += n
	}
}

// p is the part of null statistics at or above t, the observed one counted among them.
func (h *tail) p(t float64) float64 {
	if t < evidence {
		return 1
	}
	n := int64(1)
	for _, k := range h.bins[bin(t):] {
		n += k
	}
	return float64(n) / float64(h.total+1)
}
