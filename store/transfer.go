package store

// Conversations as files: Markdown to read, JSON to keep and to bring back. The JSON form:
//
//	{"format": "covey.conversations", "version": 1, "conversations": [{"title", "system", "settings", "pinned", "created",
//	 "updated", "leaf", "messages": [{"id", "parent", "role", "content", "reasoning", "state", "note", "created", "updated",
//	 "turn"}]}]}
//
// with messages in order of creation (a parent before its children) and ids that mean something inside the file only.

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	strict "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	transferFormat  = "covey.conversations"
	transferVersion = 1
)

// Limits of a file to import.
const (
	maxImport        = 64 << 20 // bytes
	maxConversations = 10_000
	maxMessages      = 100_000  // of one conversation
	maxLine          = 1000     // bytes of a title and of each name in a turn: lists show them whole
	maxText          = 4 << 20  // bytes of a system prompt, a message and its reasoning: a page shows them whole
	maxObject        = 64 << 10 // bytes of settings, of a turn's parameters and of a note
)

type transferFile struct {
	Format        string                 `json:"format"`
	Version       int                    `json:"version"`
	Conversations []transferConversation `json:"conversations"`
}

type transferConversation struct {
	Title    string            `json:"title"`
	System   string            `json:"system,omitempty"`
	Settings json.RawMessage   `json:"settings,omitempty"`
	Pinned   bool              `json:"pinned,omitempty"`
	Created  time.Time         `json:"created"`
	Updated  time.Time         `json:"updated"`
	Leaf     string            `json:"leaf,omitempty"`
	Messages []transferMessage `json:"messages"`
}

type transferMessage struct {
	ID        string        `json:"id"`
	Parent    string        `json:"parent,omitempty"`
	Role      Role          `json:"role"`
	Content   string        `json:"content"`
	Reasoning string        `json:"reasoning,omitempty"`
	State     State         `json:"state"`
	Note      string        `json:"note,omitempty"`
	Created   time.Time     `json:"created"`
	Updated   time.Time     `json:"updated"`
	Turn      *transferTurn `json:"turn,omitempty"`
}

type transferTurn struct {
	Model     string          `json:"model"`
	ModelHash string          `json:"model_hash"`
	Numerics  string          `json:"numerics"`
	Params    json.RawMessage `json:"params,omitempty"`
	Prompt    int             `json:"prompt_tokens"`
	Cached    int             `json:"cached_tokens"`
	Generated int             `json:"generated_tokens"`
	Queue     time.Duration   `json:"queue_ns,format:nano"`
	Prefill   time.Duration   `json:"prefill_ns,format:nano"`
	Decode    time.Duration   `json:"decode_ns,format:nano"`
	Bytes     int64           `json:"expert_bytes"`
	Finish    string          `json:"finish"`
	Hash      string          `json:"hash,omitempty"`
	Started   time.Time       `json:"started"`
	Finished  time.Time       `json:"finished"`
}

const sqlAllConversations = `SELECT id FROM conversation WHERE deleted = 0 ORDER BY seq`

// tree reads a conversation with all its messages, in order of creation, in one snapshot.
func (s *Store) tree(ctx context.Context, id string) (c Conversation, messages []Message, err error) {
	err = s.snapshot(ctx, "reading conversation "+id, func(tx *sql.Tx) error {
		if c, err = scanConversation(tx.QueryRowContext(ctx, sqlConversation, id)); err != nil {
			return err
		}
		messages, err = query(ctx, tx, scanMessage, sqlTree, id)
		return err
	})
	return c, messages, err
}

