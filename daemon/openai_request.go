package daemon

// Reading an OpenAI request: JSON to typed fields, every number checked before any work. Fields that would change the
// answer and that Covey does not have are refused by name; fields that change nothing (user, metadata, store ...) are
// accepted and ignored; top_k, min_p and repetition_penalty are extensions that other local servers share.

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"covey/engine"
	"covey/engine/sample"
)

// Limits on one API request.
const (
	apiBody         = 8 << 20 // bytes of JSON
	apiMessages     = 2048
	apiChoices      = 8
	apiStops        = 16
	apiStopBytes    = 256
	apiLogitBias    = 1024
	apiAlternatives = 20
)

// apiOwner lets API requests reuse each other's prompt prefixes, and nobody else's.
const apiOwner = "api"

// apiError is a refusal that names the offending parameter.
type apiError struct {
	status int
	param  string
	err    *Error
}

func (e *apiError) Error() string { return e.err.Error() }
func (e *apiError) Unwrap() error { return e.err }

// badParam refuses the value of one parameter.
func badParam(param, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, param, problem(KindUsage, "invalid_value", "", nil, "%s: %s", param, fmt.Sprintf(format, args...))}
}

// unsupported refuses a parameter that Covey does not have.
func unsupported(param, hint string) *apiError {
	return &apiError{http.StatusBadRequest, param, problem(KindUsage, "unsupported_parameter", hint, nil, "%s is not supported", param)}
}

// apiRequest is what chat and text completions have in common. nil means that the client did not set the field.
type apiRequest struct {
	Model             string             `json:"model"`
	Stream            bool               `json:"stream"`
	StreamOptions     *streamOptions     `json:"stream_options"`
	MaxTokens         *int               `json:"max_tokens"`
	Temperature       *float64           `json:"temperature"`
	TopP              *float64           `json:"top_p"`
	TopK              *int               `json:"top_k"`
	MinP              *float64           `json:"min_p"`
	RepetitionPenalty *float64           `json:"repetition_penalty"`
	FrequencyPenalty  *float64           `json:"frequency_penalty"`
	PresencePenalty   *float64           `json:"presence_penalty"`
	Seed              *int64             `json:"seed"`
	Stop              textList           `json:"stop"`
	N                 *int               `json:"n"`
	LogitBias         map[string]float64 `json:"logit_bias"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// textList is a string or a list of strings.
type textList []string

func (l *textList) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*l = make(textList, 1)
		return decodeJSON(b, &(*l)[0])
	}
	return decodeJSON(b, (*[]string)(l))
}

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	apiRequest
	Messages            []chatMessage   `json:"messages"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Logprobs            bool            `json:"logprobs"`
	TopLogprobs         *int            `json:"top_logprobs"`
	Tools               json.RawMessage `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	Functions           json.RawMessage `json:"functions"`
	FunctionCall        json.RawMessage `json:"function_call"`
	ResponseFormat      json.RawMessage `json:"response_format"`
	Audio               json.RawMessage `json:"audio"`
	Modalities          []string        `json:"modalities"`
	Prediction          json.RawMessage `json:"prediction"`
	WebSearchOptions    json.RawMessage `json:"web_search_options"`
	ReasoningEffort     json.RawMessage `json:"reasoning_effort"`
	Verbosity           json.RawMessage `json:"verbosity"`
	TemplateOptions     map[string]any  `json:"chat_template_kwargs"`
}

type chatMessage struct {
	Role       string          `json:"role"`
	Content    chatContent     `json:"content"`
	Refusal    string          `json:"refusal"`
	Name       string          `json:"name"`
	ToolCalls  []chatToolCall  `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
	Reasoning  string          `json:"reasoning_content"`
	Function   json.RawMessage `json:"function_call"`
}

type chatToolCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"` // JSON text
	} `json:"function"`
}

// chatContent is a string, a list of text parts, or null.
type chatContent struct {
	Text  string
	other string // what the first part is that is not text
}

func (c *chatContent) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case 'n':
		return nil
	case '"':
		return decodeJSON(b, &c.Text)
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := decodeJSON(b, &parts); err != nil {
		return err
	}
	var text strings.Builder
	for _, part := range parts {
		if part.Type != "text" {
			c.other = "has no type"
			if part.Type != "" {
				c.other = fmt.Sprintf("is of type %q", clip(part.Type, 50))
			}
			return nil
		}
		text.WriteString(part.Text)
	}
	c.Text = text.String()
	return nil
}

