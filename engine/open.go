package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"

	"covey/engine/canon"
	"covey/engine/chat"
	"covey/engine/kv"
	"covey/engine/memory"
	"covey/engine/model"
	"covey/engine/route"
	"covey/engine/sample"
	"covey/engine/sched"
	"covey/engine/tokenizer"
	"covey/engine/weights"
)

// Engine is one open model with its scheduler. All methods may be called from any goroutine.
type Engine struct {
	info      ModelInfo
	defaults  sample.Params
	tokenizer *tokenizer.Tokenizer
	template  *chat.Template // nil = none
	scheduler *sched.Scheduler
	backend   canon.Backend

	mu     sync.RWMutex // held for reading while a request is checked against the model, for writing while it is freed
	model  *model.Model
	closed bool
}

// Open loads the checkpoint in c.Dir and starts the engine. progress, if not nil, is called with the work done and in
// all, in a unit of its own, by one goroutine at a time. Cancelling ctx abandons the load; it does not close an engine
// once opened.
func Open(ctx context.Context, c Config, progress func(done, total int64)) (*Engine, error) {
	e, err := open(ctx, c.withDefaults(), progress)
	if err != nil {
		return nil, errors.Join(err, closeBackend(c.Backend))
	}
	e.backend = c.Backend
	return e, nil
}

