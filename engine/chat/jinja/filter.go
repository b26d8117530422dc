package jinja

import (
	"fmt"
	"math"
	"sort"
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

func filterFirst(m *machine, v Value, _ arguments) (Value, error) {
	items, err := m.iterate(v)
	if err != nil || len(items) == 0 {
		return undefined{"first item of an empty list"}, err
	}
	return items[0], nil
}

func filterLast(m *machine, v Value, _ arguments) (Value, error) {
	items, err := m.iterate(v)
	if err != nil || len(items) == 0 {
		return undefined{"last item of an empty list"}, err
	}
	return items[len(items)-1], nil
}

func filterList(m *machine, v Value, _ arguments) (Value, error) {
	items, err := m.iterate(v)
	return &List{items: append([]Value(nil), items...)}, err
}

func filterReverse(m *machine, v Value, _ arguments) (Value, error) {
	items, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	out := &List{items: make([]Value, len(items))}
	for i, item := range items {
		out.items[len(items)-1-i] = item
	}
	if _, ok := v.(Text); ok {
		return m.join(out, Text{}, true)
	}
	return out, nil
}

func filterItems(_ *machine, v Value, a arguments) (Value, error) {
	switch v := v.(type) {
	case *Dict:
		return v.method("items", a)
	case undefined:
		return NewList(), nil
	}
	return nil, fmt.Errorf("%s is not a mapping", kind(v))
}

// ordered sorts values by key; texts compare without case unless cased.
func (m *machine) ordered(items []Value, key func(Value) (Value, error), reverse, cased bool) error {
	if err := m.charge(64 * len(items)); err != nil {
		return err
	}
	keys := make([]Value, len(items))
	order := make([]int, len(items))
	for i, item := range items {
		k, err := key(item)
		if err != nil {
			return err
		}
		if t, ok := k.(Text); ok && !cased {
			k = lower(t)
		}
		keys[i], order[i] = k, i
	}
	var failed error
	sort.SliceStable(order, func(i, j int) bool {
		c, err := m.compare(keys[order[i]], keys[order[j]], 0)
		if err != nil && failed == nil {
			failed = err
		}
		if reverse {
			return c > 0
		}
		return c < 0
	})
	sorted := make([]Value, len(items))
	for i, at := range order {
		sorted[i] = items[at]
	}
	copy(items, sorted)
	return failed
}

func filterDictsort(m *machine, v Value, a arguments) (Value, error) {
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("%s is not a mapping", kind(v))
	}
	cased, _ := a.take(0, "case_sensitive")
	by, err := a.text(1, "by", "key")
	if err != nil {
		return nil, err
	}
	reverse, _ := a.take(2, "reverse")
	pairs, _ := d.method("items", arguments{})
	out := pairs.(*List)
	at := 0
	if by.s == "value" {
		at = 1
	}
	err = m.ordered(out.items, func(v Value) (Value, error) { return v.(*List).items[at], nil }, truthy(reverse), truthy(cased))
	return out, err
}

func filterSort(m *machine, v Value, a arguments) (Value, error) {
	items, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	reverse, _ := a.take(0, "reverse")
	cased, _ := a.take(1, "case_sensitive")
	path, _ := a.take(2, "attribute")
	out := &List{items: append([]Value(nil), items...)}
	err = m.ordered(out.items, func(v Value) (Value, error) { return m.path(v, path) }, truthy(reverse), truthy(cased))
	return out, err
}

func filterUnique(m *machine, v Value, a arguments) (Value, error) {
	items, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	cased, _ := a.take(0, "case_sensitive")
	path, _ := a.take(1, "attribute")
	seen := NewDict()
	out := NewList()
	for _, item := range items {
		key, err := m.path(item, path)
		if err != nil {
			return nil, err
		}
		if t, ok := key.(Text); ok && !truthy(cased) {
			key = lower(t)
		}
		if _, ok := seen.get(key); ok {
			continue
		}
		if !seen.put(key, true) {
			return nil, fmt.Errorf("%s cannot be told apart from others", kind(key))
		}
		out.Append(item)
	}
	return out, nil
}

