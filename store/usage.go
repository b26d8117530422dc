package store

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
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

// maxIndex is the largest layer index and expert id: both fit 16 bits, as in routing events.
const maxIndex = math.MaxUint16

const (
	sqlAddModel = `INSERT INTO model (hash) VALUES (?) ON CONFLICT (hash) DO UPDATE SET hash = hash RETURNING seq`
	sqlAddUsage = `INSERT INTO usage (model, layer, expert, selections, mass, last_used) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (model, layer, expert) DO UPDATE SET selections = selections + excluded.selections,
		mass = mass + excluded.mass, last_used = max(last_used, excluded.last_used)`
	sqlUsage = `SELECT layer, expert, selections, mass, last_used FROM usage
		WHERE model = (SELECT seq FROM model WHERE hash = ?)`
)

func checkUsage(deltas []UsageDelta) error {
	for _, d := range deltas {
		if d.Layer < 0 || d.Layer > maxIndex || d.Expert < 0 || d.Expert > maxIndex {
			return fmt.Errorf("%w: usage of layer %d expert %d: out of 0..%d", ErrInvalid, d.Layer, d.Expert, maxIndex)
		}
		if d.Selections < 0 || math.IsNaN(d.Mass) || math.IsInf(d.Mass, 0) {
			return fmt.Errorf("%w: usage of layer %d expert %d: %d selections, mass %v", ErrInvalid, d.Layer, d.Expert, d.Selections, d.Mass)
		}
	}
	return nil
}

// addUsage adds checked deltas. About 3 us a row: a turn that touched 4,000 experts costs some 12 ms of the writer.
func addUsage(tx *sql.Tx, modelHash string, deltas []UsageDelta, now int64) error {
	if len(deltas) == 0 {
		return nil
	}
	if modelHash == "" {
		return fmt.Errorf("%w: usage without a model hash", ErrInvalid)
	}
	var model int64
	if err := tx.QueryRow(sqlAddModel, modelHash).Scan(&model); err != nil {
		return err
	}
	add, err := tx.Prepare(sqlAddUsage)
	if err != nil {
		return err
	}
	defer func() { _ = add.Close() }()
	for _, d := range deltas {
		if _, err := add.Exec(model, d.Layer, d.Expert, d.Selections, d.Mass, now); err != nil {
			return err
		}
	}
	return nil
}

// Usage reads a model's usage into the geometry given: the MoE layers' indices, ascending, and the experts a layer. Rows
// outside that geometry are left out. A model without history gives zeros.
func (s *Store) Usage(ctx context.Context, modelHash string, layers []int, experts int) (Usage, error) {
	const doing = "reading usage"
	if experts < 1 || experts > maxIndex+1 || len(layers) > maxIndex+1 {
		return Usage{}, fail(doing, fmt.Errorf("%w: %d layers of %d experts", ErrInvalid, len(layers), experts))
	}
	cells := len(layers) * experts
	u := Usage{Layers: slices.Clone(layers), Experts: experts,
		Selections: make([]int64, cells), Mass: make([]float64, cells), LastUsed: make([]int64, cells)}
	rows, err := s.reader.QueryContext(ctx, sqlUsage, modelHash)
	if err != nil {
		return Usage{}, failRead(ctx, doing, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var layer, expert int
		var selections, last int64
		var mass float64
		if err := rows.Scan(&layer, &expert, &selections, &mass, &last); err != nil {
			return Usage{}, failRead(ctx, doing, err)
		}
		if row, ok := slices.BinarySearch(layers, layer); ok && expert < experts {
			i := row*experts + expert
			u.Selections[i], u.Mass[i], u.LastUsed[i] = selections, mass, last
			u.Total += selections
		}
	}
	return u, failRead(ctx, doing, rows.Err())
}
