package jinja

import (
	"errors"
	"fmt"
)

// stmt is a statement.
type stmt interface {
	exec(m *machine, s *scope) error
}

// errBreak and errContinue unwind to the loop around them.
var (
	errBreak    = errors.New("break outside a loop")
	errContinue = errors.New("continue outside a loop")
)

// run executes a block.
func (m *machine) run(body []stmt, s *scope) error {
	if err := m.enter(); err != nil {
		return err
	}
	defer m.leave()
	for _, st := range body {
		if err := st.exec(m, s); err != nil {
			return err
		}
	}
	return nil
}

// at adds the line to an error that has none.
func at(line int, err error) error {
	var placed *placedError
	if err == nil || err == errBreak || err == errContinue || errors.As(err, &placed) {
		return err
	}
	return &placedError{line, err}
}

// placedError is an error with the line of the template it happened on.
type placedError struct {
	line int
	err  error
}

func (e *placedError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *placedError) Unwrap() error { return e.err }

// dataStmt is text outside tags.
type dataStmt struct{ text string }

func (d dataStmt) exec(m *machine, _ *scope) error { return m.write(Trusted(d.text)) }

// printStmt is {{ expression }}.
type printStmt struct {
	value expr
	line  int
}

func (p printStmt) exec(m *machine, s *scope) error {
	v, err := p.value.eval(m, s)
	if err != nil {
		return at(p.line, err)
	}
	t, err := m.str(v)
	if err != nil {
		return at(p.line, err)
	}
	return at(p.line, m.write(t))
}

// ifStmt is {% if %} with its {% elif %} and {% else %} branches; a nil condition is else.
type ifStmt struct{ branches []branch }

type branch struct {
	condition expr
	body      []stmt
	line      int
}

func (i ifStmt) exec(m *machine, s *scope) error {
	for _, b := range i.branches {
		if b.condition != nil {
			v, err := b.condition.eval(m, s)
			if err != nil {
				return at(b.line, err)
			}
			if !truthy(v) {
				continue
			}
		}
		return m.run(b.body, s)
	}
	return nil
}

// forStmt is {% for targets in items if condition %}.
type forStmt struct {
	target    expr
	items     expr
	condition expr // nil = all
	body      []stmt
	otherwise []stmt
	line      int
}

// loop is the variable of that name inside a for.
type loop struct {
	index   int // from 0
	items   []Value
	changed []Value // arguments of the last loop.changed
}

func (f forStmt) exec(m *machine, s *scope) error {
	over, err := f.items.eval(m, s)
	if err != nil {
		return at(f.line, err)
	}
	items, err := m.iterate(over)
	if err != nil {
		return at(f.line, err)
	}
	if f.condition != nil {
		if items, err = f.filter(m, s, items); err != nil {
			return at(f.line, err)
		}
	}
	if len(items) == 0 {
		return m.run(f.otherwise, s.inner())
	}
	state := &loop{items: items}
	for i, item := range items {
		if err := m.charge(0); err != nil {
			return at(f.line, err)
		}
		state.index = i
		inner := s.inner()
		inner.set("loop", state)
		if err := f.assign(m, inner, item); err != nil {
			return at(f.line, err)
		}
		switch err := m.run(f.body, inner); err {
		case nil, errContinue:
		case errBreak:
			return nil
		default:
			return err
		}
	}
	return nil
}

func (f forStmt) filter(m *machine, s *scope, items []Value) ([]Value, error) {
	var kept []Value
	for _, item := range items {
		inner := s.inner()
		if err := f.assign(m, inner, item); err != nil {
			return nil, err
		}
		v, err := f.condition.eval(m, inner)
		if err != nil {
			return nil, err
		}
		if truthy(v) {
			kept = append(kept, item)
		}
	}
	return kept, nil
}

func (f forStmt) assign(m *machine, s *scope, item Value) error { return assign(m, s, f.target, item) }

