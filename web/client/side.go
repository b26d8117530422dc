//go:build js && wasm

package main

import (
	"strconv"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/wire"
)

// startSide makes the frame live: side bar, conversation list, menus, dialogs, and the keys that work everywhere.
func (a *app) startSide() {
	var chosen string // conversation that the open menu or dialog is about
	search := dom.ID("search")

	find := debounced(150, func() {
		a.socket.Send(a.orFail(nil), wire.Search, search.Get("value").String())
	})
	a.inputs["search"] = func(_, _ js.Value) { find() }

	a.actions["item-menu"] = func(el, _ js.Value) {
		chosen = dom.Attr(el, "data-conversation")
		menu := dom.ID("item-menu")
		label := "Pin"
		if dom.Is(dom.Closest(el, "[data-pinned]")) {
			label = "Unpin"
		}
		dom.SetText(dom.Find(menu, "[data-pin-label]"), label)
		openMenu(menu, el, chosen)
	}
	a.actions["export-menu"] = func(el, _ js.Value) {
		openMenu(dom.ID("export-menu"), el, dom.Attr(dom.ID("chat"), "data-conversation"))
	}
	a.actions["pin"] = func(el, _ js.Value) {
		closeMenus()
		on := "1"
		if dom.Text(dom.Find(el, "[data-pin-label]")) == "Unpin" {
			on = "0"
		}
		a.socket.Send(a.orFail(nil), wire.Pin, chosen, on)
	}
	a.actions["rename"] = func(_, _ js.Value) {
		closeMenus()
		dialog := dom.ID("rename-dialog")
		name := ""
		if item := dom.ID("c-" + chosen); dom.Is(item) {
			name = dom.Text(dom.Find(item, ".item-name"))
		}
		input := dom.Find(dialog, "input")
		input.Set("value", name)
		dialog.Call("showModal")
		input.Call("select")
	}
	saveName := func() {
		dialog := dom.ID("rename-dialog")
		a.socket.Send(a.orFail(func(wire.Ack) { dialog.Call("close") }), wire.Rename, chosen, dom.Find(dialog, "input").Get("value").String())
	}
	a.actions["save-rename"] = func(_, _ js.Value) { saveName() }
	a.actions["delete"] = func(_, _ js.Value) { closeMenus(); a.deleteConversation(chosen) }
	a.actions["import"] = func(_, _ js.Value) { dom.ID("import-file").Call("click") }
	a.changes["import-file"] = func(el, _ js.Value) { a.importFile(el) }
	a.actions["copy-code"] = func(el, _ js.Value) {
		copyText(dom.Text(dom.Find(dom.Closest(el, "figure"), "pre")), el)
	}
	a.actions["side-toggle"] = func(_, _ js.Value) { toggleSide() }
	dom.On(dom.Document, "click", func(e js.Value) {
		// A menu's link has been followed: the menu has done its work.
		if dom.Is(dom.Closest(e.Get("target"), ".menu a")) {
			closeMenus()
		}
	})

	if dom.Stored("covey.side") == "off" {
		dom.Find(dom.Document, ".app").Get("classList").Call("add", "side-off")
	}

	a.keys = append(a.keys, func(e js.Value) bool {
		switch k := key(e); k {
		case "Enter":
			if dom.Is(dom.Closest(e.Get("target"), "#rename-dialog")) && !dom.Is(dom.Closest(e.Get("target"), "button")) {
				saveName()
				return true
			}
		case "Ctrl+K":
			if dom.Is(search) {
				showSide()
				search.Call("focus")
				search.Call("select")
				return true
			}
		case "Ctrl+Shift+O":
			js.Global().Get("location").Set("href", "/")
			return true
		case "Ctrl+B":
			toggleSide()
			return true
		case "?":
			if !typing(e) && !modal() {
				dom.ID("shortcuts").Call("showModal")
				return true
			}
		case "Escape":
			if dom.Is(search) && dom.Document.Get("activeElement").Equal(search) {
				search.Set("value", "")
				find()
				search.Call("blur")
				return true
			}
		}
		return false
	})
}

// orFail is an answer handler that shows a refusal and passes success on; then may be nil.
func (a *app) orFail(then func(wire.Ack)) func(wire.Ack, *wire.Failure) {
	return func(ack wire.Ack, f *wire.Failure) {
		if f != nil {
			a.failed(f)
		} else if then != nil {
			then(ack)
		}
	}
}

