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

// Tokens shaded by topic: how much the experts that served a token serve a topic, by the newest atlas of the model. It is
// asked for when that is first wanted.

// affinity is what an inspector knows of topics.
type affinity struct {
	asked bool
	atlas *wire.Map // nil = not here yet
	topic int
}

// askTopics asks for the atlas, until it has been sent.
func (v *inspector) askTopics() {
	if v.topics.asked {
		return
	}
	v.topics.asked = true
	v.chat.app.socket.Send(func(_ wire.Ack, f *wire.Failure) {
		if f != nil {
			v.topics.asked = false
			v.chat.app.failed(f)
		}
	}, wire.Survey, "")
}

// surveyed takes the atlas.
func (v *inspector) surveyed(frame []byte) error {
	m, err := wire.DecodeMap(frame)
	if err != nil {
		return err
	}
	v.topics.atlas = &m
	v.topicMenu()
	v.reshade()
	if r := v.records[v.shown]; r != nil && v.current >= 0 && v.current < len(r.tokens) {
		v.tokenCard(r, v.current)
	}
	return nil
}

// topicMenu shows the choice of a topic beside that of the shade, while it means something.
func (v *inspector) topicMenu() {
	menu := dom.Find(dom.ID("t-"+v.shown), "[data-topics]")
	if !dom.Is(menu) {
		return
	}
	dom.Hide(menu, v.shade != "topic")
	dom.SetText(menu, "")
	switch m := v.topics.atlas; {
	case m == nil:
		menu.Call("append", dom.New("option", "", "reading the atlas"))
	case len(m.Topics) == 0:
		menu.Call("append", dom.New("option", "", "no atlas of this model yet"))
	default:
		for i, t := range m.Topics {
			option := dom.New("option", "", t.Topic)
			option.Set("value", strconv.Itoa(i))
			menu.Call("append", option)
		}
		menu.Set("value", strconv.Itoa(v.topics.topic))
	}
}

// lift is the mean lift of token i's experts in a topic; NaN = not known.
func (v *inspector) lift(r *record, i, topic int) float64 {
	if v.topics.atlas == nil {
		return math.NaN()
	}
	return mapview.TokenLift(*v.topics.atlas, topic, r.shape.Layers, r.experts[i].ids, r.experts[i].weights)
}

// cardTopics is how many topics the card of a token names.
const cardTopics = 3

// topicCard lists the topics that token i's experts serve most; nothing without an atlas.
func (v *inspector) topicCard(r *record, i int) []any {
	m := v.topics.atlas
	if m == nil || len(m.Topics) == 0 {
		return nil
	}
	lifts := make([]float64, len(m.Topics)) // NaN = not known, or named already
	for c := range lifts {
		lifts[c] = v.lift(r, i, c)
	}
	text := ""
	for range cardTopics {
		best := -1
		for c, l := range lifts {
			if l > 0 && (best < 0 || l > lifts[best]) {
				best = c
			}
		}
		if best < 0 {
			break
		}
		if text != "" {
			text += ", "
		}
		text += m.Topics[best].Topic + " " + strconv.FormatFloat(lifts[best], 'f', 2, 64)
		lifts[best] = math.NaN()
	}
	if text == "" {
		return nil
	}
	return []any{dom.New("h3", "", "Topics of its experts"), dom.New("p", "num", text), dom.New("p", "muted", "Mean lift by weight in "+m.Name+"; one token, no interval.")}
}

// chooseTopic shades by another topic.
func (v *inspector) chooseTopic(el, _ js.Value) {
	if n, err := strconv.Atoi(el.Get("value").String()); err == nil {
		v.topics.topic = n
		v.reshade()
	}
}
