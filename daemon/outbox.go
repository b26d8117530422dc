package daemon

import "sync"

// Class says what may happen to a frame when the browser reads too slowly.
type Class uint8

const (
	Essential Class = iota // tokens, patches, answers to commands: never dropped, always in order
	Visual                 // routing pulses, progress: sent after essential frames, replaced by newer ones, dropped first
)

// Frame is one message to the browser. Its data belongs to the connection once sent and is not copied: encode it anew
// for each connection or do not touch it again.
type Frame struct {
	Class Class
	Text  bool   // a text patch; otherwise binary
	Key   string // Visual only: a waiting frame with the same key is replaced; "" = never replaced
	Data  []byte
}

// Limits of what one connection may have waiting.
const (
	outboxBytes  = 12 << 20 // essential bytes; one wire.MaxFrame must fit with room to spare
	outboxFrames = 8192     // essential frames
	outboxVisual = 64       // visual frames; the oldest goes first
)

type putResult uint8

const (
	outboxTaken  putResult = iota
	outboxFull             // an essential frame found no room: the reader is too slow
	outboxClosed           // nothing is sent any more
)

// outbox is the bounded queue between everybody who sends to a connection and its one writer.
type outbox struct {
	dropped func()        // counts visual frames thrown away
	wake    chan struct{} // capacity 1: something was put
	closed  chan struct{}

	mu        sync.Mutex
	done      bool
	essential []Frame
	bytes     int // of essential
	visual    []Frame
}

func newOutbox(dropped func()) *outbox {
	return &outbox{dropped: dropped, wake: make(chan struct{}, 1), closed: make(chan struct{})}
}

// put queues a frame without waiting.
func (o *outbox) put(f Frame) putResult {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return outboxClosed
	}
	if f.Class == Essential {
		if len(o.essential) >= outboxFrames || o.bytes+len(f.Data) > outboxBytes {
			return outboxFull
		}
		o.essential = append(o.essential, f)
		o.bytes += len(f.Data)
	} else {
		o.putVisual(f)
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return outboxTaken
}

func (o *outbox) putVisual(f Frame) {
	if f.Key != "" {
		for i := range o.visual {
			if o.visual[i].Key == f.Key {
				o.visual[i] = f
				o.dropped()
				return
			}
		}
	}
	if len(o.visual) == outboxVisual {
		copy(o.visual, o.visual[1:])
		o.visual = o.visual[:outboxVisual-1]
		o.dropped()
	}
	o.visual = append(o.visual, f)
}

// take returns the next frame to write: essential ones first, each class in order.
func (o *outbox) take() (Frame, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return Frame{}, false
	}
	queue := &o.essential
	if len(*queue) == 0 {
		queue = &o.visual
	}
	if len(*queue) == 0 {
		return Frame{}, false
	}
	f := (*queue)[0]
	(*queue)[0] = Frame{}
	*queue = (*queue)[1:]
	if f.Class == Essential {
		o.bytes -= len(f.Data)
	}
	if len(*queue) == 0 {
		*queue = nil
	}
	return f, true
}

// close throws away what waits and refuses further frames.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return
	}
	o.done = true
	o.essential, o.visual, o.bytes = nil, nil, 0
	close(o.closed)
}
