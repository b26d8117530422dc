package mapview

import (
	"math"
	"slices"
	"strings"
	"testing"

	"covey/web/wire"
)

var nan = float32(math.NaN())

// small is two layers (models' 1 and 2) of four experts, with an atlas of two topics.
func small() *Data {
	return NewData(wire.Map{
		Shape:      wire.Shape{Layers: []int{1, 2}, Experts: 4, TopK: 2},
		Selections: []float32{0, 1, 10, 100, 5, 5, 5, 5},
		Ages:       []float32{nan, 3, 90, 7200, 3, 3, 3, 3e6},
		Topics: []wire.MapTopic{
			{Topic: "code", Lift: []float32{nan, 3, 1.2, 0.3, 1, 1, 5, 0.2}, Low: []float32{nan, 2, 0.8, 0.1, 0.5, 0.5, 4, 0.1}, High: []float32{nan, 4, 1.6, 0.6, 2, 2, 6, 0.3}},
			{Topic: "cooking", Lift: make([]float32, 8), Low: make([]float32, 8), High: make([]float32, 8)},
		},
		Specificity: []float32{nan, 0.3, 0, -0.01, 0.5, 0.06, 0.02, 0.1},
		Q:           []float32{nan, 0.00001, 1, 0.2, 0.03, 0.03, 0.0005, 0.01},
	}, nil, 100)
}

func TestHeatStepsAreRatiosAndNeverIsAStepOfItsOwn(t *testing.T) {
	l := small().Classify(Heat, 0, 100, nil)
	if l.Steps[0] != 0 || l.Legend[0].Label != "never" {
		t.Errorf("an expert that was never chosen is in step %d, %q", l.Steps[0], l.Legend[l.Steps[0]].Label)
	}
	for i := 1; i < 4; i++ {
		if l.Steps[i] <= l.Steps[i-1] {
			t.Errorf("steps %v do not rise with the counts 0, 1, 10, 100", l.Steps[:4])
		}
	}
	if top := l.Legend[l.Steps[3]].Label; int(l.Steps[3]) != len(l.Legend)-1 || top == "never" {
		t.Errorf("the largest count is in step %d of %d (%q)", l.Steps[3], len(l.Legend), top)
	}
}

