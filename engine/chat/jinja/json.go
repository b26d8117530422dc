package jinja

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
	"unicode/utf16"
)

// dumper writes JSON as Python's json.dumps does, spaces and order of keys included: models were trained on its output.
type dumper struct {
	m          *machine
	b          builder
	ascii      bool   // escape everything beyond ASCII
	sorted     bool   // keys in order
	indent     string // one level; pretty says that there is one
	pretty     bool
	item, pair string // separators between items and after keys
}

// dumps is json.dumps(v, ensure_ascii, indent, separators, sort_keys).
func (m *machine) dumps(v Value, a arguments) (Value, error) {
	d := &dumper{m: m, item: ", ", pair: ": "}
	if v, ok := a.take(0, "ensure_ascii"); ok {
		d.ascii = truthy(v)
	}
	if indent, ok := a.take(1, "indent"); ok && indent != nil {
		d.pretty, d.item = true, ","
		switch indent := indent.(type) {
		case Text:
			d.indent = indent.s
		case int64:
			d.indent = strings.Repeat(" ", int(min(max(indent, 0), 64)))
		default:
			return nil, fmt.Errorf("indent is %s", kind(indent))
		}
	}
	if separators, ok := a.take(2, "separators"); ok && separators != nil {
		l, ok := separators.(*List)
		if !ok || len(l.items) != 2 {
			return nil, fmt.Errorf("separators is %s, not a pair", kind(separators))
		}
		item, okItem := l.items[0].(Text)
		pair, okPair := l.items[1].(Text)
		if !okItem || !okPair {
			return nil, fmt.Errorf("separators are not strings")
		}
		d.item, d.pair = item.s, pair.s
	}
	if v, ok := a.take(3, "sort_keys"); ok {
		d.sorted = truthy(v)
	}
	if err := d.write(v, 0); err != nil {
		return nil, err
	}
	return d.b.text(), nil
}

func (d *dumper) plain(s string) { d.b.write(Trusted(s)) }

// line begins a new line at a depth, when pretty.
func (d *dumper) line(depth int) {
	if d.pretty {
		d.plain("\n" + strings.Repeat(d.indent, depth))
	}
}

func (d *dumper) write(v Value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("value nested deeper than %d", maxDepth)
	}
	if err := d.m.charge(16 + depth*len(d.indent) + len(d.item) + len(d.pair)); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		d.plain("null")
	case bool:
		d.plain(strconv.FormatBool(v))
	case int64:
		d.plain(strconv.FormatInt(v, 10))
	case float64:
		d.plain(jsonFloat(v))
	case Text:
		return d.text(v)
	case *List:
		return d.list(v, depth)
	case *Dict:
		return d.dict(v, depth)
	default:
		return fmt.Errorf("%s cannot be written as JSON", kind(v))
	}
	return nil
}

func (d *dumper) list(l *List, depth int) error {
	if len(l.items) == 0 {
		d.plain("[]")
		return nil
	}
	d.plain("[")
	for i, item := range l.items {
		if i > 0 {
			d.plain(d.item)
		}
		d.line(depth + 1)
		if err := d.write(item, depth+1); err != nil {
			return err
		}
	}
	d.line(depth)
	d.plain("]")
	return nil
}

func (d *dumper) dict(v *Dict, depth int) error {
	if len(v.entries) == 0 {
		d.plain("{}")
		return nil
	}
	entries := v.entries
	if d.sorted {
		entries = append([]entry(nil), entries...)
		var failed error
		sort.SliceStable(entries, func(i, j int) bool {
			c, err := d.m.compare(entries[i].key, entries[j].key, 0)
			if err != nil {
				failed = err
			}
			return c < 0
		})
		if failed != nil {
			return failed
		}
	}
	d.plain("{")
	for i, e := range entries {
		if i > 0 {
			d.plain(d.item)
		}
		d.line(depth + 1)
		key, ok := e.key.(Text)
		if !ok {
			switch k := e.key.(type) {
			case nil:
				key = Trusted("null")
			case bool:
				key = Trusted(strconv.FormatBool(k))
			case int64:
				key = Trusted(strconv.FormatInt(k, 10))
			case float64:
				key = Trusted(jsonFloat(k))
			}
		}
		if err := d.text(key); err != nil {
			return err
		}
		d.plain(d.pair)
		if err := d.write(e.value, depth+1); err != nil {
			return err
		}
	}
	d.line(depth)
	d.plain("}")
	return nil
}

func (d *dumper) text(t Text) error {
	if err := d.m.charge(len(t.s)); err != nil {
		return err
	}
	d.plain(`"`)
	d.b.write(t.mapRunes(func(_ int, r rune) string {
		switch r {
		case '"':
			return `\"`
		case '\\':
			return `\\`
		case '\n':
			return `\n`
		case '\r':
			return `\r`
		case '\t':
			return `\t`
		case '\b':
			return `\b`
		case '\f':
			return `\f`
		}
		switch {
		case r < 0x20 || d.ascii && r > 0x7E && r <= 0xFFFF:
			return fmt.Sprintf(`\u%04x`, r)
		case d.ascii && r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			return fmt.Sprintf(`\u%04x\u%04x`, high, low)
		}
		return string(r)
	}))
	d.plain(`"`)
	return nil
}

// jsonFloat is a number as json.dumps writes it.
func jsonFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	case math.IsNaN(f):
		return "NaN"
	}
	return formatFloat(f)
}
