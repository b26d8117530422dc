package engine

import (
	"context"
	"errors"

	"covey/engine/route"
	"covey/engine/sample"
)

// Engine is one open model with its scheduler. All methods may be called from any goroutine.
type Engine struct {
	info     ModelInfo
	defaults sample.Params
}

// Open loads the checkpoint in c.Dir and starts the engine. progress, if not nil, is called with bytes loaded and in
// all, from one goroutine at a time. Cancelling ctx abandons the load; it does not close an engine once opened.
func Open(ctx context.Context, c Config, progress func(done, total int64)) (*Engine, error) {
	return nil, errors.New("engine: no model yet")
}

// Model describes the open model.
func (e *Engine) Model() ModelInfo { return e.info }

// Defaults are the sampling parameters that the checkpoint suggests (generation_config.json).
func (e *Engine) Defaults() sample.Params { return e.defaults }

// Submit queues a request. It returns at once: ErrQueueFull, ErrTooLong, ErrInvalid and ErrClosed tell why a request
// was not taken. ctx covers the request, not only the call: when it ends, the request is cancelled.
func (e *Engine) Submit(ctx context.Context, r Request) (*Stream, error) {
	return nil, ErrClosed
}

// Subscribe yields the routing events of all sequences from now on, in step order. A reader that falls behind loses
// events (Stats.RoutingDropped counts them); the engine never waits for one. cancel ends the subscription and closes
// the channel; Close closes it too.
func (e *Engine) Subscribe() (events <-chan *route.Event, cancel func()) {
	c := make(chan *route.Event)
	close(c)
	return c, func() {}
}

// Stats is a snapshot of the load.
func (e *Engine) Stats() Stats { return Stats{} }

// Close ends running requests with FinishCancel, waits for the step in hand and frees the model. Further calls return
// ErrClosed where they can.
func (e *Engine) Close() error { return nil }
