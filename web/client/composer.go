//go:build js && wasm

package main

import (
	"strconv"
	"strings"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/wire"
)

// composer is the message box: it grows, keeps a draft for each conversation, and counts the draft's tokens.
type composer struct {
	chat    *chat
	field   js.Value
	sending bool
	count   func()
	store   func()
}

func newComposer(c *chat) *composer {
	m := &composer{chat: c, field: dom.ID("draft")}
	m.count = debounced(400, m.measure)
	m.store = debounced(300, m.keep)
	m.field.Set("value", dom.Stored(m.draftKey()))
	c.app.inputs["draft"] = func(_, _ js.Value) {
		m.grow()
		m.sync()
		m.count()
		m.store()
	}
	c.app.actions["send"] = func(_, _ js.Value) { m.send() }
	dom.On(dom.ID("composer"), "submit", func(e js.Value) {
		e.Call("preventDefault")
		m.send()
	})
	page := dom.ID("chat")
	dom.On(page, "dragover", func(e js.Value) {
		if e.Get("dataTransfer").Get("types").Call("includes", "Files").Bool() { // text goes its usual way
			e.Call("preventDefault")
		}
	})
	dom.On(page, "drop", func(e js.Value) {
		list := e.Get("dataTransfer").Get("files") // empty after the event
		files := make([]js.Value, list.Length())
		for i := range files {
			files[i] = list.Index(i)
		}
		if len(files) > 0 {
			e.Call("preventDefault") // else the browser leaves the page for the file
		}
		m.take(files)
	})
	m.grow()
	if !narrow() && js.Global().Get("location").Get("hash").String() == "" {
		dom.Focus(m.field)
	}
	return m
}

func (m *composer) draftKey() string { return "covey.draft." + m.chat.conversation }

func (m *composer) text() string { return m.field.Get("value").String() }

func (m *composer) set(text string) {
	m.field.Set("value", text)
	m.grow()
	m.sync()
	m.keep()
}

// maxDropped is the largest file that is put into a message, in bytes: the daemon takes messages of 512 KiB.
const maxDropped = 256 << 10

// take adds the texts of files that were dropped to the draft, each under its name, one after another. The browser decodes it as UTF-8, with U+FFFD
// for what is not: such a file, or one with NUL bytes, is a picture, a document of an office program or UTF-16.
func (m *composer) take(files []js.Value) {
	if len(files) == 0 {
		return
	}
	file, rest := files[0], files[1:]
	name := file.Get("name").String()
	if file.Get("size").Int() > maxDropped {
		m.chat.app.toast(name+" has more than 256 KiB: too much for a message.", "", nil)
		m.take(rest)
		return
	}
	then(file.Call("text"), func(content js.Value) {
		defer m.take(rest)
		text := strings.TrimSpace(content.String())
		if strings.ContainsAny(text, "\x00\ufffd") {
			m.chat.app.toast(name+" is not a text file (UTF-8).", "", nil)
			return
		}
		before := strings.TrimSpace(m.text())
		if before != "" {
			before += "\n\n"
		}
		m.set(before + name + ":\n\n" + text + "\n")
		m.count()
		dom.Focus(m.field)
	}, func() {
		m.chat.app.toast(name+" could not be read.", "", nil)
		m.take(rest)
	})
}

func (m *composer) keep() { dom.Store(m.draftKey(), m.text()) }

// grow fits the field to its text, up to a third of the window.
func (m *composer) grow() {
	dom.Style(m.field, "height", "auto")
	most := js.Global().Get("innerHeight").Float() / 3
	dom.Style(m.field, "height", pixels(min(m.field.Get("scrollHeight").Float(), most)))
}

// sync enables Send when there is something to send and someone to send it to.
func (m *composer) sync() {
	ready := strings.TrimSpace(m.text()) != "" && m.chat.app.socket.Ready() && !m.sending && !gone()
	dom.ID("send").Set("disabled", !ready)
}

// gone says whether the page tells that its conversation was deleted.
func gone() bool { return dom.ID("gone").Get("childElementCount").Int() > 0 }

func (m *composer) send() {
	text := m.text()
	if strings.TrimSpace(text) == "" || m.sending || m.chat.running != "" || gone() {
		return
	}
	m.sending = true
	m.field.Set("value", "") // at once: what is typed from now on is the next message
	m.grow()
	m.sync()
	m.chat.stick = true
	m.chat.app.socket.Send(func(ack wire.Ack, f *wire.Failure) {
		m.sending = false
		if f != nil {
			m.chat.app.failed(f)
			if m.text() == "" {
				m.field.Set("value", text)
				m.grow()
			}
			m.sync()
			return
		}
		dom.Store(m.draftKey(), "")
		m.chat.setConversation(ack.Arg(0))
		m.keep()
		m.sync()
		m.measure()
		dom.Focus(m.field)
	}, wire.Send, m.chat.conversation, text)
}

// measure shows the context in use: what the last turn took and the draft.
func (m *composer) measure() {
	text := m.text()
	if text == "" || !m.chat.app.socket.Ready() {
		m.show(0)
		return
	}
	m.chat.app.socket.Send(func(ack wire.Ack, f *wire.Failure) {
		if n, err := strconv.Atoi(ack.Arg(0)); f == nil && err == nil && m.text() == text {
			m.show(n)
		}
	}, wire.Measure, m.chat.conversation, text)
}

func (m *composer) show(draft int) {
	meter := dom.ID("meter")
	bar := dom.Find(meter, "progress")
	figure := dom.Find(meter, "[data-used]")
	if !dom.Is(bar) || !dom.Is(figure) {
		return
	}
	used, _ := strconv.Atoi(dom.Attr(bar, "data-base"))
	limit := bar.Get("max").Int()
	bar.Set("value", min(used+draft, limit))
	text := strconv.Itoa(used + draft)
	if draft > 0 {
		text = strconv.Itoa(used) + " + " + strconv.Itoa(draft)
	}
	dom.SetText(figure, text)
	dom.Flag(meter, "data-warn", (used+draft)*10 > limit*9)
}
