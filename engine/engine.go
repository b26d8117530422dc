// Package engine is Covey's Mixture-of-Experts engine behind one facade: open a checkpoint, submit requests, read
// tokens together with the experts that served them.
//
// The packages below it each hold one idea (canon: arithmetic, weights: bytes, model: architectures, kv: caches, sched:
// steps, route: routing events, tokenizer, chat, sample). None of them imports this one, and nothing here knows HTTP,
// SQL or pages.
package engine

import (
	"log/slog"

	"covey/engine/canon"
	"covey/engine/model"
	"covey/engine/route"
	"covey/engine/sched"
)

// Config says how a model is opened. The zero value of a field means its default.
type Config struct {
	Dir         string       // model folder or GGUF file; required
	Threads     int          // C worker threads; 0 = physical cores available to the process
	ISA         string       // kernel family, by a name that canon.Resolve takes; "" = the best of this machine (COVEY_ISA is read by callers)
	KV          string       // f16 (default), bf16 or f32
	Activations string       // int8 (default, rule 1) or f32 (weights dequantised, rule 3; for checking)
	Context     int          // longest sequence in tokens; 0 = the model's own limit
	BatchRows   int          // most rows a step may have; 0 = 256
	PrefillRows int          // most prefill rows of one sequence in a step (the chunk); 0 = BatchRows
	Sequences   int          // most sequences that run at once; further ones queue; 0 = 16
	QueueLimit  int          // most requests waiting; 0 = 256; beyond it Submit returns ErrQueueFull
	KVTokens    int          // capacity of the KV cache in tokens over all sequences; 0 = derived from Context and memory
	Logger      *slog.Logger // nil = discard

	Backend canon.Backend // what runs the forward pass; nil = canon.CPU; if it is an io.Closer, the engine closes it
	// ExpertMemory is how many bytes may hold experts of a container, which are read on demand if they do not all fit; 0 = as
	// many as the machine has left.
	ExpertMemory int64
}

// ModelInfo describes an open model. Immutable.
type ModelInfo struct {
	ID            string      // stable id shown to API users: the folder's base name
	Name          string      // human title
	Architecture  string      // config.json's model_type
	Hash          string      // identity of the checkpoint, see weights.Checkpoint.Hash
	NumericsID    string      // numerics rule version, mode, activations, weight forms, KV form (short hash)
	Numerics      string      // the same, spelled out
	Layers        int         // transformer layers
	Hidden        int         // residual width
	Shape         route.Shape // MoE geometry
	Vocab         int         // vocabulary size
	Context       int         // longest sequence in tokens
	Parameters    int64       // weights in all
	Active        int64       // weights read for one token
	BytesPerToken int64       // weight bytes read for one decoded token at batch 1
	RecordBytes   []int64     // [MoE layers] of them of one expert
	Bytes         int64       // weight bytes resident
	KVBytes       int64       // KV bytes of one token
	ExpertSlots   int         // expert records that fit, where experts are read on demand; 0 = all are resident
	ISA           string      // kernel family in use
	Threads       int
	EOS           []int32 // tokens that end an answer
}

// The vocabulary of requests is the scheduler's; these names are how the rest of Covey speaks it.
type (
	Request = sched.Request
	Output  = sched.Output
	Kind    = sched.Kind
	Result  = sched.Result
	Stats   = sched.Stats
	Expert  = sched.Expert
	Stream  = sched.Stream
)

// Kinds of an Output.
const (
	KindQueued  = sched.KindQueued
	KindPrefill = sched.KindPrefill
	KindToken   = sched.KindToken
)

// Finish reasons of a Result.
const (
	FinishStop   = sched.FinishStop
	FinishLength = sched.FinishLength
	FinishCancel = sched.FinishCancel
	FinishError  = sched.FinishError
)

// Errors that callers test for with errors.Is.
var (
	ErrQueueFull = sched.ErrQueueFull // QueueLimit requests wait already
	ErrTooLong   = sched.ErrTooLong   // the prompt and one token do not fit the context; the text says both numbers
	ErrClosed    = sched.ErrClosed    // the engine is closed or closing
	ErrInvalid   = sched.ErrInvalid   // a request field is out of range; the text says which
	ErrNonFinite = sched.ErrNonFinite // the model produced an infinite or undefined logit (Result.Err)

	ErrNoResiduals = model.ErrNoResiduals // Request.Keep on a model whose steps cannot begin at a router
)
