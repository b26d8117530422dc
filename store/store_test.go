package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"
)

var ctx = context.Background()

// must is for calls that a test takes for granted: an error ends it with the stack.
func must[T any](v T, err error) T {
	ok(err)
	return v
}

func ok(err error) {
	if err != nil {
		panic(err)
	}
}

func wantErr(t *testing.T, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not say %q", err, word)
		}
	}
}

// openIn opens the store in dir and closes it at the end of the test. Its clock starts with 2025 and goes on by one
// second a reading.
func openIn(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(ctx, Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	must(s.writer.Exec("PRAGMA synchronous = OFF")) // for speed: no test but the crash test depends on the disk
	var mu sync.Mutex
	at := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	s.now = func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		at = at.Add(time.Second)
		return at
	}
	return s
}

func openNew(t *testing.T) *Store { return openIn(t, t.TempDir()) }

// ask is a turn that was asked and answered at once.
func ask(s *Store, conversation, parent, question, answer string) (user, assistant Message) {
	user, assistant, err := s.BeginTurn(ctx, NewTurn{Conversation: conversation, Parent: parent, Text: question, Model: "tiny", ModelHash: "m1"})
	ok(err)
	ok(s.FinishTurn(ctx, TurnResult{Answer: assistant.ID, State: StateComplete, Content: answer}))
	return user, must(s.Message(ctx, assistant.ID))
}

// Statements are constants whose names begin with sql; this evaluates them from the source, so that none is forgotten.
func TestEveryStatementPrepares(t *testing.T) {
	constants := map[string]ast.Expr{}
	for _, name := range must(filepath.Glob("*.go")) {
		for _, decl := range must(parser.ParseFile(token.NewFileSet(), name, nil, 0)).Decls {
			group, isGroup := decl.(*ast.GenDecl)
			if !isGroup || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				for i, value := range spec.(*ast.ValueSpec).Values {
					constants[spec.(*ast.ValueSpec).Names[i].Name] = value
				}
			}
		}
	}
	var text func(e ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			return must(strconv.Unquote(e.Value))
		case *ast.BinaryExpr:
			return text(e.X) + text(e.Y)
		case *ast.Ident:
			return text(constants[e.Name])
		}
		panic(fmt.Sprintf("%T in a statement", e))
	}
	s := openNew(t)
	count := 0
	for name, value := range constants {
		if strings.HasPrefix(name, "sql") {
			count++
			if statement, err := s.writer.Prepare(text(value)); err != nil {
				t.Errorf("%s: %v", name, err)
			} else {
				ok(statement.Close())
			}
		}
	}
	if count < 60 {
		t.Errorf("%d statements found: are they still constants named sql...?", count)
	}
}

func TestReopenedStoreHasWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	c := must(s.CreateConversation(ctx, "Kept", "", nil))
	ok(s.Close())
	if names, _ := filepath.Glob(filepath.Join(dir, fileName+"-*")); names != nil {
		t.Errorf("after Close the log is still there: %v", names)
	}
	if got := must(openIn(t, dir).Conversation(ctx, c.ID)); got.Title != "Kept" {
		t.Errorf("title is %q", got.Title)
	}
}

func TestFilesAreForTheOwnerAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	s := openIn(t, dir)
	must(s.CreateConversation(ctx, "", "", nil))
	if mode := must(os.Stat(dir)).Mode().Perm(); mode != 0o700 {
		t.Errorf("folder has mode %o", mode)
	}
	for _, entry := range must(os.ReadDir(dir)) {
		if mode := must(entry.Info()).Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %o", entry.Name(), mode)
		}
	}
}

func TestPathWithReservedCharacters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b?c#d%20é")
	openIn(t, dir)
	if _, err := os.Stat(filepath.Join(dir, fileName)); err != nil {
		t.Error(err)
	}
}

func TestSecondStoreOnAFolderIsRefusedNamingTheOwner(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	_, err := Open(ctx, Options{Dir: dir})
	wantErr(t, err, ErrLocked, dir, "process "+strconv.Itoa(os.Getpid()), "stop it or choose another folder")
	ok(s.Close())
	openIn(t, dir)
}

func TestFolderThatCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	ok(os.WriteFile(file, nil, 0o600))
	_, err := Open(ctx, Options{Dir: filepath.Join(file, "data")})
	wantErr(t, err, ErrReadOnly, file, "choose another folder")
}

func TestNoFolder(t *testing.T) {
	_, err := Open(ctx, Options{})
	wantErr(t, err, ErrInvalid)
}

