package daemon

// The Anthropic-compatible HTTP API: POST /v1/messages, whole or streamed, and its token count. A request is translated
// into the chat request of openai_request.go, so that limits, templates, tools and refusals are the same; only the
// shapes of the answer differ.

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"covey/engine"
	"covey/engine/chat"
)

func (s *Server) mountAnthropic() {
	s.pageWithBody("POST /v1/messages", apiBody, s.serveMessages)
	s.pageWithBody("POST /v1/messages/count_tokens", apiBody, s.serveCountTokens)
}

// messagesRequest is the body of POST /v1/messages.
type messagesRequest struct {
	Model       string           `json:"model"`
	MaxTokens   *int             `json:"max_tokens"`
	System      messageContent   `json:"system"`
	Messages    []messagesTurn   `json:"messages"`
	Stops       []string         `json:"stop_sequences"`
	Stream      bool             `json:"stream"`
	Temperature *float64         `json:"temperature"`
	TopP        *float64         `json:"top_p"`
	TopK        *int             `json:"top_k"`
	Tools       []messagesTool   `json:"tools"`
	ToolChoice  *messagesChoice  `json:"tool_choice"`
	Thinking    *messagesChoice  `json:"thinking"`
	Container   json.RawMessage  `json:"container"`
	MCPServers  json.RawMessage  `json:"mcp_servers"`
	Format      json.RawMessage  `json:"output_format"`
	Management  *json.RawMessage `json:"context_management"`
}

type messagesTurn struct {
	Role    string         `json:"role"`
	Content messageContent `json:"content"`
}

type messagesTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"input_schema"`
}

// messagesChoice is an object of which only the type matters here.
type messagesChoice struct {
	Type string `json:"type"`
}

// messageContent is a string or a list of blocks.
type messageContent []messageBlock

type messageBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text,omitempty"`
	Thinking  string          `json:"thinking,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   messageContent  `json:"content,omitempty"` // of a tool_result
}

func (c *messageContent) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		*c = messageContent{{Type: "text"}}
		return decodeJSON(b, &(*c)[0].Text)
	}
	return decodeJSON(b, (*[]messageBlock)(c))
}

// text joins the text blocks; another block is refused.
func (c messageContent) text(param string) (string, *apiError) {
	var text strings.Builder
	for _, b := range c {
		if b.Type != "text" {
			return "", unsupported(param, fmt.Sprintf("a block is of type %q; only text is read here", clip(b.Type, 50)))
		}
		text.WriteString(b.Text)
	}
	return text.String(), nil
}

// translate makes the equal chat request.
func (q *messagesRequest) translate() (*chatRequest, *apiError) {
	for _, refused := range []struct {
		name string
		raw  json.RawMessage
	}{{"container", q.Container}, {"mcp_servers", q.MCPServers}, {"output_format", q.Format}} {
		if given(refused.raw) {
			return nil, unsupported(refused.name, "")
		}
	}
	if q.Management != nil && given(*q.Management) {
		return nil, unsupported("context_management", "")
	}
	if q.Thinking != nil && q.Thinking.Type != "disabled" {
		return nil, unsupported("thinking", "a model that reasons does so by its template")
	}
	if q.MaxTokens == nil {
		return nil, badParam("max_tokens", "it is missing")
	}
	out := &chatRequest{apiRequest: apiRequest{
		Model: q.Model, Stream: q.Stream, MaxTokens: q.MaxTokens, Temperature: q.Temperature, TopP: q.TopP, TopK: q.TopK, Stop: q.Stops,
	}}
	system, refused := q.System.text("system")
	if refused != nil {
		return nil, refused
	}
	if system != "" {
		out.Messages = append(out.Messages, chatMessage{Role: "system", Content: chatContent{Text: system}})
	}
	for i, m := range q.Messages {
		messages, refused := m.translate(fmt.Sprintf("messages[%d]", i))
		if refused != nil {
			return nil, refused
		}
		out.Messages = append(out.Messages, messages...)
	}
	if q.ToolChoice != nil {
		out.ToolChoice, _ = json.Marshal(q.ToolChoice.Type) // a string always encodes; tools refuses what is neither auto nor none
	}
	return out, q.translateTools(out)
}

func (q *messagesRequest) translateTools(out *chatRequest) *apiError {
	var tools []any
	for i, t := range q.Tools {
		if t.Type != "" && t.Type != "custom" {
			return unsupported(fmt.Sprintf("tools[%d]", i), fmt.Sprintf("the tool %q runs at its provider; Covey has none", clip(t.Type, 50)))
		}
		if len(t.Schema) == 0 {
			return badParam(fmt.Sprintf("tools[%d].input_schema", i), "it is missing")
		}
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{"name": t.Name, "description": t.Description, "parameters": t.Schema}})
	}
	if len(tools) > 0 {
		out.Tools, _ = json.Marshal(tools) // strings and checked JSON always encode
	}
	return nil
}

// translate splits a turn: results of tools become messages of their own, before the text beside them.
func (m messagesTurn) translate(param string) ([]chatMessage, *apiError) {
	if m.Role != "user" && m.Role != "assistant" {
		return nil, badParam(param+".role", "%q is not user or assistant", clip(m.Role, 50))
	}
	var out []chatMessage
	own := chatMessage{Role: m.Role}
	for j, b := range m.Content {
		switch {
		case b.Type == "text":
			own.Content.Text += b.Text
		case b.Type == "thinking" && m.Role == "assistant":
			own.Reasoning += b.Thinking
		case b.Type == "redacted_thinking" && m.Role == "assistant": // nothing to read
		case b.Type == "tool_use" && m.Role == "assistant":
			call := chatToolCall{ID: b.ID, Type: "function"}
			call.Function.Name, call.Function.Arguments = b.Name, string(b.Input)
			own.ToolCalls = append(own.ToolCalls, call)
		case b.Type == "tool_result" && m.Role == "user":
			text, refused := b.Content.text(fmt.Sprintf("%s.content[%d].content", param, j))
			if refused != nil {
				return nil, refused
			}
			out = append(out, chatMessage{Role: "tool", ToolCallID: b.ToolUseID, Content: chatContent{Text: text}})
		default:
			return nil, unsupported(fmt.Sprintf("%s.content[%d]", param, j), fmt.Sprintf("a block of type %q in a message of role %s", clip(b.Type, 50), m.Role))
		}
	}
	if len(out) == 0 || own.Content.Text != "" {
		out = append(out, own)
	}
	return out, nil
}

// messagesAnswer is a whole answer, and the beginning of a streamed one.
type messagesAnswer struct {
	ID           string         `json:"id"`
	Type         string         `json:"type"`
	Role         string         `json:"role"`
	Model        string         `json:"model"`
	Content      []messageBlock `json:"content"`
	StopReason   *string        `json:"stop_reason"`
	StopSequence *string        `json:"stop_sequence"`
	Usage        messagesUsage  `json:"usage"`
}

type messagesUsage struct {
	Input  int `json:"input_tokens"` // those that were read, the cached ones excluded
	Cached int `json:"cache_read_input_tokens"`
	Output int `json:"output_tokens"`
}

func newMessagesUsage(r *engine.Result) messagesUsage {
	return messagesUsage{Input: r.PromptTokens - r.CachedTokens, Cached: r.CachedTokens, Output: len(r.Tokens)}
}

// stopReason is Anthropic's word for the end of an answer, with the stop text that ended it.
func stopReason(r *engine.Result, calls int) (reason string, sequence *string) {
	switch {
	case r.Finish == engine.FinishLength:
		return "max_tokens", nil
	case r.Stop != "":
		return "stop_sequence", &r.Stop
	case calls > 0:
		return "tool_use", nil
	}
	return "end_turn", nil
}

// readMessages decodes, checks and renders a request; it refuses and returns false when that fails.
func (s *Server) readMessages(w http.ResponseWriter, r *http.Request, counting bool) (eng *engine.Engine, q *messagesRequest, plan chatPlan, ok bool) {
	q = &messagesRequest{}
	if eng, ok = s.readAPI(w, r, q, &q.Model); !ok {
		return nil, nil, plan, false
	}
	err := func() error {
		if counting && q.MaxTokens == nil {
			q.MaxTokens = new(1)
		}
		translated, refused := q.translate()
		if refused != nil {
			return refused
		}
		var err error
		plan, err = translated.plan(r.Context(), eng)
		return err
	}()
	if err != nil {
		refuseAPI(w, err)
	}
	return eng, q, plan, err == nil
}

func (s *Server) serveCountTokens(w http.ResponseWriter, r *http.Request) {
	if _, _, plan, ok := s.readMessages(w, r, true); ok {
		writeJSON(w, http.StatusOK, map[string]int{"input_tokens": len(plan.request.Prompt)})
	}
}

func (s *Server) serveMessages(w http.ResponseWriter, r *http.Request) {
	release, err := s.acquire()
	if err != nil {
		refuseAPI(w, err)
		return
	}
	defer release()
	eng, q, plan, ok := s.readMessages(w, r, false)
	if !ok {
		return
	}
	answer := messagesAnswer{ID: newID("msg_"), Type: "message", Role: "assistant", Model: eng.Model().ID, Content: []messageBlock{}}
	if q.Stream {
		s.streamMessages(w, r, eng, plan, answer)
		return
	}
	a := newCollector(eng, plan)
	err = s.generate(r.Context(), eng, plan.request, 1, func() error { return nil }, func(c choiceOutput) error {
		if c.result == nil {
			if c.output.Kind == engine.KindToken {
				a.take(a.reply.Push(c.output.Text))
			}
			return nil
		}
		a.take(a.reply.Close())
		answer.Usage = newMessagesUsage(c.result)
		reason, sequence := stopReason(c.result, len(a.calls))
		answer.StopReason, answer.StopSequence = &reason, sequence
		return nil
	})
	if err != nil {
		refuseAPI(w, err)
		return
	}
	if a.reasoning.Len() > 0 {
		answer.Content = append(answer.Content, messageBlock{Type: "thinking", Thinking: a.reasoning.String()})
	}
	if a.content.Len() > 0 {
		answer.Content = append(answer.Content, messageBlock{Type: "text", Text: a.content.String()})
	}
	for _, call := range a.calls {
		answer.Content = append(answer.Content, messageBlock{Type: "tool_use", ID: call.ID, Name: call.Function.Name, Input: object(call.Function.Arguments)})
	}
	writeJSON(w, http.StatusOK, answer)
}

// object is arguments as the JSON object that tool_use wants; a model may have written something else.
func object(arguments string) json.RawMessage {
	var fields map[string]json.RawMessage
	if decodeJSON([]byte(arguments), &fields) == nil && fields != nil {
		return json.RawMessage(arguments)
	}
	wrapped, _ := json.Marshal(map[string]string{"arguments": arguments}) // strings always encode
	return wrapped
}

// messagesStream writes the events of one answer: blocks one after another, each begun, filled and ended.
type messagesStream struct {
	events *eventStream
	open   string // type of the block under way; "" = none
	index  int    // of that block, or of the next
	calls  int
}

type (
	messagesEvent struct {
		Type    string          `json:"type"`
		Message *messagesAnswer `json:"message,omitempty"`
		Index   *int            `json:"index,omitempty"`
		Block   map[string]any  `json:"content_block,omitempty"`
		Delta   map[string]any  `json:"delta,omitempty"`
		Usage   *messagesUsage  `json:"usage,omitempty"`
	}
)

func (m *messagesStream) send(e messagesEvent) error { return m.events.sendNamed(e.Type, e) }

// begin opens a block of a type, closing another one.
func (m *messagesStream) begin(kind string, block map[string]any) error {
	if m.open == kind && kind != "tool_use" {
		return nil
	}
	if err := m.end(); err != nil {
		return err
	}
	m.open = kind
	block["type"] = kind
	return m.send(messagesEvent{Type: "content_block_start", Index: new(m.index), Block: block})
}

func (m *messagesStream) delta(delta map[string]any) error {
	return m.send(messagesEvent{Type: "content_block_delta", Index: new(m.index), Delta: delta})
}

// end closes the block under way, if any.
func (m *messagesStream) end() error {
	if m.open == "" {
		return nil
	}
	m.open = ""
	m.index++
	return m.send(messagesEvent{Type: "content_block_stop", Index: new(m.index - 1)})
}

// part sends a part of the answer as its block's delta.
func (m *messagesStream) part(p chat.Part) error {
	var err error
	switch p.Kind {
	case chat.PartText:
		if err = m.begin("text", map[string]any{"text": ""}); err == nil {
			err = m.delta(map[string]any{"type": "text_delta", "text": p.Text})
		}
	case chat.PartReasoning:
		if err = m.begin("thinking", map[string]any{"thinking": "", "signature": ""}); err == nil {
			err = m.delta(map[string]any{"type": "thinking_delta", "thinking": p.Text})
		}
	case chat.PartCall:
		call := newCall(p.Call)
		m.calls++
		if err = m.begin("tool_use", map[string]any{"id": call.ID, "name": call.Function.Name, "input": map[string]any{}}); err == nil {
			err = m.delta(map[string]any{"type": "input_json_delta", "partial_json": string(object(call.Function.Arguments))})
		}
	}
	return err
}

func (m *messagesStream) parts(parts []chat.Part) error {
	for _, p := range parts {
		if err := m.part(p); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) streamMessages(w http.ResponseWriter, r *http.Request, eng *engine.Engine, plan chatPlan, answer messagesAnswer) {
	var m messagesStream
	reply := eng.Template().Reply(plan.prompt, plan.tools)
	accepted := func() error {
		m.events = newEventStream(w)
		answer.Usage.Input = len(plan.request.Prompt)
		return m.send(messagesEvent{Type: "message_start", Message: &answer})
	}
	err := s.generate(r.Context(), eng, plan.request, 1, accepted, func(c choiceOutput) error {
		if c.result == nil {
			if c.output.Kind != engine.KindToken {
				return nil
			}
			return m.parts(reply.Push(c.output.Text))
		}
		if err := m.parts(reply.Close()); err != nil {
			return err
		}
		if err := m.end(); err != nil {
			return err
		}
		reason, sequence := stopReason(c.result, m.calls)
		usage := newMessagesUsage(c.result)
		err := m.send(messagesEvent{Type: "message_delta", Delta: map[string]any{"stop_reason": reason, "stop_sequence": sequence}, Usage: &usage})
		if err != nil {
			return err
		}
		return m.send(messagesEvent{Type: "message_stop"})
	})
	if m.events == nil {
		refuseAPI(w, err)
		return
	}
	defer m.events.close()
	if err != nil {
		m.events.fail(err)
	}
}
