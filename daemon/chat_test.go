package daemon

import (
	"encoding/json"
	"errors"
	"html"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"covey/engine/chat"
	"covey/engine/sample"
	"covey/engine/sched"
	"covey/store"
	"covey/web/client/answer"
	"covey/web/markdown"
	"covey/web/wire"
)

// viewer is a page as the daemon sees it: a socket, and what its frames add up to.
type viewer struct {
	t       *testing.T
	ws      *websocket.Conn
	seq     uint64
	text    answer.Answer
	shown   string // rendered blocks, and what finishing put in their place
	tokens  []wire.Token
	routing map[int][]uint16 // by token
	detail  []wire.Detailed
	ended   bool
	foot    string
	told    map[string]string // content of what stands above the page: "gone", "storage"
	acks    map[uint64]wire.Ack
	refused map[uint64]wire.Failure
}

func (d *testDaemon) viewer() *viewer {
	return &viewer{t: d.t, ws: d.browser().connect(), seq: 10, routing: map[int][]uint16{}, told: map[string]string{}, acks: map[uint64]wire.Ack{}, refused: map[uint64]wire.Failure{}}
}

// step reads one frame of the message that is followed; "" = of the first that comes.
func (v *viewer) step(message string) {
	v.t.Helper()
	raw := receive(v.t, v.ws)
	fail := func(err error) {
		if err != nil {
			v.t.Fatal(err)
		}
	}
	switch wire.FrameKind(raw) {
	case wire.KindTokens:
		f, err := wire.DecodeTokens(raw)
		fail(err)
		if message != "" && f.Message != message {
			return
		}
		if _, _, ok := v.text.Add(f); !ok {
			v.t.Fatalf("a gap before token %d, byte %d; %d tokens, %d bytes had", f.First, f.Answer, v.text.Tokens, v.text.Bytes())
		}
		v.tokens = append(v.tokens, f.Tokens...)
	case wire.KindRouting:
		f, err := wire.DecodeRouting(raw)
		fail(err)
		for row := range f.Experts.Rows {
			ids, _ := f.Experts.Row(row)
			v.routing[f.First+row] = ids
		}
	case wire.KindDetailed:
		f, err := wire.DecodeDetailed(raw)
		fail(err)
		v.detail = append(v.detail, f)
	case wire.KindState:
		f, err := wire.DecodeState(raw)
		fail(err)
		v.ended = v.ended || f.Phase == wire.PhaseEnded
	case wire.KindAck:
		f, err := wire.DecodeAck(raw)
		fail(err)
		v.acks[f.Seq] = f
	case wire.KindFailure:
		f, err := wire.DecodeFailure(raw)
		fail(err)
		v.refused[f.Seq] = f
	case wire.KindWelcome:
	default:
		p, err := wire.DecodePatch(string(raw))
		fail(err)
		switch {
		case (p.Op == wire.Inner || p.Op == wire.Append) && p.Target == "log":
			v.adopt(p.HTML)
		case p.Op == wire.Inner && (p.Target == "gone" || p.Target == "storage"):
			v.told[p.Target] = p.HTML
		case p.Op == wire.Block:
			fresh, ok := v.text.Close(p.Arg)
			if !ok {
				v.t.Fatalf("a block ends at byte %d of %d", p.Arg, v.text.Bytes())
			}
			if fresh {
				v.shown += p.HTML
			}
		case p.Op == wire.Inner && strings.HasPrefix(p.Target, "b-"):
			v.shown = p.HTML
		case p.Op == wire.Replace && strings.HasPrefix(p.Target, "f-"):
			v.foot = p.HTML
		}
	}
}

var runningMarkup = regexp.MustCompile(`(?s)data-state="running" data-tokens="(\d+)" data-blocks="(\d+)" data-bytes="(\d+)" data-reasoning="(\d+)".*?<div class="open-text"[^>]*>(.*?)</div>`)

// adopt takes the running answer of a whole thread over, as a page does.
func (v *viewer) adopt(thread string) {
	found := runningMarkup.FindStringSubmatch(thread)
	if found == nil {
		return
	}
	var n [4]int
	for i := range n {
		n[i], _ = strconv.Atoi(found[1+i])
	}
	v.text = *answer.Resume(n[0], n[1], n[2], n[3], html.UnescapeString(found[5]))
	v.tokens, v.shown, v.ended, v.foot = nil, "", false, ""
}

