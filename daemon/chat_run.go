package daemon

// The life of a turn: the store begins it, the engine runs it, checkpoints keep what there is, the store ends it.

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"time"

	"covey/engine"
	"covey/engine/chat"
	"covey/engine/route"
	"covey/store"
	"covey/web"
	"covey/web/wire"
)

const (
	checkpointEvery = time.Second
	alternatives    = 5               // other tokens kept for the token view
	finishPatience  = 4 * time.Second // how long the end of a turn is offered to a store that cannot write, while viewers wait
	finishAgain     = 2 * time.Second // how often after that
)

// begin is what is needed to start an answer.
type begin struct {
	conversation store.Conversation
	parent       string          // message that the new messages follow
	text         string          // the person's message; "" = answer parent again
	history      []store.Message // the branch down to the message to be answered, text excluded
	prefix       string          // beginning of the answer, to be continued
	title        string          // given to the conversation if it has none; "" = leave it
}

// start begins an answer and returns its id. What can be refused is refused before anything is stored.
func (c *chats) start(ctx context.Context, b begin) (string, error) {
	eng, err := c.server.Engine()
	if err != nil {
		return "", err
	}
	info := eng.Model()
	options := readSettings(b.conversation.Settings)
	params, seed, err := options.sampling(eng.Defaults())
	if err != nil {
		return "", err
	}
	prompt, reply, err := encodePrompt(ctx, eng, b.conversation.System, b.history, b.text, b.prefix)
	if err != nil {
		return "", err
	}
	if len(prompt) >= info.Context {
		return "", problem(KindInput, "too_long", "delete or shorten messages, or start a new chat", nil,
			"the conversation takes %d tokens and the model's context holds %d", len(prompt), info.Context)
	}
	kept, err := json.Marshal(options.kept(params, seed))
	if err != nil {
		return "", problem(KindInternal, "internal", "", err, "encoding the settings")
	}
	_, answer, err := c.server.store.BeginTurn(ctx, store.NewTurn{
		Conversation: b.conversation.ID, Parent: b.parent, Text: b.text, Model: info.Name, ModelHash: info.Hash, Numerics: info.NumericsID, Params: kept,
	})
	if err != nil {
		return "", stored(err, "the conversation")
	}
	if b.title != "" && b.conversation.Title == "" {
		if err := c.server.store.RenameConversation(ctx, b.conversation.ID, b.title); err != nil {
			c.server.log.Warn("naming a conversation", slog.Any("err", err))
		}
	}
	shape := wire.Shape{Layers: info.Shape.Layers, Experts: info.Shape.Experts, TopK: info.Shape.TopK}
	t := newTurn(b.conversation.ID, answer.ID, shape, b.prefix, func(id int32) string { return tokenText(eng, id) })
	c.mu.Lock()
	c.turns[t.message] = t
	c.mu.Unlock()
	request := engine.Request{
		Prompt: prompt, MaxTokens: min(options.maxTokens(), info.Context-len(prompt)), Sampling: params,
		Logprobs: alternatives, Routing: true, Owner: "chat",
	}
	if !c.server.Go(func(ctx context.Context) { c.run(ctx, eng, t, request, reply) }) {
		c.end(t, store.TurnResult{State: store.StateStopped, Note: "the daemon is stopping", Turn: store.Turn{Finish: engine.FinishCancel}})
	}
	return t.message, nil
}

// run carries a turn through the engine. It returns when the store has the end of it.
func (c *chats) run(ctx context.Context, eng *engine.Engine, t *turn, request engine.Request, reply *chat.Reply) {
	stream, err := eng.Submit(ctx, request)
	if err != nil {
		c.end(t, store.TurnResult{State: store.StateFailed, Note: sentence(engineError(err).Message), Turn: store.Turn{Finish: engine.FinishError, Prompt: len(request.Prompt)}})
		return
	}
	t.submitted(stream.Cancel)
	sent := make(chan struct{})
	go func() { defer close(sent); t.send() }()
	saved := make(chan struct{})
	go func() { defer close(saved); c.checkpoint(t) }()

	for {
		// The engine ends the stream when ctx ends, so reading needs no deadline of its own.
		out, err := stream.Next(context.WithoutCancel(ctx))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			stream.Cancel()
			break
		}
		t.take(out, reply.Push(out.Text))
		t.wake()
	}
	t.mu.Lock()
	t.write(reply.Close())
	t.ended = true
	t.mu.Unlock()
	close(t.quit)
	<-sent
	<-saved
	if result := stream.Result(); result != nil {
		c.server.metrics.finished("chat", result)
	}
	c.end(t, outcome(ctx, t, stream.Result(), eng.Model().Shape, stream.Routing()))
}

