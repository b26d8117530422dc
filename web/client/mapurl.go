//go:build js && wasm

package main

import (
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/client/mapview"
)

// The address of the map says what it shows, so that it can be kept and sent: ?mode= ?topic= ?other= ?sort=, and ?talk= and
// ?with= for two conversations, beside the server's own parameters, and #l12e5 for the expert that is pinned.

// parameters are those of the page's address.
func parameters() js.Value {
	return js.Global().Get("URLSearchParams").New(js.Global().Get("location").Get("search"))
}

func parameter(list js.Value, name string) string {
	if v := list.Call("get", name); v.Type() == js.TypeString {
		return v.String()
	}
	return ""
}

// fromAddress takes what the address asks for, once the topics are known.
func (m *expertMap) fromAddress() {
	if m.addressed {
		return
	}
	m.addressed = true
	list := parameters()
	m.chooseTopics(parameter(list, "topic"), parameter(list, "other"))
	choose := func(id, value string) bool { // an option that is there
		options := dom.ID(id).Get("options")
		for i := range options.Length() {
			option := options.Index(i)
			if value != "" && option.Get("value").String() == value && !option.Get("disabled").Bool() && !option.Get("hidden").Bool() {
				option.Set("selected", true)
				return true
			}
		}
		return false
	}
	if sort := mapview.Sort(parameter(list, "sort")); (sort == mapview.ByValue || sort == mapview.ByCluster) && choose("map-sort", string(sort)) {
		m.sort = sort
	}
	choose("map-talk", parameter(list, "talk"))
	choose("map-talk-other", parameter(list, "with"))
	if mode := mapview.Mode(parameter(list, "mode")); mapview.Known(mode) && choose("map-mode", string(mode)) {
		m.mode = mode
	}
}

// toAddress writes what is shown into the address. The text of a search for experts is not kept: it may be private.
func (m *expertMap) toAddress() {
	if m.data == nil {
		return
	}
	list := parameters()
	set := func(name, value string, on bool) {
		if on {
			list.Call("set", name, value)
		} else {
			list.Call("delete", name)
		}
	}
	usual := mapview.Heat
	if m.turn != nil {
		usual = mapview.Turn
	}
	set("mode", string(m.mode), m.mode != usual && m.mode != mapview.Text)
	topics := m.mode == mapview.Topic || m.mode == mapview.Difference
	set("topic", m.topicName(m.topic), topics && m.topic < len(m.data.Topics))
	set("other", m.topicName(m.data.Other), m.mode == mapview.Difference && m.data.Other < len(m.data.Topics))
	talks := m.mode == mapview.Talks
	set("talk", m.data.Talk[0].ID, talks && m.data.Talk[0].ID != "")
	set("with", m.data.Talk[1].ID, talks && m.data.Talk[1].ID != "")
	set("sort", string(m.sort), m.sort != mapview.ByID)
	set("atlas", dom.Attr(m.page, "data-atlas"), dom.Attr(m.page, "data-atlas") != "" && list.Call("has", "atlas").Bool())
	location := js.Global().Get("location")
	address := location.Get("pathname").String()
	if query := list.Call("toString").String(); query != "" {
		address += "?" + query
	}
	if m.pinned[0] >= 0 {
		address += "#" + m.anchor(m.pinned[0], m.pinned[1])
	}
	if address != location.Get("pathname").String()+location.Get("search").String()+location.Get("hash").String() {
		js.Global().Get("history").Call("replaceState", js.Null(), "", address)
	}
}

// chooseTopics shows topics by name, since another atlas may number them otherwise; the first two where there are none of these.
func (m *expertMap) chooseTopics(topic, other string) {
	m.topic, m.data.Other = max(0, m.topicIndex(topic)), m.topicIndex(other)
	if m.data.Other < 0 {
		m.data.Other = min(1, max(0, len(m.data.Topics)-1))
	}
	dom.ID("map-topic").Set("value", m.topic)
	dom.ID("map-other").Set("value", m.data.Other)
}

// topicName is "" where there is no such topic.
func (m *expertMap) topicName(i int) string {
	if i < 0 || i >= len(m.data.Topics) {
		return ""
	}
	return m.data.Topics[i].Topic
}

// topicIndex is -1 where there is no such topic.
func (m *expertMap) topicIndex(name string) int {
	for i, t := range m.data.Topics {
		if t.Topic == name {
			return i
		}
	}
	return -1
}
