package engine_test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"covey/engine"
	"covey/engine/route"
	"covey/engine/sample"
)

const bundled = "../models/smollm2-moe-32x"

// shared is one engine over the bundled model for all tests that leave it as it was.
var shared = sync.OnceValues(func() (*engine.Engine, error) {
	return engine.Open(context.Background(), engine.Config{Dir: bundled, Context: 512, BatchRows: 64, Sequences: 4}, nil)
})

func open(t *testing.T) *engine.Engine {
	t.Helper()
	e, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func submit(t *testing.T, e *engine.Engine, r engine.Request) *engine.Stream {
	t.Helper()
	s, err := e.Submit(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// read collects the text of a stream.
func read(t *testing.T, s *engine.Stream) (string, *engine.Result) {
	t.Helper()
	var text strings.Builder
	for {
		o, err := s.Next(context.Background())
		if err == io.EOF {
			return text.String(), s.Result()
		}
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(o.Text)
	}
}

func encode(t *testing.T, e *engine.Engine, text string) []int32 {
	t.Helper()
	ids, err := e.Tokenizer().Encode(text, false)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func question(text string) string {
	return "<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n"
}

func TestBundledModelAnswers(t *testing.T) {
	e := open(t)
	text, result := read(t, submit(t, e, engine.Request{Prompt: encode(t, e, question("What is the capital of France?")), MaxTokens: 6}))
	if text != "The capital of France is Paris" || result.Finish != engine.FinishLength {
		t.Errorf("%q, finish %q, %v", text, result.Finish, result.Err)
	}
}

func TestNeighboursDoNotChangeBits(t *testing.T) {
	e := open(t)
	request := engine.Request{MaxTokens: 6, Hash: true, Sampling: sample.Params{Temperature: 0.8, TopP: 0.9, Seed: 11}}
	prompts := [][]int32{
		encode(t, e, question("Write a haiku about rain.")),
		encode(t, e, "def fibonacci(n):\n"),
		encode(t, e, strings.Repeat("The law is the law. ", 12)),
	}
	var alone []*engine.Result
	for _, p := range prompts {
		request.Prompt = p
		_, result := read(t, submit(t, e, request))
		alone = append(alone, result)
	}
	var streams []*engine.Stream
	for _, p := range prompts {
		request.Prompt = p
		streams = append(streams, submit(t, e, request))
	}
	for i, s := range streams {
		if _, result := read(t, s); result.Hash != alone[i].Hash || !slices.Equal(result.Tokens, alone[i].Tokens) || result.Err != nil {
			t.Errorf("prompt %d: hash %.8s together, %.8s alone (%v)", i, result.Hash, alone[i].Hash, result.Err)
		}
	}
}

func TestRoutingOfAnAnswerSurvivesItsBlob(t *testing.T) {
	e := open(t)
	prompt := encode(t, e, "Boil the pasta in salted water")
	s := submit(t, e, engine.Request{Prompt: prompt, MaxTokens: 3, Routing: true, IgnoreEOS: true})
	_, result := read(t, s)
	shape := e.Model().Shape
	if len(shape.Layers) != 29 || shape.Layers[0] != 1 || shape.Experts != 32 || shape.TopK != 4 {
		t.Fatalf("shape %+v", shape)
	}
	blob, err := route.Encode(shape, s.Routing(), route.WeightsExact)
	if err != nil {
		t.Fatal(err)
	}
	_, events, err := route.Decode(blob)
	if err != nil {
		t.Fatal(err)
	}
	var tokens []int32
	for _, ev := range events {
		tokens = append(tokens, ev.Tokens...)
	}
	if want := append(slices.Clone(prompt), result.Tokens[:2]...); !slices.Equal(tokens, want) {
		t.Errorf("rows of tokens %v, want %v", tokens, want)
	}
}

func TestBannedExpertServesNoRow(t *testing.T) {
	e := open(t)
	prompt := encode(t, e, "Boil the pasta in salted water")
	plain := submit(t, e, engine.Request{Prompt: prompt, Routing: true})
	read(t, plain)
	last := plain.Routing()[0]
	id := last.IDs[0] // the first choice of the first MoE layer for the first row
	banned := submit(t, e, engine.Request{Prompt: prompt, Routing: true, Banned: []engine.Expert{{Layer: 1, ID: int(id)}}})
	read(t, banned)
	shape := e.Model().Shape
	for _, ev := range banned.Routing() {
		for r := range ev.Rows() {
			if ids, _ := ev.Row(shape, r); slices.Contains(ids[:shape.TopK], id) {
				t.Fatalf("row %d went to the banned expert %d", r, id)
			}
		}
	}
	if _, err := e.Submit(context.Background(), engine.Request{Prompt: prompt, Banned: []engine.Expert{{Layer: 0, ID: 1}}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a layer without experts: %v", err)
	}
}

func TestPromptLogprobsPreferTheTruth(t *testing.T) {
	e := open(t)
	last := map[string]float32{}
	for _, city := range []string{"Paris", "Tokyo"} {
		prompt := encode(t, e, "The capital of France is "+city)
		_, result := read(t, submit(t, e, engine.Request{Prompt: prompt, PromptLogprobs: true}))
		lp := result.PromptLogprobs
		if len(lp) != len(prompt)-1 {
			t.Fatalf("%d log-probabilities for %d tokens", len(lp), len(prompt))
		}
		last[city] = lp[len(lp)-1]
	}
	if last["Paris"] < last["Tokyo"]+1 || last["Paris"] > 0 {
		t.Errorf("log-probabilities of the last token: %v", last)
	}
}

func TestModelIsDescribed(t *testing.T) {
	m := open(t).Model()
	if m.ID != "smollm2-moe-32x" || m.Architecture != "glm4_moe" || m.Layers != 30 || m.Vocab != 49152 || m.Context != 512 || len(m.Hash) != 64 || m.NumericsID == "" {
		t.Errorf("%+v", m)
	}
	if !slices.Contains(m.EOS, 2) || m.Parameters < 180e6 || m.Parameters > 190e6 || m.Active < 135e6 || m.Active > 145e6 {
		t.Errorf("%+v", m)
	}
	if d := open(t).Defaults(); d.Temperature != 0.6 || d.TopP != 0.92 || d.RepetitionPenalty != 1.1 {
		t.Errorf("defaults %+v", d)
	}
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	for want, c := range map[string]engine.Config{
		"nowhere":       {Dir: filepath.Join(t.TempDir(), "nowhere")},
		"KV: f8":        {Dir: bundled, KV: "f8"},
		"Sequences -1":  {Dir: bundled, Sequences: -1},
		"Context: 9000": {Dir: bundled, Context: 9000},
		"the KV cache has 128 tokens, one sequence may have 8192": {Dir: bundled, KVTokens: 128},
	} {
		if _, err := engine.Open(context.Background(), c, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestClosedEngineRefusesRequests(t *testing.T) {
	e, err := engine.Open(context.Background(), engine.Config{Dir: bundled, Context: 128, Sequences: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := submit(t, e, engine.Request{Prompt: []int32{1, 2, 3}, MaxTokens: 100, IgnoreEOS: true})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, result := read(t, s); result.Finish != engine.FinishCancel {
		t.Errorf("finish %q", result.Finish)
	}
	if _, err := e.Submit(context.Background(), engine.Request{Prompt: []int32{1}, Banned: []engine.Expert{{Layer: 1, ID: 0}}}); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
