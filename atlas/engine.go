package atlas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"covey/atlas/probes"
	"covey/engine"
	"covey/engine/chat"
	"covey/engine/tokenizer"

	"golang.org/x/sync/errgroup"
)

// Removals of one text share what was kept of it, about 17 MB for a text of 126 tokens on the bundled model and more on
// larger ones, so few texts are read at a time; the removals of one layer share steps.
const (
	scoredTexts     = 2
	removalsAtATime = 6
)

// FromEngine makes an open engine a Model. Its forwards are background requests: people's requests go first.
func FromEngine(e *engine.Engine) Model { return engineModel{e, make(chan struct{}, scoredTexts)} }

type engineModel struct {
	*engine.Engine
	scoring chan struct{} // a place for each text whose removals are read
}

func (m engineModel) Info() engine.ModelInfo { return m.Model() }

// templateDate is the day that templates with a clock see: a prompt must not change from run to run.
var templateDate = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// Encode tokenises a text. A raw one gets the special tokens that the tokenizer puts around any text (a beginning-of-text
// token, say); a chat one becomes the user's message in the checkpoint's template. Both are read, not counted.
func (m engineModel) Encode(p probes.Probe) (Prompt, error) {
	if p.Kind == probes.Chat {
		return m.encodeChat(p.Text)
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

// encodeChat counts the positions between the longest beginning and the longest end that the template has without the
// message: a token that joins the message with the template's own text is left out.
func (m engineModel) encodeChat(text string) (Prompt, error) {
	if m.Template() == nil {
		return Prompt{}, chat.ErrNoTemplate
	}
	segments, err := m.Template().Render(context.Background(), []chat.Message{{Role: "user", Content: text}}, chat.Options{Now: templateDate})
	if err != nil {
		return Prompt{}, err
	}
	first := slices.IndexFunc(segments, func(s tokenizer.Segment) bool { return !s.Trusted })
	if first < 0 {
		return Prompt{}, errors.New("the chat template leaves the user's message out")
	}
	last := len(segments) - 1
	for segments[last].Trusted {
		last--
	}
	whole, err := m.Tokenizer().EncodeSegments(segments, false)
	if err != nil {
		return Prompt{}, err
	}
	head, err := m.Tokenizer().EncodeSegments(segments[:first], false)
	if err != nil {
		return Prompt{}, err
	}
	tail, err := m.Tokenizer().EncodeSegments(segments[last+1:], false)
	if err != nil {
		return Prompt{}, err
	}
	return between(whole, head, tail), nil
}

// between leaves out of whole what it shares with head at its beginning and with tail at its end.
func between(whole, head, tail []int32) Prompt {
	p := Prompt{Tokens: whole, To: len(whole)}
	for p.From < len(head) && p.From < p.To && whole[p.From] == head[p.From] {
		p.From++
	}
	for i := len(tail) - 1; i >= 0 && p.To > p.From && whole[p.To-1] == tail[i]; i-- {
		p.To--
	}
	return p
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
	request := engine.Request{Prompt: tokens, Logprobs: -1, Routing: o.Routing, Background: true}
	if o.Score == nil {
		stream, err := m.read(ctx, request)
		if err != nil {
			return Forward{}, err
		}
		return Forward{Events: stream.Routing()}, nil
	}
	if err := o.Score.check(len(tokens)); err != nil {
		return Forward{}, err
	}
	select {
	case m.scoring <- struct{}{}:
	case <-ctx.Done():
		return Forward{}, ctx.Err()
	}
	defer func() { <-m.scoring }()
	request.PromptLogprobs = true
	for _, experts := range o.Score.Without {
		request.Keep = append(request.Keep, firstLayer(experts))
	}
	plain, err := m.read(ctx, request)
	if errors.Is(err, engine.ErrNoResiduals) { // then every removal is read whole
		request.Keep = nil
		plain, err = m.read(ctx, request)
	}
	if err != nil {
		return Forward{}, err
	}
	out := Forward{Events: plain.Routing(), Scores: make([]float64, 1+len(o.Score.Without))}
	out.Scores[0] = o.Score.mean(plain.Result().PromptLogprobs)
	kept := plain.Result().Residuals
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(removalsAtATime)
	for i, experts := range o.Score.Without {
		if kept != nil && kept.Unchanged(experts) {
			out.Scores[1+i] = out.Scores[0]
			continue
		}
		group.Go(func() error {
			without := engine.Request{Prompt: tokens, Logprobs: -1, PromptLogprobs: true, Background: true, Banned: experts, From: kept}
			stream, err := m.read(running, without)
			if err != nil {
				return fmt.Errorf("without %d experts: %w", len(experts), err)
			}
			out.Scores[1+i] = o.Score.mean(stream.Result().PromptLogprobs)
			return nil
		})
	}
	return out, group.Wait()
}

// firstLayer is the lowest layer of some experts.
func firstLayer(experts []engine.Expert) int {
	layer := math.MaxInt
	for _, x := range experts {
		layer = min(layer, x.Layer)
	}
	return layer
}

// read submits a request and waits for its end.
func (m engineModel) read(ctx context.Context, request engine.Request) (*engine.Stream, error) {
	stream, err := m.Submit(ctx, request)
	for errors.Is(err, engine.ErrQueueFull) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(queueRetry):
		}
		stream, err = m.Submit(ctx, request)
	}
	if err != nil {
		return nil, err
	}
	for {
		if _, err := stream.Next(ctx); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			stream.Cancel()
			return nil, err
		}
	}
	switch r := stream.Result(); r.Finish {
	case engine.FinishError:
		return nil, r.Err
	case engine.FinishCancel:
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return nil, errors.New("the request was cancelled")
	default:
		return stream, nil
	}
}
