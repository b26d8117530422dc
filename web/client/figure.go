//go:build js && wasm

package main

import (
	"strings"
	"syscall/js"

	"covey/web/client/dom"
)

// figureScale is how many pixels of a saved figure a unit of its drawing has.
const figureScale = 2

// figureStyles are the properties that a figure's colours and letters come from.
var figureStyles = []string{"fill", "opacity", "stroke", "stroke-width", "font-size", "font-family", "text-anchor"}

// startFigures lets figures be saved as pictures: a copy of the SVG with its style written out is drawn into a canvas.
func (a *app) startFigures() {
	a.actions["figure-png"] = func(el, _ js.Value) {
		figure := dom.ID(dom.Attr(el, "data-figure"))
		if !dom.Is(figure) {
			return
		}
		box := figure.Get("viewBox").Get("baseVal")
		width, height := box.Get("width").Float()*figureScale, box.Get("height").Float()*figureScale
		copied := figure.Call("cloneNode", true)
		from, to := dom.All(figure, "*"), dom.All(copied, "*")
		for i := range from {
			style := js.Global().Call("getComputedStyle", from[i])
			for _, name := range figureStyles {
				dom.SetAttr(to[i], name, style.Call("getPropertyValue", name).String())
			}
		}
		dom.SetAttr(copied, "xmlns", "http://www.w3.org/2000/svg")
		copied.Call("setAttribute", "width", width)
		copied.Call("setAttribute", "height", height)
		text := js.Global().Get("XMLSerializer").New().Call("serializeToString", copied)
		picture := js.Global().Get("Image").New()
		ground := js.Global().Call("getComputedStyle", dom.Document.Get("body")).Get("backgroundColor")
		name := "covey-" + strings.TrimSpace(dom.Attr(el, "data-name")) + ".png"
		dom.On(picture, "load", func(js.Value) {
			canvas := dom.Document.Call("createElement", "canvas")
			canvas.Set("width", width)
			canvas.Set("height", height)
			c := canvas.Call("getContext", "2d")
			c.Set("fillStyle", ground)
			c.Call("fillRect", 0, 0, width, height)
			c.Call("drawImage", picture, 0, 0, width, height)
			url := canvas.Call("toDataURL", "image/png")
			dom.SetAttr(el, "data-saved", name)
			save(url, name)
		})
		dom.On(picture, "error", func(js.Value) { a.toast("The figure could not be drawn.", "", nil) })
		picture.Set("src", "data:image/svg+xml;charset=utf-8,"+js.Global().Call("encodeURIComponent", text).String())
	}
}
