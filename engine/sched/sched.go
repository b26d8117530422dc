// Package sched turns requests into steps.
//
// One goroutine owns the model and its KV cache. It puts together a step (a list of rows: decode rows first, then as
// many prefill rows as fit), runs it, chooses tokens, and begins again; between steps it admits, cancels and ends
// requests. Nothing on that path waits for a reader: streams keep what is unread, routing subscriptions drop.
//
// What a request computes depends on its own tokens alone, never on its neighbours, on how its prompt was cut or on
// where its rows ran; the model guarantees it (numerics rule 6) and everything here builds on it. A sequence is
// therefore just a list of tokens of which the first so many lie in the KV cache: a running one can be put back into
// the queue when pages run out, and later reads its own answer again as if it were prompt, with the same result.
//
// Order: requests are admitted first come, first served, ordinary ones before background ones. When pages or places run
// out, the sequence admitted last goes back to the queue, a background one before any other; the oldest always runs on,
// so everything ends. A quarter of the prefill rows goes to the oldest prompt, the rest to those that need least (deal).
// Steps that somebody waits for are kept short by what rows have taken so far (pace); only how long things take depends on it.
package sched

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"unicode/utf8"

	"covey/engine/kv"
	"covey/engine/model"
	"covey/engine/route"
)

// Model runs steps.
type Model interface {
	// Step runs one forward over the rows of a batch; see model.Batch and model.Output. An error fails every request
	// that has rows in the batch. It is called by one goroutine.
	Step(*model.Batch) (*model.Output, error)
	// NewBan makes the set of experts that a request bans; it fails if a router would have too few left. It may be
	// called from any goroutine, also during a step.
	NewBan(experts []Expert) (*model.Ban, error)
	// NewResiduals makes room for the rows of a request that keeps them; model.ErrNoResiduals if this model cannot. It may be
	// called from any goroutine.
	NewResiduals(layers []int, rows int) (*model.Residuals, error)
}

// Decoder turns the tokens of one answer into text that always ends at a whole character.
type Decoder interface {
	Push(token int32) string // text that this token completes
	Pending() bool           // tokens were added whose text is not complete yet
	Flush() string           // what is left when the answer has ended
}

// Options say what a scheduler runs on. All fields without a default are required.
type Options struct {
	Model       Model
	KV          *kv.Cache
	Decoder     func() Decoder // for one answer; special tokens are no text
	Shape       route.Shape
	ExpertBytes []int64 // [MoE layers] bytes of one expert record
	Vocab       int
	EOS         []int32 // tokens that end an answer
	Context     int     // longest sequence in tokens
	LongFrom    int     // a sequence of more tokens is long (canon.Step.Long), and what is cached of it before is computed again; 0 = none is
	BatchRows   int     // most rows of a step
	PrefillRows int     // most prefill rows of one sequence in a step; 0 = BatchRows
	LogitRows   int     // most rows of a step whose logits the model keeps; 0 = BatchRows
	Sequences   int     // most sequences that run at once
	QueueLimit  int     // most requests that wait
	Logger      *slog.Logger
}

// Limits on one request.
const (
	MaxStops     = 16
	MaxStopBytes = 256
	MaxLogprobs  = 20
)

// Scheduler is a running scheduler. All methods may be called from any goroutine.
type Scheduler struct {
	o    Options
	wake chan struct{} // capacity 1: the queue, a cancellation or the end needs looking at
	done chan struct{} // closed when the goroutine has ended
	bus  bus

	mu     sync.Mutex
	queue  []*sequence // waiting, in order of admission
	nextID uint64
	closed bool
	stats  Stats
	lost   bool // a device was lost once; of the scheduler's goroutine

	// Below: the goroutine's own.
	running  []*sequence // in order of admission
	admitted uint64      // admissions so far
	batch    model.Batch
	parts    []part
	due      []*part // of parts: those whose next token is chosen
	pace     pace
	touched  []uint64 // bit set over MoE layers x experts, for counting bytes
}

