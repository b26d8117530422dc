package wire

// Pulses is what the engine's routers chose in a short window, over every sequence that ran: answers, API requests and
// probes alike. Visual: at most ten a second, dropped first when the browser is slow; Number shows a gap.
//
//	layout: kind, number uint, rows uint, sequences uint, n uint, n x (skip uint, count uint)
//
// The cells that were chosen ascend; skip is the difference to the cell before minus 1 (for the first: the cell).
// Count is at least 1. A cell is MoE layer * experts + expert.
type Pulses struct {
	Number    int // of the window, ascending by 1 while this connection follows
	Rows      int // rows that the window's steps had
	Sequences int // sequences that had rows in them
	Cells     []Pulse
}

// Pulse is one chosen expert of a window.
type Pulse struct{ Cell, Count int }

// Append appends the encoded frame to b. Cells must ascend.
func (p Pulses) Append(b []byte) []byte {
	b = append(b, byte(KindPulses))
	b = appendUint(b, uint64(p.Number))
	b = appendUint(b, uint64(p.Rows))
	b = appendUint(b, uint64(p.Sequences))
	return appendCells(b, p.Cells)
}

// DecodePulses decodes a Pulses frame.
func DecodePulses(b []byte) (Pulses, error) {
	r := open(b, KindPulses)
	p := Pulses{Number: r.int(), Rows: r.int(), Sequences: r.int()}
	p.Cells = r.cells()
	return p, r.end()
}

func appendCells(b []byte, cells []Pulse) []byte {
	b = appendUint(b, uint64(len(cells)))
	next := 0
	for _, c := range cells {
		b = appendUint(b, uint64(c.Cell-next))
		b = appendUint(b, uint64(c.Count))
		next = c.Cell + 1
	}
	return b
}

func (r *reader) cells() []Pulse {
	n := r.count(2, maxCells)
	if r.err != nil || n == 0 {
		return nil
	}
	cells := make([]Pulse, n)
	next := 0
	for i := range cells {
		skip, count := r.int(), r.int()
		if r.err == nil && (skip >= maxCells-next || count == 0) {
			r.fail(ErrLimit)
		}
		if r.err != nil {
			break
		}
		cells[i] = Pulse{Cell: next + skip, Count: count}
		next += skip + 1
	}
	return cells
}

// Traced is what the routers chose for one text that was read and not answered.
//
//	layout: kind, tokens uint, then cells as in Pulses
type Traced struct {
	Tokens int
	Cells  []Pulse
}

// Append appends the encoded frame to b. Cells must ascend.
func (t Traced) Append(b []byte) []byte {
	return appendCells(appendUint(append(b, byte(KindTraced)), uint64(t.Tokens)), t.Cells)
}

// DecodeTraced decodes a Traced frame.
func DecodeTraced(b []byte) (Traced, error) {
	r := open(b, KindTraced)
	t := Traced{Tokens: r.int()}
	t.Cells = r.cells()
	return t, r.end()
}

// Tally is what the routers chose in the stored answers of one conversation.
//
//	layout: kind, conversation str, answers uint, stopped uint, tokens uint, then cells as in Pulses
type Tally struct {
	Conversation string
	Answers      int // whose routing is stored, other versions of a message too
	Stopped      int // of these, that were cut off before their end
	Tokens       int // of these, prompts too
	Cells        []Pulse
}

// Append appends the encoded frame to b. Cells must ascend.
func (t Tally) Append(b []byte) []byte {
	b = appendString(append(b, byte(KindTally)), t.Conversation)
	b = appendUint(appendUint(appendUint(b, uint64(t.Answers)), uint64(t.Stopped)), uint64(t.Tokens))
	return appendCells(b, t.Cells)
}

// DecodeTally decodes a Tally frame.
func DecodeTally(b []byte) (Tally, error) {
	r := open(b, KindTally)
	t := Tally{Conversation: r.string(), Answers: r.int(), Stopped: r.int(), Tokens: r.int()}
	t.Cells = r.cells()
	return t, r.end()
}

