package mapview

import (
	"cmp"
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
	keys := make([][2]float64, n) // ascending
	for i := range keys {
		if how == ByValue {
			if mode == Imbalance {
				keys[i] = [2]float64{-d.Value(Heat, topic, i, now)} // the same order within a layer, without its sum
				continue
			}
			keys[i] = [2]float64{-d.Value(mode, topic, i, now)}
			if mode == Recency || mode == Q {
				keys[i][0] = -keys[i][0] // small is much
			}
		} else {
			keys[i] = d.cluster(i)
		}
		if math.IsNaN(keys[i][0]) {
			keys[i][0] = math.Inf(1)
		}
	}
	o := &Order{Cells: make([]int, n), Places: make([]int, n)}
	for i := range o.Cells {
		o.Cells[i] = i
	}
	for row := 0; row < n; row += d.Shape.Experts {
		slices.SortStableFunc(o.Cells[row:row+d.Shape.Experts], func(x, y int) int {
			return cmp.Or(cmp.Compare(keys[x][0], keys[y][0]), cmp.Compare(keys[x][1], keys[y][1]))
		})
	}
	for place, cell := range o.Cells {
		o.Places[cell] = place
	}
	return o
}

// cluster is the key of ByCluster: the topic in whose lower bound the cell is strongest, cells without any above 1 after
// them, unknown ones last.
func (d *Data) cluster(cell int) [2]float64 {
	best, low := -1, math.Inf(-1)
	for t := range d.Topics {
		if v := at(d.Topics[t].Low, cell); v > low {
			best, low = t, v
		}
	}
	switch {
	case best < 0:
		return [2]float64{math.NaN()}
	case low <= 1:
		return [2]float64{float64(len(d.Topics)), -low}
	}
	return [2]float64{float64(best), -low}
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
