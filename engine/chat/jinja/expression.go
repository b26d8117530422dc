package jinja

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
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

// unaryExpr is -a or +a.
type unaryExpr struct {
	op string
	of expr
}

func (u unaryExpr) eval(m *machine, s *scope) (Value, error) {
	v, err := u.of.eval(m, s)
	if err != nil {
		return nil, err
	}
	i, f, whole, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s%s is not defined", u.op, kind(v))
	case whole && u.op == "-":
		return -i, nil
	case whole:
		return i, nil
	case u.op == "-":
		return -f, nil
	}
	return f, nil
}

// binaryExpr is arithmetic and "~", which joins texts.
type binaryExpr struct {
	op          string
	left, right expr
}

func (b binaryExpr) eval(m *machine, s *scope) (Value, error) {
	left, err := b.left.eval(m, s)
	if err != nil {
		return nil, err
	}
	right, err := b.right.eval(m, s)
	if err != nil {
		return nil, err
	}
	if b.op == "~" {
		l, err := m.str(left)
		if err != nil {
			return nil, err
		}
		r, err := m.str(right)
		if err != nil {
			return nil, err
		}
		return m.joined(l, r)
	}
	return m.arithmetic(b.op, left, right)
}

func (m *machine) joined(a, b Text) (Value, error) {
	if err := m.charge(len(a.s) + len(b.s)); err != nil {
		return nil, err
	}
	return a.plus(b), nil
}

func (m *machine) arithmetic(op string, a, b Value) (Value, error) {
	wrong := fmt.Errorf("%s %s %s is not defined", kind(a), op, kind(b))
	switch a := a.(type) {
	case Text:
		if t, ok := b.(Text); ok && op == "+" {
			return m.joined(a, t)
		}
		if n, _, whole, _ := number(b); whole && op == "*" {
			return m.repeat(a, n)
		}
		return nil, wrong
	case *List:
		if n, _, whole, _ := number(b); whole && op == "*" {
			return m.repeatList(a, n)
		}
		l, ok := b.(*List)
		if !ok || op != "+" || l.tuple != a.tuple {
			return nil, wrong
		}
		if err := m.charge(16 * (len(a.items) + len(l.items))); err != nil {
			return nil, err
		}
		return &List{tuple: a.tuple, items: append(append([]Value(nil), a.items...), l.items...)}, nil
	}
	ia, fa, wholeA, okA := number(a)
	ib, fb, wholeB, okB := number(b)
	if wholeA && op == "*" {
		switch b := b.(type) {
		case Text:
			return m.repeat(b, ia)
		case *List:
			return m.repeatList(b, ia)
		}
	}
	if !okA || !okB {
		return nil, wrong
	}
	if (op == "/" || op == "//" || op == "%") && fb == 0 {
		return nil, fmt.Errorf("division by zero")
	}
	if err := m.charge(0); err != nil {
		return nil, err
	}
	if wholeA && wholeB && op != "/" && !(op == "**" && ib < 0) {
		return integer(op, ia, ib)
	}
	switch op {
	case "+":
		return fa + fb, nil
	case "-":
		return fa - fb, nil
	case "*":
		return fa * fb, nil
	case "/":
		return fa / fb, nil
	case "//":
		return math.Floor(fa / fb), nil
	case "%":
		return fa - fb*math.Floor(fa/fb), nil
	}
	return math.Pow(fa, fb), nil
}

// repeat is text * n.
func (m *machine) repeat(t Text, n int64) (Value, error) {
	n = max(n, 0)
	if n > 0 && int64(len(t.s)) > int64(m.limits.Output)/n {
		return nil, fmt.Errorf("%w: %d copies of %d bytes", ErrLimit, n, len(t.s))
	}
	if err := m.charge(len(t.s) * int(n)); err != nil {
		return nil, err
	}
	return Text{strings.Repeat(t.s, int(n)), strings.Repeat(t.mask, int(n))}, nil
}

// repeatList is list * n.
func (m *machine) repeatList(l *List, n int64) (Value, error) {
	n = max(n, 0)
	if n > 0 && int64(len(l.items)) > maxRange/n {
		return nil, fmt.Errorf("%w: %d copies of %d items", ErrLimit, n, len(l.items))
	}
	out := &List{tuple: l.tuple}
	for range n {
		out.items = append(out.items, l.items...)
	}
	return out, m.charge(16 * len(out.items))
}

// integer is arithmetic on whole numbers; results outside 64 bits are errors.
func integer(op string, a, b int64) (Value, error) {
	overflow := fmt.Errorf("%d %s %d is outside 64 bits", a, op, b)
	switch op {
	case "+":
		if c := a + b; (c > a) == (b > 0) || b == 0 {
			return c, nil
		}
	case "-":
		if c := a - b; (c < a) == (b > 0) || b == 0 {
			return c, nil
		}
	case "*":
		if c := a * b; a == 0 || c/a == b && !(a == -1 && b == math.MinInt64) {
			return c, nil
		}
	case "//", "%":
		q, r := a/b, a%b
		if r != 0 && (r < 0) != (b < 0) {
			q, r = q-1, r+b
		}
		if op == "%" {
			return r, nil
		}
		return q, nil
	case "**":
		c := int64(1)
		for range min(b, 64) {
			if c != 0 && (c*a)/c != a {
				return nil, overflow
			}
			c *= a
		}
		if b <= 64 || a == 0 || a == 1 {
			return c, nil
		}
	}
	return nil, overflow
}

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
