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

// Ordering sorts the rows of a map one after another, so that a large map costs several short tasks instead of a long one.
type Ordering struct {
	data  *Data
	how   Sort
	mode  Mode
	topic int
	now   float64
	order *Order // nil = by number
	keys  []key  // of one row
	row   int    // the next one
}

// Ordering prepares an order of the map as it is now.
func (d *Data) Ordering(how Sort, mode Mode, topic int, now float64) *Ordering {
	o := &Ordering{data: d, how: how, mode: mode, topic: topic, now: now}
	if how == ByValue || how == ByCluster && len(d.Topics) > 0 {
		n := d.Cells()
		o.order = &Order{Cells: make([]int, n), Places: make([]int, n)}
		o.keys = make([]key, d.Shape.Experts)
	}
	return o
}

// Sort sorts rows until about that many cells are in place; true once all are.
func (o *Ordering) Sort(cells int) bool {
	if o.order == nil {
		return true
	}
	d, n := o.data, o.data.Shape.Experts
	for ; cells > 0 && o.row < len(d.Shape.Layers); cells -= n {
		first := o.row * n
		for i := range o.keys {
			o.keys[i] = o.key(first + i)
		}
		slices.SortStableFunc(o.keys, compareKeys)
		for i, k := range o.keys {
			o.order.Cells[first+i], o.order.Places[k.cell] = k.cell, first+i
		}
		o.row++
	}
	return o.row == len(d.Shape.Layers)
}

// Order is the result once all rows are sorted; nil = by number.
func (o *Ordering) Order() *Order { return o.order }

// key is where a cell belongs in its row; unknown values stand last.
func (o *Ordering) key(cell int) key {
	d, k := o.data, key{cell: cell}
	switch {
	case o.how == ByCluster:
		k.first, k.second = d.cluster(cell)
	case o.mode == Imbalance:
		k.first = -d.Value(Heat, o.topic, cell, o.now) // the same order within a layer, without its sum
	case o.mode == Recency || o.mode == Q:
		k.first = d.Value(o.mode, o.topic, cell, o.now) // small is much
	default:
		k.first = -d.Value(o.mode, o.topic, cell, o.now)
	}
	if math.IsNaN(k.first) {
		k.first = math.Inf(1)
	}
	return k
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
