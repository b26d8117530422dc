//go:build js && wasm

package main

import (
	"math"
	"strconv"
	"strings"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/wire"
)

// The token view: an answer's text as its tokens, shaded, with a card about the one that is pointed at.

// toggle shows or hides the tokens of an answer.
func (v *inspector) toggle(message string) {
	if v.shown == message {
		v.close()
		return
	}
	v.close()
	v.shown, v.current = message, -1
	r := v.records[message]
	if r == nil {
		r = &record{}
		v.records[message] = r
	}
	v.open(true, false)
	v.build()
	if !r.whole {
		v.chat.app.socket.Send(v.chat.app.orFail(nil), wire.Detail, message, "0")
	}
}

// close gives the prose back.
func (v *inspector) close() {
	message := v.shown
	v.shown, v.current = "", -1
	dom.SetText(dom.ID("token-card"), "")
	dom.SetText(dom.ID("inspector-note"), v.note)
	if message == "" {
		return
	}
	if msg := dom.ID("m-" + message); dom.Is(msg) {
		dom.Flag(msg, "data-view", false)
		box := dom.ID("t-" + message)
		dom.SetText(box, "")
		dom.Hide(box, true)
		if b := dom.Find(msg, `[data-action="tokens"]`); dom.Is(b) {
			dom.SetAttr(b, "aria-pressed", "false")
		}
	}
}

// detailed takes a Detailed frame.
func (v *inspector) detailed(frame []byte) error {
	d, err := wire.DecodeDetailed(frame)
	if err != nil {
		return err
	}
	r := v.records[d.Message]
	if r == nil {
		return nil
	}
	if d.First == 0 {
		*r = record{}
	}
	if d.First != len(r.tokens) {
		return nil // a later frame of an earlier request
	}
	r.shape = d.Shape
	r.tokens = append(r.tokens, d.Tokens...)
	r.alternatives = append(r.alternatives, d.Alternatives...)
	for i := range d.Tokens {
		var row rowExperts
		if d.Experts.Rows > 0 {
			ids, weights := d.Experts.Row(i)
			row = rowExperts{ids, weights, d.Experts.Scale}
		}
		r.experts = append(r.experts, row)
	}
	r.whole = len(r.tokens) == d.Total
	if d.Message == v.shown {
		v.fit(d.Shape)
		if r.whole {
			v.build()
		}
	}
	return nil
}

// restore builds the token view again after the message's markup was replaced.
func (v *inspector) restore() {
	if v.shown == "" {
		return
	}
	if !dom.Is(dom.ID("t-" + v.shown)) {
		v.shown, v.current = "", -1
		return
	}
	v.build()
}

// build writes the tokens as spans.
func (v *inspector) build() {
	r := v.records[v.shown]
	msg := dom.ID("m-" + v.shown)
	if r == nil || !dom.Is(msg) {
		return
	}
	dom.SetAttr(msg, "data-view", "tokens")
	if b := dom.Find(msg, `[data-action="tokens"]`); dom.Is(b) {
		dom.SetAttr(b, "aria-pressed", "true")
	}
	box := dom.ID("t-" + v.shown)
	dom.SetText(box, "")
	dom.Hide(box, false)
	bar := dom.New("div", "token-bar", "")
	label := dom.New("label", "", "Shade by ")
	menu := dom.New("select", "", "")
	dom.SetAttr(menu, "data-change", "shade")
	for _, option := range [][2]string{{"probability", "low probability"}, {"surprise", "surprise"}, {"entropy", "entropy"}, {"change", "change of experts"}, {"topic", "a topic"}, {"expert", "the chosen expert"}, {"none", "nothing"}} {
		o := dom.New("option", "", option[1])
		o.Set("value", option[0])
		menu.Call("append", o)
	}
	menu.Set("value", v.shade)
	label.Call("append", menu)
	topics := dom.New("select", "", "")
	dom.SetAttr(topics, "data-change", "shade-topic")
	dom.SetAttr(topics, "data-topics", "")
	dom.SetAttr(topics, "aria-label", "Topic")
	bar.Call("append", label, topics, dom.New("span", "muted", "Point at a token, or use the arrow keys."))
	if v.chat.conversation != "" {
		link := dom.New("a", "", "As a table")
		link.Set("href", "/c/"+v.chat.conversation+"/tokens/"+v.shown)
		bar.Call("append", link)
	}
	list := dom.New("div", "token-list", "")
	dom.SetAttr(list, "tabindex", "0")
	dom.SetAttr(list, "role", "group")
	dom.SetAttr(list, "aria-label", "Tokens of the answer. Left and Right go from one to the next.")
	box.Call("append", bar, list)
	v.topicMenu()
	v.extend(r, 0)
	if len(r.tokens) > 0 && v.current < 0 {
		v.total(r)
	}
}

