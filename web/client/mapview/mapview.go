// Package mapview is the expert map without a document: what is known of every cell, how a mode sorts cells into the
// steps of a legend, the pixels of that, the view's geometry, search and export. It is tested natively.
//
// A cell is MoE layer (row) times experts plus expert. Colours are steps, not a continuous ramp: the legend names each
// step's numbers and hides it when pressed, so what is seen and what can be read agree.
package mapview

import (
	"math"
	"strconv"
	"strings"

	"covey/web/wire"
)

// Mode says what colours mean.
type Mode string

// Modes.
const (
	Heat        Mode = "heat"        // selections, logarithmic
	Recency     Mode = "recency"     // time since the last one
	Imbalance   Mode = "imbalance"   // share of the layer over an even one
	Topic       Mode = "topic"       // lift in a topic, where its interval excludes 1
	Specificity Mode = "specificity" // of the atlas
	Q           Mode = "q"           // the least false discovery rate over the topics
	Difference  Mode = "difference"  // lift in a topic over that in another, where their intervals do not overlap
	Turn        Mode = "turn"        // selections in one answer up to a token
	Text        Mode = "text"        // selections by a text that was read for the map
	Talks       Mode = "talks"       // share in one conversation over that in another, where there are enough selections
	Tier        Mode = "tier"        // where the expert's weights are
)

// Known says whether there is such a mode.
func Known(mode Mode) bool {
	switch mode {
	case Heat, Recency, Imbalance, Topic, Specificity, Q, Difference, Turn, Text, Talks, Tier:
		return true
	}
	return false
}

// Unknown is the step of a cell about which nothing is known. It is drawn hatched.
const Unknown = 255

// Data is what the map knows. Arrays are [rows, experts].
type Data struct {
	wire.Map
	Live  []float32 // selections since the page was opened
	Seen  []float64 // seconds on the page's clock at which a pulse last came; 0 = none
	Turn  []float32 // selections of the answer that the page steps through, up to the token shown
	Text  []float32 // selections by the text that was last traced
	Other int       // topic that Difference compares with
	Talk  [2]Talk   // conversations that Talks compares
	Tiers wire.Tiers
	Start float64 // the clock's reading when Map came
}

// NewData wraps a Map frame, keeping what was counted live if the geometry is the same. now is the page's clock.
func NewData(m wire.Map, before *Data, now float64) *Data {
	n := len(m.Shape.Layers) * m.Shape.Experts
	d := &Data{Map: m, Start: now}
	if before != nil && len(before.Live) == n && before.Shape.Experts == m.Shape.Experts {
		d.Live, d.Seen, d.Turn, d.Text, d.Talk, d.Tiers = before.Live, before.Seen, before.Turn, before.Text, before.Talk, before.Tiers
		return d
	}
	d.Live, d.Seen, d.Turn, d.Text = make([]float32, n), make([]float64, n), make([]float32, n), make([]float32, n)
	return d
}

// Talk is what the answers of one conversation chose.
type Talk struct {
	ID, Name         string
	Answers, Stopped int       // that are counted; those of them that were cut off
	Tokens           int       // 0 = nothing is known of it
	Counts           []float32 // [cells]
}

// Tally takes the counts of a conversation that is compared.
func (d *Data) Tally(t wire.Tally) {
	for i := range d.Talk {
		if talk := &d.Talk[i]; talk.ID == t.Conversation {
			talk.Answers, talk.Stopped, talk.Tokens, talk.Counts = t.Answers, t.Stopped, t.Tokens, make([]float32, d.Cells())
			for _, c := range t.Cells {
				if c.Cell < len(talk.Counts) {
					talk.Counts[c.Cell] = float32(c.Count)
				}
			}
		}
	}
}

// enoughSelections is how many selections two conversations must have between them before their ratio is coloured.
const enoughSelections = 10

// Talked is a cell's selections in both conversations; false if one of them is not known.
func (d *Data) Talked(cell int) (a, b float64, ok bool) {
	x, y := &d.Talk[0], &d.Talk[1]
	if x.Tokens == 0 || y.Tokens == 0 {
		return 0, 0, false
	}
	return float64(x.Counts[cell]), float64(y.Counts[cell]), true
}

// Cells is layers times experts.
func (d *Data) Cells() int { return len(d.Live) }

