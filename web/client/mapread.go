//go:build js && wasm

package main

import (
	"strconv"

	"covey/web/client/dom"
	"covey/web/client/mapview"
	"covey/web/wire"
)

// What is read beside the expert map: the legend, what a search finds, and the card of a cell.

// showLegend makes the legend's buttons anew when its numbers have changed.
func (m *expertMap) showLegend() {
	text := string(m.mode) + legendName(m.mode, m.data, m.topic)
	for _, s := range m.layout.Legend {
		text += "|" + s.Label
	}
	if text == m.legend {
		return
	}
	m.legend = text
	box := dom.ID("map-legend")
	dom.SetText(box, "")
	box.Call("append", dom.New("span", "legend-name", legendName(m.mode, m.data, m.topic)))
	for i, s := range m.layout.Legend {
		button := dom.New("button", "legend-step", "")
		button.Set("type", "button")
		dom.SetAttr(button, "data-action", "map-step")
		dom.SetAttr(button, "data-step", strconv.Itoa(i))
		dom.SetAttr(button, "aria-pressed", strconv.FormatBool(m.hidden>>i&1 == 0))
		swatch := dom.New("span", "legend-swatch", "")
		dom.Style(swatch, "--swatch", rgb(s.Color))
		dom.Flag(swatch, "data-faint", s.Faint)
		button.Call("append", swatch, dom.New("span", "num", s.Label))
		box.Call("append", button)
	}
	unknown := dom.New("span", "legend-unknown muted", "")
	unknown.Call("append", dom.New("span", "legend-swatch legend-hatch", ""), dom.New("span", "", "nothing known"))
	box.Call("append", unknown)
}

func legendName(mode mapview.Mode, d *mapview.Data, topic int) string {
	switch mode {
	case mapview.Heat:
		return "Selections"
	case mapview.Turn:
		return "Selections in this answer"
	case mapview.Recency:
		return "Last chosen within"
	case mapview.Imbalance:
		return "Load over an even load"
	case mapview.Text:
		return "Selections by the text"
	case mapview.Q:
		return "Least q over the topics"
	case mapview.Difference:
		if topic < len(d.Topics) && d.Other < len(d.Topics) {
			return "Lift in " + d.Topics[topic].Topic + " over " + d.Topics[d.Other].Topic
		}
		return "Difference"
	case mapview.Topic:
		if topic < len(d.Topics) {
			return "Lift in " + d.Topics[topic].Topic
		}
		return "Lift"
	case mapview.Talks:
		a, b := d.Talk[0], d.Talk[1]
		if a.ID == "" || b.ID == "" {
			return "Choose two conversations"
		}
		if a.Tokens == 0 || b.Tokens == 0 {
			return "Two conversations with stored routing are needed"
		}
		return "Share in \"" + a.Name + "\" (" + talked(a) + ") over \"" + b.Name + "\" (" + talked(b) + "); one text each: no test"
	case mapview.Tier:
		return tierLine(d.Tiers)
	}
	return "Specificity"
}

// talked says what of a conversation is counted.
func talked(t mapview.Talk) string {
	text := plural(t.Answers, "answer")
	switch {
	case t.Stopped == 1 && t.Answers == 1:
		text += ", stopped early"
	case t.Stopped > 0:
		text += ", " + strconv.Itoa(t.Stopped) + " of them stopped early"
	}
	return text + ", " + plural(t.Tokens, "token")
}

// tierLine says how many experts are in memory, and how often steps found one there.
func tierLine(t wire.Tiers) string {
	in := 0
	for _, x := range t.InMemory {
		if x {
			in++
		}
	}
	text := strconv.Itoa(in) + " of " + strconv.Itoa(len(t.InMemory)) + " experts in memory"
	if t.Hits+t.Misses > 0 {
		text += "; found " + mapview.Short(float64(t.Hits)) + " times, read from disk " + mapview.Short(float64(t.Misses)) + " times"
	}
	return text
}

// search dims what a text does not name, or shows the topic it names.
func (m *expertMap) search(text string) {
	if m.data == nil {
		return
	}
	row, col, topic, ok := m.data.Find(text)
	// What names nothing here is a text that the model can read: Enter or the button does that.
	dom.Hide(dom.ID("map-trace"), ok || text == "")
	m.match = nil
	switch {
	case ok && topic >= 0:
		m.topic = topic
		dom.ID("map-topic").Set("value", strconv.Itoa(topic))
		m.legend = ""
		m.show(mapview.Topic)
		return
	case ok:
		m.match = make([]bool, m.data.Cells())
		for i := range m.match {
			m.match[i] = (row < 0 || i/m.view.Cols == row) && (col < 0 || i%m.view.Cols == col)
		}
		if row >= 0 && col >= 0 {
			m.cursor = m.place(row, col)
			m.view.Show(m.cursor[0], m.cursor[1])
			m.card(m.cursor[0], m.cursor[1])
		}
	}
	m.recolor()
}

