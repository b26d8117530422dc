package jinja

import (
	"fmt"
	"strings"
)

// expr is an expression.
type expr interface {
	eval(m *machine, s *scope) (Value, error)
}

// literalExpr is a constant.
type literalExpr struct{ value Value }

func (l literalExpr) eval(m *machine, _ *scope) (Value, error) { return l.value, m.charge(0) }

// nameExpr is a variable.
type nameExpr struct{ name string }

func (n nameExpr) eval(m *machine, s *scope) (Value, error) { return s.get(n.name), m.charge(0) }

// listExpr is [a, b] or, with tuple set, (a, b).
type listExpr struct {
	items []expr
	tuple bool
}

func (l listExpr) eval(m *machine, s *scope) (Value, error) {
	out := &List{tuple: l.tuple, items: make([]Value, 0, len(l.items))}
	for _, item := range l.items {
		v, err := item.eval(m, s)
		if err != nil {
			return nil, err
		}
		out.items = append(out.items, v)
	}
	return out, m.charge(0)
}

// dictExpr is {key: value}.
type dictExpr struct{ keys, values []expr }

func (d dictExpr) eval(m *machine, s *scope) (Value, error) {
	out := NewDict()
	for i := range d.keys {
		k, err := d.keys[i].eval(m, s)
		if err != nil {
			return nil, err
		}
		v, err := d.values[i].eval(m, s)
		if err != nil {
			return nil, err
		}
		if !out.put(k, v) {
			return nil, fmt.Errorf("%s cannot be a key", kind(k))
		}
	}
	return out, m.charge(0)
}

// conditionalExpr is a if condition else b; without an else it is undefined.
type conditionalExpr struct{ then, condition, otherwise expr }

func (c conditionalExpr) eval(m *machine, s *scope) (Value, error) {
	v, err := c.condition.eval(m, s)
	switch {
	case err != nil:
		return nil, err
	case truthy(v):
		return c.then.eval(m, s)
	case c.otherwise == nil:
		return undefined{"inline if without else"}, nil
	}
	return c.otherwise.eval(m, s)
}

// logicExpr is and, or and not; it gives the deciding operand, as Python does.
type logicExpr struct {
	op          string
	left, right expr // not: left only
}

func (l logicExpr) eval(m *machine, s *scope) (Value, error) {
	v, err := l.left.eval(m, s)
	if err != nil {
		return nil, err
	}
	switch {
	case l.op == "not":
		return !truthy(v), nil
	case truthy(v) == (l.op == "or"):
		return v, nil
	}
	return l.right.eval(m, s)
}

// compareExpr is a chain of comparisons: a < b <= c.
type compareExpr struct {
	first expr
	ops   []string
	rest  []expr
}

func (c compareExpr) eval(m *machine, s *scope) (Value, error) {
	left, err := c.first.eval(m, s)
	if err != nil {
		return nil, err
	}
	for i, op := range c.ops {
		right, err := c.rest[i].eval(m, s)
		if err != nil {
			return nil, err
		}
		ok, err := m.compares(op, left, right)
		if err != nil || !ok {
			return false, err
		}
		left = right
	}
	return true, nil
}