// Pulse counts a window of live routing at time now.
func (d *Data) Pulse(p wire.Pulses, now float64) {
	for _, c := range p.Cells {
		if c.Cell < len(d.Live) {
			d.Live[c.Cell] += float32(c.Count)
			d.Seen[c.Cell] = now
		}
	}
}

// at reads an array that may be missing.
func at(v []float32, cell int) float64 {
	if cell >= len(v) {
		return math.NaN()
	}
	return float64(v[cell])
}

// Value is what the mode says about a cell; NaN = nothing known. topic is an index into Topics.
func (d *Data) Value(mode Mode, topic, cell int, now float64) float64 {
	switch mode {
	case Heat:
		return float64(d.Selections[cell] + d.Live[cell])
	case Turn:
		return float64(d.Turn[cell])
	case Text:
		return float64(d.Text[cell])
	case Q:
		return at(d.Map.Q, cell)
	case Difference:
		if topic < 0 || topic >= len(d.Topics) || d.Other < 0 || d.Other >= len(d.Topics) {
			return math.NaN()
		}
		if other := at(d.Topics[d.Other].Lift, cell); other > 0 {
			return at(d.Topics[topic].Lift, cell) / other
		}
		return math.NaN()
	case Talks: // half a selection on either side, so that an expert of one conversation only has a ratio
		a, b, ok := d.Talked(cell)
		if !ok {
			return math.NaN()
		}
		return (a + 0.5) / float64(d.Talk[0].Tokens) / ((b + 0.5) / float64(d.Talk[1].Tokens))
	case Tier:
		if cell >= len(d.Tiers.InMemory) {
			return math.NaN()
		}
		if d.Tiers.InMemory[cell] {
			return 1
		}
		return 0
	case Recency:
		if d.Seen[cell] > 0 {
			return now - d.Seen[cell]
		}
		return at(d.Ages, cell) + now - d.Start
	case Specificity:
		return at(d.Map.Specificity, cell)
	case Topic:
		if topic < 0 || topic >= len(d.Topics) {
			return math.NaN()
		}
		return at(d.Topics[topic].Lift, cell)
	case Imbalance:
		row := cell / d.Shape.Experts
		sum := d.rowSum(row)
		if sum == 0 {
			return math.NaN()
		}
		return float64(d.Selections[cell]+d.Live[cell]) * float64(d.Shape.Experts) / sum
	}
	return math.NaN()
}

func (d *Data) rowSum(row int) float64 {
	sum := 0.0
	for i := row * d.Shape.Experts; i < (row+1)*d.Shape.Experts; i++ {
		sum += float64(d.Selections[i] + d.Live[i])
	}
	return sum
}

// Significant says whether a topic's interval excludes 1.
func (d *Data) Significant(topic, cell int) bool {
	t := d.Topics[topic]
	return at(t.Low, cell) > 1 || at(t.High, cell) < 1
}

// Apart says whether the intervals of topic and Other do not overlap.
func (d *Data) Apart(topic, cell int) bool {
	a, b := d.Topics[topic], d.Topics[d.Other]
	return at(a.Low, cell) > at(b.High, cell) || at(b.Low, cell) > at(a.High, cell)
}

// Step is a step of a legend: its colour and the numbers it stands for.
type Step struct {
	Label string
	Color [3]byte
	Faint bool // drawn close to the ground: "never" and "not told apart from 1" are not what the eye should find first
}

// Ramps. Sequential is viridis without its darkest end; diverging goes from blue over grey to orange. Both keep their
// order of lightness for people who see few hues.
var (
	sequential = [...][3]byte{{68, 58, 131}, {58, 89, 140}, {44, 113, 142}, {33, 145, 140}, {53, 183, 121}, {143, 215, 68}, {253, 231, 37}}
	diverging  = [...][3]byte{{33, 84, 153}, {74, 132, 191}, {139, 178, 214}, {150, 150, 150}, {222, 172, 110}, {211, 128, 44}, {166, 84, 0}}
	never      = [3]byte{128, 134, 139}
)

// Layout is how a mode sorts cells at one moment: a step a cell, and the legend.
type Layout struct {
	Steps  []byte // [cells] index into Legend, or Unknown
	Legend []Step
}

