package stats

import "errors"

// Rule is what makes a label.
type Rule struct {
	Critical   float64 // the statistic must exceed it (Tests.Critical)
	MinLift    float64 // the lower bound of lift must exceed it
	MinSupport float64 // part of the topic's rows that must have a value above 0
	Bootstrap  BootstrapOptions
}

// Support is the part of each topic's rows in which the column is above 0, [cols, topics].
func Support(x Matrix, d Design) []float64 {
	some := NewMatrix(x.Rows, x.Cols)
	for i, v := range x.Data {
		if v > 0 {
			some.Data[i] = 1
		}
	}
	return Means(some, d)
}

// ShuffledLabels applies the rule to n designs with shuffled labels and returns how many pairs of the family each would
// label: control 1. The seed must differ from the test's. Pairs that pass the test are few, so support and interval are
// computed for those alone.
func ShuffledLabels(x Matrix, d Design, n int, seed uint64, threads int, family []bool, r Rule) ([]int, error) {
	s, err := newStudent(x, d, LogRatio, family)
	if err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, errors.New("stats: the shuffle control needs shuffles")
	}
	draws := s.units.permutations(n, seed)
	type pair struct{ col, topic int }
	found := make([][][]pair, workerCount((x.Cols+width-1)/width, threads))
	for w := range found {
		found[w] = make([][]pair, n)
	}
	s.run(x, threads, func(worker, from, cols int, b *block, m []moments) {
		for i, list := range draws {
			b.measure(list, m)
			s.each(m, from, cols, evidence, func(col, c int, t float64) {
				if t > r.Critical {
					found[worker][i] = append(found[worker][i], pair{col, c})
				}
			})
		}
	})
	labels := make([]int, n)
	for i := range draws {
		var relabelled Design
		for w := range found {
			for _, p := range found[w][i] {
				if relabelled.Topic == nil {
					relabelled = s.units.relabel(d, draws[i])
				}
				column := x.Columns([]int{p.col})
				if Support(column, relabelled)[p.topic] < r.MinSupport {
					continue
				}
				intervals, err := Bootstrap(column, relabelled, r.Bootstrap)
				if err != nil {
					return nil, err
				}
				if intervals.Low[p.topic] > r.MinLift {
					labels[i]++
				}
			}
		}
	}
	return labels, nil
}
