//go:build js && wasm

package main

import (
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/wire"
)

const toastLife = 8000 // milliseconds

// startToasts shows failures that belong to no command.
func (a *app) startToasts() {
	a.frames[wire.KindFailure] = func(frame []byte) error {
		f, err := wire.DecodeFailure(frame)
		if err == nil {
			a.failed(&f)
		}
		return err
	}
	a.actions["toast-close"] = func(el, _ js.Value) { dom.Closest(el, ".toast").Call("remove") }
	if id := session("covey.undo"); id != "" {
		keepForSession("covey.undo", "")
		a.offerUndo(id)
	}
}

// toast shows a note for some seconds, with a button if label is given.
func (a *app) toast(text, label string, do func()) {
	box := dom.New("div", "toast", "")
	box.Call("append", dom.New("span", "toast-text", text))
	if label != "" {
		button := dom.New("button", "small", label)
		button.Set("type", "button")
		var fn js.Func
		fn = js.FuncOf(func(js.Value, []js.Value) any {
			fn.Release()
			box.Call("remove")
			dom.Guard(do)
			return nil
		})
		button.Set("onclick", fn)
		box.Call("append", button)
	}
	shut := dom.New("button", "quiet small", "\u00d7")
	shut.Set("type", "button")
	dom.SetAttr(shut, "data-action", "toast-close")
	dom.SetAttr(shut, "aria-label", "Close")
	box.Call("append", shut)
	dom.ID("toasts").Call("append", box)
	dom.After(toastLife, func() { box.Call("remove") })
}

// failed shows a refusal.
func (a *app) failed(f *wire.Failure) {
	text := sentence(f.Message)
	if f.Hint != "" {
		text += " " + sentence(f.Hint)
	}
	a.toast(text, "", nil)
}

// sentence gives an error text its capital and full stop.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	b := []byte(s)
	if b[0] >= 'a' && b[0] <= 'z' {
		b[0] -= 'a' - 'A'
	}
	switch b[len(b)-1] {
	case '.', '!', '?':
	default:
		b = append(b, '.')
	}
	return string(b)
}

// session and keepForSession are notes that outlive a page of this tab.
func session(key string) (value string) {
	defer func() { _ = recover() }() // storage may be forbidden
	if v := js.Global().Get("sessionStorage").Call("getItem", key); v.Type() == js.TypeString {
		value = v.String()
	}
	return value
}

func keepForSession(key, value string) {
	defer func() { _ = recover() }() // storage may be forbidden
	if value == "" {
		js.Global().Get("sessionStorage").Call("removeItem", key)
		return
	}
	js.Global().Get("sessionStorage").Call("setItem", key, value)
}
