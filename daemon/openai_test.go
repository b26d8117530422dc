package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
)

const bundledModel = "../models/smollm2-moe-32x"

// shared is one daemon with the bundled model for all tests that only ask it questions.
var shared struct {
	once sync.Once
	*testDaemon
	stop func() error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.testDaemon != nil {
		if err := shared.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the shared daemon:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func modelDaemon(t *testing.T) *testDaemon {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "covey-test-")
		if err != nil {
			t.Fatal(err)
		}
		c := goodConfig()
		c.Data, c.Model, c.Context = dir, bundledModel, 1024
		ctx, cancel := context.WithCancel(context.Background())
		s, err := New(ctx, c, "test", quiet)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		token, _ := s.auth.token.current()
		shared.testDaemon = &testDaemon{Server: s, base: "http://" + s.Addr().String(), token: token}
		shared.stop = func() error { cancel(); return errors.Join(<-ended, os.RemoveAll(dir)) }
	})
	if shared.testDaemon == nil {
		t.Fatal("the shared daemon did not start")
	}
	d := *shared.testDaemon
	d.t = t
	if failure := d.loaded(); failure != nil {
		t.Fatal(failure)
	}
	return &d
}

func (d *testDaemon) client() *openai.Client {
	c := openai.NewClient(option.WithBaseURL(d.base+"/v1"), option.WithAPIKey(d.token), option.WithMaxRetries(0))
	return &c
}

// ask is a greedy request of a few tokens.
func ask(text string, tokens int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "smollm2-moe-32x", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
		Temperature: openai.Float(0), MaxCompletionTokens: openai.Int(tokens),
	}
}

// stream runs a streamed request to its end.
func stream(t *testing.T, c *openai.Client, p openai.ChatCompletionNewParams) openai.ChatCompletionAccumulator {
	t.Helper()
	events := c.Chat.Completions.NewStreaming(t.Context(), p)
	defer events.Close()
	var all openai.ChatCompletionAccumulator
	for events.Next() {
		if !all.AddChunk(events.Current()) {
			t.Fatalf("an event does not fit the others: %s", events.Current().RawJSON())
		}
	}
	if err := events.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestChatAnswersWholeAndStreamedAreTheSame(t *testing.T) {
	c := modelDaemon(t).client()
	p := ask("Name three colours.", 24)
	p.Temperature, p.TopP, p.Seed = openai.Float(0.8), openai.Float(0.9), openai.Int(7)
	whole, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	text := whole.Choices[0].Message.Content
	if text == "" || whole.Choices[0].Message.Role != "assistant" || whole.Object != "chat.completion" || whole.Model != "smollm2-moe-32x" || !strings.Contains(whole.RawJSON(), `"system_fingerprint":"`) {
		t.Errorf("answer %s", whole.RawJSON())
	}
	u := whole.Usage
	if u.PromptTokens == 0 || u.CompletionTokens == 0 || u.CompletionTokens > 24 || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
		t.Errorf("usage %+v", u)
	}
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	all := stream(t, c, p)
	if got := all.Choices[0].Message.Content; got != text {
		t.Errorf("streamed %q, whole %q", got, text)
	}
	if all.Choices[0].FinishReason != whole.Choices[0].FinishReason || all.Usage.TotalTokens != u.TotalTokens {
		t.Errorf("finish %q and usage %+v, want %q and %+v", all.Choices[0].FinishReason, all.Usage, whole.Choices[0].FinishReason, u)
	}
}

func TestAStreamHasUsageOnlyWhenAskedFor(t *testing.T) {
	d := modelDaemon(t)
	code, header, body := d.do("POST", "/v1/chat/completions", `{"messages": [{"role": "user", "content": "Hi"}], "stream": true, "max_tokens": 2, "temperature": 0}`, "X-Api-Key", d.token)
	if code != 200 || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("%d %v", code, header)
	}
	if strings.Contains(body, "usage") || !strings.HasPrefix(body, "data: {") || !strings.HasSuffix(body, "\n\ndata: [DONE]\n\n") {
		t.Errorf("events %s", body)
	}
	for event := range strings.SplitSeq(strings.TrimSuffix(body, "\n\ndata: [DONE]\n\n"), "\n\n") {
		var chunk chatAnswer
		if err := json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &chunk); err != nil || chunk.Object != "chat.completion.chunk" {
			t.Errorf("event %q: %v", event, err)
		}
	}
}

func TestLogprobsDescribeTheTokensOfTheAnswer(t *testing.T) {
	c := modelDaemon(t).client()
	p := ask("Say hello.", 6)
	p.Logprobs, p.TopLogprobs = openai.Bool(true), openai.Int(3)
	whole, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	entries := whole.Choices[0].Logprobs.Content
	var joined []byte
	for i, e := range entries {
		if len(e.TopLogprobs) != 3 || e.TopLogprobs[0].Token != e.Token || e.TopLogprobs[0].Logprob != e.Logprob || e.Logprob > 0 {
			t.Errorf("token %d: %+v is not the most likely of its alternatives", i, e)
		}
		for _, b := range e.Bytes {
			joined = append(joined, byte(b))
		}
	}
	if string(joined) != whole.Choices[0].Message.Content || len(entries) != int(whole.Usage.CompletionTokens) {
		t.Errorf("%d tokens %q, answer %q of %d tokens", len(entries), joined, whole.Choices[0].Message.Content, whole.Usage.CompletionTokens)
	}
	all := stream(t, c, p)
	if got := all.Choices[0].Logprobs.Content; len(got) != len(entries) || got[0].Logprob != entries[0].Logprob {
		t.Errorf("streamed log-probabilities differ: %+v", got)
	}
}

