package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Atlas is what a stored atlas says about itself; the document is read apart.
type Atlas struct {
	ID        string
	Name      string
	Job       string // "" = imported or made without a job
	Model     string
	ModelHash string
	Numerics  string
	ProbeHash string
	Summary   json.RawMessage // JSON object
	Size      int64           // bytes of the document
	Created   time.Time
}

// SaveAtlas stores a document under a new id; ID, Size and Created of a are set by the store. Kept compressed.
func (s *Store) SaveAtlas(ctx context.Context, a Atlas, document []byte) (Atlas, error) {
	return Atlas{}, errors.ErrUnsupported
}

// Atlas reads one description.
func (s *Store) Atlas(ctx context.Context, id string) (Atlas, error) {
	return Atlas{}, errors.ErrUnsupported
}

// AtlasDocument reads the document of an atlas, as it was saved.
func (s *Store) AtlasDocument(ctx context.Context, id string) ([]byte, error) {
	return nil, errors.ErrUnsupported
}

// Atlases lists the atlases, newest first; modelHash "" = of every model.
func (s *Store) Atlases(ctx context.Context, modelHash string) ([]Atlas, error) {
	return nil, errors.ErrUnsupported
}

// RenameAtlas sets the name.
func (s *Store) RenameAtlas(ctx context.Context, id, name string) error { return errors.ErrUnsupported }

// DeleteAtlas removes an atlas for good.
func (s *Store) DeleteAtlas(ctx context.Context, id string) error { return errors.ErrUnsupported }
