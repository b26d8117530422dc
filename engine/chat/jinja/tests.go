package jinja

import "fmt"

// testFunc decides v is name(arguments).
type testFunc func(m *machine, v Value, a arguments) (bool, error)

// tests by name.
var tests = map[string]testFunc{
	"defined": func(_ *machine, v Value, _ arguments) (bool, error) {
		_, missing := v.(undefined)
		return !missing, nil
	},
	"undefined": func(_ *machine, v Value, _ arguments) (bool, error) { _, missing := v.(undefined); return missing, nil },
	"none":      func(_ *machine, v Value, _ arguments) (bool, error) { return v == nil, nil },
	"true":      func(_ *machine, v Value, _ arguments) (bool, error) { return v == true, nil },
	"false":     func(_ *machine, v Value, _ arguments) (bool, error) { return v == false, nil },
	"boolean":   func(_ *machine, v Value, _ arguments) (bool, error) { _, ok := v.(bool); return ok, nil },
	"string":    func(_ *machine, v Value, _ arguments) (bool, error) { _, ok := v.(Text); return ok, nil },
	"mapping":   func(_ *machine, v Value, _ arguments) (bool, error) { _, ok := v.(*Dict); return ok, nil },
	"integer":   func(_ *machine, v Value, _ arguments) (bool, error) { _, ok := v.(int64); return ok, nil },
	"float":     func(_ *machine, v Value, _ arguments) (bool, error) { _, ok := v.(float64); return ok, nil },
	"number":    func(_ *machine, v Value, _ arguments) (bool, error) { _, _, _, ok := number(v); return ok, nil },
	"iterable":  testSequence,
	"sequence":  testSequence,
	"callable":  testCallable,
	"odd": func(m *machine, v Value, _ arguments) (bool, error) {
		r, err := m.remainder(v, int64(2))
		return r == 1, err
	},
	"even": func(m *machine, v Value, _ arguments) (bool, error) {
		r, err := m.remainder(v, int64(2))
		return r == 0, err
	},
	"divisibleby": func(m *machine, v Value, a arguments) (bool, error) {
		n, _ := a.take(0, "num")
		r, err := m.remainder(v, n)
		return r == 0, err
	},
	"upper":       func(m *machine, v Value, _ arguments) (bool, error) { t, err := m.str(v); return t.is("isupper"), err },
	"lower":       func(m *machine, v Value, _ arguments) (bool, error) { t, err := m.str(v); return t.is("islower"), err },
	"in":          comparison("in"),
	"eq":          comparison("=="),
	"equalto":     comparison("=="),
	"==":          comparison("=="),
	"ne":          comparison("!="),
	"!=":          comparison("!="),
	"lt":          comparison("<"),
	"lessthan":    comparison("<"),
	"<":           comparison("<"),
	"le":          comparison("<="),
	"<=":          comparison("<="),
	"gt":          comparison(">"),
	"greaterthan": comparison(">"),
	">":           comparison(">"),
	"ge":          comparison(">="),
	">=":          comparison(">="),
	"sameas":      testSameAs,
}

// test applies the test of that name.
func (m *machine) test(name string, v Value, a arguments) (bool, error) {
	f, ok := tests[name]
	if !ok {
		return false, fmt.Errorf("test %q is not supported in chat templates", name)
	}
	if err := m.charge(0); err != nil {
		return false, err
	}
	passed, err := f(m, v, a)
	if err != nil {
		return false, fmt.Errorf("test %q: %w", name, err)
	}
	return passed, nil
}

// comparison is a test by an operator.
func comparison(op string) testFunc {
	return func(m *machine, v Value, a arguments) (bool, error) {
		other, ok := a.take(0, "other")
		if !ok {
			return false, fmt.Errorf("nothing to compare with")
		}
		return m.compares(op, v, other)
	}
}

// testSequence: what can be iterated has a length and items, too.
func testSequence(_ *machine, v Value, _ arguments) (bool, error) {
	switch v.(type) {
	case Text, *List, *Dict, undefined:
		return true, nil
	}
	return false, nil
}

func testCallable(_ *machine, v Value, _ arguments) (bool, error) {
	switch v.(type) {
	case *macro, *function, method:
		return true, nil
	}
	return false, nil
}

// testSameAs is identity, which for values without parts is equality of type and value.
func testSameAs(m *machine, v Value, a arguments) (bool, error) {
	other, _ := a.take(0, "other")
	switch v := v.(type) {
	case nil, bool, int64, float64, *List, *Dict, *namespace, *macro, *function:
		return v == other, nil
	}
	return m.equal(v, other, 0)
}

// remainder is v % n.
func (m *machine) remainder(v, n Value) (float64, error) {
	r, err := m.arithmetic("%", v, n)
	if err != nil {
		return -1, err
	}
	_, f, _, _ := number(r)
	return f, nil
}
