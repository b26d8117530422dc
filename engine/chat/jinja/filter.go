package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// filterFunc computes v|name(arguments).
type filterFunc func(m *machine, v Value, a arguments) (Value, error)

// filters by name. Those that call other filters are added in filter, which breaks the cycle of initialisation.
var filters = map[string]filterFunc{
	"tojson":     func(m *machine, v Value, a arguments) (Value, error) { return m.dumps(v, a) },
	"length":     filterLength,
	"count":      filterLength,
	"default":    filterDefault,
	"d":          filterDefault,
	"string":     func(m *machine, v Value, _ arguments) (Value, error) { return m.str(v) },
	"safe":       func(m *machine, v Value, _ arguments) (Value, error) { return m.str(v) },
	"trim":       filterTrim,
	"upper":      onText(upper),
	"lower":      onText(lower),
	"title":      onText(filterTitle),
	"capitalize": onText(capitalize),
	"escape":     onText(escape),
	"e":          onText(escape),
	"replace":    filterReplace,
	"indent":     filterIndent,
	"join":       filterJoin,
	"first":      filterFirst,
	"last":       filterLast,
	"list":       filterList,
	"reverse":    filterReverse,
	"items":      filterItems,
	"dictsort":   filterDictsort,
	"sort":       filterSort,
	"unique":     filterUnique,
	"sum":        filterSum,
	"min":        func(m *machine, v Value, a arguments) (Value, error) { return m.extreme(v, a, -1) },
	"max":        func(m *machine, v Value, a arguments) (Value, error) { return m.extreme(v, a, 1) },
	"batch":      filterBatch,
	"int":        filterInt,
	"float":      filterFloat,
	"abs":        filterAbs,
	"round":      filterRound,
	"attr":       filterAttr,
	"map":        nil,
	"select":     func(m *machine, v Value, a arguments) (Value, error) { return m.choose(v, a, false, true) },
	"reject":     func(m *machine, v Value, a arguments) (Value, error) { return m.choose(v, a, false, false) },
	"selectattr": func(m *machine, v Value, a arguments) (Value, error) { return m.choose(v, a, true, true) },
	"rejectattr": func(m *machine, v Value, a arguments) (Value, error) { return m.choose(v, a, true, false) },
}

// filter applies the filter of that name.
func (m *machine) filter(name string, v Value, a arguments) (Value, error) {
	if err := m.charge(weight(v)); err != nil {
		return nil, err
	}
	f, ok := filters[name]
	if name == "map" {
		f = (*machine).mapped
	}
	if !ok {
		return nil, fmt.Errorf("filter %q is not supported in chat templates", name)
	}
	out, err := f(m, v, a)
	if err != nil {
		return nil, fmt.Errorf("filter %q: %w", name, err)
	}
	return out, nil
}

// onText is a filter on str(v).
func onText(f func(Text) Text) filterFunc {
	return func(m *machine, v Value, _ arguments) (Value, error) {
		t, err := m.str(v)
		if err != nil {
			return nil, err
		}
		return f(t), nil
	}
}

func filterLength(_ *machine, v Value, _ arguments) (Value, error) {
	switch v := v.(type) {
	case Text:
		return int64(utf8.RuneCountInString(v.s)), nil
	case *List:
		return int64(len(v.items)), nil
	case *Dict:
		return int64(len(v.entries)), nil
	case undefined:
		return int64(0), nil
	}
	return nil, fmt.Errorf("%s has no length", kind(v))
}

func filterDefault(_ *machine, v Value, a arguments) (Value, error) {
	other, ok := a.take(0, "default_value")
	if !ok {
		other = Trusted("")
	}
	boolean, _ := a.take(1, "boolean")
	if _, missing := v.(undefined); missing || truthy(boolean) && !truthy(v) {
		return other, nil
	}
	return v, nil
}

func filterTrim(m *machine, v Value, a arguments) (Value, error) {
	t, err := m.str(v)
	if err != nil {
		return nil, err
	}
	cut, err := cutset(a, 0)
	if err != nil {
		return nil, err
	}
	return t.trimFunc(cut, true, true), nil
}

// filterTitle makes the first character of each word a capital, the rest small; words begin at the text's start and after
// white space, "-" and opening brackets.
func filterTitle(t Text) Text {
	start := true
	return t.mapRunes(func(_ int, r rune) string {
		was := start
		start = isSpace(r) || strings.ContainsRune("-({[<", r)
		if was {
			return upperRune(r)
		}
		return lowerRune(r)
	})
}

// escape writes the five characters that mean something in HTML as entities.
func escape(t Text) Text {
	return t.mapRunes(func(_ int, r rune) string {
		switch r {
		case '&':
			return "&amp;"
		case '<':
			return "&lt;"
		case '>':
			return "&gt;"
		case '"':
			return "&#34;"
		case '\'':
			return "&#39;"
		}
		return string(r)
	})
}

