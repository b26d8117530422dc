package daemon

// The WebSocket's plumbing. What the frames mean is package web/wire's business and the handlers'.
//
// Each connection has one reader and one writer goroutine (gorilla/websocket allows one of each). The reader is the
// HTTP handler's own: it checks the first message (page token, within 5 s), then runs commands one after another. The
// writer empties the connection's outbox (outbox.go), so a slow browser costs itself frames and in the end the socket,
// and the engine nothing. A closed client comes back and resumes from the offset it has.
//
// Nothing here changes a setting of the daemon, opens a path or touches the network beyond the socket itself.

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/time/rate"

	"covey/web/wire"
)

// Close codes. 4000 and above are the application's; the client resumes after slow and goingAway, and shows the rest.
const (
	closeGoingAway    = websocket.CloseGoingAway       // 1001: the daemon stops
	closeBadFrame     = websocket.CloseUnsupportedData // 1003: not a command of the protocol
	closeTooFast      = websocket.ClosePolicyViolation // 1008: too many commands
	closeInternal     = websocket.CloseInternalServerErr
	closeUnauthorised = 4401 // first message late or without the right page token, or the token was rotated
	closeSlow         = 4408 // the reader fell too far behind
)

const (
	helloTimeout  = 5 * time.Second
	helloLimit    = 4 << 10          // bytes of the first message
	pingEvery     = 20 * time.Second // protocol ping, beside the client's own
	silenceLimit  = 60 * time.Second // a peer that sends nothing, not even pongs, is gone
	writeDeadline = 10 * time.Second // one frame must leave within
	closeDeadline = time.Second      // the closing handshake
	commandRate   = 40               // commands a second, sustained
	commandBurst  = 200
)

// commandHandler carries out one command. What it returns becomes an Ack with these arguments, or a Failure. It runs on
// the connection's reader: it must not wait for an answer to be generated. ctx ends with the connection.
type commandHandler func(ctx context.Context, c *Conn, cmd wire.Command) ([]string, error)

// command registers the handler of a command; once each, before Run.
func (s *Server) command(name wire.Name, h commandHandler) {
	if s.commands[name] != nil {
		panic("daemon: two handlers for one command")
	}
	s.commands[name] = h
}

// Conn is one browser connection after a successful Hello. Methods are safe for concurrent use and never block.
type Conn struct {
	identity Identity
	server   *Server
	ws       *websocket.Conn
	ctx      context.Context
	cancel   context.CancelFunc
	out      *outbox
	limiter  *rate.Limiter
	closing  sync.Once
	said     chan struct{} // closed once the close frame has been written, or could not be
}

// Identity is who opened the connection.
func (c *Conn) Identity() Identity { return c.identity }

// Context ends when the connection does: use context.AfterFunc to clean up after it.
func (c *Conn) Context() context.Context { return c.ctx }

// Send queues a frame. It returns false once the connection is closed or closing; there is nothing to do about it.
func (c *Conn) Send(f Frame) bool {
	switch c.out.put(f) {
	case outboxFull:
		c.server.metrics.socketsSlow.Inc()
		c.close(closeSlow, "reading too slowly; resume from the last offset")
		return false
	case outboxClosed:
		return false
	}
	return true
}

// Fail queues the Failure of a command (or, with seq 0, of the connection itself).
func (c *Conn) Fail(seq uint64, err error) {
	e := AsError(err)
	c.Send(Frame{Data: wire.Failure{Seq: seq, Code: e.Code, Message: e.Error(), Hint: e.Hint}.Append(nil)})
}

// close starts the closing handshake and ends the connection within closeDeadline. Safe to call more than once.
func (c *Conn) close(code int, reason string) {
	c.closing.Do(func() {
		c.out.close()
		// The writer may sit in a write to a peer that does not read: shorten its patience too.
		c.ws.NetConn().SetWriteDeadline(time.Now().Add(closeDeadline))
		go func() { // WriteControl waits for the writer
			c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(closeDeadline))
			c.ws.SetReadDeadline(time.Now().Add(closeDeadline)) // the reader leaves on the peer's answer, or then
			close(c.said)
		}()
	})
}

// serveSocket upgrades a request that the authenticator has passed and reads the connection until its end.
func (s *Server) serveSocket(w http.ResponseWriter, r *http.Request) {
	id := identify(r.Context())
	if r.Header.Get("Origin") == "" && !id.API() {
		refuse(w, r, http.StatusForbidden, problem(KindUsage, "origin_not_allowed", "", nil, "a browser's socket must name its origin"))
		return
	}
	if s.draining.Load() || !s.hub.reserve() {
		w.Header().Set("Retry-After", "5")
		refuse(w, r, http.StatusServiceUnavailable, problem(KindEnvironment, "too_many_sockets", "close other tabs, or raise --max-sockets", nil, "no further socket can be opened"))
		return
	}
	defer s.hub.unreserve()
	upgrader := websocket.Upgrader{ // its own origin check stays on, behind ours
		HandshakeTimeout: helloTimeout, ReadBufferSize: 4 << 10, WriteBufferSize: 16 << 10,
		Error: func(w http.ResponseWriter, r *http.Request, status int, reason error) {
			refuse(w, r, status, problem(KindUsage, "bad_upgrade", "", reason, "this is a WebSocket endpoint"))
		},
	}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	ctx, cancel := context.WithCancel(s.work)
	defer cancel()
	c := &Conn{identity: id, server: s, ws: ws, ctx: ctx, cancel: cancel, out: newOutbox(s.metrics.frameDropped), limiter: rate.NewLimiter(commandRate, commandBurst), said: make(chan struct{})}
	seq, ok := c.hello(r)
	if !ok {
		c.farewell()
		return
	}
	if !s.hub.add(c) { // stopping
		c.close(closeGoingAway, "the daemon is stopping")
		c.farewell()
		return
	}
	defer s.hub.remove(c)
	c.Send(Frame{Data: s.welcome().Append(nil)})
	if seq != 0 {
		c.Send(Frame{Data: wire.Ack{Seq: seq}.Append(nil)})
	}
	s.showStorage(c)
	written := make(chan struct{})
	go func() { defer close(written); c.write() }()
	c.read()
	cancel()
	c.closing.Do(func() { close(c.said) }) // the peer left first: nothing to say
	<-c.said
	c.out.close()
	ws.Close()
	<-written
}

