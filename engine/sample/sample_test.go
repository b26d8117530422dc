package sample_test

import (
	"errors"
	"math"
	"testing"

	"covey/engine/sample"
)

func TestParamsOutsideTheirRangesAreNamed(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		params sample.Params
		want   string
	}{
		{sample.Params{Temperature: 2.5}, "sample: temperature is 2.5, want 0 to 2"},
		{sample.Params{Temperature: nan}, "sample: temperature is NaN, want 0 to 2"},
		{sample.Params{TopP: 1.01}, "sample: top_p is 1.01, want 0 to 1"},
		{sample.Params{TopP: -0.1}, "sample: top_p is -0.1, want 0 to 1"},
		{sample.Params{MinP: 2}, "sample: min_p is 2, want 0 to 1"},
		{sample.Params{RepetitionPenalty: -1}, "sample: repetition_penalty is -1, want 0 to 2"},
		{sample.Params{FrequencyPenalty: 3}, "sample: frequency_penalty is 3, want -2 to 2"},
		{sample.Params{PresencePenalty: -3}, "sample: presence_penalty is -3, want -2 to 2"},
		{sample.Params{TopK: -1}, "sample: top_k is -1, want 0 (all) or more"},
		{sample.Params{PenaltyWindow: -1}, "sample: penalty_window is -1, want 0 (everything) or more"},
		{sample.Params{LogitBias: map[int32]float32{100: 1}}, "sample: logit_bias names token 100, the vocabulary has 100"},
		{sample.Params{LogitBias: map[int32]float32{-1: 1}}, "sample: logit_bias names token -1, the vocabulary has 100"},
		{sample.Params{LogitBias: map[int32]float32{5: -101}}, "sample: logit_bias of token 5 is -101, want -100 to 100"},
	} {
		err := c.params.Validate(100)
		var ranged *sample.RangeError
		if !errors.As(err, &ranged) || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

func TestZeroParamsAndTheEdgesOfRangesAreValid(t *testing.T) {
	for _, p := range []sample.Params{
		{},
		{Temperature: 2, TopP: 1, MinP: 1, TopK: 1 << 20, RepetitionPenalty: 2, FrequencyPenalty: -2, PresencePenalty: 2},
		{LogitBias: map[int32]float32{0: -100, 99: 100}, PenaltyWindow: 64, Seed: math.MaxUint64},
	} {
		if err := p.Validate(100); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
}