// ExportMarkdown writes the branch shown of a conversation as Markdown.
func (s *Store) ExportMarkdown(ctx context.Context, w io.Writer, conversation string) error {
	c, path, err := s.Thread(ctx, conversation)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(w)
	title := strings.Join(strings.Fields(c.Title), " ")
	if title == "" {
		title = "Conversation"
	}
	fmt.Fprintf(b, "# %s\n\n%s\n", title, c.Created.UTC().Format("2006-01-02 15:04 UTC"))
	if c.System != "" {
		fmt.Fprintf(b, "\n> **System:** %s\n", strings.ReplaceAll(c.System, "\n", "\n> "))
	}
	for _, m := range path {
		switch m.Role {
		case RoleUser:
			b.WriteString("\n## User\n\n")
		case RoleTool:
			b.WriteString("\n## Tool\n\n")
		default:
			b.WriteString("\n## Assistant")
			if m.Turn != nil && m.Turn.Model != "" {
				fmt.Fprintf(b, " (%s)", m.Turn.Model)
			}
			b.WriteString("\n\n")
		}
		if m.Reasoning != "" {
			fmt.Fprintf(b, "<details><summary>Reasoning</summary>\n\n%s\n\n</details>\n\n", m.Reasoning)
		}
		fmt.Fprintf(b, "%s\n", m.Content)
		if m.State != StateComplete {
			note := ""
			if m.Note != "" {
				note = ": " + m.Note
			}
			fmt.Fprintf(b, "\n*(%s%s)*\n", m.State, note)
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("store: exporting conversation %s: %w", conversation, err)
	}
	return nil
}

// ExportJSON writes whole conversations with all branches and statistics (without the blobs of tokens and routing).
// No id = all that are not deleted. One conversation is in memory at a time.
func (s *Store) ExportJSON(ctx context.Context, w io.Writer, conversations ...string) error {
	const doing = "exporting conversations"
	if len(conversations) == 0 {
		var err error
		conversations, err = query(ctx, s.reader, func(rows *sql.Rows) (id string, err error) { return id, rows.Scan(&id) }, sqlAllConversations)
		if err != nil {
			return failRead(ctx, doing, err)
		}
	}
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "{\"format\": %q, \"version\": %d, \"conversations\": [", transferFormat, transferVersion)
	for i, id := range conversations {
		c, messages, err := s.tree(ctx, id)
		if err != nil {
			return err
		}
		text, err := json.MarshalIndent(outward(c, messages), "", "  ")
		if err != nil {
			return fail(doing, err)
		}
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n")
		b.Write(text)
	}
	b.WriteString("\n]}\n")
	if err := b.Flush(); err != nil {
		return fmt.Errorf("store: %s: %w", doing, err)
	}
	return nil
}

func outward(c Conversation, messages []Message) transferConversation {
	out := transferConversation{Title: c.Title, System: c.System, Settings: c.Settings, Pinned: c.Pinned,
		Created: c.Created.UTC(), Updated: c.Updated.UTC(), Leaf: c.Leaf, Messages: make([]transferMessage, len(messages))}
	for i, m := range messages {
		out.Messages[i] = transferMessage{ID: m.ID, Parent: m.Parent, Role: m.Role, Content: m.Content, Reasoning: m.Reasoning,
			State: m.State, Note: m.Note, Created: m.Created.UTC(), Updated: m.Updated.UTC()}
		if t := m.Turn; t != nil {
			out.Messages[i].Turn = &transferTurn{t.Model, t.ModelHash, t.Numerics, t.Params, t.Prompt, t.Cached, t.Generated,
				t.Queue, t.Prefill, t.Decode, t.Bytes, t.Finish, t.Hash, t.Started.UTC(), t.Finished.UTC()}
		}
	}
	return out
}