// send flushes the turn to its viewers until it ends.
func (t *turn) send() {
	pace := time.NewTicker(flushEvery)
	defer pace.Stop()
	for {
		select {
		case <-t.dirty:
		case <-t.quit:
			t.flush()
			return
		}
		t.flush()
		select {
		case <-pace.C:
		case <-t.quit:
		}
	}
}

// checkpoint keeps the text in the store while the turn runs.
func (c *chats) checkpoint(t *turn) {
	tick := time.NewTicker(checkpointEvery)
	defer tick.Stop()
	kept, told := 0, false
	for {
		select {
		case <-t.quit:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		answer, reasoning, n := t.answer.String(), t.reasoning.String(), len(t.tokens)
		t.mu.Unlock()
		if n == kept {
			continue
		}
		err := c.server.store.CheckpointTurn(context.Background(), t.message, answer, reasoning)
		switch {
		case err == nil:
			kept = n
		case !told && !errors.Is(err, store.ErrReadOnly): // which the store tells, once
			c.server.log.Warn("keeping a running answer", slog.String("turn", t.message), slog.Any("err", err))
			told = true
		}
	}
}

// outcome is what the store shall keep of an ended turn.
func outcome(ctx context.Context, t *turn, result *engine.Result, shape route.Shape, events []*route.Event) store.TurnResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := store.TurnResult{State: store.StateComplete}
	if result == nil {
		r.State, r.Note, r.Turn.Finish = store.StateFailed, "The engine gave no account of this answer.", engine.FinishError
		return r
	}
	r.Turn = store.Turn{
		Prompt: result.PromptTokens, Cached: result.CachedTokens, Generated: len(result.Tokens),
		Queue: time.Duration(result.QueueNanos), Prefill: time.Duration(result.PrefillNanos), Decode: time.Duration(result.DecodeNanos),
		Bytes: result.Bytes, Finish: result.Finish, Hash: result.Hash,
	}
	switch result.Finish {
	case engine.FinishCancel:
		r.State = store.StateStopped
		if !t.stopped && ctx.Err() != nil {
			r.Note = "the daemon stopped"
		}
	case engine.FinishError:
		r.State, r.Note = store.StateFailed, "The engine failed."
		if result.Err != nil {
			r.Note = sentence(result.Err.Error())
		}
	}
	for _, g := range t.tokens {
		token := store.Token{ID: int32(g.ID), Text: g.Text, Logprob: g.Logprob}
		for _, a := range g.alternatives {
			token.Top = append(token.Top, store.Alternative{Text: a.Text, Logprob: a.Logprob})
		}
		r.Tokens = append(r.Tokens, token)
	}
	if len(events) > 0 {
		if blob, err := route.Encode(shape, events, route.WeightsByte); err == nil {
			r.Routing = blob
		}
		r.Usage = usage(shape, events, result.CachedTokens)
	}
	return r
}

// usage counts what the turn's rows, prompt and answer, asked of each expert. The first cached rows ran in an earlier
// turn and were counted there.
func usage(shape route.Shape, events []*route.Event, cached int) []store.UsageDelta {
	counts := route.NewCounts(shape)
	for _, e := range events {
		skip := min(max(0, cached-e.Position), e.Rows())
		rest := route.Event{Position: e.Position + skip, Tokens: e.Tokens[skip:], IDs: e.IDs[skip*shape.Slots():], Weights: e.Weights[skip*shape.Slots():]}
		if counts.Add(&rest) != nil {
			return nil // an event of another shape; usage is not worth an answer
		}
	}
	var out []store.UsageDelta
	for j, layer := range shape.Layers {
		for id := range shape.Experts {
			if at := counts.Index(j, id); counts.Selections[at] > 0 {
				out = append(out, store.UsageDelta{Layer: layer, Expert: id, Selections: int64(counts.Selections[at]), Mass: counts.Mass[at]})
			}
		}
	}
	return out
}

