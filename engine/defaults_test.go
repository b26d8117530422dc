package engine

import (
	"strings"
	"testing"

	"covey/engine/model"
	"covey/engine/sample"

	"github.com/google/go-cmp/cmp"
)

func TestSuggestedSamplingOfTheCheckpoint(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       sample.Params
	}{
		{"the bundled model's", `{"bos_token_id": 1, "do_sample": true, "temperature": 0.6, "top_p": 0.92, "repetition_penalty": 1.1, "max_new_tokens": 1024}`,
			sample.Params{Temperature: 0.6, TopP: 0.92, RepetitionPenalty: 1.1}},
		{"greedy by name", `{"do_sample": false, "temperature": 0.6}`, sample.Params{}},
		{"sampling without a temperature", `{"do_sample": true, "top_k": 20, "min_p": 0.1}`, sample.Params{Temperature: 1, TopK: 20, MinP: 0.1}},
		{"nothing about sampling", `{"eos_token_id": 2}`, sample.Params{Temperature: 0.7, TopP: 0.95}},
	} {
		got, err := parseDefaults([]byte(c.text))
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: error %v, (-want +got):\n%s", c.name, err, diff)
		}
	}
}

func TestUnusableSuggestionsNameTheFile(t *testing.T) {
	for text, want := range map[string]string{
		`{"temperature": "hot"}`: "generation_config.json: temperature: string, want a number (at byte",
		`{"top_p": 7}`:           "generation_config.json: sample: top_p is 7, want 0 to 1",
		`[`:                      "generation_config.json: no valid JSON: unexpected end",
	} {
		if _, err := parseDefaults([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestCacheHoldsAContextAndTakesAtMostAQuarterOfMemoryBeyondIt(t *testing.T) {
	// 30 layers x 3 heads x 64 x (key, value) x 2 bytes = 23,040 bytes a token
	spec := &model.Spec{Layers: 30, Attention: model.Attention{KVHeads: 3, HeadDim: 64}}
	for _, c := range []struct {
		name   string
		config Config
		limit  int64
		want   int
	}{
		{"plenty", Config{Sequences: 16, Context: 8192}, 64 << 30, 16 * 2048},
		{"unknown", Config{Sequences: 16, Context: 8192}, 0, 16 * 2048},
		{"a quarter of 1 GB", Config{Sequences: 16, Context: 8192}, 1_000_000_000, 10850},
		{"a quarter of 1 GB in f32", Config{Sequences: 16, Context: 8192, KV: "f32"}, 1_000_000_000, 8192},
		{"one context at least", Config{Sequences: 16, Context: 8192}, 1 << 20, 8192},
		{"a short context", Config{Sequences: 1, Context: 1024}, 1 << 20, 1024},
	} {
		if got := cacheTokens(spec, c.config, c.limit); got != c.want {
			t.Errorf("%s: %d tokens, want %d", c.name, got, c.want)
		}
	}
}