func TestDamagedFileIsRefusedAndLeftAlone(t *testing.T) {
	full := t.TempDir()
	s := openIn(t, full)
	c := must(s.CreateConversation(ctx, "A", "", nil))
	for i := range 200 {
		must(s.AddMessage(ctx, c.ID, "", RoleUser, strings.Repeat("words ", 100)+strconv.Itoa(i)))
	}
	ok(s.Close())
	whole := must(os.ReadFile(filepath.Join(full, fileName)))
	overwritten := bytes.Clone(whole)
	for i := len(whole) / 2; i < len(whole)/2+64<<10; i++ {
		overwritten[i] = 0xA5
	}
	for name, content := range map[string][]byte{
		"pages overwritten": overwritten,
		"cut":               whole[:len(whole)/2],
		"no database":       bytes.Repeat([]byte("not a database. "), 1024),
		"header destroyed":  append([]byte("SQLite format 9\x00"), whole[16:]...),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, fileName)
			ok(os.WriteFile(file, content, 0o600))
			ok(os.Mkdir(filepath.Join(dir, backupsName), 0o700))
			ok(os.WriteFile(filepath.Join(dir, backupsName, "covey-x.db"), nil, 0o600))
			for range 2 {
				_, err := Open(ctx, Options{Dir: dir})
				wantErr(t, err, ErrCorrupt, file, "the file is left as it is", "move it aside", "covey-x.db")
			}
			if !bytes.Equal(must(os.ReadFile(file)), content) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestAnotherProgramsDatabaseIsRefused(t *testing.T) {
	dir := t.TempDir()
	db := must(connect(filepath.Join(dir, fileName), writerParams, 1))
	must(db.Exec("CREATE TABLE theirs (a)"))
	ok(db.Close())
	if _, err := Open(ctx, Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "not a database of covey") {
		t.Errorf("error is %v", err)
	}
}

func TestNewerVersionIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	must(s.writer.Exec("PRAGMA user_version = 99"))
	ok(s.Close())
	_, err := Open(ctx, Options{Dir: dir})
	wantErr(t, err, ErrNewer, "99", "newer program")
}

func TestVersionThatNoProgramWroteIsDamage(t *testing.T) {
	for _, version := range []string{"0", "-3", "-2147483648"} {
		dir := t.TempDir()
		s := openIn(t, dir)
		must(s.writer.Exec("PRAGMA user_version = " + version))
		ok(s.Close())
		_, err := Open(ctx, Options{Dir: dir})
		wantErr(t, err, ErrCorrupt, "version "+version, "left as it is")
	}
}

// withStep is the migrations plus one more.
func withStep(text string) fstest.MapFS {
	files := fstest.MapFS{}
	for _, name := range must(fs.Glob(migrations, "migrations/*.sql")) {
		files[name] = &fstest.MapFile{Data: must(fs.ReadFile(migrations, name))}
	}
	files[fmt.Sprintf("migrations/%04d_more.sql", len(files)+1)] = &fstest.MapFile{Data: []byte(text)}
	return files
}

func TestMigrationCopiesTheFileFirst(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	c := must(s.CreateConversation(ctx, "Before", "", nil))
	ok(s.Close())

	files := withStep("CREATE TABLE more (a INTEGER) STRICT; UPDATE conversation SET title = 'After'")
	s = must(open(ctx, Options{Dir: dir}, files))
	if got := must(s.Conversation(ctx, c.ID)); got.Title != "After" {
		t.Errorf("title is %q: the step was not applied", got.Title)
	}
	ok(s.Close())
	backups := must(filepath.Glob(filepath.Join(dir, backupsName, "covey-*-v1.db")))
	if len(backups) != 1 {
		t.Fatalf("backups are %v", backups)
	}
	restored := t.TempDir()
	ok(os.Rename(backups[0], filepath.Join(restored, fileName)))
	if got := must(openIn(t, restored).Conversation(ctx, c.ID)); got.Title != "Before" {
		t.Errorf("title in the backup is %q", got.Title)
	}
	// Applied once.
	ok(must(open(ctx, Options{Dir: dir}, files)).Close())
	if backups := must(filepath.Glob(filepath.Join(dir, backupsName, "*"))); len(backups) != 0 {
		t.Errorf("second opening made %v", backups)
	}
}

func TestFailedMigrationChangesNothing(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	c := must(s.CreateConversation(ctx, "Before", "", nil))
	ok(s.Close())
	_, err := open(ctx, Options{Dir: dir}, withStep("UPDATE conversation SET title = 'After'; INSERT INTO nowhere VALUES (1)"))
	if err == nil || !strings.Contains(err.Error(), "nowhere") || !strings.Contains(err.Error(), backupsName) {
		t.Errorf("error is %v", err)
	}
	if got := must(openIn(t, dir).Conversation(ctx, c.ID)); got.Title != "Before" {
		t.Errorf("title is %q", got.Title)
	}
}

