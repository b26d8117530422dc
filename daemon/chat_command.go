package daemon

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"covey/store"
	"covey/web"
	"covey/web/wire"
)

// send answers Send: a new message, in a new conversation if none is named.
func (c *chats) send(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	id, text := cmd.Arg(0), strings.TrimSpace(cmd.Arg(1))
	if err := checkMessage(text); err != nil {
		return nil, err
	}
	if _, err := c.server.Engine(); err != nil {
		return nil, err
	}
	b := begin{text: text, title: autoTitle(text)}
	created := id == ""
	if created {
		defaults, err := c.server.chatDefaults(ctx)
		if err != nil {
			return nil, err
		}
		raw, err := json.Marshal(defaults.Settings)
		if err != nil {
			return nil, problem(KindInternal, "internal", "", err, "encoding the settings")
		}
		conv, err := c.server.store.CreateConversation(ctx, "", defaults.System, raw)
		if err != nil {
			return nil, stored(err, "the conversation")
		}
		b.conversation = conv
	} else {
		conv, messages, err := c.server.store.Thread(ctx, id)
		if err == nil {
			err = present(conv)
		}
		if err != nil {
			return nil, stored(err, "the conversation")
		}
		if n := len(messages); n > 0 && messages[n-1].State == store.StateRunning {
			return nil, problem(KindUsage, "busy", "stop it, or wait for it", nil, "an answer is being written")
		}
		b.conversation, b.parent, b.history = conv, conv.Leaf, messages
	}
	message, err := c.start(ctx, b)
	if err != nil {
		if created {
			// Nothing was asked in it: it is no conversation.
			if err := c.server.store.DeleteConversation(ctx, b.conversation.ID); err != nil {
				c.server.log.Warn("removing an empty conversation", slog.Any("err", err))
			}
		}
		return nil, err
	}
	c.show(conn, b.conversation.ID)
	c.grew(ctx, b.conversation.ID, message)
	return []string{b.conversation.ID, message}, nil
}

func checkMessage(text string) error {
	if text == "" {
		return invalid("the message is empty")
	}
	if len(text) > maxMessage {
		return problem(KindUsage, "invalid", "shorten it, or send it in parts", nil, "the message has %d bytes, at most %d are taken", len(text), maxMessage)
	}
	return nil
}

// grew shows a new message and its answer to everybody who watches, below what they see: a long conversation is not
// rendered anew for each message.
func (c *chats) grew(ctx context.Context, conversation, message string) {
	conv, messages, err := c.server.store.Thread(ctx, conversation)
	if err != nil || len(messages) < 2 || messages[len(messages)-1].ID != message {
		c.began(ctx, conversation) // it has moved on meanwhile
		return
	}
	for _, v := range c.watchers(conversation) {
		chat, t, at := c.thread(conv, messages[len(messages)-2:])
		v.conn.Send(c.patch(wire.Append, "log", 0, web.Thread(chat)))
		if t != nil && !c.follow(v.conn, t, at) {
			if err := c.refreshOne(ctx, v.conn, conversation); err != nil {
				v.conn.Fail(0, err)
			}
		}
		c.sendTitle(v.conn, conv)
	}
	c.refreshLists(ctx)
}

// began shows a thread with a new branch to everybody who watches.
func (c *chats) began(ctx context.Context, conversation string) {
	c.refresh(ctx, conversation)
	if conv, err := c.server.store.Conversation(ctx, conversation); err == nil {
		for _, v := range c.watchers(conversation) {
			c.sendTitle(v.conn, conv)
		}
	}
	c.refreshLists(ctx)
}

func (c *chats) sendTitle(conn *Conn, conv store.Conversation) {
	name := web.ItemName(conv.Title)
	conn.Send(c.patch(wire.Inner, "chat-title", 0, web.Text(name)))
	conn.Send(c.patch(wire.Inner, "topbar-title", 0, web.Text(name)))
	conn.Send(patchFrame(wire.Title, "", 0, name+" - Covey"))
}

