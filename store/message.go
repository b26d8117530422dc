package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Role says who wrote a message.
type Role string

// Roles.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// State is where a message stands.
type State string

// States of a message. Only an assistant's message is ever running, stopped or failed.
const (
	StateComplete State = "complete"
	StateRunning  State = "running"
	StateStopped  State = "stopped" // cancelled or interrupted; Content is what there was
	StateFailed   State = "failed"  // Note says why
)

// Message is a node of a conversation's tree.
type Message struct {
	ID           string
	Conversation string
	Parent       string // "" = first message of a branch
	Role         Role
	Content      string
	Reasoning    string
	State        State
	Note         string // why it stopped or failed, for people; "interrupted" after a crash; "" = nothing to say
	Created      time.Time
	Updated      time.Time

	// The arrows "2/3": place among the messages with the same parent, in order of creation.
	Sibling, Siblings int    // 1-based place, count
	Previous, Next    string // ids of the neighbours; "" = none

	Turn *Turn // how an assistant's message was made; nil for others and for imported ones without
}

// "IS" compares the parents so that messages at the root, whose parent is NULL, are siblings too; it uses the index
// message_siblings as "=" does.
const (
	messageColumns = `m.id, c.id, coalesce(p.id, ''), m.role, m.content, m.reasoning, m.state, m.note, m.created, m.updated,
		(SELECT count(*) FROM message x WHERE x.conversation = m.conversation AND x.parent IS m.parent AND x.seq <= m.seq),
		(SELECT count(*) FROM message x WHERE x.conversation = m.conversation AND x.parent IS m.parent),
		coalesce((SELECT x.id FROM message x WHERE x.conversation = m.conversation AND x.parent IS m.parent AND x.seq < m.seq
			ORDER BY x.seq DESC LIMIT 1), ''),
		coalesce((SELECT x.id FROM message x WHERE x.conversation = m.conversation AND x.parent IS m.parent AND x.seq > m.seq
			ORDER BY x.seq LIMIT 1), ''),
		t.message IS NOT NULL, coalesce(t.model, ''), coalesce(t.model_hash, ''), coalesce(t.numerics, ''),
		coalesce(t.params, ''), coalesce(t.prompt, 0), coalesce(t.cached, 0), coalesce(t.generated, 0), coalesce(t.queue, 0),
		coalesce(t.prefill, 0), coalesce(t.decode, 0), coalesce(t.bytes, 0), coalesce(t.finish, ''), coalesce(t.hash, ''),
		coalesce(t.started, 0), coalesce(t.finished, 0)
		FROM message m JOIN conversation c ON c.seq = m.conversation
		LEFT JOIN message p ON p.seq = m.parent LEFT JOIN turn t ON t.message = m.seq`

	sqlMessage = `SELECT ` + messageColumns + ` WHERE m.id = ?`
	sqlPath    = `WITH RECURSIVE path (seq, parent) AS (
			SELECT seq, parent FROM message WHERE id = ?
			UNION ALL SELECT up.seq, up.parent FROM path JOIN message up ON up.seq = path.parent)
		SELECT ` + messageColumns + ` WHERE m.seq IN (SELECT seq FROM path) ORDER BY m.seq`
	sqlTree = `SELECT ` + messageColumns + ` WHERE c.id = ? ORDER BY m.seq`

	sqlNode = `SELECT m.seq, m.conversation, m.parent, m.role, m.state, c.id, c.leaf, c.deleted
		FROM message m JOIN conversation c ON c.seq = m.conversation WHERE m.id = ?`
	sqlConversationRow = `SELECT seq, deleted FROM conversation WHERE id = ?`
	sqlAddMessage      = `INSERT INTO message (id, conversation, parent, role, content, reasoning, state, note, created, updated)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`
	sqlShow = `UPDATE conversation SET leaf = ?2, updated = ?3 WHERE seq = ?1`

	below = `WITH RECURSIVE below (seq) AS (
			SELECT ?1
			UNION ALL SELECT child.seq FROM below JOIN message child ON child.parent = below.seq)`
	// The newest message of a subtree is a leaf, since children are newer than their parents.
	sqlNewestBelow  = below + ` SELECT max(seq) FROM below`
	sqlNewestRoot   = `SELECT max(seq) FROM message WHERE conversation = ?`
	sqlRunningBelow = below + ` SELECT EXISTS (SELECT 1 FROM message WHERE seq IN (SELECT seq FROM below) AND state = 'running')`
	sqlIsBelow      = below + ` SELECT ?2 IN (SELECT seq FROM below)`
	sqlDeleteBelow  = below + ` DELETE FROM message WHERE seq IN (SELECT seq FROM below)`
	sqlLeaf         = `UPDATE conversation SET leaf = ?2 WHERE seq = ?1`
	sqlMessageID    = `SELECT id FROM message WHERE seq = ?`
)

