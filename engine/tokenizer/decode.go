package tokenizer

// Decoding. A decoder is a list of steps over token texts; all that are in use work token by token, but for the strip of
// leading characters after the tokens are joined. They are therefore compiled into one function from a token to bytes,
// so that a Stream gives exactly what Decode gives.

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// decoder turns tokens into text.
type decoder struct {
	steps []func(token string, first bool) string
	// bytes: tokens spell byte-level characters.
	// fallback: tokens "<0xNN>" are bytes.
	// fuse: tokens are joined, then strip applies to the whole.
	bytes, fallback bool
	spaced          bool // no decoder: tokens are joined with spaces
	stripChar       string
	stripStart      int // most leading characters removed from the joined text
}

// decoderConfig is a decoder as tokenizer.json spells it.
type decoderConfig struct {
	Type           string          `json:"type"`
	Decoders       []decoderConfig `json:"decoders"`
	Pattern        *patternConfig  `json:"pattern"`
	Content        string          `json:"content"`
	Start          int             `json:"start"`
	Stop           int             `json:"stop"`
	Replacement    string          `json:"replacement"`
	PrependScheme  string          `json:"prepend_scheme"`
	AddPrefixSpace *bool           `json:"add_prefix_space"`
	Suffix         string          `json:"suffix"`
}

func (c *decoderConfig) build() (*decoder, error) {
	if c == nil {
		return &decoder{spaced: true}, nil
	}
	list := []decoderConfig{*c}
	where := "decoder"
	if c.Type == "Sequence" {
		list, where = c.Decoders, "decoder.decoders"
	}
	d := &decoder{}
	fused := false
	for i := range list {
		if err := d.add(&list[i], fmt.Sprintf("%s[%d]", where, i), &fused); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// add compiles one step. Steps that look at the joined text are refused, but for a strip at its start and replacements
// of a single character, which joining does not change.
func (d *decoder) add(c *decoderConfig, where string, fused *bool) error {
	joined := func(what string) error {
		return fmt.Errorf("%s: %s after the tokens are joined is %w", where, what, ErrUnsupported)
	}
	if d.bytes && c.Type != "Fuse" {
		return joined(c.Type)
	}
	switch c.Type {
	case "ByteLevel":
		if d.fallback || *fused {
			return joined("ByteLevel")
		}
		d.bytes = true
	case "ByteFallback":
		if *fused {
			return joined("ByteFallback")
		}
		d.fallback = true
	case "Fuse":
		*fused = true
	case "Strip":
		if utf8.RuneCountInString(c.Content) != 1 || c.Start < 0 || c.Stop < 0 {
			return fmt.Errorf("%s: Strip needs one character and counts that are not negative", where)
		}
		if !*fused {
			if d.fallback {
				return joined("Strip")
			}
			d.steps = append(d.steps, func(token string, _ bool) string {
				return trim(token, c.Content, c.Start, c.Stop)
			})
			return nil
		}
		if c.Stop > 0 || d.stripChar != "" {
			return joined("Strip at the end")
		}
		d.stripChar, d.stripStart = c.Content, c.Start
	case "Replace":
		old := c.Pattern.literal()
		if old == "" {
			return fmt.Errorf("%s: Replace by a regular expression is %w in a decoder", where, ErrUnsupported)
		}
		if (*fused || d.fallback) && (utf8.RuneCountInString(old) != 1 || d.stripChar != "") {
			return joined("Replace")
		}
		d.steps = append(d.steps, func(token string, _ bool) string { return strings.ReplaceAll(token, old, c.Content) })
	case "Metaspace":
		if *fused || d.fallback {
			return joined("Metaspace")
		}
		replacement := c.Replacement
		if replacement == "" {
			replacement = metaspace
		}
		drop := c.PrependScheme != "never"
		if c.PrependScheme == "" && c.AddPrefixSpace != nil {
			drop = *c.AddPrefixSpace
		}
		d.steps = append(d.steps, func(token string, first bool) string {
			if first && drop {
				return strings.ReplaceAll(token, replacement, "")
			}
			return strings.ReplaceAll(token, replacement, " ")
		})
	default:
		return unsupported(where, c.Type)
	}
	return nil
}

// trim removes up to start leading and stop trailing copies of a character.
func trim(s, char string, start, stop int) string {
	for ; start > 0 && strings.HasPrefix(s, char); start-- {
		s = s[len(char):]
	}
	for ; stop > 0 && strings.HasSuffix(s, char); stop-- {
		s = s[:len(s)-len(char)]
	}
	return s
}

// fallbackByte is the byte that a token "<0xNN>" stands for.
func fallbackByte(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	hex := func(c byte) int {
		switch {
		case c >= '0' && c <= '9':
			return int(c - '0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			return int(c|0x20-'a') + 10
		}
		return -1
	}
	high, low := hex(token[3]), hex(token[4])
	if high < 0 || low < 0 {
		return 0, false
	}
	return byte(high<<4 | low), true
}

// token is the bytes of one token, before the joined text is stripped; raw says that they are a fallback byte, which
// counts as text only together with its neighbours.
func (d *decoder) token(name string, first bool) (text []byte, raw bool) {
	for _, step := range d.steps {
		name = step(name, first)
	}
	if d.bytes {
		return fromByteLevel(nil, name), false
	}
	if d.fallback {
		if b, ok := fallbackByte(name); ok {
			return []byte{b}, true
		}
	}
	if d.spaced && !first {
		name = " " + name
	}
	return []byte(name), false
}

// Bytes is the text of one token standing by itself: usually UTF-8, but a token may hold a part of a character. nil when
// no token has that id.
func (t *Tokenizer) Bytes(id int32) []byte {
	if !t.known(id) {
		return nil
	}
	text, _ := t.decoder.token(t.names[id], t.decoder.spaced)
	return text
}

// Decode returns the text of ids. With skipSpecial special tokens are left out. Ids that no token has are left out. Bytes
// that are not UTF-8 become U+FFFD, one for each broken sequence (for each byte of a run of fallback bytes).
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	var out, run []byte
	flush := func() {
		if utf8.Valid(run) {
			out = append(out, run...)
		} else {
			out = append(out, strings.Repeat("\uFFFD", len(run))...)
		}
		run = run[:0]
	}
	first := true
	for _, id := range ids {
		if !t.known(id) || skipSpecial && t.special[id] {
			continue
		}
		text, raw := t.decoder.token(t.names[id], first)
		first = false
		if raw {
			run = append(run, text...)
			continue
		}
		flush()
		out = append(out, text...)
	}
	flush()
	out = []byte(trim(string(out), t.decoder.stripChar, t.decoder.stripStart, 0))
	return lossy(out)
}

// lossy is b as UTF-8, with U+FFFD for each maximal broken sequence, as Unicode recommends (chapter 3.9, table 3-8).
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	for len(b) > 0 {
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			out.Write(b[:n])
			b = b[n:]
			continue
		}
		out.WriteString("\uFFFD")
		b = b[max(1, partial(b)):]
	}
	return out.String()
}

