//go:build js && wasm

package main

import (
	"math"
	"strconv"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/client/heat"
	"covey/web/wire"
)

// inspector is the token view of an answer and the experts panel beside it. While an answer runs the panel shows the
// newest tokens' experts as they arrive; pointing at a token shows that token's.
type inspector struct {
	chat  *chat
	panel js.Value
	grid  *heat.Grid
	shape wire.Shape // of the grid
	board js.Value   // canvas
	image js.Value   // ImageData of the canvas
	bytes js.Value   // its pixels
	paint *dom.Frames

	records map[string]*record // by message
	shown   string             // message whose tokens are shown; "" = none
	current int                // token pointed at; -1 = none
	shade   string             // what shades the tokens: probability, surprise, entropy, change, topic, expert, none
	layer   int                // MoE layer index and expert that shade "expert" is about; -1 = none
	expert  int
	note    string         // what the panel says about itself when no token is pointed at
	live    []wire.Routing // routing that is not in the grid yet
	topics  affinity
}

// record is what is known of an answer's tokens.
type record struct {
	tokens       []wire.Token
	alternatives [][]wire.Alternative
	experts      []rowExperts // one a token; nil ids = not known
	shape        wire.Shape
	whole        bool // every token's detail is here
}

type rowExperts struct {
	ids     []uint16
	weights []byte
	scale   float32
}

func newInspector(c *chat) *inspector {
	v := &inspector{chat: c, panel: dom.ID("inspector"), board: dom.ID("grid"), records: map[string]*record{}, current: -1, shade: "probability", layer: -1, expert: -1}
	v.paint = dom.NewFrames(v.draw)
	v.note = dom.Text(dom.ID("inspector-note"))
	a := c.app
	a.actions["inspector"] = func(_, _ js.Value) { v.open(v.panel.Get("hidden").Bool(), true) }
	a.actions["tokens"] = func(el, _ js.Value) { v.toggle(dom.Attr(el, "data-message")) }
	a.actions["token"] = func(el, _ js.Value) { v.point(number(el, "data-i")) }
	a.changes["shade"] = func(el, _ js.Value) {
		if v.shade = el.Get("value").String(); v.shade == "topic" {
			v.askTopics()
		}
		v.topicMenu()
		v.reshade()
	}
	a.changes["shade-topic"] = v.chooseTopic
	a.frames[wire.KindMap] = v.surveyed
	a.frames[wire.KindRouting] = v.routing
	a.frames[wire.KindDetailed] = v.detailed
	a.opened = append(a.opened, func(bool) { v.fit(a.shape) })
	dom.On(dom.Document, "covey:theme", func(js.Value) { v.paint.Request() })
	dom.On(dom.Window.Call("matchMedia", "(prefers-color-scheme: dark)"), "change", func(js.Value) { v.paint.Request() })
	dom.On(dom.Window, "resize", func(js.Value) { v.fit(v.shape) })
	dom.OnPassive(dom.ID("log"), "pointerover", func(e js.Value) {
		if el := dom.Closest(e.Get("target"), "[data-i]"); dom.Is(el) {
			v.point(number(el, "data-i"))
		}
	})
	dom.OnPassive(v.board, "pointermove", v.hover)
	dom.OnPassive(v.board, "pointerleave", func(js.Value) { dom.Hide(dom.ID("grid-card"), true) })
	dom.On(v.board, "click", v.pick)
	dom.On(v.board, "keydown", v.walk)
	wish := dom.Stored("covey.inspector")
	v.open(wish == "on" || wish == "" && dom.Media("(min-width: 1180px)"), false)
	return v
}

func number(el js.Value, name string) int {
	n, err := strconv.Atoi(dom.Attr(el, name))
	if err != nil {
		return -1
	}
	return n
}

func (v *inspector) open(on, keep bool) {
	dom.Hide(v.panel, !on)
	for _, b := range dom.All(dom.Document, `[data-action="inspector"][aria-pressed]`) {
		dom.SetAttr(b, "aria-pressed", strconv.FormatBool(on))
	}
	if keep {
		dom.Store("covey.inspector", map[bool]string{true: "on", false: "off"}[on])
	}
	if on {
		v.fit(v.shape)
	}
}