// branch of a message: the conversation and the path down to the message.
func (c *chats) path(ctx context.Context, message string) (store.Conversation, []store.Message, error) {
	path, err := c.server.store.Path(ctx, message)
	if err != nil {
		return store.Conversation{}, nil, stored(err, "the message")
	}
	conv, err := c.server.store.Conversation(ctx, path[len(path)-1].Conversation)
	if err == nil {
		err = present(conv)
	}
	if err != nil {
		return store.Conversation{}, nil, stored(err, "the conversation")
	}
	if conv.Running {
		return conv, nil, problem(KindUsage, "busy", "stop it, or wait for it", nil, "an answer of this conversation is being written")
	}
	return conv, path, nil
}

// regenerate answers Regenerate: another answer to the same message.
func (c *chats) regenerate(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	conv, path, err := c.path(ctx, cmd.Arg(0))
	if err != nil {
		return nil, err
	}
	if n := len(path); path[n-1].Role != store.RoleAssistant || n < 2 {
		return nil, invalid("only an answer can be generated again")
	}
	return c.answer(ctx, begin{conversation: conv, parent: path[len(path)-2].ID, history: path[:len(path)-1]})
}

// goOn answers Continue: a version of the answer that begins with what there is.
func (c *chats) goOn(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	conv, path, err := c.path(ctx, cmd.Arg(0))
	if err != nil {
		return nil, err
	}
	n := len(path)
	if path[n-1].Role != store.RoleAssistant || n < 2 || path[n-1].Content == "" {
		return nil, invalid("there is no text to go on from")
	}
	return c.answer(ctx, begin{conversation: conv, parent: path[n-2].ID, history: path[:n-1], prefix: path[n-1].Content})
}

// edit answers Edit: another version of a person's message, answered.
func (c *chats) edit(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	text := strings.TrimSpace(cmd.Arg(1))
	if err := checkMessage(text); err != nil {
		return nil, err
	}
	conv, path, err := c.path(ctx, cmd.Arg(0))
	if err != nil {
		return nil, err
	}
	n := len(path)
	if path[n-1].Role != store.RoleUser {
		return nil, invalid("only your own messages can be edited")
	}
	return c.answer(ctx, begin{conversation: conv, parent: path[n-1].Parent, history: path[:n-1], text: text})
}

func (c *chats) answer(ctx context.Context, b begin) ([]string, error) {
	message, err := c.start(ctx, b)
	if err != nil {
		return nil, err
	}
	c.began(ctx, b.conversation.ID)
	return []string{b.conversation.ID, message}, nil
}

// stop answers Stop. It does not wait: the end arrives as frames.
func (c *chats) stop(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	if t := c.running(cmd.Arg(0)); t != nil {
		t.stop()
	}
	return nil, nil // an answer that has ended is stopped
}

// remove answers Remove: a message and all that follows it.
func (c *chats) remove(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	m, err := c.server.store.Message(ctx, cmd.Arg(0))
	if err != nil {
		return nil, stored(err, "the message")
	}
	if _, err := c.server.store.DeleteMessage(ctx, m.ID); err != nil {
		return nil, stored(err, "the message")
	}
	c.refresh(ctx, m.Conversation)
	return nil, nil
}

// branch answers Branch: another version is shown.
func (c *chats) branch(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	m, err := c.server.store.Message(ctx, cmd.Arg(0))
	if err != nil {
		return nil, stored(err, "the message")
	}
	if _, err := c.server.store.SelectBranch(ctx, m.ID); err != nil {
		return nil, stored(err, "the message")
	}
	c.refresh(ctx, m.Conversation)
	return nil, nil
}

