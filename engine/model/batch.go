package model

import "covey/engine/canon"

// Batch is one step: rows of one or many sequences, in any mix of prefill and decode. What a row computes depends on its
// own sequence alone, never on its neighbours or on how a prompt was cut (numerics rule 6).
type Batch = canon.Step

// Ban is a set of experts that the rows of a sequence must not choose (ablation); see NewBan.
type Ban = canon.Ban

// Output is what a step computed. All slices view memory of the model and stay valid until the next Step.
type Output struct {
	Logits  [][]float32 // [len(Batch.LogitRows)][vocab]
	Faults  []error     // [rows] why a row's numbers are worthless (errors of canon: ErrNonFinite, ...), or nil; the slice is nil when all rows are fine
	IDs     []uint16    // [rows, MoE layers, k] chosen experts in rank order
	Weights []float32   // [rows, MoE layers, k] their combination weights
	Bytes   int64       // expert bytes this step read, each expert record counted once
	Fetched Fetched     // where its experts came from
}
