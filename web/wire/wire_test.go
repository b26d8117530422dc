package wire

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden transcript anew")

// A conversation on the wire, from login to the end of an answer. docs/protocol.md explains the first lines of it.
var transcript = []struct {
	from, what string
	frame      []byte
}{
	{"client", "Hello version 1, page token", Command{Name: Hello, Args: []string{"1", "page-token"}}.Append(nil)},
	{"server", "Welcome", Welcome{Version: 1, Boot: "B7", Model: "tiny", Context: 8192, Shape: tiny}.Append(nil)},
	{"client", "Watch an empty page", Command{Name: Watch, Seq: 1, Args: []string{"", "", "0", "0", "0", "0", "0"}}.Append(nil)},
	{"server", "Ack of Watch", Ack{Seq: 1}.Append(nil)},
	{"client", "Send a message in a new conversation", Command{Name: Send, Seq: 2, Args: []string{"", "Hi"}}.Append(nil)},
	{"server", "thread with the new messages", Patch{Op: Inner, Target: "log", HTML: `<article id="m-a1">Hi</article>`}.Append(nil)},
	{"server", "Ack: conversation and answer", Ack{Seq: 2, Args: []string{"c1", "a1"}}.Append(nil)},
	{"server", "State: next in the queue", State{Message: "a1"}.Append(nil)},
	{"server", "State: 16 of 21 prompt tokens read", State{Message: "a1", Phase: PhasePrefill, Done: 16, Total: 21}.Append(nil)},
	{"server", "Tokens: thinking", Tokens{Message: "a1", Thought: "ok", Tokens: []Token{{ID: 300, Logprob: -0.5, Text: "<think>"}, {ID: 7, Logprob: -1, Text: "ok"}}}.Append(nil)},
	{"server", "Fold: the reasoning took 120 ms", Patch{Op: Fold, Target: "a1", Arg: 120}.Append(nil)},
	{"server", "Tokens: the answer", Tokens{Message: "a1", First: 2, Reasoning: 2, Text: "Hello\n\ncaf\u00e9", Tokens: []Token{{ID: 301, Text: "</think>"}, {ID: 9, Text: "Hello\n\n"}, {ID: 10, Logprob: -0.25, Text: "caf\u00e9"}}}.Append(nil)},
	{"server", "Block: the first paragraph", Patch{Op: Block, Target: "a1", Arg: 7, HTML: "<p>Hello</p>\n"}.Append(nil)},
	{"server", "Routing of the last token", Routing{Message: "a1", First: 3, Experts: experts}.Append(nil)},
	{"client", "Stop", Command{Name: Stop, Seq: 3, Args: []string{"a1"}}.Append(nil)},
	{"server", "Ack of Stop", Ack{Seq: 3}.Append(nil)},
	{"server", "State: ended", State{Message: "a1", Phase: PhaseEnded}.Append(nil)},
	{"server", "foot with the statistics", Patch{Op: Replace, Target: "f-a1", HTML: "<footer>Stopped</footer>"}.Append(nil)},
	{"client", "Detail from token 3", Command{Name: Detail, Seq: 4, Args: []string{"a1", "3"}}.Append(nil)},
	{"server", "Detailed", Detailed{Message: "a1", First: 3, Total: 4, Shape: tiny, Tokens: []Token{{ID: 10, Logprob: -0.25, Text: "caf\u00e9"}}, Alternatives: [][]Alternative{{{-0.25, "caf\u00e9"}, {-2, "tea"}}}, Experts: experts}.Append(nil)},
	{"server", "Ack of Detail", Ack{Seq: 4}.Append(nil)},
	{"client", "Regenerate an unknown message", Command{Name: Regenerate, Seq: 5, Args: []string{"zz"}}.Append(nil)},
	{"server", "Failure", Failure{Seq: 5, Code: "not_found", Message: "the message is not there", Hint: "reload the page"}.Append(nil)},
	{"client", "Follow the expert map", Command{Name: Follow, Seq: 6, Args: []string{"1"}}.Append(nil)},
	{"server", "Map with an atlas of one topic", Map{Shape: Shape{Layers: []int{1, 2}, Experts: 2, TopK: 1}, Selections: []float32{4, 0, 1, 3}, Ages: []float32{60, 61, 60, 62},
		Atlas: "at1", Name: "probes", Topics: []MapTopic{{"code", []float32{2, 1, 0.5, 1}, []float32{1.5, 0.5, 0.25, 0.75}, []float32{3, 2, 0.75, 1.5}}}, Specificity: []float32{0.5, 0, 0.25, 0}, Q: []float32{0.01, 1, 0.5, 1}}.Append(nil)},
	{"server", "Pulses: three experts in two steps", Pulses{Number: 1, Rows: 2, Sequences: 1, Cells: []Pulse{{0, 1}, {1, 2}, {40, 1}}}.Append(nil)},
	{"client", "Trace a text", Command{Name: Trace, Seq: 9, Args: []string{"the sea"}}.Append(nil)},
	{"server", "Traced: two tokens", Traced{Tokens: 2, Cells: []Pulse{{0, 1}, {3, 2}}}.Append(nil)},
	{"client", "Count a conversation", Command{Name: Count, Seq: 10, Args: []string{"c1"}}.Append(nil)},
	{"server", "Tally: five tokens of its two answers, one of them stopped", Tally{Conversation: "c1", Answers: 2, Stopped: 1, Tokens: 5, Cells: []Pulse{{2, 4}, {3, 1}}}.Append(nil)},
	{"client", "Where the weights are", Command{Name: Reside, Seq: 11}.Append(nil)},
	{"server", "Tiers: two of three experts in memory", Tiers{Hits: 300, Misses: 7, InMemory: []bool{true, false, true}}.Append(nil)},
	{"client", "Inspect expert 1 of layer 2", Command{Name: Inspect, Seq: 7, Args: []string{"2", "1", "at1"}}.Append(nil)},
	{"client", "Follow the jobs", Command{Name: FollowJobs, Seq: 8}.Append(nil)},
	{"client", "Ping", Command{Name: Ping}.Append(nil)},
	{"server", "Pong", Pong()},
}