// assign stores a value in a name, a namespace's attribute or a tuple of those.
func assign(m *machine, s *scope, target expr, v Value) error {
	switch target := target.(type) {
	case nameExpr:
		s.set(target.name, v)
		return nil
	case attributeExpr:
		name, ok := target.of.(nameExpr)
		if !ok {
			break
		}
		ns, ok := s.get(name.name).(*namespace)
		if !ok {
			return fmt.Errorf("%q is not a namespace, so it has no attributes to set", name.name)
		}
		ns.attributes.Set(target.name, v)
		return nil
	case listExpr:
		parts, err := m.iterate(v)
		if err != nil {
			return err
		}
		if len(parts) != len(target.items) {
			return fmt.Errorf("%d values for %d names", len(parts), len(target.items))
		}
		for i, part := range parts {
			if err := assign(m, s, target.items[i], part); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.New("not something a value can be assigned to")
}

// setStmt is {% set target = value %}.
type setStmt struct {
	target, value expr
	line          int
}

func (st setStmt) exec(m *machine, s *scope) error {
	v, err := st.value.eval(m, s)
	if err != nil {
		return at(st.line, err)
	}
	return at(st.line, assign(m, s, st.target, v))
}

// captureStmt is {% set target %}...{% endset %} and {% filter %}...{% endfilter %}: a block's output, filtered, then
// assigned or, without a target, written.
type captureStmt struct {
	target  expr
	filters []filterCall
	body    []stmt
	line    int
}

func (c captureStmt) exec(m *machine, s *scope) error {
	text, err := m.capture(func() error { return m.run(c.body, s.inner()) })
	if err != nil {
		return err
	}
	var v Value = text
	for _, f := range c.filters {
		if v, err = f.apply(m, s, v); err != nil {
			return at(c.line, err)
		}
	}
	if c.target != nil {
		return at(c.line, assign(m, s, c.target, v))
	}
	if text, err = m.str(v); err != nil {
		return at(c.line, err)
	}
	return m.write(text)
}

// blockStmt runs a body in a scope of its own: {% generation %} and {% with %}, whose values are computed outside.
type blockStmt struct {
	names  []string
	values []expr
	body   []stmt
	line   int
}

func (b blockStmt) exec(m *machine, s *scope) error {
	inner := s.inner()
	for i, name := range b.names {
		v, err := b.values[i].eval(m, s)
		if err != nil {
			return at(b.line, err)
		}
		inner.set(name, v)
	}
	return m.run(b.body, inner)
}

// jumpStmt is {% break %} or {% continue %}.
type jumpStmt struct{ err error }

func (j jumpStmt) exec(*machine, *scope) error { return j.err }

// macroStmt is {% macro name(parameters) %}.
type macroStmt struct {
	name       string
	parameters []parameter
	body       []stmt
	line       int
}

// parameter of a macro; value is its default, nil = undefined.
type parameter struct {
	name  string
	value expr
}

func (mc *macroStmt) exec(_ *machine, s *scope) error {
	s.set(mc.name, &macro{mc, s})
	return nil
}

// macro is a macro with the scope it was defined in.
type macro struct {
	*macroStmt
	scope *scope
}

func (mc *macro) call(m *machine, a arguments) (Value, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	if len(a.positional) > len(mc.parameters) {
		return nil, fmt.Errorf("macro %q takes %d arguments, not %d", mc.name, len(mc.parameters), len(a.positional))
	}
	inner := mc.scope.inner()
	used := 0
	for i, p := range mc.parameters {
		named, isNamed := a.named[p.name]
		if isNamed {
			used++
		}
		switch {
		case i < len(a.positional):
			if isNamed {
				return nil, fmt.Errorf("macro %q got argument %q twice", mc.name, p.name)
			}
			inner.set(p.name, a.positional[i])
		case isNamed:
			inner.set(p.name, named)
		case p.value != nil:
			v, err := p.value.eval(m, inner)
			if err != nil {
				return nil, err
			}
			inner.set(p.name, v)
		default:
			inner.set(p.name, undefined{p.name})
		}
	}
	if used < len(a.named) {
		return nil, fmt.Errorf("macro %q got an argument that it does not take", mc.name)
	}
	text, err := m.capture(func() error { return m.run(mc.body, inner) })
	return text, err
}
