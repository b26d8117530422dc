package sample

import (
	"maps"
	"slices"

	"covey/engine/canon"
)

// State is the choice of tokens for one sequence. Two states with equal parameters, choice index and tokens choose
// alike for equal logits, whatever else happens around them. Not safe for concurrent use.
type State struct {
	params canon.SampleParams // all but position and lists are set once
	window window
	seen   bool // the repetition penalty is on
	count  bool // the frequency or the presence penalty is on
}

// NewState starts a sequence with its prompt, of which it keeps no reference. Params must be valid.
func NewState(p Params, choice int, prompt []int32) *State {
	s := &State{params: canon.SampleParams{
		Temperature: p.Temperature, TopK: p.TopK, TopP: p.TopP, MinP: p.MinP, Seed: p.Seed, Choice: uint32(choice),
		Repetition: p.RepetitionPenalty, Frequency: p.FrequencyPenalty, Presence: p.PresencePenalty,
	}}
	s.params.BiasIDs = slices.Sorted(maps.Keys(p.LogitBias))
	for _, id := range s.params.BiasIDs {
		s.params.Bias = append(s.params.Bias, p.LogitBias[id])
	}
	s.seen = p.RepetitionPenalty != 0 && p.RepetitionPenalty != 1
	s.count = p.FrequencyPenalty != 0 || p.PresencePenalty != 0
	if s.seen || s.count {
		s.window = newWindow(p.PenaltyWindow, prompt)
	}
	return s
}

// Draw is the draw of the token for a position. It is the state's own and valid until Add.
func (s *State) Draw(position int) *canon.SampleParams {
	p := &s.params
	p.Position = uint32(position)
	if s.seen {
		p.SeenIDs = s.window.seen.ids
	}
	if s.count {
		p.CountIDs, p.Counts = s.window.answer.ids, s.window.answer.counts
	}
	return p
}

// Choose draws the token for a position from logits [vocab], which it leaves alone. The error wraps canon.ErrNonFinite
// if a logit is infinite or undefined.
func (s *State) Choose(logits []float32, position int) (int32, error) {
	return canon.Sample(logits, s.Draw(position))
}

// Add tells the state which token the answer went on with.
func (s *State) Add(token int32) {
	if s.seen || s.count {
		s.window.add(token)
	}
}

// Logprobs gives the natural log-probability of a token under logits [vocab] as they are (temperature 1, no penalties),
// and the n most likely tokens with theirs, most likely first. The error wraps canon.ErrNonFinite if a logit is infinite
// or undefined.
func Logprobs(logits []float32, token int32, n int) (float32, []Logprob, error) {
	ids, values := make([]int32, n), make([]float32, n)
	lp, err := canon.Logprobs(logits, token, ids, values)
	if err != nil || n == 0 {
		return lp, nil, err
	}
	top := make([]Logprob, n)
	for i := range top {
		top[i] = Logprob{ids[i], values[i]}
	}
	return lp, top, nil
}
