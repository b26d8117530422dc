// Package stats holds the atlas's statistics: means of shares by topic, a permutation test corrected over the whole
// family, bootstrap intervals of the lift, information measures with their bias removed, and topic decoding.
//
// The observation is a prompt; prompts of one cluster (one template, one source) move together, so the unit that is
// permuted and resampled is the cluster. The package knows numbers only: no model, no file, no clock. Everything is
// seeded, and equal seeds give equal results whatever the number of goroutines: sums over units are exact integers
// (file sums.go), and each expert's results depend on its own column and on the draws, which all experts share.
//
// Sources. Studentised permutation of group means: Janssen (1997), Chung and Romano (2013). max-T correction:
// Westfall and Young (1993), single step. Bootstrap-t: Efron (1981), Hall (1988). Cluster variance of a ratio mean:
// Cochran, Sampling Techniques (1977), 9A. False discovery rate: Benjamini and Hochberg (1995). Binomial interval:
// Wilson (1927). Stratified rate ratio: Mantel and Haenszel (1959), variance form of Rothman (1986).
package stats

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Matrix is row-major numbers [Rows, Cols]: prompts by experts.
type Matrix struct {
	Rows, Cols int
	Data       []float64
}

// NewMatrix returns zeros.
func NewMatrix(rows, cols int) Matrix {
	return Matrix{Rows: rows, Cols: cols, Data: make([]float64, rows*cols)}
}

// Row returns row r; it aliases the matrix.
func (m Matrix) Row(r int) []float64 { return m.Data[r*m.Cols : (r+1)*m.Cols] }

// Columns returns a copy that holds the named columns in the given order.
func (m Matrix) Columns(cols []int) Matrix {
	out := NewMatrix(m.Rows, len(cols))
	for r := range m.Rows {
		from, to := m.Row(r), out.Row(r)
		for i, c := range cols {
			to[i] = from[c]
		}
	}
	return out
}

// Select returns a copy that holds the named rows in the given order.
func (m Matrix) Select(rows []int) Matrix {
	out := NewMatrix(len(rows), m.Cols)
	for i, r := range rows {
		copy(out.Row(i), m.Row(r))
	}
	return out
}

// Design says how the rows of a matrix relate: their topic, their cluster, their length.
type Design struct {
	Topics  int
	Topic   []int // [rows] 0..Topics-1
	Cluster []int // [rows] any numbering; equal = same cluster
	Length  []int // [rows] tokens
}

// Select returns the design of the named rows.
func (d Design) Select(rows []int) Design {
	out := Design{Topics: d.Topics}
	for _, r := range rows {
		out.Topic = append(out.Topic, d.Topic[r])
		out.Cluster = append(out.Cluster, d.Cluster[r])
		out.Length = append(out.Length, d.Length[r])
	}
	return out
}

// check reports a design that does not fit rows rows.
func (d Design) check(rows int) error {
	if len(d.Topic) != rows || len(d.Cluster) != rows || len(d.Length) != rows {
		return fmt.Errorf("stats: design of %d topics, %d clusters and %d lengths for %d rows", len(d.Topic), len(d.Cluster), len(d.Length), rows)
	}
	if d.Topics < 2 {
		return fmt.Errorf("stats: %d topics: a lift needs at least 2", d.Topics)
	}
	for r, c := range d.Topic {
		if c < 0 || c >= d.Topics {
			return fmt.Errorf("stats: row %d has topic %d of %d", r, c, d.Topics)
		}
	}
	return nil
}

// Means returns the mean of every column in each topic, [cols, topics]: every row weighs the same.
func Means(x Matrix, d Design) []float64 {
	out := make([]float64, x.Cols*d.Topics)
	n := make([]float64, d.Topics)
	for r, c := range d.Topic {
		n[c]++
		for e, v := range x.Row(r) {
			out[e*d.Topics+c] += v
		}
	}
	for i := range out {
		if k := n[i%d.Topics]; k > 0 {
			out[i] /= k
		}
	}
	return out
}

// inBlocks calls work for every block of width columns on at most threads goroutines (0 = GOMAXPROCS). work(worker,
// block) gets a worker number below the returned count, for scratch that a goroutine owns.
func inBlocks(blocks, threads int, work func(worker, block int)) {
	workers := workerCount(blocks, threads)
	var next atomic.Int64
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for b := int(next.Add(1)) - 1; b < blocks; b = int(next.Add(1)) - 1 {
				work(w, b)
			}
		})
	}
	group.Wait()
}

// workerCount is how many goroutines inBlocks uses.
func workerCount(blocks, threads int) int {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	return max(1, min(threads, blocks))
}
