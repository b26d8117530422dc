package store

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files instead of comparing with them")

// golden compares text with testdata/name.
func golden(t *testing.T, name string, text []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		ok(os.MkdirAll("testdata", 0o755))
		ok(os.WriteFile(path, text, 0o644))
	}
	if diff := cmp.Diff(string(must(os.ReadFile(path))), string(text)); diff != "" {
		t.Errorf("%s (-golden +now):\n%s", path, diff)
	}
}

// ids of 26 characters are random: numbered by first appearance they can be compared.
func numbered(text []byte) []byte {
	seen := map[string]string{}
	return regexp.MustCompile(`"[a-z2-7]{26}"`).ReplaceAllFunc(text, func(id []byte) []byte {
		if seen[string(id)] == "" {
			seen[string(id)] = `"#` + string(rune('0'+len(seen))) + `"`
		}
		return []byte(seen[string(id)])
	})
}

// sample is a conversation with two branches, of which the first is shown, reasoning and a failed answer.
func sample(s *Store) Conversation {
	c := must(s.CreateConversation(ctx, "Tides\nand moons", "Be brief.\nBe exact.", json.RawMessage(`{"temperature":0.7}`)))
	question, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: "Why are there *two* tides a day?", Model: "tiny", ModelHash: "m1",
		Numerics: "n1", Params: json.RawMessage(`{"seed":7}`)})
	ok(err)
	ok(s.FinishTurn(ctx, TurnResult{Answer: answer.ID, State: StateComplete, Content: "One bulge faces the Moon, one faces away:\n\n```\na = 2GMr/d^3\n```",
		Reasoning: "Gradient of gravity.", Turn: Turn{Prompt: 30, Cached: 8, Generated: 21, Queue: time.Microsecond, Prefill: 40 * time.Millisecond,
			Decode: 700 * time.Millisecond, Bytes: 123456, Finish: "stop", Hash: "ab12"}, Tokens: []Token{{ID: 1}}, Routing: []byte{1}}))
	_, failed, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Parent: answer.ID, Text: "And on a planet with two moons?", Model: "tiny"})
	ok(err)
	ok(s.FinishTurn(ctx, TurnResult{Answer: failed.ID, State: StateFailed, Note: "disk read failed", Content: "The tides"}))
	_, other, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Parent: question.ID, Model: "tiny"})
	ok(err)
	ok(s.FinishTurn(ctx, TurnResult{Answer: other.ID, State: StateStopped, Content: "Because <script>"}))
	must(s.SelectBranch(ctx, answer.ID))
	return must(s.Conversation(ctx, c.ID))
}

func TestMarkdownShowsTheBranch(t *testing.T) {
	s := openNew(t)
	var b bytes.Buffer
	ok(s.ExportMarkdown(ctx, &b, sample(s).ID))
	golden(t, "conversation.md", b.Bytes())
	wantErr(t, s.ExportMarkdown(ctx, &b, "nothing"), ErrNotFound)
}

func TestExportedConversationComesBackTheSame(t *testing.T) {
	s := openNew(t)
	c := sample(s)
	ok(s.PinConversation(ctx, c.ID, true))
	var first, second bytes.Buffer
	ok(s.ExportJSON(ctx, &first, c.ID))
	golden(t, "conversations.json", numbered(first.Bytes()))

	ids := must(s.ImportJSON(ctx, bytes.NewReader(first.Bytes())))
	if len(ids) != 1 || ids[0] == c.ID {
		t.Fatalf("imported as %v", ids)
	}
	ok(s.ExportJSON(ctx, &second, ids[0]))
	if diff := cmp.Diff(string(numbered(first.Bytes())), string(numbered(second.Bytes()))); diff != "" {
		t.Error(diff)
	}
	if hits := must(s.Search(ctx, "bulge", 10)); len(hits) != 2 {
		t.Errorf("search finds %d", len(hits))
	}
}

func TestExportOfAllLeavesDeletedOut(t *testing.T) {
	s := openNew(t)
	var empty bytes.Buffer
	ok(s.ExportJSON(ctx, &empty))
	if ids := must(s.ImportJSON(ctx, &empty)); len(ids) != 0 {
		t.Errorf("an empty store exports %v", ids)
	}
	sample(s)
	gone := must(s.CreateConversation(ctx, "Gone", "", nil))
	ok(s.DeleteConversation(ctx, gone.ID))
	must(s.CreateConversation(ctx, "Empty", "", nil))
	var all bytes.Buffer
	ok(s.ExportJSON(ctx, &all))
	if ids := must(s.ImportJSON(ctx, &all)); len(ids) != 2 {
		t.Errorf("imported %v", ids)
	}
}

