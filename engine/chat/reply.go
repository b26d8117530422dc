package chat

// Splitting a streamed answer. Text is handed out as soon as it is certain what it is: at each end of the text at hand only
// what could be the beginning of a marker is kept back. A tool call is handed out whole; one that cannot be parsed is
// handed out as the text it is, so that nothing a model says is lost.

import (
	"strings"

	"covey/engine/tokenizer"
)

// PartKind says what a Part of an answer is.
type PartKind uint8

// Kinds of Part.
const (
	PartText      PartKind = iota // visible answer
	PartReasoning                 // reasoning before it
	PartCall                      // a tool call
)

// Part is a piece of an answer.
type Part struct {
	Kind PartKind
	Text string   // PartText, PartReasoning
	Call ToolCall // PartCall; its ID is "" unless the model gave one
}

// Format is how a model marks reasoning and tool calls in its answers.
type Format struct {
	Think bool     // reasoning stands between <think> and </think>
	Calls CallForm // how tool calls are written
}

// CallForm is a convention for tool calls.
type CallForm uint8

// Call forms by the family that brought them up.
const (
	CallsNone     CallForm = iota
	CallsTagged            // <tool_call>...</tool_call>: Hermes and Qwen (JSON), Qwen Coder (<function=>), GLM (<arg_key>)
	CallsDeepSeek          // <｜tool▁call▁begin｜>...<｜tool▁call▁end｜>
	CallsMistral           // [TOOL_CALLS] and a JSON list to the end of the answer
	CallsLlama             // the whole answer is {"name": ..., "parameters": ...}
	CallsHarmony           // channels: gpt-oss
)

const (
	thinkOpen     = "<think>"
	thinkClose    = "</think>"
	taggedOpen    = "<tool_call>"
	taggedClose   = "</tool_call>"
	deepSeekOpen  = "<｜tool▁call▁begin｜>"
	deepSeekSep   = "<｜tool▁sep｜>"
	deepSeekClose = "<｜tool▁call▁end｜>"
	deepSeekBegin = "<｜tool▁calls▁begin｜>"
	deepSeekEnd   = "<｜tool▁calls▁end｜>"
	mistralOpen   = "[TOOL_CALLS]"
	mistralArgs   = "[ARGS]"
	llamaTag      = "<|python_tag|>"

	harmonyMessage = "<|message|>"
)

// formatOf reads a template for the markers of the known families.
func formatOf(source string) Format {
	has := func(marker string) bool { return strings.Contains(source, marker) }
	f := Format{Think: has(thinkOpen) || has(thinkClose)}
	switch {
	case has("<|channel|>"):
		f.Calls = CallsHarmony
	case has(deepSeekOpen):
		f.Calls = CallsDeepSeek
	case has(taggedOpen):
		f.Calls = CallsTagged
	case has(mistralOpen):
		f.Calls = CallsMistral
	case has(`"parameters": `):
		f.Calls = CallsLlama
	}
	return f
}

