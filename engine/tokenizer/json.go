package tokenizer

// A small JSON reader for the two lists that make up nearly all of a tokenizer.json. Reading them once, without the
// validation and reflection passes of encoding/json, halves the loading time; everything small goes to encoding/json.

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// rawJSON is the bytes of a value that has been skipped, not yet checked.
type rawJSON []byte

// readObject reads an object's fields into targets by name, a *rawJSON unread; other fields are skipped.
func readObject(data []byte, targets map[string]any) error {
	r := jsonReader{data: data}
	for more := r.open('{', '}'); more; more = r.next('}') {
		name := r.text()
		r.want(':')
		value := r.value()
		if r.err != nil {
			break
		}
		switch target := targets[name].(type) {
		case nil:
		case *rawJSON:
			*target = value
		default:
			if err := json.Unmarshal(value, target); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return r.end()
}

// jsonReader walks JSON. The first error stops it: every later call does nothing.
type jsonReader struct {
	data []byte
	at   int
	err  error
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
	if !escaped && utf8.Valid(raw) {
		return string(raw)
	}
	var s string
	if err := json.Unmarshal(r.data[start:r.at], &s); err != nil || !utf8.Valid(raw) {
		r.at = start
		r.fail("valid string")
	}
	return s
}

// quoted skips a string and returns what is between its quotes.
func (r *jsonReader) quoted() (raw []byte, escaped bool) {
	if r.err != nil || r.at >= len(r.data) || r.data[r.at] != '"' {
		r.fail("string")
		return nil, false
	}
	for i := r.at + 1; i < len(r.data); i++ {
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
			return nil, false
		}
	}
	r.fail("string that ends")
	return nil, false
}

// number reads a whole number that is not negative; above 2^40 it stays there.
func (r *jsonReader) number() int {
	r.blank()
	n, start := 0, r.at
	for r.at < len(r.data) && r.data[r.at] >= '0' && r.data[r.at] <= '9' {
		n = min(n*10+int(r.data[r.at]-'0'), 1<<40)
		r.at++
	}
	if r.at == start || r.at < len(r.data) && (r.data[r.at] == '.' || r.data[r.at]|0x20 == 'e') {
		r.fail("whole number")
	}
	return n
}

// value skips a value by its brackets and strings and returns its bytes.
func (r *jsonReader) value() rawJSON {
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
	return nil
}