// ask sends a command and returns its Ack.
func (v *viewer) ask(name wire.Name, args ...string) wire.Ack {
	v.t.Helper()
	ack, failure := v.try(name, args...)
	if failure != nil {
		v.t.Fatalf("command %#x was refused: %+v", name, *failure)
	}
	return ack
}

func (v *viewer) try(name wire.Name, args ...string) (wire.Ack, *wire.Failure) {
	v.t.Helper()
	v.seq++
	send(v.t, v.ws, name, v.seq, args...)
	for {
		if a, ok := v.acks[v.seq]; ok {
			return a, nil
		}
		if f, ok := v.refused[v.seq]; ok {
			return wire.Ack{}, &f
		}
		v.step("")
	}
}

// begin sends a message in a new conversation with greedy choice and n tokens and returns conversation and answer.
func (v *viewer) begin(text string, n int) (conversation, message string) {
	v.t.Helper()
	conversation = v.ask(wire.Settings, "", "temperature", "0", "max_tokens", strconv.Itoa(n)).Arg(0)
	return conversation, v.ask(wire.Send, conversation, text).Arg(1)
}

// finish reads until the answer has ended and its foot has come.
func (v *viewer) finish(message string) {
	v.t.Helper()
	for !v.ended || v.foot == "" {
		v.step(message)
	}
}

func TestAnAnswerStreamsAndIsKeptWithItsTokensAndExperts(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	conversation, message := v.begin("Name three colours.", 24)
	v.finish(message)

	m, err := d.store.Message(t.Context(), message)
	if err != nil {
		t.Fatal(err)
	}
	if m.State != store.StateComplete || m.Content == "" || v.text.Bytes() != len(m.Content) {
		t.Errorf("stored %q (%s), streamed %d bytes", m.Content, m.State, v.text.Bytes())
	}
	var streamed strings.Builder
	for _, token := range v.tokens {
		streamed.WriteString(token.Text)
	}
	if streamed.String() != m.Content {
		t.Errorf("tokens read %q, the message %q", streamed.String(), m.Content)
	}
	if v.shown != markdown.Render(m.Content) {
		t.Errorf("shown %q", v.shown)
	}
	if m.Turn.Generated != len(v.tokens) || m.Turn.Prompt == 0 || !strings.Contains(v.foot, "first token") {
		t.Errorf("turn %+v for %d tokens; foot %q", *m.Turn, len(v.tokens), v.foot)
	}
	conv, _ := d.store.Conversation(t.Context(), conversation)
	if conv.Title != "Name three colours." {
		t.Errorf("title %q", conv.Title)
	}

	// What was kept is what was seen live.
	v.ask(wire.Detail, message, "0")
	if len(v.detail) != 1 || v.detail[0].Total != len(v.tokens) || !reflect.DeepEqual(v.detail[0].Tokens, v.tokens) {
		t.Fatalf("detail %+v", v.detail)
	}
	if len(v.routing) == 0 {
		t.Error("no routing was seen live")
	}
	for i, ids := range v.routing {
		if kept, _ := v.detail[0].Experts.Row(i); !reflect.DeepEqual(kept, ids) {
			t.Errorf("token %d: experts live %v, kept %v", i, ids, kept)
		}
	}
	for i, a := range v.detail[0].Alternatives {
		if len(a) != alternatives {
			t.Errorf("token %d has %d alternatives", i, len(a))
		}
	}
}

func TestAViewerThatComesLaterReadsOnFromWhereItWas(t *testing.T) {
	d := modelDaemon(t)
	first := d.viewer()
	conversation, message := first.begin("Write a long story about a fox.", 48)
	for len(first.tokens) < 8 {
		first.step(message)
	}
	// The same page after a reload: it has what the first one had.
	second := d.viewer()
	second.text = *answer.Resume(first.text.Tokens, first.text.Blocks, first.text.Bytes(), 0, first.text.Open())
	second.ask(wire.Watch, conversation, message, strconv.Itoa(first.text.Tokens), strconv.Itoa(first.text.Blocks), strconv.Itoa(first.text.Bytes()), "0", "0")
	first.finish(message)
	second.finish(message)
	if second.text.Bytes() != first.text.Bytes() || second.text.Tokens != first.text.Tokens || second.text.Open() != first.text.Open() {
		t.Errorf("the first viewer has %d bytes, the second %d", first.text.Bytes(), second.text.Bytes())
	}
	m, _ := d.store.Message(t.Context(), message)
	if len(m.Content) != second.text.Bytes() {
		t.Errorf("%d bytes are kept", len(m.Content))
	}
}

