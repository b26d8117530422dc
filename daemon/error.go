package daemon

import (
	"errors"
	"fmt"
)

// Kind sorts errors by who can mend them. The command line turns it into its exit code.
type Kind uint8

const (
	KindInternal    Kind = iota // a fault of Covey itself
	KindCheck                   // a check ran and did not pass
	KindUsage                   // flags, settings or a request that make no sense
	KindInput                   // a model, file or prompt that cannot be used
	KindEnvironment             // the machine: ports, folders, memory, permissions
)

// Error is the one error type at Covey's edges (command line, HTTP, pages): what happened, and what to do about it.
// Packages below return ordinary errors; whoever shows one to a person wraps it here.
type Error struct {
	Kind    Kind
	Code    string // stable, snake_case, for programs
	Message string // one sentence for people, lower case, no full stop
	Hint    string // the remedy; may be empty
	Err     error  // cause; may be nil
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// problem makes an Error whose message is formatted like fmt.Sprintf.
func problem(kind Kind, code, hint string, cause error, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Message: fmt.Sprintf(format, args...), Hint: hint, Err: cause}
}

// AsError finds the Error in err's chain, or wraps err as an internal one.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: KindInternal, Code: "internal", Message: err.Error()}
}
