package model

// Batch is one step: rows of one or many sequences, in any mix of prefill and decode. Rows of one sequence must be
// consecutive positions in ascending order, and every earlier position of that sequence must already lie in its pages
// (from earlier steps or from earlier rows of this one). What a row computes depends on its own sequence alone, never
// on its neighbours or on how a prompt was cut (numerics rule 6).
type Batch struct {
	Tokens    []int32   // [rows] input token
	Positions []int32   // [rows] position of the token in its sequence
	Slots     []int32   // [rows] index into Pages
	Pages     [][]int32 // [slots] KV pages of each sequence in order of position, 64 positions each
	Logits    []int32   // rows whose logits are wanted, ascending
	Banned    []*Mask   // [rows] experts that a row must not choose; nil = none anywhere, a nil entry = none for that row
}

// Output is what a step computed. All slices view memory of the model and stay valid until the next Step.
type Output struct {
	Logits    [][]float32 // [len(Batch.Logits)][vocab]
	NonFinite []error     // [rows] why a row's numbers are worthless (wraps canon.ErrNonFinite), or nil; the slice is nil when all rows are fine
	IDs       []uint16    // [rows, MoE layers, k] chosen experts in rank order
	Weights   []float32   // [rows, MoE layers, k] their combination weights
	Bytes     int64       // expert bytes this step read, each expert record counted once
}

// Mask is a set of banned experts over all MoE layers of a model. It is immutable once handed to a Batch.
type Mask struct {
	words []uint64 // [MoE layers, stride] bit e = expert e is banned
}
