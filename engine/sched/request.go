package sched

import (
	"errors"

	"covey/engine/canon"
	"covey/engine/model"
	"covey/engine/sample"
)

// Errors that callers test for: the first four of Submit, with the numbers at hand, the last of Result.Err, with the
// position.
var (
	ErrQueueFull = errors.New("queue full")
	ErrTooLong   = errors.New("too long for the context")
	ErrClosed    = errors.New("closed")
	ErrInvalid   = errors.New("invalid request")
	ErrNonFinite = canon.ErrNonFinite
)

// Expert names one routed expert: model layer index and id.
type Expert = model.Expert

// Request is one sequence to run. Prompt is required; everything else has a sensible zero. Submit copies what it keeps.
type Request struct {
	Prompt         []int32       // token ids, template already applied
	MaxTokens      int           // most tokens to generate; 0 = prefill only (probes, dry runs)
	Sampling       sample.Params // see that type; zero = greedy
	Choice         int           // choice index, enters the random key beside seed and position
	Stops          []string      // text that ends the answer; not emitted
	IgnoreEOS      bool          // benchmark switch: end-of-answer tokens are ordinary tokens
	Logprobs       int           // alternatives to report per token (0..20); -1 = no log-probabilities at all
	Routing        bool          // collect routing of prompt and answer (Output.IDs, Stream.Routing)
	Hash           bool          // hash logits (Result.Hash)
	PromptLogprobs bool          // log-probability of each prompt token given its prefix (Result.PromptLogprobs)
	Owner          string        // prefix reuse happens only inside one owner; "" = none
	Banned         []Expert      // experts removed from the router's choice (ablation)
	Background     bool          // let ordinary requests go first (probes): waits behind them, reads with a few of the rows they leave, gives up its place to them

	Keep []int            // model layers at whose routers the prompt's rows are kept (Result.Residuals); the prompt is read whole, and nothing more
	From *model.Residuals // of the same prompt: it is read from the first router with a ban on; only PromptLogprobs are reported
}

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
	IDs         []uint16         // [layers, k] experts that served the row which produced this token; nil unless Routing; shared, read only
	Weights     []float32        // [layers, k]; shared, read only
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
	CachedTokens   int              // prompt tokens served from the prefix cache
	Tokens         []int32          // generated, the end-of-answer token excluded
	QueueNanos     int64            // submit to first step
	PrefillNanos   int64            // first step to first token
	DecodeNanos    int64            // first token to last token
	Bytes          int64            // expert bytes read
	Hash           string           // hex SHA-256 over the logits' bits of the last prompt row and of every generated token's row, by position
	PromptLogprobs []float32        // [prompt-1] log-probability of prompt[i+1]
	Residuals      *model.Residuals // what Request.Keep asked for, once the prompt was read
}

// Stats is a snapshot of the load.
type Stats struct {
	Running, Queued          int
	KVTokensUsed, KVTokens   int
	Steps, Rows              uint64 // since start
	DecodeRows, PrefillRows  uint64
	Tokens                   uint64 // generated
	RoutingDropped           uint64 // routing events not delivered because a subscriber was slow
	BusyNanos                int64  // time spent inside steps
	ExpertHits, ExpertMisses uint64 // experts that steps found in memory, and that they read, where experts are read on demand
	ExpertBytes              uint64 // bytes of those reads
	ExpertNanos              int64  // time that steps waited for them
	DeviceLost               bool   // the CPU took over from a device
}
