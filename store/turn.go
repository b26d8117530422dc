package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Turn is the account of how one assistant message was made.
type Turn struct {
	Model     string          // model id as shown
	ModelHash string          // identifies the weights
	Numerics  string          // numerics id
	Params    json.RawMessage // sampling parameters, JSON object

	Prompt, Cached, Generated int           // tokens; Cached is part of Prompt
	Queue                     time.Duration // submit to first step
	Prefill                   time.Duration // first step to first token
	Decode                    time.Duration // first to last token
	Bytes                     int64         // expert bytes read
	Finish                    string        // the engine's finish reason; "" while running, "interrupted" after a crash
	Hash                      string        // hash of the logits' bits; "" = not computed
	Started, Finished         time.Time     // Finished zero while running
}

// NewTurn is what BeginTurn needs.
type NewTurn struct {
	Conversation string
	Parent       string // message that the turn follows; "" = it opens a branch at the root
	Text         string // the user's message; "" = answer Parent again, which must be a user's or tool's message
	Model        string
	ModelHash    string
	Numerics     string
	Params       json.RawMessage // nil = {}
}

const (
	sqlAddTurn = `INSERT INTO turn (message, model, model_hash, numerics, params, started) VALUES (?, ?, ?, ?, ?, ?)`

	sqlCheckpoint = `UPDATE message SET content = ?2, reasoning = ?3, updated = ?4 WHERE id = ?1 AND state = 'running'`

	sqlFinishMessage = `UPDATE message SET content = ?2, reasoning = ?3, state = ?4, note = ?5, updated = ?6
		WHERE id = ?1 AND state = 'running'`
	sqlFinishTurn = `UPDATE turn SET prompt = ?2, cached = ?3, generated = ?4, queue = ?5, prefill = ?6, decode = ?7, bytes = ?8,
		finish = ?9, hash = ?10, finished = ?11 WHERE message = ?1 RETURNING model_hash`
	sqlAddBlobs = `INSERT INTO turn_blob (message, tokens, routing) VALUES (?, ?, ?)`
	sqlTouch    = `UPDATE conversation SET updated = ?2 WHERE seq = ?1`

	// Both are a row for every message, so that a missing message and missing blobs can be told apart.
	sqlTokens  = `SELECT b.tokens FROM message m LEFT JOIN turn_blob b ON b.message = m.seq WHERE m.id = ?`
	sqlRouting = `SELECT b.routing FROM message m LEFT JOIN turn_blob b ON b.message = m.seq WHERE m.id = ?`

	sqlTurnsWithRouting = `SELECT m.id, c.id, t.started, t.finish, length(b.routing) FROM turn t
		JOIN turn_blob b ON b.message = t.message JOIN message m ON m.seq = t.message
		JOIN conversation c ON c.seq = m.conversation
		WHERE t.model_hash = ?1 AND t.started >= ?2 AND t.started < ?3 AND b.routing IS NOT NULL
		AND c.deleted = 0 AND ?4 IN ('', c.id) ORDER BY t.started, t.message`
)

// BeginTurn adds the user's message (if Text is given) and the assistant's message in state running, with its turn, and
// makes the latter the leaf: one transaction. user is the parent of answer.
func (s *Store) BeginTurn(ctx context.Context, t NewTurn) (user, answer Message, err error) {
	const doing = "beginning turn"
	params, err := object("params", t.Params)
	if err != nil {
		return Message{}, Message{}, fail(doing, err)
	}
	err = s.write(ctx, doing, func(tx *sql.Tx) error {
		row, above, err := place(tx, t.Conversation, t.Parent)
		if err != nil {
			return err
		}
		now := s.now()
		userID, parent := t.Parent, above.seq
		if t.Text != "" {
			userID = newID()
			m := Message{ID: userID, Role: RoleUser, Content: t.Text, State: StateComplete, Created: now, Updated: now}
			if parent, err = insert(tx, m, row, above.seq); err != nil {
				return err
			}
		} else if above.role != RoleUser && above.role != RoleTool {
			return fmt.Errorf("%w: no text, and parent %q is no message to answer", ErrInvalid, t.Parent)
		}
		m := Message{ID: newID(), Role: RoleAssistant, State: StateRunning, Created: now, Updated: now}
		seq, err := insert(tx, m, row, parent)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(sqlAddTurn, seq, t.Model, t.ModelHash, t.Numerics, params, now.UnixMilli()); err != nil {
			return err
		}
		if _, err := tx.Exec(sqlShow, row, seq, now.UnixMilli()); err != nil {
			return err
		}
		if user, err = scanMessageRow(tx.QueryRow(sqlMessage, userID)); err != nil {
			return err
		}
		answer, err = scanMessageRow(tx.QueryRow(sqlMessage, m.ID))
		return err
	})
	return user, answer, err
}