// decodeTransfer reads a file of at most limit bytes and checks all that ImportJSON relies on.
func decodeTransfer(r io.Reader, limit int64) (*transferFile, error) {
	limited := &io.LimitedReader{R: r, N: limit + 1}
	var file transferFile
	var kind *strict.SemanticError
	err := strict.UnmarshalRead(limited, &file, strict.RejectUnknownMembers(true), jsontext.AllowInvalidUTF8(true))
	switch {
	case limited.N <= 0:
		return nil, fmt.Errorf("%w: file of more than %d bytes", ErrInvalid, limit)
	case errors.Is(err, strict.ErrUnknownName) && errors.As(err, &kind):
		return nil, fmt.Errorf("%w: an export has no field %q", ErrInvalid, kind.JSONPointer)
	case errors.As(err, &kind) && kind.JSONPointer == "":
		return nil, fmt.Errorf("%w: it is not a JSON object", ErrInvalid)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	case file.Format != transferFormat:
		return nil, fmt.Errorf("%w: format: %q, want %q", ErrInvalid, file.Format, transferFormat)
	case file.Version != transferVersion:
		return nil, fmt.Errorf("%w: version: %d, this program reads %d", ErrInvalid, file.Version, transferVersion)
	case len(file.Conversations) > maxConversations:
		return nil, fmt.Errorf("%w: conversations: %d, at most %d", ErrInvalid, len(file.Conversations), maxConversations)
	}
	for i := range file.Conversations {
		if err := file.Conversations[i].check(); err != nil {
			return nil, fmt.Errorf("%w: conversations[%d].%w", ErrInvalid, i, err)
		}
	}
	return &file, nil
}

// check says what is wrong with a conversation, beginning with the field's name, and tidies what can be.
func (c *transferConversation) check() error {
	if err := errors.Join(within("title", c.Title, maxLine), within("system", c.System, maxText), within("settings", string(c.Settings), maxObject)); err != nil {
		return err
	}
	settings, err := object("settings", c.Settings)
	switch {
	case err != nil:
		return fmt.Errorf("settings: %w", err)
	case !storable(c.Created):
		return fmt.Errorf("created: %w", errTime)
	case !storable(c.Updated):
		return fmt.Errorf("updated: %w", errTime)
	case len(c.Messages) > maxMessages:
		return fmt.Errorf("messages: %d, at most %d", len(c.Messages), maxMessages)
	}
	c.Settings = json.RawMessage(settings)
	known := make(map[string]bool, len(c.Messages))
	for i := range c.Messages {
		m := &c.Messages[i]
		if m.ID == "" || known[m.ID] {
			return fmt.Errorf("messages[%d].id: %q is empty or stands twice", i, m.ID)
		}
		if m.Parent != "" && !known[m.Parent] {
			return fmt.Errorf("messages[%d].parent: %q is no earlier message", i, m.Parent)
		}
		if err := m.check(); err != nil {
			return fmt.Errorf("messages[%d].%w", i, err)
		}
		known[m.ID] = true
	}
	if c.Leaf != "" && !known[c.Leaf] {
		return fmt.Errorf("leaf: %q is no message", c.Leaf)
	}
	return nil
}

// within says that a field is too long.
func within(field, text string, most int) error {
	if len(text) > most {
		return fmt.Errorf("%s: %d bytes, at most %d", field, len(text), most)
	}
	return nil
}

var errTime = errors.New("must lie between the years 1970 and 9999")

// storable accepts the zero time too, which stands for "not yet".
func storable(t time.Time) bool { return t.IsZero() || t.Year() >= 1970 && t.Year() <= 9999 }

