package model

import "covey/engine/canon"

// Batch is one step: rows of one or many sequences, in any mix of prefill and decode. What a row computes depends on its
// own sequence alone, never on its neighbours or on how a prompt was cut (numerics rule 6).
type Batch struct {
	canon.Step
	Keep []*Residuals // [slots] where a sequence's rows are kept; nil = none at all, a nil entry = not of this one
	From []*Residuals // [slots] nil = the rows begin with their tokens; else all begin at Router with what From holds
	// Router is where rows with From begin, in the order of the MoE layers: the layers before it are not run, so Output has
	// neither choices nor bytes of them.
	Router int
}

// Ban is a set of experts that the rows of a sequence must not choose (ablation); see NewBan.
type Ban = canon.Ban

// Output is what a step computed. All slices view memory of the model and stay valid until the next Step.
type Output struct {
	Logits  [][]float32 // [len(Batch.LogitRows)][vocab]; void where a token was drawn
	Drawn   []int32     // [len(Batch.LogitRows)] tokens that the backend drew of Batch.Draws, -1 where it did not; nil = none
	Faults  []error     // [rows] why a row's numbers are worthless (errors of canon: ErrNonFinite, ...), or nil; the slice is nil when all rows are fine
	IDs     []uint16    // [rows, MoE layers, k] chosen experts in rank order
	Weights []float32   // [rows, MoE layers, k] their combination weights
	Bytes   int64       // expert bytes this step read, each expert record counted once
	Fetched Fetched     // where its experts came from
}
