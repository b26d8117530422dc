//go:build js && wasm

package main

import (
	"math"
	"strconv"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/client/mapview"
	"covey/web/wire"
)

// expertMap is the map of the experts page. What is known and how it is coloured is mapview's; this file joins it to the
// page: controls, frames and redraws (mapinput.go: pointer and keys). A redraw happens before a paint that something asked for;
// while a pulse fades, which nobody asks for, at most glowFrames times a second, so that a browser without a graphics processor
// keeps up.
type expertMap struct {
	app   *app
	page  js.Value // #experts
	frame js.Value
	over  js.Value // canvas of rulers, crosshair and cursor; takes the pointer and the keys
	draw  renderer
	paint *dom.Frames

	data     *mapview.Data
	view     mapview.View
	mode     mapview.Mode
	topic    int
	layout   mapview.Layout
	pixels   []byte
	hidden   uint32 // steps of the legend that are switched off
	match    []bool // what a search found; nil = no search
	sort     mapview.Sort
	order    *mapview.Order    // where cells are drawn; nil = by number
	ordering *mapview.Ordering // the order that was last asked for
	stale    bool              // colours must be made anew
	colours  bool              // the last paint made colours: this one draws, even if they are stale again
	asked    bool              // the next paint draws, whenever the last one was
	drawn    float64
	asking   bool   // where the weights are has been asked within tierEvery
	legend   string // labels that the legend shows
	colored  float64
	paused   bool
	lastTime float64 // of the newest pulse
	missed   bool
	number   int   // of the newest window
	lit      []int // places of its cells; kept for its memory
	rows     []rowsAt
	cursor   [2]int // row, expert; -1 = none
	pinned   [2]int
	hover    [2]int
	pointer  [2]float64
	moved    bool // the pointer moved since the last paint
	drag     bool
	dragged  bool
	last     [2]float64
	turn     *turnSteps
	ink      ink

	addressed bool // what the address asks for has been taken
}

// rowsAt is how many rows came when.
type rowsAt struct {
	at   float64
	rows int
}

const (
	rulerX, rulerY = 32, 20
	fadeFor        = 1.6 // seconds after which a pulse has faded
	recolorEvery   = 0.25
	rateOver       = 2.0 // seconds over which the live rate is taken
	glowFrames     = 25.0
)

func clock() float64 { return js.Global().Get("performance").Call("now").Float() / 1000 }

// startMap makes the map live.
func (a *app) startMap() {
	m := &expertMap{
		app: a, page: dom.ID("experts"), frame: dom.ID("map-frame"), over: dom.ID("map-over"), mode: mapview.Heat, sort: mapview.ByID,
		cursor: [2]int{-1, -1}, pinned: [2]int{-1, -1}, hover: [2]int{-1, -1},
	}
	m.view.RulerX, m.view.RulerY = rulerX, rulerY
	m.paint = dom.NewFrames(m.render)
	if scrub := dom.ID("scrub"); dom.Is(scrub) {
		m.mode = mapview.Turn
		m.turn = newTurnSteps(m, dom.Attr(scrub, "data-message"))
	}
	a.frames[wire.KindMap] = m.survey
	a.frames[wire.KindPulses] = m.pulses
	a.frames[wire.KindTraced] = m.traced
	a.frames[wire.KindTally] = m.tally
	a.frames[wire.KindTiers] = m.tiers
	a.opened = append(a.opened, func(bool) {
		m.number = 0
		a.socket.Send(a.orFail(nil), wire.Survey, dom.Attr(m.page, "data-atlas"))
		a.socket.Send(a.orFail(nil), wire.Follow, "1")
		if m.turn != nil {
			m.turn.ask()
		}
	})
	m.controls()
	m.listen()
	dom.Hide(m.frame, false)
	dom.Hide(dom.ID("map-figure"), true)
	m.draw = newRenderer(dom.ID("map"))
	dom.SetAttr(m.page, "data-renderer", m.draw.name())
	m.size()
}

