//go:build js && wasm

package main

import (
	"slices"
	"strconv"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/wire"
)

// turnSteps walks the map through the tokens of one answer: the experts of the current token are lit, and the mode
// "This answer" shows the selections up to it.
type turnSteps struct {
	m       *expertMap
	message string
	tokens  []wire.Token
	rows    []rowExperts
	shape   wire.Shape
	at      int
	playing bool
	asked   bool
}

const playEvery = 140 // milliseconds a token

func newTurnSteps(m *expertMap, message string) *turnSteps {
	t := &turnSteps{m: m, message: message}
	a := m.app
	a.frames[wire.KindDetailed] = t.detailed
	a.inputs["scrub-at"] = func(el, _ js.Value) {
		if n, err := strconv.Atoi(el.Get("value").String()); err == nil {
			t.play(false)
			t.step(n)
		}
	}
	a.actions["scrub-play"] = func(_, _ js.Value) { t.play(!t.playing) }
	a.actions["scrub-token"] = func(el, _ js.Value) { t.play(false); t.step(number(el, "data-i")) }
	return t
}

// ask asks for the tokens, once.
func (t *turnSteps) ask() {
	if !t.asked {
		t.asked = true
		t.m.app.socket.Send(t.m.app.orFail(nil), wire.Detail, t.message, "0")
	}
}

// held says whether the map shows a token instead of what runs.
func (t *turnSteps) held() bool { return len(t.rows) > 0 }

// detailed takes a part of the answer's tokens; parts come in order.
func (t *turnSteps) detailed(frame []byte) error {
	d, err := wire.DecodeDetailed(frame)
	if err != nil || d.Message != t.message || d.First != len(t.tokens) {
		return err
	}
	t.shape = d.Shape
	t.tokens = append(t.tokens, d.Tokens...)
	for i := range d.Tokens {
		row := rowExperts{}
		if d.Experts.Rows > i {
			row.ids, row.weights = d.Experts.Row(i)
		}
		t.rows = append(t.rows, row)
	}
	if len(t.tokens) == d.Total && d.Total > 0 {
		box := dom.ID("scrub-text")
		dom.SetText(box, "")
		for i, token := range t.tokens {
			span := dom.New("span", "", token.Text)
			dom.SetAttr(span, "data-i", strconv.Itoa(i))
			dom.SetAttr(span, "data-action", "scrub-token")
			box.Call("append", span)
		}
		dom.ID("scrub-at").Set("max", d.Total-1)
		t.step(0)
		t.mark()
	}
	return nil
}

// step goes to a token.
func (t *turnSteps) step(at int) {
	if len(t.rows) == 0 || t.m.data == nil || t.shape.Experts != t.m.data.Shape.Experts {
		return
	}
	at = min(max(at, 0), len(t.rows)-1)
	from := t.at + 1
	if at < t.at || t.at == 0 {
		clear(t.m.data.Turn)
		from = 0
	}
	for i := from; i <= at; i++ {
		for _, cell := range t.cells(i) {
			t.m.data.Turn[cell]++
		}
	}
	box := dom.ID("scrub-text")
	if old := dom.Find(box, "[aria-current]"); dom.Is(old) {
		old.Call("removeAttribute", "aria-current")
	}
	if span := box.Get("children").Index(at); span.Truthy() {
		dom.SetAttr(span, "aria-current", "true")
		// The strip scrolls by itself; the page stays.
		box.Set("scrollTop", span.Get("offsetTop").Float()-box.Get("offsetTop").Float()-24)
	}
	t.at = at
	dom.ID("scrub-at").Set("value", at)
	dom.SetText(dom.ID("scrub-where"), strconv.Itoa(at+1)+"/"+strconv.Itoa(len(t.rows)))
	t.light()
	t.m.recolor()
}

// mark marks the tokens that chose the pinned expert: its selections over the turn.
func (t *turnSteps) mark() {
	if t.m.data == nil {
		return
	}
	pinned := t.m.pinned[0]*t.shape.Experts + t.m.pinned[1]
	spans := dom.ID("scrub-text").Get("children")
	if spans.Length() != len(t.rows) {
		return
	}
	chose := 0
	for i := range t.rows {
		hit := t.m.pinned[0] >= 0 && slices.Contains(t.cells(i), pinned)
		dom.Flag(spans.Index(i), "data-chose", hit)
		if hit {
			chose++
		}
	}
	text := ""
	if t.m.pinned[0] >= 0 {
		text = "chosen for " + strconv.Itoa(chose) + " of " + plural(len(t.rows), "token")
	}
	dom.SetText(dom.ID("scrub-chose"), text)
}

// light lights the experts of the current token.
func (t *turnSteps) light() {
	if len(t.rows) > 0 {
		t.m.draw.hold(t.m.places(t.cells(t.at)))
	}
}

// cells are the map's cells that served token i.
func (t *turnSteps) cells(i int) []int {
	row := t.rows[i]
	out := make([]int, 0, len(row.ids))
	for j, id := range row.ids {
		if r := t.m.data.Row(t.shape.Layers[j/t.shape.TopK]); r >= 0 && int(id) < t.shape.Experts {
			out = append(out, r*t.shape.Experts+int(id))
		}
	}
	return out
}

// play steps by itself until the end.
func (t *turnSteps) play(on bool) {
	if on == t.playing {
		return
	}
	t.playing = on
	button := dom.Find(dom.ID("scrub"), `[data-action="scrub-play"]`)
	dom.SetAttr(button, "aria-pressed", strconv.FormatBool(on))
	dom.SetText(button, map[bool]string{true: "Stop", false: "Play"}[on])
	if on {
		if t.at >= len(t.rows)-1 {
			t.step(0)
		}
		t.tick()
	}
}

func (t *turnSteps) tick() {
	dom.After(playEvery, func() {
		if !t.playing {
			return
		}
		t.step(t.at + 1)
		if t.at >= len(t.rows)-1 {
			t.play(false)
			return
		}
		t.tick()
	})
}

// key steps with , and . wherever the focus is.
func (t *turnSteps) key(e js.Value) bool {
	if typing(e) && dom.Attr(e.Get("target"), "type") != "range" {
		return false
	}
	switch key(e) {
	case ",":
		t.step(t.at - 1)
	case ".":
		t.step(t.at + 1)
	default:
		return false
	}
	return true
}