// extend adds the spans of the tokens from first on, in one insertion.
func (v *inspector) extend(r *record, first int) {
	list := dom.Find(dom.ID("t-"+v.shown), ".token-list")
	if !dom.Is(list) {
		return
	}
	var b strings.Builder
	for i := first; i < len(r.tokens); i++ {
		b.WriteString(`<span data-i="`)
		b.WriteString(strconv.Itoa(i))
		b.WriteString(`" data-action="token" class="`)
		b.WriteString(v.class(r, i))
		b.WriteString(`">`)
		b.WriteString(escape(r.tokens[i].Text))
		b.WriteString(`</span>`)
	}
	list.Call("insertAdjacentHTML", "beforeend", b.String())
}

// escape makes a token's text visible and safe: line ends get a mark, an empty text one of its own.
func escape(s string) string {
	if s == "" {
		return `<i>&middot;</i>`
	}
	return replace(s, "&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "\n", "<i>\u21b5</i>\n", "\t", "<i>\u21e5</i>\t")
}

// replace replaces one thing after another; strings.NewReplacer would cost the client several kilobytes.
func replace(s string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		s = strings.ReplaceAll(s, pairs[i], pairs[i+1])
	}
	return s
}

// class is the shade of a token: s0 (none) to s9.
func (v *inspector) class(r *record, i int) string {
	level := 0.0
	t := r.tokens[i]
	switch v.shade {
	case "probability":
		level = 1 - math.Exp(float64(t.Logprob))
	case "surprise": // in bits; 8 bits and more are full
		level = -float64(t.Logprob) / math.Ln2 / 8
	case "entropy": // in bits; 4 bits and more are full
		level = entropy(r.alternatives[i]) / 4
	case "change":
		if i > 0 {
			level = r.change(i)
		}
	case "topic": // twice as often as anywhere and more is full
		if lift := v.lift(r, i, v.topics.topic); lift > 1 {
			level = math.Log2(lift)
		}
	case "expert":
		if v.layer >= 0 {
			w := r.experts[i].weight(v.layer, v.expert, len(r.shape.Layers))
			if w > 0 && r.experts[i].scale > 0 {
				level = 0.3 + 0.7*float64(w/r.experts[i].scale)
			}
		}
	}
	class := "s" + strconv.Itoa(min(max(int(level*9.99), 0), 9))
	if i == v.current {
		class += " token-current"
	}
	return class
}

// entropy is how open the choice of a token was, in bits: over the likeliest tokens, with all others as one, so at most what
// it was.
func entropy(likeliest []wire.Alternative) float64 {
	bits, rest := 0.0, 1.0
	for _, a := range likeliest {
		p := math.Exp(float64(a.Logprob))
		bits -= p * float64(a.Logprob) / math.Ln2
		rest -= p
	}
	if rest > 1e-6 && len(likeliest) > 0 {
		bits -= rest * math.Log2(rest)
	}
	return bits
}

// change is the share of a token's experts that the token before did not use.
func (r *record) change(i int) float64 {
	a, b := r.experts[i-1].ids, r.experts[i].ids
	layers := len(r.shape.Layers)
	if layers == 0 || len(a) == 0 || len(a) != len(b) {
		return 0
	}
	k, fresh := len(b)/layers, 0
	for j, id := range b {
		found := false
		for _, other := range a[j/k*k : (j/k+1)*k] {
			found = found || other == id
		}
		if !found {
			fresh++
		}
	}
	return float64(fresh) / float64(len(b))
}

// reshade gives every token its class anew.
func (v *inspector) reshade() {
	r := v.records[v.shown]
	if r == nil {
		return
	}
	box := dom.ID("t-" + v.shown)
	if menu := dom.Find(box, "select"); dom.Is(menu) {
		menu.Set("value", v.shade)
	}
	for i, span := range dom.All(box, "[data-i]") {
		if i < len(r.tokens) {
			span.Set("className", v.class(r, i))
		}
	}
}

// point selects a token.
func (v *inspector) point(i int) {
	r := v.records[v.shown]
	if r == nil || i < 0 || i >= len(r.tokens) || i == v.current {
		return
	}
	box := dom.ID("t-" + v.shown)
	before := v.current
	v.current = i
	if old := dom.Find(box, `[data-i="`+strconv.Itoa(before)+`"]`); before >= 0 && dom.Is(old) {
		old.Set("className", v.class(r, before))
	}
	if span := dom.Find(box, `[data-i="`+strconv.Itoa(i)+`"]`); dom.Is(span) {
		span.Set("className", v.class(r, i))
	}
	if e := r.experts[i]; len(e.ids) > 0 && v.grid != nil {
		v.grid.Show(e.ids, e.weights)
		v.paint.Request()
	}
	v.tokenCard(r, i)
}

