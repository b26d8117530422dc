package store

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
)

// newID is 128 random bits (rand.Text promises at least that) as 26 lower-case letters and digits of base32: it stands
// in addresses and file names as it is.
func newID() string { return strings.ToLower(rand.Text()) }

// object checks that raw is a JSON object and returns it without insignificant space; nil gives {}.
func object(name string, raw json.RawMessage) (string, error) {
	if len(raw) == 0 {
		return "{}", nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrInvalid, name, err)
	}
	if b.Bytes()[0] != '{' {
		return "", fmt.Errorf("%w: %s: must be a JSON object", ErrInvalid, name)
	}
	return b.String(), nil
}

// clean replaces bytes that are not UTF-8: a TEXT column, and JSON later, hold nothing else.
func clean(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
