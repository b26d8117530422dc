package atlas

import (
	"context"

	"covey/atlas/probes"
	"covey/engine"
	"covey/engine/route"
)

// Model is what a probe run asks of a model. Two exist: an open engine (FromEngine) and the planted model that proves
// the method (Planted). Methods may be called from many goroutines; a model shares steps between the forwards in flight.
type Model interface {
	// Info describes the model; constant.
	Info() engine.ModelInfo
	// Encode turns a probe into tokens.
	Encode(p probes.Probe) (Prompt, error)
	// Forward reads tokens once without generating. The routing covers every position in order.
	Forward(ctx context.Context, tokens []int32, o ForwardOptions) (Forward, error)
}

// Prompt is an encoded probe. Only positions [From, To) are counted: a chat template's own tokens are read, not counted.
type Prompt struct {
	Tokens   []int32
	From, To int
}

// ForwardOptions change a forward.
type ForwardOptions struct {
	Banned   []engine.Expert // experts taken out of the router's choice
	Routing  bool            // report Events
	Logprobs bool            // report Logprobs
}

// Forward is what a model reports of one reading.
type Forward struct {
	Events   []*route.Event // consecutive rows from position 0
	Logprobs []float32      // [tokens-1] log-probability of token i+1 given those before
}