var (
	tiny    = Shape{Layers: []int{1, 2}, Experts: 32, TopK: 2}
	experts = Quantise(1, 2, 2, []uint16{3, 31, 0, 7}, []float32{1, 0.5, 0.25, 0})
)

func TestTranscriptIsWhatItWas(t *testing.T) {
	var b strings.Builder
	for _, line := range transcript {
		b.WriteString(line.from + ": " + line.what + "\n")
		if line.from == "server" && FrameKind(line.frame) < 0x80 {
			b.WriteString("  text " + strings.ReplaceAll(string(line.frame), "\n", `\n`) + "\n")
		} else {
			b.WriteString("  " + hex.EncodeToString(line.frame) + "\n")
		}
	}
	const path = "testdata/transcript.txt"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("the wire changed: a changed layout needs a new kind or version. Got:\n%s", got)
	}
}

// decode decodes a frame of either side and encodes it again.
func decode(b []byte) (any, []byte, error) {
	switch FrameKind(b) {
	case KindWelcome:
		v, err := DecodeWelcome(b)
		return v, v.Append(nil), err
	case KindAck:
		v, err := DecodeAck(b)
		return v, v.Append(nil), err
	case KindFailure:
		v, err := DecodeFailure(b)
		return v, v.Append(nil), err
	case KindTokens:
		v, err := DecodeTokens(b)
		return v, v.Append(nil), err
	case KindRouting:
		v, err := DecodeRouting(b)
		return v, v.Append(nil), err
	case KindState:
		v, err := DecodeState(b)
		return v, v.Append(nil), err
	case KindDetailed:
		v, err := DecodeDetailed(b)
		return v, v.Append(nil), err
	case KindPulses:
		v, err := DecodePulses(b)
		return v, v.Append(nil), err
	case KindMap:
		v, err := DecodeMap(b)
		return v, v.Append(nil), err
	case KindTraced:
		v, err := DecodeTraced(b)
		return v, v.Append(nil), err
	case KindTally:
		v, err := DecodeTally(b)
		return v, v.Append(nil), err
	case KindTiers:
		v, err := DecodeTiers(b)
		return v, v.Append(nil), err
	}
	v, err := DecodeCommand(b)
	return v, v.Append(nil), err
}

func TestFramesSurviveTheRoundTrip(t *testing.T) {
	for _, line := range transcript {
		if line.what == "Pong" {
			continue
		}
		if line.from == "server" && FrameKind(line.frame) < 0x80 {
			p, err := DecodePatch(string(line.frame))
			if got := string(p.Append(nil)); err != nil || got != string(line.frame) {
				t.Errorf("%s: got %q, %v", line.what, got, err)
			}
			continue
		}
		if _, again, err := decode(line.frame); err != nil || string(again) != string(line.frame) {
			t.Errorf("%s: got %x, want %x, error %v", line.what, again, line.frame, err)
		}
	}
}

func TestEveryCutFrameIsRefused(t *testing.T) {
	for _, line := range transcript {
		if line.from == "server" && FrameKind(line.frame) < 0x80 || line.what == "Pong" {
			continue
		}
		for n := range len(line.frame) {
			if _, _, err := decode(line.frame[:n]); err == nil {
				t.Errorf("%s: the first %d of %d bytes were accepted", line.what, n, len(line.frame))
			}
		}
		if _, _, err := decode(append(append([]byte{}, line.frame...), 0)); !errors.Is(err, ErrTrailing) {
			t.Errorf("%s: a byte too many gives %v", line.what, err)
		}
	}
}