// end stores the outcome of a turn and tells its viewers. It outlives the request's context.
func (c *chats) end(t *turn, r store.TurnResult) {
	t.mu.Lock()
	r.Answer, r.Content, r.Reasoning = t.message, t.answer.String(), t.reasoning.String()
	first := !t.ended // the turn never ran
	t.ended = true
	t.mu.Unlock()
	if first {
		close(t.quit)
	}
	var err error
	for wait, start := 100*time.Millisecond, time.Now(); ; wait *= 2 {
		if err = c.server.store.FinishTurn(context.Background(), r); err == nil || refusedForGood(err) || time.Since(start) > finishPatience {
			break
		}
		time.Sleep(wait)
	}
	if err != nil {
		c.server.log.Error("storing an answer", slog.String("turn", t.message), slog.Any("err", err))
		if !refusedForGood(err) {
			c.server.Go(func(ctx context.Context) { c.endLater(ctx, t, r) })
		}
	}
	c.mu.Lock()
	delete(c.turns, t.message)
	var viewers []*Conn
	for _, v := range c.views {
		if v.turn == t {
			v.turn = nil
			viewers = append(viewers, v.conn)
		}
	}
	c.mu.Unlock()
	t.flush() // for viewers that joined after the last one
	ctx := context.Background()
	if err != nil {
		for _, conn := range viewers {
			conn.Fail(0, stored(err, "the answer"))
		}
	} else {
		c.finishViews(ctx, t, viewers)
	}
	c.refreshLists(ctx)
}

// endLater stores an outcome once the store takes it again, after a full disk say: until then the answer is running for the
// store and its conversation takes no message. A daemon that stops first leaves the last checkpoint, as a kill does.
func (c *chats) endLater(ctx context.Context, t *turn, r store.TurnResult) {
	ticker := time.NewTicker(finishAgain)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := c.server.store.FinishTurn(ctx, r)
		if err == nil {
			c.refresh(ctx, t.conversation)
			c.refreshLists(ctx)
		}
		if err == nil || refusedForGood(err) || c.server.draining.Load() {
			return
		}
	}
}

// refusedForGood says that the store will not take a turn's outcome at any other time either.
func refusedForGood(err error) bool {
	return errors.Is(err, store.ErrState) || errors.Is(err, store.ErrNotFound)
}

// finishViews replaces what was provisional in the viewers' pages: the rendered text as one piece (lists and references
// that span blocks), the open text, the foot with the statistics.
func (c *chats) finishViews(ctx context.Context, t *turn, viewers []*Conn) {
	conv, messages, err := c.server.store.Thread(ctx, t.conversation)
	if err != nil {
		return
	}
	chat, _, _ := c.thread(conv, messages)
	for _, m := range chat.Messages {
		if m.ID != t.message {
			continue
		}
		live := ""
		t.mu.Lock()
		for _, b := range t.blocks {
			live += b
		}
		t.mu.Unlock()
		for _, conn := range viewers {
			conn.Send(Frame{Data: wire.State{Message: t.message, Phase: wire.PhaseEnded}.Append(nil)})
			if live != m.HTML {
				conn.Send(patchFrame(wire.Inner, "b-"+m.ID, 0, m.HTML))
			}
			conn.Send(patchFrame(wire.Inner, "o-"+m.ID, 0, ""))
			conn.Send(c.patch(wire.Replace, "f-"+m.ID, 0, web.Foot(m)))
			conn.Send(c.patch(wire.Inner, "meter", 0, web.Meter(chat.Used, chat.Context)))
		}
	}
}

// engineError turns the engine's refusals into errors for people.
func engineError(err error) *Error {
	switch {
	case errors.Is(err, engine.ErrQueueFull):
		return problem(KindEnvironment, "queue_full", "wait for other answers to end", err, "too many requests are waiting")
	case errors.Is(err, engine.ErrTooLong):
		return problem(KindInput, "too_long", "delete or shorten messages, or start a new chat", err, "the conversation does not fit the model's context")
	case errors.Is(err, engine.ErrClosed):
		return problem(KindEnvironment, "stopping", "", err, "the daemon is stopping")
	case errors.Is(err, engine.ErrInvalid):
		return problem(KindUsage, "invalid", "reset the settings of this conversation", err, "the engine did not accept the request: %s", err)
	}
	return AsError(err)
}
