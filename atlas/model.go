package atlas

import (
	"context"
	"errors"
	"fmt"
	"slices"

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

// ForwardOptions say what a forward reports.
type ForwardOptions struct {
	Routing bool   // report Events
	Score   *Score // report Scores; nil = not
}

// Score asks how likely a text is, as it is and without some experts.
type Score struct {
	From, To int               // the tokens that count; the first token of a text has no probability
	Without  [][]engine.Expert // sets of experts, each taken out of the router's choice for one more reading
}

// Forward is what a model reports of one reading.
type Forward struct {
	Events []*route.Event // consecutive rows from position 0
	Scores []float64      // [1 + len(Score.Without)] mean log-probability of the tokens that count, the text as it is first
}

// mean of the log-probabilities of the tokens that count; [tokens-1], of token i+1 given those before.
func (s *Score) mean(logprobs []float32) float64 {
	from, sum := max(s.From, 1), 0.0
	for _, v := range logprobs[from-1 : s.To-1] {
		sum += float64(v)
	}
	return sum / float64(s.To-from)
}

// check refuses what has no mean.
func (s *Score) check(tokens int) error {
	if s.To > tokens || s.To-max(s.From, 1) < 1 {
		return fmt.Errorf("atlas: tokens %d to %d of %d have no log-probability", s.From, s.To, tokens)
	}
	if slices.ContainsFunc(s.Without, func(experts []engine.Expert) bool { return len(experts) == 0 }) {
		return errors.New("atlas: a removal of no expert")
	}
	return nil
}
