//go:build js && wasm

package main

import (
	"syscall/js"

	"covey/web/client/dom"
)

// listen sets the page's listeners: one an event type, on the document.
func (a *app) listen() {
	delegate := func(event, attribute string, table map[string]func(el, event js.Value)) {
		dom.On(dom.Document, event, func(e js.Value) {
			el := dom.Closest(e.Get("target"), "["+attribute+"]")
			if !dom.Is(el) || el.Get("disabled").Truthy() {
				return
			}
			if f := table[dom.Attr(el, attribute)]; f != nil {
				f(el, e)
			}
		})
	}
	delegate("click", "data-action", a.actions)
	delegate("input", "data-input", a.inputs)
	delegate("change", "data-change", a.changes)
	dom.On(dom.Document, "keydown", func(e js.Value) {
		if e.Get("isComposing").Truthy() || e.Get("keyCode").Int() == 229 {
			return // an input method is composing a character
		}
		for _, f := range a.keys {
			if f(e) {
				e.Call("preventDefault")
				return
			}
		}
	})
}

// key describes a key event: "Ctrl+Shift+O", "Escape", "?"; letters in upper case. Meta counts as Ctrl.
func key(e js.Value) string {
	name := e.Get("key")
	if name.Type() != js.TypeString {
		return ""
	}
	k := name.String()
	letter := len(k) == 1 && k[0] >= 'a' && k[0] <= 'z'
	if letter {
		k = string(k[0] - 'a' + 'A')
	}
	letter = letter || len(k) == 1 && k[0] >= 'A' && k[0] <= 'Z'
	if e.Get("shiftKey").Bool() && (letter || len(k) > 1) {
		k = "Shift+" + k
	}
	if e.Get("altKey").Bool() {
		k = "Alt+" + k
	}
	if e.Get("ctrlKey").Bool() || e.Get("metaKey").Bool() {
		k = "Ctrl+" + k
	}
	return k
}

// typing says whether keys belong to a text field.
func typing(e js.Value) bool {
	return dom.Is(dom.Closest(e.Get("target"), "input, textarea, select, [contenteditable]"))
}

// modal says whether a dialog has the page.
func modal() bool { return dom.Is(dom.Find(dom.Document, "dialog[open]")) }
