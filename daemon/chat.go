package daemon

// The chat: turns, who watches them, and the commands that start and change them.
//
// The daemon owns a turn, not the page that asked for it. A turn keeps everything it has produced (chat_turn.go); each
// watching connection is a cursor into that, so a reload, a second tab or a reconnect goes on from where it was, and a
// slow browser gets larger frames instead of a longer queue. The conversation's tree lives in the store; pages and
// patches are rendered from the store and, for an answer that runs, from its turn.
//
// Lock order: chats.mu before turn.mu. Nothing is sent to a store or rendered under chats.mu.

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/a-h/templ"

	"covey/store"
	"covey/web"
	"covey/web/wire"
)

// Limits of what a person can ask of the chat.
const (
	maxMessage  = 512 << 10 // bytes of one message
	maxSystem   = 64 << 10  // bytes of a system prompt
	maxTitle    = 200       // bytes of a title
	maxQuery    = 200       // bytes of a search
	listLimit   = 500       // conversations in the side bar
	searchLimit = 50        // search results
	undoLife    = 24 * time.Hour
)

// chats is the chat part of a daemon. Safe for concurrent use.
type chats struct {
	server *Server

	mu    sync.Mutex
	turns map[string]*turn // running, by id of the answer
	views map[*Conn]*view
}

// view is what one connection shows. Guarded by chats.mu.
type view struct {
	conn         *Conn
	conversation string // "" = none yet
	query        string // search in the side bar; "" = the list
	turn         *turn  // running answer it follows; nil = none
}

// mountChat adds the chat's pages and commands.
func (s *Server) mountChat() {
	c := &chats{server: s, turns: map[string]*turn{}, views: map[*Conn]*view{}}
	for name, h := range map[wire.Name]commandHandler{
		wire.Watch: c.watch, wire.Send: c.send, wire.Stop: c.stop, wire.Regenerate: c.regenerate, wire.Edit: c.edit,
		wire.Remove: c.remove, wire.Branch: c.branch, wire.Continue: c.goOn, wire.Detail: c.detail,
		wire.Rename: c.rename, wire.Pin: c.pin, wire.Delete: c.delete, wire.Restore: c.restore, wire.Search: c.search,
		wire.Settings: c.settings, wire.Measure: c.measure,
	} {
		s.command(name, h)
	}
	s.always("GET /{$}", c.servePage)
	s.always("GET /c/{id}", c.servePage)
	s.always("GET /c/{id}/export.md", c.serveMarkdown)
	s.always("GET /c/{id}/export.json", c.serveJSON)
	s.always("GET /c/{id}/tokens/{message}", c.serveTokens)
	s.always("GET /export", c.serveJSON)
	s.route("POST /import", c.serveImport, importLimit)
}

// invalid refuses a command whose arguments make no sense.
func invalid(format string, args ...any) error {
	return problem(KindUsage, "invalid", "", nil, format, args...)
}

// stored turns a store's error into one for people.
func stored(err error, what string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrNotFound):
		return problem(KindUsage, "not_found", "it may have been deleted in another tab", err, "%s is not there", what)
	case errors.Is(err, store.ErrState):
		return problem(KindUsage, "busy", "stop the answer first, or wait for it", err, "%s is in use", what)
	case errors.Is(err, store.ErrReadOnly):
		return problem(KindEnvironment, "read_only", "free space on the disk; what is shown stays, nothing new is kept", err, "the history cannot be written")
	case errors.Is(err, store.ErrInvalid):
		return problem(KindUsage, "invalid", "", err, "%s was not accepted", what)
	}
	return problem(KindInternal, "internal", "the log has the details", err, "reading or writing %s failed", what)
}

// patch renders a component into a patch frame.
func (c *chats) patch(op wire.Op, target string, arg int, component templ.Component) Frame {
	var b strings.Builder
	if component != nil {
		if err := component.Render(context.Background(), &b); err != nil {
			c.server.log.Error("rendering a fragment", slog.String("target", target), slog.Any("err", err))
		}
	}
	return Frame{Text: true, Data: wire.Patch{Op: op, Target: target, Arg: arg, HTML: b.String()}.Append(nil)}
}

// watchers lists the views that show a conversation.
func (c *chats) watchers(conversation string) []*view {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*view
	for _, v := range c.views {
		if v.conversation == conversation {
			out = append(out, v)
		}
	}
	return out
}

// running returns the turn of an answer, or nil.
func (c *chats) running(message string) *turn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.turns[message]
}

