//go:build js && wasm

package main

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"syscall/js"

	"covey/web/client/dom"
	"covey/web/client/mapview"
)

// renderer draws the grid into a canvas. Two exist: WebGL2, where one shader draws cells, hatching and fading pulses
// from two textures, and a 2D canvas for browsers without it.
type renderer interface {
	name() string
	scale(ratio float64)                            // device pixels a CSS pixel
	fit(cols, rows int)                             // the grid's size; forgets pulses
	upload(pixels []byte)                           // RGBA a cell; alpha as mapview.Layout.Pixels says
	pulse(places []int, now float64)                // lights places; they fade
	hold(places []int)                              // lights these places alone, until the next hold
	draw(v *mapview.View, now float64, c mapColors) // one frame
}

// mapColors are the theme's colours that drawing needs, 0..255.
type mapColors struct{ ground, hatch, pulse [3]byte }

// held is the pulse time of a cell that does not fade.
const held = 1e9

// newRenderer takes WebGL2 where it is fast: a shader that the processor runs costs a hundred times what the plain canvas
// does. The address of the page may ask for it all the same (?renderer=webgl2), for tests and reports of faults.
func newRenderer(canvas js.Value) renderer {
	options := js.Global().Get("Object").New()
	options.Set("antialias", false)
	options.Set("premultipliedAlpha", true)
	wanted := strings.Contains(js.Global().Get("location").Get("search").String(), "renderer=webgl2")
	if gl := canvas.Call("getContext", "webgl2", options); gl.Truthy() {
		if wanted || !software(gl) {
			if r := newGL(gl); r != nil {
				return r
			}
		}
		// A context of one kind bars the other: go on with a fresh canvas.
		fresh := canvas.Call("cloneNode", false)
		canvas.Call("replaceWith", fresh)
		canvas = fresh
	}
	return &flat{context: canvas.Call("getContext", "2d"), canvas: canvas, small: dom.Document.Call("createElement", "canvas")}
}

// software says whether the processor runs the shaders. failIfMajorPerformanceCaveat does not tell: Chromium answers with
// SwiftShader all the same.
func software(gl js.Value) bool {
	info := gl.Call("getExtension", "WEBGL_debug_renderer_info")
	if !info.Truthy() {
		return false
	}
	name := strings.ToLower(gl.Call("getParameter", info.Get("UNMASKED_RENDERER_WEBGL")).String())
	return strings.Contains(name, "swiftshader") || strings.Contains(name, "llvmpipe") || strings.Contains(name, "software")
}

const vertexSource = `#version 300 es
void main() { gl_Position = vec4(vec2((gl_VertexID << 1) & 2, gl_VertexID & 2) * 2.0 - 1.0, 0.0, 1.0); }`

const fragmentSource = `#version 300 es
precision highp float;
uniform sampler2D cells, pulses;
uniform vec2 origin, grid, ruler;
uniform float height, cell, now, fades;
uniform vec3 ground, hatch, flash;
out vec4 color;
void main() {
  vec2 p = vec2(gl_FragCoord.x, height - gl_FragCoord.y);
  vec2 g = (p - origin) / cell;
  color = vec4(0.0);
  if (any(lessThan(p, ruler)) || any(lessThan(g, vec2(0.0))) || any(greaterThanEqual(g, grid))) return;
  ivec2 at = ivec2(g);
  vec2 inside = fract(g) * cell;
  float gap = cell >= 12.0 ? 2.0 : cell >= 5.0 ? 1.0 : 0.0;
  if (inside.x >= cell - gap || inside.y >= cell - gap) return;
  vec4 c = texelFetch(cells, at, 0);
  vec3 rgb = c.a == 0.0 ? (mod(p.x + p.y, 7.0) < 2.0 ? hatch : ground) : mix(ground, c.rgb, c.a < 0.5 ? 0.16 : 1.0);
  float age = now - texelFetch(pulses, at, 0).r;
  float glow = age < 0.0 ? 1.0 : exp(-5.0 * age) * fades;
  // Large cells keep their colour around the pulse.
  float dot = cell < 8.0 ? 1.0 : 1.0 - smoothstep(0.24 * cell, 0.24 * cell + 1.5, distance(inside, vec2(0.5 * (cell - gap))));
  color = vec4(mix(rgb, flash, glow * dot), 1.0);
}`

