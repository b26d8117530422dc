package store

import (
	"context"
	"encoding/json"
	"errors"
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

// BeginTurn adds the user's message (if Text is given) and the assistant's message in state running, with its turn, and
// makes the latter the leaf: one transaction. user is the parent of answer.
func (s *Store) BeginTurn(ctx context.Context, t NewTurn) (user, answer Message, err error) {
	return Message{}, Message{}, errors.ErrUnsupported
}

// CheckpointTurn keeps the text that a running answer has so far, for the case of a crash. Cheap: one row, not indexed
// for search. ErrState if the message does not run.
func (s *Store) CheckpointTurn(ctx context.Context, answer, content, reasoning string) error {
	return errors.ErrUnsupported
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
func (s *Store) FinishTurn(ctx context.Context, r TurnResult) error { return errors.ErrUnsupported }

// TurnTokens reads the tokens of an answer; nil if none were kept.
func (s *Store) TurnTokens(ctx context.Context, answer string) ([]Token, error) {
	return nil, errors.ErrUnsupported
}

// TurnRouting reads the routing of an answer as FinishTurn got it; nil if none was kept.
func (s *Store) TurnRouting(ctx context.Context, answer string) ([]byte, error) {
	return nil, errors.ErrUnsupported
}

// TurnRef names a turn that has routing.
type TurnRef struct {
	Answer, Conversation string
	Started              time.Time
	RoutingBytes         int
}

// TurnsWithRouting lists a model's finished turns that started in [from, to), oldest first; conversation "" = all that
// are not deleted.
func (s *Store) TurnsWithRouting(ctx context.Context, modelHash, conversation string, from, to time.Time) ([]TurnRef, error) {
	return nil, errors.ErrUnsupported
}
