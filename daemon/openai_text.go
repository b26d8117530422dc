package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"covey/engine"
	"covey/engine/tokenizer"
)

// textRequest is the body of POST /v1/completions.
type textRequest struct {
	apiRequest
	Prompt   json.RawMessage `json:"prompt"`
	Logprobs *int            `json:"logprobs"`
	Echo     bool            `json:"echo"`
	Suffix   string          `json:"suffix"`
	BestOf   *int            `json:"best_of"`
}

type textChoice struct {
	Text         string        `json:"text"`
	Index        int           `json:"index"`
	Logprobs     *textLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

// textLogprobs is the older form of log-probabilities: parallel lists.
type textLogprobs struct {
	Tokens   []string             `json:"tokens"`
	Logprobs []float32            `json:"token_logprobs"`
	Top      []map[string]float32 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"` // of the text that each token released, in bytes of the answer
	textLen  int
}

func (l *textLogprobs) add(tok *tokenizer.Tokenizer, out engine.Output) {
	top := make(map[string]float32, len(out.Top))
	for _, t := range out.Top {
		top[visible(tok.Bytes(t.ID))] = t.Logprob
	}
	l.Tokens = append(l.Tokens, visible(tok.Bytes(out.Token)))
	l.Logprobs = append(l.Logprobs, out.Logprob)
	l.Top = append(l.Top, top)
	l.Offsets = append(l.Offsets, l.textLen)
	l.textLen += len(out.Text)
}

type textResponse struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	Model       string       `json:"model"`
	Fingerprint string       `json:"system_fingerprint"`
	Choices     []textChoice `json:"choices"`
	Usage       *apiUsage    `json:"usage,omitempty"`
}

// apiUsage counts tokens: the prompt once, the answers of all choices together.
type apiUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (u *apiUsage) add(r *engine.Result) {
	u.Prompt = r.PromptTokens
	u.Completion += len(r.Tokens)
	u.Total = u.Prompt + u.Completion
	u.Details.Cached = max(u.Details.Cached, r.CachedTokens)
}

// read checks the request and turns it into an engine request with its prompt.
func (q *textRequest) read(eng *engine.Engine) (engine.Request, int, error) {
	info := eng.Model()
	if q.Echo {
		return engine.Request{}, 0, unsupported("echo", "")
	}
	if q.Suffix != "" {
		return engine.Request{}, 0, unsupported("suffix", "")
	}
	r, choices, refused := q.request(eng.Defaults(), info.Vocab, info.Context, randomSeed())
	if refused != nil {
		return r, 0, refused
	}
	if q.BestOf != nil && *q.BestOf != choices {
		return r, 0, unsupported("best_of", "ask for n answers and choose among them")
	}
	if q.Logprobs != nil {
		if *q.Logprobs < 0 || *q.Logprobs > apiAlternatives {
			return r, 0, badParam("logprobs", "%d is not 0 to %d", *q.Logprobs, apiAlternatives)
		}
		r.Logprobs = *q.Logprobs
	}
	var err error
	if r.Prompt, err = readPrompt(q.Prompt, eng); err != nil {
		return r, 0, err
	}
	return r, choices, fit(&r, info.Context, "prompt")
}

// readPrompt takes a string, a list of one string, or a list of token ids. The text is the client's own, template and
// all: special tokens that it spells are recognised.
func readPrompt(raw json.RawMessage, eng *engine.Engine) ([]int32, error) {
	var text string
	var texts []string
	var ids []int32
	switch raw = bytes.TrimSpace(raw); {
	case decodeJSON(raw, &text) == nil:
	case decodeJSON(raw, &texts) == nil:
		if len(texts) != 1 {
			return nil, badParam("prompt", "%d texts; send one request for each", len(texts))
		}
		text = texts[0]
	case decodeJSON(raw, &ids) == nil:
		for i, id := range ids {
			if id < 0 || int(id) >= eng.Model().Vocab {
				return nil, badParam("prompt", "token %d (%d) is not below %d", i, id, eng.Model().Vocab)
			}
		}
		return ids, nil
	default:
		return nil, badParam("prompt", "it is neither a text nor a list of token ids")
	}
	if err := checkBytes(len(text), eng.Model().Context, "prompt"); err != nil {
		return nil, err
	}
	encoded, err := eng.Tokenizer().Encode(text, true)
	if err != nil {
		return nil, badParam("prompt", "%v", err)
	}
	return encoded, nil
}

