package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"covey/engine"
	"covey/engine/chat"
	"covey/engine/chat/jinja"
	"covey/engine/sample"
	"covey/engine/tokenizer"
)

const apiTools = 128 // function definitions of one request

// chatAnswer is the body of a whole answer, and of each event of a streamed one.
type chatAnswer struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	Model       string       `json:"model"`
	Fingerprint string       `json:"system_fingerprint"`
	Choices     []chatChoice `json:"choices"`
	Usage       *apiUsage    `json:"usage,omitempty"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      *chatReply    `json:"message,omitempty"` // of a whole answer
	Delta        *chatDelta    `json:"delta,omitempty"`   // of an event
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

type chatReply struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"` // null when there are only tool calls
	Refusal   *string    `json:"refusal"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []chatCall `json:"tool_calls,omitempty"`
}

type chatDelta struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []chatCall `json:"tool_calls,omitempty"`
}

type chatCall struct {
	Index    *int   `json:"index,omitempty"` // in events
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"` // JSON text
	} `json:"function"`
}

type chatLogprobs struct {
	Content []chatLogprob `json:"content"`
	Refusal []chatLogprob `json:"refusal"` // always null
}

type chatLogprob struct {
	Token   string        `json:"token"`
	Logprob float32       `json:"logprob"`
	Bytes   []int         `json:"bytes"`
	Top     []chatLogprob `json:"top_logprobs,omitzero"`
}

func newLogprob(tok *tokenizer.Tokenizer, l sample.Logprob) chatLogprob {
	raw := tok.Bytes(l.ID)
	entry := chatLogprob{Token: strings.ToValidUTF8(string(raw), "\uFFFD"), Logprob: l.Logprob, Bytes: make([]int, len(raw))}
	for i, b := range raw {
		entry.Bytes[i] = int(b)
	}
	return entry
}

// logprob is the entry of an answer token with its alternatives.
func logprob(tok *tokenizer.Tokenizer, out engine.Output) chatLogprob {
	entry := newLogprob(tok, sample.Logprob{ID: out.Token, Logprob: out.Logprob})
	entry.Top = make([]chatLogprob, 0, len(out.Top))
	for _, t := range out.Top {
		entry.Top = append(entry.Top, newLogprob(tok, t))
	}
	return entry
}

// chatPlan is a checked chat request, ready to run.
type chatPlan struct {
	request engine.Request
	choices int
	prompt  []tokenizer.Segment
	tools   bool
}

// plan checks a request against the model and renders its prompt.
func (q *chatRequest) plan(ctx context.Context, eng *engine.Engine) (chatPlan, error) {
	var p chatPlan
	if err := q.check(); err != nil {
		return p, err
	}
	info, template := eng.Model(), eng.Template()
	var refused *apiError
	if p.request, p.choices, refused = q.request(eng.Defaults(), info.Vocab, info.Context, randomSeed()); refused != nil {
		return p, refused
	}
	if p.request.Logprobs, refused = q.alternatives(); refused != nil {
		return p, refused
	}
	if template == nil {
		return p, &apiError{http.StatusBadRequest, "messages", problem(KindUsage, "unsupported_parameter", "use /v1/completions", nil, "this model has no chat template")}
	}
	tools, err := q.tools(template)
	if err != nil {
		return p, err
	}
	p.tools = len(tools) > 0
	p.prompt, err = template.Render(ctx, q.conversation(), chat.Options{AddGenerationPrompt: true, Tools: tools, Extra: q.TemplateOptions})
	var raised *jinja.Raised
	switch {
	case errors.As(err, &raised):
		return p, badParam("messages", "the model's chat template refuses them: %v", raised)
	case err != nil:
		return p, badParam("messages", "%v", err)
	}
	n := 0
	for _, segment := range p.prompt {
		n += len(segment.Text)
	}
	if err := checkBytes(n, info.Context, "messages"); err != nil {
		return p, err
	}
	if p.request.Prompt, err = eng.Tokenizer().EncodeSegments(p.prompt, false); err != nil {
		return p, badParam("messages", "%v", err)
	}
	return p, fit(&p.request, info.Context, "messages")
}

