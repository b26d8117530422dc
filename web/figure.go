package web

import (
	"context"
	"io"
	"math"
	"net/url"
	"strconv"
	"strings"

	"github.com/a-h/templ"
)

// MatrixFigure is the strongest labelled experts of every topic against all topics, as a picture.
type MatrixFigure struct {
	Atlas  string // id in the store, for links; "" = no links
	Topics []string
	Left   []MatrixRow // experts, ordered by the topic that they are labelled for
}

// Measures of the figure's cells and margins.
const (
	matrixCellW, matrixCellH = 10, 16
	matrixLeft, matrixFoot   = 76, 44
)

func (f MatrixFigure) width() int { return matrixLeft + matrixCellW*len(f.Left) + matrixCellW }

func (f MatrixFigure) box() string {
	return "0 0 " + itoa(f.width()) + " " + itoa(matrixCellH*len(f.Topics)+matrixFoot)
}

// LadderStep is how many of the labels are left by one control.
type LadderStep struct {
	Name     string
	Left, Of int
	Means    string // what is left has shown, in plain words
}

// width is the length of a step's bar.
func (s LadderStep) width() float64 { return axisWidth * scaled(float64(s.Left), float64(s.Of)) }

// TopicSurvival is the ladder by topic. Tested is how many labels were removed, Matters how many of these mattered.
type TopicSurvival struct {
	Topic                                                        string
	Labels, Topical, Order, Crossed, Sign, Held, Tested, Matters int
	HasCrossed                                                   bool
}

// Removal is what taking out an expert, or all specialists of a topic, does to the log-likelihood of sealed texts, in
// nats a token, on its topic less on others.
type Removal struct {
	Layer, ID       int // of one expert
	Experts         int // of a group; 0 = one expert
	Topic           string
	Change, Control float64
	Controls        int
	Net             Interval // beyond controls
	Matters         bool
}

// verdict says what the interval shows.
func (r Removal) verdict() string {
	switch {
	case r.Matters:
		return "matters"
	case r.Net.Low > 0:
		return "less than controls"
	}
	return "not shown"
}

// Crossed is what the texts of two topics are named after.
type Crossed struct {
	Pair                     string
	First, Second            string
	Texts, AsFirst, AsSecond int
}

// line is a linear scale that holds 0, drawn into axisWidth units.
type line struct{ low, high float64 }

func newLine(intervals ...Interval) line {
	l := line{}
	for _, i := range intervals {
		l.low, l.high = min(l.low, i.Low), max(l.high, i.High)
	}
	if l.low == l.high {
		l.high = 1
	}
	return l
}

func (l line) at(v float64) float64 {
	return axisWidth * min(1, max(0, (v-l.low)/(l.high-l.low)))
}

func removalLine(list []Removal) line {
	var all []Interval
	for _, r := range list {
		all = append(all, r.Net)
	}
	return newLine(all...)
}

// signed writes a small number with its sign.
func signed(v float64) string {
	if v == 0 || math.IsNaN(v) {
		return "0"
	}
	return strconv.FormatFloat(v, 'f', 4, 64)
}

// liftSteps are the classes of the diverging scale, from much less to much more.
var liftSteps = [...]string{"lift-n3", "lift-n2", "lift-n1", "lift-even", "lift-p1", "lift-p2", "lift-p3"}

// difference is the step of the diverging scale for a lift in one place against another: "even" where the intervals
// overlap.
func (c ComparedExpert) difference() string {
	switch {
	case c.Gap <= 0:
		return "lift-even"
	case c.A.Value <= 0:
		return "lift-p3"
	case c.B.Value <= 0:
		return "lift-n3"
	}
	return liftClass(Interval{Value: c.B.Value / c.A.Value, Low: math.Inf(1)})
}

// exportURL is the address of the same comparison as a file.
func (c AtlasComparison) exportURL(form string) string {
	return "/atlas/compare." + form + "?" + url.Values{"a": {c.A}, "b": {c.B}, "topic": {c.Topic}, "topic_b": {c.TopicB}}.Encode()
}

// line says what is compared.
func (c AtlasComparison) line() string {
	if c.A == c.B {
		return c.TopicB + " against " + c.Topic
	}
	if c.Topic == c.TopicB {
		return c.Topic + " in the second atlas against the first"
	}
	return c.TopicB + " in the second atlas against " + c.Topic + " in the first"
}

// atLeast is the larger of a drawing's length and the least that can be seen.
func atLeast(v float64) float64 { return max(1, v) }

// most of the profile's scales.
func (a Atlas) mostSpecificity() float64 {
	most := 0.0
	for _, l := range a.Layers {
		most = max(most, l.SpecificityHigh)
	}
	return most
}

// marked writes a text with the chosen runs marked, without a space more than the text has.
func marked(runs []Run) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		var b strings.Builder
		for _, r := range runs {
			if r.Chosen {
				b.WriteString("<mark>" + templ.EscapeString(r.Text) + "</mark>")
			} else {
				b.WriteString(templ.EscapeString(r.Text))
			}
		}
		_, err := io.WriteString(w, b.String())
		return err
	})
}