// hello reads the first message, which must be Hello with this session's page token.
func (c *Conn) hello(r *http.Request) (seq uint64, ok bool) {
	c.ws.SetReadLimit(helloLimit)
	c.ws.SetReadDeadline(time.Now().Add(helloTimeout))
	kind, raw, err := c.ws.ReadMessage()
	if err == nil && kind != websocket.BinaryMessage {
		err = wire.ErrKind
	}
	var cmd wire.Command
	if err == nil {
		cmd, err = wire.DecodeCommand(raw)
	}
	if err != nil || cmd.Name != wire.Hello {
		c.server.auth.failed("socket_hello")
		c.close(closeUnauthorised, "the first message must be Hello, within 5 s")
		return 0, false
	}
	if !c.identity.API() && !c.server.auth.pageTokenMatches(c.identity.Session, cmd.Arg(1)) {
		c.server.auth.failed("page_token")
		if ref := c.server.auth.limit(r, &refusal{err: &Error{Code: "page_token"}}); ref.retryAfter > 0 {
			c.close(closeUnauthorised, "too many failed attempts")
		} else {
			c.close(closeUnauthorised, "the page token is not this session's: reload the page")
		}
		return 0, false
	}
	c.ws.SetReadLimit(wire.MaxCommand)
	return cmd.Seq, true
}

// farewell lets the closing handshake, which close has begun, finish on a connection that nobody else reads.
func (c *Conn) farewell() {
	<-c.said
	for {
		if _, _, err := c.ws.NextReader(); err != nil {
			return
		}
	}
}

// read runs commands until the connection ends.
func (c *Conn) read() {
	alive := func() error { return c.ws.SetReadDeadline(time.Now().Add(silenceLimit)) }
	alive()
	c.ws.SetPongHandler(func(string) error { return alive() })
	for {
		kind, raw, err := c.ws.ReadMessage()
		if err != nil {
			if errors.Is(err, websocket.ErrReadLimit) {
				c.server.log.Debug("socket: message over the limit", slog.Int("limit", wire.MaxCommand))
			}
			return
		}
		select {
		case <-c.out.closed: // closing: only the peer's answer matters now
			continue
		default:
		}
		alive()
		if !c.limiter.Allow() {
			c.close(closeTooFast, "too many commands")
			continue
		}
		if kind != websocket.BinaryMessage {
			c.close(closeBadFrame, "commands are binary frames")
			continue
		}
		cmd, err := wire.DecodeCommand(raw)
		if err != nil {
			c.close(closeBadFrame, err.Error())
			continue
		}
		c.run(cmd)
	}
}

// run carries out one command and answers it.
func (c *Conn) run(cmd wire.Command) {
	defer func() {
		if v := recover(); v != nil {
			c.server.log.Error("panic in a command", slog.Int("command", int(cmd.Name)), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			c.close(closeInternal, "something went wrong inside Covey")
		}
	}()
	switch cmd.Name {
	case wire.Ping:
		c.Send(Frame{Data: wire.Pong()})
		return
	case wire.Crash:
		c.server.log.Warn("the browser client failed", slog.String("trace", clip(cmd.Arg(0), 4<<10)))
		return
	}
	h := c.server.commands[cmd.Name]
	if h == nil {
		c.Fail(cmd.Seq, problem(KindUsage, "invalid", "reload the page", nil, "this daemon knows no such command"))
		return
	}
	args, err := h(c.ctx, c, cmd)
	if err != nil {
		c.Fail(cmd.Seq, err)
	} else if cmd.Seq != 0 {
		c.Send(Frame{Data: wire.Ack{Seq: cmd.Seq, Args: args}.Append(nil)})
	}
}

// write empties the outbox onto the connection and pings a silent peer.
func (c *Conn) write() {
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		frame, ok := c.out.take()
		if !ok {
			select {
			case <-c.out.wake:
			case <-c.out.closed:
				return
			case <-ping.C:
				if c.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeDeadline)) != nil {
					c.ws.Close()
					return
				}
			}
			continue
		}
		kind := websocket.BinaryMessage
		if frame.Text {
			kind = websocket.TextMessage
		}
		c.ws.SetWriteDeadline(time.Now().Add(writeDeadline))
		if err := c.ws.WriteMessage(kind, frame.Data); err != nil {
			select {
			case <-c.out.closed:
			default:
				c.server.metrics.socketsSlow.Inc()
				c.ws.Close() // a write that timed out leaves half a frame behind: no close code can follow it
			}
			return
		}
	}
}
