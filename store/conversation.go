package store

import (
	"context"
	"encoding/json"
	"errors"
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

// CreateConversation adds an empty conversation. settings is a JSON object; nil = {}.
func (s *Store) CreateConversation(ctx context.Context, title, system string, settings json.RawMessage) (Conversation, error) {
	return Conversation{}, errors.ErrUnsupported
}

// Conversation reads one, deleted or not.
func (s *Store) Conversation(ctx context.Context, id string) (Conversation, error) {
	return Conversation{}, errors.ErrUnsupported
}

// Conversations lists those not deleted: pinned first, then by Updated, latest first.
func (s *Store) Conversations(ctx context.Context, offset, limit int) ([]Conversation, error) {
	return nil, errors.ErrUnsupported
}

// Thread reads a conversation and the path to its Leaf in one snapshot.
func (s *Store) Thread(ctx context.Context, id string) (Conversation, []Message, error) {
	return Conversation{}, nil, errors.ErrUnsupported
}

// RenameConversation sets the title.
func (s *Store) RenameConversation(ctx context.Context, id, title string) error {
	return errors.ErrUnsupported
}

// PinConversation sets or clears the pin.
func (s *Store) PinConversation(ctx context.Context, id string, pinned bool) error {
	return errors.ErrUnsupported
}

// SetSystem sets the system prompt.
func (s *Store) SetSystem(ctx context.Context, id, system string) error { return errors.ErrUnsupported }

// SetSettings replaces the settings, a JSON object.
func (s *Store) SetSettings(ctx context.Context, id string, settings json.RawMessage) error {
	return errors.ErrUnsupported
}

// DeleteConversation hides a conversation from lists and search; RestoreConversation brings it back until
// PurgeConversations removes it.
func (s *Store) DeleteConversation(ctx context.Context, id string) error {
	return errors.ErrUnsupported
}

// RestoreConversation undoes DeleteConversation.
func (s *Store) RestoreConversation(ctx context.Context, id string) error {
	return errors.ErrUnsupported
}

// PurgeConversations removes for good what was deleted before the given time and returns how many.
func (s *Store) PurgeConversations(ctx context.Context, before time.Time) (int, error) {
	return 0, errors.ErrUnsupported
}