func TestAPageThatWasAwayLearnsThatItsConversationIsGoneOrBack(t *testing.T) {
	d := modelDaemon(t)
	here, away := d.viewer(), d.viewer()
	conversation, message := here.begin("Something about otters.", 4)
	here.finish(message)
	again := []string{conversation, "", "0", "0", "0", "0", "1"}
	here.ask(wire.Delete, conversation)
	away.ask(wire.Watch, again...)
	if !strings.Contains(away.told["gone"], "deleted in another tab") {
		t.Errorf("after the deletion the page says %q", away.told["gone"])
	}
	away.ask(wire.Watch, "", "", "0", "0", "0", "0", "0") // away: it hears nothing of the conversation
	here.ask(wire.Restore, conversation)
	away.ask(wire.Watch, again...)
	if away.told["gone"] != "" {
		t.Errorf("after it was restored the page says %q", away.told["gone"])
	}
}

// pretend puts a state of the storage in place of the store's, until the test ends.
func (d *testDaemon) pretend(state func() error) {
	set := func(refused bool, state func() error) {
		d.storage.mu.Lock()
		defer d.storage.mu.Unlock()
		d.storage.refused, d.storage.state = refused, state
	}
	set(true, state)
	d.t.Cleanup(func() { set(false, d.store.ReadOnly) }) // other tests use this daemon
}

func TestPagesShowWhatHoldsOfStorageInWhateverOrderNewsCome(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	full := errors.New("the disk is full")
	d.pretend(func() error { return full })
	d.storageChanged(full)
	for v.told["storage"] == "" {
		v.step("")
	}
	if !strings.Contains(v.told["storage"], "cannot be written (the disk is full)") {
		t.Errorf("the page says %q", v.told["storage"])
	}
	d.pretend(d.store.ReadOnly)
	d.storageChanged(full) // it has been overtaken
	for v.told["storage"] != "" {
		v.step("")
	}
	later := d.viewer()
	later.ask(wire.Watch, "", "", "0", "0", "0", "0", "0")
	if shown, ok := later.told["storage"]; !ok || shown != "" {
		t.Errorf("a page that comes later is told %q, %t: it may be older than the change", shown, ok)
	}
}

