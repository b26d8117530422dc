package stats

// This file turns a design into units (what is permuted and resampled) and draws lists of them.
//
// A cluster inside one topic is one unit: its prompts share a template or a source, so they are not independent. A
// cluster that crosses topics would lose its meaning if moved whole: its prompts are units of their own, and labels are
// permuted only within it, which removes the cluster from the comparison. All other units are permuted within strata
// of length, so that a share which merely follows text length cannot make a label.

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// lengthStrata is the number of strata of length: quarters of the units, fewer when there are few units.
const lengthStrata = 4

// maxUnits bounds the units so that a draw fits 16-bit indices.
const maxUnits = 1 << 16

// units is a design made ready for drawing.
type units struct {
	topics int
	rows   [][]int   // [units] rows of each unit; units are sorted by topic
	first  []int     // [topics+1] first unit of each topic
	strata [][]int   // units that may exchange labels
	size   []float64 // [units] rows in each
	single bool      // every unit is one row
}

func newUnits(d Design) (*units, error) {
	type unit struct {
		topic    int
		crossing int // number of the topic-crossing cluster it stands in; -1 = none
		length   float64
		rows     []int
	}
	members := map[int][]int{}
	var order []int
	for r, k := range d.Cluster {
		if members[k] == nil {
			order = append(order, k)
		}
		members[k] = append(members[k], r)
	}
	var all []unit
	crossings := 0
	for _, k := range order {
		rows := members[k]
		if slices.ContainsFunc(rows, func(r int) bool { return d.Topic[r] != d.Topic[rows[0]] }) {
			for _, r := range rows {
				all = append(all, unit{d.Topic[r], crossings, float64(d.Length[r]), []int{r}})
			}
			crossings++
			continue
		}
		sum := 0
		for _, r := range rows {
			sum += d.Length[r]
		}
		all = append(all, unit{d.Topic[rows[0]], -1, float64(sum) / float64(len(rows)), rows})
	}
	if len(all) > maxUnits {
		return nil, fmt.Errorf("stats: %d units: at most %d", len(all), maxUnits)
	}
	slices.SortStableFunc(all, func(a, b unit) int { return cmp.Compare(a.topic, b.topic) })

	u := &units{topics: d.Topics, first: make([]int, d.Topics+1), single: true}
	crossing := make([][]int, crossings)
	var byLength []int
	for i, x := range all {
		u.rows = append(u.rows, x.rows)
		u.size = append(u.size, float64(len(x.rows)))
		u.single = u.single && len(x.rows) == 1
		u.first[x.topic+1]++
		if x.crossing >= 0 {
			crossing[x.crossing] = append(crossing[x.crossing], i)
		} else {
			byLength = append(byLength, i)
		}
	}
	for c := range d.Topics {
		if u.first[c+1] < 2 {
			return nil, fmt.Errorf("stats: topic %d has %d clusters: a variance needs at least 2", c, u.first[c+1])
		}
		u.first[c+1] += u.first[c]
	}
	slices.SortStableFunc(byLength, func(a, b int) int { return cmp.Compare(all[a].length, all[b].length) })
	// Strata of equal size, at least two units a topic on average in each; equal lengths stay together.
	strata := max(1, min(lengthStrata, len(byLength)/(2*d.Topics)))
	var stratum []int
	for i, unit := range byLength {
		full := i >= (len(u.strata)+1)*len(byLength)/strata
		if full && all[unit].length != all[byLength[i-1]].length {
			u.strata = append(u.strata, stratum)
			stratum = nil
		}
		stratum = append(stratum, unit)
	}
	if len(stratum) > 0 {
		u.strata = append(u.strata, stratum)
	}
	u.strata = append(u.strata, crossing...)
	return u, nil
}

// draw is one list of units for every topic: units of topic c are list[first[c]:first[c+1]].
type draw []uint16

// identity is the list as observed.
func (u *units) identity() draw {
	out := make(draw, len(u.rows))
	for i := range out {
		out[i] = uint16(i)
	}
	return out
}

// permutations draws n lists in which labels are permuted within strata. Every topic keeps its number of units.
func (u *units) permutations(n int, seed uint64) []draw {
	out := make([]draw, n)
	for b := range out {
		random := rand.New(rand.NewPCG(seed, uint64(b)*2+1))
		list := u.identity()
		for _, stratum := range u.strata {
			// stratum lists places; shuffling the units that stand in them permutes the labels.
			for i := len(stratum) - 1; i > 0; i-- {
				j := random.IntN(i + 1)
				list[stratum[i]], list[stratum[j]] = list[stratum[j]], list[stratum[i]]
			}
		}
		out[b] = list
	}
	return out
}

// resamples draws n lists in which each topic's units are drawn with replacement from its own.
func (u *units) resamples(n int, seed uint64) []draw {
	out := make([]draw, n)
	for b := range out {
		random := rand.New(rand.NewPCG(seed, uint64(b)*2+2))
		list := make(draw, len(u.rows))
		for c := range u.topics {
			from, to := u.first[c], u.first[c+1]
			for i := from; i < to; i++ {
				list[i] = uint16(from + random.IntN(to-from))
			}
		}
		out[b] = list
	}
	return out
}

// relabel is the design after a permutation: every row takes the topic of the place where its unit now stands.
func (u *units) relabel(d Design, list draw) Design {
	out := Design{Topics: d.Topics, Topic: make([]int, len(d.Topic)), Cluster: d.Cluster, Length: d.Length}
	for c := range u.topics {
		for _, unit := range list[u.first[c]:u.first[c+1]] {
			for _, r := range u.rows[unit] {
				out.Topic[r] = c
			}
		}
	}
	return out
}
