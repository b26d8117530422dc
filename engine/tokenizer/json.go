package tokenizer

// A small JSON reader for the two lists that make up nearly all of a tokenizer.json. They are read where they stand, in one
// pass over the file and without a copy of their strings; everything small goes to encoding/json.

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"covey/engine/jsonfault"
)

// jsonReader walks JSON. The first error stops it: every later call does nothing. Strings without escapes are parts of data.
type jsonReader struct {
	data string
	at   int
	err  error
}

// object reads an object's fields into targets by name; other fields are skipped. A target that is a function reads its value
// itself. A known field may stand there once.
func (r *jsonReader) object(targets map[string]any) {
	seen := map[string]bool{}
	for more := r.open('{', '}'); more; more = r.next('}') {
		name := r.text()
		r.want(':')
		target := targets[name]
		if target == nil {
			r.value()
			continue
		}
		if seen[name] && r.err == nil {
			r.err = fmt.Errorf("offset %d: %s is given twice", r.at, name)
		}
		seen[name] = true
		if read, ok := target.(func()); ok {
			read()
			continue
		}
		value := r.value()
		if r.err != nil {
			return
		}
		if err := json.Unmarshal([]byte(value), target); err != nil {
			r.err = fmt.Errorf("%s: %w", name, jsonfault.Plain(err))
		}
	}
}

func (r *jsonReader) fail(wanted string) {
	if r.err == nil {
		r.err = fmt.Errorf("offset %d: %s expected", r.at, wanted)
	}
}

func (r *jsonReader) blank() {
	for r.at < len(r.data) && (r.data[r.at] == ' ' || r.data[r.at] == '\n' || r.data[r.at] == '\t' || r.data[r.at] == '\r') {
		r.at++
	}
}

// take skips white space, then c if it is next.
func (r *jsonReader) take(c byte) bool {
	r.blank()
	if r.err == nil && r.at < len(r.data) && r.data[r.at] == c {
		r.at++
		return true
	}
	return false
}

// peek is the next character that is not white space, 0 at the end.
func (r *jsonReader) peek() byte {
	if r.blank(); r.at < len(r.data) {
		return r.data[r.at]
	}
	return 0
}

// want takes c or fails.
func (r *jsonReader) want(c byte) {
	if !r.take(c) {
		r.fail(fmt.Sprintf("%q", c))
	}
}

// open takes the bracket that begins a list or object and reports whether it has an element; next does so after one.
func (r *jsonReader) open(c, end byte) bool {
	r.want(c)
	return r.err == nil && !r.take(end)
}

func (r *jsonReader) next(end byte) bool {
	if r.take(end) {
		return false
	}
	r.want(',')
	return r.err == nil
}

// end is the reader's error, or one if anything but white space follows.
func (r *jsonReader) end() error {
	if r.blank(); r.at < len(r.data) {
		r.fail("end")
	}
	return r.err
}

// text reads a string.
func (r *jsonReader) text() string {
	r.blank()
	start := r.at
	raw, escaped := r.quoted()
	if r.err != nil {
		return ""
	}
	if !escaped && utf8.ValidString(raw) {
		return raw
	}
	var s string
	if err := json.Unmarshal([]byte(r.data[start:r.at]), &s); err != nil || !utf8.ValidString(raw) {
		r.at = start
		r.fail("valid string")
	}
	return s
}

// skipText reads past a string.
func (r *jsonReader) skipText() {
	r.blank()
	r.quoted()
}

// quoted skips a string and returns what is between its quotes.
func (r *jsonReader) quoted() (raw string, escaped bool) {
	if r.err != nil || r.at >= len(r.data) || r.data[r.at] != '"' {
		r.fail("string")
		return "", false
	}
	for i := r.at + 1; i < min(len(r.data), r.at+maxText); i++ {
		switch c := r.data[i]; {
		case c == '\\':
			escaped = true
			i++
		case c == '"':
			raw = r.data[r.at+1 : i]
			r.at = i + 1
			return raw, escaped
		case c < ' ':
			r.at = i
			r.fail("character that may stand in a string")
			return "", false
		}
	}
	r.fail(fmt.Sprintf("string that ends within %d bytes", maxText))
	return "", false
}

// number reads a whole number that is not negative; above 2^40 it stays there.
func (r *jsonReader) number() int {
	r.blank()
	n, start := 0, r.at
	for r.at < len(r.data) && r.at < start+20 && r.data[r.at] >= '0' && r.data[r.at] <= '9' {
		n = min(n*10+int(r.data[r.at]-'0'), 1<<40)
		r.at++
	}
	if r.at == start || r.at < len(r.data) && (r.data[r.at] == '.' || r.data[r.at]|0x20 == 'e') {
		r.fail("whole number")
	}
	return n
}

// value skips a value by its brackets and strings and returns its text, not yet checked.
func (r *jsonReader) value() string {
	r.blank()
	start, depth := r.at, 0
	for r.err == nil && r.at < len(r.data) {
		switch c := r.data[r.at]; c {
		case '"':
			r.quoted()
			continue
		case '{', '[':
			if depth++; depth > maxDepth {
				r.fail(fmt.Sprintf("nesting of at most %d", maxDepth))
			}
		case '}', ']':
			if depth == 0 {
				return r.data[start:r.at]
			}
			depth--
		case ',':
			if depth == 0 {
				return r.data[start:r.at]
			}
		}
		r.at++
	}
	r.fail("value that ends")
	return ""
}