func TestStopKeepsWhatThereIsAndFreesTheEngine(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	_, message := v.begin("Write a long story about a fox.", 900)
	for len(v.tokens) < 3 {
		v.step(message)
	}
	v.ask(wire.Stop, message)
	v.finish(message)
	m, err := d.store.Message(t.Context(), message)
	if err != nil || m.State != store.StateStopped || m.Content == "" || m.Turn.Generated >= 900 {
		t.Errorf("message %+v, error %v", m, err)
	}
	if !strings.Contains(v.foot, "Stopped") {
		t.Errorf("foot %q", v.foot)
	}
	eng, _ := d.Engine()
	for range 200 {
		if eng.Stats().Running == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("the engine still runs %d sequences", eng.Stats().Running)
}

func TestBranchesOfAnswersAndMessages(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	conversation, first := v.begin("Say hello.", 6)
	v.finish(first)
	again := v.ask(wire.Regenerate, first).Arg(1)
	v.finish(again)
	if m, _ := d.store.Message(t.Context(), again); m.Sibling != 2 || m.Siblings != 2 || m.Previous != first {
		t.Errorf("the second answer is %d of %d after %q", m.Sibling, m.Siblings, m.Previous)
	}
	v.ask(wire.Branch, first)
	if conv, _ := d.store.Conversation(t.Context(), conversation); conv.Leaf != first {
		t.Errorf("leaf %q, want the first answer", conv.Leaf)
	}
	_, path, _ := d.store.Thread(t.Context(), conversation)
	edited := v.ask(wire.Edit, path[0].ID, "Say goodbye.").Arg(1)
	v.finish(edited)
	_, path, _ = d.store.Thread(t.Context(), conversation)
	if len(path) != 2 || path[0].Content != "Say goodbye." || path[0].Siblings != 2 || path[1].ID != edited {
		t.Errorf("after the edit: %+v", path)
	}
	longer := v.ask(wire.Continue, edited).Arg(1)
	v.finish(longer)
	before, _ := d.store.Message(t.Context(), edited)
	after, _ := d.store.Message(t.Context(), longer)
	if !strings.HasPrefix(after.Content, before.Content) || after.Siblings != 2 {
		t.Errorf("%q does not go on from %q", after.Content, before.Content)
	}
	v.ask(wire.Remove, path[0].ID)
	if _, path, _ = d.store.Thread(t.Context(), conversation); len(path) == 0 || path[0].Content != "Say hello." {
		t.Errorf("after removing the edited branch: %+v", path)
	}
}

func TestRefusalsLeaveNothingBehind(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	before, _ := d.store.Conversations(t.Context(), 0, 1000)
	for _, test := range []struct {
		name wire.Name
		args []string
		code string
	}{
		{wire.Send, []string{"", "  \n"}, "invalid"},
		{wire.Send, []string{"", strings.Repeat("word ", 2000)}, "too_long"}, // the test's context holds 1,024 tokens
		{wire.Send, []string{"nowhere", "hi"}, "not_found"},
		{wire.Regenerate, []string{"nowhere"}, "not_found"},
		{wire.Edit, []string{"nowhere", "x"}, "not_found"},
		{wire.Detail, []string{"nowhere", "0"}, "not_found"},
		{wire.Detail, []string{"nowhere", "-1"}, "invalid"},
		{wire.Watch, []string{"", "", "x"}, "invalid"},
		{wire.Rename, []string{"nowhere", " "}, "invalid"},
		{wire.Settings, []string{"", "temperature", "9"}, "invalid"},
		{wire.Settings, []string{"", "temprature", "1"}, "invalid"},
		{wire.Settings, []string{"", "odd"}, "invalid"},
		{wire.Settings, []string{"", "temperature", "1", "temperature", "0"}, "invalid"},
		{wire.Search, []string{strings.Repeat("x", 300)}, "invalid"},
	} {
		if _, failure := v.try(test.name, test.args...); failure == nil || failure.Code != test.code {
			t.Errorf("%#x %.40q: %+v, want code %q", test.name, test.args, failure, test.code)
		}
	}
	after, _ := d.store.Conversations(t.Context(), 0, 1000)
	if len(after) != len(before) {
		t.Errorf("%d conversations before, %d after", len(before), len(after))
	}
}

func TestASecondMessageWaitsForTheFirstAnswer(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	conversation, message := v.begin("Write a long story about a fox.", 900)
	for _, refused := range []func() (wire.Ack, *wire.Failure){
		func() (wire.Ack, *wire.Failure) { return v.try(wire.Send, conversation, "And then?") },
		func() (wire.Ack, *wire.Failure) { return v.try(wire.Regenerate, message) },
		func() (wire.Ack, *wire.Failure) { return v.try(wire.Remove, message) },
	} {
		if _, failure := refused(); failure == nil || failure.Code != "busy" {
			t.Errorf("got %+v, want busy", failure)
		}
	}
	v.ask(wire.Stop, message)
	v.finish(message)
}

func TestConversationsAreFoundRenamedPinnedDeletedAndRestored(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	conversation, message := v.begin("Tell me about quokkas.", 4)
	v.finish(message)
	v.ask(wire.Rename, conversation, "  Small\n marsupials ")
	v.ask(wire.Pin, conversation, "1")
	conv, _ := d.store.Conversation(t.Context(), conversation)
	if conv.Title != "Small marsupials" || !conv.Pinned {
		t.Errorf("%+v", conv)
	}
	v.ask(wire.Search, "quokkas")
	v.ask(wire.Delete, conversation)
	if code, _, _ := d.get("/c/"+conversation, "Accept", "text/html"); code != 404 {
		t.Errorf("a deleted conversation is served with %d", code)
	}
	v.ask(wire.Restore, conversation)
	code, _, page := d.get("/c/"+conversation, "Accept", "text/html")
	if code != 200 || !strings.Contains(page, "Tell me about quokkas.") || !strings.Contains(page, "<title>Small marsupials - Covey</title>") {
		t.Errorf("restored: %d", code)
	}
}

func TestPagesReadWithoutTheClientAndExportsComeBack(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	conversation, message := v.begin("Count to three.", 12)
	v.finish(message)
	m, _ := d.store.Message(t.Context(), message)

	_, _, page := d.get("/c/"+conversation, "Accept", "text/html")
	for _, want := range []string{"Count to three.", markdown.Render(m.Content), "first token", `data-state="complete"`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in the page", want)
		}
	}
	code, _, page := d.get("/c/"+conversation+"/tokens/"+message, "Accept", "text/html")
	if code != 200 || strings.Count(page, "<summary>29 layers</summary>") != m.Turn.Generated {
		t.Errorf("token page: %d, %d tokens with experts, want %d", code, strings.Count(page, "<summary>29 layers</summary>"), m.Turn.Generated)
	}
	if code, _, text := d.get("/c/" + conversation + "/export.md"); code != 200 || !strings.Contains(text, "Count to three.") || !strings.Contains(text, m.Content) {
		t.Errorf("markdown: %d %q", code, text)
	}
	code, header, exported := d.get("/c/" + conversation + "/export.json")
	if code != 200 || !strings.Contains(header.Get("Content-Disposition"), "Count%20to%20three.json") {
		t.Errorf("json: %d %v", code, header)
	}
	code, _, answer := d.do("POST", "/import", exported, "Authorization", "Bearer "+d.token)
	var imported struct{ Conversations []string }
	if err := json.Unmarshal([]byte(answer), &imported); err != nil || code != 200 || len(imported.Conversations) != 1 {
		t.Fatalf("import: %d %s", code, answer)
	}
	_, path, err := d.store.Thread(t.Context(), imported.Conversations[0])
	if err != nil || len(path) != 2 || path[1].Content != m.Content {
		t.Errorf("imported %+v, error %v", path, err)
	}
	if code, _, answer := d.do("POST", "/import", "{", "Authorization", "Bearer "+d.token); code != 400 || !strings.Contains(answer, `"code":"invalid"`) {
		t.Errorf("a broken file: %d %s", code, answer)
	}
	for file, want := range map[string]string{`{"a":1}`: `an export has no field \"/a\"`, `[]`: "it is not a JSON object"} {
		if code, _, answer := d.do("POST", "/import", file, "Authorization", "Bearer "+d.token); code != 400 || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s, want %q", file, code, answer, want)
		}
	}
}