func TestTopicShowsNoColourWhereTheIntervalHoldsOne(t *testing.T) {
	l := small().Classify(Topic, 0, 100, nil)
	want := "unknown, 2 to 4, interval holds 1, 1/4 to 1/2, interval holds 1, interval holds 1, > 4, < 1/4"
	if got := labels(l); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestUnknownIsNeverDrawnAsZero(t *testing.T) {
	d := small()
	for _, mode := range []Mode{Topic, Specificity, Recency} {
		if l := d.Classify(mode, 0, 100, nil); l.Steps[0] != Unknown {
			t.Errorf("%s: a cell without a value is in step %d", mode, l.Steps[0])
		}
	}
	out := make([]byte, 32)
	d.Classify(Specificity, 0, 100, nil).Pixels(0, nil, nil, out)
	if out[3] != 0 || out[7] != 255 {
		t.Errorf("alpha of an unknown cell %d, of a known one %d; want 0 and 255", out[3], out[7])
	}
}

func TestRecencyCountsFromThePulseOrTheHistory(t *testing.T) {
	d := small()
	d.Pulse(wire.Pulses{Rows: 1, Cells: []wire.Pulse{{Cell: 3, Count: 2}}}, 110)
	for cell, want := range map[int]float64{1: 3 + 12, 3: 2} {
		if got := d.Value(Recency, 0, cell, 112); got != want {
			t.Errorf("cell %d: %v s, want %v", cell, got, want)
		}
	}
	if got := d.Value(Heat, 0, 3, 112); got != 102 {
		t.Errorf("heat %v, want the history's 100 and 2 live", got)
	}
}

func TestImbalanceIsTheShareOverAnEvenOne(t *testing.T) {
	d := small()
	if got := d.Value(Imbalance, 0, 4, 100); got != 1 {
		t.Errorf("an even layer gives %v", got)
	}
	if got := d.Value(Imbalance, 0, 3, 100); math.Abs(got-400.0/111) > 1e-9 {
		t.Errorf("got %v, want 400/111", got)
	}
}

func TestANewSurveyKeepsWhatWasCountedLive(t *testing.T) {
	d := small()
	d.Pulse(wire.Pulses{Cells: []wire.Pulse{{Cell: 1, Count: 4}}}, 101)
	if again := NewData(d.Map, d, 120); again.Live[1] != 4 {
		t.Error("the live counts are lost")
	}
	other := d.Map
	other.Shape.Experts, other.Shape.Layers = 2, []int{1, 2, 3, 4}
	if again := NewData(other, d, 120); again.Live[1] != 0 {
		t.Error("live counts of another geometry were kept")
	}
}

func TestLegendAndSearchDimCells(t *testing.T) {
	d := small()
	l := d.Classify(Heat, 0, 100, nil)
	out := make([]byte, 32)
	match := make([]bool, 8)
	match[3] = true
	l.Pixels(1<<l.Steps[3], match, nil, out)
	if out[4*3+3] != 64 || out[4*4+3] != 64 {
		t.Errorf("alpha %d of a hidden step and %d of a cell not found, want 64", out[4*3+3], out[4*4+3])
	}
	l.Pixels(0, nil, nil, out)
	if out[3] != 64 || out[4+3] != 255 {
		t.Errorf("alpha %d of an expert never chosen and %d of one chosen once, want 64 and 255", out[3], out[4+3])
	}
	l.Pixels(0, match, nil, out)
	if out[4*3+3] != 255 {
		t.Errorf("alpha %d of the cell found", out[4*3+3])
	}
}

func TestSearchReadsLayersExpertsAndTopics(t *testing.T) {
	d := small()
	for text, want := range map[string][3]int{
		"l2 e3": {1, 3, -1}, "L2E3": {1, 3, -1}, "layer 2 expert 3": {1, 3, -1}, "2:3": {1, 3, -1}, "2 3": {1, 3, -1}, "l1": {0, -1, -1}, "e0": {-1, 0, -1},
		"coo": {-1, -1, 1}, "Code": {-1, -1, 0},
	} {
		row, expert, topic, ok := d.Find(text)
		if got := [3]int{row, expert, topic}; !ok || got != want {
			t.Errorf("%q: %v %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "l0", "l9 e1", "e4", "law", "l", "l1 e1 e2", "-"} {
		if row, expert, topic, ok := d.Find(text); ok {
			t.Errorf("%q was taken for %d, %d, %d", text, row, expert, topic)
		}
	}
}

func TestExportsHoldIntervalsAndLeaveTheUnknownEmpty(t *testing.T) {
	d := small()
	csv := strings.Split(d.CSV(Topic, 0, 100), "\n")
	if csv[0] != "layer,expert,lift_code,low,high" || csv[1] != "1,0,,," || csv[2] != "1,1,3,2,4" || len(csv) != 10 {
		t.Errorf("CSV:\n%s", strings.Join(csv, "\n"))
	}
	want := `{"mode":"lift_code","atlas":"","experts":4,"layers":[1,2],"values":[null,3,1.2,0.3,1,1,5,0.2],"low":[null,2,`
	if got := d.JSON(Topic, 0, 100); !strings.HasPrefix(got, want) {
		t.Errorf("JSON: %s", got)
	}
}

// names are the legend's labels of every cell.
func names(l Layout) string {
	var out []string
	for _, s := range l.Steps {
		if s == Unknown {
			out = append(out, "unknown")
		} else {
			out = append(out, l.Legend[s].Label)
		}
	}
	return strings.Join(out, ", ")
}

func TestDifferenceShowsNoColourWhereIntervalsOverlap(t *testing.T) {
	d := small()
	other := &d.Topics[1]
	copy(other.Lift, []float32{1, 1, 1, 1, 2, 0.9, 1, 1})
	copy(other.Low, []float32{0.9, 0.9, 0.9, 0.9, 1.9, 0.8, 0.9, 0.9})
	copy(other.High, []float32{1.1, 1.1, 1.1, 1.1, 2.1, 1, 1.1, 1.1})
	d.Other = 1
	want := "unknown, 2 to 4, intervals overlap, 1/4 to 1/2, intervals overlap, intervals overlap, > 4, < 1/4"
	if got := names(d.Classify(Difference, 0, 100, nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := strings.SplitN(d.CSV(Difference, 0, 100), "\n", 2)[0]; got != "layer,expert,lift_code_over_cooking" {
		t.Errorf("column %s", got)
	}
}

func TestSmallQStandsOut(t *testing.T) {
	want := "unknown, under 0.0001, over 0.5, to 0.5, to 0.05, to 0.05, to 0.001, to 0.01"
	if got := names(small().Classify(Q, 0, 100, nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSortingKeepsCellsInTheirLayerAndUnknownOnesLast(t *testing.T) {
	d := small()
	for _, c := range []struct {
		how  Sort
		mode Mode
		want []int
	}{
		{ByValue, Heat, []int{3, 2, 1, 0, 4, 5, 6, 7}},
		{ByValue, Topic, []int{1, 2, 3, 0, 6, 4, 5, 7}},
		{ByValue, Q, []int{1, 3, 2, 0, 6, 7, 4, 5}},
		{ByCluster, Heat, []int{1, 2, 3, 0, 6, 4, 5, 7}},
	} {
		o := ordered(d, c.how, c.mode, 0, 100)
		if !slices.Equal(o.Cells, c.want) {
			t.Errorf("by %s of %s: %v, want %v", c.how, c.mode, o.Cells, c.want)
		}
		for place, cell := range o.Cells {
			if o.Places[cell] != place || o.Place(cell) != place || o.Cell(place) != cell {
				t.Errorf("by %s of %s: cell %d is at %d and %d", c.how, c.mode, cell, place, o.Places[cell])
			}
		}
	}
	if o := ordered(d, ByID, Heat, 0, 100); o != nil || o.Cell(5) != 5 || o.Place(5) != 5 {
		t.Errorf("by number: %v", o)
	}
}

func TestPixelsStandWhereTheOrderPutsThem(t *testing.T) {
	d := small()
	l := d.Classify(Heat, 0, 100, nil)
	plain, sorted := make([]byte, 32), make([]byte, 32)
	l.Pixels(0, nil, nil, plain)
	o := ordered(d, ByValue, Heat, 0, 100)
	l.Pixels(0, nil, o, sorted)
	for cell := range 8 {
		if at := o.Place(cell); !slices.Equal(plain[4*cell:4*cell+4], sorted[4*at:4*at+4]) {
			t.Errorf("cell %d is not drawn at place %d", cell, at)
		}
	}
}

func TestShortCounts(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 950: "950", 9500: "9.5k", 95000: "95k", 2.1e6: "2.1M"} {
		if got := Short(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

func TestFitZoomAndPanKeepTheGridInTheFrame(t *testing.T) {
	v := View{Width: 672, Height: 620, Cols: 32, Rows: 29, RulerX: 32, RulerY: 20}
	v.Fit()
	if v.Cell != 20 || v.Left != 32 || v.Top != 20 {
		t.Fatalf("fitted: %+v", v)
	}
	if row, col, ok := v.At(32+20*31+1, 20+20*28+1); !ok || row != 28 || col != 31 {
		t.Errorf("the last cell is at %d, %d, %v", row, col, ok)
	}
	for _, at := range [][2]float64{{10, 100}, {100, 10}, {673, 100}} {
		if _, _, ok := v.At(at[0], at[1]); ok && at[0] < 673 {
			t.Errorf("a ruler at %v is a cell", at)
		}
	}
	before, _, _ := v.At(300, 300)
	v.Zoom(2, 300, 300)
	if row, _, _ := v.At(300, 300); row != before || v.Cell != 40 {
		t.Errorf("zooming about a point moved it from row %d to %d, cell %v", before, row, v.Cell)
	}
	v.Pan(1e6, 1e6)
	if v.Left != 32 || v.Top != 20 {
		t.Errorf("panned off the start: %+v", v)
	}
	v.Show(28, 31)
	if row, col, ok := v.At(671, 619); !ok || row != 28 || col != 31 {
		t.Errorf("the last cell is not in the corner but %d, %d, %v", row, col, ok)
	}
}

// The budget is 2 ms for 20,000 cells in the browser, where code runs some three times slower than here.
func BenchmarkUpdateOf20000Cells(b *testing.B) {
	const layers, experts = 80, 250
	m := wire.Map{Shape: wire.Shape{Experts: experts, TopK: 8}, Selections: make([]float32, layers*experts)}
	for l := range layers {
		m.Shape.Layers = append(m.Shape.Layers, l)
	}
	for i := range m.Selections {
		m.Selections[i] = float32(i * i % 9973)
	}
	d := NewData(m, nil, 0)
	out := make([]byte, 4*layers*experts)
	var l Layout
	for b.Loop() {
		l = d.Classify(Heat, 0, 1, l.Steps)
		l.Pixels(0, nil, nil, out)
	}
}

// labels are the legend's words for each cell.
func labels(l Layout) string {
	var got []string
	for _, s := range l.Steps {
		if s == Unknown {
			got = append(got, "unknown")
		} else {
			got = append(got, l.Legend[s].Label)
		}
	}
	return strings.Join(got, ", ")
}

func TestTwoConversationsAreComparedByShareWhereThereAreEnoughSelections(t *testing.T) {
	d := small()
	d.Talk = [2]Talk{{ID: "a"}, {ID: "b"}}
	if l := d.Classify(Talks, 0, 100, nil); labels(l) != strings.TrimSuffix(strings.Repeat("unknown, ", 8), ", ") {
		t.Errorf("before their counts came: %s", labels(l))
	}
	// b has half the tokens of a, so 20 selections against 10 are the same share.
	d.Tally(wire.Tally{Conversation: "a", Tokens: 100, Cells: []wire.Pulse{{Cell: 0, Count: 20}, {Cell: 1, Count: 40}, {Cell: 2, Count: 4}, {Cell: 4, Count: 90}}})
	d.Tally(wire.Tally{Conversation: "b", Tokens: 50, Cells: []wire.Pulse{{Cell: 0, Count: 10}, {Cell: 1, Count: 5}, {Cell: 2, Count: 5}, {Cell: 3, Count: 30}}})
	d.Tally(wire.Tally{Conversation: "c", Tokens: 9})
	if got, want := labels(d.Classify(Talks, 0, 100, nil)), "1/2 to 1, 2 to 4, under 10 selections, < 1/4, > 4, under 10 selections, under 10 selections, under 10 selections"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTierSaysWhereWeightsAreOnceItIsKnown(t *testing.T) {
	d := small()
	if got := labels(d.Classify(Tier, 0, 100, nil)); strings.Contains(got, "memory") {
		t.Errorf("before the daemon said: %s", got)
	}
	d.Tiers = wire.Tiers{InMemory: []bool{true, false, true, true, true, true, true, true}}
	if got := labels(d.Classify(Tier, 0, 100, nil)); !strings.HasPrefix(got, "in memory, on disk, in memory") {
		t.Errorf("got %s", got)
	}
}

// ordered is an order made a row at a time.
func ordered(d *Data, how Sort, mode Mode, topic int, now float64) *Order {
	o := d.Ordering(how, mode, topic, now)
	for !o.Sort(1) {
	}
	return o.Order()
}

func TestATokensLiftIsTheMeanOverItsExpertsByWeight(t *testing.T) {
	m := small().Map
	// Layer 1: experts 1 (lift 3) and 3 (0.3); layer 2: experts 0 (1) and 2 (5).
	if got, want := TokenLift(m, 0, []int{1, 2}, []uint16{1, 3, 0, 2}, []byte{100, 50, 30, 20}), (100*3+50*float64(float32(0.3))+30*1+20*5)/200; math.Abs(got-want) > 1e-9 {
		t.Errorf("%g, want %g", got, want)
	}
	// Nothing is known of layer 1's expert 0, and the atlas has no layer 7.
	if got := TokenLift(m, 0, []int{1, 7}, []uint16{0, 1, 2, 3}, []byte{9, 9, 9, 9}); got != 3 {
		t.Errorf("%g, want 3: the one expert that is known", got)
	}
	for name, got := range map[string]float64{"no topic": TokenLift(m, 2, []int{1}, []uint16{1}, []byte{1}), "no layer": TokenLift(m, 0, nil, nil, nil), "nothing known": TokenLift(m, 0, []int{1}, []uint16{0}, []byte{1})} {
		if !math.IsNaN(got) {
			t.Errorf("%s: %g, want NaN", name, got)
		}
	}
}