func (s *Server) serveCompletion(w http.ResponseWriter, r *http.Request) {
	var q textRequest
	eng, ok := s.readAPI(w, r, &q, &q.Model)
	if !ok {
		return
	}
	request, choices, err := q.read(eng)
	if err != nil {
		refuseAPI(w, err)
		return
	}
	release, err := s.acquire()
	if err != nil {
		refuseAPI(w, err)
		return
	}
	defer release()
	info := eng.Model()
	answer := textResponse{ID: newID("cmpl-"), Object: "text_completion", Created: time.Now().Unix(), Model: info.ID, Fingerprint: fingerprint(info)}
	if q.Stream {
		s.streamText(w, r, eng, &q, request, choices, answer)
		return
	}
	texts, logprobs := make([]strings.Builder, choices), make([]*textLogprobs, choices)
	answer.Choices, answer.Usage = make([]textChoice, choices), &apiUsage{}
	err = s.generate(r.Context(), eng, request, choices, func() error { return nil }, func(c choiceOutput) error {
		if c.result != nil {
			answer.Usage.add(c.result)
			finish := c.result.Finish
			answer.Choices[c.choice] = textChoice{Text: texts[c.choice].String(), Index: c.choice, Logprobs: logprobs[c.choice], FinishReason: &finish}
			return nil
		}
		if c.output.Kind == engine.KindToken {
			texts[c.choice].WriteString(c.output.Text)
			if request.Logprobs >= 0 {
				if logprobs[c.choice] == nil {
					logprobs[c.choice] = &textLogprobs{}
				}
				logprobs[c.choice].add(eng.Tokenizer(), c.output)
			}
		}
		return nil
	})
	if err != nil {
		refuseAPI(w, err)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

func (s *Server) streamText(w http.ResponseWriter, r *http.Request, eng *engine.Engine, q *textRequest, request engine.Request, choices int, head textResponse) {
	var events *eventStream
	var usage apiUsage
	lengths := make([]int, choices)
	chunk := func(c textChoice) error {
		head.Choices = []textChoice{c}
		return events.send(head)
	}
	accepted := func() error { events = newEventStream(w); return nil }
	err := s.generate(r.Context(), eng, request, choices, accepted, func(c choiceOutput) error {
		if c.result != nil {
			usage.add(c.result)
			finish := c.result.Finish
			return chunk(textChoice{Index: c.choice, FinishReason: &finish})
		}
		if c.output.Kind != engine.KindToken || c.output.Text == "" && request.Logprobs < 0 {
			return nil
		}
		piece := textChoice{Text: c.output.Text, Index: c.choice}
		if request.Logprobs >= 0 {
			piece.Logprobs = &textLogprobs{textLen: lengths[c.choice]}
			piece.Logprobs.add(eng.Tokenizer(), c.output)
			lengths[c.choice] = piece.Logprobs.textLen
		}
		return chunk(piece)
	})
	if events == nil {
		refuseAPI(w, err)
		return
	}
	defer events.close()
	if err != nil {
		events.fail(err)
		return
	}
	if q.StreamOptions != nil && q.StreamOptions.IncludeUsage {
		head.Choices, head.Usage = []textChoice{}, &usage
		if events.send(head) != nil {
			return
		}
	}
	events.done() // the client is gone if this fails
}

// visible is a token's bytes as text; bytes that are no UTF-8 are written \xNN.
func visible(b []byte) string {
	text := strings.ToValidUTF8(string(b), "")
	if len(text) == len(b) {
		return text
	}
	var hex strings.Builder
	for _, c := range b {
		fmt.Fprintf(&hex, "\\x%02x", c)
	}
	return "bytes:" + hex.String()
}