// controls binds the bar above the map.
func (m *expertMap) controls() {
	a := m.app
	a.changes["map-mode"] = func(el, _ js.Value) { m.show(mapview.Mode(el.Get("value").String())) }
	a.changes["map-topic"] = func(el, _ js.Value) {
		m.topic, _ = strconv.Atoi(el.Get("value").String())
		m.resort()
	}
	a.changes["map-other"] = func(el, _ js.Value) {
		if m.data != nil {
			m.data.Other, _ = strconv.Atoi(el.Get("value").String())
		}
		m.resort()
	}
	a.changes["map-talk"] = func(_, _ js.Value) { m.askTalks() }
	a.changes["map-sort"] = func(el, _ js.Value) {
		m.sort = mapview.Sort(el.Get("value").String())
		m.resort()
	}
	a.actions["map-trace"] = func(_, _ js.Value) { m.trace(dom.ID("map-search").Get("value").String()) }
	a.changes["map-atlas"] = func(el, _ js.Value) {
		list := parameters()
		list.Call("set", "atlas", el.Get("value"))
		js.Global().Get("history").Call("replaceState", js.Null(), "", "?"+list.Call("toString").String())
		dom.SetAttr(m.page, "data-atlas", el.Get("value").String())
		if link := dom.ID("map-compare"); dom.Is(link) {
			dom.SetAttr(link, "href", "/atlas/compare?a="+el.Get("value").String())
		}
		a.socket.Send(a.orFail(nil), wire.Survey, el.Get("value").String())
	}
	a.inputs["map-search"] = func(el, _ js.Value) { m.search(el.Get("value").String()) }
	a.actions["map-pause"] = func(el, _ js.Value) {
		m.paused = !m.paused
		dom.SetAttr(el, "aria-pressed", strconv.FormatBool(m.paused))
		dom.SetText(el, map[bool]string{true: "Resume", false: "Pause"}[m.paused])
		if m.mode == mapview.Tier {
			m.askTiers()
		}
		m.recolor()
	}
	zoom := func(factor float64) func(_, _ js.Value) {
		return func(_, _ js.Value) { m.zoom(factor, m.view.Width/2, m.view.Height/2) }
	}
	a.actions["map-in"], a.actions["map-out"] = zoom(1.5), zoom(1/1.5)
	a.actions["map-fit"] = func(_, _ js.Value) { m.view.Fit(); m.redraw() }
	a.actions["map-step"] = func(el, _ js.Value) {
		m.hidden ^= 1 << number(el, "data-step")
		dom.SetAttr(el, "aria-pressed", strconv.FormatBool(m.hidden>>number(el, "data-step")&1 == 0))
		m.recolor()
	}
	a.actions["map-unpin"] = func(_, _ js.Value) { m.unpin() }
	a.actions["map-export"] = func(el, _ js.Value) {
		menu := dom.ID("map-export-menu")
		openMenu(menu, el, "")
	}
	a.actions["map-png"] = func(_, _ js.Value) { closeMenus(); m.exportPicture() }
	a.actions["map-csv"] = func(_, _ js.Value) {
		closeMenus()
		m.exportText(func() string { return m.data.CSV(m.mode, m.topic, clock()) }, "csv", "text/csv")
	}
	a.actions["map-json"] = func(_, _ js.Value) {
		closeMenus()
		m.exportText(func() string { return m.data.JSON(m.mode, m.topic, clock()) }, "json", "application/json")
	}
}

// survey takes a Map frame.
func (m *expertMap) survey(frame []byte) error {
	f, err := wire.DecodeMap(frame)
	if err != nil {
		return err
	}
	topic, other := "", ""
	if m.data != nil {
		topic, other = m.topicName(m.topic), m.topicName(m.data.Other)
	}
	m.data = mapview.NewData(f, m.data, clock())
	m.view.Cols, m.view.Rows = f.Shape.Experts, len(f.Shape.Layers)
	m.pixels = make([]byte, 4*m.data.Cells())
	if m.order != nil && len(m.order.Cells) != m.data.Cells() {
		m.order = nil // of another model
	}
	m.draw.fit(m.view.Cols, m.view.Rows)
	for _, id := range []string{"map-topic", "map-other"} {
		pick := dom.ID(id)
		dom.SetText(pick, "")
		for i, t := range f.Topics {
			option := dom.New("option", "", t.Topic)
			option.Set("value", strconv.Itoa(i))
			pick.Call("append", option)
		}
	}
	m.chooseTopics(topic, other)
	m.size()
	hash := js.Global().Get("location").Get("hash").String() // before the address is written anew
	m.fromAddress()
	m.show(m.mode)
	m.goTo(hash)
	return nil
}

