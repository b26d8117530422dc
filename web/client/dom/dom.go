//go:build js && wasm

// Package dom is the little that the client needs of the browser's document: finding, changing and listening.
//
// Every callback runs through one wrapper that recovers: a panic in a callback would otherwise end the whole client.
// Listeners are set once at the start, on the document, and find their element by data attributes (event delegation), so
// nothing is released and nothing leaks. Callbacks run on the browser's event loop and must not block.
package dom

import (
	"runtime"
	"syscall/js"
)

// Document and Window are the page's.
var (
	Document = js.Global().Get("document")
	Window   = js.Global()
)

// Crashed is called with the text of a panic that a callback caused.
var Crashed = func(trace string) { js.Global().Get("console").Call("error", trace) }

// Guard runs f and reports a panic instead of passing it on.
func Guard(f func()) {
	defer func() {
		if v := recover(); v != nil {
			Crashed(panicText(v) + "\n" + stack())
		}
	}()
	f()
}

func panicText(v any) string {
	switch v := v.(type) {
	case error:
		return v.Error()
	case string:
		return v
	}
	return "panic"
}

// Func makes a JavaScript function of f, for listeners that live as long as the page.
func Func(f func(args []js.Value)) js.Func {
	return js.FuncOf(func(_ js.Value, args []js.Value) any {
		Guard(func() { f(args) })
		return nil
	})
}

// On listens for an event as long as the page lives.
func On(target js.Value, event string, f func(event js.Value)) {
	target.Call("addEventListener", event, Func(func(args []js.Value) { f(args[0]) }))
}

// OnPassive is On for scroll and touch events that are never cancelled.
func OnPassive(target js.Value, event string, f func(event js.Value)) {
	options := js.Global().Get("Object").New()
	options.Set("passive", true)
	options.Set("capture", true)
	target.Call("addEventListener", event, Func(func(args []js.Value) { f(args[0]) }), options)
}

// After calls f once after some milliseconds and returns what Clear takes.
func After(ms int, f func()) js.Value {
	var fn js.Func
	fn = js.FuncOf(func(js.Value, []js.Value) any {
		fn.Release()
		Guard(f)
		return nil
	})
	return js.Global().Call("setTimeout", fn, ms)
}

// Clear forgets a timer of After that has not fired. Its callback stays allocated: use it rarely.
func Clear(timer js.Value) { js.Global().Call("clearTimeout", timer) }

// Frames calls f before each next paint for which Request was called, once however often that was.
type Frames struct {
	fn      js.Func
	pending bool
}

// NewFrames returns a Frames for f.
func NewFrames(f func()) *Frames {
	frames := &Frames{}
	frames.fn = Func(func([]js.Value) {
		frames.pending = false
		f()
	})
	return frames
}

// Request asks for a call before the next paint.
func (f *Frames) Request() {
	if !f.pending {
		f.pending = true
		js.Global().Call("requestAnimationFrame", f.fn)
	}
}

// ID finds an element; the result may be null (see Is).
func ID(id string) js.Value { return Document.Call("getElementById", id) }

// Is says whether v is an element.
func Is(v js.Value) bool { return v.Truthy() }

// Find returns the first match inside root; may be null.
func Find(root js.Value, selector string) js.Value { return root.Call("querySelector", selector) }

// All returns the matches inside root.
func All(root js.Value, selector string) []js.Value {
	list := root.Call("querySelectorAll", selector)
	out := make([]js.Value, list.Length())
	for i := range out {
		out[i] = list.Index(i)
	}
	return out
}

// Closest walks up from v (which may be a text node's parent or null) to the first match; may be null.
func Closest(v js.Value, selector string) js.Value {
	if !v.Truthy() || v.Get("closest").Type() != js.TypeFunction {
		return js.Null()
	}
	return v.Call("closest", selector)
}

// Attr reads an attribute; "" if it is missing.
func Attr(v js.Value, name string) string {
	if a := v.Call("getAttribute", name); a.Type() == js.TypeString {
		return a.String()
	}
	return ""
}

// SetAttr sets an attribute.
func SetAttr(v js.Value, name, value string) { v.Call("setAttribute", name, value) }

// Has says whether an attribute is there.
func Has(v js.Value, name string) bool { return v.Call("hasAttribute", name).Bool() }

// Flag sets or removes an attribute without a value.
func Flag(v js.Value, name string, on bool) { v.Call("toggleAttribute", name, on) }

// Text reads the text of an element.
func Text(v js.Value) string { return v.Get("textContent").String() }

// SetText replaces the content of an element by text.
func SetText(v js.Value, text string) { v.Set("textContent", text) }

// Hide sets or clears hidden.
func Hide(v js.Value, hidden bool) {
	if v.Truthy() {
		v.Set("hidden", hidden)
	}
}

// New makes an element with a class and text; either may be "".
func New(tag, class, text string) js.Value {
	v := Document.Call("createElement", tag)
	if class != "" {
		v.Set("className", class)
	}
	if text != "" {
		v.Set("textContent", text)
	}
	return v
}

// Style sets a CSS property through the object model, which the content policy allows.
func Style(v js.Value, name, value string) { v.Get("style").Call("setProperty", name, value) }

// Focus moves the focus without scrolling.
func Focus(v js.Value) {
	if !v.Truthy() {
		return
	}
	options := js.Global().Get("Object").New()
	options.Set("preventScroll", true)
	v.Call("focus", options)
}

// Media says whether a media query matches.
func Media(query string) bool { return Window.Call("matchMedia", query).Get("matches").Bool() }

// Stored reads a value that this browser keeps; "" if there is none or storage is off.
func Stored(key string) (value string) {
	defer func() { _ = recover() }() // storage may be forbidden
	if v := js.Global().Get("localStorage").Call("getItem", key); v.Type() == js.TypeString {
		return v.String()
	}
	return ""
}

// Store keeps a value in this browser; "" removes it.
func Store(key, value string) {
	defer func() { _ = recover() }() // storage may be forbidden or full
	if value == "" {
		js.Global().Get("localStorage").Call("removeItem", key)
		return
	}
	js.Global().Get("localStorage").Call("setItem", key, value)
}

// stack is the trace of the panic in hand. (runtime/debug would do it too, at the price of fmt and os: 90 KB.)
func stack() string {
	b := make([]byte, 8<<10)
	return string(b[:runtime.Stack(b, false)])
}