// glMap is the WebGL2 renderer. A frame is one draw call of one triangle; a pulse uploads 4 bytes a cell.
type glMap struct {
	gl             js.Value
	program        js.Value
	cells, pulses  js.Value
	uniforms       map[string]js.Value
	cols, rows     int
	ratio          float64
	times          []float32
	raw            []byte   // times as bytes
	bytes, staging js.Value // Uint8Array for pixels; Uint8Array over the memory of floats
	floats         js.Value
}

func newGL(gl js.Value) *glMap {
	r := &glMap{gl: gl, ratio: 1, uniforms: map[string]js.Value{}}
	r.program = gl.Call("createProgram")
	for kind, source := range map[string]string{"VERTEX_SHADER": vertexSource, "FRAGMENT_SHADER": fragmentSource} {
		shader := gl.Call("createShader", gl.Get(kind))
		gl.Call("shaderSource", shader, source)
		gl.Call("compileShader", shader)
		gl.Call("attachShader", r.program, shader)
	}
	gl.Call("linkProgram", r.program)
	if !gl.Call("getProgramParameter", r.program, gl.Get("LINK_STATUS")).Bool() {
		return nil
	}
	gl.Call("useProgram", r.program)
	for _, name := range []string{"cells", "pulses", "origin", "grid", "ruler", "height", "cell", "now", "fades", "ground", "hatch", "flash"} {
		r.uniforms[name] = gl.Call("getUniformLocation", r.program, name)
	}
	texture := func(unit int, name string) js.Value {
		t := gl.Call("createTexture")
		gl.Call("activeTexture", gl.Get("TEXTURE0").Int()+unit)
		gl.Call("bindTexture", gl.Get("TEXTURE_2D"), t)
		for _, parameter := range []string{"TEXTURE_MIN_FILTER", "TEXTURE_MAG_FILTER"} {
			gl.Call("texParameteri", gl.Get("TEXTURE_2D"), gl.Get(parameter), gl.Get("NEAREST"))
		}
		gl.Call("uniform1i", r.uniforms[name], unit)
		return t
	}
	gl.Call("pixelStorei", gl.Get("UNPACK_ALIGNMENT"), 1)
	r.cells, r.pulses = texture(0, "cells"), texture(1, "pulses")
	return r
}

func (r *glMap) name() string        { return "webgl2" }
func (r *glMap) scale(ratio float64) { r.ratio = ratio }

func (r *glMap) fit(cols, rows int) {
	r.cols, r.rows = cols, rows
	r.bytes = js.Global().Get("Uint8Array").New(4 * cols * rows)
	r.floats = js.Global().Get("Float32Array").New(cols * rows)
	r.staging = js.Global().Get("Uint8Array").New(r.floats.Get("buffer"))
	r.times, r.raw = make([]float32, cols*rows), make([]byte, 4*cols*rows)
	for i := range r.times {
		r.times[i] = -100
	}
	r.sendTimes()
}

func (r *glMap) upload(pixels []byte) {
	js.CopyBytesToJS(r.bytes, pixels)
	gl := r.gl
	gl.Call("activeTexture", gl.Get("TEXTURE0"))
	gl.Call("texImage2D", gl.Get("TEXTURE_2D"), 0, gl.Get("RGBA8"), r.cols, r.rows, 0, gl.Get("RGBA"), gl.Get("UNSIGNED_BYTE"), r.bytes)
}

func (r *glMap) sendTimes() {
	for i, t := range r.times {
		binary.LittleEndian.PutUint32(r.raw[4*i:], math.Float32bits(t))
	}
	js.CopyBytesToJS(r.staging, r.raw)
	gl := r.gl
	gl.Call("activeTexture", gl.Get("TEXTURE1"))
	gl.Call("texImage2D", gl.Get("TEXTURE_2D"), 0, gl.Get("R32F"), r.cols, r.rows, 0, gl.Get("RED"), gl.Get("FLOAT"), r.floats)
}

func (r *glMap) pulse(places []int, now float64) {
	for _, c := range places {
		if c < len(r.times) {
			r.times[c] = float32(now)
		}
	}
	r.sendTimes()
}

func (r *glMap) hold(cells []int) {
	for i := range r.times {
		r.times[i] = -100
	}
	for _, c := range cells {
		if c < len(r.times) {
			r.times[c] = held
		}
	}
	r.sendTimes()
}