// goTo pins the expert that an address like #l12e5 names.
func (m *expertMap) goTo(hash string) {
	if len(hash) < 2 || hash[1] != 'l' {
		return
	}
	if row, expert, _, ok := m.data.Find(hash[1:]); ok && row >= 0 && expert >= 0 && m.pinned[0] < 0 {
		m.cursor = m.place(row, expert)
		m.view.Show(m.cursor[0], m.cursor[1])
		m.pin(row, expert, false)
	}
}

// show changes the mode.
func (m *expertMap) show(mode mapview.Mode) {
	m.mode, m.hidden = mode, 0
	dom.SetAttr(dom.ID("map-card"), "data-cell", "") // what it says is of the mode before
	dom.Hide(dom.ID("map-card"), true)
	dom.ID("map-mode").Set("value", string(mode))
	dom.Hide(dom.ID("map-topic-pick"), mode != mapview.Topic && mode != mapview.Difference)
	dom.Hide(dom.ID("map-other-pick"), mode != mapview.Difference)
	dom.Hide(dom.ID("map-talk-pick"), mode != mapview.Talks)
	dom.Hide(dom.ID("map-talk-other-pick"), mode != mapview.Talks)
	switch mode {
	case mapview.Talks:
		m.askTalks()
	case mapview.Tier:
		m.askTiers()
	}
	if m.data != nil && mode == mapview.Difference && m.data.Other == m.topic && len(m.data.Topics) > 1 {
		m.data.Other = (m.topic + 1) % len(m.data.Topics)
		dom.ID("map-other").Set("value", strconv.Itoa(m.data.Other))
	}
	m.resort()
}

// sortedAtOnce is how many cells one task puts in order.
const sortedAtOnce = 4096

// resort puts the experts of every layer in order anew, some layers in a task; until then they stand as before. A live mode
// keeps its order while it runs: cells that jump about cannot be read.
func (m *expertMap) resort() {
	if m.data == nil {
		return
	}
	ordering := m.data.Ordering(m.sort, m.mode, m.topic, clock())
	m.ordering = ordering
	var next func()
	next = func() {
		switch {
		case m.ordering != ordering: // another one has been asked for
		case ordering.Sort(sortedAtOnce):
			m.reorder(ordering.Order())
		default:
			dom.After(0, next)
		}
	}
	next()
}

// reorder shows another order; cursor and light stay at their experts.
func (m *expertMap) reorder(order *mapview.Order) {
	before := m.order
	m.order = order
	move := func(at [2]int) [2]int {
		if at[0] < 0 {
			return at
		}
		cell := before.Cell(at[0]*m.view.Cols + at[1])
		return m.place(cell/m.view.Cols, cell%m.view.Cols)
	}
	m.cursor, m.hover = move(m.cursor), [2]int{-1, -1}
	m.toAddress()
	if m.turn != nil {
		m.turn.light()
	}
	m.recolor()
}

// place is the row and column where an expert is drawn.
func (m *expertMap) place(row, expert int) [2]int {
	at := m.order.Place(row*m.view.Cols + expert)
	return [2]int{at / m.view.Cols, at % m.view.Cols}
}

// expert is the expert that is drawn at a row and column.
func (m *expertMap) expert(row, col int) int { return m.order.Cell(row*m.view.Cols+col) % m.view.Cols }

// places are where cells are drawn, for the renderer.
func (m *expertMap) places(cells []int) []int {
	if m.order == nil {
		return cells
	}
	out := make([]int, len(cells))
	for i, c := range cells {
		out[i] = m.order.Place(c)
	}
	return out
}

// trace asks which experts a text uses.
func (m *expertMap) trace(text string) {
	if text == "" {
		return
	}
	m.app.socket.Send(m.app.orFail(nil), wire.Trace, text)
}