// given says whether a raw field was sent with a value other than null.
func given(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// check refuses what chat completions cannot do and reads messages' limits.
func (q *chatRequest) check() *apiError {
	refused := []struct {
		name string
		raw  json.RawMessage
		hint string
	}{
		{"functions", q.Functions, "use tools"},
		{"function_call", q.FunctionCall, "use tool_choice"},
		{"audio", q.Audio, "Covey reads and writes text only"},
		{"prediction", q.Prediction, ""},
		{"web_search_options", q.WebSearchOptions, "Covey makes no outbound requests"},
		{"reasoning_effort", q.ReasoningEffort, "use chat_template_kwargs if the model's template has a switch"},
		{"verbosity", q.Verbosity, ""},
	}
	for _, r := range refused {
		if given(r.raw) {
			return unsupported(r.name, r.hint)
		}
	}
	for _, m := range q.Modalities {
		if m != "text" {
			return unsupported("modalities", "Covey reads and writes text only")
		}
	}
	if given(q.ResponseFormat) {
		var format struct {
			Type string `json:"type"`
		}
		if decodeJSON(q.ResponseFormat, &format) != nil || format.Type != "text" {
			return unsupported("response_format", "only {\"type\": \"text\"} is supported: ask for JSON in the prompt")
		}
	}
	if q.MaxCompletionTokens != nil {
		if q.MaxTokens != nil && *q.MaxTokens != *q.MaxCompletionTokens {
			return badParam("max_completion_tokens", "max_tokens says otherwise")
		}
		q.MaxTokens = q.MaxCompletionTokens
	}
	if len(q.Messages) == 0 {
		return badParam("messages", "there are none")
	}
	if len(q.Messages) > apiMessages {
		return badParam("messages", "%d are more than %d", len(q.Messages), apiMessages)
	}
	for i, m := range q.Messages {
		param := fmt.Sprintf("messages[%d]", i)
		switch m.Role {
		case "system", "developer", "user", "assistant", "tool":
		case "":
			return badParam(param+".role", "it is missing")
		default:
			return badParam(param+".role", "%q is not system, developer, user, assistant or tool", clip(m.Role, 50))
		}
		if m.Content.other != "" {
			return unsupported(param+".content", "a part "+m.Content.other+"; Covey reads text only")
		}
		if given(m.Function) {
			return unsupported(param+".function_call", "use tool_calls")
		}
	}
	return nil
}

// alternatives is the engine's Logprobs field: -1 none, else how many alternatives.
func (q *chatRequest) alternatives() (int, *apiError) {
	if q.TopLogprobs == nil {
		if q.Logprobs {
			return 0, nil
		}
		return -1, nil
	}
	if !q.Logprobs && *q.TopLogprobs > 0 {
		return 0, badParam("top_logprobs", "logprobs must be true")
	}
	if *q.TopLogprobs < 0 || *q.TopLogprobs > apiAlternatives {
		return 0, badParam("top_logprobs", "%d is not 0 to %d", *q.TopLogprobs, apiAlternatives)
	}
	if !q.Logprobs {
		return -1, nil
	}
	return *q.TopLogprobs, nil
}

// request turns the common fields into an engine request without a prompt, and the number of choices. What the client
// does not set comes from the model's own defaults; vocab and context are the model's.
func (q *apiRequest) request(defaults sample.Params, vocab, context int, seed uint64) (engine.Request, int, *apiError) {
	choices := 1
	if q.N != nil {
		choices = *q.N
	}
	if choices < 1 || choices > apiChoices {
		return engine.Request{}, 0, badParam("n", "%d is not 1 to %d", choices, apiChoices)
	}
	r := engine.Request{Sampling: defaults, MaxTokens: context, Logprobs: -1, Stops: q.Stop, Owner: apiOwner}
	if q.MaxTokens != nil {
		if *q.MaxTokens < 1 {
			return r, 0, badParam("max_tokens", "%d is below 1", *q.MaxTokens)
		}
		r.MaxTokens = min(*q.MaxTokens, context)
	}
	if len(q.Stop) > apiStops {
		return r, 0, badParam("stop", "%d texts are more than %d", len(q.Stop), apiStops)
	}
	for _, s := range q.Stop {
		if s == "" || len(s) > apiStopBytes {
			return r, 0, badParam("stop", "a text of %d bytes is not 1 to %d", len(s), apiStopBytes)
		}
	}
	p := &r.Sampling
	p.Seed = seed
	if q.Seed != nil {
		p.Seed = uint64(*q.Seed)
	}
	numbers := []struct {
		name        string
		value       *float64
		low, high   float64
		openAbove   bool // high itself is excluded
		openBelow   bool // low itself is excluded
		destination *float32
	}{
		{"temperature", q.Temperature, 0, 2, false, false, &p.Temperature},
		{"top_p", q.TopP, 0, 1, false, true, &p.TopP},
		{"min_p", q.MinP, 0, 1, true, false, &p.MinP},
		{"repetition_penalty", q.RepetitionPenalty, 0, 2, false, true, &p.RepetitionPenalty},
		{"frequency_penalty", q.FrequencyPenalty, -2, 2, false, false, &p.FrequencyPenalty},
		{"presence_penalty", q.PresencePenalty, -2, 2, false, false, &p.PresencePenalty},
	}
	for _, n := range numbers {
		if n.value == nil {
			continue
		}
		v := *n.value
		if math.IsNaN(v) || v < n.low || v > n.high || n.openBelow && v == n.low || n.openAbove && v == n.high {
			return r, 0, badParam(n.name, "%v is out of range (%v to %v)", v, n.low, n.high)
		}
		*n.destination = float32(v)
	}
	if q.TopK != nil {
		if *q.TopK < 0 || *q.TopK > math.MaxInt32 {
			return r, 0, badParam("top_k", "%d is out of range", *q.TopK)
		}
		p.TopK = *q.TopK
	}
	var failure *apiError
	p.LogitBias, failure = logitBias(q.LogitBias, vocab)
	return r, choices, failure
}

func logitBias(raw map[string]float64, vocab int) (map[int32]float32, *apiError) {
	if len(raw) == 0 {
		return nil, nil
	}
	if len(raw) > apiLogitBias {
		return nil, badParam("logit_bias", "%d tokens are more than %d", len(raw), apiLogitBias)
	}
	keys := make([]string, 0, len(raw))
	for key := range raw {
		keys = append(keys, key)
	}
	slices.Sort(keys) // so that the same request gets the same refusal
	bias := make(map[int32]float32, len(raw))
	for _, key := range keys {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 || int(id) >= vocab {
			return nil, badParam("logit_bias", "%q is not a token id below %d", clip(key, 50), vocab)
		}
		if v := raw[key]; math.IsNaN(v) || v < -100 || v > 100 {
			return nil, badParam("logit_bias", "%v for token %d is not -100 to 100", v, id)
		}
		bias[int32(id)] = float32(raw[key])
	}
	return bias, nil
}