// Classify sorts every cell into a step. It costs a few operations a cell; out is reused if it is large enough.
func (d *Data) Classify(mode Mode, topic int, now float64, out []byte) Layout {
	n := d.Cells()
	if cap(out) < n {
		out = make([]byte, n)
	}
	l := Layout{Steps: out[:n]}
	switch mode {
	case Heat:
		d.counts(&l, func(i int) float64 { return float64(d.Selections[i] + d.Live[i]) })
	case Turn:
		d.counts(&l, func(i int) float64 { return float64(d.Turn[i]) })
	case Text:
		d.counts(&l, func(i int) float64 { return float64(d.Text[i]) })
	case Q:
		l.Legend = ramp(sequential[:], []string{"over 0.5", "to 0.5", "to 0.1", "to 0.05", "to 0.01", "to 0.001", "under 0.0001"})
		for i := range n {
			l.Steps[i] = Unknown
			if v := d.Value(Q, topic, i, now); !math.IsNaN(v) {
				l.Steps[i] = 6 - between(v, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.5)
			}
		}
	case Difference:
		l.Legend = ramp(diverging[:], []string{"< 1/4", "1/4 to 1/2", "1/2 to 1", "intervals overlap", "1 to 2", "2 to 4", "> 4"})
		l.Legend[3].Faint = true
		for i := range n {
			v := d.Value(Difference, topic, i, now)
			switch {
			case math.IsNaN(v):
				l.Steps[i] = Unknown
			case !d.Apart(topic, i):
				l.Steps[i] = 3
			default:
				l.Steps[i] = between(v, 0.25, 0.5, 1, 1, 2, 4)
			}
		}
	case Talks:
		l.Legend = ramp(diverging[:], []string{"< 1/4", "1/4 to 1/2", "1/2 to 1", "under " + strconv.Itoa(enoughSelections) + " selections", "1 to 2", "2 to 4", "> 4"})
		l.Legend[3].Faint = true
		for i := range n {
			a, b, ok := d.Talked(i)
			switch {
			case !ok:
				l.Steps[i] = Unknown
			case a+b < enoughSelections:
				l.Steps[i] = 3
			default:
				l.Steps[i] = between(d.Value(Talks, topic, i, now), 0.25, 0.5, 1, 1, 2, 4)
			}
		}
	case Tier:
		l.Legend = []Step{{Label: "on disk", Color: diverging[5]}, {Label: "in memory", Color: diverging[1]}}
		for i := range n {
			l.Steps[i] = Unknown
			if v := d.Value(Tier, topic, i, now); !math.IsNaN(v) {
				l.Steps[i] = byte(v)
			}
		}
	case Recency:
		bounds := [...]float64{5, 60, 600, 3600, 86400, 7 * 86400}
		labels := [...]string{"over a week", "a week", "a day", "an hour", "10 min", "a minute", "5 s"}
		l.Legend = ramp(sequential[:], labels[:])
		for i := range n {
			v := d.Value(Recency, topic, i, now)
			l.Steps[i] = Unknown
			if !math.IsNaN(v) {
				step := 0
				for step < len(bounds) && v > bounds[step] {
					step++
				}
				l.Steps[i] = byte(len(bounds) - step)
			}
		}
	case Imbalance:
		l.Legend = ramp(diverging[:], []string{"< 1/4", "1/4 to 1/2", "1/2 to 0.8", "0.8 to 1.25", "to 2", "2 to 4", "> 4"})
		for row := range d.Shape.Layers {
			sum := d.rowSum(row)
			for i := row * d.Shape.Experts; i < (row+1)*d.Shape.Experts; i++ {
				l.Steps[i] = Unknown
				if sum > 0 {
					l.Steps[i] = between(float64(d.Selections[i]+d.Live[i])*float64(d.Shape.Experts)/sum, 0.25, 0.5, 0.8, 1.25, 2, 4)
				}
			}
		}
	case Topic:
		l.Legend = ramp(diverging[:], []string{"< 1/4", "1/4 to 1/2", "1/2 to 1", "interval holds 1", "1 to 2", "2 to 4", "> 4"})
		l.Legend[3].Faint = true
		for i := range n {
			v := d.Value(Topic, topic, i, now)
			switch {
			case math.IsNaN(v):
				l.Steps[i] = Unknown
			case !d.Significant(topic, i):
				l.Steps[i] = 3
			default:
				l.Steps[i] = between(v, 0.25, 0.5, 1, 1, 2, 4)
			}
		}
	case Specificity:
		l.Legend = ramp(sequential[:], []string{"< 0.01", "0.01", "0.02", "0.05", "0.1", "0.2", "> 0.4"})
		for i := range n {
			l.Steps[i] = Unknown
			if v := d.Value(Specificity, topic, i, now); !math.IsNaN(v) {
				l.Steps[i] = between(v, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
			}
		}
	}
	return l
}

// between is the number of bounds that v has reached.
func between(v float64, bounds ...float64) byte {
	n := byte(0)
	for _, b := range bounds {
		if v >= b {
			n++
		}
	}
	return n
}

func ramp(colors [][3]byte, labels []string) []Step {
	out := make([]Step, len(colors))
	for i := range out {
		out[i] = Step{Label: labels[i], Color: colors[i]}
	}
	return out
}

// counts sorts counts into never and seven steps of equal ratio up to the largest.
func (d *Data) counts(l *Layout, count func(i int) float64) {
	most := 0.0
	for i := range l.Steps {
		most = max(most, count(i))
	}
	steps := len(sequential)
	ratio := math.Pow(max(most, 1), 1/float64(steps))
	var bounds [len(sequential)]float64 // the first count of each step
	l.Legend = []Step{{"never", never, true}}
	for s := range steps {
		bounds[s] = math.Ceil(math.Pow(ratio, float64(s)))
		if s > 0 && bounds[s] <= bounds[s-1] {
			bounds[s] = bounds[s-1] + 1
		}
		l.Legend = append(l.Legend, Step{Label: Short(bounds[s]) + "+", Color: sequential[s]})
	}
	used := 1
	for i := range l.Steps {
		v := count(i)
		step := byte(0)
		for int(step) < steps && v >= bounds[step] {
			step++
		}
		used = max(used, int(step)+1)
		l.Steps[i] = step
	}
	l.Legend = l.Legend[:used]
}

// Short writes a count in at most four characters: 950, 9.5k, 95k, 2.1M.
func Short(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= unit.size {
			digits := 0
			if v < 10*unit.size {
				digits = 1
			}
			return strconv.FormatFloat(v/unit.size, 'f', digits, 64) + unit.name
		}
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// Figure writes a value of a mode.
func Figure(mode Mode, v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case mode == Heat || mode == Turn || mode == Text:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case mode == Recency:
		return Ago(v)
	case mode == Tier:
		return map[bool]string{true: "in memory", false: "on disk"}[v == 1]
	case mode == Q && v < 0.01:
		return strconv.FormatFloat(v, 'f', 4, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// Ago writes a duration in seconds.
func Ago(v float64) string {
	whole := func(v float64, unit string) string { return strconv.Itoa(int(v)) + " " + unit + " ago" }
	switch {
	case v < 60:
		return whole(max(0, v), "s")
	case v < 3600:
		return whole(v/60, "min")
	case v < 86400:
		return whole(v/3600, "h")
	}
	return whole(v/86400, "days")
}

// Pixels writes one RGBA pixel a cell into out ([4*cells]), at the place that order gives it: the step's colour; alpha 255
// = shown, 64 = faint, or hidden by the legend or the search, 0 = nothing known. hidden has a bit a step; match is nil or
// says which cells a search found; order may be nil.
func (l Layout) Pixels(hidden uint32, match []bool, order *Order, out []byte) {
	for i, s := range l.Steps {
		at := order.Place(i)
		p := out[4*at : 4*at+4 : 4*at+4]
		if int(s) >= len(l.Legend) {
			p[0], p[1], p[2], p[3] = 0, 0, 0, 0
			continue
		}
		c := l.Legend[s].Color
		p[0], p[1], p[2], p[3] = c[0], c[1], c[2], 255
		if l.Legend[s].Faint || hidden>>s&1 == 1 || match != nil && !match[i] {
			p[3] = 64
		}
	}
}

// Find reads a search: "l12 e5", "l12", "e5", "12:5", or the start of a topic. row and expert are -1 where the text
// names none; topic is an index into Topics or -1. ok is false when the text means nothing here.
func (d *Data) Find(text string) (row, expert, topic int, ok bool) {
	row, expert, topic = -1, -1, -1
	text = strings.ToLower(strings.TrimSpace(text))
	if text == "" {
		return row, expert, topic, false
	}
	fields := strings.FieldsFunc(strings.ReplaceAll(strings.ReplaceAll(text, "layer", "l"), "expert", "e"), func(r rune) bool { return r == ' ' || r == ',' || r == ':' })
	// "l12e5" is two fields without a space, "l 12" is one with.
	var parts []string
	for _, f := range fields {
		if i := strings.IndexByte(f, 'e'); i > 0 && f[0] == 'l' {
			parts = append(parts, f[:i], f[i:])
		} else if n := len(parts); n > 0 && (parts[n-1] == "l" || parts[n-1] == "e") {
			parts[n-1] += f
		} else {
			parts = append(parts, f)
		}
	}
	good := len(parts) > 0 && len(parts) <= 2
	for i, p := range parts {
		kind := p[0]
		digits := p[1:]
		if kind >= '0' && kind <= '9' && len(parts) == 2 {
			kind, digits = "le"[i%2], p
		}
		n, err := strconv.Atoi(digits)
		switch {
		case err != nil:
			good = false
		case kind == 'l':
			row = d.Row(n)
			good = good && row >= 0
		case kind == 'e' && n >= 0 && n < d.Shape.Experts:
			expert = n
		default:
			good = false
		}
	}
	if good {
		return row, expert, -1, true
	}
	row, expert = -1, -1
	for i, t := range d.Topics {
		if strings.HasPrefix(strings.ToLower(t.Topic), text) {
			return row, expert, i, true
		}
	}
	return row, expert, -1, false
}

// Row is the row of a model layer; -1 = it has no experts.
func (d *Data) Row(layer int) int {
	for i, l := range d.Shape.Layers {
		if l == layer {
			return i
		}
	}
	return -1
}

// CSV is the map as shown: one line a cell.
func (d *Data) CSV(mode Mode, topic int, now float64) string {
	var b strings.Builder
	b.WriteString("layer,expert," + cell(d.column(mode, topic)))
	if mode == Topic {
		b.WriteString(",low,high")
	}
	b.WriteString("\n")
	for i := range d.Cells() {
		b.WriteString(strconv.Itoa(d.Shape.Layers[i/d.Shape.Experts]) + "," + strconv.Itoa(i%d.Shape.Experts) + "," + number(d.Value(mode, topic, i, now), ""))
		if mode == Topic {
			b.WriteString("," + number(at(d.Topics[topic].Low, i), "") + "," + number(at(d.Topics[topic].High, i), ""))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// cell quotes a CSV cell where its text needs it. No column begins with what a spreadsheet would run.
func cell(s string) string {
	if !strings.ContainsAny(s, "\",\r\n") {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// JSON is the map as shown: layers, experts and the values in rows; unknown = null.
func (d *Data) JSON(mode Mode, topic int, now float64) string {
	var b strings.Builder
	list := func(name string, value func(i int) float64) {
		b.WriteString(",\"" + name + "\":[")
		for i := range d.Cells() {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(number(value(i), "null"))
		}
		b.WriteString("]")
	}
	b.WriteString("{\"mode\":" + quote(d.column(mode, topic)) + ",\"atlas\":" + quote(d.Atlas) + ",\"experts\":" + strconv.Itoa(d.Shape.Experts) + ",\"layers\":[")
	for i, l := range d.Shape.Layers {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(strconv.Itoa(l))
	}
	b.WriteString("]")
	list("values", func(i int) float64 { return d.Value(mode, topic, i, now) })
	if mode == Topic {
		list("low", func(i int) float64 { return at(d.Topics[topic].Low, i) })
		list("high", func(i int) float64 { return at(d.Topics[topic].High, i) })
	}
	b.WriteString("}\n")
	return b.String()
}

// column names what a mode measures.
func (d *Data) column(mode Mode, topic int) string {
	switch mode {
	case Topic:
		return "lift_" + d.Topics[topic].Topic
	case Difference:
		return "lift_" + d.Topics[topic].Topic + "_over_" + d.Topics[d.Other].Topic
	case Heat, Turn, Text:
		return "selections"
	case Recency:
		return "seconds_since_last"
	case Tier:
		return "in_memory"
	case Talks:
		return "share_in_" + d.Talk[0].ID + "_over_" + d.Talk[1].ID
	}
	return string(mode)
}

func number(v float64, unknown string) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return unknown
	}
	return strconv.FormatFloat(v, 'g', 6, 64)
}

// quote writes a JSON string. Topics and ids hold no control characters.
func quote(s string) string {
	return `"` + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), `"`, `\"`) + `"`
}
