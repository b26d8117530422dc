package jinja

import (
	"fmt"
	"strconv"
)

// parser is a recursive-descent parser over the tokens of a template.
type parser struct {
	tokens []token
	at     int
	depth  int // nested blocks and expressions
	links  int // operators, filters and accesses in the statement at hand, which nest as a chain
	loops  int // for blocks around
}

// maxLinks bounds the chains of one statement: a + b + c and x.y.z nest to the left without brackets.
const maxLinks = 2000

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokenEnd {
		p.at++
	}
	return t
}

// is reports whether the next token is this operator or name.
func (p *parser) is(kind tokenKind, text string) bool {
	t := p.peek()
	return t.kind == kind && t.text == text
}

// take skips the token if it is next.
func (p *parser) take(kind tokenKind, text string) bool {
	if p.is(kind, text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) want(kind tokenKind, text string) error {
	if !p.take(kind, text) {
		return p.fail("%q expected", text)
	}
	return nil
}

func (p *parser) name() (string, error) {
	if p.peek().kind != tokenName {
		return "", p.fail("name expected")
	}
	return p.next().text, nil
}

// fail is an error at the next token.
func (p *parser) fail(format string, args ...any) error {
	t := p.peek()
	found := strconv.Quote(t.text)
	if t.kind == tokenEnd {
		found = "the end of the template"
	}
	return fmt.Errorf("line %d: %s, found %s", t.line, fmt.Sprintf(format, args...), found)
}

// enter counts a level of nesting.
func (p *parser) enter() error {
	p.depth++
	if p.depth > maxDepth {
		return p.fail("nested deeper than %d", maxDepth)
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// link counts an element of a chain.
func (p *parser) link() error {
	p.links++
	if p.links > maxLinks {
		return p.fail("more than %d operators in one statement", maxLinks)
	}
	return nil
}

// body parses statements up to the end of the template or to one of the block names, which stays unread after "{%".
func (p *parser) body(ends ...string) ([]stmt, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var out []stmt
	for {
		p.links = 0
		switch t := p.next(); {
		case t.kind == tokenData:
			out = append(out, dataStmt{t.text})
		case t.kind == tokenOpen && t.text == "{{":
			value, err := p.tuple()
			if err != nil {
				return nil, err
			}
			if err := p.want(tokenClose, "}}"); err != nil {
				return nil, err
			}
			out = append(out, printStmt{value, t.line})
		case t.kind == tokenOpen:
			for _, end := range ends {
				if p.is(tokenName, end) {
					return out, nil
				}
			}
			st, err := p.statement()
			if err != nil {
				return nil, err
			}
			out = append(out, st)
		case len(ends) > 0:
			return nil, p.fail("block without its {%% %s %%}", ends[len(ends)-1])
		default:
			return out, nil
		}
	}
}

// end parses a block's closing name and "%}".
func (p *parser) end(name string) error {
	if err := p.want(tokenName, name); err != nil {
		return err
	}
	return p.close()
}

func (p *parser) close() error { return p.want(tokenClose, "%}") }

// block parses "%}", statements, and the closing tag.
func (p *parser) block(end string) ([]stmt, error) {
	if err := p.close(); err != nil {
		return nil, err
	}
	body, err := p.body(end)
	if err != nil {
		return nil, err
	}
	return body, p.end(end)
}

func (p *parser) statement() (stmt, error) {
	line := p.peek().line
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	switch name {
	case "if":
		return p.ifBlock(line)
	case "for":
		return p.forBlock(line)
	case "set":
		return p.setBlock(line)
	case "macro":
		return p.macroBlock(line)
	case "filter":
		filters, err := p.filters()
		if err != nil {
			return nil, err
		}
		body, err := p.block("endfilter")
		return captureStmt{filters: filters, body: body, line: line}, err
	case "generation":
		body, err := p.block("endgeneration")
		return blockStmt{body: body, line: line}, err
	case "with":
		return p.withBlock(line)
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.fail("%s outside a loop", name)
		}
		if name == "break" {
			return jumpStmt{errBreak}, p.close()
		}
		return jumpStmt{errContinue}, p.close()
	}
	return nil, fmt.Errorf("line %d: statement %q is not supported in chat templates", line, name)
}

func (p *parser) ifBlock(line int) (stmt, error) {
	var out ifStmt
	for {
		condition, err := p.tuple()
		if err != nil {
			return nil, err
		}
		if err := p.close(); err != nil {
			return nil, err
		}
		body, err := p.body("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		out.branches = append(out.branches, branch{condition, body, line})
		line = p.peek().line
		if p.take(tokenName, "elif") {
			continue
		}
		if p.take(tokenName, "else") {
			body, err := p.block("endif")
			out.branches = append(out.branches, branch{nil, body, line})
			return out, err
		}
		return out, p.end("endif")
	}
}

func (p *parser) forBlock(line int) (stmt, error) {
	out := forStmt{line: line}
	var err error
	if out.target, err = p.target(); err != nil {
		return nil, err
	}
	if err := p.want(tokenName, "in"); err != nil {
		return nil, err
	}
	if out.items, err = p.tupleOf(p.or); err != nil {
		return nil, err
	}
	if p.take(tokenName, "if") {
		if out.condition, err = p.expression(); err != nil {
			return nil, err
		}
	}
	if p.is(tokenName, "recursive") {
		return nil, p.fail("recursive loops are not supported in chat templates")
	}
	if err := p.close(); err != nil {
		return nil, err
	}
	p.loops++
	out.body, err = p.body("else", "endfor")
	p.loops--
	if err != nil {
		return nil, err
	}
	if p.take(tokenName, "else") {
		out.otherwise, err = p.block("endfor")
		return out, err
	}
	return out, p.end("endfor")
}

// target parses names to assign to: a, b, ns.c.
func (p *parser) target() (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var items []expr
	tuple := false
	for {
		var item expr
		if p.take(tokenOperator, "(") {
			inner, err := p.target()
			if err != nil {
				return nil, err
			}
			if err := p.want(tokenOperator, ")"); err != nil {
				return nil, err
			}
			item = inner
		} else {
			name, err := p.name()
			if err != nil {
				return nil, err
			}
			item = nameExpr{name}
			if p.take(tokenOperator, ".") {
				attribute, err := p.name()
				if err != nil {
					return nil, err
				}
				item = attributeExpr{item, attribute}
			}
		}
		items = append(items, item)
		if !p.take(tokenOperator, ",") {
			break
		}
		tuple = true
		if p.peek().kind != tokenName && !p.is(tokenOperator, "(") {
			break
		}
	}
	if !tuple {
		return items[0], nil
	}
	return listExpr{items, true}, nil
}

func (p *parser) setBlock(line int) (stmt, error) {
	target, err := p.target()
	if err != nil {
		return nil, err
	}
	if p.take(tokenOperator, "=") {
		value, err := p.tuple()
		if err != nil {
			return nil, err
		}
		return setStmt{target, value, line}, p.close()
	}
	var filters []filterCall
	if p.take(tokenOperator, "|") {
		if filters, err = p.filters(); err != nil {
			return nil, err
		}
	}
	body, err := p.block("endset")
	return captureStmt{target, filters, body, line}, err
}

func (p *parser) macroBlock(line int) (stmt, error) {
	name, err := p.name()
	if err != nil {
		return nil, err
	}
	out := &macroStmt{name: name, line: line}
	if err := p.want(tokenOperator, "("); err != nil {
		return nil, err
	}
	for !p.take(tokenOperator, ")") {
		if len(out.parameters) > 0 {
			if err := p.want(tokenOperator, ","); err != nil {
				return nil, err
			}
		}
		var q parameter
		if q.name, err = p.name(); err != nil {
			return nil, err
		}
		if p.take(tokenOperator, "=") {
			if q.value, err = p.expression(); err != nil {
				return nil, err
			}
		}
		out.parameters = append(out.parameters, q)
	}
	loops := p.loops
	p.loops = 0
	out.body, err = p.block("endmacro")
	p.loops = loops
	return out, err
}

func (p *parser) withBlock(line int) (stmt, error) {
	out := blockStmt{line: line}
	for !p.is(tokenClose, "%}") {
		if len(out.names) > 0 {
			if err := p.want(tokenOperator, ","); err != nil {
				return nil, err
			}
		}
		name, err := p.name()
		if err != nil {
			return nil, err
		}
		if err := p.want(tokenOperator, "="); err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		out.names, out.values = append(out.names, name), append(out.values, value)
	}
	var err error
	out.body, err = p.block("endwith")
	return out, err
}