// However a cursor stands, the frames from it on complete the text.
func TestFramesFromAnyCursorCompleteTheText(t *testing.T) {
	turn := newTurn("c", "m", wire.Shape{}, "", func(int32) string { return "" })
	parts := []chat.Part{
		{Kind: chat.PartReasoning, Text: "let me "}, {Kind: chat.PartReasoning, Text: "see"}, {Kind: chat.PartText, Text: "One.\n\n"},
		{Kind: chat.PartText, Text: "- a\n"}, {Kind: chat.PartText, Text: "- b\n"}, {Kind: chat.PartText, Text: "\nTwo"}, {Kind: chat.PartText, Text: " words."},
	}
	type state struct {
		at              cursor
		answer, thought string
	}
	var states []state
	for i := range parts {
		at := cursor{tokens: len(turn.tokens), blocks: len(turn.blocks), answer: turn.answer.Len(), reasoning: turn.reasoning.Len()}
		states = append(states, state{at, turn.answer.String(), turn.reasoning.String()})
		turn.take(sched.Output{Kind: sched.KindToken, Text: parts[i].Text}, parts[i:i+1])
		turn.close()
	}
	for i, s := range states {
		blocks := ""
		for _, block := range turn.blocks[:s.at.blocks] {
			blocks += block
		}
		text, thought := s.answer, s.thought
		for _, f := range turn.frames(&s.at, false) {
			if f.Text {
				if p, err := wire.DecodePatch(string(f.Data)); err != nil {
					t.Fatal(err)
				} else if p.Op == wire.Block {
					blocks += p.HTML
				}
				continue
			}
			if wire.FrameKind(f.Data) == wire.KindTokens {
				frame, err := wire.DecodeTokens(f.Data)
				if err != nil {
					t.Fatal(err)
				}
				text, thought = text[:frame.Answer]+frame.Text, thought[:frame.Reasoning]+frame.Thought
			}
		}
		if text != turn.answer.String() || thought != "let me see" || blocks != strings.Join(turn.blocks, "") {
			t.Errorf("from cursor %d: %q, %q, %q", i, text, thought, blocks)
		}
	}
}

