package jinja

import (
	"fmt"
	"unicode/utf8"
)

// attributeExpr is of.name.
type attributeExpr struct {
	of   expr
	name string
}

func (a attributeExpr) eval(m *machine, s *scope) (Value, error) {
	v, err := a.of.eval(m, s)
	if err != nil {
		return nil, err
	}
	return m.attribute(v, a.name)
}

// attribute is v.name: a whitelisted method, else an item of a mapping, else undefined.
func (m *machine) attribute(v Value, name string) (Value, error) {
	if err := m.charge(0); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case undefined:
		return nil, fmt.Errorf("%q is undefined, so it has no attribute %q", v.name, name)
	case *namespace:
		if item, ok := v.attributes.Get(name); ok {
			return item, nil
		}
		return undefined{name}, nil
	case *loop:
		return v.attribute(name)
	case *Dict:
		if hasMethod(v, name) {
			return method{v, name}, nil
		}
		if item, ok := v.Get(name); ok {
			return item, nil
		}
		return undefined{name}, nil
	}
	if hasMethod(v, name) {
		return method{v, name}, nil
	}
	return undefined{name}, nil
}

func (l *loop) attribute(name string) (Value, error) {
	n, i := int64(len(l.items)), int64(l.index)
	switch name {
	case "index":
		return i + 1, nil
	case "index0":
		return i, nil
	case "revindex":
		return n - i, nil
	case "revindex0":
		return n - i - 1, nil
	case "first":
		return i == 0, nil
	case "last":
		return i == n-1, nil
	case "length":
		return n, nil
	case "depth":
		return int64(1), nil
	case "depth0":
		return int64(0), nil
	case "previtem":
		if i > 0 {
			return l.items[i-1], nil
		}
	case "nextitem":
		if i+1 < n {
			return l.items[i+1], nil
		}
	case "cycle", "changed":
		return method{l, name}, nil
	}
	return undefined{"loop." + name}, nil
}

// itemExpr is of[key].
type itemExpr struct{ of, key expr }

func (it itemExpr) eval(m *machine, s *scope) (Value, error) {
	v, err := it.of.eval(m, s)
	if err != nil {
		return nil, err
	}
	key, err := it.key.eval(m, s)
	if err != nil {
		return nil, err
	}
	return m.item(v, key)
}

// item is v[key]: an item, else, for a text key, an attribute; undefined if there is neither.
func (m *machine) item(v, key Value) (Value, error) {
	if u, ok := v.(undefined); ok {
		return nil, fmt.Errorf("%q is undefined, so it has no items", u.name)
	}
	if err := m.charge(0); err != nil {
		return nil, err
	}
	if d, ok := v.(*Dict); ok {
		if item, ok := d.get(key); ok {
			return item, nil
		}
	}
	if t, ok := key.(Text); ok {
		return m.attribute(v, t.s)
	}
	i, _, whole, _ := number(key)
	if !whole {
		return undefined{"item"}, nil
	}
	switch v := v.(type) {
	case *List:
		if i < 0 {
			i += int64(len(v.items))
		}
		if i >= 0 && i < int64(len(v.items)) {
			return v.items[i], nil
		}
	case Text:
		if err := m.charge(len(v.s)); err != nil {
			return nil, err
		}
		if i < 0 {
			i += int64(utf8.RuneCountInString(v.s))
		}
		for at, r := range v.s {
			if i == 0 {
				return v.slice(at, at+utf8.RuneLen(r)), nil
			}
			i--
		}
	}
	return undefined{fmt.Sprintf("item %d", i)}, nil
}

// sliceExpr is of[from:to:step]; nil parts are left out.
type sliceExpr struct{ of, from, to, step expr }

func (sl sliceExpr) eval(m *machine, s *scope) (Value, error) {
	v, err := sl.of.eval(m, s)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int64
	for i, e := range []expr{sl.from, sl.to, sl.step} {
		if e == nil {
			continue
		}
		b, err := e.eval(m, s)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		n, _, whole, _ := number(b)
		if !whole {
			return nil, fmt.Errorf("%s as a bound of a slice", kind(b))
		}
		bounds[i] = &n
	}
	if t, ok := v.(Text); ok {
		return m.sliceText(t, bounds)
	}
	l, ok := v.(*List)
	if !ok {
		return nil, fmt.Errorf("%s cannot be sliced", kind(v))
	}
	from, to, step, err := span(int64(len(l.items)), bounds)
	if err != nil {
		return nil, err
	}
	out := &List{tuple: l.tuple}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		out.Append(l.items[i])
	}
	return out, m.charge(16 * len(out.items))
}

// sliceText slices by characters.
func (m *machine) sliceText(t Text, bounds [3]*int64) (Value, error) {
	if err := m.charge(len(t.s)); err != nil {
		return nil, err
	}
	from, to, step, err := span(int64(utf8.RuneCountInString(t.s)), bounds)
	if err != nil {
		return nil, err
	}
	if step == 1 {
		start, end, n := len(t.s), len(t.s), int64(0)
		for i := range t.s {
			if n == from {
				start = i
			}
			if n == to {
				end = i
			}
			n++
		}
		return t.slice(start, max(start, end)), nil
	}
	characters, err := m.iterate(t)
	if err != nil {
		return nil, err
	}
	var b builder
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		b.write(characters[i].(Text))
	}
	return b.text(), nil
}

// span is where a slice of n items begins, before which it ends, and its step, by Python's rules.
func span(n int64, bounds [3]*int64) (from, to, step int64, err error) {
	step = 1
	if bounds[2] != nil {
		step = min(max(*bounds[2], -n-1), n+1) // a longer step takes one item, too
	}
	if step == 0 {
		return 0, 0, 0, fmt.Errorf("a slice's step is zero")
	}
	low, high := int64(0), n // where bounds are clamped to
	from, to = low, high
	if step < 0 {
		low, high = -1, n-1
		from, to = high, low
	}
	clamp := func(b *int64, missing int64) int64 {
		if b == nil {
			return missing
		}
		x := *b
		if x < 0 {
			x += n
		}
		return min(max(x, low), high)
	}
	return clamp(bounds[0], from), clamp(bounds[1], to), step, nil
}