// watch answers Watch: from now on the connection follows a conversation.
func (c *chats) watch(ctx context.Context, conn *Conn, cmd wire.Command) ([]string, error) {
	conversation, message := cmd.Arg(0), cmd.Arg(1)
	var had [4]int // tokens, blocks, bytes of answer and of reasoning
	for i := range had {
		n, err := strconv.Atoi(cmd.Arg(2 + i))
		if err != nil || n < 0 {
			return nil, invalid("watch: argument %d is not a number", 2+i)
		}
		had[i] = n
	}
	again := cmd.Arg(6) == "1"
	c.show(conn, conversation)
	if conversation == "" {
		return nil, nil
	}
	if t := c.running(message); t != nil && t.conversation == conversation {
		if c.follow(conn, t, cursor{tokens: had[0], blocks: had[1], answer: had[2], reasoning: had[3]}) {
			return nil, nil
		}
	}
	// What the page shows may be out of date: the connection was away, the answer ended, another tab began one or deleted
	// the conversation.
	conv, err := c.server.store.Conversation(ctx, conversation)
	if err != nil {
		return nil, stored(err, "the conversation")
	}
	if present(conv) != nil {
		conn.Send(c.patch(wire.Inner, "gone", 0, web.Gone(conversation)))
	} else if again { // it may have been restored meanwhile
		conn.Send(c.patch(wire.Inner, "gone", 0, nil))
	}
	if again || message != "" || conv.Running {
		return nil, c.refreshOne(ctx, conn, conversation)
	}
	return nil, nil
}

// show makes the connection a viewer of a conversation.
func (c *chats) show(conn *Conn, conversation string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.views[conn]
	if v == nil {
		v = &view{conn: conn}
		c.views[conn] = v
		context.AfterFunc(conn.Context(), func() {
			c.mu.Lock()
			if v.turn != nil {
				v.turn.leave(v)
			}
			delete(c.views, conn)
			c.mu.Unlock()
		})
	}
	if v.turn != nil && v.turn.conversation != conversation {
		v.turn.leave(v)
		v.turn = nil
	}
	v.conversation = conversation
}

// follow lets the connection's view read a turn from a cursor on. False if the turn has ended meanwhile.
func (c *chats) follow(conn *Conn, t *turn, at cursor) bool {
	c.mu.Lock()
	running := c.turns[t.message] == t
	if v := c.views[conn]; v != nil && running {
		if v.turn != nil && v.turn != t {
			v.turn.leave(v)
		}
		v.turn = t
		t.join(v, at)
	}
	c.mu.Unlock()
	t.wake()
	return running
}

// refreshOne renders the whole thread for one connection and lets it follow the running answer, if there is one.
func (c *chats) refreshOne(ctx context.Context, conn *Conn, conversation string) error {
	conv, messages, err := c.server.store.Thread(ctx, conversation)
	if err != nil {
		return stored(err, "the conversation")
	}
	chat, t, at := c.thread(conv, messages)
	conn.Send(c.patch(wire.Inner, "log", 0, web.Thread(chat)))
	conn.Send(c.patch(wire.Inner, "meter", 0, web.Meter(chat.Used, chat.Context)))
	if t != nil && !c.follow(conn, t, at) {
		return c.refreshOne(ctx, conn, conversation) // it ended while it was rendered
	}
	return nil
}

// refresh renders the thread anew for everybody who shows the conversation.
func (c *chats) refresh(ctx context.Context, conversation string) {
	for _, v := range c.watchers(conversation) {
		if err := c.refreshOne(ctx, v.conn, conversation); err != nil {
			v.conn.Fail(0, err)
		}
	}
}

// refreshLists renders the side bar anew for everybody who has the chat open and is not searching.
func (c *chats) refreshLists(ctx context.Context) {
	conversations, err := c.server.store.Conversations(ctx, 0, listLimit)
	if err != nil {
		c.server.log.Error("listing conversations", slog.Any("err", err))
		return
	}
	c.mu.Lock()
	type target struct {
		conn    *Conn
		current string
	}
	var targets []target
	for _, v := range c.views {
		if v.query == "" {
			targets = append(targets, target{v.conn, v.conversation})
		}
	}
	c.mu.Unlock()
	for _, t := range targets {
		t.conn.Send(c.patch(wire.Inner, "list", 0, web.List(items(conversations, t.current), time.Now())))
	}
}

func items(conversations []store.Conversation, current string) []web.Item {
	out := make([]web.Item, len(conversations))
	for i, conv := range conversations {
		out[i] = web.Item{ID: conv.ID, Name: conv.Title, Pinned: conv.Pinned, Running: conv.Running, Current: conv.ID == current, Updated: conv.Updated}
	}
	return out
}

// autoTitle makes a conversation's title from its first message: the first line, cut at a word.
func autoTitle(text string) string {
	const most = 56
	line := strings.TrimSpace(text)
	line, _, _ = strings.Cut(line, "\n")
	line = strings.TrimSpace(strings.TrimLeft(line, "#>-* \t"))
	runes := []rune(strings.Join(strings.Fields(line), " "))
	if len(runes) <= most {
		return string(runes)
	}
	cut := most
	for i := most; i > most/2; i-- {
		if runes[i] == ' ' {
			cut = i
			break
		}
	}
	return strings.TrimRight(string(runes[:cut]), " ,.;:") + "\u2026"
}
