package daemon

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"covey/web/wire"
)

// browser is a client with a session, as a page in a browser has it.
type browser struct {
	t      *testing.T
	daemon *testDaemon
	header http.Header
	page   string // token
}

func (d *testDaemon) browser() *browser {
	session := d.auth.newSession(d.token)
	id, _ := d.auth.openSession(d.token, session)
	return &browser{t: d.t, daemon: d, page: d.auth.pageToken(d.token, id), header: http.Header{
		"Cookie": {d.auth.cookieName + "=" + session}, "Origin": {d.base},
	}}
}

func (b *browser) dial() *websocket.Conn {
	b.t.Helper()
	ws, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(b.daemon.base, "http")+"/ws", b.header)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { ws.Close() })
	return ws
}

func send(t *testing.T, ws *websocket.Conn, name wire.Name, seq uint64, args ...string) {
	t.Helper()
	if err := ws.WriteMessage(websocket.BinaryMessage, wire.Command{Name: name, Seq: seq, Args: args}.Append(nil)); err != nil {
		t.Fatal(err)
	}
}

// receive reads the next frame.
func receive(t *testing.T, ws *websocket.Conn) []byte {
	t.Helper()
	ws.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, raw, err := ws.ReadMessage()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// closeCode reads until the connection ends and returns the code that the daemon gave.
func closeCode(t *testing.T, ws *websocket.Conn) int {
	t.Helper()
	ws.SetReadDeadline(time.Now().Add(15 * time.Second))
	for {
		if _, _, err := ws.ReadMessage(); err != nil {
			var closed *websocket.CloseError
			if !errors.As(err, &closed) {
				t.Fatalf("the connection ended without a close code: %v", err)
			}
			return closed.Code
		}
	}
}

// connect dials and says Hello.
func (b *browser) connect() *websocket.Conn {
	b.t.Helper()
	ws := b.dial()
	send(b.t, ws, wire.Hello, 1, "1", b.page)
	w, err := wire.DecodeWelcome(receive(b.t, ws))
	if err != nil || w.Version != wire.Version || w.Boot != b.daemon.boot {
		b.t.Fatalf("welcome %+v, error %v", w, err)
	}
	if a, err := wire.DecodeAck(receive(b.t, ws)); err != nil || a.Seq != 1 {
		b.t.Fatalf("ack %+v, error %v", a, err)
	}
	return ws
}

func TestASocketOpensWithThePageTokenAndAnswersPing(t *testing.T) {
	d := startDaemon(t, nil)
	ws := d.browser().connect()
	send(t, ws, wire.Ping, 0)
	if got := wire.FrameKind(receive(t, ws)); got != wire.KindPong {
		t.Errorf("got frame %#x, want Pong", got)
	}
}

func TestASocketWithoutARightFirstMessageIsClosed(t *testing.T) {
	d := startDaemon(t, nil)
	cases := []struct {
		name  string
		first func(*testing.T, *browser, *websocket.Conn)
	}{
		{"no page token", func(t *testing.T, b *browser, ws *websocket.Conn) { send(t, ws, wire.Hello, 1, "1") }},
		{"another session's page token", func(t *testing.T, b *browser, ws *websocket.Conn) {
			send(t, ws, wire.Hello, 1, "1", d.browser().page)
		}},
		{"the daemon's token", func(t *testing.T, b *browser, ws *websocket.Conn) { send(t, ws, wire.Hello, 1, "1", d.token) }},
		{"another command", func(t *testing.T, b *browser, ws *websocket.Conn) { send(t, ws, wire.Send, 1, "", "hello") }},
		{"text", func(t *testing.T, b *browser, ws *websocket.Conn) {
			ws.WriteMessage(websocket.TextMessage, wire.Command{Name: wire.Hello, Args: []string{"1", b.page}}.Append(nil))
		}},
		{"rubbish", func(t *testing.T, b *browser, ws *websocket.Conn) {
			ws.WriteMessage(websocket.BinaryMessage, []byte{1, 2})
		}},
		{"nothing for five seconds", func(*testing.T, *browser, *websocket.Conn) {}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := d.browser()
			b.t = t
			ws := b.dial()
			c.first(t, b, ws)
			if got := closeCode(t, ws); got != closeUnauthorised {
				t.Errorf("close code %d, want %d", got, closeUnauthorised)
			}
		})
	}
}

func TestASocketNeedsAnOriginUnlessTheTokenIsShown(t *testing.T) {
	d := startDaemon(t, nil)
	b := d.browser()
	url := "ws" + strings.TrimPrefix(d.base, "http") + "/ws"
	cases := []struct {
		name   string
		header http.Header
		want   int
	}{
		{"cookie and our origin", b.header, 101},
		{"cookie alone", http.Header{"Cookie": b.header["Cookie"]}, 403},
		{"cookie and foreign origin", http.Header{"Cookie": b.header["Cookie"], "Origin": {"https://evil.example"}}, 403},
		{"cookie and null origin", http.Header{"Cookie": b.header["Cookie"], "Origin": {"null"}}, 403},
		{"nothing", nil, 401},
		{"bearer without origin", http.Header{"Authorization": {"Bearer " + d.token}}, 101},
		{"bearer and foreign origin", http.Header{"Authorization": {"Bearer " + d.token}, "Origin": {"https://evil.example"}}, 403},
	}
	for _, c := range cases {
		ws, resp, err := websocket.DefaultDialer.Dial(url, c.header)
		if resp == nil {
			t.Fatal(err)
		}
		if resp.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", c.name, resp.StatusCode, c.want)
		}
		if ws != nil {
			ws.Close()
		}
	}
}

