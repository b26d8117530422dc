package sched

import (
	"sync"
	"sync/atomic"

	"covey/engine/route"
)

// bus hands routing events to subscribers.
type bus struct {
	dropped atomic.Uint64
	count   atomic.Int32

	mu     sync.Mutex
	subs   map[chan *route.Event]struct{}
	closed bool
}

// busDepth is how many events a subscriber may lag behind: 16 steps of 16 sequences.
const busDepth = 256

func (b *bus) subscribe() (<-chan *route.Event, func()) {
	c := make(chan *route.Event, busDepth)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		close(c)
		return c, func() {}
	}
	if b.subs == nil {
		b.subs = map[chan *route.Event]struct{}{}
	}
	b.subs[c] = struct{}{}
	b.count.Add(1)
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if _, ok := b.subs[c]; ok {
			delete(b.subs, c)
			b.count.Add(-1)
			close(c)
		}
	}
}

func (b *bus) publish(e *route.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.subs {
		select {
		case c <- e:
		default:
			b.dropped.Add(1)
		}
	}
}

func (b *bus) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for c := range b.subs {
		delete(b.subs, c)
		close(c)
	}
	b.count.Store(0)
}