// fit prepares the grid for a routing geometry.
func (v *inspector) fit(s wire.Shape) {
	if len(s.Layers) == 0 || s.Experts == 0 {
		return
	}
	v.shape = s
	if v.grid == nil || v.grid.Layers != len(s.Layers) || v.grid.Experts != s.Experts {
		v.grid = heat.New(len(s.Layers), s.Experts)
		v.board.Set("width", s.Experts)
		v.board.Set("height", len(s.Layers))
		context := v.board.Call("getContext", "2d")
		v.image = context.Call("createImageData", s.Experts, len(s.Layers))
		// The image's pixels are a clamped array; CopyBytesToJS wants a plain one over the same memory.
		v.bytes = js.Global().Get("Uint8Array").New(v.image.Get("data").Get("buffer"))
	}
	frame := v.board.Get("parentElement")
	width, tall := frame.Get("parentElement").Get("clientWidth").Float(), 12.0
	if narrow() {
		tall = 6
	}
	// Whole pixels a cell, so that the lines between cells are all alike; cells are squares unless the screen is small.
	cell := math.Floor(width / float64(s.Experts))
	if cell >= 1 {
		dom.Style(v.board, "width", pixels(cell*float64(s.Experts)))
		dom.Style(v.board, "height", pixels(max(1, min(cell, tall))*float64(len(s.Layers))))
	}
	dom.Style(frame, "--cols", strconv.Itoa(s.Experts))
	dom.Style(frame, "--rows", strconv.Itoa(len(s.Layers)))
	dom.Flag(frame, "data-lines", cell >= 5)
	v.paint.Request()
}

// began is called when an answer starts to run on this page.
func (v *inspector) began(message string) {
	if v.records[message] == nil {
		v.records[message] = &record{shape: v.chat.app.shape}
	}
	if v.grid != nil && v.shown == "" {
		v.grid.Clear()
		v.paint.Request()
	}
}

// grew takes the tokens of the running answer.
func (v *inspector) grew(t wire.Tokens) {
	r := v.records[t.Message]
	if r == nil || t.First != len(r.tokens) {
		return // the view began later: Detail brings what is missing
	}
	r.tokens = append(r.tokens, t.Tokens...)
	r.alternatives = append(r.alternatives, make([][]wire.Alternative, len(t.Tokens))...)
	r.experts = append(r.experts, make([]rowExperts, len(t.Tokens))...)
	if v.shown == t.Message {
		v.extend(r, t.First)
	}
}

// routing takes a Routing frame.
func (v *inspector) routing(frame []byte) error {
	t, err := wire.DecodeRouting(frame)
	if err != nil {
		return err
	}
	if r := v.records[t.Message]; r != nil {
		for row := range t.Experts.Rows {
			if i := t.First + row; i < len(r.experts) {
				ids, weights := t.Experts.Row(row)
				r.experts[i] = rowExperts{ids, weights, t.Experts.Scale}
			}
		}
	}
	if t.Message == v.chat.running && v.current < 0 {
		v.live = append(v.live, t)
		v.paint.Request()
	}
	return nil
}

// ended is called when the running answer is complete: now its detail can be asked for.
func (v *inspector) ended(message string) {
	if v.shown == message {
		v.chat.app.socket.Send(v.chat.app.orFail(nil), wire.Detail, message, "0")
	} else {
		delete(v.records, message)
	}
}

// draw brings the grid up to date, before a paint.
func (v *inspector) draw() {
	if v.grid == nil {
		return
	}
	for _, t := range v.live {
		for row := range t.Experts.Rows {
			v.grid.Add(t.Experts.Row(row))
		}
	}
	v.live = v.live[:0]
	if v.panel.Get("hidden").Bool() {
		return
	}
	red, green, blue := accent()
	js.CopyBytesToJS(v.bytes, v.grid.Pixels(red, green, blue))
	v.board.Call("getContext", "2d").Call("putImageData", v.image, 0, 0)
}