func TestACommandIsAnsweredByAckOrFailure(t *testing.T) {
	d := startDaemon(t, nil)
	d.commands[wire.Rename] = func(_ context.Context, _ *Conn, cmd wire.Command) ([]string, error) {
		if cmd.Arg(0) == "" {
			return nil, problem(KindUsage, "not_found", "reload", nil, "no such conversation")
		}
		return []string{"renamed " + cmd.Arg(0)}, nil
	}
	ws := d.browser().connect()
	send(t, ws, wire.Rename, 7, "c1", "title")
	if a, err := wire.DecodeAck(receive(t, ws)); err != nil || a.Seq != 7 || a.Arg(0) != "renamed c1" {
		t.Errorf("ack %+v, error %v", a, err)
	}
	send(t, ws, wire.Rename, 8)
	if f, err := wire.DecodeFailure(receive(t, ws)); err != nil || f.Seq != 8 || f.Code != "not_found" || f.Hint != "reload" {
		t.Errorf("failure %+v, error %v", f, err)
	}
	send(t, ws, wire.Name(0x7f), 9)
	if f, err := wire.DecodeFailure(receive(t, ws)); err != nil || f.Seq != 9 || f.Code != "invalid" {
		t.Errorf("unknown command: failure %+v, error %v", f, err)
	}
}

func TestMisbehaviourClosesTheSocketWithItsCode(t *testing.T) {
	d := startDaemon(t, func(c *Config) { c.MaxSockets = 16 })
	d.commands[wire.Pin] = func(context.Context, *Conn, wire.Command) ([]string, error) { panic("boom") }
	cases := []struct {
		name string
		act  func(*testing.T, *websocket.Conn)
		want int
	}{
		{"text frame", func(t *testing.T, ws *websocket.Conn) { ws.WriteMessage(websocket.TextMessage, []byte("hello")) }, closeBadFrame},
		{"broken frame", func(t *testing.T, ws *websocket.Conn) { ws.WriteMessage(websocket.BinaryMessage, []byte{0x10}) }, closeBadFrame},
		{"empty frame", func(t *testing.T, ws *websocket.Conn) { ws.WriteMessage(websocket.BinaryMessage, nil) }, closeBadFrame},
		{"huge frame", func(t *testing.T, ws *websocket.Conn) {
			ws.WriteMessage(websocket.BinaryMessage, make([]byte, wire.MaxCommand+1))
		}, websocket.CloseMessageTooBig},
		{"flood", func(t *testing.T, ws *websocket.Conn) {
			for range commandBurst + 50 {
				ws.WriteMessage(websocket.BinaryMessage, wire.Command{Name: wire.Crash}.Append(nil))
			}
		}, closeTooFast},
		{"command that panics", func(t *testing.T, ws *websocket.Conn) { send(t, ws, wire.Pin, 1) }, closeInternal},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ws := d.browser().connect()
			c.act(t, ws)
			if got := closeCode(t, ws); got != c.want {
				t.Errorf("close code %d, want %d", got, c.want)
			}
		})
	}
}

func TestASlowReaderLosesTheSocketAndTheSenderNothing(t *testing.T) {
	d := startDaemon(t, nil)
	ws := d.browser().connect()
	var conn *Conn
	d.hub.each(func(c *Conn) { conn = c })
	frame := make([]byte, 1<<20)
	sent := 0
	for conn.Send(Frame{Data: frame}) { // never blocks although nobody reads
		if sent++; sent > 64 {
			t.Fatal("64 MiB are waiting for one slow reader")
		}
	}
	if got := closeCode(t, ws); got != closeSlow {
		t.Errorf("close code %d, want %d", got, closeSlow)
	}
	if conn.Send(Frame{Data: []byte{1}}) {
		t.Error("a closed connection takes frames")
	}
}

func TestSocketsAreCountedAndCapped(t *testing.T) {
	d := startDaemon(t, func(c *Config) { c.MaxSockets = 1 })
	b := d.browser()
	first := b.connect()
	_, resp, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(d.base, "http")+"/ws", b.header)
	if err == nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("a second socket: %v %v", resp, err)
	}
	first.Close()
	for range 200 { // the daemon notices in its own time
		if ws, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(d.base, "http")+"/ws", b.header); err == nil {
			ws.Close()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("a closed socket still takes a place")
}

func TestStoppingClosesSocketsWithGoingAway(t *testing.T) {
	d := startDaemon(t, nil)
	ws := d.browser().connect()
	code := make(chan int, 1)
	go func() { code <- closeCode(t, ws) }()
	if err := d.stop(); err != nil {
		t.Error(err)
	}
	if got := <-code; got != closeGoingAway {
		t.Errorf("close code %d, want %d", got, closeGoingAway)
	}
}

func TestRotatingTheTokenClosesSockets(t *testing.T) {
	d := startDaemon(t, nil)
	ws := d.browser().connect()
	if _, err := RotateToken(d.cfg.Data); err != nil {
		t.Fatal(err)
	}
	d.auth.token.mu.Lock()
	d.auth.token.looked = time.Time{} // the look of a second later
	d.auth.token.mu.Unlock()
	d.do("GET", "/metrics", "")
	if got := closeCode(t, ws); got != closeUnauthorised {
		t.Errorf("close code %d, want %d", got, closeUnauthorised)
	}
}
