// Package store keeps Covey's history: conversations and their turns, expert usage, probe jobs, atlases and settings,
// in one SQLite file.
//
// Writes go through one connection, in IMMEDIATE transactions, one after another; reads use a pool of read-only
// connections and never wait for a write (WAL). No call holds a transaction longer than its own statements, so a
// generation that lasts minutes holds nothing. A write that returned nil is on the disk (synchronous=FULL): a crash or a
// power cut loses at most the turn in hand, and Open marks that turn as stopped with the text it had.
//
// The package knows bytes and text only: no engine, no HTTP. Build and test with the tag sqlite_fts5.
package store

import (
	"context"
	"errors"
	"log/slog"
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

// Options says where the store lives.
type Options struct {
	Dir    string       // data folder, made with mode 0700 if absent; required
	Logger *slog.Logger // nil = discard
}

// Store is an open database. All methods may be called from any goroutine.
type Store struct{}

// Open locks the data folder, checks and migrates the database, and repairs what a crash left: running messages become
// stopped, running jobs become queued. The errors are ErrLocked, ErrCorrupt, ErrNewer, ErrReadOnly or plain.
func Open(ctx context.Context, o Options) (*Store, error) { return nil, errors.ErrUnsupported }

// Close ends the store: it empties the write-ahead log, closes the files and frees the folder. Further calls fail; a
// second Close does nothing.
func (s *Store) Close() error { return errors.ErrUnsupported }

// ReadOnly is nil while writes succeed, and otherwise the error of the last failed write (errors.Is ErrReadOnly). Reads
// go on; the next write that succeeds clears it.
func (s *Store) ReadOnly() error { return errors.ErrUnsupported }
