package jinja

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

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
