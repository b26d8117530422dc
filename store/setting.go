package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
)

const (
	sqlSetting    = `SELECT value FROM setting WHERE key = ?`
	sqlSetSetting = `INSERT INTO setting (key, value, updated) VALUES (?, ?, ?)
		ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated = excluded.updated`
)

// Setting decodes the JSON value kept under key into v; false, and v as it was, if there is none.
func (s *Store) Setting(ctx context.Context, key string, v any) (bool, error) {
	doing := "reading setting " + key
	var text string
	err := s.reader.QueryRowContext(ctx, sqlSetting, key).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), v)
	}
	return err == nil, failRead(ctx, doing, err)
}

// SetSetting keeps v as JSON under key.
func (s *Store) SetSetting(ctx context.Context, key string, v any) error {
	doing := "setting " + key
	text, err := json.Marshal(v)
	if err != nil {
		return fail(doing, fmt.Errorf("%w: %w", ErrInvalid, err))
	}
	return s.write(ctx, doing, func(tx *sql.Tx) error {
		_, err := tx.Exec(sqlSetSetting, key, string(text), s.now().UnixMilli())
		return err
	})
}