func scanMessage(rows *sql.Rows) (Message, error) { return scanMessageRow(rows) }

func scanMessageRow(row interface{ Scan(...any) error }) (m Message, err error) {
	var t Turn
	var params string
	var made bool
	var created, updated, started, finished int64
	err = row.Scan(&m.ID, &m.Conversation, &m.Parent, &m.Role, &m.Content, &m.Reasoning, &m.State, &m.Note, &created, &updated,
		&m.Sibling, &m.Siblings, &m.Previous, &m.Next,
		&made, &t.Model, &t.ModelHash, &t.Numerics, &params, &t.Prompt, &t.Cached, &t.Generated, &t.Queue,
		&t.Prefill, &t.Decode, &t.Bytes, &t.Finish, &t.Hash, &started, &finished)
	m.Created, m.Updated = moment(created), moment(updated)
	if made {
		t.Params, t.Started, t.Finished = json.RawMessage(params), moment(started), moment(finished)
		m.Turn = &t
	}
	return m, err
}

// node is what writes need to know of a message.
type node struct {
	seq, conversation int64
	parent            sql.NullInt64
	role              Role
	state             State
	conversationID    string
	leaf              sql.NullInt64
	deleted           int64 // of the conversation
}

func readNode(tx *sql.Tx, id string) (n node, err error) {
	err = tx.QueryRow(sqlNode, id).Scan(&n.seq, &n.conversation, &n.parent, &n.role, &n.state, &n.conversationID, &n.leaf, &n.deleted)
	if errors.Is(err, sql.ErrNoRows) {
		return n, fmt.Errorf("message %s: %w", id, ErrNotFound)
	}
	return n, err
}

// place finds where a new message goes: the conversation's row and the parent (seq 0 = the root).
func place(tx *sql.Tx, conversation, parent string) (row int64, above node, err error) {
	var deleted int64
	err = tx.QueryRow(sqlConversationRow, conversation).Scan(&row, &deleted)
	switch {
	case errors.Is(err, sql.ErrNoRows), err == nil && deleted != 0:
		return 0, node{}, fmt.Errorf("conversation %s: %w", conversation, ErrNotFound)
	case err != nil || parent == "":
		return row, node{}, err
	}
	if above, err = readNode(tx, parent); err != nil {
		return 0, node{}, err
	}
	switch {
	case above.conversation != row:
		return 0, node{}, fmt.Errorf("%w: message %s is not of conversation %s", ErrInvalid, parent, conversation)
	case above.state == StateRunning:
		return 0, node{}, fmt.Errorf("%w: message %s is still running", ErrState, parent)
	}
	return row, above, nil
}

// insert adds a message and returns its seq. parent 0 = at the root.
func insert(tx *sql.Tx, m Message, conversation, parent int64) (int64, error) {
	result, err := tx.Exec(sqlAddMessage, m.ID, conversation, sql.NullInt64{Int64: parent, Valid: parent != 0}, m.Role,
		clean(m.Content), clean(m.Reasoning), m.State, clean(m.Note), millis(m.Created), millis(m.Updated))
	if err != nil {
		return 0, err
	}
	return result.LastInsertId()
}

