package daemon

// One running answer. The engine's stream is read by one goroutine, which only appends under the turn's lock; another
// sends what is new to the viewers at most once in flushEvery. Tokens and blocks are never dropped: a viewer's cursor
// says what it has. Routing and progress are visual.

import (
	"strings"
	"sync"
	"time"

	"covey/engine"
	"covey/engine/chat"
	"covey/web/markdown"
	"covey/web/wire"
)

const (
	flushEvery   = 30 * time.Millisecond  // at most one token frame a viewer
	routingEvery = 100 * time.Millisecond // at most one routing frame a viewer
	tokensAFrame = 4096                   // tokens in one frame, when a viewer has much to catch up with
)

// cursor is how much of a turn a viewer has.
type cursor struct {
	tokens, blocks    int
	answer, reasoning int  // bytes of text
	routed            int  // tokens whose routing was sent
	folded            bool // knows that the reasoning is over
}

// turn is one answer while it is generated. mu guards what is below it.
type turn struct {
	conversation, message string
	shape                 wire.Shape
	decode                func(id int32) string // text of a token, for alternatives
	started               time.Time

	mu        sync.Mutex
	cancel    func() // cancels the engine's stream; nil before it has been submitted
	stopped   bool   // a person asked for the end
	ended     bool
	phase     wire.Phase
	done      int
	total     int
	first     time.Time // first token
	thought   time.Duration
	tokens    []generated
	answer    strings.Builder
	reasoning strings.Builder
	ends      []int    // ends of closed blocks in the answer
	blocks    []string // their HTML
	viewers   map[*view]*cursor
	lastRoute time.Time

	dirty chan struct{} // capacity 1: something is new
	quit  chan struct{} // closed when the turn has ended
}

// generated is one token with everything the token view shows of it.
type generated struct {
	wire.Token
	alternatives []wire.Alternative
	ids          []uint16  // [layers, k]; nil = not known
	weights      []float32 // [layers, k]
}

func newTurn(conversation, message string, shape wire.Shape, prefix string, decode func(int32) string) *turn {
	t := &turn{
		conversation: conversation, message: message, shape: shape, decode: decode, started: time.Now(),
		viewers: map[*view]*cursor{}, dirty: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	t.answer.WriteString(prefix)
	t.close()
	return t
}

// wake says that there is something to send.
func (t *turn) wake() {
	select {
	case t.dirty <- struct{}{}:
	default:
	}
}

func (t *turn) join(v *view, at cursor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at.tokens, at.blocks = min(at.tokens, len(t.tokens)), min(at.blocks, len(t.blocks))
	at.answer, at.reasoning = min(at.answer, t.answer.Len()), min(at.reasoning, t.reasoning.Len())
	at.routed = max(at.routed, at.tokens) // pulses of the past are no news; Detail has them
	t.viewers[v] = &at
}

func (t *turn) leave(v *view) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.viewers, v)
}

// submitted hands the turn the means to stop its stream; it is used at once if that was asked for already.
func (t *turn) submitted(cancel func()) {
	t.mu.Lock()
	t.cancel = cancel
	stopped := t.stopped
	t.mu.Unlock()
	if stopped {
		cancel()
	}
}