// traced shows the selections of a text that was read.
func (m *expertMap) traced(frame []byte) error {
	t, err := wire.DecodeTraced(frame)
	if err != nil || m.data == nil {
		return err
	}
	clear(m.data.Text)
	for _, c := range t.Cells {
		if c.Cell < len(m.data.Text) {
			m.data.Text[c.Cell] = float32(c.Count)
		}
	}
	m.match = nil
	m.draw.hold(nil) // pulses of what else runs would cover it
	dom.Find(dom.ID("map-mode"), `option[value="text"]`).Set("hidden", false)
	dom.SetText(dom.ID("map-where"), plural(t.Tokens, "token")+" read; the map shows the experts that served them")
	m.show(mapview.Text)
	return nil
}

// redraw asks for a drawing at the next paint.
func (m *expertMap) redraw() {
	m.asked = true
	m.paint.Request()
}

// askTalks asks for the counts of the two conversations that are chosen.
func (m *expertMap) askTalks() {
	if m.data == nil {
		return
	}
	for i, id := range []string{"map-talk", "map-talk-other"} {
		pick := dom.ID(id)
		option := pick.Get("selectedOptions").Index(0)
		if !option.Truthy() {
			return
		}
		m.data.Talk[i] = mapview.Talk{ID: pick.Get("value").String(), Name: dom.Text(option)}
		if m.data.Talk[i].ID != "" {
			m.app.socket.Send(m.app.orFail(nil), wire.Count, m.data.Talk[i].ID)
		}
	}
	m.resort()
}

// tally takes the counts of a conversation.
func (m *expertMap) tally(frame []byte) error {
	t, err := wire.DecodeTally(frame)
	if err != nil || m.data == nil {
		return err
	}
	m.data.Tally(t)
	m.resort()
	return nil
}

// tierEvery is how often, in milliseconds, the map asks where the weights are while it shows that.
const tierEvery = 1000

// askTiers asks where the weights are, now and again while that is shown.
func (m *expertMap) askTiers() {
	if m.asking {
		return
	}
	m.asking = true
	if m.app.socket.Ready() { // without a connection nobody has asked, and nobody need be told
		m.app.socket.Send(m.app.orFail(nil), wire.Reside)
	}
	dom.After(tierEvery, func() {
		m.asking = false
		if m.mode == mapview.Tier && !m.paused {
			m.askTiers()
		}
	})
}

// tiers takes where the weights are.
func (m *expertMap) tiers(frame []byte) error {
	t, err := wire.DecodeTiers(frame)
	if err != nil || m.data == nil {
		return err
	}
	m.data.Tiers = t
	if m.mode == mapview.Tier {
		m.recolor()
	}
	return nil
}

// recolor asks for new colours at the next paint.
func (m *expertMap) recolor() {
	m.stale = true
	m.redraw()
}

// pulses takes a window of live routing.
func (m *expertMap) pulses(frame []byte) error {
	p, err := wire.DecodePulses(frame)
	if err != nil || m.data == nil {
		return err
	}
	now := clock()
	m.missed = m.missed || m.number > 0 && p.Number != m.number+1
	m.number = p.Number
	m.data.Pulse(p, now)
	m.rows = append(m.rows, rowsAt{now, p.Rows})
	m.live(now, p.Sequences)
	dom.SetAttr(m.page, "data-lit", strconv.Itoa(len(p.Cells)))
	m.lastTime = now
	if m.paused {
		return nil
	}
	if m.mode != mapview.Text && (m.turn == nil || !m.turn.held()) {
		m.lit = m.lit[:0]
		for _, c := range p.Cells {
			if c.Cell < m.data.Cells() {
				m.lit = append(m.lit, m.order.Place(c.Cell))
			}
		}
		m.draw.pulse(m.lit, now)
	}
	m.paint.Request()
	return nil
}

