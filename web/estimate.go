package web

import (
	"math"
	"strconv"
)

// Interval is an estimate with its 95 % interval. For a lift 1 means "as often as anywhere".
type Interval struct{ Value, Low, High float64 }

// Excludes says whether the interval leaves out v.
func (i Interval) Excludes(v float64) bool { return i.Low > v || i.High < v }

// String is "2.4 [1.8, 3.1]".
func (i Interval) String() string { return figure(i.Value) + " " + i.Range() }

// Range is "[1.8, 3.1]".
func (i Interval) Range() string { return "[" + figure(i.Low) + ", " + figure(i.High) + "]" }

// figure writes a number with about three significant digits and never as a power of ten. What is not a number is a dash.
func figure(v float64) string {
	a := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "-"
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.01 || a == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 4, 64)
}

// chance writes a p or q value.
func chance(v float64) string {
	if v < 0.001 {
		return "< 0.001"
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// share writes a part of one as a percentage.
func share(part, whole float64) string {
	if whole == 0 {
		return "-"
	}
	v := 100 * part / whole
	if v != 0 && v < 10 {
		return strconv.FormatFloat(v, 'f', 1, 64) + " %"
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + " %"
}

// axis is a logarithmic scale for lifts, drawn into axisWidth units. Low and High are ends that hold every interval.
type axis struct{ low, high float64 }

const (
	axisWidth = 240.0
	axisEnd   = 64.0 // an axis never reaches further than 1/64 and 64: what lies beyond is drawn to the edge
)

// newAxis covers the intervals and 1, rounded outwards to powers of two.
func newAxis(intervals ...Interval) axis {
	low, high := 0.5, 2.0
	for _, i := range intervals {
		if i.Low > 0 {
			low = min(low, i.Low)
		}
		high = max(high, i.High)
	}
	low, high = max(low, 1/axisEnd), min(high, axisEnd)
	return axis{math.Exp2(math.Floor(math.Log2(low))), math.Exp2(math.Ceil(math.Log2(high)))}
}

func (a axis) at(v float64) float64 {
	if v <= a.low {
		return 0
	}
	return min(axisWidth, axisWidth*math.Log2(v/a.low)/math.Log2(a.high/a.low))
}

// anchor keeps the name of a tick inside the axis.
func (a axis) anchor(v float64) string {
	switch {
	case a.at(v) == 0:
		return "start"
	case a.at(v) == axisWidth:
		return "end"
	}
	return "middle"
}

// ticks are the powers of two of the axis, thinned to at most five: the narrowest axis has 130 pixels.
func (a axis) ticks() []float64 {
	step := math.Exp2(math.Ceil(math.Log2(a.high/a.low) / 4))
	var out []float64
	// One tick is always at 1: the others are counted from there.
	first := 1.0
	for first/step >= a.low {
		first /= step
	}
	for v := first; v <= a.high; v *= step {
		out = append(out, v)
	}
	return out
}

// tick writes a power of two as a fraction below 1.
func tick(v float64) string {
	if v < 1 {
		return "1/" + strconv.FormatFloat(1/v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// coord writes a coordinate of a drawing.
func coord(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// liftClass is the step of the diverging scale that a lift falls into: n3..n1 below, "even" around 1, p1..p3 above. A
// lift whose interval holds 1 is "even" whatever its value.
func liftClass(i Interval) string {
	if !i.Excludes(1) {
		return "lift-even"
	}
	if i.Value <= 0 {
		return "lift-n3"
	}
	step := min(3, 1+int(math.Abs(math.Log2(i.Value))))
	if i.Value < 1 {
		return "lift-n" + strconv.Itoa(step)
	}
	return "lift-p" + strconv.Itoa(step)
}
