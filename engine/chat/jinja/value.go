package jinja

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Value is a value of the language: nil (none), bool, int64, float64, Text, *List, *Dict, or one of the package's own
// (undefined, namespaces, loops, functions).
type Value any

// List is a list or, with tuple set, a tuple.
type List struct {
	items []Value
	tuple bool
}

// NewList returns a list of items.
func NewList(items ...Value) *List { return &List{items: items} }

// Append adds an item.
func (l *List) Append(v Value) { l.items = append(l.items, v) }

// Dict is a mapping that keeps the order of insertion.
type Dict struct {
	entries []entry
	index   map[any]int // by hashable(key)
}

type entry struct{ key, value Value }

// NewDict returns an empty mapping.
func NewDict() *Dict { return &Dict{index: make(map[any]int)} }

// Set stores a value under a trusted text key.
func (d *Dict) Set(key string, v Value) { d.put(Trusted(key), v) }

// Get returns the value under a text key.
func (d *Dict) Get(key string) (Value, bool) { return d.get(Trusted(key)) }

func (d *Dict) put(key, v Value) bool {
	h, ok := hashable(key)
	if !ok {
		return false
	}
	if i, ok := d.index[h]; ok {
		d.entries[i].value = v
		return true
	}
	d.index[h] = len(d.entries)
	d.entries = append(d.entries, entry{key, v})
	return true
}

func (d *Dict) get(key Value) (Value, bool) {
	if h, ok := hashable(key); ok {
		if i, ok := d.index[h]; ok {
			return d.entries[i].value, true
		}
	}
	return nil, false
}

// none is the hash of nil, which differs from that of every text.
type none struct{}

// hashable is a key under which equal values are equal; false for values that cannot be keys.
func hashable(v Value) (any, bool) {
	switch v := v.(type) {
	case nil:
		return none{}, true
	case Text:
		return v.s, true
	case bool:
		if v {
			return int64(1), true
		}
		return int64(0), true
	case int64:
		return v, true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v), true
		}
		return v, true
	}
	return nil, false
}

// undefined is what a missing name, attribute or item gives. It is false, empty and printable as nothing; anything else
// done with it fails.
type undefined struct{ name string }

// namespace is the result of namespace(): attributes that inner scopes may set.
type namespace struct{ attributes *Dict }

// method is a whitelisted method bound to its receiver.
type method struct {
	receiver Value
	name     string
}

// function is a callable that the package provides.
type function struct {
	call func(m *machine, a arguments) (Value, error)
}

// FromJSON decodes JSON with the order of keys kept. Texts and keys are untrusted.
func FromJSON(data []byte) (Value, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decode(d, 0)
	if err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("text after the JSON value at offset %d", d.InputOffset())
	}
	return v, nil
}

// maxJSON is the deepest nesting that FromJSON reads.
const maxJSON = 64

func decode(d *json.Decoder, depth int) (Value, error) {
	if depth > maxJSON {
		return nil, fmt.Errorf("offset %d: nested deeper than %d", d.InputOffset(), maxJSON)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			list := NewList()
			for d.More() {
				v, err := decode(d, depth+1)
				if err != nil {
					return nil, err
				}
				list.Append(v)
			}
			_, err := d.Token()
			return list, err
		}
		dict := NewDict()
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := decode(d, depth+1)
			if err != nil {
				return nil, err
			}
			dict.put(Untrusted(key.(string)), v)
		}
		_, err := d.Token()
		return dict, err
	case string:
		return Untrusted(token), nil
	case json.Number:
		if i, err := strconv.ParseInt(token.String(), 10, 64); err == nil {
			return i, nil
		}
		f, err := token.Float64()
		return f, err
	case bool:
		return token, nil
	}
	return nil, nil
}

// truthy is bool(v).
func truthy(v Value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case Text:
		return v.s != ""
	case *List:
		return len(v.items) > 0
	case *Dict:
		return len(v.entries) > 0
	}
	return true
}

// number is v as a number; whole says that it is an integer (a bool is one).
func number(v Value) (i int64, f float64, whole, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// equal is a == b. Values can share parts, so nesting alone does not bound the work: every part is charged.
func (m *machine) equal(a, b Value, depth int) (bool, error) {
	if depth > maxDepth {
		return false, fmt.Errorf("value nested deeper than %d", maxDepth)
	}
	if err := m.charge(0); err != nil {
		return false, err
	}
	if ia, fa, wa, ok := number(a); ok {
		ib, fb, wb, ok := number(b)
		if wa && wb {
			return ok && ia == ib, nil
		}
		return ok && fa == fb, nil
	}
	switch a := a.(type) {
	case nil:
		return b == nil, nil
	case undefined:
		_, ok := b.(undefined)
		return ok, nil
	case Text:
		b, ok := b.(Text)
		return ok && a.s == b.s, nil
	case *List:
		b, ok := b.(*List)
		if !ok || len(a.items) != len(b.items) || a.tuple != b.tuple {
			return false, nil
		}
		for i := range a.items {
			if ok, err := m.equal(a.items[i], b.items[i], depth+1); err != nil || !ok {
				return false, err
			}
		}
		return true, nil
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.entries) != len(b.entries) {
			return false, nil
		}
		for _, e := range a.entries {
			v, ok := b.get(e.key)
			if !ok {
				return false, nil
			}
			if ok, err := m.equal(e.value, v, depth+1); err != nil || !ok {
				return false, err
			}
		}
		return true, nil
	case *namespace:
		b, ok := b.(*namespace)
		return ok && a == b, nil
	}
	return false, nil
}

