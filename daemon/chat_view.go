package daemon

import (
	"encoding/json"
	"strings"

	"covey/engine/route"
	"covey/engine/sample"
	"covey/store"
	"covey/web"
	"covey/web/markdown"
	"covey/web/wire"
)

// thread turns what the store knows into what a page shows. If the last answer runs, its text comes from the turn, and
// at says what of the turn the markup holds.
func (c *chats) thread(conv store.Conversation, messages []store.Message) (chat web.Chat, t *turn, at cursor) {
	chat = web.Chat{ID: conv.ID, Name: conv.Title, Pinned: conv.Pinned, System: conv.System}
	var defaults sample.Params
	if eng, err := c.server.Engine(); err == nil {
		defaults = eng.Defaults()
		chat.Context = eng.Model().Context
	}
	chat.Settings = settingViews(readSettings(conv.Settings), defaults)
	for i, m := range messages {
		view := messageView(m)
		view.Last = i == len(messages)-1
		if m.State == store.StateRunning {
			if running := c.running(m.ID); running != nil {
				t = running
				at = t.view(&view)
			} else {
				view.State, view.Note = web.Stopped, "its end could not be stored"
			}
		}
		if m.Turn != nil && m.Turn.Prompt > 0 {
			chat.Used = m.Turn.Prompt + m.Turn.Generated
		}
		chat.Messages = append(chat.Messages, view)
	}
	return chat, t, at
}

// messageView is a message as the store has it.
func messageView(m store.Message) web.Message {
	view := web.Message{
		ID: m.ID, User: m.Role != store.RoleAssistant, Text: m.Content, Reasoning: m.Reasoning, State: web.MessageState(m.State),
		Note: m.Note, Time: m.Created, Sibling: m.Sibling, Siblings: m.Siblings, Previous: m.Previous, Next: m.Next,
	}
	if view.User {
		return view
	}
	view.HTML = markdown.Render(m.Content)
	if m.Turn != nil && m.Turn.Finish != "" {
		var kept map[string]string
		if json.Unmarshal(m.Turn.Params, &kept) != nil {
			kept = nil
		}
		view.Stats = &web.Stats{
			Prompt: m.Turn.Prompt, Cached: m.Turn.Cached, Generated: m.Turn.Generated, Queue: m.Turn.Queue, Prefill: m.Turn.Prefill,
			Decode: m.Turn.Decode, Bytes: m.Turn.Bytes, Finish: m.Turn.Finish, Seed: kept["seed"], Model: m.Turn.Model,
			Numerics: m.Turn.Numerics, Detail: m.Turn.Generated > 0,
		}
	}
	return view
}

// view fills in the running answer's text and returns the cursor that matches it.
func (t *turn) view(m *web.Message) cursor {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.close()
	closed := 0
	if n := len(t.ends); n > 0 {
		closed = t.ends[n-1]
	}
	m.State = web.Running
	m.Text, m.Reasoning, m.Thought = t.answer.String(), t.reasoning.String(), t.thought
	m.HTML, m.Open = strings.Join(t.blocks, ""), t.answer.String()[closed:]
	m.Tokens, m.Blocks, m.Bytes, m.ReasoningBytes = len(t.tokens), len(t.blocks), t.answer.Len(), t.reasoning.Len()
	return cursor{tokens: len(t.tokens), blocks: len(t.blocks), answer: t.answer.Len(), reasoning: t.reasoning.Len(), routed: len(t.tokens), folded: t.thought > 0}
}

// storedTokens reads what the token view shows of an answer that has ended. promptTokens places its tokens: the row
// at position p serves the token at p + 1.
func storedTokens(tokens []store.Token, blob []byte, promptTokens int) (wire.Shape, []generated, error) {
	out := make([]generated, len(tokens))
	for i, t := range tokens {
		out[i] = generated{Token: wire.Token{ID: int(t.ID), Text: t.Text, Logprob: t.Logprob}}
		for _, a := range t.Top {
			out[i].alternatives = append(out[i].alternatives, wire.Alternative{Logprob: a.Logprob, Text: a.Text})
		}
	}
	if len(blob) == 0 {
		return wire.Shape{}, out, nil
	}
	shape, events, err := route.Decode(blob)
	if err != nil {
		return wire.Shape{}, out, err
	}
	for _, e := range events {
		for r := range e.Rows() {
			if at := e.Position + r - (promptTokens - 1); at >= 0 && at < len(out) {
				out[at].ids, out[at].weights = e.Row(shape, r)
			}
		}
	}
	return wire.Shape{Layers: shape.Layers, Experts: shape.Experts, TopK: shape.TopK}, out, nil
}
