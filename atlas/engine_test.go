package atlas

import (
	"context"
	"slices"
	"strings"
	"testing"

	"covey/atlas/probes"
	"covey/engine"

	"golang.org/x/sync/errgroup"
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
	f, err := m.Forward(ctx, chat.Tokens, ForwardOptions{Routing: true})
	if err != nil {
		t.Fatal(err)
	}
	ob, err := observe(m.Info().Shape, chat, f.Events)
	if err != nil {
		t.Fatal(err)
	}
	// Every position selects k experts in each layer, so counts add up.
	sum := int64(0)
	for _, n := range ob.selections(m.Info().Shape, 0) {
		sum += n
	}
	if want := int64(len(ob.Tokens) * m.Info().Shape.Slots()); sum != want {
		t.Errorf("%d selections, want %d", sum, want)
	}
}

// The definition of a score without some experts is a whole reading in which they are banned.
func TestScoresWithoutExpertsAreThoseOfWholeReadings(t *testing.T) {
	m := bundled(t).(engineModel)
	ctx, shape := context.Background(), m.Info().Shape
	p, err := m.Encode(probes.Probe{Kind: probes.Raw, Text: "Stir the onions in butter until they turn soft and golden, then add the rice."})
	if err != nil {
		t.Fatal(err)
	}
	routing, err := m.Forward(ctx, p.Tokens, ForwardOptions{Routing: true})
	if err != nil {
		t.Fatal(err)
	}
	ob, err := observe(shape, p, routing.Events)
	if err != nil {
		t.Fatal(err)
	}
	// Of three layers the most chosen expert and one that no token chose, and a group over two layers.
	score := &Score{From: 2, To: len(p.Tokens) - 1}
	for _, layer := range []int{0, 14, len(shape.Layers) - 1} {
		counts := ob.selections(shape, 0)[layer*shape.Experts : (layer+1)*shape.Experts]
		unchosen := slices.Index(counts, 0)
		if unchosen < 0 {
			t.Fatalf("every expert of layer %d was chosen: take a shorter text", shape.Layers[layer])
		}
		score.Without = append(score.Without, []engine.Expert{{Layer: shape.Layers[layer], ID: slices.Index(counts, slices.Max(counts))}}, []engine.Expert{{Layer: shape.Layers[layer], ID: unchosen}})
	}
	score.Without = append(score.Without, slices.Concat(score.Without[4], score.Without[2]))
	answer := func() []int32 {
		stream, err := m.Submit(ctx, engine.Request{Prompt: p.Tokens[:5], Logprobs: -1, MaxTokens: 24})
		for err == nil {
			_, err = stream.Next(ctx)
		}
		return stream.Result().Tokens
	}
	alone, beside := answer(), make(chan []int32)
	go func() { beside <- answer() }() // its steps and those that begin at a router take turns
	f, err := m.Forward(ctx, p.Tokens, ForwardOptions{Score: score})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-beside; !slices.Equal(got, alone) {
		t.Errorf("an answer beside the scores is %v, alone %v", got, alone)
	}
	for i, experts := range append([][]engine.Expert{nil}, score.Without...) {
		stream, err := m.Submit(ctx, engine.Request{Prompt: p.Tokens, Logprobs: -1, PromptLogprobs: true, Banned: experts})
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = stream.Next(ctx)
		}
		want := 0.0
		for at := 2; at < len(p.Tokens)-1; at++ {
			want += float64(stream.Result().PromptLogprobs[at-1])
		}
		want /= float64(len(p.Tokens) - 3)
		if f.Scores[i] != want {
			t.Errorf("without %v: %v, a whole reading gives %v", experts, f.Scores[i], want)
		}
		if chosen := i%2 == 1; chosen == (f.Scores[i] == f.Scores[0]) {
			t.Errorf("without %v: the score is %v, that of the text as it is %v", experts, f.Scores[i], f.Scores[0])
		}
	}
}

// BenchmarkRemovals times one reading of a text of 114 tokens without one expert, of layers evenly over the model: from the
// router on, as scores are read, and whole.
func BenchmarkRemovals(b *testing.B) {
	e, err := engine.Open(context.Background(), engine.Config{Dir: "../models/smollm2-moe-32x", Context: 512}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	m, ctx := FromEngine(e).(engineModel), context.Background()
	p, err := m.Encode(probes.Probe{Kind: probes.Raw, Text: strings.Repeat("Stir the onions in butter until they turn soft and golden, then add the rice. ", 6)})
	if err != nil {
		b.Fatal(err)
	}
	shape := m.Info().Shape
	score := &Score{To: len(p.Tokens)}
	for layer := 0; layer < len(shape.Layers); layer += 4 {
		for id := range 2 {
			score.Without = append(score.Without, []engine.Expert{{Layer: shape.Layers[layer], ID: id}})
		}
	}
	readings := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N*len(score.Without)), "ms/reading")
	}
	b.Run("from the router", func(b *testing.B) {
		for b.Loop() {
			if _, err := m.Forward(ctx, p.Tokens, ForwardOptions{Score: score}); err != nil {
				b.Fatal(err)
			}
		}
		readings(b)
	})
	b.Run("whole", func(b *testing.B) {
		for b.Loop() {
			group := errgroup.Group{}
			group.SetLimit(removalsAtATime)
			for _, experts := range score.Without {
				group.Go(func() error {
					_, err := m.read(ctx, engine.Request{Prompt: p.Tokens, Logprobs: -1, PromptLogprobs: true, Background: true, Banned: experts})
					return err
				})
			}
			if err := group.Wait(); err != nil {
				b.Fatal(err)
			}
		}
		readings(b)
	})
}
