package daemon

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"covey/engine"
	"covey/engine/sample"
)

// parseChat runs a body through everything that happens before the model is needed.
func parseChat(body string) (engine.Request, int, error) {
	var q chatRequest
	if err := decodeBody(httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)), &q); err != nil {
		return engine.Request{}, 0, err
	}
	if err := q.check(); err != nil {
		return engine.Request{}, 0, err
	}
	r, n, failure := q.request(sample.Params{Temperature: 0.6, TopP: 0.92}, 1000, 512, 99)
	if failure != nil {
		return r, n, failure
	}
	r.Logprobs, failure = q.alternatives()
	if failure != nil {
		return r, n, failure
	}
	return r, n, nil
}

const hello = `"messages": [{"role": "user", "content": "hello"}]`

func TestWhatTheClientDoesNotSetComesFromTheModel(t *testing.T) {
	got, n, err := parseChat(`{` + hello + `}`)
	want := engine.Request{MaxTokens: 512, Logprobs: -1, Owner: apiOwner, Sampling: sample.Params{Temperature: 0.6, TopP: 0.92, Seed: 99}}
	if err != nil || n != 1 || !cmp.Equal(got, want) {
		t.Errorf("n %d, error %v: %s", n, err, cmp.Diff(want, got))
	}
}

func TestEveryKnownFieldReachesTheEngine(t *testing.T) {
	got, n, err := parseChat(`{` + hello + `, "model": "x", "max_completion_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": 40, "min_p": 0.1,
		"repetition_penalty": 1.5, "frequency_penalty": -1, "presence_penalty": 2, "seed": -1, "stop": ["a", "b"], "n": 3,
		"logprobs": true, "top_logprobs": 5, "logit_bias": {"7": -100, "999": 1.5}, "user": "u", "metadata": {"a": "b"}, "store": true,
		"response_format": {"type": "text"}, "modalities": ["text"], "functions": null}`)
	want := engine.Request{MaxTokens: 7, Logprobs: 5, Owner: apiOwner, Stops: []string{"a", "b"}, Sampling: sample.Params{
		Temperature: 0, TopP: 0.5, TopK: 40, MinP: 0.1, RepetitionPenalty: 1.5, FrequencyPenalty: -1, PresencePenalty: 2,
		Seed: 1<<64 - 1, LogitBias: map[int32]float32{7: -100, 999: 1.5},
	}}
	if err != nil || n != 3 || !cmp.Equal(got, want) {
		t.Errorf("n %d, error %v: %s", n, err, cmp.Diff(want, got))
	}
}