// New starts a scheduler. The KV cache must be able to hold one sequence of Context tokens; model and cache belong to
// the scheduler until Close has returned.
func New(o Options) (*Scheduler, error) {
	for _, c := range []struct {
		name  string
		value *int
		zero  int // what 0 means; 0 = not allowed
	}{
		{"Vocab", &o.Vocab, 0}, {"Context", &o.Context, 0}, {"BatchRows", &o.BatchRows, 0}, {"Sequences", &o.Sequences, 0},
		{"QueueLimit", &o.QueueLimit, 0}, {"PrefillRows", &o.PrefillRows, o.BatchRows}, {"LogitRows", &o.LogitRows, o.BatchRows},
	} {
		if *c.value == 0 {
			*c.value = c.zero
		}
		if *c.value <= 0 {
			return nil, fmt.Errorf("sched: option %s is %d, want 1 or more", c.name, *c.value)
		}
	}
	if have := o.KV.Capacity(); have < o.Context {
		return nil, fmt.Errorf("sched: the kv cache holds %d tokens, one sequence may have %d: give it more memory or lower the context", have, o.Context)
	}
	if len(o.ExpertBytes) != len(o.Shape.Layers) {
		return nil, fmt.Errorf("sched: %d expert sizes for %d moe layers", len(o.ExpertBytes), len(o.Shape.Layers))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Scheduler{
		o:       o,
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		touched: make([]uint64, (len(o.Shape.Layers)*o.Shape.Experts+63)/64),
	}
	s.stats.KVTokens = o.KV.Capacity()
	go s.loop()
	return s, nil
}

// Submit queues a request. It returns at once: errors match ErrQueueFull, ErrTooLong, ErrInvalid or ErrClosed. ctx
// covers the whole request, not only the call: when it ends, the request is cancelled.
func (s *Scheduler) Submit(ctx context.Context, r Request) (*Stream, error) {
	if err := s.check(&r); err != nil {
		return nil, err
	}
	var ban *model.Ban
	if len(r.Banned) > 0 {
		var err error
		if ban, err = s.o.Model.NewBan(r.Banned); err != nil {
			return nil, fmt.Errorf("sched: %w: banned experts: %w", ErrInvalid, err)
		}
	}
	q := newSequence(r, ban, s.o.Decoder)
	switch {
	case len(r.Keep) > 0 && (r.MaxTokens > 0 || r.From != nil):
		return nil, fmt.Errorf("sched: %w: a request that keeps residuals only reads its prompt, from the beginning", ErrInvalid)
	case len(r.Keep) > 0:
		var err error
		if q.result.Residuals, err = s.o.Model.NewResiduals(r.Keep, len(r.Prompt)); err != nil {
			return nil, fmt.Errorf("sched: %w: %w", ErrInvalid, err)
		}
	case r.From != nil:
		if ban == nil || r.MaxTokens > 0 || r.Routing || r.Hash || !r.From.Has(ban.First(), len(r.Prompt)) {
			return nil, fmt.Errorf("sched: %w: a request that begins at a router bans experts, only reads its prompt, and has the residuals of that prompt at the first router with a ban", ErrInvalid)
		}
		q.router = ban.First()
	}
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return nil, fmt.Errorf("sched: %w", ErrClosed)
	case len(s.queue) >= s.o.QueueLimit:
		s.mu.Unlock()
		return nil, fmt.Errorf("sched: %w: %d requests wait already", ErrQueueFull, s.o.QueueLimit)
	}
	s.nextID++
	q.id = s.nextID
	q.stream = &Stream{id: q.id, wake: make(chan struct{}, 1), cancel: func() {
		q.cancelled.Store(true)
		s.signal()
	}}
	s.enqueue(q, false)
	q.release = context.AfterFunc(ctx, q.stream.Cancel)
	s.mu.Unlock()
	s.signal()
	return q.stream, nil
}