// accent reads the theme's colour: the property holds three numbers.
func accent() (red, green, blue byte) {
	text := js.Global().Call("getComputedStyle", dom.Document.Get("documentElement")).Call("getPropertyValue", "--shade").String()
	var rgb [3]byte
	i, inside := 0, false
	for _, c := range []byte(text + " ") {
		switch {
		case c >= '0' && c <= '9' && i < 3:
			rgb[i] = rgb[i]*10 + c - '0'
			inside = true
		case inside:
			i++
			inside = false
		}
	}
	return rgb[0], rgb[1], rgb[2]
}

// cell is the grid cell under a pointer event.
func (v *inspector) cell(e js.Value) (layer, expert int, ok bool) {
	if v.grid == nil {
		return 0, 0, false
	}
	box := v.board.Call("getBoundingClientRect")
	x := (e.Get("clientX").Float() - box.Get("left").Float()) / box.Get("width").Float()
	y := (e.Get("clientY").Float() - box.Get("top").Float()) / box.Get("height").Float()
	layer, expert = int(y*float64(v.grid.Layers)), int(x*float64(v.grid.Experts))
	return layer, expert, x >= 0 && y >= 0 && layer < v.grid.Layers && expert < v.grid.Experts
}

func (v *inspector) hover(e js.Value) {
	if layer, expert, ok := v.cell(e); ok {
		v.card(layer, expert)
	}
}

// card says what a cell is, and its weight for the token pointed at.
func (v *inspector) card(layer, expert int) {
	text := "Layer " + strconv.Itoa(v.shape.Layers[layer]) + ", expert " + strconv.Itoa(expert)
	if r := v.records[v.shown]; r != nil && v.current >= 0 && v.current < len(r.experts) {
		if w := r.experts[v.current].weight(layer, expert, len(v.shape.Layers)); w > 0 {
			text += ", weight " + strconv.FormatFloat(float64(w), 'f', 2, 32)
		}
	}
	box := dom.ID("grid-card")
	dom.SetText(box, text)
	dom.Hide(box, false)
}

// weight is the combination weight that an expert of a layer had for the row; 0 if it was not chosen.
func (r rowExperts) weight(layer, expert, layers int) float32 {
	if layers == 0 || len(r.ids) == 0 || len(r.ids)%layers != 0 {
		return 0
	}
	k := len(r.ids) / layers
	for i := layer * k; i < (layer+1)*k; i++ {
		if int(r.ids[i]) == expert {
			return max(float32(r.weights[i])*r.scale/255, 0.001)
		}
	}
	return 0
}

// pick shades the tokens by one expert.
func (v *inspector) pick(e js.Value) {
	if layer, expert, ok := v.cell(e); ok {
		v.choose(layer, expert)
	}
}

func (v *inspector) choose(layer, expert int) {
	if v.layer == layer && v.expert == expert && v.shade == "expert" {
		v.layer, v.expert, v.shade = -1, -1, "probability"
	} else {
		v.layer, v.expert, v.shade = layer, expert, "expert"
	}
	v.mark()
	v.reshade()
}

// mark frames the chosen cell.
func (v *inspector) mark() {
	frame := v.board.Get("parentElement")
	dom.Flag(frame, "data-marked", v.layer >= 0)
	dom.Style(frame, "--layer", strconv.Itoa(v.layer))
	dom.Style(frame, "--expert", strconv.Itoa(v.expert))
	if v.layer >= 0 {
		v.card(v.layer, v.expert)
	}
}

// walk moves the chosen cell by the arrow keys.
func (v *inspector) walk(e js.Value) {
	if v.grid == nil {
		return
	}
	layer, expert := max(v.layer, 0), max(v.expert, 0)
	switch key(e) {
	case "ArrowLeft":
		expert--
	case "ArrowRight":
		expert++
	case "ArrowUp":
		layer--
	case "ArrowDown":
		layer++
	default:
		return
	}
	e.Call("preventDefault")
	e.Call("stopPropagation")
	v.layer, v.expert, v.shade = min(max(layer, 0), v.grid.Layers-1), min(max(expert, 0), v.grid.Experts-1), "expert"
	v.mark()
	v.reshade()
	announce(dom.Text(dom.ID("grid-card")))
}