func (r *glMap) draw(v *mapview.View, now float64, c mapColors) {
	gl, u, k := r.gl, r.uniforms, r.ratio
	canvas := gl.Get("canvas")
	width, height := canvas.Get("width").Int(), canvas.Get("height").Int()
	gl.Call("viewport", 0, 0, width, height)
	gl.Call("uniform2f", u["origin"], v.Left*k, v.Top*k)
	gl.Call("uniform2f", u["grid"], r.cols, r.rows)
	gl.Call("uniform2f", u["ruler"], v.RulerX*k, v.RulerY*k)
	gl.Call("uniform1f", u["height"], height)
	gl.Call("uniform1f", u["cell"], v.Cell*k)
	gl.Call("uniform1f", u["now"], now)
	fades := 1.0
	if dom.Media("(prefers-reduced-motion: reduce)") {
		fades = 0
	}
	gl.Call("uniform1f", u["fades"], fades)
	color := func(name string, c [3]byte) {
		gl.Call("uniform3f", u[name], float64(c[0])/255, float64(c[1])/255, float64(c[2])/255)
	}
	color("ground", c.ground)
	color("hatch", c.hatch)
	color("flash", c.pulse)
	gl.Call("drawArrays", gl.Get("TRIANGLES"), 0, 3)
}

// flat is the renderer without WebGL: the grid as a small picture, scaled without smoothing. Colours are mixed with the
// theme's when they are made; a frame mixes only the cells that glow.
type flat struct {
	context, canvas, small js.Value
	image, bytes           js.Value
	cols, rows             int
	ratio                  float64
	pixels, shown, mixed   []byte
	theme                  mapColors // that shown and hatching were made for
	hatching               js.Value  // pattern behind cells of which nothing is known
	times                  []float64
}

func (r *flat) name() string        { return "canvas" }
func (r *flat) scale(ratio float64) { r.ratio = ratio }

func (r *flat) fit(cols, rows int) {
	r.cols, r.rows = cols, rows
	r.small.Set("width", cols)
	r.small.Set("height", rows)
	r.image = r.small.Call("getContext", "2d").Call("createImageData", cols, rows)
	r.bytes = js.Global().Get("Uint8Array").New(r.image.Get("data").Get("buffer"))
	r.pixels, r.mixed, r.times = make([]byte, 4*cols*rows), make([]byte, 4*cols*rows), make([]float64, cols*rows)
	r.shown = nil
	r.hold(nil)
}

func (r *flat) upload(pixels []byte) {
	copy(r.pixels, pixels)
	r.shown = nil
}

// show mixes the colours of the legend with the theme's. Cells of which nothing is known stay clear: the hatching is behind.
func (r *flat) show(c mapColors) {
	if !r.hatching.Truthy() || r.theme != c {
		r.hatch(c)
	}
	r.theme, r.shown = c, make([]byte, len(r.pixels))
	mix := func(to []byte, color [3]byte, part int) { // of 100
		for j := range 3 {
			to[j] = byte((int(c.ground[j])*(100-part) + int(color[j])*part) / 100)
		}
		to[3] = 255
	}
	for i := 0; i < len(r.pixels); i += 4 {
		p := [3]byte(r.pixels[i : i+3])
		switch alpha := r.pixels[i+3]; {
		case alpha == 0:
			mix(r.shown[i:], c.hatch, 50) // for a pulse to fade into
			r.shown[i+3] = 0
		case alpha < 128:
			mix(r.shown[i:], p, 16)
		default:
			mix(r.shown[i:], p, 100)
		}
	}
}

// hatch makes the pattern that the shader draws with mod(x + y, 7) < 2.
func (r *flat) hatch(c mapColors) {
	const size = 7
	tile := dom.Document.Call("createElement", "canvas")
	tile.Set("width", size)
	tile.Set("height", size)
	pen := tile.Call("getContext", "2d")
	pen.Set("fillStyle", rgb(c.ground))
	pen.Call("fillRect", 0, 0, size, size)
	pen.Set("fillStyle", rgb(c.hatch))
	for y := range size {
		for x := range size {
			if (x+y)%size < 2 {
				pen.Call("fillRect", x, y, 1, 1)
			}
		}
	}
	r.hatching = r.context.Call("createPattern", tile, "repeat")
}

// rgb is a colour for a style.
func rgb(c [3]byte) string {
	return "rgb(" + strconv.Itoa(int(c[0])) + " " + strconv.Itoa(int(c[1])) + " " + strconv.Itoa(int(c[2])) + ")"
}

