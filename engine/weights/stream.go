package weights

// A strict, streaming reader of JSON for the two long files of a checkpoint, tensor headers and shard indexes. Their
// grammar is fixed, so it needs no tree: values are asked for in the order in which they come, through a window of 64 KiB,
// and a hostile file is refused where it first differs, without memory or time having been spent on the rest. Strings are
// held to UTF-8, numbers are whole and not negative, and nothing nests deeper than the grammar does.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// jsonStream walks JSON text. The first error stops it: every later call does nothing.
type jsonStream struct {
	source io.Reader
	block  []byte
	window []byte // unread bytes
	read   int64  // bytes before the window
	long   []byte // a string that does not lie in the window as it is
	err    error
}

func newJSONStream(source io.Reader) *jsonStream {
	return &jsonStream{source: source, block: make([]byte, 1<<16)}
}

// at is the number of bytes that have been read.
func (s *jsonStream) at() int64 { return s.read }

func (s *jsonStream) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// more reads on behind the window; false at the end of the text or when the window is full.
func (s *jsonStream) more() bool {
	if s.err != nil || len(s.window) == len(s.block) {
		return false
	}
	kept := copy(s.block, s.window)
	n, err := s.source.Read(s.block[kept:])
	s.window = s.block[:kept+n]
	if err != nil && err != io.EOF {
		s.fail("%v", err)
		return false
	}
	return n > 0
}

func (s *jsonStream) advance(n int) { s.window, s.read = s.window[n:], s.read+int64(n) }

// peek is the next byte that is no white space, 0 at the end.
func (s *jsonStream) peek() byte {
	for s.err == nil {
		for i, c := range s.window {
			if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
				s.advance(i)
				return c
			}
		}
		s.advance(len(s.window))
		if !s.more() {
			return 0
		}
	}
	return 0
}

// take takes c if it comes next.
func (s *jsonStream) take(c byte) bool {
	if len(s.window) > 0 && s.window[0] == c && s.err == nil {
		s.advance(1)
		return true
	}
	if s.peek() != c || s.err != nil {
		return false
	}
	s.advance(1)
	return true
}

// want takes c or fails.
func (s *jsonStream) want(c byte) {
	if !s.take(c) {
		if s.err == nil && len(s.window) == 0 {
			s.fail("the text ends where %q was expected", c)
			return
		}
		s.fail("%q where %q was expected", s.peek(), c)
	}
}

// open takes the bracket that begins a list or object and says whether it has an element; next does so after one.
func (s *jsonStream) open(c, end byte) bool {
	s.want(c)
	return s.err == nil && !s.take(end)
}

func (s *jsonStream) next(end byte) bool {
	if s.take(end) {
		return false
	}
	s.want(',')
	return s.err == nil
}

// end fails if anything but white space follows.
func (s *jsonStream) end() {
	if s.err == nil && s.peek() != 0 || s.err == nil && len(s.window) > 0 {
		s.fail("text after the closing brace")
	}
}

// text reads a string of at most longest bytes as it is written. The result is valid until the next call.
func (s *jsonStream) text(longest int) []byte {
	s.want('"')
	if s.err != nil {
		return nil
	}
	for from := 0; ; {
		i := bytes.IndexByte(s.window[from:], '"')
		if i < 0 {
			if from = len(s.window); from == len(s.block) && from <= longest {
				s.block = append(make([]byte, 0, 2*from), s.window...)[:2*from]
				s.window = s.block[:from]
			}
			if from > longest || !s.more() {
				s.fail("a string that does not end, or has more than the %d bytes allowed", longest)
				return nil
			}
			continue
		}
		end := from + i
		if end > longest {
			s.fail("a string of more than the %d bytes allowed", longest)
			return nil
		}
		text := s.window[:end]
		if escaped(text) {
			from = end + 1
			continue
		}
		s.advance(end + 1)
		return s.plain(text)
	}
}

// escaped says whether a quote behind text is part of it.
func escaped(text []byte) bool {
	n := 0
	for n < len(text) && text[len(text)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// plain is the content of a string with its escapes.
func (s *jsonStream) plain(text []byte) []byte {
	if simple(text) {
		return text
	}
	var err error
	quoted := append(append([]byte{'"'}, text...), '"')
	if s.long, err = jsontext.AppendUnquote(s.long[:0], quoted); err != nil {
		s.fail("invalid string (not UTF-8, or a wrong escape): %v", err)
		return nil
	}
	return s.long
}

// simple says whether a string is ASCII without escapes and control characters. It looks at eight bytes at a time: most of
// a header is names.
func simple(text []byte) bool {
	const ones, tops = 0x0101_0101_0101_0101, 0x8080_8080_8080_8080
	for len(text) >= 8 {
		word := binary.LittleEndian.Uint64(text)
		backslash := word ^ '\\'*ones
		// A byte below ' ', or zero after the backslash is taken out, borrows into its top bit.
		if (word|(word-' '*ones)|(backslash-ones)&^backslash)&tops != 0 {
			break
		}
		text = text[8:]
	}
	for _, c := range text {
		if c < ' ' || c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// number reads a whole number that is not negative.
func (s *jsonStream) number() uint64 {
	c := s.peek()
	if s.err != nil {
		return 0
	}
	if c < '0' || c > '9' {
		s.fail("%q where a whole number was expected", c)
		return 0
	}
	n, digits := uint64(0), 0
	for {
		if digits == len(s.window) && !s.more() {
			break
		}
		if digits == len(s.window) {
			continue
		}
		c := s.window[digits]
		if c < '0' || c > '9' {
			if c == '.' || c == 'e' || c == 'E' || c == '-' || c == '+' {
				s.fail("a number that is not whole")
			}
			break
		}
		high, low := bits.Mul64(n, 10)
		sum, carry := bits.Add64(low, uint64(c-'0'), 0)
		if digits++; high != 0 || carry != 0 {
			s.fail("a number beyond 64 bits")
			return 0
		}
		n = sum
	}
	if digits > 1 && s.window[0] == '0' {
		s.fail("a number that begins with zero")
	}
	s.advance(digits)
	return n
}

// skip reads past a value of any kind that nests at most depth deep.
func (s *jsonStream) skip(depth int) {
	switch c := s.peek(); {
	case s.err != nil:
	case depth == 0 && (c == '{' || c == '['):
		s.fail("nested too deeply")
	case c == '"':
		s.text(len(s.block) - 1)
	case c == '{':
		for more := s.open('{', '}'); more; more = s.next('}') {
			s.text(len(s.block) - 1)
			s.want(':')
			s.skip(depth - 1)
		}
	case c == '[':
		for more := s.open('[', ']'); more; more = s.next(']') {
			s.skip(depth - 1)
		}
	default:
		s.word()
	}
}

// word reads past a number, true, false or null.
func (s *jsonStream) word() {
	n := 0
	for {
		if n == len(s.window) && !s.more() {
			break
		}
		if n < len(s.window) {
			if bytes.IndexByte([]byte(" \n\t\r,]}"), s.window[n]) >= 0 {
				break
			}
			n++
		}
		if n > 40 {
			break
		}
	}
	word := jsontext.Value(s.window[:n])
	if kind := word.Kind(); kind == '"' || kind == '{' || kind == '[' || !word.IsValid() {
		s.fail("%q is no value", word)
	}
	s.advance(n)
}
