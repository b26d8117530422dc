// Package engine is Covey's Mixture-of-Experts engine behind one facade: open a checkpoint, submit requests, read
// tokens together with the experts that served them.
//
// The packages below it each hold one idea (canon: arithmetic, weights: bytes, model: architectures, kv: caches, sched:
// steps, route: routing events, tokenizer, chat, sample). None of them imports this one, and nothing here knows HTTP,
// SQL or pages.
package engine

import (
	"log/slog"

	"covey/engine/route"
	"covey/engine/sample"
)

// Config says how a model is opened. The zero value of a field means its default.
type Config struct {
	Dir         string       // model folder; required
	Threads     int          // C worker threads; 0 = physical cores available to the process
	ISA         string       // "", portable, avx2, avx512, vnni, amx; "" = best this machine has (COVEY_ISA is read by callers)
	KV          string       // f16 (default), bf16 or f32
	Activations string       // int8 (default, rule 1) or f32 (weights dequantised, rule 3; for checking)
	Context     int          // longest sequence in tokens; 0 = the model's own limit
	BatchRows   int          // most rows a step may have; 0 = 256
	PrefillRows int          // most prefill rows of one sequence in a step (the chunk); 0 = BatchRows
	Sequences   int          // most sequences that run at once; further ones queue; 0 = 16
	QueueLimit  int          // most requests waiting; 0 = 256; beyond it Submit returns ErrQueueFull
	KVTokens    int          // capacity of the KV cache in tokens over all sequences; 0 = derived from Context and memory
	Logger      *slog.Logger // nil = discard
}

// ModelInfo describes an open model. Immutable.
type ModelInfo struct {
	ID           string      // stable id shown to API users: the folder's base name
	Name         string      // human title
	Architecture string      // config.json's model_type
	Hash         string      // hex SHA-256 over names, shapes and bytes of all tensors' files' headers and sizes, config and tokenizer
	NumericsID   string      // numerics rule version, mode, activations, weight forms, KV form (short hash)
	Numerics     string      // the same, spelled out
	Layers       int         // transformer layers
	Hidden       int         // residual width
	Shape        route.Shape // MoE geometry
	Vocab        int         // vocabulary size
	Context      int         // longest sequence in tokens
	Parameters   int64       // weights in all
	Active       int64       // weights read for one token
	BytesPerToken int64      // weight bytes read for one decoded token at batch 1
	Bytes        int64       // weight bytes resident
	ISA          string      // kernel family in use
	Threads      int
	EOS          []int32 // tokens that end an answer
}

// Request is one sequence to run. Prompt is required; everything else has a sensible zero.
type Request struct {
	Prompt    []int32       // token ids, template already applied
	MaxTokens int           // most tokens to generate; 0 = prefill only (probes, dry runs)
	Sampling  sample.Params // see that type; zero = greedy
	Choice    int           // choice index, enters the random key beside seed and position
	Stops     []string      // text that ends the answer; not emitted
	IgnoreEOS bool          // benchmark switch
	Logprobs  int           // alternatives to report per token (0..20); -1 = none at all
	Routing   bool          // collect routing of prompt and answer (Output.IDs, Stream.Routing)
	Hash      bool          // hash logits (Result.Hash)
	PromptLogprobs bool     // log-probability of each prompt token given its prefix (Result.PromptLogprobs)
	Owner     string        // prefix reuse happens only inside one owner; "" = none
	Banned    []Expert      // experts removed from the router's choice (ablation)
}

// Expert names one routed expert: model layer index and id.
type Expert struct{ Layer, ID int }

// Kind of an Output.
type Kind uint8

const (
	KindQueued  Kind = iota // waiting: Done = place in the queue (0 = next)
	KindPrefill             // prompt being read: Done of Total rows
	KindToken               // one answer token
)

// Output is what a Stream yields while a request runs.
type Output struct {
	Kind        Kind
	Done, Total int
	Token       int32
	Position    int              // position of Token in the sequence
	Text        string           // whole UTF-8 text released by this token; may be "" while a character or stop is incomplete
	Logprob     float32          // natural log probability under the unmodified distribution (temperature 1, no penalties)
	Top         []sample.Logprob // alternatives, most likely first
	IDs         []uint16         // [layers, k] experts that served the row which produced this token; nil unless Routing
	Weights     []float32        // [layers, k]
}

// Finish reasons.
const (
	FinishStop   = "stop"   // end-of-answer token or stop text
	FinishLength = "length" // MaxTokens or context reached
	FinishCancel = "cancel" // the caller cancelled
	FinishError  = "error"  // Result.Err says what
)

// Result is the account of a finished request.
type Result struct {
	Finish         string
	Stop           string // the stop text that matched, if any
	Err            error
	PromptTokens   int
	CachedTokens   int // prompt tokens served from the prefix cache
	Tokens         []int32
	QueueNanos     int64 // submit to first step
	PrefillNanos   int64 // first step to first token
	DecodeNanos    int64 // first token to last token
	Bytes          int64 // expert bytes read
	Hash           string // hex SHA-256 over the logits' bits of the last prompt row and of every generated token, by position
	PromptLogprobs []float32 // [prompt-1] log-probability of prompt[i+1]
}

// Stats is a snapshot of the engine's load.
type Stats struct {
	Running, Queued      int
	KVTokensUsed, KVTokens int
	Steps, Rows          uint64 // since start
	DecodeRows, PrefillRows uint64
	Tokens               uint64 // generated
	BusyNanos            int64  // time spent inside steps
}