func TestRunningAnswerIsImportedAsStopped(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "", "", nil))
	_, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: "?"})
	ok(err)
	ok(s.CheckpointTurn(ctx, answer.ID, "part", ""))
	var b bytes.Buffer
	ok(s.ExportJSON(ctx, &b, c.ID))
	_, path, err := s.Thread(ctx, must(s.ImportJSON(ctx, &b))[0])
	ok(err)
	if got := path[1]; got.State != StateStopped || got.Note != "interrupted" || got.Content != "part" {
		t.Errorf("imported %+v", got)
	}
}

func TestBadImportNamesTheFieldAndStoresNothing(t *testing.T) {
	s := openNew(t)
	const good = `{"format": "covey.conversations", "version": 1, "conversations": [
		{"title": "A", "created": "2025-01-01T00:00:00Z", "updated": "2025-01-01T00:00:00Z", "leaf": "2", "messages": [
		{"id": "1", "role": "user", "content": "q", "state": "complete", "created": "2025-01-01T00:00:00Z", "updated": "2025-01-01T00:00:00Z"},
		{"id": "2", "parent": "1", "role": "assistant", "content": "a", "state": "failed", "created": "2025-01-01T00:00:00Z", "updated": "2025-01-01T00:00:00Z",
		 "turn": {"model": "m", "prompt_tokens": 1, "started": "2025-01-01T00:00:00Z"}}]}]}`
	for _, test := range []struct{ old, new, want string }{
		{`{"format"`, `[{"format"`, "it is not a JSON object"},
		{`"version": 1`, `"version": 1, "version": 1`, "duplicate"},
		{`covey.conversations`, `other.conversations`, "format"},
		{`"version": 1`, `"version": 2`, "version"},
		{`"title"`, `"titel"`, "titel"},
		{`"title": "A"`, `"title": 5`, "title"},
		{`"title": "A",`, `"title": "A", "settings": [],`, "conversations[0].settings"},
		{`"id": "1"`, `"id": ""`, "messages[0].id"},
		{`"id": "2"`, `"id": "1"`, "messages[1].id"},
		{`"parent": "1"`, `"parent": "2"`, "messages[1].parent"},
		{`"leaf": "2"`, `"leaf": "3"`, "conversations[0].leaf"},
		{`"user"`, `"system"`, "messages[0].role"},
		{`"failed"`, `"odd"`, "messages[1].state"},
		{`"state": "complete"`, `"state": "failed"`, "messages[0].state"},
		{`"created": "2025`, `"created": "1925`, "conversations[0].created"},
		{`"prompt_tokens": 1`, `"prompt_tokens": -1`, "messages[1].turn"},
		{`"prompt_tokens": 1`, `"params": 1`, "messages[1].turn.params"},
		{`"title": "A"`, `"title": "` + strings.Repeat("t", 1001) + `"`, "conversations[0].title: 1001 bytes, at most 1000"},
		{`"title": "A",`, `"title": "A", "settings": {"a": "` + strings.Repeat("s", 64<<10) + `"},`, "conversations[0].settings: 65545 bytes"},
		{`"content": "q"`, `"content": "` + strings.Repeat("q", 4<<20+1) + `"`, "messages[0].content: 4194305 bytes"},
		{`"model": "m"`, `"model": "` + strings.Repeat("m", 2000) + `"`, "messages[1].turn.model: 2000 bytes"},
		{`]}]}`, `]}]} {}`, "after top-level value"},
		{`]}]}`, ``, "unexpected EOF"},
	} {
		text := strings.Replace(good, test.old, test.new, 1)
		if text == good {
			t.Fatalf("%s does not occur", test.old)
		}
		_, err := s.ImportJSON(ctx, strings.NewReader(text))
		wantErr(t, err, ErrInvalid, test.want)
	}
	if list := must(s.Conversations(ctx, 0, 10)); len(list) != 0 {
		t.Errorf("stored %v", list)
	}
	must(s.ImportJSON(ctx, strings.NewReader(good)))
}

// endless is a file that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestEndlessImportIsRefused(t *testing.T) {
	_, err := decodeTransfer(endless{}, 1<<20)
	wantErr(t, err, ErrInvalid, "more than 1048576 bytes")
}

// Whatever is accepted can be stored.
func FuzzImport(f *testing.F) {
	f.Add(must(os.ReadFile("testdata/conversations.json")))
	f.Add([]byte(`{"format": "covey.conversations", "version": 1, "conversations": [{"created": "9999-12-31T00:00:00Z", "messages": []}]}`))
	f.Add([]byte(`{"format": "covey.conversations", "version": 1, "conversations": [{"messages": [{"id": "1", "role": "user", "state": "complete", "content": "\ud800\u0000"}]}]}`))
	s, err := Open(ctx, Options{Dir: f.TempDir()})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { ok(s.Close()) })
	f.Fuzz(func(t *testing.T, text []byte) {
		ids, err := s.ImportJSON(ctx, bytes.NewReader(text))
		if err != nil {
			wantErr(t, err, ErrInvalid)
			return
		}
		for _, id := range ids {
			if err := s.ExportJSON(ctx, io.Discard, id); err != nil {
				t.Error(err)
			}
		}
	})
}
