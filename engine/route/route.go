// Package route defines routing events: which experts served which token, with what weight, from which tier.
//
// One encoding serves the in-memory ring, the blob that the store keeps per turn, the wire and the atlas, so that what
// a person sees live is bit for bit what an atlas counts later. The package knows shapes and bytes only: no model, no
// clock, no I/O.
package route

// Tier says where an expert's bytes were when a row needed them.
type Tier uint8

// Tiers in order of distance from the arithmetic.
const (
	TierRAM  Tier = iota // pageable host memory
	TierVRAM             // device memory
	TierPin              // pinned host memory
	TierDisk             // read during the step
)

// Shape is the routing geometry of a model: what one row of routing holds.
type Shape struct {
	Layers  []int // model layer index of each MoE layer, ascending
	Experts int   // routed experts a layer (E)
	TopK    int   // experts chosen for each row (k)
}

// Slots is the number of (layer, rank) places in one row: len(Layers) * TopK.
func (s Shape) Slots() int { return len(s.Layers) * s.TopK }

// Event is the routing of the rows of one sequence in one step. Slices are owned by the event and immutable once it
// has been handed out. Index of (row r, MoE layer j, rank i) in IDs and Weights: (r*len(Layers)+j)*TopK + i; ranks are
// the router's order (choice score descending).
type Event struct {
	Step      uint64    // step number of the engine, ascending
	Sequence  uint64    // request that owns the rows
	Position  int       // position of the first row in its sequence; rows are consecutive
	Tokens    []int32   // [rows] input token of each row
	IDs       []uint16  // [rows, layers, k] expert ids
	Weights   []float32 // [rows, layers, k] combination weights as the forward pass used them
	Tiers     []Tier    // [rows, layers, k]; nil means every expert was in RAM
	Bytes     int64     // expert bytes this step read for these rows, each expert record counted once a step
	StepNanos int64     // wall time of the step
}

// Rows is the number of token positions the event covers.
func (e *Event) Rows() int { return len(e.Tokens) }

// Row returns the ids and weights of row r, each [layers, k]: views into the event.
func (e *Event) Row(s Shape, r int) (ids []uint16, weights []float32) {
	n := s.Slots()
	return e.IDs[r*n : (r+1)*n : (r+1)*n], e.Weights[r*n : (r+1)*n : (r+1)*n]
}