// CheckpointTurn keeps the text that a running answer has so far, for the case of a crash. Cheap: one row, not indexed
// for search. ErrState if the message does not run.
func (s *Store) CheckpointTurn(ctx context.Context, answer, content, reasoning string) error {
	return s.write(ctx, "saving text of message "+answer, func(tx *sql.Tx) error {
		err := changeOne(tx, sqlCheckpoint, answer, clean(content), clean(reasoning), s.now().UnixMilli())
		return notRunning(tx, answer, err)
	})
}

// notRunning tells a message that does not run from one that is not there.
func notRunning(tx *sql.Tx, message string, err error) error {
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	n, err := readNode(tx, message)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: message %s is %s, not running", ErrState, message, n.state)
}

// TurnResult is what FinishTurn keeps.
type TurnResult struct {
	Answer    string // message id
	State     State  // complete, stopped or failed
	Note      string
	Content   string
	Reasoning string
	Turn      Turn         // Prompt to Hash are kept; the rest was given to BeginTurn
	Tokens    []Token      // tokens of the answer; nil = none
	Routing   []byte       // routing events of prompt and answer in engine/route's encoding; nil = none
	Usage     []UsageDelta // added to the usage of the turn's model
}

// FinishTurn ends a running answer: text, statistics, tokens, routing and usage in one transaction. The context must
// outlive the generation's own: a cancelled context stores nothing. ErrState if the message does not run; after any
// other error the message still runs and the call may be repeated.
func (s *Store) FinishTurn(ctx context.Context, r TurnResult) error {
	doing := "finishing message " + r.Answer
	switch r.State {
	case StateComplete, StateStopped, StateFailed:
	default:
		return fail(doing, fmt.Errorf("%w: state %q: complete, stopped or failed", ErrInvalid, r.State))
	}
	if err := checkUsage(r.Usage); err != nil {
		return fail(doing, err)
	}
	var tokens, routing any // NULL when absent
	if len(r.Tokens) > 0 {
		tokens = encodeTokens(r.Tokens)
	}
	if len(r.Routing) > 0 {
		routing = r.Routing
	}
	return s.write(ctx, doing, func(tx *sql.Tx) error {
		now := s.now().UnixMilli()
		err := changeOne(tx, sqlFinishMessage, r.Answer, clean(r.Content), clean(r.Reasoning), r.State, clean(r.Note), now)
		if err = notRunning(tx, r.Answer, err); err != nil {
			return err
		}
		n, err := readNode(tx, r.Answer)
		if err != nil {
			return err
		}
		var modelHash string
		t := r.Turn
		err = tx.QueryRow(sqlFinishTurn, n.seq, t.Prompt, t.Cached, t.Generated, int64(t.Queue), int64(t.Prefill), int64(t.Decode),
			t.Bytes, t.Finish, t.Hash, now).Scan(&modelHash)
		if err != nil {
			return err
		}
		if tokens != nil || routing != nil {
			if _, err := tx.Exec(sqlAddBlobs, n.seq, tokens, routing); err != nil {
				return err
			}
		}
		if err := addUsage(tx, modelHash, r.Usage, now); err != nil {
			return err
		}
		_, err = tx.Exec(sqlTouch, n.conversation, now)
		return err
	})
}

// TurnTokens reads the tokens of an answer; nil if none were kept.
func (s *Store) TurnTokens(ctx context.Context, answer string) ([]Token, error) {
	doing := "reading tokens of message " + answer
	var blob []byte
	if err := s.reader.QueryRowContext(ctx, sqlTokens, answer).Scan(&blob); err != nil || blob == nil {
		return nil, failRead(ctx, doing, err)
	}
	tokens, err := decodeTokens(blob)
	return tokens, failRead(ctx, doing, err)
}

// TurnRouting reads the routing of an answer as FinishTurn got it; nil if none was kept.
func (s *Store) TurnRouting(ctx context.Context, answer string) (routing []byte, err error) {
	err = s.reader.QueryRowContext(ctx, sqlRouting, answer).Scan(&routing)
	return routing, failRead(ctx, "reading routing of message "+answer, err)
}

// TurnRef names a turn that has routing.
type TurnRef struct {
	Answer, Conversation string
	Started              time.Time
	Finish               string // as Turn.Finish
	RoutingBytes         int
}

// TurnsWithRouting lists a model's finished turns that started in [from, to), oldest first; conversation "" = all that
// are not deleted.
func (s *Store) TurnsWithRouting(ctx context.Context, modelHash, conversation string, from, to time.Time) ([]TurnRef, error) {
	list, err := query(ctx, s.reader, func(rows *sql.Rows) (t TurnRef, err error) {
		var started int64
		err = rows.Scan(&t.Answer, &t.Conversation, &started, &t.Finish, &t.RoutingBytes)
		t.Started = moment(started)
		return t, err
	}, sqlTurnsWithRouting, modelHash, millis(from), millis(to), conversation)
	return list, failRead(ctx, "listing turns", err)
}
