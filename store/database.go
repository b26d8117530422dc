package store

// How the file is opened, checked and brought to the current version.

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver sqlite3
)

// migrations are numbered SQL files; PRAGMA user_version is the number of the last one applied. A file that was ever
// released is never changed.
//
//go:embed migrations/*.sql
var migrations embed.FS

// applicationID marks a file as Covey's ("Covy" in ASCII), so that another program's database is refused.
const applicationID = 0x436f7679

// readers is the number of connections for reading; more readers wait for one.
const readers = 4

// Writers begin IMMEDIATE, so that a transaction that began can always write. Deleted text is overwritten where that
// costs no further reads or writes (secure_delete = fast).
const (
	writerParams = "_txlock=immediate&_synchronous=FULL&_busy_timeout=5000&_foreign_keys=on&_secure_delete=fast&_stmt_cache_size=64"
	readerParams = "mode=ro&_query_only=on&_busy_timeout=5000&_stmt_cache_size=64"
)

// sqlCheck lists what is wrong with the pages of each table, its indices and its rows' form. A quick_check of the whole
// file would also compare the search index with every text, at ten times the cost: 1.3 s against 0.09 s for 16 MB on two
// busy cores; a search index is made anew when it is found broken (rebuildSearch).
const sqlCheck = `SELECT t.name || ': ' || q.quick_check FROM pragma_table_list AS t, pragma_quick_check(t.name) AS q
	WHERE t.schema = 'main' AND t.type IN ('table', 'shadow') AND q.quick_check <> 'ok' LIMIT 5`

// connect names the file and the driver's parameters; the first statement opens it.
func connect(path, params string, connections int) (*sql.DB, error) {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/data on Windows
	}
	db, err := sql.Open("sqlite3", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+params)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// check refuses a file that is damaged, another program's or a later version's, before anything is written to it.
func (s *Store) check(ctx context.Context) error {
	doing := "checking " + s.path
	damaged := func(problem string) error {
		remedy := "move it aside to start afresh, or recover it with the sqlite3 tool (.recover)"
		if backups, _ := filepath.Glob(filepath.Join(filepath.Dir(s.path), backupsName, "*.db")); len(backups) > 0 {
			remedy += ", or put the backup " + backups[len(backups)-1] + " in its place"
		}
		return fmt.Errorf("store: %s: %w: %s; the file is left as it is: %s", doing, ErrCorrupt, problem, remedy)
	}
	var application, tables int
	err := s.writer.QueryRowContext(ctx, "PRAGMA application_id").Scan(&application)
	if err == nil {
		err = s.writer.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables)
	}
	if err != nil {
		return asDamage(ctx, doing, err, damaged)
	}
	if tables == 0 {
		return nil
	}
	if application != applicationID {
		return fmt.Errorf("store: %s: not a database of covey (application id %#x): choose another data folder", doing, application)
	}
	var version int
	if err := s.writer.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return asDamage(ctx, doing, err, damaged)
	}
	if version < 1 {
		return damaged(fmt.Sprintf("it holds tables, but says that it is of version %d", version))
	}
	problems, err := query(ctx, s.writer, func(rows *sql.Rows) (text string, err error) { return text, rows.Scan(&text) }, sqlCheck)
	if err != nil {
		return asDamage(ctx, doing, err, damaged)
	}
	if len(problems) > 0 {
		return damaged(strings.Join(problems, "; "))
	}
	return nil
}

// asDamage puts an error of SQLite that means damage into the words of damaged.
func asDamage(ctx context.Context, doing string, err error, damaged func(string) error) error {
	if isDamage(err) && ctx.Err() == nil {
		return damaged(err.Error())
	}
	return fail(doing, err)
}

// step is one migration.
type step struct {
	version int
	name    string
	text    string
}

// readSteps reads migrations/NNNN_name.sql in order; the numbers run from 1 without gaps.
func readSteps(steps fs.FS) ([]step, error) {
	names, err := fs.Glob(steps, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	var list []step
	for i, name := range names {
		text, err := fs.ReadFile(steps, name)
		if err != nil {
			return nil, err
		}
		number, _, _ := strings.Cut(filepath.Base(name), "_")
		if version, err := strconv.Atoi(number); err != nil || version != i+1 {
			return nil, fmt.Errorf("%s: migration number must be %04d", name, i+1)
		}
		list = append(list, step{i + 1, name, string(text)})
	}
	return list, nil
}

// migrate brings the file to the last version: a copy of it first, then each step in a transaction of its own.
func (s *Store) migrate(ctx context.Context, files fs.FS) error {
	doing := "migrating " + s.path
	steps, err := readSteps(files)
	if err != nil {
		return fail(doing, err)
	}
	var version int
	if err := s.writer.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return fail(doing, err)
	}
	if version > len(steps) {
		return fmt.Errorf("store: opening %s: %w (%d, this program knows %d): use the newer program or another data folder",
			s.path, ErrNewer, version, len(steps))
	}
	if version == len(steps) {
		return nil
	}
	backup := ""
	if version > 0 {
		if backup, err = s.backup(ctx, version); err != nil {
			return fail(doing+": copying it first", err)
		}
		s.log.Info("database copied before migration", slog.String("file", backup))
	}
	for _, step := range steps[version:] {
		if err := s.apply(ctx, step); err != nil {
			if backup != "" {
				doing += " (unchanged, and copied to " + backup + ")"
			}
			return fail(doing+": "+step.name, err)
		}
		s.log.Info("database migrated", slog.String("file", s.path), slog.Int("version", step.version))
	}
	return nil
}

func (s *Store) apply(ctx context.Context, step step) error {
	tx, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(step.text); err != nil {
		return err
	}
	// A pragma takes no parameters; both values are numbers of this program.
	if _, err := tx.Exec(fmt.Sprintf("PRAGMA user_version = %d; PRAGMA application_id = %d", step.version, applicationID)); err != nil {
		return err
	}
	return tx.Commit()
}

// backup copies the database into the folder of backups and returns the copy's path.
func (s *Store) backup(ctx context.Context, version int) (string, error) {
	dir := filepath.Join(filepath.Dir(s.path), backupsName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	name := fmt.Sprintf("covey-%s-v%d.db", s.now().UTC().Format("20060102T150405.000"), version)
	path := filepath.Join(dir, name)
	if _, err := s.writer.ExecContext(ctx, "VACUUM INTO ?", path); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o600)
}

// querier is what reads need: the pool, or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// collect reads all rows and closes them.
func collect[T any](rows *sql.Rows, scan func(*sql.Rows) (T, error)) ([]T, error) {
	defer func() { _ = rows.Close() }()
	var list []T
	for rows.Next() {
		item, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	return list, rows.Err()
}

// query runs a statement that returns rows and reads them all.
func query[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), statement string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	return collect(rows, scan)
}

// snapshot runs the reads of fn on one state of the database.
func (s *Store) snapshot(ctx context.Context, doing string, fn func(tx *sql.Tx) error) error {
	tx, err := s.reader.BeginTx(ctx, nil)
	if err != nil {
		return failRead(ctx, doing, err)
	}
	defer func() { _ = tx.Rollback() }()
	return failRead(ctx, doing, fn(tx))
}

// millis and moment turn times into columns and back; the zero time is 0.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func moment(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
