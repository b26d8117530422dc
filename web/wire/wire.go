// Package wire is the protocol between the daemon and the browser: one WebSocket, binary commands up, binary frames and
// text patches down. Both sides compile this package, so there is one encoder and one decoder for each layout.
//
// Flow:
//
//	login:   client sends Hello (the page token) within 5 s; server answers Welcome
//	steady:  client sends Commands, each with a sequence number; server answers each with Ack or Failure
//	         client sends Watch when a page shows a conversation; server sends Tokens, State, Routing and patches of it
//	         client sends Ping when nothing came for 20 s; server answers Pong
//	resume:  after a reconnect or a reload the client sends Watch with what it already has (tokens and blocks of the
//	         running message); the server goes on from there, or replaces the message when it has ended meanwhile
//
// Encoding: the first byte of a binary frame is its kind; a changed layout takes a new kind, never a new meaning.
// Unless a layout says otherwise integers are unsigned LEB128 varints (uint), a str is a uint length and that many
// bytes of UTF-8, f32 is a little-endian IEEE 754 single. Decoders refuse what is too long, cut short or followed by
// further bytes; they allocate nothing before they have checked a count against the bytes that are left.
//
// docs/protocol.md shows the same with examples; testdata holds golden transcripts.
package wire

import (
	"errors"
	"math"
)

// Version is sent in Hello and Welcome. A page whose version differs from the daemon's reloads itself.
// 1: first form.
const Version = 1

// Limits that both sides hold.
const (
	MaxCommand = 1 << 20 // bytes of one client frame
	MaxFrame   = 8 << 20 // bytes of one server frame
	maxArgs    = 64      // arguments of one command or acknowledgement
	maxLayers  = 1024    // MoE layers
	maxTopK    = 64      // experts a row
	maxExperts = 1 << 16 // experts a layer
)

// Errors of the decoders.
var (
	ErrShort    = errors.New("wire: frame cut short")
	ErrTrailing = errors.New("wire: bytes after the end of the frame")
	ErrKind     = errors.New("wire: unknown frame kind")
	ErrLimit    = errors.New("wire: count or length over the limit")
	ErrText     = errors.New("wire: text is not UTF-8")
)

// appendUint appends v as a LEB128 varint: 7 bits a byte, low bits first, high bit set on all but the last byte.
func appendUint(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func appendString(b []byte, s string) []byte { return append(appendUint(b, uint64(len(s))), s...) }

func appendFloat(b []byte, v float32) []byte {
	u := math.Float32bits(v)
	return append(b, byte(u), byte(u>>8), byte(u>>16), byte(u>>24))
}

// reader walks a frame. The first failure sticks: later reads return zero values, and end reports it.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
		r.b = nil
	}
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail(ErrShort)
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) uint() uint64 {
	var v uint64
	for shift := uint(0); shift < 64; shift += 7 {
		c := r.byte()
		if r.err != nil {
			return 0
		}
		if shift == 63 && c > 1 {
			break
		}
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
	r.fail(ErrLimit)
	return 0
}

// count reads a count of things that take at least size bytes each, so that a hostile count cannot allocate more than
// a small multiple of the frame.
func (r *reader) count(size, limit int) int {
	v := r.uint()
	if v > uint64(limit) {
		r.fail(ErrLimit)
		return 0
	}
	if size > 0 && v > uint64(len(r.b)/size) {
		r.fail(ErrShort)
		return 0
	}
	return int(v)
}

// int reads a number that must fit a Go int on a 32-bit client.
func (r *reader) int() int {
	v := r.uint()
	if v > math.MaxInt32 {
		r.fail(ErrLimit)
		return 0
	}
	return int(v)
}

func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.fail(ErrShort)
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) string() string { return string(r.bytes(r.count(1, MaxFrame))) }

func (r *reader) float() float32 {
	b := r.bytes(4)
	if r.err != nil {
		return 0
	}
	return math.Float32frombits(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) != 0 {
		return ErrTrailing
	}
	return r.err
}