// Markers are the texts that a Reply of this format looks for. Where one is a special token, decoding must keep it.
func (f Format) Markers() []string {
	var out []string
	if f.Think {
		out = append(out, thinkOpen, thinkClose)
	}
	switch f.Calls {
	case CallsTagged:
		out = append(out, taggedOpen, taggedClose, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
	case CallsDeepSeek:
		out = append(out, deepSeekOpen, deepSeekSep, deepSeekClose, deepSeekBegin, deepSeekEnd)
	case CallsMistral:
		out = append(out, mistralOpen, mistralArgs)
	case CallsLlama:
		out = append(out, llamaTag)
	case CallsHarmony:
		out = append(out, "<|channel|>", "<|constrain|>", harmonyMessage)
		out = append(out, harmonyEnds...)
	}
	return out
}

// Format is how answers to the template's prompts mark reasoning and tool calls.
func (t *Template) Format(tools bool) Format { return t.variant(tools).format }

// Reply begins splitting the answer to a rendered prompt. Without tools, what looks like a call is text. The answer's text
// must keep the markers, some of which are special tokens.
func (t *Template) Reply(prompt []tokenizer.Segment, tools bool) *Reply {
	r := NewReply(t.Format(tools), tools)
	if n := len(prompt); n > 0 && prompt[n-1].Trusted && r.format.Think {
		if strings.HasSuffix(strings.TrimSpace(prompt[n-1].Text), thinkOpen) {
			r.mode, r.blank = modeReasoning, true
		}
	}
	return r
}

// mode is what the text at hand belongs to.
type mode uint8

const (
	modeText      mode = iota
	modeReasoning      // up to thinkClose
	modeCall           // up to the close of a call
	modeRest           // up to the end of the answer, which decides what it was
	modeHeader         // harmony: up to <|message|>
	modeBody           // harmony: up to the message's end
)

// maxCall is the longest tool call that is waited for, in bytes.
const maxCall = 256 << 10

// Reply splits one answer. Not safe for concurrent use.
type Reply struct {
	format  Format
	tools   bool
	mode    mode
	held    string // not yet handed out
	scanned int    // bytes of held in which the close of a call was sought in vain
	begun   bool   // something visible was handed out
	blank   bool   // white space at the beginning of what follows is dropped
	header  string // harmony: of the current message
	parts   []Part
}

// NewReply begins splitting an answer in a given format.
func NewReply(f Format, tools bool) *Reply {
	r := &Reply{format: f, tools: tools}
	if f.Calls == CallsHarmony {
		r.mode = modeHeader
	}
	return r
}

// Push adds text of the answer and returns the parts that became certain.
func (r *Reply) Push(text string) []Part {
	r.held += text
	for r.step() {
	}
	return r.take()
}

// Close ends the answer and returns what was kept back.
func (r *Reply) Close() []Part {
	switch r.mode {
	case modeCall:
		r.emit(PartText, r.opener()+r.held)
	case modeRest:
		r.rest()
	case modeBody:
		r.body(r.held)
	case modeHeader:
		if !strings.HasPrefix(r.held, "<|") {
			r.emit(PartText, r.held)
		}
	default:
		r.emit(r.kind(), r.held)
	}
	r.held = ""
	return r.take()
}

func (r *Reply) take() []Part {
	out := r.parts
	r.parts = nil
	return out
}

func (r *Reply) kind() PartKind {
	if r.mode == modeReasoning {
		return PartReasoning
	}
	return PartText
}

// emit hands out text, joined to what was handed out before it in the same call.
func (r *Reply) emit(kind PartKind, text string) {
	if r.blank {
		text = strings.TrimLeft(text, blanks)
		r.blank = text == ""
	}
	if text == "" {
		return
	}
	if kind == PartText && strings.TrimSpace(text) != "" {
		r.begun = true
	}
	if n := len(r.parts); n > 0 && r.parts[n-1].Kind == kind && kind != PartCall {
		r.parts[n-1].Text += text
		return
	}
	r.parts = append(r.parts, Part{Kind: kind, Text: text})
}

// step makes what progress the held text allows and reports whether there may be more.
func (r *Reply) step() bool {
	switch r.mode {
	case modeText:
		return r.text()
	case modeReasoning:
		return r.reasoning()
	case modeCall:
		return r.call()
	case modeHeader:
		return r.harmonyHeader()
	case modeBody:
		return r.harmonyBody()
	}
	return false
}

// marker begins something other than visible text.
type marker struct {
	text string
	mode mode
}

// leading are the markers that count only at the beginning of the visible text.
func (r *Reply) leading() []marker {
	var out []marker
	if r.begun {
		return nil
	}
	if r.format.Think {
		out = append(out, marker{thinkOpen, modeReasoning})
	}
	if r.tools && r.format.Calls == CallsLlama {
		out = append(out, marker{llamaTag, modeRest}, marker{"{", modeRest})
	}
	return out
}

// inner are the markers that count anywhere in the visible text.
func (r *Reply) inner() []marker {
	if !r.tools {
		return nil
	}
	switch r.format.Calls {
	case CallsTagged:
		return []marker{{taggedOpen, modeCall}}
	case CallsDeepSeek:
		return []marker{{deepSeekOpen, modeCall}, {deepSeekBegin, modeText}, {deepSeekEnd, modeText}}
	case CallsMistral:
		return []marker{{mistralOpen, modeRest}}
	}
	return nil
}

func (r *Reply) text() bool {
	start := strings.TrimLeft(r.held, blanks)
	for _, m := range r.leading() {
		switch {
		case strings.HasPrefix(start, m.text):
			if m.text != "{" {
				start = start[len(m.text):]
			}
			r.held, r.mode, r.blank = start, m.mode, true
			return true
		case strings.HasPrefix(m.text, start):
			return false // may become the marker
		}
	}
	inner := r.inner()
	first, found, keep := len(r.held), marker{}, 0
	for _, m := range inner {
		if i := strings.Index(r.held, m.text); i >= 0 && i < first {
			first, found = i, m
		}
		keep = max(keep, overlap(r.held, m.text))
	}
	if found.text == "" {
		certain := r.held[:len(r.held)-keep]
		if len(inner) > 0 {
			certain = strings.TrimRight(certain, blanks) // dropped if a marker follows
		}
		r.emit(PartText, certain)
		r.held = r.held[len(certain):]
		return false
	}
	r.emit(PartText, strings.TrimRight(r.held[:first], blanks))
	r.held = r.held[first+len(found.text):]
	r.mode, r.scanned, r.blank = found.mode, 0, true
	return true
}

// blanks is the white space that is dropped around markers.
const blanks = " \n\r\t"

// overlap is the length of the longest end of text that begins marker.
func overlap(text, marker string) int {
	for n := min(len(text), len(marker)-1); n > 0; n-- {
		if strings.HasSuffix(text, marker[:n]) {
			return n
		}
	}
	return 0
}

func (r *Reply) reasoning() bool {
	if i := strings.Index(r.held, thinkClose); i >= 0 {
		r.emit(PartReasoning, strings.TrimRight(r.held[:i], blanks))
		r.held = r.held[i+len(thinkClose):]
		r.mode, r.begun, r.blank = modeText, true, true
		return true
	}
	// White space at the end may precede the marker, before which it is dropped.
	keep := overlap(r.held, thinkClose)
	certain := strings.TrimRight(r.held[:len(r.held)-keep], blanks)
	r.emit(PartReasoning, certain)
	r.held = r.held[len(certain):]
	return false
}

// opener and closer are the markers around a call.
func (r *Reply) opener() string {
	if r.format.Calls == CallsDeepSeek {
		return deepSeekOpen
	}
	return taggedOpen
}

func (r *Reply) closer() string {
	if r.format.Calls == CallsDeepSeek {
		return deepSeekClose
	}
	return taggedClose
}

func (r *Reply) call() bool {
	closer := r.closer()
	from := max(0, r.scanned-len(closer))
	i := strings.Index(r.held[from:], closer)
	if i < 0 {
		if r.scanned = len(r.held); r.scanned > maxCall {
			r.blank = false
			r.emit(PartText, r.opener()+r.held)
			r.held, r.mode = "", modeText
		}
		return false
	}
	body := r.held[:from+i]
	r.held = r.held[from+i+len(closer):]
	r.mode, r.begun = modeText, true
	call, ok := parseTagged(body)
	if r.format.Calls == CallsDeepSeek {
		call, ok = parseDeepSeek(body)
	}
	if !ok {
		r.blank = false
		r.emit(PartText, r.opener()+body+closer)
		return true
	}
	r.parts = append(r.parts, Part{Kind: PartCall, Call: call})
	r.blank = true
	return true
}

// rest decides what an answer was that could only be judged whole.
func (r *Reply) rest() {
	parse, opener := parseLlama, ""
	if r.format.Calls == CallsMistral {
		parse, opener = parseMistral, mistralOpen
	}
	calls, ok := parse(r.held)
	if !ok {
		r.blank = false
		r.emit(PartText, opener+r.held)
		return
	}
	for _, c := range calls {
		r.parts = append(r.parts, Part{Kind: PartCall, Call: c})
	}
}

// harmonyHeader reads "<|channel|>NAME to=functions.F<|message|>" and what may stand around it.
func (r *Reply) harmonyHeader() bool {
	i := strings.Index(r.held, harmonyMessage)
	if i < 0 {
		return false
	}
	r.header = r.held[:i]
	r.held = r.held[i+len(harmonyMessage):]
	r.mode = modeBody
	return true
}

// harmonyEnds end a message.
var harmonyEnds = []string{"<|end|>", "<|return|>", "<|call|>", "<|start|>"}

func (r *Reply) harmonyBody() bool {
	first, marker := -1, ""
	keep := 0
	for _, m := range harmonyEnds {
		if i := strings.Index(r.held, m); i >= 0 && (first < 0 || i < first) {
			first, marker = i, m
		}
		keep = max(keep, overlap(r.held, m))
	}
	if first >= 0 {
		r.body(r.held[:first])
		r.held = r.held[first+len(marker):]
		r.mode = modeHeader
		return true
	}
	if !r.harmonyCall() {
		r.body(r.held[:len(r.held)-keep])
		r.held = r.held[len(r.held)-keep:]
	}
	return false
}

func (r *Reply) harmonyCall() bool { return r.tools && strings.Contains(r.header, "to=functions.") }

// body hands out text of the current harmony message by its channel.
func (r *Reply) body(text string) {
	switch {
	case r.harmonyCall():
		_, name, _ := strings.Cut(r.header, "to=functions.")
		if end := strings.IndexAny(name, " <"); end >= 0 {
			name = name[:end]
		}
		arguments, ok := object(text)
		if !ok {
			r.emit(PartText, text)
			return
		}
		r.parts = append(r.parts, Part{Kind: PartCall, Call: ToolCall{Name: name, Arguments: arguments}})
	case strings.Contains(r.header, "analysis"):
		r.emit(PartReasoning, text)
	default:
		r.emit(PartText, text)
	}
}