func TestMigrationNumbersHaveNoGaps(t *testing.T) {
	files := withStep("SELECT 1")
	files["migrations/0009_late.sql"] = &fstest.MapFile{}
	if _, err := open(ctx, Options{Dir: t.TempDir()}, files); err == nil || !strings.Contains(err.Error(), "0009_late.sql") {
		t.Errorf("error is %v", err)
	}
}

// fill lets the database grow no further, as a full disk would; unfill takes that back.
func fill(s *Store)   { must(s.writer.Exec("PRAGMA max_page_count = 1")) } // SQLite takes the present size instead
func unfill(s *Store) { must(s.writer.Exec("PRAGMA max_page_count = 4294967294")) }

func TestFullDiskRefusesWritesKeepsReadsAndRecovers(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "Kept", "", nil))
	_, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: "?"})
	ok(err)
	result := TurnResult{Answer: answer.ID, State: StateComplete, Content: strings.Repeat("long ", 100_000)}
	var told []bool // what the watcher was told: refused?
	s.Watch(func(err error) { told = append(told, errors.Is(err, ErrReadOnly)) })

	fill(s)
	wantErr(t, s.FinishTurn(ctx, result), ErrReadOnly, "disk is full")
	wantErr(t, s.ReadOnly(), ErrReadOnly)
	if got := must(s.Message(ctx, answer.ID)); got.State != StateRunning || got.Content != "" {
		t.Errorf("half of the refused write is there: %s %q", got.State, got.Content)
	}
	unfill(s)
	ok(s.FinishTurn(ctx, result))
	if err := s.ReadOnly(); err != nil {
		t.Errorf("still %v", err)
	}
	if !slices.Equal(told, []bool{true, false}) {
		t.Errorf("the watcher was told %v, want once that writes are refused and once that they are not", told)
	}
	if got := must(s.Message(ctx, answer.ID)); got.State != StateComplete || got.Content != result.Content {
		t.Error("the repeated write is not there")
	}
}

func TestCancelledContextStoresNothing(t *testing.T) {
	s := openNew(t)
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err := s.CreateConversation(over, "Never", "", nil)
	wantErr(t, err, context.Canceled)
	_, err = s.Conversations(over, 0, 10)
	wantErr(t, err, context.Canceled)
	if list := must(s.Conversations(ctx, 0, 10)); len(list) != 0 {
		t.Errorf("stored %v", list)
	}
	if s.ReadOnly() != nil {
		t.Error("a cancelled write counts as a failing disk")
	}
}

func TestClosedStoreRefusesCalls(t *testing.T) {
	s := openNew(t)
	ok(s.Close())
	ok(s.Close())
	if _, err := s.CreateConversation(ctx, "", "", nil); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("write: %v", err)
	}
	if _, err := s.Conversations(ctx, 0, 1); err == nil {
		t.Error("read: no error")
	}
}

// Readers see whole transactions while writers work: in every snapshot a conversation's answers are as many as its
// questions.
func TestReadersAndWritersAtOnce(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "Busy", "", nil))
	var group sync.WaitGroup
	for writer := range 4 {
		group.Go(func() {
			for i := range 10 {
				question := fmt.Sprintf("question %d of %d", i, writer)
				_, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: question, ModelHash: "m1"})
				if err == nil {
					err = s.CheckpointTurn(ctx, answer.ID, "par", "")
				}
				if err == nil {
					err = s.FinishTurn(ctx, TurnResult{Answer: answer.ID, State: StateComplete, Content: "partial no more",
						Usage: []UsageDelta{{0, 0, 1, 1}, {1, writer, 1, 1}}})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 8 {
		group.Go(func() {
			for range 20 {
				_, messages, err := s.tree(ctx, c.ID)
				if err != nil || len(messages)%2 != 0 {
					t.Errorf("%d messages, %v", len(messages), err)
				}
				if _, err := s.Search(ctx, "question", 5); err != nil {
					t.Error(err)
				}
				u, err := s.Usage(ctx, "m1", []int{0, 1}, 4)
				if err != nil || u.Selections[0]*2 != u.Total {
					t.Errorf("usage %v, %v", u, err)
				}
			}
		})
	}
	group.Wait()
	if _, messages, err := s.tree(ctx, c.ID); err != nil || len(messages) != 80 {
		t.Errorf("%d messages, %v", len(messages), err)
	}
}