func (m *transferMessage) check() error {
	if err := errors.Join(within("content", m.Content, maxText), within("reasoning", m.Reasoning, maxText), within("note", m.Note, maxObject)); err != nil {
		return err
	}
	switch m.Role {
	case RoleUser, RoleAssistant, RoleTool:
	default:
		return fmt.Errorf("role: %q, want user, assistant or tool", m.Role)
	}
	switch m.State {
	case StateComplete, StateStopped, StateFailed:
	case StateRunning: // nobody goes on with it here
		m.State, m.Note = StateStopped, "interrupted"
	default:
		return fmt.Errorf("state: %q, want complete, stopped or failed", m.State)
	}
	switch {
	case m.Role != RoleAssistant && (m.State != StateComplete || m.Turn != nil):
		return fmt.Errorf("state: only an assistant's message is %s or has a turn", m.State)
	case !storable(m.Created):
		return fmt.Errorf("created: %w", errTime)
	case !storable(m.Updated):
		return fmt.Errorf("updated: %w", errTime)
	case m.Turn == nil:
		return nil
	}
	t := m.Turn
	if err := errors.Join(within("turn.model", t.Model, maxLine), within("turn.model_hash", t.ModelHash, maxLine), within("turn.numerics", t.Numerics, maxLine),
		within("turn.finish", t.Finish, maxLine), within("turn.hash", t.Hash, maxLine), within("turn.params", string(t.Params), maxObject)); err != nil {
		return err
	}
	params, err := object("params", t.Params)
	switch {
	case err != nil:
		return fmt.Errorf("turn.params: %w", err)
	case t.Prompt < 0, t.Cached < 0, t.Generated < 0, t.Queue < 0, t.Prefill < 0, t.Decode < 0, t.Bytes < 0:
		return errors.New("turn: a count or duration is negative")
	case !storable(t.Started):
		return fmt.Errorf("turn.started: %w", errTime)
	case !storable(t.Finished):
		return fmt.Errorf("turn.finished: %w", errTime)
	}
	t.Params = json.RawMessage(params)
	return nil
}

const (
	sqlImportConversation = `INSERT INTO conversation (id, title, system, settings, pinned, created, updated) VALUES (?, ?, ?, ?, ?, ?, ?)`
	sqlImportTurn         = `INSERT INTO turn (message, model, model_hash, numerics, params, prompt, cached, generated, queue,
		prefill, decode, bytes, finish, hash, started, finished) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
)

// ImportJSON adds the conversations of an ExportJSON file under new ids, all or none, and returns the ids. ErrInvalid
// names the field that is wrong.
func (s *Store) ImportJSON(ctx context.Context, r io.Reader) (ids []string, err error) {
	const doing = "importing conversations"
	file, err := decodeTransfer(r, maxImport)
	if err != nil {
		return nil, fail(doing, err)
	}
	err = s.write(ctx, doing, func(tx *sql.Tx) error {
		ids = make([]string, len(file.Conversations))
		for i, c := range file.Conversations {
			if ids[i], err = importOne(tx, c); err != nil {
				return fmt.Errorf("conversations[%d]: %w", i, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

func importOne(tx *sql.Tx, c transferConversation) (id string, err error) {
	id = newID()
	result, err := tx.Exec(sqlImportConversation, id, clean(c.Title), clean(c.System), string(c.Settings), c.Pinned, millis(c.Created), millis(c.Updated))
	if err != nil {
		return "", err
	}
	row, err := result.LastInsertId()
	if err != nil {
		return "", err
	}
	seqs := make(map[string]int64, len(c.Messages))
	var leaf int64
	for _, m := range c.Messages {
		seq, err := insert(tx, Message{ID: newID(), Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, State: m.State,
			Note: m.Note, Created: m.Created, Updated: m.Updated}, row, seqs[m.Parent])
		if err != nil {
			return "", err
		}
		seqs[m.ID] = seq
		if m.ID == c.Leaf || c.Leaf == "" {
			leaf = seq
		}
		if t := m.Turn; t != nil {
			if _, err := tx.Exec(sqlImportTurn, seq, t.Model, t.ModelHash, t.Numerics, string(t.Params), t.Prompt, t.Cached,
				t.Generated, int64(t.Queue), int64(t.Prefill), int64(t.Decode), t.Bytes, t.Finish, t.Hash,
				millis(t.Started), millis(t.Finished)); err != nil {
				return "", err
			}
		}
	}
	if leaf != 0 {
		_, err = tx.Exec(sqlLeaf, row, leaf)
	}
	return id, err
}
