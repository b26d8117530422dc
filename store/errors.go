package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/mattn/go-sqlite3"
)

// Sentinels that callers test with errors.Is. Every error of this package reads "store: doing thing: cause".
var (
	ErrNotFound = errors.New("not found")                      // no such row, or it is deleted
	ErrState    = errors.New("not possible in this state")     // for example finishing a turn that does not run
	ErrInvalid  = errors.New("invalid input")                  // the caller's value breaks a documented rule
	ErrReadOnly = errors.New("storage cannot be written")      // disk full, read-only, failing; nothing of the write was kept
	ErrCorrupt  = errors.New("database file is damaged")       // the file is left as it is
	ErrNewer    = errors.New("database is of a newer version") // a later Covey wrote it
	ErrLocked   = errors.New("data folder is in use")          // another process holds it
)

var errClosed = errors.New("the store is closed")

// fail puts what was done before err and the sentinel that callers test behind it.
func fail(doing string, err error) error {
	if err == nil {
		return nil
	}
	var code sqlite3.Error
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = ErrNotFound
	case errors.As(err, &code):
		switch code.Code {
		case sqlite3.ErrFull:
			err = fmt.Errorf("%w: the disk is full: %w", ErrReadOnly, err)
		case sqlite3.ErrReadonly, sqlite3.ErrIoErr, sqlite3.ErrCantOpen, sqlite3.ErrPerm:
			err = fmt.Errorf("%w: %w", ErrReadOnly, err)
		case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
			err = fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
	return fmt.Errorf("store: %s: %w", doing, err)
}

// failRead is fail for reads, where an I/O error says nothing about writing.
func failRead(ctx context.Context, doing string, err error) error {
	var code sqlite3.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("store: %s: %w", doing, ctx.Err())
	case errors.As(err, &code) && code.Code != sqlite3.ErrCorrupt && code.Code != sqlite3.ErrNotADB:
		return fmt.Errorf("store: %s: %w", doing, err)
	}
	return fail(doing, err)
}

// isDamage says whether SQLite found the file's contents broken, or not a database at all.
func isDamage(err error) bool {
	var code sqlite3.Error
	return errors.As(err, &code) && (code.Code == sqlite3.ErrCorrupt || code.Code == sqlite3.ErrNotADB)
}

// isIndexDamage says whether SQLite found a virtual table, that is a search index, broken.
func isIndexDamage(err error) bool {
	var code sqlite3.Error
	return errors.As(err, &code) && code.ExtendedCode == sqlite3.ErrCorruptVTab
}
