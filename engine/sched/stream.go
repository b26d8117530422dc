package sched

import (
	"context"
	"io"
	"sync"

	"covey/engine/route"
)

// Stream is the reading end of one request. The scheduler never waits for its reader: outputs are kept until read, and
// there are never more of them than the request may have tokens plus one report of progress. One goroutine reads;
// Cancel may be called from any.
type Stream struct {
	id     uint64
	cancel func()

	mu       sync.Mutex
	outputs  []Output
	progress bool          // the last output is queue or prefill progress, which a newer report replaces
	wake     chan struct{} // capacity 1: something changed
	routing  []*route.Event
	result   *Result // nil until the request has ended
}

// ID is the sequence number that routing events of this request carry.
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

// Cancel asks for the end of the request: it takes part in no step that starts after this call, and its stream ends
// with FinishCancel unless it has ended already. Outputs made before can still be read. Cancel does not wait.
func (s *Stream) Cancel() { s.cancel() }

// Result is the account of the request, or nil while it runs (before Next has returned io.EOF it may be either).
func (s *Stream) Result() *Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

// Routing returns the routing events collected so far, in order of position: all of them once the request has ended,
// none unless Request.Routing was set. Rows served from the prefix cache ran in no step of this request: their routing
// is copied from the run that filled the cache. The slice is the caller's, the events are shared and immutable.
func (s *Stream) Routing() []*route.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*route.Event(nil), s.routing...)
}
