package stats

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

// SignFlips tests whether column sums of scores exceed what chance gives, where scores [rows, cols] have mean 0 under the
// null and rows of one cluster move together: t = sum / sqrt(sum of squared cluster sums), compared with the largest t
// over all columns when every cluster's sign is drawn at random (a score bootstrap, Kline and Santos 2012; the max over
// columns corrects as in Permutation). One-sided, upper; p is corrected over the columns.
func SignFlips(scores Matrix, cluster []int, draws int, seed uint64) (t, p []float64, err error) {
	if len(cluster) != scores.Rows || draws < 1 {
		return nil, nil, errors.New("stats: sign flips need a cluster for every row, and draws")
	}
	number := map[int]int{}
	for _, k := range cluster {
		if _, ok := number[k]; !ok {
			number[k] = len(number)
		}
	}
	sums := NewMatrix(len(number), scores.Cols)
	for r := range scores.Rows {
		to := sums.Row(number[cluster[r]])
		for c, v := range scores.Row(r) {
			to[c] += v
		}
	}
	scale := make([]float64, scores.Cols)
	for g := range sums.Rows {
		for c, v := range sums.Row(g) {
			scale[c] += v * v
		}
	}
	for c, v := range scale {
		scale[c] = math.Sqrt(v)
	}
	t = make([]float64, scores.Cols)
	flipped := func(sign func(g int) float64, out []float64) {
		clear(out)
		for g := range sums.Rows {
			s := sign(g)
			for c, v := range sums.Row(g) {
				out[c] += s * v
			}
		}
		for c := range out {
			out[c] = ratio(out[c], scale[c])
		}
	}
	flipped(func(int) float64 { return 1 }, t)
	maxima := make([]float64, draws)
	inBlocks(draws, 0, func(_, i int) {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		out := make([]float64, scores.Cols)
		flipped(func(int) float64 { return float64(int(random.Uint64()>>63))*2 - 1 }, out)
		maxima[i] = slices.Max(append(out, math.Inf(-1)))
	})
	slices.Sort(maxima)
	p = make([]float64, scores.Cols)
	for c, v := range t {
		at, _ := slices.BinarySearch(maxima, v)
		p[c] = float64(1+draws-at) / float64(draws+1)
	}
	return t, p, nil
}