// openMenu opens a menu below a button, inside the window, about a conversation.
func openMenu(menu, button js.Value, conversation string) {
	for _, link := range dom.All(menu, "[data-href-json]") {
		link.Set("href", "/c/"+conversation+"/export.json")
	}
	for _, link := range dom.All(menu, "[data-href-markdown]") {
		link.Set("href", "/c/"+conversation+"/export.md")
	}
	menu.Call("showPopover")
	at := button.Call("getBoundingClientRect")
	size := menu.Call("getBoundingClientRect")
	width, height := js.Global().Get("innerWidth").Float(), js.Global().Get("innerHeight").Float()
	left := min(at.Get("left").Float(), width-size.Get("width").Float()-8)
	top := at.Get("bottom").Float() + 4
	if top+size.Get("height").Float() > height-8 {
		top = at.Get("top").Float() - size.Get("height").Float() - 4
	}
	dom.Style(menu, "left", pixels(max(left, 8)))
	dom.Style(menu, "top", pixels(max(top, 8)))
	dom.Focus(dom.Find(menu, `[role="menuitem"]`))
}

func pixels(v float64) string { return strconv.Itoa(int(v)) + "px" }

func closeMenus() {
	for _, menu := range dom.All(dom.Document, ".menu:popover-open") {
		menu.Call("hidePopover")
	}
}

func narrow() bool { return dom.Media("(max-width: 860px)") }

func showSide() {
	side := dom.ID("side")
	if narrow() {
		if !side.Call("matches", ":popover-open").Bool() {
			side.Call("showPopover")
		}
		return
	}
	dom.Find(dom.Document, ".app").Get("classList").Call("remove", "side-off")
	dom.Store("covey.side", "")
}

func toggleSide() {
	if narrow() {
		dom.ID("side").Call("togglePopover")
		return
	}
	if dom.Find(dom.Document, ".app").Get("classList").Call("toggle", "side-off").Bool() {
		dom.Store("covey.side", "off")
	} else {
		dom.Store("covey.side", "")
	}
}

// deleteConversation deletes and offers to undo it, on the next page if this one showed it.
func (a *app) deleteConversation(id string) {
	if id == "" {
		return
	}
	a.socket.Send(a.orFail(func(wire.Ack) {
		if a.chat != nil && a.chat.conversation == id {
			keepForSession("covey.undo", id)
			js.Global().Get("location").Set("href", "/")
			return
		}
		a.offerUndo(id)
	}), wire.Delete, id)
}

func (a *app) offerUndo(id string) {
	a.toast("Conversation deleted.", "Undo", func() {
		a.socket.Send(a.orFail(nil), wire.Restore, id)
	})
}

// importFile sends a chosen file to the daemon.
func (a *app) importFile(input js.Value) {
	files := input.Get("files")
	if files.Length() == 0 {
		return
	}
	options := js.Global().Get("Object").New()
	options.Set("method", "POST")
	options.Set("body", files.Index(0))
	headers := js.Global().Get("Object").New()
	headers.Set("X-Covey-Page", dom.Attr(dom.Find(dom.Document, `meta[name="covey-page"]`), "content"))
	headers.Set("Content-Type", "application/json")
	options.Set("headers", headers)
	input.Set("value", "")
	failed := dom.Func(func([]js.Value) { a.toast("The file could not be sent.", "", nil) })
	done := dom.Func(func(args []js.Value) {
		body := args[0]
		if n := body.Get("imported"); n.Type() == js.TypeNumber {
			a.toast(plural(n.Int(), "conversation")+" imported.", "", nil)
			return
		}
		if e := body.Get("error"); e.Truthy() {
			a.toast(sentence(e.Get("message").String()), "", nil)
		}
	})
	answered := js.FuncOf(func(_ js.Value, args []js.Value) any { return args[0].Call("json") })
	js.Global().Call("fetch", "/import", options).Call("then", answered).Call("then", done).Call("catch", failed)
}

// debounced calls f once, some milliseconds after the last of several calls.
func debounced(ms int, f func()) func() {
	calls := 0
	return func() {
		calls++
		mine := calls
		dom.After(ms, func() {
			if mine == calls {
				f()
			}
		})
	}
}
