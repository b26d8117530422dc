package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"
)

// Conversation is a tree of messages with one branch shown.
type Conversation struct {
	ID       string
	Title    string          // "" = none given yet
	System   string          // system prompt; "" = none
	Settings json.RawMessage // JSON object of the caller's; never nil
	Pinned   bool
	Leaf     string // last message of the branch shown; "" = no messages
	Running  bool   // some message of it is being generated
	Created  time.Time
	Updated  time.Time // last message added or finished
	Deleted  time.Time // zero = not deleted
}

const (
	conversationColumns = `c.id, c.title, c.system, c.settings, c.pinned, coalesce(l.id, ''),
		EXISTS (SELECT 1 FROM message r WHERE r.conversation = c.seq AND r.state = 'running'),
		c.created, c.updated, c.deleted
		FROM conversation c LEFT JOIN message l ON l.seq = c.leaf`

	sqlConversation  = `SELECT ` + conversationColumns + ` WHERE c.id = ?`
	sqlConversations = `SELECT ` + conversationColumns + ` WHERE c.deleted = 0
		ORDER BY c.pinned DESC, c.updated DESC, c.seq DESC LIMIT ? OFFSET ?`
	sqlAddConversation = `INSERT INTO conversation (id, title, system, settings, created, updated)
		VALUES (?1, ?2, ?3, ?4, ?5, ?5)`
	sqlRename  = `UPDATE conversation SET title = ?2 WHERE id = ?1 AND deleted = 0`
	sqlPin     = `UPDATE conversation SET pinned = ?2 WHERE id = ?1 AND deleted = 0`
	sqlSystem  = `UPDATE conversation SET system = ?2 WHERE id = ?1 AND deleted = 0`
	sqlSet     = `UPDATE conversation SET settings = ?2 WHERE id = ?1 AND deleted = 0`
	sqlDelete  = `UPDATE conversation SET deleted = ?2 WHERE id = ?1 AND deleted = 0`
	sqlRestore = `UPDATE conversation SET deleted = 0 WHERE id = ?1 AND deleted <> ?2`
	sqlPurge   = `DELETE FROM conversation WHERE deleted <> 0 AND deleted < ?
		AND NOT EXISTS (SELECT 1 FROM message r WHERE r.conversation = conversation.seq AND r.state = 'running')`
)

func scanConversation(row interface{ Scan(...any) error }) (c Conversation, err error) {
	var settings string
	var created, updated, deleted int64
	err = row.Scan(&c.ID, &c.Title, &c.System, &settings, &c.Pinned, &c.Leaf, &c.Running, &created, &updated, &deleted)
	c.Settings = json.RawMessage(settings)
	c.Created, c.Updated, c.Deleted = moment(created), moment(updated), moment(deleted)
	return c, err
}

// CreateConversation adds an empty conversation. settings is a JSON object; nil = {}.
func (s *Store) CreateConversation(ctx context.Context, title, system string, settings json.RawMessage) (c Conversation, err error) {
	const doing = "creating conversation"
	text, err := object("settings", settings)
	if err != nil {
		return Conversation{}, fail(doing, err)
	}
	id, now := newID(), s.now().UnixMilli()
	err = s.write(ctx, doing, func(tx *sql.Tx) error {
		if _, err := tx.Exec(sqlAddConversation, id, clean(title), clean(system), text, now); err != nil {
			return err
		}
		c, err = scanConversation(tx.QueryRow(sqlConversation, id))
		return err
	})
	return c, err
}

// Conversation reads one, deleted or not.
func (s *Store) Conversation(ctx context.Context, id string) (Conversation, error) {
	c, err := scanConversation(s.reader.QueryRowContext(ctx, sqlConversation, id))
	return c, failRead(ctx, "reading conversation "+id, err)
}

// Conversations lists those not deleted: pinned first, then by Updated, latest first.
func (s *Store) Conversations(ctx context.Context, offset, limit int) ([]Conversation, error) {
	const doing = "listing conversations"
	if offset < 0 || limit < 0 {
		return nil, fail(doing, fmt.Errorf("%w: offset %d, limit %d", ErrInvalid, offset, limit))
	}
	list, err := query(ctx, s.reader, func(rows *sql.Rows) (Conversation, error) { return scanConversation(rows) },
		sqlConversations, limit, offset)
	return list, failRead(ctx, doing, err)
}

// Thread reads a conversation and the path to its Leaf in one snapshot.
func (s *Store) Thread(ctx context.Context, id string) (c Conversation, path []Message, err error) {
	err = s.snapshot(ctx, "reading conversation "+id, func(tx *sql.Tx) error {
		if c, err = scanConversation(tx.QueryRowContext(ctx, sqlConversation, id)); err != nil {
			return err
		}
		path, err = query(ctx, tx, scanMessage, sqlPath, c.Leaf)
		return err
	})
	return c, path, err
}

// RenameConversation sets the title.
func (s *Store) RenameConversation(ctx context.Context, id, title string) error {
	return s.change(ctx, "renaming conversation "+id, sqlRename, id, clean(title))
}

// PinConversation sets or clears the pin.
func (s *Store) PinConversation(ctx context.Context, id string, pinned bool) error {
	return s.change(ctx, "pinning conversation "+id, sqlPin, id, pinned)
}

// SetSystem sets the system prompt.
func (s *Store) SetSystem(ctx context.Context, id, system string) error {
	return s.change(ctx, "setting system prompt of conversation "+id, sqlSystem, id, clean(system))
}

// SetSettings replaces the settings, a JSON object.
func (s *Store) SetSettings(ctx context.Context, id string, settings json.RawMessage) error {
	doing := "setting settings of conversation " + id
	text, err := object("settings", settings)
	if err != nil {
		return fail(doing, err)
	}
	return s.change(ctx, doing, sqlSet, id, text)
}

// DeleteConversation hides a conversation from lists and search; RestoreConversation brings it back until
// PurgeConversations removes it. An answer that runs in it goes on.
func (s *Store) DeleteConversation(ctx context.Context, id string) error {
	return s.change(ctx, "deleting conversation "+id, sqlDelete, id, s.now().UnixMilli())
}

// RestoreConversation undoes DeleteConversation.
func (s *Store) RestoreConversation(ctx context.Context, id string) error {
	return s.change(ctx, "restoring conversation "+id, sqlRestore, id, 0)
}

// PurgeConversations removes for good what was deleted before the given time, but for conversations in which an answer
// runs, and returns how many.
func (s *Store) PurgeConversations(ctx context.Context, before time.Time) (count int, err error) {
	err = s.write(ctx, "purging deleted conversations", func(tx *sql.Tx) error {
		result, err := tx.Exec(sqlPurge, millis(before))
		if err != nil {
			return err
		}
		rows, err := result.RowsAffected()
		count = int(rows)
		return err
	})
	return count, err
}

// change runs one statement that must change at least one row; otherwise ErrNotFound.
func (s *Store) change(ctx context.Context, doing, statement string, args ...any) error {
	return s.write(ctx, doing, func(tx *sql.Tx) error { return changeOne(tx, statement, args...) })
}

func changeOne(tx *sql.Tx, statement string, args ...any) error {
	result, err := tx.Exec(statement, args...)
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); err != nil || rows > 0 {
		return err
	}
	return ErrNotFound
}
