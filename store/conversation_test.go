package store

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func titles(s *Store) []string {
	var list []string
	for _, c := range must(s.Conversations(ctx, 0, 100)) {
		list = append(list, c.Title)
	}
	return list
}

func TestListHasPinnedFirstThenLatestUse(t *testing.T) {
	s := openNew(t)
	a := must(s.CreateConversation(ctx, "A", "", nil))
	must(s.CreateConversation(ctx, "B", "", nil))
	c := must(s.CreateConversation(ctx, "C", "", nil))
	must(s.CreateConversation(ctx, "D", "", nil))
	must(s.AddMessage(ctx, a.ID, "", RoleUser, "newest"))
	ok(s.PinConversation(ctx, c.ID, true))
	if got := titles(s); !slices.Equal(got, []string{"C", "A", "D", "B"}) {
		t.Errorf("list is %v", got)
	}
	ok(s.PinConversation(ctx, c.ID, false))
	if got := titles(s); !slices.Equal(got, []string{"A", "D", "C", "B"}) {
		t.Errorf("without the pin it is %v", got)
	}
	if page := must(s.Conversations(ctx, 1, 2)); len(page) != 2 || page[0].Title != "D" || page[1].Title != "C" {
		t.Errorf("second page is %v", page)
	}
}

func TestConversationFieldsChange(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "Old", "Be kind.", json.RawMessage(`{ "temperature": 0.5 }`)))
	if string(c.Settings) != `{"temperature":0.5}` || c.System != "Be kind." {
		t.Errorf("created %+v", c)
	}
	ok(s.RenameConversation(ctx, c.ID, "New\xff"))
	ok(s.SetSystem(ctx, c.ID, ""))
	ok(s.SetSettings(ctx, c.ID, json.RawMessage(`{}`)))
	got := must(s.Conversation(ctx, c.ID))
	want := Conversation{ID: c.ID, Title: "New\uFFFD", Settings: json.RawMessage(`{}`), Created: c.Created, Updated: c.Created}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, settings := range []string{`[]`, `{`, `1`} {
		wantErr(t, s.SetSettings(ctx, c.ID, json.RawMessage(settings)), ErrInvalid, "settings")
	}
}

func TestDeletedConversationComesBackUntilPurged(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "Gone", "", nil))
	question, _ := ask(s, c.ID, "", "where to?", "away")
	ok(s.DeleteConversation(ctx, c.ID))
	if got := titles(s); len(got) != 0 {
		t.Errorf("list is %v", got)
	}
	if hits := must(s.Search(ctx, "where", 10)); len(hits) != 0 {
		t.Errorf("search finds %v", hits)
	}
	wantErr(t, s.RenameConversation(ctx, c.ID, "x"), ErrNotFound)
	wantErr(t, s.DeleteConversation(ctx, c.ID), ErrNotFound)
	_, err := s.AddMessage(ctx, c.ID, "", RoleUser, "x")
	wantErr(t, err, ErrNotFound)
	if must(s.Conversation(ctx, c.ID)).Deleted.IsZero() {
		t.Error("does not say when it was deleted")
	}

	ok(s.RestoreConversation(ctx, c.ID))
	if hits := must(s.Search(ctx, "where", 10)); len(hits) != 1 {
		t.Errorf("after undo search finds %v", hits)
	}
	wantErr(t, s.RestoreConversation(ctx, c.ID), ErrNotFound)

	ok(s.DeleteConversation(ctx, c.ID))
	deleted := must(s.Conversation(ctx, c.ID)).Deleted
	if n := must(s.PurgeConversations(ctx, deleted)); n != 0 {
		t.Errorf("purged %d that were not old enough", n)
	}
	if n := must(s.PurgeConversations(ctx, deleted.Add(time.Millisecond))); n != 1 {
		t.Errorf("purged %d", n)
	}
	_, err = s.Message(ctx, question.ID)
	wantErr(t, err, ErrNotFound)
	for _, table := range []string{"conversation", "message", "turn", "turn_blob"} {
		var rows int
		ok(s.reader.QueryRow("SELECT count(*) FROM " + table).Scan(&rows))
		if rows != 0 {
			t.Errorf("%d rows are left in %s", rows, table)
		}
	}
}

func TestPurgeWaitsForARunningAnswer(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "", "", nil))
	_, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: "?"})
	ok(err)
	ok(s.DeleteConversation(ctx, c.ID))
	if n := must(s.PurgeConversations(ctx, time.Now())); n != 0 {
		t.Errorf("purged %d", n)
	}
	ok(s.FinishTurn(ctx, TurnResult{Answer: answer.ID, State: StateComplete}))
	if n := must(s.PurgeConversations(ctx, time.Now())); n != 1 {
		t.Errorf("purged %d", n)
	}
}

// A path as deep as this is past the 1,000 levels that SQLite lets a reference cascade.
func TestVeryLongConversation(t *testing.T) {
	const length = 2500
	s := openNew(t)
	var file strings.Builder
	file.WriteString(`{"format": "covey.conversations", "version": 1, "conversations": [{"title": "Long", "created": "2025-01-01T00:00:00Z", "updated": "2025-01-01T00:00:00Z", "messages": [`)
	parent := ""
	for i := range length {
		if i > 0 {
			file.WriteString(",")
		}
		id := strconv.Itoa(i)
		file.WriteString(`{"id": "` + id + `", "parent": "` + parent + `", "role": "user", "content": "word", "state": "complete", "created": "2025-01-01T00:00:00Z", "updated": "2025-01-01T00:00:00Z"}`)
		parent = id
	}
	file.WriteString("]}]}")
	id := must(s.ImportJSON(ctx, strings.NewReader(file.String())))[0]
	_, path, err := s.Thread(ctx, id)
	if err != nil || len(path) != length {
		t.Fatalf("%d messages, %v", len(path), err)
	}
	leaf := must(s.DeleteMessage(ctx, path[100].ID))
	if leaf != path[99].ID {
		t.Errorf("leaf is %s, want %s", leaf, path[99].ID)
	}
	ok(s.DeleteConversation(ctx, id))
	must(s.PurgeConversations(ctx, time.Now()))
	if hits := must(s.Search(ctx, "word", 10)); len(hits) != 0 {
		t.Errorf("search finds %v", hits)
	}
}