// pointAt shows the card of the cell under the pointer.
func (m *expertMap) pointAt() {
	row, col, ok := m.view.At(m.pointer[0], m.pointer[1])
	if !ok || m.dragged && m.drag {
		m.hover = [2]int{-1, -1}
		dom.Hide(dom.ID("map-card"), true)
		return
	}
	m.hover = [2]int{row, col}
	m.card(row, col)
}

// card shows the small card beside a cell.
func (m *expertMap) card(row, col int) {
	card := dom.ID("map-card")
	if cell := strconv.Itoa(m.order.Cell(row*m.view.Cols + col)); dom.Attr(card, "data-cell") != cell {
		dom.SetAttr(card, "data-cell", cell)
		dom.SetText(card, "")
		for i, line := range m.lines(row, col) {
			tag := "p"
			if i == 0 {
				tag = "b"
			}
			card.Call("append", dom.New(tag, "num", line))
		}
	}
	dom.Hide(card, false)
	x, y := m.view.Left+float64(col+1)*m.view.Cell+8, m.view.Top+float64(row+1)*m.view.Cell+8
	width, height := card.Get("offsetWidth").Float(), card.Get("offsetHeight").Float()
	if x+width > m.view.Width {
		x = max(0, m.view.Left+float64(col)*m.view.Cell-width-8)
	}
	if y+height > m.view.Height {
		y = max(0, m.view.Top+float64(row)*m.view.Cell-height-8)
	}
	dom.Style(card, "transform", "translate("+pixels(x)+","+pixels(y)+")")
}

// lines is what the card says about the expert that is drawn at a row and column.
func (m *expertMap) lines(row, col int) []string {
	d, now := m.data, clock()
	cell := m.order.Cell(row*m.view.Cols + col)
	n := d.Value(mapview.Heat, 0, cell, now)
	out := []string{
		"Layer " + strconv.Itoa(d.Shape.Layers[row]) + ", expert " + strconv.Itoa(cell%m.view.Cols),
		mapview.Figure(mapview.Heat, n) + " selections, load " + mapview.Figure(mapview.Imbalance, d.Value(mapview.Imbalance, 0, cell, now)),
		"last " + mapview.Figure(mapview.Recency, d.Value(mapview.Recency, 0, cell, now)),
	}
	if m.mode == mapview.Turn {
		out = append(out, mapview.Figure(mapview.Turn, d.Value(mapview.Turn, 0, cell, now))+" in this answer so far")
	}
	switch m.mode {
	case mapview.Text:
		out = append(out, mapview.Figure(mapview.Text, d.Value(mapview.Text, 0, cell, now))+" by the text")
	case mapview.Tier:
		out = append(out, "weights "+mapview.Figure(mapview.Tier, d.Value(mapview.Tier, 0, cell, now)))
	case mapview.Talks:
		if a, b, ok := d.Talked(cell); ok {
			out = append(out, mapview.Figure(mapview.Heat, a)+" of "+plural(d.Talk[0].Tokens, "token")+" against "+mapview.Figure(mapview.Heat, b)+" of "+strconv.Itoa(d.Talk[1].Tokens))
		}
	case mapview.Q:
		out = append(out, "least q "+mapview.Figure(mapview.Q, d.Value(mapview.Q, 0, cell, now)))
	case mapview.Difference:
		out = append(out, legendName(m.mode, d, m.topic)+": "+mapview.Figure(mapview.Difference, d.Value(mapview.Difference, m.topic, cell, now)))
	}
	best := -1
	for i := range d.Topics {
		low := float64(d.Topics[i].Low[cell])
		if low > 1 && (best < 0 || low > float64(d.Topics[best].Low[cell])) {
			best = i
		}
	}
	if m.mode == mapview.Topic || m.mode == mapview.Difference {
		best = m.topic
	}
	if best >= 0 && best < len(d.Topics) {
		t := d.Topics[best]
		out = append(out, t.Topic+": lift "+two(t.Lift[cell])+" ["+two(t.Low[cell])+", "+two(t.High[cell])+"]")
	}
	return out
}

func two(v float32) string { return mapview.Figure(mapview.Topic, float64(v)) }

// describe is the card for a screen reader.
func (m *expertMap) describe(row, col int) string {
	text := ""
	for i, line := range m.lines(row, col) {
		if i > 0 {
			text += ". "
		}
		text += line
	}
	return text
}