func (r *flat) pulse(places []int, now float64) {
	for _, c := range places {
		if c < len(r.times) {
			r.times[c] = now
		}
	}
}

func (r *flat) hold(cells []int) {
	for i := range r.times {
		r.times[i] = -100
	}
	for _, c := range cells {
		if c < len(r.times) {
			r.times[c] = held
		}
	}
}

func (r *flat) draw(v *mapview.View, now float64, c mapColors) {
	if r.shown == nil || r.theme != c {
		r.show(c)
	}
	copy(r.mixed, r.shown)
	fades := !dom.Media("(prefers-reduced-motion: reduce)")
	last, glow := math.NaN(), 0 // cells of one pulse glow alike; of 256
	for i, t := range r.times {
		if t <= now-fadeFor {
			continue
		}
		if t != last {
			switch last = t; {
			case t > now:
				glow = 256
			case fades:
				glow = int(256 * math.Exp(-5*(now-t)))
			default:
				glow = 0
			}
		}
		q := r.mixed[4*i : 4*i+4]
		for j := range 3 {
			q[j] = byte((int(q[j])*(256-glow) + int(c.pulse[j])*glow) >> 8)
		}
		q[3] = max(q[3], byte(min(255, glow)))
	}
	js.CopyBytesToJS(r.bytes, r.mixed)
	r.small.Call("getContext", "2d").Call("putImageData", r.image, 0, 0)
	k := r.ratio
	r.context.Call("clearRect", 0, 0, r.canvas.Get("width"), r.canvas.Get("height"))
	r.context.Set("imageSmoothingEnabled", false)
	r.context.Call("save")
	r.context.Call("beginPath")
	r.context.Call("rect", v.RulerX*k, v.RulerY*k, v.Width*k, v.Height*k)
	r.context.Call("clip")
	left, top, cell := v.Left*k, v.Top*k, v.Cell*k
	width, height := cell*float64(r.cols), cell*float64(r.rows)
	r.context.Set("fillStyle", r.hatching)
	r.context.Call("fillRect", left, top, width, height)
	r.context.Call("drawImage", r.small, left, top, width, height)
	if gap := gapOf(cell); gap > 0 {
		for col := range r.cols {
			r.context.Call("clearRect", left+float64(col+1)*cell-gap, top, gap, height)
		}
		for row := range r.rows {
			r.context.Call("clearRect", left, top+float64(row+1)*cell-gap, width, gap)
		}
	}
	r.context.Call("restore")
}

// gapOf is the room between cells, as the shader leaves it.
func gapOf(cell float64) float64 {
	switch {
	case cell >= 12:
		return 2
	case cell >= 5:
		return 1
	}
	return 0
}

// ink holds the theme's colours as the style sheet has them; empty until read.
type ink struct {
	text, muted, accent string
	colors              mapColors
}

// read takes the colours from the custom properties.
func (m *expertMap) inks() *ink {
	if m.ink.text != "" {
		return &m.ink
	}
	style := js.Global().Call("getComputedStyle", m.page)
	get := func(name string) string {
		return strings.TrimSpace(style.Call("getPropertyValue", name).String())
	}
	m.ink = ink{text: get("--text"), muted: get("--muted"), accent: get("--accent")}
	m.ink.colors = mapColors{ground: hex(get("--panel")), hatch: hex(get("--line-strong")), pulse: hex(get("--pulse"))}
	return &m.ink
}

func (m *expertMap) colors() mapColors { return m.inks().colors }

// hex reads "#rrggbb"; grey when it is something else.
func hex(s string) [3]byte {
	if len(s) == 7 && s[0] == '#' {
		if n, err := strconv.ParseUint(s[1:], 16, 32); err == nil {
			return [3]byte{byte(n >> 16), byte(n >> 8), byte(n)}
		}
	}
	return [3]byte{128, 128, 128}
}

