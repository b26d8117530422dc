package atlas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"covey/atlas/probes"
	"covey/engine"
)

// FromEngine makes an open engine a Model. Its forwards are background requests: people's requests go first.
func FromEngine(e *engine.Engine) Model { return engineModel{e} }

type engineModel struct{ *engine.Engine }

func (m engineModel) Info() engine.ModelInfo { return m.Model() }

// Encode tokenises a raw text with the special tokens that the tokenizer puts around any text (a beginning-of-text token,
// say); these are read, not counted.
func (m engineModel) Encode(p probes.Probe) (Prompt, error) {
	if p.Kind != probes.Raw {
		return Prompt{}, fmt.Errorf("kind %q: this model's probes are %q", p.Kind, probes.Raw)
	}
	bare, err := m.Tokenizer().Encode(p.Text, false)
	if err != nil {
		return Prompt{}, err
	}
	whole, err := m.Tokenizer().Encode(p.Text, true)
	if err != nil {
		return Prompt{}, err
	}
	return enclosed(whole, bare)
}

// enclosed finds the text's own tokens within those of the whole prompt.
func enclosed(whole, bare []int32) (Prompt, error) {
	for from := range len(whole) - len(bare) + 1 {
		if slices.Equal(whole[from:from+len(bare)], bare) {
			return Prompt{Tokens: whole, From: from, To: from + len(bare)}, nil
		}
	}
	return Prompt{}, errors.New("the text's tokens change when special tokens are added: which to count is not clear")
}

// queueRetry is how long a forward waits before it tries a full queue again.
const queueRetry = 50 * time.Millisecond

func (m engineModel) Forward(ctx context.Context, tokens []int32, o ForwardOptions) (Forward, error) {
	request := engine.Request{
		Prompt: tokens, Logprobs: -1, Routing: o.Routing, PromptLogprobs: o.Logprobs, Banned: o.Banned, Background: true,
	}
	stream, err := m.Submit(ctx, request)
	for errors.Is(err, engine.ErrQueueFull) {
		select {
		case <-ctx.Done():
			return Forward{}, ctx.Err()
		case <-time.After(queueRetry):
		}
		stream, err = m.Submit(ctx, request)
	}
	if err != nil {
		return Forward{}, err
	}
	for {
		if _, err := stream.Next(ctx); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			stream.Cancel()
			return Forward{}, err
		}
	}
	switch r := stream.Result(); r.Finish {
	case engine.FinishError:
		return Forward{}, r.Err
	case engine.FinishCancel:
		if err := ctx.Err(); err != nil {
			return Forward{}, err
		}
		return Forward{}, errors.New("the request was cancelled")
	default:
		return Forward{Events: stream.Routing(), Logprobs: r.PromptLogprobs}, nil
	}
}
