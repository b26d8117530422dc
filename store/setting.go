package store

import (
	"context"
	"errors"
)

// Setting decodes the JSON value kept under key into v; false if there is none.
func (s *Store) Setting(ctx context.Context, key string, v any) (bool, error) {
	return false, errors.ErrUnsupported
}

// SetSetting keeps v as JSON under key.
func (s *Store) SetSetting(ctx context.Context, key string, v any) error {
	return errors.ErrUnsupported
}

// DeleteSetting forgets key; no error if it is absent.
func (s *Store) DeleteSetting(ctx context.Context, key string) error { return errors.ErrUnsupported }
