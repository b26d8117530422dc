package route

import "fmt"

// Counts adds up routing over rows: how often each expert was selected, and with how much weight. The sums depend on
// the order of Add calls only through float rounding: rows ascending, layers ascending, ranks ascending, in float64.
// Not safe for concurrent use.
type Counts struct {
	Shape      Shape
	Rows       uint64
	Selections []uint64  // [layers, experts]
	Mass       []float64 // [layers, experts] sum of combination weights
}

// NewCounts returns zero counts for a shape.
func NewCounts(s Shape) *Counts {
	n := len(s.Layers) * s.Experts
	return &Counts{Shape: s, Selections: make([]uint64, n), Mass: make([]float64, n)}
}

// Index is the place of expert id of MoE layer j (not the model's layer index) in Selections and Mass.
func (c *Counts) Index(j, id int) int { return j*c.Shape.Experts + id }

// Add counts all rows of an event. It fails, counting nothing, if the event does not fit the shape.
func (c *Counts) Add(e *Event) error {
	slots, k := c.Shape.Slots(), c.Shape.TopK
	if len(e.IDs) != e.Rows()*slots || len(e.Weights) != len(e.IDs) {
		return fmt.Errorf("route: counting: %d ids and %d weights for %d rows x %d slots", len(e.IDs), len(e.Weights), e.Rows(), slots)
	}
	for i, id := range e.IDs {
		if int(id) >= c.Shape.Experts {
			return fmt.Errorf("route: counting: slot %d: expert %d of %d", i, id, c.Shape.Experts)
		}
	}
	for i, id := range e.IDs {
		at := c.Index(i%slots/k, int(id))
		c.Selections[at]++
		c.Mass[at] += float64(e.Weights[i])
	}
	c.Rows += uint64(e.Rows())
	return nil
}