// stop ends the answer; what there is of it is kept.
func (t *turn) stop() {
	t.mu.Lock()
	t.stopped = true
	cancel := t.cancel
	t.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// take appends one output of the engine and the parts of the reply that it made certain.
func (t *turn) take(out engine.Output, parts []chat.Part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch out.Kind {
	case engine.KindQueued:
		t.phase, t.done, t.total = wire.PhaseQueued, out.Done, 0
	case engine.KindPrefill:
		t.phase, t.done, t.total = wire.PhasePrefill, out.Done, out.Total
	case engine.KindToken:
		if t.first.IsZero() {
			t.first = time.Now()
		}
		g := generated{Token: wire.Token{ID: int(out.Token), Logprob: out.Logprob, Text: out.Text}, ids: out.IDs, weights: out.Weights}
		for _, top := range out.Top {
			g.alternatives = append(g.alternatives, wire.Alternative{Logprob: top.Logprob, Text: t.decode(top.ID)})
		}
		t.tokens = append(t.tokens, g)
		t.phase, t.done = wire.PhaseGenerating, len(t.tokens)
	}
	t.write(parts)
}

// write adds text. The caller holds mu.
func (t *turn) write(parts []chat.Part) {
	for _, p := range parts {
		switch p.Kind {
		case chat.PartText:
			if t.thought == 0 && t.reasoning.Len() > 0 {
				t.thought = max(time.Since(t.first), time.Millisecond)
			}
			t.answer.WriteString(p.Text)
		case chat.PartReasoning:
			t.reasoning.WriteString(p.Text)
		}
	}
}

// close renders the blocks that have been completed. The caller holds mu or is alone.
func (t *turn) close() {
	text := t.answer.String()
	from := 0
	if n := len(t.ends); n > 0 {
		from = t.ends[n-1]
	}
	for _, end := range markdown.Closed(text, from) {
		t.blocks = append(t.blocks, markdown.Render(text[from:end]))
		t.ends = append(t.ends, end)
		from = end
	}
}

// rate is tokens a second since the first one. The caller holds mu.
func (t *turn) rate() float32 {
	d := time.Since(t.first).Seconds()
	if len(t.tokens) < 2 || d <= 0 {
		return 0
	}
	return float32(float64(len(t.tokens)-1) / d)
}

// flush sends every viewer what it lacks.
func (t *turn) flush() {
	t.mu.Lock()
	t.close()
	routing := time.Since(t.lastRoute) >= routingEvery || t.ended
	if routing {
		t.lastRoute = time.Now()
	}
	type parcel struct {
		conn   *Conn
		frames []Frame
	}
	var parcels []parcel
	for v, at := range t.viewers {
		parcels = append(parcels, parcel{v.conn, t.frames(at, routing)})
	}
	t.mu.Unlock()
	for _, p := range parcels {
		for _, f := range p.frames {
			if !p.conn.Send(f) {
				break
			}
		}
	}
}

// frames encodes what is beyond a cursor and moves it. The caller holds mu.
func (t *turn) frames(at *cursor, routing bool) []Frame {
	var out []Frame
	for at.tokens < len(t.tokens) || at.answer < t.answer.Len() || at.reasoning < t.reasoning.Len() {
		end := min(len(t.tokens), at.tokens+tokensAFrame)
		frame := wire.Tokens{
			Message: t.message, First: at.tokens, Answer: at.answer, Reasoning: at.reasoning,
			Text: t.answer.String()[at.answer:], Thought: t.reasoning.String()[at.reasoning:],
		}
		for _, g := range t.tokens[at.tokens:end] {
			frame.Tokens = append(frame.Tokens, g.Token)
		}
		at.tokens, at.answer, at.reasoning = end, t.answer.Len(), t.reasoning.Len()
		out = append(out, Frame{Data: frame.Append(nil)})
	}
	if t.thought > 0 && !at.folded {
		at.folded = true
		out = append(out, patchFrame(wire.Fold, t.message, int(t.thought.Milliseconds()), ""))
	}
	for ; at.blocks < len(t.blocks); at.blocks++ {
		out = append(out, patchFrame(wire.Block, t.message, t.ends[at.blocks], t.blocks[at.blocks]))
	}
	state := wire.State{Message: t.message, Phase: t.phase, Done: t.done, Total: t.total, Rate: t.rate()}
	out = append(out, Frame{Class: Visual, Key: "state/" + t.message, Data: state.Append(nil)})
	if routing && at.routed < at.tokens {
		if frame, ok := t.routing(at.routed, at.tokens); ok {
			out = append(out, Frame{Class: Visual, Data: frame.Append(nil)})
		}
		at.routed = at.tokens
	}
	return out
}

func patchFrame(op wire.Op, target string, arg int, html string) Frame {
	return Frame{Text: true, Data: wire.Patch{Op: op, Target: target, Arg: arg, HTML: html}.Append(nil)}
}

// routing packs the experts of the tokens [first, end). False if none of them has any. The caller holds mu.
func (t *turn) routing(first, end int) (wire.Routing, bool) {
	experts, ok := pack(t.shape, t.tokens[first:end])
	return wire.Routing{Message: t.message, First: first, Experts: experts}, ok
}

// pack quantises the routing of tokens; rows without any are zero.
func pack(shape wire.Shape, tokens []generated) (wire.Experts, bool) {
	slots := shape.Slots()
	ids, weights := make([]uint16, len(tokens)*slots), make([]float32, len(tokens)*slots)
	some := false
	for i, g := range tokens {
		if len(g.ids) == slots && len(g.weights) == slots && slots > 0 {
			copy(ids[i*slots:], g.ids)
			copy(weights[i*slots:], g.weights)
			some = true
		}
	}
	if !some {
		return wire.Experts{}, false
	}
	return wire.Quantise(len(tokens), len(shape.Layers), shape.TopK, ids, weights), true
}

// detailed splits tokens into frames for the token view.
func detailed(message string, shape wire.Shape, tokens []generated, first int) []Frame {
	const rows = 256
	var out []Frame
	for at := min(first, len(tokens)); ; at += rows {
		end := min(len(tokens), at+rows)
		frame := wire.Detailed{Message: message, First: at, Total: len(tokens), Shape: shape}
		for _, g := range tokens[at:end] {
			frame.Tokens = append(frame.Tokens, g.Token)
			frame.Alternatives = append(frame.Alternatives, g.alternatives)
		}
		frame.Experts, _ = pack(shape, tokens[at:end])
		out = append(out, Frame{Data: frame.Append(nil)})
		if end == len(tokens) {
			return out
		}
	}
}