func (s *Scheduler) check(r *Request) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("sched: %w: %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	if len(r.Prompt) == 0 {
		return invalid("the prompt is empty")
	}
	for i, t := range r.Prompt {
		if t < 0 || int(t) >= s.o.Vocab {
			return invalid("prompt token %d at position %d, the vocabulary has %d", t, i, s.o.Vocab)
		}
	}
	if r.MaxTokens < 0 {
		return invalid("MaxTokens is %d", r.MaxTokens)
	}
	if need := len(r.Prompt) + min(1, r.MaxTokens); need > s.o.Context {
		return fmt.Errorf("sched: %w: the prompt has %d tokens and at least %d would follow, the context is %d tokens", ErrTooLong,
			len(r.Prompt), min(1, r.MaxTokens), s.o.Context)
	}
	if r.Choice < 0 || r.Choice > 1<<20 {
		return invalid("choice index %d", r.Choice)
	}
	if r.Logprobs < -1 || r.Logprobs > min(MaxLogprobs, s.o.Vocab) {
		return invalid("Logprobs is %d, want -1 to %d", r.Logprobs, MaxLogprobs)
	}
	if len(r.Stops) > MaxStops {
		return invalid("%d stop texts, at most %d", len(r.Stops), MaxStops)
	}
	for i, stop := range r.Stops {
		if stop == "" || len(stop) > MaxStopBytes || !utf8.ValidString(stop) {
			return invalid("stop text %d has %d bytes, want 1 to %d of UTF-8", i, len(stop), MaxStopBytes)
		}
	}
	if err := r.Sampling.Validate(s.o.Vocab); err != nil {
		return fmt.Errorf("sched: %w: %w", ErrInvalid, err)
	}
	return nil
}

// Subscribe yields the routing events of all sequences from now on, in step order. Events are shared and immutable. A
// reader that falls more than a few steps behind loses events, which Stats counts; nothing waits for it. cancel ends
// the subscription and closes the channel, once; Close closes it too.
func (s *Scheduler) Subscribe() (events <-chan *route.Event, cancel func()) { return s.bus.subscribe() }

// Stats is a snapshot of the load.
func (s *Scheduler) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Queued = len(s.queue)
	st.RoutingDropped = s.bus.dropped.Load()
	return st
}

// Close ends every request with FinishCancel and waits for the step in hand. Closing twice is harmless.
func (s *Scheduler) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.signal()
	<-s.done
}

func (s *Scheduler) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// loop is the goroutine that owns the model.
func (s *Scheduler) loop() {
	defer close(s.done)
	defer s.bus.close()
	for {
		if s.reap() {
			s.snapshot()
			return
		}
		s.lengthen()
		s.admit()
		s.plan()
		s.snapshot()
		if len(s.parts) > 0 {
			s.step()
			continue
		}
		<-s.wake
	}
}

// reap ends cancelled requests, and all of them once the scheduler is closed, which it reports.
func (s *Scheduler) reap() (closed bool) {
	s.mu.Lock()
	closed = s.closed
	gone := func(q *sequence) bool { return closed || q.cancelled.Load() }
	var ended []*sequence
	s.queue = slices.DeleteFunc(s.queue, func(q *sequence) bool {
		if gone(q) {
			ended = append(ended, q)
			return true
		}
		return false
	})
	if len(ended) > 0 {
		s.announce()
	}
	s.mu.Unlock()
	for _, q := range slices.Clone(s.running) {
		if gone(q) {
			ended = append(ended, q)
		}
	}
	for _, q := range ended {
		s.end(q, FinishCancel, nil)
	}
	return closed
}

