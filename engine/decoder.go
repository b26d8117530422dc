package engine

import (
	"unicode/utf8"

	"covey/engine/tokenizer"
)

// decoder is the tokenizer's stream as the scheduler wants it: it also says whether an incomplete character is kept.
type decoder struct {
	*tokenizer.Stream
	tokenizer *tokenizer.Tokenizer
	pending   bool
}

// Push adds a token. Bytes are kept if it gave no text, or if it gave some and itself ends inside a character.
func (d *decoder) Push(token int32) string {
	text := d.Stream.Push(token)
	d.pending = text == "" || endsInside(d.tokenizer.Bytes(token))
	return text
}

// Pending may be true without need after a token that has no text at all.
func (d *decoder) Pending() bool { return d.pending }

// endsInside reports whether b ends inside a UTF-8 character that begins in it.
func endsInside(b []byte) bool {
	for n := 1; n <= min(3, len(b)); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			return !utf8.FullRune(tail)
		}
	}
	return false
}