// Tiers is where the experts' weights are at one moment, with what steps found and read since the daemon started.
//
//	layout: kind, hits uint, misses uint, n uint, n x byte (1 = in memory, 0 = on disk)
type Tiers struct {
	Hits, Misses uint64
	InMemory     []bool // [layers, experts]
}

// Append appends the encoded frame to b.
func (t Tiers) Append(b []byte) []byte {
	b = appendUint(appendUint(append(b, byte(KindTiers)), t.Hits), t.Misses)
	b = appendUint(b, uint64(len(t.InMemory)))
	for _, in := range t.InMemory {
		if in {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	return b
}

// DecodeTiers decodes a Tiers frame.
func DecodeTiers(b []byte) (Tiers, error) {
	r := open(b, KindTiers)
	t := Tiers{Hits: r.uint(), Misses: r.uint()}
	n := r.count(1, maxCells)
	if r.err == nil {
		t.InMemory = make([]bool, n)
	}
	for i := range t.InMemory {
		v := r.byte()
		if v > 1 {
			r.fail(ErrLimit)
		}
		t.InMemory[i] = v == 1
	}
	return t, r.end()
}

// maxCells bounds layers times experts of a Map or Pulses frame.
const maxCells = 1 << 18

// Map is what the expert map shows of every cell. All arrays are [layers, experts]; those of an atlas are empty when
// there is none. NaN means that nothing is known.
//
//	layout:  kind, shape, selections, ages, atlas str, name str, n uint, n x (topic str, lift, low, high), specificity, q
//	arrays:  count uint, count x f32
type Map struct {
	Shape       Shape
	Selections  []float32 // in the stored history
	Ages        []float32 // seconds since the last stored answer that chose the cell; NaN = never
	Atlas       string    // id in the store; "" = none
	Name        string    // of the atlas
	Topics      []MapTopic
	Specificity []float32 // 1 - H/ln C less its mean under permuted labels
	Q           []float32 // the least false discovery rate over the topics
}

// MapTopic is one topic of a Map's atlas: lift with its 95 % interval.
type MapTopic struct {
	Topic           string
	Lift, Low, High []float32
}

const maxMapTopics = 256

func appendFloats(b []byte, v []float32) []byte {
	b = appendUint(b, uint64(len(v)))
	for _, x := range v {
		b = appendFloat(b, x)
	}
	return b
}

// floats reads an array that is empty or has one value a cell.
func (r *reader) floats(cells int) []float32 {
	n := r.count(4, maxCells)
	if r.err == nil && n != 0 && n != cells {
		r.fail(ErrLimit)
	}
	if r.err != nil || n == 0 {
		return nil
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = r.float()
	}
	return v
}

// Append appends the encoded frame to b.
func (m Map) Append(b []byte) []byte {
	b = append(b, byte(KindMap))
	b = m.Shape.append(b)
	b = appendFloats(b, m.Selections)
	b = appendFloats(b, m.Ages)
	b = appendString(b, m.Atlas)
	b = appendString(b, m.Name)
	b = appendUint(b, uint64(len(m.Topics)))
	for _, t := range m.Topics {
		b = appendString(b, t.Topic)
		b = appendFloats(b, t.Lift)
		b = appendFloats(b, t.Low)
		b = appendFloats(b, t.High)
	}
	return appendFloats(appendFloats(b, m.Specificity), m.Q)
}

// DecodeMap decodes a Map frame.
func DecodeMap(b []byte) (Map, error) {
	r := open(b, KindMap)
	m := Map{Shape: r.shape()}
	cells := len(m.Shape.Layers) * m.Shape.Experts
	if cells > maxCells {
		r.fail(ErrLimit)
	}
	m.Selections, m.Ages = r.floats(cells), r.floats(cells)
	m.Atlas, m.Name = r.string(), r.string()
	n := r.count(4, maxMapTopics)
	for range n {
		if r.err != nil {
			break
		}
		m.Topics = append(m.Topics, MapTopic{Topic: r.string(), Lift: r.floats(cells), Low: r.floats(cells), High: r.floats(cells)})
	}
	m.Specificity, m.Q = r.floats(cells), r.floats(cells)
	return m, r.end()
}