// partial is the length of the longest prefix of b that begins a valid character; 0 if none does.
func partial(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	low, high, size := byte(0x80), byte(0xBF), 0
	switch c := b[0]; {
	case c >= 0xC2 && c <= 0xDF:
		size = 2
	case c >= 0xE0 && c <= 0xEF:
		size = 3
		if c == 0xE0 {
			low = 0xA0
		} else if c == 0xED {
			high = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		size = 4
		if c == 0xF0 {
			low = 0x90
		} else if c == 0xF4 {
			high = 0x8F
		}
	default:
		return 0
	}
	n := 1
	for n < size && n < len(b) && b[n] >= low && b[n] <= high {
		low, high = 0x80, 0xBF
		n++
	}
	return n
}

// Stream decodes an answer token by token. It never emits half a character: bytes that end inside one are kept until it is
// whole. The texts of all Push calls and Flush joined are what Decode returns, but for fallback bytes that are not UTF-8,
// which become one U+FFFD a broken sequence here. Not safe for concurrent use.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	keep        []int32
	started     bool
	strip       int // leading characters that may still be removed
	pending     []byte
}

// Stream begins decoding a sequence. With skipSpecial special tokens are left out but for those in keep, such as the
// markers of tool calls that a reader of the answer looks for.
func (t *Tokenizer) Stream(skipSpecial bool, keep ...int32) *Stream {
	return &Stream{t: t, skipSpecial: skipSpecial, keep: keep, strip: t.decoder.stripStart}
}

// Push adds a token and returns the text that became whole.
func (s *Stream) Push(id int32) string {
	if !s.t.known(id) || s.skipSpecial && s.t.special[id] && !slices.Contains(s.keep, id) {
		return ""
	}
	text, _ := s.t.decoder.token(s.t.names[id], !s.started)
	s.started = true
	s.pending = append(s.pending, text...)
	for s.strip > 0 && len(s.pending) > 0 {
		if !strings.HasPrefix(string(s.pending), s.t.decoder.stripChar) {
			s.strip = 0
			break
		}
		s.pending = s.pending[len(s.t.decoder.stripChar):]
		s.strip--
	}
	// Keep the beginning of a character at the end of what there is.
	keep := 0
	for n := 1; n <= 3 && n <= len(s.pending); n++ {
		tail := s.pending[len(s.pending)-n:]
		if utf8.RuneStart(tail[0]) {
			if partial(tail) == n && !utf8.FullRune(tail) {
				keep = n
			}
			break
		}
	}
	whole := s.pending[:len(s.pending)-keep]
	out := lossy(whole)
	s.pending = append(s.pending[:0], s.pending[len(whole):]...)
	return out
}

// Flush ends the sequence and returns what was kept, as U+FFFD if it is not a whole character.
func (s *Stream) Flush() string {
	out := lossy(s.pending)
	s.pending = s.pending[:0]
	return out
}
