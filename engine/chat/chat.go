// Package chat turns conversations into prompts and answers back into messages.
//
// A checkpoint brings a chat template; Template renders it over messages and tools into segments that say which text is the
// template's own and which came from outside, for tokenizer.EncodeSegments. A Reply splits a streamed answer into its
// reasoning, its visible text and its tool calls, by the conventions that the template shows.
package chat

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"

	"covey/engine/chat/jinja"
	"covey/engine/jsonfault"
	"covey/engine/side"
	"covey/engine/tokenizer"
)

// Message is one turn of a conversation.
type Message struct {
	Role       string // "system", "user", "assistant", "tool" or what else the template knows
	Content    string
	Reasoning  string     // the assistant's reasoning before Content; "" = none
	ToolCalls  []ToolCall // calls that the assistant made
	ToolCallID string     // role "tool": the call that this answers
	Name       string     // role "tool": the function's name; "" = not given
}

// ToolCall is a call of a function by the assistant.
type ToolCall struct {
	ID        string
	Name      string
	Arguments json.RawMessage // an object, or a JSON string that holds one; anything else is given to the template as text
}

// Options of one rendering.
type Options struct {
	AddGenerationPrompt bool              // end with the beginning of an answer
	Tools               []json.RawMessage // function definitions, {"type": "function", "function": {...}} each
	Extra               map[string]any    // further variables, such as enable_thinking; values as encoding/json decodes them
	Now                 time.Time         // the clock the template sees; zero = the present
	Limits              jinja.Limits      // zero = defaults
}

// ErrNoTemplate is returned for a checkpoint that has no chat template: it continues text and has no turns.
var ErrNoTemplate = errors.New("the model has no chat template")

// maxFile is the largest configuration file that is read.
const maxFile = 4 << 20

// Template is a checkpoint's chat template. It is immutable and safe for concurrent use.
type Template struct {
	named     map[string]*variant
	variables map[string]jinja.Value // bos_token and its kind
}

// variant is one named template.
type variant struct {
	source   string
	template *jinja.Template
	nones    bool // tells a missing content (none) from an empty one
	format   Format
}

// Load reads the chat template of the model folder dir.
func Load(dir string) (*Template, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	defer root.Close()
	return LoadFS(root.FS())
}

// LoadFS reads the chat template of a model folder: chat_template.jinja if there is one, else tokenizer_config.json's
// chat_template, which is a text or a list of named texts. The error wraps ErrNoTemplate when there is none.
func LoadFS(fsys fs.FS) (*Template, error) {
	var config map[string]json.RawMessage
	text, err := side.Read(fsys, "tokenizer_config.json", maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("chat: %w", err)
	default:
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			return nil, fmt.Errorf("chat: tokenizer_config.json: %w; download it again", jsonfault.Plain(err))
		}
	}
	sources, err := templateSources(config["chat_template"])
	if err != nil {
		return nil, err
	}
	source, err := side.Read(fsys, "chat_template.jinja", maxFile)
	switch {
	case err == nil:
		sources["default"] = source
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("chat: %w", err)
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("chat: %w; prompts can be given as plain text", ErrNoTemplate)
	}
	return New(sources, specialTokens(config))
}

// templateSources reads the chat_template entry.
func templateSources(raw json.RawMessage) (map[string]string, error) {
	sources := make(map[string]string)
	if len(raw) == 0 || string(raw) == "null" {
		return sources, nil
	}
	var single string
	if json.Unmarshal(raw, &single) == nil {
		sources["default"] = single
		return sources, nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("chat: tokenizer_config.json: chat_template is neither a text nor a list of named texts: %w", jsonfault.Plain(err))
	}
	for _, t := range list {
		sources[t.Name] = t.Template
	}
	return sources, nil
}

// specialTokens reads the entries bos_token, eos_token and so on: a text, or an object with content.
func specialTokens(config map[string]json.RawMessage) map[string]string {
	out := make(map[string]string)
	for name, raw := range config {
		if !strings.HasSuffix(name, "_token") {
			continue
		}
		var text string
		var object struct{ Content string }
		if json.Unmarshal(raw, &text) != nil {
			if json.Unmarshal(raw, &object) != nil {
				continue
			}
			text = object.Content
		}
		if text != "" {
			out[name] = text
		}
	}
	return out
}

// New builds a Template from sources by name, of which "default" is required, and from the special tokens that it may
// name as variables, such as bos_token.
func New(sources, specialTokens map[string]string) (*Template, error) {
	t := &Template{named: make(map[string]*variant), variables: make(map[string]jinja.Value)}
	for name, source := range sources {
		parsed, err := jinja.Parse(source)
		if err != nil {
			return nil, fmt.Errorf("chat: template %q: %w", name, err)
		}
		t.named[name] = &variant{source, parsed, contentIsNone.MatchString(source), formatOf(source)}
	}
	if t.named["default"] == nil {
		return nil, fmt.Errorf(`chat: no template is named "default"`)
	}
	for name, text := range specialTokens {
		t.variables[name] = jinja.Trusted(text)
	}
	return t, nil
}