// Message reads one message.
func (s *Store) Message(ctx context.Context, id string) (Message, error) {
	m, err := scanMessageRow(s.reader.QueryRowContext(ctx, sqlMessage, id))
	return m, failRead(ctx, "reading message "+id, err)
}

// Path is the branch from the first message down to the given one.
func (s *Store) Path(ctx context.Context, leaf string) ([]Message, error) {
	path, err := query(ctx, s.reader, scanMessage, sqlPath, leaf)
	if err == nil && len(path) == 0 {
		err = ErrNotFound
	}
	return path, failRead(ctx, "reading path to message "+leaf, err)
}

// AddMessage adds a complete message that no engine made (an edited answer, a tool's result) below parent ("" = at the
// root) and makes it the leaf.
func (s *Store) AddMessage(ctx context.Context, conversation, parent string, role Role, content string) (m Message, err error) {
	const doing = "adding message"
	switch role {
	case RoleUser, RoleAssistant, RoleTool:
	default:
		return Message{}, fail(doing, fmt.Errorf("%w: role %q: user, assistant or tool", ErrInvalid, role))
	}
	err = s.write(ctx, doing, func(tx *sql.Tx) error {
		row, above, err := place(tx, conversation, parent)
		if err != nil {
			return err
		}
		now := s.now()
		m = Message{ID: newID(), Role: role, Content: content, State: StateComplete, Created: now, Updated: now}
		seq, err := insert(tx, m, row, above.seq)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(sqlShow, row, seq, now.UnixMilli()); err != nil {
			return err
		}
		m, err = scanMessageRow(tx.QueryRow(sqlMessage, m.ID))
		return err
	})
	return m, err
}

// SelectBranch shows the branch through the given message, down to the newest message below it, and returns the new leaf.
func (s *Store) SelectBranch(ctx context.Context, message string) (leaf string, err error) {
	err = s.write(ctx, "selecting branch of message "+message, func(tx *sql.Tx) error {
		n, err := readNode(tx, message)
		if err != nil {
			return err
		}
		var newest int64
		if err := tx.QueryRow(sqlNewestBelow, n.seq).Scan(&newest); err != nil {
			return err
		}
		if _, err := tx.Exec(sqlLeaf, n.conversation, newest); err != nil {
			return err
		}
		return tx.QueryRow(sqlMessageID, newest).Scan(&leaf)
	})
	return leaf, err
}

// DeleteMessage removes a message and everything below it for good. If the leaf was among them, the newest message below
// the parent, or else of the conversation, becomes the leaf. Returns the leaf ("" = no message is left). ErrState while
// one of those to be removed is running.
func (s *Store) DeleteMessage(ctx context.Context, message string) (leaf string, err error) {
	err = s.write(ctx, "deleting message "+message, func(tx *sql.Tx) error {
		n, err := readNode(tx, message)
		if err != nil {
			return err
		}
		var running, shown bool
		if err := tx.QueryRow(sqlRunningBelow, n.seq).Scan(&running); err != nil {
			return err
		}
		if running {
			return fmt.Errorf("%w: an answer below it is still running", ErrState)
		}
		if n.leaf.Valid {
			if err := tx.QueryRow(sqlIsBelow, n.seq, n.leaf.Int64).Scan(&shown); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(sqlDeleteBelow, n.seq); err != nil {
			return err
		}
		next := n.leaf
		if shown {
			find, arg := sqlNewestRoot, n.conversation
			if n.parent.Valid {
				find, arg = sqlNewestBelow, n.parent.Int64
			}
			if err := tx.QueryRow(find, arg).Scan(&next); err != nil {
				return err
			}
			if _, err := tx.Exec(sqlLeaf, n.conversation, next); err != nil {
				return err
			}
		}
		if !next.Valid {
			return nil
		}
		return tx.QueryRow(sqlMessageID, next.Int64).Scan(&leaf)
	})
	return leaf, err
}