// detail answers Detail with Detailed frames.
func (c *chats) detail(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	first, err := strconv.Atoi(cmd.Arg(1))
	if err != nil || first < 0 {
		return nil, invalid("detail: the first token is not a number")
	}
	message := cmd.Arg(0)
	shape, tokens, err := c.tokens(ctx, message)
	if err != nil {
		return nil, err
	}
	for _, f := range detailed(message, shape, tokens, first) {
		conn.Send(f)
	}
	return nil, nil
}

// tokens is what is known of an answer's tokens, running or stored.
func (c *chats) tokens(ctx context.Context, message string) (wire.Shape, []generated, error) {
	if t := c.running(message); t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.shape, append([]generated(nil), t.tokens...), nil
	}
	m, err := c.server.store.Message(ctx, message)
	if err != nil {
		return wire.Shape{}, nil, stored(err, "the message")
	}
	if m.Turn == nil {
		return wire.Shape{}, nil, problem(KindUsage, "not_found", "", nil, "no tokens were kept of this message")
	}
	kept, err := c.server.store.TurnTokens(ctx, message)
	if err != nil {
		return wire.Shape{}, nil, stored(err, "the tokens of this answer")
	}
	blob, err := c.server.store.TurnRouting(ctx, message)
	if err != nil {
		return wire.Shape{}, nil, stored(err, "the routing of this answer")
	}
	shape, tokens, err := storedTokens(kept, blob, m.Turn.Prompt)
	if err != nil {
		c.server.log.Error("reading a turn's routing", slog.String("turn", message), slog.Any("err", err))
	}
	return shape, tokens, nil
}

// rename answers Rename.
func (c *chats) rename(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	title := strings.Join(strings.Fields(cmd.Arg(1)), " ")
	if title == "" || len(title) > maxTitle {
		return nil, invalid("a title has 1 to %d bytes", maxTitle)
	}
	return nil, c.change(ctx, cmd.Arg(0), func(id string) error { return c.server.store.RenameConversation(ctx, id, title) })
}

// pin answers Pin.
func (c *chats) pin(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	return nil, c.change(ctx, cmd.Arg(0), func(id string) error { return c.server.store.PinConversation(ctx, id, cmd.Arg(1) == "1") })
}

// delete answers Delete. It can be undone for a day; then it is final.
func (c *chats) delete(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	if _, err := c.server.store.PurgeConversations(ctx, time.Now().Add(-undoLife)); err != nil {
		c.server.log.Warn("purging deleted conversations", slog.Any("err", err))
	}
	c.mu.Lock()
	var running []*turn
	for _, t := range c.turns {
		if t.conversation == cmd.Arg(0) {
			running = append(running, t)
		}
	}
	c.mu.Unlock()
	for _, t := range running {
		t.stop()
	}
	if err := c.server.store.DeleteConversation(ctx, cmd.Arg(0)); err != nil {
		return nil, stored(err, "the conversation")
	}
	for _, v := range c.watchers(cmd.Arg(0)) {
		if v.conn != conn { // that one leaves the page
			v.conn.Send(c.patch(wire.Inner, "gone", 0, web.Gone(cmd.Arg(0))))
		}
	}
	c.refreshLists(ctx)
	return []string{cmd.Arg(0)}, nil
}

// present is ErrNotFound for a deleted conversation, which can still be read until it is purged.
func present(conv store.Conversation) error {
	if !conv.Deleted.IsZero() {
		return store.ErrNotFound
	}
	return nil
}

// restore answers Restore.
func (c *chats) restore(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	if err := c.change(ctx, cmd.Arg(0), func(id string) error { return c.server.store.RestoreConversation(ctx, id) }); err != nil {
		return nil, err
	}
	for _, v := range c.watchers(cmd.Arg(0)) {
		v.conn.Send(c.patch(wire.Inner, "gone", 0, nil))
	}
	return nil, nil
}

// change does something to a conversation and shows the result in lists and titles.
func (c *chats) change(ctx context.Context, id string, do func(id string) error) error {
	if err := do(id); err != nil {
		return stored(err, "the conversation")
	}
	conv, err := c.server.store.Conversation(ctx, id)
	if err != nil {
		return stored(err, "the conversation")
	}
	for _, v := range c.watchers(id) {
		c.sendTitle(v.conn, conv)
	}
	c.refreshLists(ctx)
	return nil
}