// live says how much runs.
func (m *expertMap) live(now float64, sequences int) {
	sum := 0
	for len(m.rows) > 0 && m.rows[0].at < now-rateOver {
		m.rows = m.rows[1:]
	}
	for _, r := range m.rows {
		sum += r.rows
	}
	text := "Nothing runs"
	if sequences > 0 {
		text = plural(sequences, "sequence") + ", " + strconv.Itoa(int(float64(sum)/rateOver+0.5)) + " tokens/s"
		if m.missed {
			text += ", some pulses dropped"
		}
	}
	line := dom.ID("map-live")
	if dom.Text(line) != text {
		dom.SetText(line, text)
	}
	dom.Flag(line, "data-on", sequences > 0)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// render paints: colours when they are stale, then the grid, then rulers and marks.
func (m *expertMap) render() {
	if m.data == nil || m.view.Cell == 0 {
		return
	}
	now := clock()
	glowing := now-m.lastTime < fadeFor && !m.paused
	if glowing && !m.asked && now-m.drawn < 1/glowFrames {
		m.paint.Request()
		return
	}
	m.asked, m.drawn = false, now
	if !m.colours && (m.stale || glowing && now-m.colored > recolorEvery && (m.mode == mapview.Heat || m.mode == mapview.Imbalance || m.mode == mapview.Recency)) {
		m.color(now)
		m.colours = true
		m.redraw() // the drawing is a task of its own
		return
	}
	m.colours = false
	if m.moved {
		m.moved = false
		m.pointAt()
	}
	m.draw.draw(&m.view, now, m.colors())
	m.overlay()
	switch {
	case m.stale: // since its colours were made, by a slider that is dragged
		m.redraw()
	case glowing:
		m.paint.Request()
	case m.lastTime > 0 && now-m.lastTime < fadeFor+1:
		m.live(now, 0)
	}
}

// color sorts the cells into steps and uploads the pixels. Its time is kept on the page for whoever measures.
func (m *expertMap) color(now float64) {
	m.layout = m.data.Classify(m.mode, m.topic, now, m.layout.Steps)
	m.layout.Pixels(m.hidden, m.match, m.order, m.pixels)
	m.draw.upload(m.pixels)
	m.stale, m.colored = false, now
	dom.SetAttr(m.page, "data-update-us", strconv.Itoa(int((clock()-now)*1e6)))
	m.showLegend()
}

// pin shows the panel about an expert of a row.
func (m *expertMap) pin(row, expert int, focus bool) {
	m.pinned = [2]int{row, expert}
	if m.turn != nil {
		m.turn.mark()
	}
	layer := strconv.Itoa(m.data.Shape.Layers[row])
	m.app.socket.Send(m.app.orFail(func(wire.Ack) {
		if focus || narrow() {
			dom.ID("map-panel").Call("scrollIntoView", map[string]any{"block": "nearest"})
		}
		if focus {
			dom.Focus(dom.ID("map-panel"))
		}
	}), wire.Inspect, layer, strconv.Itoa(expert), dom.Attr(m.page, "data-atlas"))
	m.toAddress()
	m.redraw()
}

// anchor is the part of the address that names an expert.
func (m *expertMap) anchor(row, expert int) string {
	return "l" + strconv.Itoa(m.data.Shape.Layers[row]) + "e" + strconv.Itoa(expert)
}

func (m *expertMap) unpin() {
	if m.pinned[0] < 0 {
		return
	}
	m.pinned = [2]int{-1, -1}
	m.toAddress()
	if m.turn != nil {
		m.turn.mark()
	}
	panel := dom.ID("map-panel")
	dom.SetText(panel, "")
	panel.Call("append", dom.New("p", "muted", "Point at a cell, or choose one with the arrow keys and Enter, to read what its expert has served."))
	dom.Focus(m.over)
	m.redraw()
}

// size fits canvases and view to the room there is.
func (m *expertMap) size() {
	box := m.frame.Get("parentElement")
	width := box.Get("clientWidth").Float()
	if width < 50 {
		return
	}
	room := max(240, dom.Window.Get("innerHeight").Float()-260)
	height := room
	if m.view.Cols > 0 {
		cell := math.Floor((width - rulerX) / float64(m.view.Cols))
		if cell >= 1 {
			height = min(room, rulerY+max(2, min(cell, 28))*float64(m.view.Rows)+2)
		}
		height = max(height, min(room, rulerY+2*float64(m.view.Rows)))
	}
	refit := m.view.Cell == 0 || width != m.view.Width || height != m.view.Height
	m.view.Width, m.view.Height = width, height
	ratio := max(1, dom.Window.Get("devicePixelRatio").Float())
	dom.Style(m.frame, "height", pixels(height))
	for _, c := range []js.Value{dom.ID("map"), m.over} {
		c.Set("width", int(width*ratio))
		c.Set("height", int(height*ratio))
	}
	m.draw.scale(ratio)
	if refit && m.view.Cols > 0 {
		m.view.Fit()
	}
	m.redraw()
}
