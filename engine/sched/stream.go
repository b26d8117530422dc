package sched

import (
	"context"
	"io"
	"slices"
	"sync"

	"covey/engine/route"
)

// Stream is the reading end of one request. The scheduler never waits for its reader: outputs are kept until read, and
// there are never more of them than the request may have tokens, plus one report of progress. One goroutine reads;
// the other methods may be called from any.
type Stream struct {
	id     uint64
	cancel func()
	wake   chan struct{} // capacity 1: something changed

	mu       sync.Mutex
	outputs  []Output
	progress bool // the last of outputs is queue or prefill progress, which a newer report replaces
	routing  []*route.Event
	result   *Result // nil until the request has ended
}

// ID is the number of the request: the Sequence of its routing events.
func (s *Stream) ID() uint64 { return s.id }

// Next returns the next output, waiting for it. After the last one it returns io.EOF, and Result is set. It returns
// ctx's error when ctx ends first; the request then goes on.
func (s *Stream) Next(ctx context.Context) (Output, error) {
	for {
		s.mu.Lock()
		if len(s.outputs) > 0 {
			out := s.outputs[0]
			s.outputs[0] = Output{}
			s.outputs = s.outputs[1:]
			s.progress = s.progress && len(s.outputs) > 0
			s.mu.Unlock()
			return out, nil
		}
		ended := s.result != nil
		s.mu.Unlock()
		if ended {
			return Output{}, io.EOF
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Output{}, ctx.Err()
		}
	}
}

// Cancel asks for the end of the request: it takes part in no step that is put together after this call, and its stream
// ends with FinishCancel unless it has ended already. Outputs made before can still be read. Cancel does not wait.
func (s *Stream) Cancel() { s.cancel() }

// Result is the account of the request once it has ended, else nil. It is set no later than Next returns io.EOF.
func (s *Stream) Result() *Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

// Routing returns the routing events collected so far in order of position: those of the whole request once it has
// ended, none unless Request.Routing was set. Prompt rows served from the prefix cache ran in no step of this request
// and have no event. The slice is the caller's, the events are shared and immutable.
func (s *Stream) Routing() []*route.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.routing)
}

// report replaces an unread report of progress, or adds one.
func (s *Stream) report(o Output) {
	s.mu.Lock()
	if s.progress {
		s.outputs[len(s.outputs)-1] = o
	} else {
		s.outputs = append(s.outputs, o)
		s.progress = true
	}
	s.mu.Unlock()
	s.signal()
}

func (s *Stream) token(o Output) {
	s.mu.Lock()
	s.outputs = append(s.outputs, o)
	s.progress = false
	s.mu.Unlock()
	s.signal()
}

func (s *Stream) routed(e *route.Event) {
	s.mu.Lock()
	s.routing = append(s.routing, e)
	s.mu.Unlock()
}

func (s *Stream) finish(r *Result) {
	s.mu.Lock()
	s.result = r
	s.mu.Unlock()
	s.signal()
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