func TestChoicesDifferAndASeedRepeatsThem(t *testing.T) {
	c := modelDaemon(t).client()
	p := ask("Write a sentence about the sea.", 16)
	p.Temperature, p.N, p.Seed = openai.Float(1), openai.Int(2), openai.Int(1)
	first, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(first.Choices) != 2 || first.Choices[0].Message.Content == first.Choices[1].Message.Content {
		t.Errorf("choices %s", first.RawJSON())
	}
	for i := range first.Choices {
		if first.Choices[i].Message.Content != second.Choices[i].Message.Content || first.Choices[i].Index != int64(i) {
			t.Errorf("choice %d was %q, then %q", i, first.Choices[i].Message.Content, second.Choices[i].Message.Content)
		}
	}
}

func TestStopTextEndsTheAnswerAndIsNotEmitted(t *testing.T) {
	c := modelDaemon(t).client()
	p := ask("Count from one to ten.", 24)
	whole, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	text := whole.Choices[0].Message.Content
	stop := text[len(text)/2 : len(text)/2+4]
	p.Stop = openai.ChatCompletionNewParamsStopUnion{OfString: openai.String(stop)}
	cut, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	want, _, _ := strings.Cut(text, stop)
	if cut.Choices[0].Message.Content != want || cut.Choices[0].FinishReason != "stop" {
		t.Errorf("with stop %q: %q (%s), want %q", stop, cut.Choices[0].Message.Content, cut.Choices[0].FinishReason, want)
	}
}

func TestLogitBiasBansAToken(t *testing.T) {
	d := modelDaemon(t)
	c := d.client()
	p := ask("Say hello.", 1)
	before, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	eng, _ := d.Engine()
	ids, err := eng.Tokenizer().Encode(before.Choices[0].Message.Content, false)
	if err != nil || len(ids) != 1 {
		t.Fatalf("the first token is %q: %v %v", before.Choices[0].Message.Content, ids, err)
	}
	p.LogitBias = map[string]int64{fmt.Sprint(ids[0]): -100}
	after, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if after.Choices[0].Message.Content == before.Choices[0].Message.Content {
		t.Errorf("the banned token %q was chosen again", after.Choices[0].Message.Content)
	}
}

func TestSpecialTokensInAMessageStayText(t *testing.T) {
	c := modelDaemon(t).client()
	count := func(text string) int64 {
		t.Helper()
		a, err := c.Chat.Completions.New(t.Context(), ask(text, 1))
		if err != nil {
			t.Fatal(err)
		}
		return a.Usage.PromptTokens
	}
	if marked, plain := count("a<|im_end|>b"), count("ab"); marked < plain+3 {
		t.Errorf("the marker took %d tokens: it was taken for a special token", marked-plain)
	}
}

func TestTextCompletionsTakeTextAndTokens(t *testing.T) {
	d := modelDaemon(t)
	c := d.client()
	p := openai.CompletionNewParams{Model: "smollm2-moe-32x", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("The capital of France is")},
		Temperature: openai.Float(0), MaxTokens: openai.Int(8), Logprobs: openai.Int(2)}
	whole, err := c.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if whole.Choices[0].Text == "" || whole.Choices[0].FinishReason != "length" || len(whole.Choices[0].Logprobs.Tokens) != 8 {
		t.Errorf("%s", whole.RawJSON())
	}
	events := c.Completions.NewStreaming(t.Context(), p)
	var text string
	for events.Next() {
		text += events.Current().Choices[0].Text
	}
	if err := events.Err(); err != nil || text != whole.Choices[0].Text {
		t.Errorf("streamed %q, whole %q, error %v", text, whole.Choices[0].Text, err)
	}
	eng, _ := d.Engine()
	ids, err := eng.Tokenizer().Encode("The capital of France is", true)
	if err != nil {
		t.Fatal(err)
	}
	p.Prompt = openai.CompletionNewParamsPromptUnion{}
	for _, id := range ids {
		p.Prompt.OfArrayOfTokens = append(p.Prompt.OfArrayOfTokens, int64(id))
	}
	fromIDs, err := c.Completions.New(t.Context(), p)
	if err != nil || fromIDs.Choices[0].Text != whole.Choices[0].Text {
		t.Errorf("from tokens: %v, error %v; want %q", fromIDs, err, whole.Choices[0].Text)
	}
}

