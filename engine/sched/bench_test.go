package sched

import (
	"io"
	"testing"

	"covey/engine/kv"
	"covey/engine/model"
	"covey/engine/route"
)

// still is a model that computes nothing, to time what the scheduler itself takes.
type still struct{ out model.Output }

func (m *still) NewBan([]Expert) (*model.Ban, error) { return nil, nil }

func (m *still) NewResiduals([]int, int) (*model.Residuals, error) { return nil, nil }

func (m *still) Step(b *model.Batch) (*model.Output, error) {
	logits := m.out.Logits[0]
	m.out.Logits = m.out.Logits[:0]
	for range max(1, len(b.LogitRows)) {
		m.out.Logits = append(m.out.Logits, logits)
	}
	return &m.out, nil
}

// BenchmarkTokenOfSixteenSequences times one token of one sequence when sixteen decode together: planning, routing
// events of 29 layers x 4, choosing among 64 tokens, text and stream, but no arithmetic of a model.
func BenchmarkTokenOfSixteenSequences(b *testing.B) {
	shape := route.Shape{Experts: 32, TopK: 4}
	for l := range 29 {
		shape.Layers = append(shape.Layers, l+1)
	}
	m := &still{model.Output{Logits: [][]float32{make([]float32, toyVocab)}, IDs: make([]uint16, 256*shape.Slots()), Weights: make([]float32, 256*shape.Slots())}}
	s, err := New(Options{Model: m, KV: kv.New(16*256, 0, func(int32) {}), Decoder: func() Decoder { return &letters{} }, Shape: shape,
		ExpertBytes: make([]int64, 29), Vocab: toyVocab, Context: 1 << 14, BatchRows: 256, Sequences: 16, QueueLimit: 16})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	n := b.N/16 + 1
	b.ResetTimer()
	var streams []*Stream
	for range 16 {
		stream, err := s.Submit(b.Context(), Request{Prompt: []int32{1, 2, 3}, MaxTokens: min(n, 1<<14-3), Routing: true, IgnoreEOS: true})
		if err != nil {
			b.Fatal(err)
		}
		streams = append(streams, stream)
	}
	for _, stream := range streams {
		for {
			if _, err := stream.Next(b.Context()); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
	}
}