// search answers Search with a patch of the side bar's list.
func (c *chats) search(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	query := strings.TrimSpace(cmd.Arg(0))
	if len(query) > maxQuery {
		return nil, invalid("a search has at most %d bytes", maxQuery)
	}
	c.mu.Lock()
	v := c.views[conn]
	current := ""
	if v != nil {
		v.query, current = query, v.conversation
	}
	c.mu.Unlock()
	if query == "" {
		conversations, err := c.server.store.Conversations(ctx, 0, listLimit)
		if err != nil {
			return nil, stored(err, "the conversations")
		}
		conn.Send(c.patch(wire.Inner, "list", 0, web.List(items(conversations, current), time.Now())))
		return nil, nil
	}
	hits, err := c.server.store.Search(ctx, query, searchLimit)
	if err != nil {
		return nil, stored(err, "the search")
	}
	found := make([]web.Found, len(hits))
	for i, h := range hits {
		found[i] = web.Found{Conversation: h.Conversation, Name: h.Title, Message: h.Message}
		for _, f := range h.Snippet {
			found[i].Snippet = append(found[i].Snippet, web.Piece{Text: f.Text, Match: f.Match})
		}
	}
	conn.Send(c.patch(wire.Inner, "list", 0, web.Results(query, found)))
	return nil, nil
}

// settings answers Settings: the system prompt and the departures from the model's defaults, all of them at once, of a
// conversation, of a new one (""), or of all that will be new ("*").
func (c *chats) settings(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	if len(cmd.Args) < 1 || len(cmd.Args)%2 != 1 {
		return nil, invalid("settings come in pairs of name and value")
	}
	system, values, named := "", chatSettings{}, map[string]bool{}
	for i := 1; i < len(cmd.Args); i += 2 {
		name := cmd.Args[i]
		if named[name] {
			return nil, invalid("%s: it stands twice", clip(name, 50))
		}
		named[name] = true
		if name == "system" {
			system = strings.TrimSpace(cmd.Args[i+1])
		} else {
			values[name] = strings.TrimSpace(cmd.Args[i+1])
		}
	}
	if len(system) > maxSystem {
		return nil, invalid("a system prompt has at most %d bytes", maxSystem)
	}
	values, err := values.check()
	if err != nil {
		return nil, err
	}
	id := cmd.Args[0]
	if id == "*" {
		err := c.server.store.SetSetting(ctx, chatDefaultsKey, chatDefaults{System: system, Settings: values})
		return []string{id}, stored(err, "the settings")
	}
	raw, err := json.Marshal(values)
	if err != nil {
		return nil, problem(KindInternal, "internal", "", err, "encoding the settings")
	}
	if id == "" {
		conv, err := c.server.store.CreateConversation(ctx, "", system, raw)
		if err != nil {
			return nil, stored(err, "the conversation")
		}
		c.show(conn, conv.ID)
		c.refreshLists(ctx)
		return []string{conv.ID}, nil
	}
	if err := c.server.store.SetSystem(ctx, id, system); err != nil {
		return nil, stored(err, "the conversation")
	}
	if err := c.server.store.SetSettings(ctx, id, raw); err != nil {
		return nil, stored(err, "the conversation")
	}
	return []string{id}, nil
}

// measure answers Measure: how many tokens a draft has.
func (c *chats) measure(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	eng, err := c.server.Engine()
	if err != nil {
		return nil, err
	}
	if len(cmd.Arg(1)) > maxMessage {
		return nil, checkMessage(cmd.Arg(1))
	}
	n, err := countTokens(eng, cmd.Arg(1))
	if err != nil {
		return nil, err
	}
	return []string{strconv.Itoa(n)}, nil
}