func TestWrongTypesAreNamedAsInJSON(t *testing.T) {
	for body, want := range map[string]string{
		`{"temperature": "hot"}`:                                "temperature: string, want a number",
		`{"max_tokens": 1.5}`:                                   "max_tokens: number 1.5, want a whole number",
		`{"stream": 1}`:                                         "stream: number, want true or false",
		`{"model": {}}`:                                         "model: object, want a text",
		`{"messages": "hello"}`:                                 "messages: string, want a list",
		`{"messages": ["hello"]}`:                               "messages[0]: string, want an object",
		`{"messages": [{"role": "user", "content": 5}]}`:        "messages[0].content: number, want a list",
		`{"logit_bias": []}`:                                    "logit_bias: array, want an object",
		`{"seed": 18446744073709551616, "messages": [], "n":1}`: "seed: number 18446744073709551616, out of range",
	} {
		if _, _, err := parseChat(body); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}

func TestNamesStandOnceAndAsSpelled(t *testing.T) {
	for body, want := range map[string]string{
		`{"model": "a", "model": "b", ` + hello + `}`:                                               "model: it stands twice (at byte 15)",
		`{"messages": [{"role": "user", "role": "system", "content": "x"}]}`:                        "messages[0].role: it stands twice (at byte 31)",
		`{"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "text": "b"}]}]}`: "messages[0].content[0].text: it stands twice (at byte 73)",
		`{` + hello + `, "logit_bias": {"7": 1, "7": 2}}`:                                           "logit_bias[7]: it stands twice (at byte 76)",
		`{` + hello + `, "tools": [{"type": "function", "function": {"name": "f", "name": "g"}}]}`:  "tools[0].function.name: it stands twice (at byte 110)",
		`{` + hello + `, "metadata": {"a": 1, "a": 2}}`:                                             "metadata.a: it stands twice (at byte 74)",
		`{"Messages": [{"role": "user", "content": "x"}]}`:                                          "messages: there are none",
		`{"messages": [{"Role": "user", "content": "x"}]}`:                                          "messages[0].role: it is missing",
		`{"messages": [{"role": "user", "content": [{"Type": "text", "text": "x"}]}]}`:              `messages[0].content is not supported`,
	} {
		if _, _, err := parseChat(body); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
	if _, _, err := parseChat("{" + hello + `, "user": "` + "\xff" + `", "metadata": {"a": 1, "A": 2}}`); err != nil {
		t.Errorf("names of two spellings, and a byte that is no UTF-8: %v", err)
	}
}

func TestAPromptWithoutAChanceToFitIsRefusedByItsBytes(t *testing.T) {
	if err := checkBytes(64*512, 512, "prompt"); err != nil {
		t.Error(err)
	}
	var refused *apiError
	if err := checkBytes(64*512+1, 512, "prompt"); !errors.As(err, &refused) || refused.err.Code != "context_length_exceeded" || refused.param != "prompt" {
		t.Errorf("got %v", err)
	}
}

func TestBadParametersAreRefusedByName(t *testing.T) {
	cases := []struct{ body, param, code string }{
		{``, "", "invalid_json"},
		{`[]`, "", "invalid_json"},
		{`{"messages": [}`, "", "invalid_json"},
		{`{}`, "messages", "invalid_value"},
		{`{"messages": []}`, "messages", "invalid_value"},
		{`{"messages": [{"content": "x"}]}`, "messages[0].role", "invalid_value"},
		{`{"messages": [{"role": "root", "content": "x"}]}`, "messages[0].role", "invalid_value"},
		{`{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}`, "messages[0].content", "unsupported_parameter"},
		{`{"messages": "hello"}`, "messages", "invalid_value"},
		{`{` + hello + `, "temperature": 2.1}`, "temperature", "invalid_value"},
		{`{` + hello + `, "temperature": -0.1}`, "temperature", "invalid_value"},
		{`{` + hello + `, "temperature": "hot"}`, "temperature", "invalid_value"},
		{`{` + hello + `, "top_p": 0}`, "top_p", "invalid_value"},
		{`{` + hello + `, "top_p": 1.01}`, "top_p", "invalid_value"},
		{`{` + hello + `, "min_p": 1}`, "min_p", "invalid_value"},
		{`{` + hello + `, "top_k": -1}`, "top_k", "invalid_value"},
		{`{` + hello + `, "frequency_penalty": 3}`, "frequency_penalty", "invalid_value"},
		{`{` + hello + `, "n": 0}`, "n", "invalid_value"},
		{`{` + hello + `, "n": 1000000000}`, "n", "invalid_value"},
		{`{` + hello + `, "max_tokens": 0}`, "max_tokens", "invalid_value"},
		{`{` + hello + `, "max_tokens": 3, "max_completion_tokens": 4}`, "max_completion_tokens", "invalid_value"},
		{`{` + hello + `, "stop": ["a", ""]}`, "stop", "invalid_value"},
		{`{` + hello + `, "stop": "` + strings.Repeat("x", 257) + `"}`, "stop", "invalid_value"},
		{`{` + hello + `, "logprobs": true, "top_logprobs": 21}`, "top_logprobs", "invalid_value"},
		{`{` + hello + `, "top_logprobs": 2}`, "top_logprobs", "invalid_value"},
		{`{` + hello + `, "logit_bias": {"1000": 1}}`, "logit_bias", "invalid_value"},
		{`{` + hello + `, "logit_bias": {"-1": 1}}`, "logit_bias", "invalid_value"},
		{`{` + hello + `, "logit_bias": {"1": 101}}`, "logit_bias", "invalid_value"},
		{`{` + hello + `, "response_format": {"type": "json_object"}}`, "response_format", "unsupported_parameter"},
		{`{` + hello + `, "functions": []}`, "functions", "unsupported_parameter"},
		{`{` + hello + `, "audio": {}}`, "audio", "unsupported_parameter"},
		{`{` + hello + `, "modalities": ["text", "audio"]}`, "modalities", "unsupported_parameter"},
		{`{` + hello + `, "reasoning_effort": "high"}`, "reasoning_effort", "unsupported_parameter"},
	}
	for _, c := range cases {
		_, _, err := parseChat(c.body)
		var refused *apiError
		if !errors.As(err, &refused) {
			t.Errorf("%s: accepted", clip(c.body, 100))
			continue
		}
		if refused.param != c.param || refused.err.Code != c.code || refused.status != 400 {
			t.Errorf("%s: param %q code %q status %d, want %q %q 400", clip(c.body, 100), refused.param, refused.err.Code, refused.status, c.param, c.code)
		}
	}
}

func TestContentIsTextPartsOrNull(t *testing.T) {
	var q chatRequest
	body := `{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "assistant", "content": null}]}`
	if err := json.Unmarshal([]byte(body), &q); err != nil {
		t.Fatal(err)
	}
	if q.Messages[0].Content.Text != "ab" || q.Messages[1].Content.Text != "" {
		t.Errorf("got %q and %q", q.Messages[0].Content.Text, q.Messages[1].Content.Text)
	}
}

func FuzzChatRequest(f *testing.F) {
	f.Add(`{` + hello + `}`)
	f.Add(`{"messages": [{"role": "assistant", "content": [{"type": "text", "text": "é"}], "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}], "stop": ["x"], "logit_bias": {"1": 1e300}}`)
	f.Add(`{"messages":[{"role":"user","content":{}}],"n":1e99}`)
	f.Fuzz(func(t *testing.T, body string) {
		r, n, err := parseChat(body)
		if err != nil {
			return
		}
		if n < 1 || n > apiChoices || r.MaxTokens < 1 || r.MaxTokens > 512 || len(r.Stops) > apiStops || r.Logprobs < -1 || r.Logprobs > apiAlternatives {
			t.Errorf("limits passed: n %d, %+v", n, r)
		}
	})
}
