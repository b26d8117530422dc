//go:build js && wasm

// Command client is the browser's half of Covey. The daemon renders every page; this program makes it live: it keeps
// the socket, applies patches, shows running answers as their tokens arrive, and carries out what the controls ask.
//
// It runs on the browser's event loop alone: no goroutine but main, no locks. Controls are marked by data-action,
// data-input and data-change; actions.go finds the function by that name.
package main

import (
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/client/socket"
	"covey/web/wire"
)

// app is the client of one page.
type app struct {
	socket  *socket.Socket
	shape   wire.Shape // routing geometry of the open model
	context int        // longest sequence in tokens

	actions map[string]func(el, event js.Value)    // data-action: click
	inputs  map[string]func(el, event js.Value)    // data-input: input
	changes map[string]func(el, event js.Value)    // data-change: change
	frames  map[wire.Kind]func(frame []byte) error // binary frames
	keys    []func(event js.Value) bool            // key handlers, asked in order; true = done
	opened  []func(again bool)                     // after each Welcome of a new connection

	chat *chat // nil on pages without one
}

func main() {
	a := &app{
		actions: map[string]func(el, event js.Value){}, inputs: map[string]func(el, event js.Value){},
		changes: map[string]func(el, event js.Value){}, frames: map[wire.Kind]func([]byte) error{},
	}
	token := ""
	if meta := dom.Find(dom.Document, `meta[name="covey-page"]`); dom.Is(meta) {
		token = dom.Attr(meta, "content")
	}
	a.socket = socket.New(token)
	reports := 0
	dom.Crashed = func(trace string) {
		if reports++; reports > 5 {
			return // one fault that repeats with each frame needs no further report
		}
		js.Global().Get("console").Call("error", trace)
		if fail := js.Global().Get("coveyFail"); fail.Type() == js.TypeFunction {
			fail.Invoke("Something went wrong on this page.")
		}
		a.socket.Send(nil, wire.Crash, trace)
	}
	dom.Guard(a.start)
	select {} // callbacks do the rest
}

func (a *app) start() {
	a.startToasts()
	a.startSide()
	if dom.Is(dom.ID("chat")) {
		a.startChat()
	}
	if dom.Is(dom.ID("settings-form")) {
		a.startSettings()
	}
	if dom.Is(dom.ID("experts")) {
		a.startMap()
	}
	if dom.Is(dom.ID("job-form")) {
		a.startJobs()
	}
	if dom.Is(dom.ID("atlas-file")) {
		a.startAtlases()
	}
	if dom.Is(dom.Find(dom.Document, `[data-action="figure-png"]`)) {
		a.startFigures()
	}
	a.listen()
	a.socket.Patch = a.patch
	a.socket.Binary = func(kind wire.Kind, frame []byte) {
		if f := a.frames[kind]; f != nil {
			if err := f(frame); err != nil {
				dom.Crashed("frame: " + err.Error())
			}
		}
	}
	a.socket.State = a.showLink
	a.socket.Welcome = func(w wire.Welcome, again bool) {
		a.shape, a.context = w.Shape, w.Context
		if w.Model != "" && dom.Is(dom.Find(dom.Document, "[data-loading]")) {
			js.Global().Get("location").Call("reload") // the model is here: the page can be shown with what it says
			return
		}
		for _, f := range a.opened {
			f(again)
		}
	}
	beat := dom.Func(func([]js.Value) { a.socket.Beat() })
	js.Global().Call("setInterval", beat, 20000)
	dom.On(dom.Window, "online", func(js.Value) { a.socket.Retry() })
	dom.On(dom.Document, "visibilitychange", func(js.Value) {
		if !dom.Document.Get("hidden").Bool() {
			a.socket.Retry()
		}
	})
	a.socket.Connect()
	dom.Flag(dom.Document.Get("documentElement"), "data-live", true)
}

// showLink shows the state of the connection in the side bar's foot.
func (a *app) showLink(state socket.State) {
	dot := dom.ID("link")
	if !dom.Is(dot) {
		return
	}
	dom.SetAttr(dot, "data-state", string(state))
	dot.Set("title", map[socket.State]string{socket.Open: "Connected", socket.Connecting: "Connecting", socket.Closed: "Not connected"}[state])
	if state == socket.Closed {
		if fail := js.Global().Get("coveyFail"); fail.Type() == js.TypeFunction {
			fail.Invoke("This page is no longer signed in. Open the link that Covey printed, or")
		}
	}
}

// patch applies a text frame to the document.
func (a *app) patch(p wire.Patch) {
	if p.Op == wire.Title {
		dom.Document.Set("title", p.HTML)
		return
	}
	if p.Op == wire.Block || p.Op == wire.Fold {
		if a.chat != nil {
			a.chat.patch(p)
		}
		return
	}
	el := dom.ID(p.Target)
	if !dom.Is(el) {
		return
	}
	switch p.Op {
	case wire.Replace:
		el.Set("outerHTML", p.HTML)
	case wire.Inner:
		el.Set("innerHTML", p.HTML)
	case wire.Append:
		// What the page was rendered with already is not added again.
		box := dom.New("template", "", "")
		box.Set("innerHTML", p.HTML)
		content := box.Get("content")
		for _, child := range dom.All(content, "[id]") {
			if child.Get("parentNode").Equal(content) && dom.Is(dom.ID(child.Get("id").String())) {
				child.Call("remove")
			}
		}
		el.Call("append", content)
	case wire.Prepend:
		el.Call("insertAdjacentHTML", "afterbegin", p.HTML)
	case wire.Discard:
		el.Call("remove")
	}
	if a.chat != nil {
		a.chat.patched(p.Target)
	}
}
