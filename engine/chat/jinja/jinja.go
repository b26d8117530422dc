// Package jinja runs chat templates: the subset of the Jinja language that checkpoints' templates use, without loaders,
// without attribute access beyond a whitelist, and within limits.
//
// Two needs rule out a general engine. A template comes with a model and is untrusted: it must not run long, grow without
// bound, or reach anything but the values it is given. And what it renders mixes its own control tokens with text that
// users wrote: every string therefore carries the origin of each of its bytes through all operations (see Text), so that
// a tokenizer can tell a turn marker of the template from one that a user typed.
//
// Semantics follow Jinja 3.1 with trim_blocks and lstrip_blocks, the settings of the reference implementation; statements
// and filters outside the subset are refused by name when the template is parsed.
package jinja

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Limits bounds the work of one rendering. Zero fields take the defaults.
type Limits struct {
	Steps  int           // nodes evaluated, and 32 bytes of text or two items handled count as one; default 4,000,000
	Depth  int           // nested blocks, expressions and macro calls; default 100
	Output int           // bytes written, captures included; default 32 MiB
	Time   time.Duration // default 2 s
}

// maxDepth bounds nesting of templates when parsed and of values when compared or printed.
const maxDepth = 100

// maxSource is the longest template that is parsed, in bytes. The longest in use have 20 KB; a byte can become a token of
// the lexer, which takes over a hundred bytes.
const maxSource = 256 << 10

// ErrLimit is wrapped by errors about a rendering that exceeded its limits.
var ErrLimit = errors.New("template exceeds its limits")

// Raised is the error of a template that called raise_exception: the template refuses the conversation.
type Raised struct{ Message string }

// Error is the template's own message.
func (r *Raised) Error() string { return r.Message }

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct{ body []stmt }

// Parse parses a template.
func Parse(source string) (*Template, error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("jinja: template of %d bytes; at most %d are read", len(source), maxSource)
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, fmt.Errorf("jinja: %w", err)
	}
	p := &parser{tokens: tokens}
	body, err := p.body()
	if err != nil {
		return nil, fmt.Errorf("jinja: %w", err)
	}
	return &Template{body}, nil
}

// Render runs the template with the given variables. now is the clock that strftime_now reads.
func (t *Template) Render(ctx context.Context, variables map[string]Value, now time.Time, limits Limits) (Text, error) {
	m := &machine{ctx: ctx, now: now, limits: limits}
	if m.limits.Steps <= 0 {
		m.limits.Steps = 4_000_000
	}
	if m.limits.Depth <= 0 {
		m.limits.Depth = maxDepth
	}
	if m.limits.Output <= 0 {
		m.limits.Output = 32 << 20
	}
	if m.limits.Time <= 0 {
		m.limits.Time = 2 * time.Second
	}
	m.deadline = time.Now().Add(m.limits.Time)
	m.out = &builder{}
	top := &scope{variables: make(map[string]Value, len(variables)+8)}
	for name, v := range variables {
		top.variables[name] = v
	}
	if err := m.run(t.body, top); err != nil {
		return Text{}, fmt.Errorf("jinja: %w", err)
	}
	return m.out.text(), nil
}

// machine is the state of one rendering.
type machine struct {
	ctx      context.Context
	now      time.Time
	limits   Limits
	deadline time.Time
	steps    int // done
	checked  int // steps at the last look at the clock
	depth    int
	written  int // bytes written to any output
	out      *builder
}

// charge counts the work of handling n bytes or items.
func (m *machine) charge(n int) error {
	m.steps += 1 + n/32
	if m.steps > m.limits.Steps {
		return fmt.Errorf("%w: more than %d steps", ErrLimit, m.limits.Steps)
	}
	if m.steps-m.checked >= 1024 {
		m.checked = m.steps
		if err := m.ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(m.deadline) {
			return fmt.Errorf("%w: longer than %v", ErrLimit, m.limits.Time)
		}
	}
	return nil
}

// enter counts a level of nesting; leave undoes it.
func (m *machine) enter() error {
	m.depth++
	if m.depth > m.limits.Depth {
		return fmt.Errorf("%w: nested deeper than %d", ErrLimit, m.limits.Depth)
	}
	return m.charge(0)
}

func (m *machine) leave() { m.depth-- }

// write adds text to the output.
func (m *machine) write(t Text) error {
	m.written += len(t.s)
	if m.written > m.limits.Output {
		return fmt.Errorf("%w: more than %d bytes of output", ErrLimit, m.limits.Output)
	}
	m.out.write(t)
	return m.charge(len(t.s))
}

// capture runs f with an output of its own and returns what it wrote.
func (m *machine) capture(f func() error) (Text, error) {
	outer := m.out
	m.out = &builder{}
	err := f()
	text := m.out.text()
	m.out = outer
	return text, err
}

// scope holds the variables of a block; names it lacks are looked up in the scopes around it.
type scope struct {
	variables map[string]Value
	outer     *scope
}

func (s *scope) inner() *scope { return &scope{outer: s} }

func (s *scope) set(name string, v Value) {
	if s.variables == nil {
		s.variables = make(map[string]Value, 4)
	}
	s.variables[name] = v
}

func (s *scope) get(name string) Value {
	for at := s; at != nil; at = at.outer {
		if v, ok := at.variables[name]; ok {
			return v
		}
	}
	if f, ok := globals[name]; ok {
		return f
	}
	return undefined{name}
}
