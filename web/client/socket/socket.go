//go:build js && wasm

// Package socket is the client's end of the WebSocket: it says Hello, matches answers to commands, and connects again
// when the connection is lost. What was on its way when a connection broke is not sent again: commands are answered by
// a failure, and the page's hooks ask for what they lack.
package socket

import (
	"strconv"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/wire"
)

// State of the connection.
type State string

// States, as the page's status dot names them.
const (
	Connecting State = "wait"
	Open       State = "on"
	Closed     State = "off" // for good: the page must be reloaded
)

// Close codes of the daemon after which connecting again is useless.
const unauthorised = 4401

// Socket is the page's one connection. All of it runs on the event loop.
type Socket struct {
	Binary  func(kind wire.Kind, frame []byte) // frames that are not answers
	Patch   func(wire.Patch)
	State   func(State)
	Welcome func(w wire.Welcome, again bool) // again: not the first connection of this page

	token   string
	ws      js.Value
	ready   bool
	seen    bool
	failed  int // connections in a row that did not get as far as Welcome
	seq     uint64
	waiting map[uint64]func(wire.Ack, *wire.Failure)
	heard   bool // something came since the last beat
	buffer  []byte
	wait    bool // a reconnect is scheduled
}

// New returns a socket; Connect starts it once its hooks are set.
func New(token string) *Socket {
	return &Socket{token: token, waiting: map[uint64]func(wire.Ack, *wire.Failure){}}
}

// Connect opens the connection.
func (s *Socket) Connect() {
	s.wait = false
	s.State(Connecting)
	location := js.Global().Get("location")
	scheme := "ws://"
	if location.Get("protocol").String() == "https:" {
		scheme = "wss://"
	}
	ws := js.Global().Get("WebSocket").New(scheme + location.Get("host").String() + "/ws")
	ws.Set("binaryType", "arraybuffer")
	s.ws, s.ready = ws, false
	mine := func(f func([]js.Value)) js.Func {
		return dom.Func(func(args []js.Value) {
			if s.ws.Equal(ws) {
				f(args)
			}
		})
	}
	opened := mine(func([]js.Value) {
		s.write(wire.Command{Name: wire.Hello, Args: []string{strconv.Itoa(wire.Version), s.token}})
	})
	message := mine(func(args []js.Value) { s.receive(args[0].Get("data")) })
	var closed js.Func
	closed = mine(func(args []js.Value) {
		opened.Release()
		message.Release()
		closed.Release()
		s.lost(args[0].Get("code").Int())
	})
	ws.Set("onopen", opened)
	ws.Set("onmessage", message)
	ws.Set("onclose", closed)
}

// Ready says whether commands can be sent now.
func (s *Socket) Ready() bool { return s.ready }

// Send sends a command. done, if not nil, is called once with its Ack or its Failure.
func (s *Socket) Send(done func(wire.Ack, *wire.Failure), name wire.Name, args ...string) {
	c := wire.Command{Name: name, Args: args}
	if !s.ready {
		if done != nil {
			done(wire.Ack{}, &wire.Failure{Code: "offline", Message: "not connected to Covey", Hint: "it connects again by itself"})
		}
		return
	}
	if done != nil {
		s.seq++
		c.Seq = s.seq
		s.waiting[c.Seq] = done
	}
	s.write(c)
}

func (s *Socket) write(c wire.Command) {
	raw := c.Append(nil)
	array := js.Global().Get("Uint8Array").New(len(raw))
	js.CopyBytesToJS(array, raw)
	s.ws.Call("send", array)
}

// Beat is called every 20 seconds: it pings a silent connection and gives up on one that stays silent.
func (s *Socket) Beat() {
	if !s.ready {
		return
	}
	if !s.heard {
		s.ws.Call("close")
		s.lost(0)
		return
	}
	s.heard = false
	s.write(wire.Command{Name: wire.Ping})
}

// Retry connects at once instead of waiting, for example when the browser says that it is online again.
func (s *Socket) Retry() {
	if s.wait {
		s.failed = 0
		s.Connect()
	}
}

func (s *Socket) lost(code int) {
	s.ready = false
	s.ws = js.Null()
	waiting := s.waiting
	s.waiting = map[uint64]func(wire.Ack, *wire.Failure){}
	for _, done := range waiting {
		done(wire.Ack{}, &wire.Failure{Code: "offline", Message: "the connection broke before the answer came", Hint: "look whether it was done, then try again"})
	}
	if code == unauthorised {
		s.State(Closed)
		return
	}
	s.State(Connecting)
	delay := min(250<<min(s.failed, 5), 8000)
	s.failed++
	s.wait = true
	dom.After(delay, func() {
		if s.wait {
			s.Connect()
		}
	})
}

func (s *Socket) receive(data js.Value) {
	s.heard = true
	if data.Type() == js.TypeString {
		patch, err := wire.DecodePatch(data.String())
		if err != nil {
			dom.Crashed("patch: " + err.Error())
			return
		}
		s.Patch(patch)
		return
	}
	array := js.Global().Get("Uint8Array").New(data)
	n := array.Length()
	if cap(s.buffer) < n {
		s.buffer = make([]byte, n+n/2)
	}
	frame := s.buffer[:n]
	js.CopyBytesToGo(frame, array)
	if err := s.handle(frame); err != nil {
		dom.Crashed("frame: " + err.Error())
	}
}

// handle takes one frame. Decoders copy what they keep: frame is overwritten by the next one.
func (s *Socket) handle(frame []byte) error {
	switch kind := wire.FrameKind(frame); kind {
	case wire.KindWelcome:
		w, err := wire.DecodeWelcome(frame)
		if err != nil {
			return err
		}
		if w.Version != wire.Version {
			js.Global().Get("location").Call("reload")
			return nil
		}
		again := s.seen
		if s.ready {
			again = false // the model has been loaded meanwhile: news, not a new connection
		}
		s.ready, s.seen, s.failed = true, true, 0
		s.State(Open)
		s.Welcome(w, again)
	case wire.KindPong:
	case wire.KindAck:
		a, err := wire.DecodeAck(frame)
		if err != nil {
			return err
		}
		if done := s.waiting[a.Seq]; done != nil {
			delete(s.waiting, a.Seq)
			done(a, nil)
		}
	case wire.KindFailure:
		f, err := wire.DecodeFailure(frame)
		if err != nil {
			return err
		}
		if done := s.waiting[f.Seq]; done != nil && f.Seq != 0 {
			delete(s.waiting, f.Seq)
			done(wire.Ack{}, &f)
			return nil
		}
		s.Binary(kind, frame)
	default:
		s.Binary(kind, frame)
	}
	return nil
}
