package store

import (
	"context"
	"errors"
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
	Note         string // why it stopped or failed, for people; "" = nothing to say
	Created      time.Time
	Updated      time.Time

	// The arrows "2/3": place among the messages with the same parent, in order of creation.
	Sibling, Siblings int    // 1-based place, count
	Previous, Next    string // ids of the neighbours; "" = none

	Turn *Turn // how an assistant's message was made; nil for others and for imported ones without
}

// Message reads one message.
func (s *Store) Message(ctx context.Context, id string) (Message, error) {
	return Message{}, errors.ErrUnsupported
}

// Path is the branch from the first message down to the given one.
func (s *Store) Path(ctx context.Context, leaf string) ([]Message, error) {
	return nil, errors.ErrUnsupported
}

// AddMessage adds a complete message that no engine made (an edited answer, a tool's result) below parent ("" = at the
// root) and makes it the leaf.
func (s *Store) AddMessage(ctx context.Context, conversation, parent string, role Role, content string) (Message, error) {
	return Message{}, errors.ErrUnsupported
}

// SelectBranch shows the branch through the given message, down to the newest message below it, and returns the new leaf.
func (s *Store) SelectBranch(ctx context.Context, message string) (leaf string, err error) {
	return "", errors.ErrUnsupported
}

// DeleteMessage removes a message and everything below it for good. If the leaf was among them, the newest message below
// the parent becomes the leaf. Returns the leaf. ErrState while one of them is running.
func (s *Store) DeleteMessage(ctx context.Context, message string) (leaf string, err error) {
	return "", errors.ErrUnsupported
}

// Fragment is a piece of a search result's text.
type Fragment struct {
	Text  string
	Match bool // the piece that was searched for
}

// Hit is one search result.
type Hit struct {
	Conversation string
	Title        string
	Message      string // "" = the title matched
	Role         Role   // "" = the title matched
	Snippet      []Fragment
	Time         time.Time // of the message, or of the conversation's last change
}

// Search finds conversations and messages that contain every word of the query, ignoring case; titles first, then the
// best matches. Words are matched inside words too. An empty query finds nothing.
func (s *Store) Search(ctx context.Context, query string, limit int) ([]Hit, error) {
	return nil, errors.ErrUnsupported
}
