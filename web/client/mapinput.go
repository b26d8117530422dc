//go:build js && wasm

package main

// Pointer and keys of the expert map.

import (
	"math"
	"syscall/js"

	"covey/web/client/dom"
)

// listen binds pointer, keys, size and theme.
func (m *expertMap) listen() {
	place := func(e js.Value) {
		m.pointer = [2]float64{e.Get("offsetX").Float(), e.Get("offsetY").Float()}
	}
	dom.On(m.over, "pointermove", func(e js.Value) {
		place(e)
		if m.drag {
			dx, dy := m.pointer[0]-m.last[0], m.pointer[1]-m.last[1]
			if m.dragged || math.Abs(dx)+math.Abs(dy) > 4 {
				m.dragged = true
				m.view.Pan(dx, dy)
				m.last = m.pointer
			}
		}
		m.moved = true
		m.redraw()
	})
	dom.On(m.over, "pointerdown", func(e js.Value) {
		place(e)
		m.drag, m.dragged, m.last = true, false, m.pointer
		m.over.Call("setPointerCapture", e.Get("pointerId"))
	})
	dom.On(m.over, "pointerup", func(e js.Value) {
		place(e)
		if m.drag && !m.dragged {
			if row, col, ok := m.view.At(m.pointer[0], m.pointer[1]); ok {
				m.cursor = [2]int{row, col}
				m.pin(row, m.expert(row, col), false)
			}
		}
		m.drag = false
	})
	dom.On(m.over, "pointercancel", func(js.Value) { m.drag = false })
	dom.On(m.over, "pointerleave", func(js.Value) {
		m.hover, m.moved = [2]int{-1, -1}, false
		dom.Hide(dom.ID("map-card"), true)
		m.redraw()
	})
	dom.On(m.over, "wheel", func(e js.Value) {
		if !e.Get("ctrlKey").Bool() && !e.Get("metaKey").Bool() {
			return // the page scrolls
		}
		e.Call("preventDefault")
		place(e)
		m.zoom(math.Exp(-e.Get("deltaY").Float()/200), m.pointer[0], m.pointer[1])
	})
	m.app.keys = append(m.app.keys, m.key)
	resized := dom.Func(func([]js.Value) { m.size() })
	js.Global().Get("ResizeObserver").New(resized).Call("observe", m.frame.Get("parentElement"))
	dom.On(dom.Document, "covey:theme", func(js.Value) { m.ink = ink{}; m.redraw() })
	scheme := dom.Window.Call("matchMedia", "(prefers-color-scheme: dark)")
	dom.On(scheme, "change", func(js.Value) { m.ink = ink{}; m.redraw() })
}

// key moves the cursor while the map has the focus.
func (m *expertMap) key(e js.Value) bool {
	if m.data == nil || modal() {
		return false
	}
	search := dom.ID("map-search")
	active := dom.Document.Get("activeElement")
	if active.Equal(search) {
		if key(e) == "Enter" {
			text := search.Get("value").String()
			switch row, expert, _, ok := m.data.Find(text); {
			case ok && row >= 0 && expert >= 0:
				m.pin(row, expert, true)
			case !ok && text != "":
				m.trace(text)
			}
			return true
		}
		if key(e) == "Escape" {
			search.Set("value", "")
			m.search("")
			return true
		}
		return false
	}
	if key(e) == "/" && !typing(e) {
		search.Call("focus")
		return true
	}
	if m.turn != nil && m.turn.key(e) {
		return true
	}
	if !active.Equal(m.over) {
		return false
	}
	move := func(rows, cols int) {
		if m.cursor[0] < 0 {
			m.cursor = [2]int{0, 0}
		} else {
			m.cursor[0] = min(max(m.cursor[0]+rows, 0), m.view.Rows-1)
			m.cursor[1] = min(max(m.cursor[1]+cols, 0), m.view.Cols-1)
		}
		m.view.Show(m.cursor[0], m.cursor[1])
		dom.SetText(dom.ID("map-where"), m.describe(m.cursor[0], m.cursor[1]))
		m.card(m.cursor[0], m.cursor[1])
		m.redraw()
	}
	switch key(e) {
	case "ArrowLeft":
		move(0, -1)
	case "ArrowRight":
		move(0, 1)
	case "ArrowUp":
		move(-1, 0)
	case "ArrowDown":
		move(1, 0)
	case "Home":
		move(0, -m.view.Cols)
	case "End":
		move(0, m.view.Cols)
	case "Enter", " ":
		if m.cursor[0] >= 0 {
			m.pin(m.cursor[0], m.expert(m.cursor[0], m.cursor[1]), true)
		}
	case "+", "Shift++":
		m.zoom(1.5, m.view.Width/2, m.view.Height/2)
	case "-":
		m.zoom(1/1.5, m.view.Width/2, m.view.Height/2)
	case "0":
		m.view.Fit()
		m.redraw()
	case "Escape":
		m.unpin()
		m.cursor = [2]int{-1, -1}
		dom.Hide(dom.ID("map-card"), true)
	default:
		return false
	}
	return true
}

func (m *expertMap) zoom(factor, x, y float64) {
	m.view.Zoom(factor, x, y)
	m.redraw()
}
