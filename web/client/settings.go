//go:build js && wasm

package main

import (
	"strconv"
	"strings"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/wire"
)

// startSettings makes a form of settings live: a conversation's dialog, or the settings page. An empty field means the
// default.
func (a *app) startSettings() {
	form := dom.ID("settings-form")
	dialog := dom.ID("settings-dialog") // null on the settings page
	mark := func(field js.Value) {
		value, standard := dom.Find(field, "input").Get("value").String(), dom.Attr(field, "data-default")
		dom.Flag(field, "data-changed", value != "" && value != standard)
	}
	fields := func() []js.Value { return dom.All(form, "[data-setting]") }
	reset := func(field js.Value) {
		dom.Find(field, "input").Set("value", "")
		mark(field)
	}
	a.actions["settings"] = func(_, _ js.Value) { dialog.Call("showModal") }
	a.inputs["setting"] = func(el, _ js.Value) { mark(dom.Closest(el, "[data-setting]")) }
	a.actions["reset-setting"] = func(el, _ js.Value) { reset(dom.Closest(el, "[data-setting]")) }
	a.actions["reset-settings"] = func(_, _ js.Value) {
		for _, f := range fields() {
			reset(f)
		}
	}
	a.actions["save-settings"] = func(_, _ js.Value) {
		if !form.Call("reportValidity").Bool() {
			return
		}
		target := dom.Attr(form, "data-target")
		if a.chat != nil {
			target = a.chat.conversation
		}
		system := dom.Find(form, `[name="system"]`).Get("value").String()
		args := []string{target, "system", system}
		changed := 0
		if strings.TrimSpace(system) != "" {
			changed++
		}
		for _, f := range fields() {
			value := dom.Find(f, "input").Get("value").String()
			args = append(args, dom.Attr(f, "data-setting"), value)
			if value != "" && value != dom.Attr(f, "data-default") {
				changed++
			}
		}
		a.socket.Send(a.orFail(func(ack wire.Ack) {
			if a.chat == nil {
				a.toast("Saved. New conversations start with it.", "", nil)
				return
			}
			a.chat.setConversation(ack.Arg(0))
			badge := dom.ID("changed")
			dom.SetText(badge, strconv.Itoa(changed))
			dom.Hide(badge, changed == 0)
			dialog.Call("close")
		}), wire.Settings, args...)
	}
	dom.On(form, "submit", func(e js.Value) {
		if dom.Is(dialog) && dom.Attr(e.Get("submitter"), "value") == "cancel" {
			return // closes the dialog
		}
		e.Call("preventDefault") // Enter in a field saves
		a.actions["save-settings"](js.Null(), e)
	})
}