// contentIsNone finds templates that tell a message without content from one with an empty content.
var contentIsNone = regexp.MustCompile(`content['"]?\]?\s+is\s+(not\s+)?none`)

// Source is the text of the template in use when tools are given or not, to be shown to the user.
func (t *Template) Source(tools bool) string { return t.variant(tools).source }

// Hash is the hex SHA-256 of the default template's source.
func (t *Template) Hash() string {
	sum := sha256.Sum256([]byte(t.named["default"].source))
	return hex.EncodeToString(sum[:])
}

// variant is the template for a conversation with tools or without.
func (t *Template) variant(tools bool) *variant {
	if v := t.named["tool_use"]; tools && v != nil {
		return v
	}
	return t.named["default"]
}

// roles that templates put into their markers; other roles are text like any other.
var roles = map[string]bool{
	"system": true, "user": true, "assistant": true, "tool": true, "developer": true, "function": true, "ipython": true,
	"observation": true,
}

// Render renders a conversation. Text of messages, tools and Extra is untrusted in the result; everything that the
// template writes itself is trusted, special tokens of the checkpoint included, so that encoding must not add them again.
// A template that refuses the conversation gives a *jinja.Raised with its own words. Templates know no unknown role: a
// role outside the usual ones stays untrusted text.
func (t *Template) Render(ctx context.Context, messages []Message, o Options) ([]tokenizer.Segment, error) {
	v := t.variant(len(o.Tools) > 0)
	variables, err := t.bind(v, messages, o)
	if err != nil {
		return nil, err
	}
	now := o.Now
	if now.IsZero() {
		now = time.Now()
	}
	text, err := v.template.Render(ctx, variables, now, o.Limits)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	var out []tokenizer.Segment
	text.Runs(func(part string, trusted bool) {
		out = append(out, tokenizer.Segment{Text: part, Trusted: trusted})
	})
	return out, nil
}

// bind makes the template's variables.
func (t *Template) bind(v *variant, messages []Message, o Options) (map[string]jinja.Value, error) {
	variables := make(map[string]jinja.Value, len(t.variables)+len(o.Extra)+4)
	for name, value := range o.Extra {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("chat: variable %q: %w", name, err)
		}
		if variables[name], err = jinja.FromJSON(data); err != nil {
			return nil, fmt.Errorf("chat: variable %q: %w", name, err)
		}
	}
	for name, value := range t.variables {
		variables[name] = value
	}
	list := jinja.NewList()
	for i := range messages {
		list.Append(messageValue(&messages[i], v.nones))
	}
	variables["messages"] = list
	variables["add_generation_prompt"] = o.AddGenerationPrompt
	variables["tools"] = nil
	if len(o.Tools) > 0 {
		tools := jinja.NewList()
		for i, raw := range o.Tools {
			tool, err := jinja.FromJSON(raw)
			if err != nil {
				return nil, fmt.Errorf("chat: tool %d: %w", i, err)
			}
			tools.Append(tool)
		}
		variables["tools"] = tools
	}
	return variables, nil
}

// messageValue is a message as templates expect it. nones gives an assistant that only calls tools the content none.
func messageValue(m *Message, nones bool) jinja.Value {
	d := jinja.NewDict()
	if roles[m.Role] {
		d.Set("role", jinja.Trusted(m.Role))
	} else {
		d.Set("role", jinja.Untrusted(m.Role))
	}
	if m.Content == "" && len(m.ToolCalls) > 0 && nones {
		d.Set("content", nil)
	} else {
		d.Set("content", jinja.Untrusted(m.Content))
	}
	if m.Reasoning != "" {
		d.Set("reasoning_content", jinja.Untrusted(m.Reasoning))
	}
	if len(m.ToolCalls) > 0 {
		calls := jinja.NewList()
		for i := range m.ToolCalls {
			calls.Append(callValue(&m.ToolCalls[i]))
		}
		d.Set("tool_calls", calls)
	}
	if m.ToolCallID != "" {
		d.Set("tool_call_id", jinja.Untrusted(m.ToolCallID))
	}
	if m.Name != "" {
		d.Set("name", jinja.Untrusted(m.Name))
	}
	return d
}

// callValue is a tool call with its arguments as a mapping where they are one.
func callValue(c *ToolCall) jinja.Value {
	raw := c.Arguments
	var inner string
	if json.Unmarshal(raw, &inner) == nil {
		raw = json.RawMessage(inner)
	}
	arguments, err := jinja.FromJSON(raw)
	if _, ok := arguments.(*jinja.Dict); err != nil || !ok {
		arguments = jinja.Untrusted(string(raw))
	}
	if len(raw) == 0 {
		arguments = jinja.NewDict()
	}
	function := jinja.NewDict()
	function.Set("name", jinja.Untrusted(c.Name))
	function.Set("arguments", arguments)
	d := jinja.NewDict()
	if c.ID != "" {
		d.Set("id", jinja.Untrusted(c.ID))
	}
	d.Set("type", jinja.Trusted("function"))
	d.Set("function", function)
	return d
}

// Text joins segments, for showing a prompt.
func Text(segments []tokenizer.Segment) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteString(s.Text)
	}
	return b.String()
}