// conversation is the messages as templates know them.
func (q *chatRequest) conversation() []chat.Message {
	messages := make([]chat.Message, len(q.Messages))
	for i, m := range q.Messages {
		role := m.Role
		if role == "developer" {
			role = "system"
		}
		messages[i] = chat.Message{Role: role, Content: m.Content.Text, Reasoning: m.Reasoning, ToolCallID: m.ToolCallID, Name: m.Name}
		for _, c := range m.ToolCalls {
			arguments, _ := json.Marshal(c.Function.Arguments) // a string always encodes
			messages[i].ToolCalls = append(messages[i].ToolCalls, chat.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: arguments})
		}
	}
	return messages
}

// tools are the definitions that the model is shown: none when the client chose none.
func (q *chatRequest) tools(template *chat.Template) ([]json.RawMessage, error) {
	if given(q.ToolChoice) {
		var choice string
		if decodeJSON(q.ToolChoice, &choice) != nil || choice != "auto" && choice != "none" {
			return nil, unsupported("tool_choice", "only \"auto\" and \"none\" are supported: the answer cannot be forced into a call")
		}
		if choice == "none" {
			return nil, nil
		}
	}
	if !given(q.Tools) {
		return nil, nil
	}
	var tools []json.RawMessage
	if decodeJSON(q.Tools, &tools) != nil {
		return nil, badParam("tools", "it is not a list")
	}
	if len(tools) > apiTools {
		return nil, badParam("tools", "%d are more than %d", len(tools), apiTools)
	}
	for i, raw := range tools {
		var tool struct {
			Type     string `json:"type"`
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		if decodeJSON(raw, &tool) != nil || tool.Type != "function" || tool.Function.Name == "" {
			return nil, badParam(fmt.Sprintf("tools[%d]", i), "it is not {\"type\": \"function\", \"function\": {\"name\": ...}}")
		}
	}
	if len(tools) > 0 && template.Format(true).Calls == chat.CallsNone {
		return nil, unsupported("tools", "the chat template of this model knows none")
	}
	return tools, nil
}

func (s *Server) serveChatCompletion(w http.ResponseWriter, r *http.Request) {
	var q chatRequest
	eng, ok := s.readAPI(w, r, &q, &q.Model)
	if !ok {
		return
	}
	release, err := s.acquire()
	if err != nil {
		refuseAPI(w, err)
		return
	}
	defer release()
	plan, err := q.plan(r.Context(), eng)
	if err != nil {
		refuseAPI(w, err)
		return
	}
	info := eng.Model()
	head := chatAnswer{ID: newID("chatcmpl-"), Object: "chat.completion", Created: time.Now().Unix(), Model: info.ID, Fingerprint: fingerprint(info)}
	if q.Stream {
		head.Object = "chat.completion.chunk"
		s.streamChat(w, r, eng, plan, head, q.StreamOptions != nil && q.StreamOptions.IncludeUsage)
		return
	}
	head.Choices, head.Usage = make([]chatChoice, plan.choices), &apiUsage{}
	answers := make([]*collector, plan.choices)
	for i := range answers {
		answers[i] = newCollector(eng, plan)
	}
	err = s.generate(r.Context(), eng, plan.request, plan.choices, func() error { return nil }, func(c choiceOutput) error {
		a := answers[c.choice]
		if c.result != nil {
			head.Usage.add(c.result)
			a.take(a.reply.Close())
			head.Choices[c.choice] = a.choice(c.choice, c.result.Finish)
		} else if c.output.Kind == engine.KindToken {
			a.take(a.reply.Push(c.output.Text))
			a.count(c.output)
		}
		return nil
	})
	if err != nil {
		refuseAPI(w, err)
		return
	}
	writeJSON(w, http.StatusOK, head)
}

// collector gathers one choice.
type collector struct {
	reply              *chat.Reply
	tokenizer          *tokenizer.Tokenizer
	content, reasoning strings.Builder
	calls              []chatCall
	logprobs           *chatLogprobs // nil = not asked for
}

func newCollector(eng *engine.Engine, p chatPlan) *collector {
	c := &collector{reply: eng.Template().Reply(p.prompt, p.tools), tokenizer: eng.Tokenizer()}
	if p.request.Logprobs >= 0 {
		c.logprobs = &chatLogprobs{Content: []chatLogprob{}}
	}
	return c
}

// take adds parts of the answer.
func (c *collector) take(parts []chat.Part) {
	for _, part := range parts {
		switch part.Kind {
		case chat.PartText:
			c.content.WriteString(part.Text)
		case chat.PartReasoning:
			c.reasoning.WriteString(part.Text)
		case chat.PartCall:
			c.calls = append(c.calls, newCall(part.Call))
		}
	}
}

func (c *collector) count(out engine.Output) {
	if c.logprobs != nil {
		c.logprobs.Content = append(c.logprobs.Content, logprob(c.tokenizer, out))
	}
}

// choice is the gathered answer.
func (c *collector) choice(index int, finish string) chatChoice {
	message := &chatReply{Role: "assistant", Reasoning: c.reasoning.String(), ToolCalls: c.calls}
	if content := c.content.String(); content != "" || len(c.calls) == 0 {
		message.Content = &content
	}
	finish = finishReason(finish, len(c.calls))
	return chatChoice{Index: index, Message: message, Logprobs: c.logprobs, FinishReason: &finish}
}

// finishReason is OpenAI's word for the end of an answer.
func finishReason(finish string, calls int) string {
	if finish == engine.FinishStop && calls > 0 {
		return "tool_calls"
	}
	return finish // stop and length are the same words
}

func newCall(c chat.ToolCall) chatCall {
	call := chatCall{ID: c.ID, Type: "function"}
	if call.ID == "" {
		call.ID = newID("call_")
	}
	call.Function.Name, call.Function.Arguments = c.Name, string(c.Arguments)
	return call
}

// streamChat sends the answer as events while it is generated.
func (s *Server) streamChat(w http.ResponseWriter, r *http.Request, eng *engine.Engine, plan chatPlan, head chatAnswer, withUsage bool) {
	var events *eventStream
	var usage apiUsage
	send := func(c chatChoice) error {
		head.Choices = []chatChoice{c}
		return events.send(head)
	}
	replies := make([]*chat.Reply, plan.choices)
	calls := make([]int, plan.choices)
	accepted := func() error {
		events = newEventStream(w)
		for i := range replies {
			replies[i] = eng.Template().Reply(plan.prompt, plan.tools)
			empty := ""
			if err := send(chatChoice{Index: i, Delta: &chatDelta{Role: "assistant", Content: &empty}}); err != nil {
				return err
			}
		}
		return nil
	}
	// sendParts sends parts in one event; logprobs make an event even without any.
	sendParts := func(i int, parts []chat.Part, logprobs *chatLogprobs) error {
		delta := &chatDelta{}
		var content string
		for _, part := range parts {
			switch part.Kind {
			case chat.PartText:
				content += part.Text
			case chat.PartReasoning:
				delta.Reasoning += part.Text
			case chat.PartCall:
				call, index := newCall(part.Call), calls[i]
				call.Index = &index
				delta.ToolCalls = append(delta.ToolCalls, call)
				calls[i]++
			}
		}
		if content != "" {
			delta.Content = &content
		}
		if len(parts) == 0 && logprobs == nil {
			return nil
		}
		return send(chatChoice{Index: i, Delta: delta, Logprobs: logprobs})
	}
	err := s.generate(r.Context(), eng, plan.request, plan.choices, accepted, func(c choiceOutput) error {
		if c.result != nil {
			usage.add(c.result)
			if err := sendParts(c.choice, replies[c.choice].Close(), nil); err != nil {
				return err
			}
			finish := finishReason(c.result.Finish, calls[c.choice])
			return send(chatChoice{Index: c.choice, Delta: &chatDelta{}, FinishReason: &finish})
		}
		if c.output.Kind != engine.KindToken {
			return nil
		}
		var logprobs *chatLogprobs
		if plan.request.Logprobs >= 0 {
			logprobs = &chatLogprobs{Content: []chatLogprob{logprob(eng.Tokenizer(), c.output)}}
		}
		return sendParts(c.choice, replies[c.choice].Push(c.output.Text), logprobs)
	})
	if events == nil {
		refuseAPI(w, err)
		return
	}
	defer events.close()
	if err != nil {
		events.fail(err)
		return
	}
	if withUsage {
		head.Choices, head.Usage = []chatChoice{}, &usage
		if events.send(head) != nil {
			return
		}
	}
	events.done() // the client is gone if this fails
}