// total shows the experts of the whole answer: where its weight went.
func (v *inspector) total(r *record) {
	dom.SetText(dom.ID("inspector-note"), "The whole answer: the brighter a cell, the more of the answer's weight it took. Choose a cell to see its tokens.")
	if v.grid != nil {
		v.grid.Sum(len(r.experts), func(i int) ([]uint16, []byte) { return r.experts[i].ids, r.experts[i].weights })
		v.paint.Request()
	}
}

// tokenCard writes everything about one token.
func (v *inspector) tokenCard(r *record, i int) {
	t := r.tokens[i]
	card := dom.ID("token-card")
	dom.SetText(card, "")
	dom.SetText(dom.ID("inspector-note"), "Token "+strconv.Itoa(i+1)+" of "+strconv.Itoa(len(r.tokens)))
	head := dom.New("p", "token-head", "")
	head.Call("append", dom.New("code", "", visible(t.Text)), dom.New("span", "num", percent(t.Logprob)))
	card.Call("append", head)
	if alternatives := r.alternatives[i]; len(alternatives) > 0 {
		list := dom.New("ul", "bars", "")
		for _, a := range alternatives {
			item := dom.New("li", "", "")
			bar := dom.New("span", "bar", "")
			dom.Style(bar, "--part", strconv.FormatFloat(math.Exp(float64(a.Logprob)), 'f', 4, 64))
			item.Call("append", bar, dom.New("code", "", visible(a.Text)), dom.New("span", "num", percent(a.Logprob)))
			dom.Flag(item, "data-taken", a.Text == t.Text)
			list.Call("append", item)
		}
		card.Call("append", dom.New("h3", "", "Likeliest tokens"), list)
	}
	e := r.experts[i]
	layers := len(r.shape.Layers)
	if layers == 0 || len(e.ids) == 0 {
		card.Call("append", dom.New("p", "muted", "No routing was kept of this token."))
		return
	}
	card.Call("append", v.topicCard(r, i)...)
	table := dom.New("table", "layers num", "")
	k := len(e.ids) / layers
	for j, layer := range r.shape.Layers {
		row := dom.New("tr", "", "")
		row.Call("append", dom.New("th", "", "Layer "+strconv.Itoa(layer)))
		for rank := range k {
			at := j*k + rank
			cell := dom.New("td", "", strconv.Itoa(int(e.ids[at])))
			cell.Call("append", dom.New("small", "", strconv.FormatFloat(float64(e.weights[at])*float64(e.scale)/255, 'f', 2, 64)))
			row.Call("append", cell)
		}
		table.Call("append", row)
	}
	details := dom.New("details", "", "")
	details.Call("append", dom.New("summary", "", "Experts and weights by layer"), table)
	card.Call("append", details)
}

// visible shows white space in a token.
func visible(s string) string {
	if s == "" {
		return "(part of a character)"
	}
	return replace(s, " ", "\u2423", "\n", "\u21b5", "\t", "\u21e5")
}

func percent(logprob float32) string {
	p := math.Exp(float64(logprob)) * 100
	switch {
	case p >= 10:
		return strconv.FormatFloat(p, 'f', 0, 64) + " %"
	case p >= 0.1:
		return strconv.FormatFloat(p, 'f', 1, 64) + " %"
	}
	return "< 0.1 %"
}

// key walks through the tokens when their list has the focus.
func (v *inspector) key(e js.Value) bool {
	r := v.records[v.shown]
	if r == nil || !dom.Is(dom.Closest(e.Get("target"), ".token-list")) {
		return false
	}
	i := v.current
	switch key(e) {
	case "ArrowLeft":
		i = max(i-1, 0)
	case "ArrowRight":
		i++
	case "Home":
		i = 0
	case "End":
		i = len(r.tokens) - 1
	default:
		return false
	}
	v.point(min(i, len(r.tokens)-1))
	if v.current >= 0 {
		t := r.tokens[v.current]
		announce(t.Text + ", " + percent(t.Logprob))
		if span := dom.Find(dom.ID("t-"+v.shown), ".token-current"); dom.Is(span) {
			options := js.Global().Get("Object").New()
			options.Set("block", "nearest")
			span.Call("scrollIntoView", options)
		}
	}
	return true
}
