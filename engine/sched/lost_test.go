package sched

import (
	"fmt"
	"slices"
	"testing"

	"covey/engine/canon"
	"covey/engine/kv"
	"covey/engine/model"
)

// losing is a toy whose device is lost at some step, with everything that its pages held.
type losing struct {
	*toy
	at, steps int
}

func (m *losing) Step(b *model.Batch) (*model.Output, error) {
	if m.steps++; m.steps == m.at {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.pages = [toyPages][kv.PageTokens]uint64{}
		return nil, fmt.Errorf("step: %w", canon.ErrLost)
	}
	return m.toy.Step(b)
}

// Whenever a device is lost, answers that run and those that come, also with a prompt that was cached, are the same.
func TestAnswersOutliveALostDevice(t *testing.T) {
	for _, at := range []int{1, 2, 5, 12, 30} {
		r := start(t, func(o *Options, m *toy) { o.Model = &losing{toy: m, at: at} })
		prompts := [][]int32{prompt(1, 150), prompt(2, 5), prompt(1, 150)}
		for round := range 2 {
			var streams []*Stream
			for _, p := range prompts {
				streams = append(streams, r.submit(t, Request{Prompt: p, MaxTokens: 20, Logprobs: -1, IgnoreEOS: true, Owner: "a"}))
			}
			for i, s := range streams {
				outputs, _, result := read(t, s)
				var tokens []int32
				for _, o := range outputs {
					if o.Kind == KindToken {
						tokens = append(tokens, o.Token)
					}
				}
				if want := greedy(prompts[i], 20, false); result.Err != nil || !slices.Equal(result.Tokens, want) || !slices.Equal(tokens, want) {
					t.Errorf("lost at step %d, round %d, request %d: %v, %v; want %v", at, round, i, result.Tokens, result.Err, want)
				}
			}
		}
		if !r.Stats().DeviceLost {
			t.Errorf("lost at step %d: no word of it", at)
		}
	}
}

// A second loss ends what runs: there is nothing left to go on with.
func TestASecondLossEndsAnswers(t *testing.T) {
	r := start(t, func(o *Options, m *toy) { m.fail = fmt.Errorf("step: %w", canon.ErrLost) })
	if _, _, result := read(t, r.submit(t, Request{Prompt: prompt(1, 5), MaxTokens: 3, Logprobs: -1})); result.Err == nil || result.Finish != FinishError {
		t.Errorf("finish %q, error %v", result.Finish, result.Err)
	}
}