// overlay draws rulers, crosshair, cursor and the pinned cell.
func (m *expertMap) overlay() {
	ratio := max(1, dom.Window.Get("devicePixelRatio").Float())
	c := m.over.Call("getContext", "2d")
	v, pen := &m.view, m.inks()
	c.Call("setTransform", ratio, 0, 0, ratio, 0, 0)
	c.Call("clearRect", 0, 0, v.Width, v.Height)
	c.Set("font", "11px system-ui, sans-serif")
	c.Set("textBaseline", "middle")
	mark := m.hover
	if mark[0] < 0 {
		mark = m.cursor
	}
	label := func(text string, x, y float64, lit bool) {
		c.Set("fillStyle", pen.muted)
		if lit {
			c.Set("fillStyle", pen.text)
		}
		c.Call("fillText", text, x, y)
	}
	c.Set("textAlign", "right")
	for row, every := 0, v.Every(14); row < v.Rows; row++ {
		y := v.Top + (float64(row)+0.5)*v.Cell
		near := mark[0] >= 0 && row != mark[0] && math.Abs(float64(row-mark[0]))*v.Cell < 14
		if (row%every == 0 && !near || row == mark[0]) && y >= v.RulerY && y < v.Height {
			label(strconv.Itoa(m.data.Shape.Layers[row]), v.RulerX-6, y, row == mark[0])
		}
	}
	c.Set("textAlign", "center")
	for col, every := 0, v.Every(22); col < v.Cols && m.order == nil; col++ { // in another order columns are no experts
		x := v.Left + (float64(col)+0.5)*v.Cell
		near := mark[1] >= 0 && col != mark[1] && math.Abs(float64(col-mark[1]))*v.Cell < 22
		if (col%every == 0 && !near || col == mark[1]) && x >= v.RulerX && x < v.Width {
			label(strconv.Itoa(col), x, v.RulerY-9, col == mark[1])
		}
	}
	c.Call("save")
	c.Call("beginPath")
	c.Call("rect", v.RulerX, v.RulerY, v.Width, v.Height)
	c.Call("clip")
	if m.hover[0] >= 0 {
		c.Set("fillStyle", pen.text)
		c.Set("globalAlpha", 0.08)
		c.Call("fillRect", v.RulerX, v.Top+float64(mark[0])*v.Cell, v.Width, v.Cell)
		c.Call("fillRect", v.Left+float64(mark[1])*v.Cell, v.RulerY, v.Cell, v.Height)
		c.Set("globalAlpha", 1)
	}
	outline := func(cell [2]int, color string, width float64) {
		if cell[0] < 0 {
			return
		}
		c.Set("strokeStyle", color)
		c.Set("lineWidth", width)
		c.Call("strokeRect", v.Left+float64(cell[1])*v.Cell-width/2, v.Top+float64(cell[0])*v.Cell-width/2, v.Cell+width-1, v.Cell+width-1)
	}
	outline(mark, pen.text, 1.5)
	if m.pinned[0] >= 0 {
		outline(m.place(m.pinned[0], m.pinned[1]), pen.accent, 2.5)
	}
	c.Call("restore")
}

// exportPicture saves the map as it is seen.
func (m *expertMap) exportPicture() {
	if m.data == nil {
		return
	}
	now := clock()
	board := dom.ID("map")
	out := dom.Document.Call("createElement", "canvas")
	out.Set("width", board.Get("width"))
	out.Set("height", board.Get("height"))
	c := out.Call("getContext", "2d")
	c.Set("fillStyle", js.Global().Call("getComputedStyle", dom.Document.Get("body")).Get("backgroundColor"))
	c.Call("fillRect", 0, 0, out.Get("width"), out.Get("height"))
	m.draw.draw(&m.view, now, m.colors()) // a WebGL canvas can be read only in the task that drew it
	c.Call("drawImage", board, 0, 0)
	c.Call("drawImage", m.over, 0, 0)
	save(out.Call("toDataURL", "image/png"), "covey-experts.png")
}

// exportText saves what make returns.
func (m *expertMap) exportText(text func() string, ext, mime string) {
	if m.data == nil || m.mode == mapview.Topic && len(m.data.Topics) == 0 {
		return
	}
	options := js.Global().Get("Object").New()
	options.Set("type", mime)
	blob := js.Global().Get("Blob").New([]any{text()}, options)
	url := js.Global().Get("URL").Call("createObjectURL", blob)
	save(url, "covey-experts-"+string(m.mode)+"."+ext)
	dom.After(10000, func() { js.Global().Get("URL").Call("revokeObjectURL", url) })
}

// save downloads an address under a name.
func save(url js.Value, name string) {
	link := dom.New("a", "", "")
	link.Set("href", url)
	link.Set("download", name)
	link.Call("click")
}
