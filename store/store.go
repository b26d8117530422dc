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
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Names inside the data folder.
const (
	fileName    = "covey.db"
	lockName    = "lock"
	backupsName = "backups"
)

// closeWait bounds how long Close waits for a write in progress, and for emptying the write-ahead log.
const closeWait = 10 * time.Second

// Options says where the store lives.
type Options struct {
	Dir    string       // data folder, made with mode 0700 if absent; required
	Logger *slog.Logger // nil = discard
}

// Store is an open database. All methods may be called from any goroutine.
type Store struct {
	path   string
	log    *slog.Logger
	lock   *os.File
	writer *sql.DB // one connection: it is the queue of writes
	reader *sql.DB
	now    func() time.Time

	failing  atomic.Pointer[error] // of the last write, if it failed with ErrReadOnly
	watcher  atomic.Pointer[func(error)]
	repaired atomic.Bool // what a crash left has been put right
	close    sync.Once
	closing  error
	closed   atomic.Bool
}

// Open locks the data folder, checks and migrates the database, and repairs what a crash left: running messages become
// stopped, running jobs become queued. The errors are ErrLocked, ErrCorrupt, ErrNewer, ErrReadOnly or plain. A disk that
// is full does not stop Open as long as the database can be read: then ReadOnly says so, and the repair is done with
// the first write that succeeds.
func Open(ctx context.Context, o Options) (*Store, error) {
	return open(ctx, o, migrations)
}

func open(ctx context.Context, o Options, steps fs.FS) (_ *Store, err error) {
	if o.Dir == "" {
		return nil, fmt.Errorf("store: opening: %w: no data folder given", ErrInvalid)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("store: opening data folder %s: %w", o.Dir, err)
	}
	s := &Store{path: filepath.Join(dir, fileName), log: o.Logger, now: time.Now}
	if s.lock, err = lockFolder(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.release()
		}
	}()
	// SQLite gives the log files the mode of the database, so it is made here, for the owner alone.
	file, err := os.OpenFile(s.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, unwritable(dir, err)
	}
	if err := file.Close(); err != nil {
		return nil, unwritable(dir, err)
	}
	if s.writer, err = connect(s.path, writerParams, 1); err != nil {
		return nil, fail("opening "+s.path, err)
	}
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	if _, err := s.writer.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
		return nil, fail("opening "+s.path, err)
	}
	if err := s.migrate(ctx, steps); err != nil {
		return nil, err
	}
	if s.reader, err = connect(s.path, readerParams, readers); err != nil {
		return nil, fail("opening "+s.path, err)
	}
	if err := s.repair(ctx); err != nil && !errors.Is(err, ErrReadOnly) {
		return nil, err
	}
	return s, nil
}

// File is the path of the database.
func (s *Store) File() string { return s.path }

// Close ends the store: it waits for the write in progress, empties the write-ahead log, closes the files and frees the
// folder. Later calls fail; a second Close returns what the first did.
func (s *Store) Close() error {
	s.close.Do(func() {
		s.closed.Store(true)
		ctx, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		// A reader's connection would keep the log from being cut.
		err := s.reader.Close()
		if s.ReadOnly() == nil {
			_, optimize := s.writer.ExecContext(ctx, "PRAGMA optimize")
			_, checkpoint := s.writer.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
			err = errors.Join(err, optimize, checkpoint)
		}
		if err = errors.Join(err, s.release()); err != nil {
			s.closing = fmt.Errorf("store: closing %s: %w", s.path, err)
		}
	})
	return s.closing
}

// release closes what is open. The lock goes last: until then no other process may touch the file.
func (s *Store) release() error {
	var errs []error
	if s.reader != nil {
		errs = append(errs, s.reader.Close())
	}
	if s.writer != nil {
		errs = append(errs, s.writer.Close())
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// ReadOnly is nil while writes succeed, and otherwise the error of the last failed write (errors.Is ErrReadOnly). Reads
// go on; the next write that succeeds clears it.
func (s *Store) ReadOnly() error {
	if err := s.failing.Load(); err != nil {
		return *err
	}
	return nil
}

// Watch calls f with ReadOnly's value when writes begin to fail and when they succeed again: in the goroutine of the write, so
// f must not wait. One watcher; the last one counts.
func (s *Store) Watch(f func(readOnly error)) { s.watcher.Store(&f) }

// tell passes a change on to the watcher.
func (s *Store) tell(readOnly error) {
	if f := s.watcher.Load(); f != nil {
		(*f)(readOnly)
	}
}

// What a process that died left behind. One that lives holds the lock, so nothing that is running now is touched.
const (
	sqlStopMessages = `UPDATE message SET state = 'stopped', note = 'interrupted', updated = ?1 WHERE state = 'running'`
	sqlStopTurns    = `UPDATE turn SET finish = 'interrupted', finished = ?1 WHERE message IN
		(SELECT seq FROM message WHERE state = 'running')`
	sqlStopJobs = `UPDATE job SET state = 'queued' WHERE state = 'running'`
)

func (s *Store) repair(ctx context.Context) error {
	return s.write(ctx, "repairing after a crash", func(*sql.Tx) error { return nil })
}

// write runs fn in a transaction of the one writing connection, after all writes asked for earlier, and commits if fn
// returns nil. Statements inside take no context: a cancelled ctx ends the transaction between two of them. If the search
// index turns out damaged it is made anew and fn runs a second time.
func (s *Store) write(ctx context.Context, doing string, fn func(tx *sql.Tx) error) error {
	if s.closed.Load() {
		return fmt.Errorf("store: %s: %w", doing, errClosed)
	}
	err := s.transact(ctx, fn)
	if isIndexDamage(err) && ctx.Err() == nil {
		if err = s.rebuildSearch(ctx); err == nil {
			err = s.transact(ctx, fn)
		}
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("store: %s: %w", doing, ctx.Err())
	}
	if err = fail(doing, err); err == nil {
		if s.failing.Swap(nil) != nil {
			s.log.Info("storage can be written again", slog.String("file", s.path))
			s.tell(nil)
		}
	} else if errors.Is(err, ErrReadOnly) {
		if s.failing.Swap(&err) == nil {
			s.log.Error("storage cannot be written", slog.String("file", s.path), slog.Any("error", err))
			s.tell(err)
		}
	}
	return err
}

func (s *Store) transact(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	repair := !s.repaired.Load()
	if repair {
		now := s.now().UnixMilli()
		if _, err := tx.Exec(sqlStopTurns, now); err != nil {
			return err
		}
		if _, err := tx.Exec(sqlStopMessages, now); err != nil {
			return err
		}
		if _, err := tx.Exec(sqlStopJobs); err != nil {
			return err
		}
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if repair {
		s.repaired.Store(true)
	}
	return nil
}