func TestHostileCountsAllocateNothing(t *testing.T) {
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0x07}
	for name, b := range map[string][]byte{
		"arguments":    append([]byte{byte(Send), 1}, huge...),
		"a string":     append([]byte{byte(Send), 1, 1}, huge...),
		"tokens":       append([]byte{byte(KindTokens), 0, 0, 0, 0, 0, 0}, huge...),
		"rows":         append([]byte{byte(KindRouting), 0, 0}, 0xff, 0xff, 0xff, 0x03, 0xff, 0x07, 64, 1, 0, 0, 0, 0),
		"layers":       append([]byte{byte(KindWelcome), 1, 0, 0, 0, 4, 32}, huge...),
		"a long int":   {byte(KindState), 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"cells":        append([]byte{byte(KindPulses), 0, 0, 0}, huge...),
		"map topics":   append([]byte{byte(KindMap), 1, 1, 0, 0, 0, 0, 0}, huge...),
		"alternatives": append([]byte{byte(KindDetailed), 0, 0, 0, 0, 0, 0}, huge...),
	} {
		allocated := testing.AllocsPerRun(1, func() {
			if _, _, err := decode(b); err == nil {
				t.Errorf("%s: accepted", name)
			}
		})
		if allocated > 12 {
			t.Errorf("%s: %v allocations", name, allocated)
		}
	}
}

func TestArgumentsThatAreNotUTF8AreRefused(t *testing.T) {
	for _, arg := range []string{"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80"} {
		if c, err := DecodeCommand(Command{Name: Send, Seq: 1, Args: []string{"", arg}}.Append(nil)); !errors.Is(err, ErrText) {
			t.Errorf("%q gives %+v, %v", arg, c, err)
		}
	}
	if _, err := DecodeCommand(Command{Name: Send, Seq: 1, Args: []string{"", "\x00é\U0001f469\ufffd"}}.Append(nil)); err != nil {
		t.Error(err)
	}
}

func TestPatchNeedsItsThreeFields(t *testing.T) {
	for _, s := range []string{"", "inner", "inner log", "inner log 0", "inner log\nx", "inner\nlog 0\n", "inner log x\n", "evil log 0\n", "inner  0 1\n"} {
		if p, err := DecodePatch(s); err == nil {
			t.Errorf("%q gives %+v", s, p)
		}
	}
	p, err := DecodePatch("title  0\nA b\nc")
	if want := (Patch{Op: Title, HTML: "A b\nc"}); err != nil || p != want {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestQuantisationErrorIsAtMostHalfAStep(t *testing.T) {
	weights := []float32{2.5, 0.013, 1.27, 0.6, 0, 0.0049}
	e := Quantise(1, 3, 2, make([]uint16, 6), weights)
	for i, w := range weights {
		if got := e.Scale * float32(e.Weights[i]) / 255; math.Abs(float64(got-w)) > 2.5/510+1e-6 {
			t.Errorf("weight %v reads back as %v", w, got)
		}
	}
}

func TestWideIdsTakeTwoBytes(t *testing.T) {
	want := Quantise(1, 1, 2, []uint16{255, 256}, []float32{1, 1})
	got, err := DecodeRouting(Routing{Message: "m", Experts: want}.Append(nil))
	if err != nil || !reflect.DeepEqual(got.Experts, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// What a decoder accepts means the same after another round.
func FuzzDecode(f *testing.F) {
	for _, line := range transcript {
		f.Add(line.frame)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, again, err := decode(b)
		if err != nil {
			return
		}
		w, _, err := decode(again)
		if err != nil {
			t.Fatalf("%x was accepted, its encoding %x was not: %v", b, again, err)
		}
		if !same(v, w) {
			t.Fatalf("%x: got %+v, then %+v", b, v, w)
		}
	})
}

// same compares by encoding-independent value; a NaN equals itself here.
func same(v, w any) bool {
	return reflect.DeepEqual(v, w) || strings.Contains(fmt.Sprint(v), "NaN") && fmt.Sprint(v) == fmt.Sprint(w)
}

func FuzzDecodePatch(f *testing.F) {
	f.Add("inner log 0\n<p>x</p>")
	f.Add("block a1 7\n")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := DecodePatch(s)
		if err != nil {
			return
		}
		if again, err := DecodePatch(string(p.Append(nil))); err != nil || again != p {
			t.Fatalf("%q: got %+v, then %+v, %v", s, p, again, err)
		}
	})
}