func filterSum(m *machine, v Value, a arguments) (Value, error) {
	items, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	path, _ := a.take(0, "attribute")
	total, ok := a.take(1, "start")
	if !ok {
		total = int64(0)
	}
	for _, item := range items {
		if item, err = m.path(item, path); err != nil {
			return nil, err
		}
		if total, err = m.arithmetic("+", total, item); err != nil {
			return nil, err
		}
	}
	return total, nil
}

// extreme is the least (sign < 0) or greatest item.
func (m *machine) extreme(v Value, a arguments, sign int) (Value, error) {
	items, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	path, _ := a.take(1, "attribute")
	var best, bestKey Value = undefined{"extreme of an empty list"}, nil
	for i, item := range items {
		key, err := m.path(item, path)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			c, err := m.compare(key, bestKey, 0)
			if err != nil {
				return nil, err
			}
			if c*sign <= 0 {
				continue
			}
		}
		best, bestKey = item, key
	}
	return best, nil
}

func filterBatch(m *machine, v Value, a arguments) (Value, error) {
	items, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	n, err := a.integer(0, "linecount", 0)
	if err != nil || n < 1 || n > 1<<16 {
		return nil, fmt.Errorf("batches of %d items", n)
	}
	fill, filled := a.take(1, "fill_with")
	out := NewList()
	for len(items) > 0 {
		k := min(int(n), len(items))
		part := NewList(append([]Value(nil), items[:k]...)...)
		items = items[k:]
		for filled && fill != nil && len(part.items) < int(n) {
			part.Append(fill)
		}
		out.Append(part)
		if err := m.charge(16 * len(part.items)); err != nil {
			return nil, err
		}
	}
	return out, nil
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

// path follows "a.b.0" from v; nil is v itself.
func (m *machine) path(v, path Value) (Value, error) {
	if path == nil {
		return v, nil
	}
	t, ok := path.(Text)
	if !ok {
		return m.item(v, path)
	}
	for _, part := range strings.Split(t.s, ".") {
		var key Value = Trusted(part)
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			key = n
		}
		var err error
		if v, err = m.item(v, key); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// mapped is map(filter, arguments...) and map(attribute=path, default=value).
func (m *machine) mapped(v Value, a arguments) (Value, error) {
	items, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	out := NewList()
	path, byPath := a.named["attribute"]
	for _, item := range items {
		if byPath {
			if item, err = m.path(item, path); err != nil {
				return nil, err
			}
			if other, ok := a.named["default"]; ok {
				if _, missing := item.(undefined); missing {
					item = other
				}
			}
			out.Append(item)
			continue
		}
		name, err := a.text(0, "filter", "")
		if err != nil {
			return nil, err
		}
		if name.s == "map" {
			return nil, fmt.Errorf("map of map is not supported")
		}
		if item, err = m.filter(name.s, item, a.after(1)); err != nil {
			return nil, err
		}
		out.Append(item)
	}
	return out, nil
}

// after is the arguments from position n on.
func (a arguments) after(n int) arguments {
	return arguments{a.positional[min(n, len(a.positional)):], a.named, a.order}
}

// choose keeps the items, or those whose attribute, pass (keep) or fail (!keep) a test; without a test, that are true.
func (m *machine) choose(v Value, a arguments, byPath, keep bool) (Value, error) {
	items, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	var path Value
	if byPath {
		if path, byPath = a.take(0, "attr"); !byPath {
			return nil, fmt.Errorf("attribute missing")
		}
		a = a.after(1)
	}
	name, err := a.text(0, "test", "true value")
	if err != nil {
		return nil, err
	}
	out := NewList()
	for _, item := range items {
		subject, err := m.path(item, path)
		if err != nil {
			return nil, err
		}
		ok := truthy(subject)
		if name.s != "true value" {
			if ok, err = m.test(name.s, subject, a.after(1)); err != nil {
				return nil, err
			}
		}
		if ok == keep {
			out.Append(item)
		}
	}
	return out, nil
}
