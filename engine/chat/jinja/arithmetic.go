package jinja

import (
	"fmt"
	"math"
	"strings"
)

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
