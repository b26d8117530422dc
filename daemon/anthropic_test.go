package daemon

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"covey/engine"
	"covey/engine/chat"
)

func (d *testDaemon) messages(path, body string) (int, string) {
	d.t.Helper()
	code, _, answer := d.do("POST", path, body, "X-Api-Key", d.token, "Anthropic-Version", "2023-06-01")
	return code, answer
}

func TestMessagesAnswerInAnthropicsShape(t *testing.T) {
	d := modelDaemon(t)
	code, body := d.messages("/v1/messages", `{"model": "smollm2-moe-32x", "max_tokens": 12, "temperature": 0, "system": "Be brief.",
		"messages": [{"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]}]}`)
	var a messagesAnswer
	if err := json.Unmarshal([]byte(body), &a); err != nil || code != 200 {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if a.Type != "message" || a.Role != "assistant" || !strings.HasPrefix(a.ID, "msg_") || len(a.Content) != 1 || a.Content[0].Type != "text" || a.Content[0].Text == "" || a.StopReason == nil {
		t.Errorf("%s", body)
	}
	if a.Usage.Input+a.Usage.Cached == 0 || a.Usage.Output == 0 || a.Usage.Output > 12 {
		t.Errorf("usage %+v", a.Usage)
	}
	_, counted := d.messages("/v1/messages/count_tokens", `{"system": "Be brief.", "messages": [{"role": "user", "content": "Say hello."}]}`)
	var count struct {
		Input int `json:"input_tokens"`
	}
	if err := json.Unmarshal([]byte(counted), &count); err != nil || count.Input != a.Usage.Input+a.Usage.Cached {
		t.Errorf("counted %s, used %+v", counted, a.Usage)
	}

	code, body = d.messages("/v1/messages", `{"max_tokens": 12, "temperature": 0, "system": "Be brief.", "stream": true, "messages": [{"role": "user", "content": "Say hello."}]}`)
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	var text string
	var names []string
	for event := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		name, data, _ := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
		var e struct {
			Type  string
			Delta struct{ Text string }
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil || e.Type != name {
			t.Fatalf("event %q: %v", event, err)
		}
		text += e.Delta.Text
		if len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	want := []string{"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}
	if diff := cmp.Diff(want, names); diff != "" || text != a.Content[0].Text {
		t.Errorf("streamed %q, whole %q; events: %s", text, a.Content[0].Text, diff)
	}
}

func TestMessagesStopAtAStopSequenceAndSayWhich(t *testing.T) {
	d := modelDaemon(t)
	ask := func(extra string) messagesAnswer {
		code, body := d.messages("/v1/messages", `{"max_tokens": 16, "temperature": 0, "messages": [{"role": "user", "content": "Count from one to ten."}]`+extra+`}`)
		var a messagesAnswer
		if err := json.Unmarshal([]byte(body), &a); err != nil || code != 200 {
			t.Fatalf("%d %s: %v", code, body, err)
		}
		return a
	}
	text := ask("").Content[0].Text
	stop := text[len(text)/2 : len(text)/2+3]
	quoted, _ := json.Marshal([]string{stop})
	if a := ask(`, "stop_sequences": ` + string(quoted)); *a.StopReason != "stop_sequence" || *a.StopSequence != stop {
		t.Errorf("reason %s, sequence %v, want stop_sequence %q", *a.StopReason, a.StopSequence, stop)
	}
}

func TestMessagesAreTranslatedIntoTheChatRequest(t *testing.T) {
	body := `{"max_tokens": 5, "top_k": 3, "stop_sequences": ["x"], "system": [{"type": "text", "text": "sys", "cache_control": {"type": "ephemeral"}}],
		"tools": [{"name": "f", "description": "does f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"},
		"messages": [
			{"role": "user", "content": "call f"},
			{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "ok"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
			{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]}, {"type": "text", "text": "and?"}]},
			{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "43"}]}
		]}`
	var q messagesRequest
	if err := json.Unmarshal([]byte(body), &q); err != nil {
		t.Fatal(err)
	}
	got, refused := q.translate()
	if refused != nil {
		t.Fatal(refused)
	}
	want := []chat.Message{
		{Role: "system", Content: "sys"},
		{Role: "user", Content: "call f"},
		{Role: "assistant", Content: "ok", Reasoning: "hm", ToolCalls: []chat.ToolCall{{ID: "t1", Name: "f", Arguments: json.RawMessage(`"{\"a\": 1}"`)}}},
		{Role: "tool", ToolCallID: "t1", Content: "42"},
		{Role: "user", Content: "and?"},
		{Role: "tool", ToolCallID: "t2", Content: "43"},
	}
	if diff := cmp.Diff(want, got.conversation()); diff != "" {
		t.Error(diff)
	}
	if string(got.Tools) != `[{"function":{"description":"does f","name":"f","parameters":{"type":"object"}},"type":"function"}]` || string(got.ToolChoice) != `"auto"` {
		t.Errorf("tools %s, choice %s", got.Tools, got.ToolChoice)
	}
	if *got.TopK != 3 || *got.MaxTokens != 5 || got.Stop[0] != "x" {
		t.Errorf("numbers are lost: %+v", got.apiRequest)
	}
}

func TestMessagesRefuseByParameter(t *testing.T) {
	d := modelDaemon(t)
	const turn = `"messages": [{"role": "user", "content": "hi"}]`
	cases := []struct{ body, param string }{
		{`{` + turn + `}`, "max_tokens"},
		{`{"max_tokens": 1}`, "messages"},
		{`{"max_tokens": 1, "messages": [{"role": "system", "content": "x"}]}`, "messages[0].role"},
		{`{"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image"}]}]}`, "messages[0].content[0]"},
		{`{"max_tokens": 1, ` + turn + `, "thinking": {"type": "enabled"}}`, "thinking"},
		{`{"max_tokens": 1, ` + turn + `, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}`, "tools[0]"},
		{`{"max_tokens": 1, ` + turn + `, "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}}`, "tool_choice"},
		{`{"max_tokens": 1, ` + turn + `, "tools": [{"name": "f", "input_schema": {}}]}`, "tools"},
		{`{"max_tokens": 1, ` + turn + `, "mcp_servers": [{}]}`, "mcp_servers"},
		{`{"max_tokens": 1, ` + turn + `, "temperature": 3}`, "temperature"},
	}
	for _, c := range cases {
		code, body := d.messages("/v1/messages", c.body)
		var e errorBody
		if err := json.Unmarshal([]byte(body), &e); err != nil || code != 400 || e.Type != "error" || e.Error.Type != "invalid_request_error" || e.Error.Param == nil || *e.Error.Param != c.param {
			t.Errorf("%s: %d %s, want param %q", c.body, code, body, c.param)
		}
	}
}

func TestStreamedBlocksBeginAndEndOneAfterAnother(t *testing.T) {
	d := startDaemon(t, nil)
	d.always("GET /blocks", func(w http.ResponseWriter, r *http.Request) {
		m := messagesStream{events: newEventStream(w)}
		defer m.events.close()
		m.parts([]chat.Part{
			{Kind: chat.PartReasoning, Text: "hm"}, {Kind: chat.PartText, Text: "a"}, {Kind: chat.PartText, Text: "b"},
			{Kind: chat.PartCall, Call: chat.ToolCall{ID: "t1", Name: "f", Arguments: json.RawMessage(`{"a":1}`)}},
			{Kind: chat.PartCall, Call: chat.ToolCall{ID: "t2", Name: "g", Arguments: json.RawMessage(`[]`)}},
		})
		m.end()
	})
	_, _, body := d.get("/blocks")
	want := `event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"signature":"","thinking":"","type":"thinking"}}
event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"thinking":"hm","type":"thinking_delta"}}
event: content_block_stop
data: {"type":"content_block_stop","index":0}
event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"text":"","type":"text"}}
event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"text":"a","type":"text_delta"}}
event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"text":"b","type":"text_delta"}}
event: content_block_stop
data: {"type":"content_block_stop","index":1}
event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"id":"t1","input":{},"name":"f","type":"tool_use"}}
event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"partial_json":"{\"a\":1}","type":"input_json_delta"}}
event: content_block_stop
data: {"type":"content_block_stop","index":2}
event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"id":"t2","input":{},"name":"g","type":"tool_use"}}
event: content_block_delta
data: {"type":"content_block_delta","index":3,"delta":{"partial_json":"{\"arguments\":\"[]\"}","type":"input_json_delta"}}
event: content_block_stop
data: {"type":"content_block_stop","index":3}`
	if diff := cmp.Diff(want, strings.ReplaceAll(strings.TrimSpace(body), "\n\n", "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestStopReasons(t *testing.T) {
	cases := []struct {
		result engine.Result
		calls  int
		want   string
	}{
		{engine.Result{Finish: engine.FinishStop}, 0, "end_turn"},
		{engine.Result{Finish: engine.FinishStop}, 1, "tool_use"},
		{engine.Result{Finish: engine.FinishStop, Stop: "x"}, 0, "stop_sequence"},
		{engine.Result{Finish: engine.FinishLength}, 1, "max_tokens"},
	}
	for _, c := range cases {
		if got, _ := stopReason(&c.result, c.calls); got != c.want {
			t.Errorf("%+v with %d calls: %s, want %s", c.result, c.calls, got, c.want)
		}
	}
}