// enqueue puts q into the queue: behind all others of its kind, or before them if it had been admitted already. The
// caller holds mu.
func (s *Scheduler) enqueue(q *sequence, returned bool) {
	at := len(s.queue)
	for i, other := range s.queue {
		if !q.req.Background && other.req.Background || returned && q.req.Background == other.req.Background {
			at = i
			break
		}
	}
	s.queue = slices.Insert(s.queue, at, q)
	s.announce()
}

// announce tells waiting requests their places. The caller holds mu.
func (s *Scheduler) announce() {
	for i, q := range s.queue {
		if q.place != i {
			q.place = i
			q.stream.report(Output{Kind: KindQueued, Done: i})
		}
	}
}

// admit moves requests from the head of the queue into the step while places and pages last. An ordinary request may
// put background ones back into the queue.
func (s *Scheduler) admit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		q := s.queue[0]
		if !s.open(q) {
			victim := s.youngest(true)
			if q.req.Background || victim == nil {
				return
			}
			s.preempt(victim)
			continue
		}
		s.queue = s.queue[1:]
		q.place = -1
		s.admitted++
		q.order = s.admitted
		s.running = append(s.running, q)
		s.announce()
	}
}

// open reserves a place and the pages of all tokens of q and one more, starting from what the prefix index holds.
func (s *Scheduler) open(q *sequence) bool {
	if len(s.running) >= s.o.Sequences {
		return false
	}
	owner, reuse := q.req.Owner, len(q.tokens)
	if q.long = s.long(q); q.long && owner != "" {
		owner += "\x00long" // shares nothing with shorter ones
	}
	if q.ban != nil {
		owner = "" // keys and values of a banned run are no use to others, nor theirs to it
	}
	if q.req.PromptLogprobs && q.recorded < q.prompt || q.result.Residuals != nil {
		reuse = 0 // every prompt row's logits or residuals are wanted
	}
	c := s.o.KV.Open(owner, q.tokens, reuse)
	if err := c.Reserve(min(len(q.tokens)+1, s.o.Context)); err != nil {
		c.Close()
		return false
	}
	q.kv = c
	if !q.started {
		q.result.CachedTokens = c.Len()
	}
	return true
}

// long says whether a sequence is longer than what the model takes for short.
func (s *Scheduler) long(q *sequence) bool { return s.o.LongFrom > 0 && len(q.tokens) > s.o.LongFrom }

// lengthen puts back sequences that have grown long: all that is cached of them was turned by the frequencies of short ones.
func (s *Scheduler) lengthen() {
	for _, q := range slices.Clone(s.running) {
		if !q.long && s.long(q) {
			s.mu.Lock()
			s.preempt(q)
			s.mu.Unlock()
		}
	}
}

// youngest is the running sequence admitted last, background ones first, or nil.
func (s *Scheduler) youngest(background bool) *sequence {
	for i := len(s.running) - 1; i >= 0; i-- {
		if s.running[i].req.Background {
			return s.running[i]
		}
	}
	if background || len(s.running) == 0 {
		return nil
	}
	return s.running[len(s.running)-1]
}

// preempt puts a running sequence back into the queue and frees its pages. The caller holds mu.
func (s *Scheduler) preempt(q *sequence) {
	q.kv.Close()
	q.kv = nil
	s.remove(q)
	s.enqueue(q, true)
}

func (s *Scheduler) remove(q *sequence) {
	s.running = slices.DeleteFunc(s.running, func(other *sequence) bool { return other == q })
}

// end finishes a request that is no longer in the queue, wherever it stands.
func (s *Scheduler) end(q *sequence, finish string, err error) {
	if q.kv != nil {
		q.kv.Close()
		q.kv = nil
		s.remove(q)
	}
	q.release()
	q.end(finish, err)
}

// snapshot publishes the goroutine's part of the statistics.
func (s *Scheduler) snapshot() {
	s.mu.Lock()
	s.stats.Running = len(s.running)
	s.stats.KVTokensUsed = s.o.KV.Stats().InUse * kv.PageTokens
	s.mu.Unlock()
}