func TestSettingsDepartFromTheModelsDefaults(t *testing.T) {
	defaults := sample.Params{Temperature: 0.6, TopP: 0.92, RepetitionPenalty: 1.1}
	p, seed, err := readSettings(json.RawMessage(`{"temperature":"0","top_k":"40","seed":"7"}`)).sampling(defaults)
	if want := (sample.Params{TopP: 0.92, TopK: 40, RepetitionPenalty: 1.1, Seed: 7}); err != nil || seed != 7 || !reflect.DeepEqual(p, want) {
		t.Errorf("got %+v, seed %d, error %v", p, seed, err)
	}
	for _, bad := range []chatSettings{{"temperature": "-0.1"}, {"temperature": "NaN"}, {"top_k": "1.5"}, {"max_tokens": "0"}, {"min_p": "1"}, {"seed": "x"}} {
		_, err := bad.check()
		var e *Error
		if !errors.As(err, &e) || e.Code != "invalid" {
			t.Errorf("%v: %v", bad, err)
		}
	}
	views := settingViews(chatSettings{"temperature": "0.6", "top_p": "0.5"}, defaults)
	if views[0].Changed() || views[0].Default != "0.6" || !views[1].Changed() || views[1].Default != "0.92" {
		t.Errorf("%+v", views[:2])
	}
}

func TestTitlesComeFromTheFirstLine(t *testing.T) {
	for text, want := range map[string]string{
		"Hello there":                   "Hello there",
		"## A heading\nand more":        "A heading",
		"  several   spaces\tand tabs ": "several spaces and tabs",
		"This is a rather long first message, which has to be cut somewhere sensible": "This is a rather long first message, which has to be cut\u2026",
		strings.Repeat("\u5317", 80): strings.Repeat("\u5317", 56) + "\u2026",
	} {
		if got := autoTitle(text); got != want {
			t.Errorf("autoTitle(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestNewConversationsStartWithTheDefaultsOfTheSettingsPage(t *testing.T) {
	d := modelDaemon(t)
	v := d.viewer()
	v.ask(wire.Settings, "*", "system", "Be brief.", "temperature", "0", "max_tokens", "3")
	defer v.ask(wire.Settings, "*")
	_, _, page := d.get("/settings", "Accept", "text/html")
	for _, want := range []string{"Be brief.", `name="max_tokens" value="3"`, d.base + "/v1", "smollm2-moe-32x"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in the settings page", want)
		}
	}
	ack := v.ask(wire.Send, "", "Hello.")
	v.finish(ack.Arg(1))
	conv, err := d.store.Conversation(t.Context(), ack.Arg(0))
	if err != nil || conv.System != "Be brief." {
		t.Errorf("system prompt %q, error %v", conv.System, err)
	}
	if m, _ := d.store.Message(t.Context(), ack.Arg(1)); m.Turn.Generated > 3 || m.Turn.Finish != "length" {
		t.Errorf("%d tokens, finish %q", m.Turn.Generated, m.Turn.Finish)
	}
}

func TestLimitsOfSettingsAreWrittenOut(t *testing.T) {
	for v, want := range map[float64]string{1 << 20: "1048576", 9007199254740991: "9007199254740991", 0: "0", -2: "-2", float64(float32(0.6)): "0.6", 0.01: "0.01"} {
		if got := decimal(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
	if _, err := (chatSettings{"max_tokens": "0"}).check(); err == nil || !strings.Contains(err.Error(), "from 1 to 1048576") {
		t.Errorf("got %v", err)
	}
}
