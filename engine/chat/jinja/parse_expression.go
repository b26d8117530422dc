package jinja

import (
	"fmt"
	"strconv"
)

// tuple parses an expression, or several with commas between.
func (p *parser) tuple() (expr, error) { return p.tupleOf(p.expression) }

func (p *parser) tupleOf(element func() (expr, error)) (expr, error) {
	first, err := element()
	if err != nil || !p.is(tokenOperator, ",") {
		return first, err
	}
	items := []expr{first}
	for p.take(tokenOperator, ",") {
		if p.peek().kind == tokenClose || p.is(tokenOperator, ")") {
			break
		}
		item, err := element()
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return listExpr{items, true}, nil
}

// expression parses a conditional expression.
func (p *parser) expression() (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	out, err := p.or()
	if err != nil {
		return nil, err
	}
	for p.take(tokenName, "if") {
		if err := p.link(); err != nil {
			return nil, err
		}
		condition, err := p.or()
		if err != nil {
			return nil, err
		}
		c := conditionalExpr{then: out, condition: condition}
		if p.take(tokenName, "else") {
			if c.otherwise, err = p.expression(); err != nil {
				return nil, err
			}
		}
		out = c
	}
	return out, nil
}

func (p *parser) or() (expr, error) { return p.logic("or", p.and) }

func (p *parser) and() (expr, error) { return p.logic("and", p.not) }

func (p *parser) logic(op string, operand func() (expr, error)) (expr, error) {
	left, err := operand()
	for err == nil && p.take(tokenName, op) {
		if err := p.link(); err != nil {
			return nil, err
		}
		var right expr
		right, err = operand()
		left = logicExpr{op, left, right}
	}
	return left, err
}

func (p *parser) not() (expr, error) {
	if !p.take(tokenName, "not") {
		return p.comparison()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	of, err := p.not()
	return logicExpr{op: "not", left: of}, err
}

func (p *parser) comparison() (expr, error) {
	first, err := p.binary(0)
	if err != nil {
		return nil, err
	}
	out := compareExpr{first: first}
	for {
		op := ""
		switch t := p.peek(); {
		case t.kind == tokenOperator && (t.text == "==" || t.text == "!=" || t.text == "<" || t.text == "<=" || t.text == ">" || t.text == ">="):
			op = t.text
			p.at++
		case p.take(tokenName, "in"):
			op = "in"
		case p.is(tokenName, "not") && p.tokens[p.at+1].kind == tokenName && p.tokens[p.at+1].text == "in":
			op = "not in"
			p.at += 2
		}
		if op == "" {
			break
		}
		if err := p.link(); err != nil {
			return nil, err
		}
		right, err := p.binary(0)
		if err != nil {
			return nil, err
		}
		out.ops, out.rest = append(out.ops, op), append(out.rest, right)
	}
	if len(out.ops) == 0 {
		return first, nil
	}
	return out, nil
}

// levels of binary operators, weakest first.
var levels = [][]string{{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}

func (p *parser) binary(level int) (expr, error) {
	if level == len(levels) {
		return p.unary(true)
	}
	left, err := p.binary(level + 1)
	for err == nil {
		op := ""
		for _, candidate := range levels[level] {
			if p.take(tokenOperator, candidate) {
				op = candidate
				break
			}
		}
		if op == "" {
			return left, nil
		}
		if err := p.link(); err != nil {
			return nil, err
		}
		var right expr
		right, err = p.binary(level + 1)
		left = binaryExpr{op, left, right}
	}
	return nil, err
}

// unary parses a signed operand. Filters apply to the operand with its sign.
func (p *parser) unary(filtered bool) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var out expr
	var err error
	switch {
	case p.take(tokenOperator, "-"):
		out, err = p.unary(false)
		out = unaryExpr{"-", out}
	case p.take(tokenOperator, "+"):
		out, err = p.unary(false)
		out = unaryExpr{"+", out}
	default:
		if out, err = p.primary(); err == nil {
			out, err = p.postfix(out)
		}
	}
	if err != nil || !filtered {
		return out, err
	}
	return p.filtered(out)
}

// filtered parses the filters, tests and calls after an operand.
func (p *parser) filtered(out expr) (expr, error) {
	for {
		if err := p.link(); err != nil {
			return nil, err
		}
		switch {
		case p.take(tokenOperator, "|"):
			f, err := p.filter()
			if err != nil {
				return nil, err
			}
			out = filterExpr{out, f}
		case p.take(tokenName, "is"):
			t, err := p.test(out)
			if err != nil {
				return nil, err
			}
			out = t
		case p.is(tokenOperator, "("):
			a, err := p.arguments()
			if err != nil {
				return nil, err
			}
			out = callExpr{out, a}
		default:
			return out, nil
		}
	}
}

// filters parses name(arguments)|name(arguments)...
func (p *parser) filters() ([]filterCall, error) {
	var out []filterCall
	for {
		f, err := p.filter()
		if err != nil {
			return nil, err
		}
		out = append(out, f)
		if !p.take(tokenOperator, "|") {
			return out, nil
		}
	}
}

func (p *parser) filter() (filterCall, error) {
	line := p.peek().line
	name, err := p.name()
	if err != nil {
		return filterCall{}, err
	}
	if _, ok := filters[name]; !ok {
		return filterCall{}, fmt.Errorf("line %d: filter %q is not supported in chat templates", line, name)
	}
	f := filterCall{name: name}
	if p.is(tokenOperator, "(") {
		f.arguments, err = p.arguments()
	}
	return f, err
}

// test parses what follows "is". An argument may stand without brackets.
func (p *parser) test(of expr) (expr, error) {
	out := testExpr{of: of, negated: p.take(tokenName, "not")}
	line := p.peek().line
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	if _, ok := tests[name]; !ok {
		return nil, fmt.Errorf("line %d: test %q is not supported in chat templates", line, name)
	}
	out.name = name
	switch t := p.peek(); {
	case p.is(tokenOperator, "("):
		out.arguments, err = p.arguments()
		return out, err
	case t.kind == tokenString || t.kind == tokenInt || t.kind == tokenFloat || p.is(tokenOperator, "[") || p.is(tokenOperator, "{"),
		t.kind == tokenName && t.text != "else" && t.text != "or" && t.text != "and" && t.text != "if" && t.text != "in" && t.text != "not":
		if t.text == "is" && t.kind == tokenName {
			return nil, p.fail("tests cannot be chained")
		}
		argument, err := p.primary()
		if err != nil {
			return nil, err
		}
		if argument, err = p.postfix(argument); err != nil {
			return nil, err
		}
		out.arguments.positional = []expr{argument}
	}
	return out, nil
}

// postfix parses accesses and calls after an operand.
func (p *parser) postfix(out expr) (expr, error) {
	for {
		if err := p.link(); err != nil {
			return nil, err
		}
		switch {
		case p.take(tokenOperator, "."):
			switch t := p.next(); t.kind {
			case tokenName:
				out = attributeExpr{out, t.text}
			case tokenInt:
				n, err := strconv.ParseInt(t.text, 10, 64)
				if err != nil {
					return nil, p.fail("index out of range")
				}
				out = itemExpr{out, literalExpr{n}}
			default:
				return nil, fmt.Errorf("line %d: attribute expected, found %q", t.line, t.text)
			}
		case p.take(tokenOperator, "["):
			item, err := p.subscript(out)
			if err != nil {
				return nil, err
			}
			out = item
		case p.is(tokenOperator, "("):
			a, err := p.arguments()
			if err != nil {
				return nil, err
			}
			out = callExpr{out, a}
		default:
			return out, nil
		}
	}
}

// subscript parses what follows "[": a key or a slice.
func (p *parser) subscript(of expr) (expr, error) {
	var parts [3]expr
	colons := 0
	for !p.take(tokenOperator, "]") {
		if p.take(tokenOperator, ":") {
			if colons++; colons > 2 {
				return nil, p.fail("slice with more than three parts")
			}
			continue
		}
		if parts[colons] != nil {
			return nil, p.fail(`"]" expected`)
		}
		part, err := p.tuple()
		if err != nil {
			return nil, err
		}
		parts[colons] = part
	}
	switch {
	case colons > 0:
		return sliceExpr{of, parts[0], parts[1], parts[2]}, nil
	case parts[0] == nil:
		return nil, p.fail("key expected")
	}
	return itemExpr{of, parts[0]}, nil
}

// arguments parses (a, b, c=d).
func (p *parser) arguments() (argumentExprs, error) {
	var out argumentExprs
	if err := p.want(tokenOperator, "("); err != nil {
		return out, err
	}
	for more := false; !p.take(tokenOperator, ")"); more = true {
		if more {
			if err := p.want(tokenOperator, ","); err != nil {
				return out, err
			}
			if p.take(tokenOperator, ")") {
				break
			}
		}
		if t := p.tokens[p.at+1]; p.peek().kind == tokenName && t.kind == tokenOperator && t.text == "=" {
			name := p.next().text
			p.at++
			value, err := p.expression()
			if err != nil {
				return out, err
			}
			out.names, out.named = append(out.names, name), append(out.named, value)
			continue
		}
		if len(out.named) > 0 {
			return out, p.fail("argument without a name after one with")
		}
		if p.is(tokenOperator, "*") || p.is(tokenOperator, "**") {
			return out, p.fail("argument lists by * are not supported in chat templates")
		}
		value, err := p.expression()
		if err != nil {
			return out, err
		}
		out.positional = append(out.positional, value)
	}
	return out, nil
}

// primary parses a literal, a name or a bracketed expression.
func (p *parser) primary() (expr, error) {
	switch t := p.next(); t.kind {
	case tokenName:
		switch t.text {
		case "true", "True":
			return literalExpr{true}, nil
		case "false", "False":
			return literalExpr{false}, nil
		case "none", "None":
			return literalExpr{nil}, nil
		}
		return nameExpr{t.text}, nil
	case tokenString:
		text := t.text
		for p.peek().kind == tokenString {
			text += p.next().text
		}
		return literalExpr{Trusted(text)}, nil
	case tokenInt:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %d: number %s is outside 64 bits", t.line, t.text)
		}
		return literalExpr{n}, nil
	case tokenFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			return nil, fmt.Errorf("line %d: number %s is too large", t.line, t.text)
		}
		return literalExpr{f}, nil
	case tokenOperator:
		switch t.text {
		case "(":
			return p.bracketed()
		case "[":
			items, err := p.items("]")
			return listExpr{items, false}, err
		case "{":
			return p.dict()
		}
	}
	if p.peek().kind != tokenEnd {
		p.at--
	}
	return nil, p.fail("expression expected")
}

