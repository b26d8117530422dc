//go:build js && wasm

package main

import (
	"strconv"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/wire"
)

// maxProbeFile is what a text box still holds, in bytes; the daemon takes four times as much, because forms escape.
const maxProbeFile = 16 << 20

// startJobs follows the probe batches, and sends the form of a new one with the page token in a header: the texts may be
// larger than what the daemon reads of a form for its token.
func (a *app) startJobs() {
	a.opened = append(a.opened, func(again bool) {
		a.socket.Send(a.orFail(func(wire.Ack) {
			if again {
				js.Global().Get("location").Call("reload") // what changed meanwhile is not known
			}
		}), wire.FollowJobs)
	})
	a.actions["job-file"] = func(_, _ js.Value) { dom.ID("job-file").Call("click") }
	a.changes["job-file"] = func(el, _ js.Value) {
		file := el.Get("files").Index(0)
		if !file.Truthy() {
			return
		}
		if n := file.Get("size").Int(); n > maxProbeFile {
			a.toast("The file has "+strconv.Itoa(n>>20)+" MiB, this page takes "+strconv.Itoa(maxProbeFile>>20)+". covey atlas run --probes reads larger sets; import its atlas.", "", nil)
			el.Set("value", "")
			return
		}
		form := dom.ID("job-form")
		then(file.Call("text"), func(text js.Value) {
			dom.Find(form, "textarea").Set("value", text)
			dom.Find(form, `input[value="own"]`).Set("checked", true)
			el.Set("value", "")
		}, func() { a.toast("The file could not be read.", "", nil) })
	}
	dom.On(dom.Document, "input", func(e js.Value) {
		if form := dom.Closest(e.Get("target"), "#job-form"); dom.Is(form) && dom.Attr(e.Get("target"), "name") == "text" {
			dom.Find(form, `input[value="own"]`).Set("checked", true)
		}
	})
	dom.On(dom.Document, "submit", func(e js.Value) {
		form := e.Get("target")
		if dom.Attr(form, "id") != "job-form" {
			return
		}
		e.Call("preventDefault")
		data := js.Global().Get("FormData").New(form, e.Get("submitter"))
		a.post(dom.Attr(form, "action"), js.Global().Get("URLSearchParams").New(data))
	})
}

// startAtlases lets files be imported.
func (a *app) startAtlases() {
	a.actions["import-atlas"] = func(_, _ js.Value) { dom.ID("atlas-file").Call("click") }
	a.changes["atlas-file"] = func(el, _ js.Value) {
		file := el.Get("files").Index(0)
		if !file.Truthy() {
			return
		}
		name := js.Global().Call("encodeURIComponent", file.Get("name")).String()
		el.Call("removeAttribute", "value")
		a.post("/atlas/import?name="+name, file)
	}
}

// post sends a body with the page token and shows the page that answers. Where the answer is a redirect the browser goes
// there; a page that refuses something replaces this one.
func (a *app) post(address string, body js.Value) {
	headers := js.Global().Get("Object").New()
	headers.Set("X-Covey-Page", dom.Attr(dom.Find(dom.Document, `meta[name="covey-page"]`), "content"))
	headers.Set("Accept", "text/html")
	options := js.Global().Get("Object").New()
	options.Set("method", "POST")
	options.Set("headers", headers)
	options.Set("body", body)
	failed := func() { a.toast("Covey could not be reached.", "", nil) }
	then(js.Global().Call("fetch", address, options), func(answer js.Value) {
		if answer.Get("redirected").Bool() {
			location := js.Global().Get("location")
			before := location.Get("pathname").String()
			location.Set("href", answer.Get("url"))
			if location.Get("pathname").String() == before {
				location.Call("reload")
			}
			return
		}
		then(answer.Call("text"), func(text js.Value) {
			page := js.Global().Get("DOMParser").New().Call("parseFromString", text, "text/html")
			main := page.Call("querySelector", "main")
			if main.Truthy() {
				dom.ID("main").Set("innerHTML", main.Get("innerHTML"))
				if problem := dom.Find(dom.ID("main"), ".problem, .well, .notes"); dom.Is(problem) {
					problem.Call("scrollIntoView", map[string]any{"block": "center"})
				}
			}
		}, failed)
	}, failed)
}

// then runs done with what a promise gives, or failed.
func then(promise js.Value, done func(js.Value), failed func()) {
	var ok, bad js.Func
	release := func() { ok.Release(); bad.Release() }
	ok = dom.Func(func(args []js.Value) { release(); done(args[0]) })
	bad = dom.Func(func([]js.Value) { release(); failed() })
	promise.Call("then", ok, bad)
}
