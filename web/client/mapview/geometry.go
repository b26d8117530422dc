package mapview

import "math"

// View places the grid in a frame. Lengths are CSS pixels; the grid's cells are Cell wide and high.
type View struct {
	Width, Height  float64 // of the frame, rulers included
	Cols, Rows     int
	Cell           float64 // 0 = not fitted yet
	Left, Top      float64 // of cell (0, 0), from the frame's corner
	RulerX, RulerY float64 // room for the row ruler at the left and the column ruler at the top
}

const (
	maxCell = 64.0
	minPart = 0.5 // the view never shows the grid smaller than half its fitted size
)

// fitted is the largest cell at which the whole grid is seen: whole pixels where it is large enough to matter.
func (v *View) fitted() float64 {
	cell := min((v.Width-v.RulerX)/float64(max(1, v.Cols)), (v.Height-v.RulerY)/float64(max(1, v.Rows)))
	if cell > 4 {
		cell = math.Floor(cell)
	}
	return max(0.5, min(cell, maxCell))
}

// Fit shows the whole grid.
func (v *View) Fit() {
	v.Cell, v.Left, v.Top = v.fitted(), v.RulerX, v.RulerY
}

// Zoom scales by a factor about a point of the frame.
func (v *View) Zoom(factor, x, y float64) {
	cell := min(maxCell, max(v.Cell*factor, v.fitted()*minPart))
	scale := cell / v.Cell
	v.Cell, v.Left, v.Top = cell, x-(x-v.Left)*scale, y-(y-v.Top)*scale
	v.clamp()
}

// Pan moves the grid.
func (v *View) Pan(dx, dy float64) {
	v.Left, v.Top = v.Left+dx, v.Top+dy
	v.clamp()
}

// clamp keeps the grid against the rulers: no further right or down than its start, no further left or up than its end.
func (v *View) clamp() {
	side := func(start, length, room, ruler float64) float64 {
		return max(min(start, ruler), min(ruler, ruler+room-length))
	}
	v.Left = side(v.Left, v.Cell*float64(v.Cols), v.Width-v.RulerX, v.RulerX)
	v.Top = side(v.Top, v.Cell*float64(v.Rows), v.Height-v.RulerY, v.RulerY)
}

// At is the cell at a point of the frame; ok is false outside the grid.
func (v *View) At(x, y float64) (row, col int, ok bool) {
	if v.Cell <= 0 || x < v.RulerX || y < v.RulerY {
		return 0, 0, false
	}
	col, row = int(math.Floor((x-v.Left)/v.Cell)), int(math.Floor((y-v.Top)/v.Cell))
	return row, col, col >= 0 && row >= 0 && col < v.Cols && row < v.Rows
}

// Show moves the grid by the least that brings a cell into the frame.
func (v *View) Show(row, col int) {
	x, y := v.Left+float64(col)*v.Cell, v.Top+float64(row)*v.Cell
	v.Pan(max(0, v.RulerX-x)-max(0, x+v.Cell-v.Width), max(0, v.RulerY-y)-max(0, y+v.Cell-v.Height))
}

// Every is the step between ruler labels that are at least room pixels apart: 1, 2, 4, 8 ...
func (v *View) Every(room float64) int {
	n := 1
	for v.Cell > 0 && float64(n)*v.Cell < room {
		n *= 2
	}
	return n
}