func (m *machine) compares(op string, a, b Value) (bool, error) {
	if err := m.charge(weight(a) + weight(b)); err != nil {
		return false, err
	}
	switch op {
	case "==":
		return m.equal(a, b, 0)
	case "!=":
		ok, err := m.equal(a, b, 0)
		return !ok, err
	case "in":
		return m.contains(b, a)
	case "not in":
		ok, err := m.contains(b, a)
		return !ok, err
	}
	c, err := m.compare(a, b, 0)
	if err != nil {
		return false, err
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

// weight is about how many bytes or items handling v touches.
func weight(v Value) int {
	switch v := v.(type) {
	case Text:
		return len(v.s)
	case *List:
		return 16 * len(v.items)
	case *Dict:
		return 64 * len(v.entries)
	}
	return 0
}

// contains is item in container.
func (m *machine) contains(container, item Value) (bool, error) {
	switch c := container.(type) {
	case Text:
		t, ok := item.(Text)
		if !ok {
			return false, fmt.Errorf("%s in a string", kind(item))
		}
		return strings.Contains(c.s, t.s), nil
	case *List:
		for _, v := range c.items {
			if err := m.charge(weight(v)); err != nil {
				return false, err
			}
			if ok, err := m.equal(v, item, 0); err != nil || ok {
				return ok, err
			}
		}
		return false, nil
	case *Dict:
		_, ok := c.get(item)
		return ok, nil
	case undefined:
		return false, nil
	}
	return false, fmt.Errorf("%s has no members", kind(container))
}

// arguments of a call, filter or test.
type arguments struct {
	positional []Value
	named      map[string]Value
	order      []string // names as written
}

// argumentExprs are unevaluated arguments.
type argumentExprs struct {
	positional []expr
	names      []string
	named      []expr
}

func (a argumentExprs) eval(m *machine, s *scope) (arguments, error) {
	out := arguments{order: a.names}
	for _, e := range a.positional {
		v, err := e.eval(m, s)
		if err != nil {
			return out, err
		}
		out.positional = append(out.positional, v)
	}
	for i, e := range a.named {
		v, err := e.eval(m, s)
		if err != nil {
			return out, err
		}
		if out.named == nil {
			out.named = make(map[string]Value, len(a.named))
		}
		out.named[a.names[i]] = v
	}
	return out, nil
}

// take is the argument at a position or of a name; ok is false when neither is given.
func (a arguments) take(i int, name string) (Value, bool) {
	if i < len(a.positional) {
		return a.positional[i], true
	}
	v, ok := a.named[name]
	return v, ok
}

// text and integer are take for one type, with a default.
func (a arguments) text(i int, name, missing string) (Text, error) {
	v, ok := a.take(i, name)
	if !ok {
		return Trusted(missing), nil
	}
	t, ok := v.(Text)
	if !ok {
		return Text{}, fmt.Errorf("argument %q is %s, not a string", name, kind(v))
	}
	return t, nil
}

func (a arguments) integer(i int, name string, missing int64) (int64, error) {
	v, ok := a.take(i, name)
	if !ok || v == nil {
		return missing, nil
	}
	n, _, whole, _ := number(v)
	if !whole {
		return 0, fmt.Errorf("argument %q is %s, not a whole number", name, kind(v))
	}
	return n, nil
}

// callExpr is of(arguments).
type callExpr struct {
	of        expr
	arguments argumentExprs
}

func (c callExpr) eval(m *machine, s *scope) (Value, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	callee, err := c.of.eval(m, s)
	if err != nil {
		return nil, err
	}
	a, err := c.arguments.eval(m, s)
	if err != nil {
		return nil, err
	}
	switch callee := callee.(type) {
	case *macro:
		return callee.call(m, a)
	case *function:
		return callee.call(m, a)
	case method:
		v, err := m.callMethod(callee.receiver, callee.name, a)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", callee.name, err)
		}
		return v, nil
	case undefined:
		return nil, fmt.Errorf("%q is undefined, so it cannot be called", callee.name)
	}
	return nil, fmt.Errorf("%s cannot be called", kind(callee))
}

// filterCall is |name(arguments).
type filterCall struct {
	name      string
	arguments argumentExprs
}

func (f filterCall) apply(m *machine, s *scope, v Value) (Value, error) {
	a, err := f.arguments.eval(m, s)
	if err != nil {
		return nil, err
	}
	return m.filter(f.name, v, a)
}

// filterExpr is of|filter.
type filterExpr struct {
	of     expr
	filter filterCall
}

func (f filterExpr) eval(m *machine, s *scope) (Value, error) {
	v, err := f.of.eval(m, s)
	if err != nil {
		return nil, err
	}
	return f.filter.apply(m, s, v)
}

// testExpr is of is [not] name(arguments).
type testExpr struct {
	of        expr
	name      string
	arguments argumentExprs
	negated   bool
}

func (t testExpr) eval(m *machine, s *scope) (Value, error) {
	v, err := t.of.eval(m, s)
	if err != nil {
		return nil, err
	}
	a, err := t.arguments.eval(m, s)
	if err != nil {
		return nil, err
	}
	ok, err := m.test(t.name, v, a)
	return ok != t.negated, err
}
