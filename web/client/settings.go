//go:build js && wasm

package main

import (
	"strconv"
	"strings"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/wire"
)

// startSettings makes the conversation's settings dialog live. An empty field means the model's default.
func (a *app) startSettings() {
	dialog := dom.ID("settings-dialog")
	mark := func(field js.Value) {
		value, standard := dom.Find(field, "input").Get("value").String(), dom.Attr(field, "data-default")
		dom.Flag(field, "data-changed", value != "" && value != standard)
	}
	fields := func() []js.Value { return dom.All(dialog, "[data-setting]") }
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
		if !dom.ID("settings-form").Call("reportValidity").Bool() {
			return
		}
		system := dom.Find(dialog, `[name="system"]`).Get("value").String()
		args := []string{a.chat.conversation, "system", system}
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
			a.chat.setConversation(ack.Arg(0))
			badge := dom.ID("changed")
			dom.SetText(badge, strconv.Itoa(changed))
			dom.Hide(badge, changed == 0)
			dialog.Call("close")
		}), wire.Settings, args...)
	}
}
