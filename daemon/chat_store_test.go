package daemon

import (
	"bytes"
	"database/sql"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"covey/store"
	"covey/web/wire"
)

func TestAnAnswerIsStoredWholeOnceTheStoreTakesItAgain(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	conversation, message := v.begin("Tell me about quokkas.", 12)
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(d.cfg.Data, "covey.db")+"?_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`CREATE TRIGGER full BEFORE UPDATE OF state ON message BEGIN SELECT raise(ABORT, 'as a full disk would'); END`); err != nil {
		t.Fatal(err)
	}
	stored := func() store.Message {
		m, err := d.store.Message(t.Context(), message)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for range 600 {
		if _, _, page := d.get("/c/"+conversation, "Accept", "text/html"); strings.Contains(page, "its end could not be stored") {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if m := stored(); m.State != store.StateRunning {
		t.Fatalf("the answer was stored as %s", m.State)
	}
	if _, err := db.Exec(`DROP TRIGGER full`); err != nil {
		t.Fatal(err)
	}
	for range 600 {
		if stored().State != store.StateRunning {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if m := stored(); m.State != store.StateComplete || m.Turn == nil || m.Turn.Generated != 12 {
		t.Errorf("stored %s, %+v", m.State, m.Turn)
	}
	if _, failure := v.try(wire.Send, conversation, "And then?"); failure != nil {
		t.Errorf("the next message: %+v", failure)
	}
}

func TestACheckpointThatKeepsFailingIsLoggedOnce(t *testing.T) {
	closed, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := &chats{server: &Server{store: closed, log: slog.New(slog.NewTextHandler(&log, nil))}}
		running := &turn{message: "m", quit: make(chan struct{})}
		go c.checkpoint(running)
		for range 5 {
			running.mu.Lock()
			running.tokens = append(running.tokens, generated{})
			running.mu.Unlock()
			time.Sleep(checkpointEvery)
		}
		close(running.quit)
		synctest.Wait()
		if n := strings.Count(log.String(), "keeping a running answer"); n != 1 {
			t.Errorf("logged %d times in 5 s:\n%s", n, &log)
		}
	})
}
