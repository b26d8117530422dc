// Package sample holds what a caller may ask of the choice of the next token: parameters, their limits, and what
// penalties remember of one sequence. The arithmetic (rule 11 of the numerics) is canonical and lives in engine/canon:
// this package never computes a float that can reach a token.
package sample

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Params say how tokens are chosen from logits. The zero value is greedy choice with nothing switched on. In order:
// bias, repetition, frequency and presence penalty change the logits; temperature divides them; then top-k, top-p and
// min-p cut the candidates.
type Params struct {
	Temperature       float32           // 0 (greedy) to 2
	TopK              int               // keep the k most likely; 0 = all
	TopP              float32           // nucleus, 0 to 1; 0 = off, like 1
	MinP              float32           // drop what is less likely than MinP times the most likely, 0 to 1; 0 = off
	RepetitionPenalty float32           // 0 to 2: divides positive and multiplies negative logits of tokens in prompt or answer; 0 = off, like 1
	FrequencyPenalty  float32           // -2 to 2: subtracted once for each time the answer already holds the token
	PresencePenalty   float32           // -2 to 2: subtracted once if the answer already holds the token
	PenaltyWindow     int               // penalties look at this many latest tokens of the sequence; 0 = all of it
	Seed              uint64            // random key, beside choice index and position
	LogitBias         map[int32]float32 // -100 to 100, added to the logits of these tokens
}

// Logprob is a token with its natural log-probability.
type Logprob struct {
	ID      int32
	Logprob float32
}

// MaxLogitBias is the most tokens that may carry a bias.
const MaxLogitBias = 1024

// RangeError is a parameter outside its range.
type RangeError struct {
	Param   string // snake_case, as the HTTP APIs spell it
	Problem string // what was given and what is allowed
}

func (e *RangeError) Error() string { return "sample: " + e.Param + " " + e.Problem }

// Validate checks ranges, and token ids against the vocabulary size. Its errors are *RangeError.
func (p *Params) Validate(vocab int) error {
	for _, c := range []struct {
		param     string
		value     float32
		low, high float32
	}{
		{"temperature", p.Temperature, 0, 2},
		{"top_p", p.TopP, 0, 1},
		{"min_p", p.MinP, 0, 1},
		{"repetition_penalty", p.RepetitionPenalty, 0, 2},
		{"frequency_penalty", p.FrequencyPenalty, -2, 2},
		{"presence_penalty", p.PresencePenalty, -2, 2},
	} {
		if !(c.value >= c.low && c.value <= c.high) {
			return &RangeError{c.param, fmt.Sprintf("is %v, want %v to %v", c.value, c.low, c.high)}
		}
	}
	if p.TopK < 0 || p.TopK > math.MaxInt32 {
		return &RangeError{"top_k", fmt.Sprintf("is %d, want 0 (all) or more", p.TopK)}
	}
	if p.PenaltyWindow < 0 {
		return &RangeError{"penalty_window", fmt.Sprintf("is %d, want 0 (everything) or more", p.PenaltyWindow)}
	}
	if n := len(p.LogitBias); n > MaxLogitBias {
		return &RangeError{"logit_bias", fmt.Sprintf("names %d tokens, at most %d", n, MaxLogitBias)}
	}
	for _, id := range slices.Sorted(maps.Keys(p.LogitBias)) {
		if id < 0 || int(id) >= vocab {
			return &RangeError{"logit_bias", fmt.Sprintf("names token %d, the vocabulary has %d", id, vocab)}
		}
		if b := p.LogitBias[id]; !(b >= -100 && b <= 100) {
			return &RangeError{"logit_bias", fmt.Sprintf("of token %d is %v, want -100 to 100", id, b)}
		}
	}
	return nil
}
