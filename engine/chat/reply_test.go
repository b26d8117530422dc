package chat

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"covey/engine/tokenizer"
)

// spell writes parts on one line, joining neighbours of a kind: text as it is, reasoning in braces, calls as name(arguments).
func spell(parts []Part) string {
	var b strings.Builder
	last := PartCall
	for _, p := range parts {
		if last == PartReasoning && p.Kind != PartReasoning {
			b.WriteString("}")
		}
		switch p.Kind {
		case PartText:
			b.WriteString(p.Text)
		case PartReasoning:
			if last != PartReasoning {
				b.WriteString("{")
			}
			b.WriteString(p.Text)
		case PartCall:
			fmt.Fprintf(&b, "%s%s(%s)", p.Call.ID, p.Call.Name, p.Call.Arguments)
		}
		last = p.Kind
	}
	if last == PartReasoning {
		b.WriteString("}")
	}
	return b.String()
}

// split runs an answer through a Reply in pieces of n bytes.
func split(r *Reply, answer string, n int) []Part {
	var parts []Part
	for len(answer) > 0 {
		k := min(n, len(answer))
		parts = append(parts, r.Push(answer[:k])...)
		answer = answer[k:]
	}
	return append(parts, r.Close()...)
}

var replies = []struct {
	name   string
	format Format
	answer string
	want   string
}{
	{"plain text", Format{}, "Hello <think> <tool_call>{} ", "Hello <think> <tool_call>{} "},
	{"reasoning", Format{Think: true}, "<think>\nHm.\n\nYes.\n</think>\n\nFour.", "{Hm.\n\nYes.}Four."},
	{"reasoning after white space", Format{Think: true}, "\n <think>a</think>b", "{a}b"},
	{"empty reasoning", Format{Think: true}, "<think>\n\n</think>\n\nFour.", "Four."},
	{"reasoning cut short", Format{Think: true}, "<think>\nHm. </thin", "{Hm. </thin}"},
	{"a think tag inside the answer is text", Format{Think: true}, "Write <think> like </think> so", "Write <think> like </think> so"},
	{"less than", Format{Think: true, Calls: CallsTagged}, "a < b <tool_box> <", "a < b <tool_box> <"},
	{"hermes", Format{Calls: CallsTagged}, "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": \"{}\"}</tool_call>", `I look.f({"a": 1})g({})`},
	{"reasoning, then a call", Format{Think: true, Calls: CallsTagged}, "<think>x</think>\n\n<tool_call>{\"name\": \"f\"}</tool_call>\nDone", "{x}f({})Done"},
	{"a call that is not one", Format{Calls: CallsTagged}, "<tool_call>{\"name\": 3}</tool_call> x", "<tool_call>{\"name\": 3}</tool_call> x"},
	{"a call cut short", Format{Calls: CallsTagged}, "<tool_call>{\"name\"", "<tool_call>{\"name\""},
	{"qwen coder", Format{Calls: CallsTagged}, "<tool_call>\n<function=f>\n<parameter=path>\n/a b\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>", `f({"path": "/a b", "n": 3})`},
	{"glm", Format{Think: true, Calls: CallsTagged}, "\n<think>t</think>\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Zürich \"x\"</arg_value>\n<arg_key>days</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>", `{t}f({"city": "Zürich \"x\"", "days": [1, 2]})`},
	{"glm without arguments", Format{Calls: CallsTagged}, "<tool_call>now\n</tool_call>", "now({})"},
	{"deepseek", Format{Calls: CallsDeepSeek}, "Sure.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "Sure.f({\"a\": \"```\"})g({})"},
	{"mistral", Format{Calls: CallsMistral}, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abc\"}]", `abcf({"a": 1})`},
	{"mistral with arguments apart", Format{Calls: CallsMistral}, "x [TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}", `xf({"a": 1})g({})`},
	{"mistral gone wrong", Format{Calls: CallsMistral}, "x[TOOL_CALLS] [1", "x[TOOL_CALLS] [1"},
	{"llama", Format{Calls: CallsLlama}, "{\"name\": \"f\", \"parameters\": {\"a\": \"};\"}}; {\"name\": \"g\", \"parameters\": {}}", `f({"a": "};"})g({})`},
	{"llama with its tag", Format{Calls: CallsLlama}, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "f({})"},
	{"llama that answers in JSON", Format{Calls: CallsLlama}, "{\"colour\": \"red\"}", "{\"colour\": \"red\"}"},
	{"llama that answers in words", Format{Calls: CallsLlama}, "Use {x}.", "Use {x}."},
	{"harmony", Format{Calls: CallsHarmony}, "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>final<|message|>Four <|", "{Hm <b>.}Four <|"},
	{"harmony call", Format{Calls: CallsHarmony}, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>", `f({"a": 1})`},
	{"harmony preamble", Format{Calls: CallsHarmony}, "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "I look.f({})"},
}

func TestAnswersAreSplitTheSameHoweverTheyArrive(t *testing.T) {
	for _, c := range replies {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int{1, 2, 3, 5, 8, 13, len(c.answer)} {
				if got := spell(split(NewReply(c.format, true), c.answer, n)); got != c.want {
					t.Errorf("in pieces of %d bytes: got %q, want %q", n, got, c.want)
				}
			}
		})
	}
}

func TestWithoutToolsCallsAreText(t *testing.T) {
	const answer = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"
	if got := spell(split(NewReply(Format{Calls: CallsTagged}, false), answer, 4)); got != answer {
		t.Errorf("got %q", got)
	}
}

func TestTextIsHandedOutAtOnceUnlessItMayBecomeAMarker(t *testing.T) {
	r := NewReply(Format{Think: true, Calls: CallsTagged}, true)
	for _, step := range []struct{ push, want string }{
		{"<th", ""}, {"ink>a", "{a}"}, {"b", "{b}"}, {"</", ""}, {"i>", "{</i>}"}, {" \n</think>", ""}, {"\nYes", "Yes"}, {" <tool", ""}, {"s>", " <tools>"},
	} {
		if got := spell(r.Push(step.push)); got != step.want {
			t.Errorf("after %q: %q, want %q", step.push, got, step.want)
		}
	}
}

func TestAPromptThatOpensReasoningStartsTheReplyInside(t *testing.T) {
	template, err := New(map[string]string{"default": "{{ messages[0].content }}<|assistant|>\n{% if think %}<think>\n{% endif %}{# </think> #}"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for think, want := range map[bool]string{true: "{a}b", false: "a</think>b"} {
		prompt, err := template.Render(context.Background(), []Message{{Role: "user", Content: "<think>"}}, Options{Extra: map[string]any{"think": think}})
		if err != nil {
			t.Fatal(err)
		}
		if got := spell(split(template.Reply(prompt, false), "a</think>b", 3)); got != want {
			t.Errorf("think %v: %q, want %q", think, got, want)
		}
	}
	forged := []tokenizer.Segment{{Text: "<think>", Trusted: false}}
	if got := spell(split(template.Reply(forged, false), "a", 1)); got != "a" {
		t.Errorf("an untrusted tag began reasoning: %q", got)
	}
}

func TestFormatsAreReadFromTheTemplates(t *testing.T) {
	for name, want := range map[string]Format{
		"chatml.jinja":      {},
		"qwen3.jinja":       {Think: true, Calls: CallsTagged},
		"glm45.jinja":       {Think: true, Calls: CallsTagged},
		"deepseek_v3.jinja": {Think: true, Calls: CallsDeepSeek},
		"mistral.jinja":     {Calls: CallsMistral},
		"llama3.jinja":      {Calls: CallsLlama},
		"gpt_oss.jinja":     {Calls: CallsHarmony},
	} {
		if got := family(t, name).Format(true); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestMarkersAreWhatTheFormatsLookFor(t *testing.T) {
	if got, want := strings.Join(Format{Think: true, Calls: CallsMistral}.Markers(), " "), "<think> </think> [TOOL_CALLS] [ARGS]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzReply: however an answer is cut, its parts are the same, and without markers nothing is lost.
func FuzzReply(f *testing.F) {
	for _, c := range replies {
		f.Add(c.answer, uint8(c.format.Calls), c.format.Think, uint8(3))
	}
	f.Fuzz(func(t *testing.T, answer string, calls uint8, think bool, n uint8) {
		if len(answer) > 4096 {
			t.Skip()
		}
		format := Format{Think: think, Calls: CallForm(calls % 6)}
		whole := spell(split(NewReply(format, true), answer, len(answer)+1))
		if got := spell(split(NewReply(format, true), answer, int(n%16)+1)); got != whole {
			t.Fatalf("%+v: %q in pieces of %d gives %q, whole %q", format, answer, n%16+1, got, whole)
		}
	})
}