// compare is the order of a and b: negative, zero or positive.
func (m *machine) compare(a, b Value, depth int) (int, error) {
	if depth > maxDepth {
		return 0, fmt.Errorf("value nested deeper than %d", maxDepth)
	}
	if err := m.charge(min(weight(a), weight(b))); err != nil {
		return 0, err
	}
	if _, fa, _, ok := number(a); ok {
		if _, fb, _, ok := number(b); ok {
			return cmp.Compare(fa, fb), nil
		}
	}
	if ta, ok := a.(Text); ok {
		if tb, ok := b.(Text); ok {
			return strings.Compare(ta.s, tb.s), nil
		}
	}
	if la, ok := a.(*List); ok {
		if lb, ok := b.(*List); ok {
			for i := range min(len(la.items), len(lb.items)) {
				if c, err := m.compare(la.items[i], lb.items[i], depth+1); c != 0 || err != nil {
					return c, err
				}
			}
			return len(la.items) - len(lb.items), nil
		}
	}
	return 0, fmt.Errorf("%s and %s have no order", kind(a), kind(b))
}

// kind names v's type in messages.
func kind(v Value) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case undefined:
		return fmt.Sprintf("undefined %q", v.name)
	case bool:
		return "a boolean"
	case int64, float64:
		return "a number"
	case Text:
		return "a string"
	case *List:
		return "a list"
	case *Dict:
		return "a mapping"
	case *namespace:
		return "a namespace"
	}
	return "a function"
}

// str is str(v).
func (m *machine) str(v Value) (Text, error) {
	if t, ok := v.(Text); ok {
		return t, nil
	}
	var b builder
	err := m.repr(&b, v, 0)
	return b.text(), err
}

// repr writes v as Python prints it inside a container.
func (m *machine) repr(b *builder, v Value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("value nested deeper than %d", maxDepth)
	}
	if err := m.charge(8); err != nil {
		return err
	}
	plain := func(s string) { b.write(Trusted(s)) }
	switch v := v.(type) {
	case undefined:
		if depth > 0 {
			plain("Undefined")
		}
	case nil:
		plain("None")
	case bool:
		if v {
			plain("True")
		} else {
			plain("False")
		}
	case int64:
		plain(strconv.FormatInt(v, 10))
	case float64:
		plain(formatFloat(v))
	case Text:
		if err := m.charge(len(v.s)); err != nil {
			return err
		}
		reprText(b, v)
	case *List:
		open, end := "[", "]"
		if v.tuple {
			open, end = "(", ")"
			if len(v.items) == 1 {
				end = ",)"
			}
		}
		plain(open)
		for i, item := range v.items {
			if i > 0 {
				plain(", ")
			}
			if err := m.repr(b, item, depth+1); err != nil {
				return err
			}
		}
		plain(end)
	case *Dict:
		plain("{")
		for i, e := range v.entries {
			if i > 0 {
				plain(", ")
			}
			if err := m.repr(b, e.key, depth+1); err != nil {
				return err
			}
			plain(": ")
			if err := m.repr(b, e.value, depth+1); err != nil {
				return err
			}
		}
		plain("}")
	default:
		return fmt.Errorf("%s cannot be printed", kind(v))
	}
	return nil
}

// reprText writes a string literal: single quotes unless the text has them and no double ones.
func reprText(b *builder, t Text) {
	quote := "'"
	if strings.Contains(t.s, "'") && !strings.Contains(t.s, `"`) {
		quote = `"`
	}
	b.write(Trusted(quote))
	b.write(t.mapRunes(func(_ int, r rune) string {
		switch {
		case string(r) == quote || r == '\\':
			return `\` + string(r)
		case r == '\n':
			return `\n`
		case r == '\r':
			return `\r`
		case r == '\t':
			return `\t`
		case r < 0x20 || r == 0x7F:
			return fmt.Sprintf(`\x%02x`, r)
		case r < 0x7F || unicode.IsPrint(r):
			return string(r)
		case r <= 0xFF:
			return fmt.Sprintf(`\x%02x`, r)
		case r <= 0xFFFF:
			return fmt.Sprintf(`\u%04x`, r)
		}
		return fmt.Sprintf(`\U%08x`, r)
	}))
	b.write(Trusted(quote))
}

// formatFloat is repr(float): the shortest digits that read back, with an exponent outside 1e-4 .. 1e16.
func formatFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// isSpace is str.isspace() of one character: Unicode's white space and the four separators of ASCII.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1C && r <= 0x1F }

// iterate lists what a loop over v yields.
func (m *machine) iterate(v Value) ([]Value, error) {
	switch v := v.(type) {
	case undefined:
		return nil, nil
	case *List:
		return v.items, m.charge(len(v.items))
	case *Dict:
		keys := make([]Value, len(v.entries))
		for i, e := range v.entries {
			keys[i] = e.key
		}
		return keys, m.charge(len(keys))
	case Text:
		if err := m.charge(64 * len(v.s)); err != nil {
			return nil, err
		}
		var out []Value
		for _, c := range v.characters() {
			out = append(out, c)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%s cannot be iterated", kind(v))
}