// closeBackend gives a device back; the CPU is nothing to close.
func closeBackend(b canon.Backend) error {
	if c, ok := b.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

func open(ctx context.Context, c Config, progress func(done, total int64)) (*Engine, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	checkpoint, err := weights.Open(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("engine: opening %s: %w", c.Dir, err)
	}
	defer checkpoint.Close()
	e := &Engine{}
	if err := e.open(ctx, c, checkpoint, progress); err != nil {
		if e.model != nil {
			err = errors.Join(err, e.model.Close())
		}
		return nil, fmt.Errorf("engine: opening %s: %w", c.Dir, err)
	}
	return e, nil
}

func (c Config) withDefaults() Config {
	fill := func(value *int, absent int) {
		if *value == 0 {
			*value = absent
		}
	}
	fill(&c.BatchRows, 256)
	fill(&c.PrefillRows, c.BatchRows)
	fill(&c.Sequences, 16)
	fill(&c.QueueLimit, 256)
	return c
}

// check refuses limits that no model can have; defaults are filled in.
func (c Config) check() error {
	if c.Sequences < 1 || c.QueueLimit < 1 || c.BatchRows < 1 || c.PrefillRows < 1 || c.PrefillRows > c.BatchRows || c.KVTokens < 0 || c.Context < 0 {
		return fmt.Errorf("engine: opening: Sequences %d, QueueLimit %d, BatchRows %d, PrefillRows %d, KVTokens %d, Context %d: none may be negative, nor PrefillRows above BatchRows",
			c.Sequences, c.QueueLimit, c.BatchRows, c.PrefillRows, c.KVTokens, c.Context)
	}
	return nil
}

func (e *Engine) open(ctx context.Context, c Config, checkpoint *weights.Checkpoint, progress func(done, total int64)) error {
	files := checkpoint.FS()
	var err error
	if e.tokenizer, err = tokenizer.LoadFS(files, "tokenizer.json"); err != nil {
		return err
	}
	if e.template, err = chat.LoadFS(files); err != nil && !errors.Is(err, chat.ErrNoTemplate) {
		return err
	}
	if e.defaults, err = readDefaults(checkpoint); err != nil {
		return err
	}
	spec, err := model.ReadSpec(checkpoint)
	if err != nil {
		return err
	}
	options, err := c.options(spec, memory.Available())
	if err != nil {
		return err
	}
	if e.model, err = model.Load(ctx, checkpoint, options, progress); err != nil {
		return err
	}
	keep := e.markers()
	info := e.model.Info()
	e.describe(c, spec, info)
	e.scheduler, err = sched.New(sched.Options{
		Model:    e.model,
		LongFrom: spec.LongFrom(),
		KV:       kv.New(info.KVPages, info.States, e.model.ZeroPage),
		Decoder: func() sched.Decoder {
			return &decoder{Stream: e.tokenizer.Stream(true, keep...), tokenizer: e.tokenizer}
		},
		Shape:       info.Shape,
		ExpertBytes: info.RecordBytes,
		Vocab:       spec.Vocab,
		EOS:         spec.EOS,
		Context:     info.Context,
		BatchRows:   c.BatchRows,
		PrefillRows: c.PrefillRows,
		LogitRows:   options.MaxLogits,
		Sequences:   c.Sequences,
		QueueLimit:  c.QueueLimit,
		Logger:      c.Logger,
	})
	return err
}

// options are the model's part of c, where available bytes of memory may be used; 0 = not known.
func (c Config) options(spec *model.Spec, available int64) (model.Options, error) {
	if c.Context == 0 {
		c.Context = spec.Context
	}
	switch {
	case c.KVTokens == 0:
		c.KVTokens = cacheTokens(spec, c, available)
	case c.KVTokens < c.Context:
		return model.Options{}, fmt.Errorf("the KV cache has %d tokens, one sequence may have %d: give the cache more or lower the context", c.KVTokens, c.Context)
	}
	return model.Options{
		Threads: c.Threads, ISA: c.ISA, KV: c.KV, Activations: c.Activations, Context: c.Context, KVTokens: c.KVTokens,
		MaxRows: c.BatchRows, MaxSlots: c.Sequences, MaxLogits: min(c.BatchRows, max(c.Sequences, 64)), Backend: c.Backend, ExpertMemory: c.ExpertMemory,
	}, nil
}

// Plan says what the model of c takes and where that goes, by the rules that Open follows and without reading weights. limit is
// the memory that it may use in bytes; 0 = nearly all that this machine has available. An error with a placement says why the
// model cannot run so; one without says what is wrong with the checkpoint or with c.
func Plan(c Config, limit int64) (*model.Placement, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	fail := func(err error) error {
		if err != nil {
			err = fmt.Errorf("engine: planning %s: %w", c.Dir, err)
		}
		return err
	}
	checkpoint, err := weights.Open(c.Dir)
	if err != nil {
		return nil, fail(err)
	}
	defer checkpoint.Close()
	spec, err := model.ReadSpec(checkpoint)
	if err != nil {
		return nil, fail(err)
	}
	available := limit
	if limit == 0 {
		available = memory.Available()
	}
	options, err := c.options(spec, available)
	if err != nil {
		return nil, fail(err)
	}
	options.Memory = limit
	p, err := model.Place(checkpoint, options)
	return p, fail(err)
}

// markers are the special tokens that are text of an answer all the same, because chat.Reply looks for them.
func (e *Engine) markers() []int32 {
	if e.template == nil {
		return nil
	}
	var ids []int32
	for _, tools := range []bool{false, true} {
		for _, text := range e.template.Format(tools).Markers() {
			if id, ok := e.tokenizer.Added(text); ok && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func (e *Engine) describe(c Config, spec *model.Spec, info model.Info) {
	name := c.Dir
	if abs, err := filepath.Abs(c.Dir); err == nil {
		name = abs
	}
	name = filepath.Base(name)
	e.info = ModelInfo{
		ID: name, Name: name, Architecture: spec.Architecture, Hash: info.Hash, NumericsID: info.NumericsID, Numerics: info.Numerics,
		Layers: spec.Layers, Hidden: spec.Hidden, Shape: info.Shape, Vocab: spec.Vocab, Context: info.Context,
		Parameters: info.Parameters, Active: info.Active, BytesPerToken: info.BytesPerToken, RecordBytes: info.RecordBytes, Bytes: info.Bytes, KVBytes: info.KVBytes, ExpertSlots: info.ExpertSlots,
		ISA: info.ISA.String(), Threads: info.Threads, EOS: spec.EOS,
	}
}

// cacheTokens chooses the capacity of the KV cache when none was asked for: 2,048 tokens for each sequence that may run,
// but no more than a quarter of the memory (limit bytes, 0 = not known) and no less than one whole context.
func cacheTokens(spec *model.Spec, c Config, limit int64) int {
	perToken, err := spec.TokenBytes(c.KV)
	if err != nil {
		return c.Context // the model will say what is wrong with the option
	}
	tokens := int64(c.Sequences) * 2048
	if limit > 0 {
		tokens = min(tokens, limit/4/perToken)
	}
	return int(max(tokens, int64(c.Context)))
}

// Model describes the open model.
func (e *Engine) Model() ModelInfo { return e.info }

// Tokenizer is the checkpoint's tokenizer.
func (e *Engine) Tokenizer() *tokenizer.Tokenizer { return e.tokenizer }

// Template is the checkpoint's chat template, or nil if it has none: then it continues text and has no turns.
func (e *Engine) Template() *chat.Template { return e.template }

// Defaults are the sampling parameters that the checkpoint suggests.
func (e *Engine) Defaults() sample.Params { return e.defaults }

// Submit queues a request. It returns at once: ErrQueueFull, ErrTooLong, ErrInvalid and ErrClosed tell why a request
// was not taken. ctx covers the request, not only the call: when it ends, the request is cancelled.
func (e *Engine) Submit(ctx context.Context, r Request) (*Stream, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return nil, fmt.Errorf("engine: %w", ErrClosed)
	}
	return e.scheduler.Submit(ctx, r)
}

// Subscribe yields the routing events of all sequences from now on, in step order. Events are shared and immutable. A
// reader that falls behind loses events (Stats.RoutingDropped counts them); the engine never waits for one. cancel ends
// the subscription and closes the channel; Close closes it too.
func (e *Engine) Subscribe() (events <-chan *route.Event, cancel func()) {
	return e.scheduler.Subscribe()
}

// Stats is a snapshot of the load.
func (e *Engine) Stats() Stats { return e.scheduler.Stats() }

// Resident says which experts are in memory at this moment, [MoE layers, experts]; a step may change it at once.
func (e *Engine) Resident() []bool {
	s := e.info.Shape
	out := make([]bool, len(s.Layers)*s.Experts)
	for i := range out {
		out[i] = e.model.Resident(i/s.Experts, i%s.Experts)
	}
	return out
}

// Close ends running requests with FinishCancel, waits for the step in hand and frees the model. Closing twice is
// harmless; Submit returns ErrClosed afterwards.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.scheduler.Close()
	return errors.Join(e.model.Close(), closeBackend(e.backend))
}
