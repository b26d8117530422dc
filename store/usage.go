package store

import (
	"context"
	"errors"
)

// UsageDelta is what one turn adds to one expert.
type UsageDelta struct {
	Layer, Expert int     // model layer index, expert id
	Selections    int64   // rows that chose it
	Mass          float64 // sum of its combination weights
}

// Usage is the history of a model's experts. Arrays are [layers, experts], row-major, and the caller's own.
type Usage struct {
	Layers     []int // model layer index of each row
	Experts    int
	Selections []int64
	Mass       []float64
	LastUsed   []int64 // unix ms; 0 = never
	Total      int64   // sum of Selections
}

// AddUsage adds to a model's usage outside a turn (API requests that keep no conversation).
func (s *Store) AddUsage(ctx context.Context, modelHash string, deltas []UsageDelta) error {
	return errors.ErrUnsupported
}

// Usage reads a model's usage into the geometry given: the MoE layers' indices, ascending, and the experts a layer. Rows
// outside that geometry are left out. A model without history gives zeros.
func (s *Store) Usage(ctx context.Context, modelHash string, layers []int, experts int) (Usage, error) {
	return Usage{}, errors.ErrUnsupported
}