func TestModelsAreListed(t *testing.T) {
	c := modelDaemon(t).client()
	list, err := c.Models.List(t.Context())
	if err != nil || len(list.Data) != 1 || list.Data[0].ID != "smollm2-moe-32x" {
		t.Errorf("list %+v, error %v", list, err)
	}
	if m, err := c.Models.Get(t.Context(), "smollm2-moe-32x"); err != nil || m.ID != "smollm2-moe-32x" || m.Object != "model" {
		t.Errorf("model %+v, error %v", m, err)
	}
}

func TestRefusalsReachTheClientByStatusCodeAndParameter(t *testing.T) {
	d := modelDaemon(t)
	c := d.client()
	cases := []struct {
		name        string
		change      func(*openai.ChatCompletionNewParams)
		status      int
		code, param string
	}{
		{"another model", func(p *openai.ChatCompletionNewParams) { p.Model = "gpt-4" }, 404, "model_not_found", "model"},
		{"prompt beyond the context", func(p *openai.ChatCompletionNewParams) {
			p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("word ", 2000))}
		}, 400, "context_length_exceeded", "messages"},
		{"prompt of megabytes, which is not split into tokens", func(p *openai.ChatCompletionNewParams) {
			p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("word ", 1<<20))}
		}, 400, "context_length_exceeded", "messages"},
		{"temperature", func(p *openai.ChatCompletionNewParams) { p.Temperature = openai.Float(9) }, 400, "invalid_value", "temperature"},
		{"tools without a template for them", func(p *openai.ChatCompletionNewParams) {
			p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "f"})}
		}, 400, "unsupported_parameter", "tools"},
		{"JSON answers", func(p *openai.ChatCompletionNewParams) {
			p.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONObject: &openai.ResponseFormatJSONObjectParam{}}
		}, 400, "unsupported_parameter", "response_format"},
		{"forced call", func(p *openai.ChatCompletionNewParams) {
			p.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: param.NewOpt("required")}
		}, 400, "unsupported_parameter", "tool_choice"},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			p := ask("Hi", 1)
			k.change(&p)
			_, err := c.Chat.Completions.New(t.Context(), p)
			var refused *openai.Error
			if !errors.As(err, &refused) || refused.StatusCode != k.status || refused.Code != k.code || refused.Param != k.param || refused.Message == "" {
				t.Errorf("got %v, want %d %s %s", err, k.status, k.code, k.param)
			}
		})
	}
	wrong := openai.NewClient(option.WithBaseURL(d.base+"/v1"), option.WithAPIKey("guess"), option.WithMaxRetries(0))
	var refused *openai.Error
	if _, err := wrong.Models.List(t.Context()); !errors.As(err, &refused) || refused.StatusCode != 401 || refused.Type != "authentication_error" {
		t.Errorf("a wrong key: %v", err)
	}
}

// endless is a request that only its limit or its client ends: the end-of-answer tokens are banned.
func endless(d *testDaemon) openai.ChatCompletionNewParams {
	p := ask("Tell me a story.", 900)
	eng, _ := d.Engine()
	p.LogitBias = map[string]int64{}
	for _, id := range eng.Model().EOS {
		p.LogitBias[fmt.Sprint(id)] = -100
	}
	return p
}

func TestAClientThatHangsUpFreesTheEngine(t *testing.T) {
	d := modelDaemon(t)
	eng, _ := d.Engine()
	ctx, hangUp := context.WithCancel(t.Context())
	events := d.client().Chat.Completions.NewStreaming(ctx, endless(d))
	for range 3 {
		if !events.Next() {
			t.Fatal(events.Err())
		}
	}
	if eng.Stats().Running != 1 {
		t.Errorf("%d sequences run, want 1", eng.Stats().Running)
	}
	hangUp()
	events.Close()
	for range 1000 {
		if st := eng.Stats(); st.Running == 0 && len(d.slots) == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("the engine still works for a client that is gone: %+v, %d slots", eng.Stats(), len(d.slots))
}

func TestRequestsBeyondTheSlotsAreTurnedAway(t *testing.T) {
	d := modelDaemon(t)
	for range cap(d.slots) {
		d.slots <- struct{}{}
	}
	defer func() {
		for range cap(d.slots) {
			<-d.slots
		}
	}()
	_, err := d.client().Chat.Completions.New(t.Context(), ask("Hi", 1))
	var refused *openai.Error
	if !errors.As(err, &refused) || refused.StatusCode != http.StatusTooManyRequests || refused.Code != "queue_full" || refused.Response.Header.Get("Retry-After") == "" {
		t.Errorf("got %v, want 429 with Retry-After", err)
	}
}

func TestStoppingCutsAnEndlessStreamWithAnError(t *testing.T) {
	d := startDaemon(t, func(c *Config) { c.Model, c.Context, c.Drain = bundledModel, 1024, 0 })
	if failure := d.loaded(); failure != nil {
		t.Fatal(failure)
	}
	events := d.client().Chat.Completions.NewStreaming(t.Context(), endless(d))
	if !events.Next() {
		t.Fatal(events.Err())
	}
	stopped := make(chan error, 1)
	go func() { stopped <- d.stop() }()
	for events.Next() {
	}
	if events.Err() == nil {
		t.Error("the stream ended as if it were whole")
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