// bracketed parses what follows "(": an expression or a tuple.
func (p *parser) bracketed() (expr, error) {
	if p.take(tokenOperator, ")") {
		return listExpr{nil, true}, nil
	}
	out, err := p.tuple()
	if err != nil {
		return nil, err
	}
	return out, p.want(tokenOperator, ")")
}

// items parses expressions with commas between up to end.
func (p *parser) items(end string) ([]expr, error) {
	var out []expr
	for !p.take(tokenOperator, end) {
		if len(out) > 0 {
			if err := p.want(tokenOperator, ","); err != nil {
				return nil, err
			}
			if p.take(tokenOperator, end) {
				break
			}
		}
		item, err := p.expression()
		if err != nil {
			return nil, err
		}
		out = append(out, item)
	}
	return out, nil
}

func (p *parser) dict() (expr, error) {
	var out dictExpr
	for !p.take(tokenOperator, "}") {
		if len(out.keys) > 0 {
			if err := p.want(tokenOperator, ","); err != nil {
				return nil, err
			}
			if p.take(tokenOperator, "}") {
				break
			}
		}
		key, err := p.expression()
		if err != nil {
			return nil, err
		}
		if err := p.want(tokenOperator, ":"); err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		out.keys, out.values = append(out.keys, key), append(out.values, value)
	}
	return out, nil
}
