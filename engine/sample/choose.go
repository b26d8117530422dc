package sample

import (
	"errors"
	"maps"
	"slices"

	"covey/engine/canon"
)

// ErrNonFinite means that no token can be chosen, because no logit is finite.
var ErrNonFinite = errors.New("sample: no finite logit")

// State is the choice of tokens for one sequence. Two states with equal parameters, choice index and tokens choose
// alike for equal logits, whatever else happens around them. Not safe for concurrent use.
type State struct {
	params  Params
	choice  uint32
	window  window
	biasIDs []int32 // ascending
	bias    []float32
	rewrite bool // something changes the logits before the draw
	repeat  bool
	count   bool
}

// NewState starts a sequence with its prompt, of which it keeps no reference. Params must be valid.
func NewState(p Params, choice int, prompt []int32) *State {
	s := &State{params: p, choice: uint32(choice)}
	s.repeat = p.RepetitionPenalty != 0 && p.RepetitionPenalty != 1
	s.count = p.FrequencyPenalty != 0 || p.PresencePenalty != 0
	s.rewrite = s.repeat || s.count || len(p.LogitBias) > 0
	if s.repeat || s.count {
		s.window = newWindow(p.PenaltyWindow, prompt)
	}
	s.biasIDs = slices.Sorted(maps.Keys(p.LogitBias))
	for _, id := range s.biasIDs {
		s.bias = append(s.bias, p.LogitBias[id])
	}
	return s
}

// Choose draws the token for a position from logits [vocab], which it leaves alone; scratch [vocab] is overwritten.
func (s *State) Choose(logits, scratch []float32, position int) (int32, error) {
	if s.rewrite {
		logits = scratch[:copy(scratch, logits)]
		canon.AddBias(logits, s.biasIDs, s.bias)
		if s.repeat {
			canon.Penalise(logits, s.window.seen.ids, s.window.seen.counts, canon.Penalty{Repetition: s.params.RepetitionPenalty})
		}
		if s.count {
			canon.Penalise(logits, s.window.answer.ids, s.window.answer.counts,
				canon.Penalty{Frequency: s.params.FrequencyPenalty, Presence: s.params.PresencePenalty})
		}
	}
	token := canon.Sample(logits, canon.Sampling{
		Temperature: s.params.Temperature, TopK: s.params.TopK, TopP: s.params.TopP, MinP: s.params.MinP,
		Seed: s.params.Seed, Choice: s.choice, Position: uint32(position),
	})
	if token < 0 {
		return 0, ErrNonFinite
	}
	return token, nil
}

// Add tells the state which token the answer went on with.
func (s *State) Add(token int32) {
	if s.repeat || s.count {
		s.window.add(token)
	}
}

// Logprobs gives the natural log-probability of a token under logits [vocab] as they are (temperature 1, no penalties),
// and the n most likely tokens with theirs, most likely first.
func Logprobs(logits []float32, token int32, n int) (float32, []Logprob) {
	sum := canon.LogSumExp(logits)
	if n == 0 {
		return canon.LogProb(logits, token, sum), nil
	}
	ids := make([]int32, n)
	top := make([]Logprob, canon.Top(logits, ids))
	for i := range top {
		top[i] = Logprob{ids[i], canon.LogProb(logits, ids[i], sum)}
	}
	return canon.LogProb(logits, token, sum), top
}
