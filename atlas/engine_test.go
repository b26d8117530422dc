package atlas

import (
	"context"
	"slices"
	"testing"

	"covey/atlas/probes"
	"covey/engine"
)

func bundled(t *testing.T) Model {
	t.Helper()
	e, err := engine.Open(context.Background(), engine.Config{Dir: "../models/smollm2-moe-32x", Context: 512}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return FromEngine(e)
}

func TestTheBundledModelReadsProbesOfBothKinds(t *testing.T) {
	m := bundled(t)
	const text = "Stir the onions in butter."
	raw, err := m.Encode(probes.Probe{Kind: probes.Raw, Text: text})
	if err != nil {
		t.Fatal(err)
	}
	chat, err := m.Encode(probes.Probe{Kind: probes.Chat, Text: text})
	if err != nil {
		t.Fatal(err)
	}
	if raw.From != 0 || raw.To != len(raw.Tokens) {
		t.Errorf("raw: positions %d to %d of %d are counted, all are the text's", raw.From, raw.To, len(raw.Tokens))
	}
	if chat.From == 0 || chat.To == len(chat.Tokens) || !slices.Equal(chat.Tokens[chat.From:chat.To], raw.Tokens) {
		t.Errorf("chat: positions %d to %d of %v are counted; the text is %v", chat.From, chat.To, chat.Tokens, raw.Tokens)
	}
	ctx := context.Background()
	f, err := m.Forward(ctx, chat.Tokens, ForwardOptions{Routing: true, Logprobs: true})
	if err != nil {
		t.Fatal(err)
	}
	ob, err := observe(m.Info().Shape, chat, f.Events)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Logprobs) != len(chat.Tokens)-1 {
		t.Errorf("%d log-probabilities for %d tokens", len(f.Logprobs), len(chat.Tokens))
	}
	// Every position selects k experts in each layer, so counts add up; a banned expert takes no part and changes the rest.
	counts := ob.selections(m.Info().Shape, 0)
	sum, first := int64(0), slices.Index(counts, slices.Max(counts))
	for _, n := range counts {
		sum += n
	}
	if want := int64(len(ob.Tokens) * m.Info().Shape.Slots()); sum != want {
		t.Errorf("%d selections, want %d", sum, want)
	}
	shape := m.Info().Shape
	banned := engine.Expert{Layer: shape.Layers[first/shape.Experts], ID: first % shape.Experts}
	g, err := m.Forward(ctx, chat.Tokens, ForwardOptions{Routing: true, Logprobs: true, Banned: []engine.Expert{banned}})
	if err != nil {
		t.Fatal(err)
	}
	without, err := observe(shape, chat, g.Events)
	if err != nil {
		t.Fatal(err)
	}
	if n := without.selections(shape, 0)[first]; n != 0 {
		t.Errorf("the banned expert was selected %d times", n)
	}
	if slices.Equal(f.Logprobs, g.Logprobs) {
		t.Error("removing the most selected expert changed no log-probability")
	}
}