func filterReplace(m *machine, v Value, a arguments) (Value, error) {
	t, err := m.str(v)
	if err != nil {
		return nil, err
	}
	return m.replace(t, a)
}

func filterIndent(m *machine, v Value, a arguments) (Value, error) {
	t, ok := v.(Text)
	if !ok {
		return nil, fmt.Errorf("%s is not a string", kind(v))
	}
	indent := Trusted("    ")
	if width, ok := a.take(0, "width"); ok {
		switch w := width.(type) {
		case Text:
			indent = w
		case int64:
			indent = Trusted(strings.Repeat(" ", int(min(max(w, 0), 256))))
		default:
			return nil, fmt.Errorf("width is %s", kind(width))
		}
	}
	first, _ := a.take(1, "first")
	blank, _ := a.take(2, "blank")
	parts := t.split("\n", -1)
	if err := m.charge(len(t.s) + len(parts)*len(indent.s)); err != nil {
		return nil, err
	}
	var b builder
	for i, line := range parts {
		if i > 0 {
			b.write(Trusted("\n"))
		}
		if (i > 0 || truthy(first)) && (line.s != "" || truthy(blank)) {
			b.write(indent)
		}
		b.write(line)
	}
	return b.text(), nil
}

func filterJoin(m *machine, v Value, a arguments) (Value, error) {
	sep, err := a.text(0, "d", "")
	if err != nil {
		return nil, err
	}
	if path, ok := a.take(1, "attribute"); ok {
		items, err := m.iterate(v)
		if err != nil {
			return nil, err
		}
		out := NewList()
		for _, item := range items {
			if item, err = m.path(item, path); err != nil {
				return nil, err
			}
			out.Append(item)
		}
		v = out
	}
	return m.join(v, sep, false)
}

// join puts sep between the items of v, which strict demands to be texts.
func (m *machine) join(v Value, sep Text, strict bool) (Value, error) {
	items, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	var b builder
	for i, item := range items {
		t, ok := item.(Text)
		if !ok {
			if strict {
				return nil, fmt.Errorf("item %d is %s, not a string", i, kind(item))
			}
			if t, err = m.str(item); err != nil {
				return nil, err
			}
		}
		if err := m.charge(len(t.s) + len(sep.s)); err != nil {
			return nil, err
		}
		if i > 0 {
			b.write(sep)
		}
		b.write(t)
	}
	return b.text(), nil
}

func filterInt(_ *machine, v Value, a arguments) (Value, error) {
	missing, ok := a.take(0, "default")
	if !ok {
		missing = int64(0)
	}
	base, err := a.integer(1, "base", 10)
	if err != nil {
		return nil, err
	}
	if u, ok := v.(undefined); ok {
		return nil, fmt.Errorf("%q is undefined", u.name)
	}
	if i, f, whole, ok := number(v); ok {
		if whole {
			return i, nil
		}
		if math.Abs(f) < 1<<62 {
			return int64(f), nil
		}
		return missing, nil
	}
	if t, ok := v.(Text); ok {
		s := strings.ReplaceAll(strings.TrimFunc(t.s, isSpace), "_", "")
		if i, err := strconv.ParseInt(s, int(base), 64); err == nil {
			return i, nil
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
			return int64(f), nil
		}
	}
	return missing, nil
}

func filterFloat(_ *machine, v Value, a arguments) (Value, error) {
	if _, f, _, ok := number(v); ok {
		return f, nil
	}
	if t, ok := v.(Text); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(t.s, isSpace), 64); err == nil {
			return f, nil
		}
	}
	if u, ok := v.(undefined); ok {
		return nil, fmt.Errorf("%q is undefined", u.name)
	}
	if missing, ok := a.take(0, "default"); ok {
		return missing, nil
	}
	return 0.0, nil
}

func filterAbs(_ *machine, v Value, _ arguments) (Value, error) {
	i, f, whole, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s is not a number", kind(v))
	case !whole:
		return math.Abs(f), nil
	case i < 0:
		return -i, nil
	}
	return i, nil
}

func filterRound(_ *machine, v Value, a arguments) (Value, error) {
	_, f, _, ok := number(v)
	if !ok {
		return nil, fmt.Errorf("%s is not a number", kind(v))
	}
	digits, err := a.integer(0, "precision", 0)
	if err != nil {
		return nil, err
	}
	method, err := a.text(1, "method", "common")
	if err != nil {
		return nil, err
	}
	scale := math.Pow(10, float64(digits))
	switch method.s {
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	case "common":
		rounded, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(min(max(digits, 0), 30)), 64), 64)
		if digits < 0 {
			rounded = math.RoundToEven(f*scale) / scale
		}
		return rounded, err
	}
	return nil, fmt.Errorf("method %q is not one of common, ceil, floor", method.s)
}

func filterAttr(m *machine, v Value, a arguments) (Value, error) {
	name, err := a.text(0, "name", "")
	if err != nil {
		return nil, err
	}
	return m.attribute(v, name.s)
}
