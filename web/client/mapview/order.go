package mapview

import (
	"math"
	"slices"
)

// Sort says in which order a layer's experts stand. Their numbers mean nothing: a layer may be put in any order.
type Sort string

// Sorts.
const (
	ByID      Sort = "id"    // as the model numbers them
	ByValue   Sort = "value" // what the mode shows, largest first, unknown last
	ByCluster Sort = "topic" // experts of one topic side by side: by the topic of the largest lower bound, then by it
)

// Order is where cells are drawn. Both slices are permutations [rows, experts] that keep every cell in its row.
type Order struct {
	Cells  []int // cell drawn at each place
	Places []int // place of each cell
}

// Order sorts every row as the map is now. nil = by number.
func (d *Data) Order(how Sort, mode Mode, topic int, now float64) *Order {
	if how != ByValue && (how != ByCluster || len(d.Topics) == 0) {
		return nil
	}
	n := d.Cells()
	keys := make([]key, n)
	for i := range keys {
		k := &keys[i]
		switch {
		case how == ByCluster:
			k.first, k.second = d.cluster(i)
		case mode == Imbalance:
			k.first = -d.Value(Heat, topic, i, now) // the same order within a layer, without its sum
		case mode == Recency || mode == Q:
			k.first = d.Value(mode, topic, i, now) // small is much
		default:
			k.first = -d.Value(mode, topic, i, now)
		}
		if k.cell = i; math.IsNaN(k.first) {
			k.first = math.Inf(1)
		}
	}
	o := &Order{Cells: make([]int, n), Places: make([]int, n)}
	for row := 0; row < n; row += d.Shape.Experts {
		line := keys[row : row+d.Shape.Experts]
		slices.SortStableFunc(line, compareKeys)
		for i, k := range line {
			o.Cells[row+i], o.Places[k.cell] = k.cell, row+i
		}
	}
	return o
}

// key is where a cell stands in its row, ascending.
type key struct {
	first, second float64
	cell          int
}

func compareKeys(x, y key) int {
	switch {
	case x.first < y.first:
		return -1
	case x.first > y.first:
		return 1
	case x.second < y.second:
		return -1
	case x.second > y.second:
		return 1
	}
	return 0
}

// cluster is the key of ByCluster: the topic in whose lower bound the cell is strongest, cells without any above 1 after
// them, unknown ones (NaN) last.
func (d *Data) cluster(cell int) (first, second float64) {
	best, low := -1, math.Inf(-1)
	for t := range d.Topics {
		if v := at(d.Topics[t].Low, cell); v > low {
			best, low = t, v
		}
	}
	switch {
	case best < 0:
		return math.NaN(), 0
	case low <= 1:
		return float64(len(d.Topics)), -low
	}
	return float64(best), -low
}

// Cell is the cell at a place; o may be nil.
func (o *Order) Cell(place int) int {
	if o == nil {
		return place
	}
	return o.Cells[place]
}

// Place is where a cell is drawn; o may be nil.
func (o *Order) Place(cell int) int {
	if o == nil {
		return cell
	}
	return o.Places[cell]
}
