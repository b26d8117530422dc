package wire

// Kind is the first byte of a binary server frame.
type Kind byte

// Kinds, with the Go type that holds the payload. 0xc0-0xdf belong to the expert map, 0xe0-0xff to atlases and jobs.
const (
	KindWelcome  Kind = 0x81 // Welcome
	KindPong     Kind = 0x82 // no payload
	KindAck      Kind = 0x83 // Ack
	KindFailure  Kind = 0x84 // Failure
	KindTokens   Kind = 0x85 // Tokens
	KindRouting  Kind = 0x86 // Routing
	KindState    Kind = 0x87 // State
	KindDetailed Kind = 0x88 // Detailed

	KindPulses Kind = 0xc0 // Pulses
	KindMap    Kind = 0xc2 // Map; 0xc1 was its form without Q
	KindTraced Kind = 0xc3 // Traced
	KindTiers  Kind = 0xc5 // Tiers
	KindTally  Kind = 0xc6 // Tally; 0xc4 was its form without answers
)

// FrameKind returns the kind of a binary server frame; 0 for an empty one.
func FrameKind(b []byte) Kind {
	if len(b) == 0 {
		return 0
	}
	return Kind(b[0])
}

// open checks the kind byte and the size and returns a reader of the payload.
func open(b []byte, kind Kind) reader {
	r := reader{b: b}
	if len(b) > MaxFrame {
		r.fail(ErrLimit)
	} else if Kind(r.byte()) != kind {
		r.fail(ErrKind)
	}
	return r
}

// Welcome answers Hello.
//
//	layout: kind, version uint, boot str, model str, context uint, shape
//	shape:  k uint, experts uint, n uint, n x layer uint
type Welcome struct {
	Version int
	Boot    string // differs after each start of the daemon
	Model   string // title; "" while the model is loading
	Context int    // longest sequence in tokens
	Shape   Shape
}

// Shape is the routing geometry: the model layer index of each MoE layer, ascending, experts a layer, experts a row.
type Shape struct {
	Layers  []int
	Experts int
	TopK    int
}

// Slots is the number of (layer, rank) places of one row.
func (s Shape) Slots() int { return len(s.Layers) * s.TopK }

func (s Shape) append(b []byte) []byte {
	b = appendUint(b, uint64(s.TopK))
	b = appendUint(b, uint64(s.Experts))
	b = appendUint(b, uint64(len(s.Layers)))
	for _, l := range s.Layers {
		b = appendUint(b, uint64(l))
	}
	return b
}

func (r *reader) shape() Shape {
	s := Shape{TopK: r.count(0, maxTopK), Experts: r.count(0, maxExperts)}
	n := r.count(1, maxLayers)
	if n > 0 {
		s.Layers = make([]int, n)
	}
	for i := range s.Layers {
		s.Layers[i] = r.int()
	}
	return s
}

// Append appends the encoded frame to b.
func (w Welcome) Append(b []byte) []byte {
	b = append(b, byte(KindWelcome))
	b = appendUint(b, uint64(w.Version))
	b = appendString(b, w.Boot)
	b = appendString(b, w.Model)
	b = appendUint(b, uint64(w.Context))
	return w.Shape.append(b)
}

// DecodeWelcome decodes a Welcome frame.
func DecodeWelcome(b []byte) (Welcome, error) {
	r := open(b, KindWelcome)
	w := Welcome{Version: r.int(), Boot: r.string(), Model: r.string(), Context: r.int(), Shape: r.shape()}
	return w, r.end()
}

// Pong is the whole answer to Ping.
func Pong() []byte { return []byte{byte(KindPong)} }

// Ack says that a command was done.
//
//	layout: kind, seq uint, n uint, n x str
type Ack struct {
	Seq  uint64
	Args []string // as the command's comment says
}

// Arg returns argument i, or "" when there are fewer.
func (a Ack) Arg(i int) string { return Command{Args: a.Args}.Arg(i) }

// Append appends the encoded frame to b.
func (a Ack) Append(b []byte) []byte {
	b = append(b, byte(KindAck))
	b = appendUint(b, a.Seq)
	b = appendUint(b, uint64(len(a.Args)))
	for _, s := range a.Args {
		b = appendString(b, s)
	}
	return b
}

// DecodeAck decodes an Ack frame.
func DecodeAck(b []byte) (Ack, error) {
	r := open(b, KindAck)
	a := Ack{Seq: r.uint()}
	n := r.count(1, maxArgs)
	for range n {
		a.Args = append(a.Args, r.string())
	}
	return a, r.end()
}

// Failure says that a command was refused, or (Seq 0) that something went wrong by itself.
//
//	layout: kind, seq uint, code str, message str, hint str
type Failure struct {
	Seq     uint64
	Code    string // for programs: queue_full, too_long, not_found, read_only, loading, invalid, internal
	Message string // for people
	Hint    string // what to do; may be ""
}

// Append appends the encoded frame to b.
func (f Failure) Append(b []byte) []byte {
	b = append(b, byte(KindFailure))
	b = appendUint(b, f.Seq)
	b = appendString(b, f.Code)
	b = appendString(b, f.Message)
	return appendString(b, f.Hint)
}

// DecodeFailure decodes a Failure frame.
func DecodeFailure(b []byte) (Failure, error) {
	r := open(b, KindFailure)
	f := Failure{Seq: r.uint(), Code: r.string(), Message: r.string(), Hint: r.string()}
	return f, r.end()
}

// Phase of a running answer.
type Phase byte

// Phases in order.
const (
	PhaseQueued     Phase = iota // Done = place in the queue, 0 = next
	PhasePrefill                 // Done of Total prompt tokens read
	PhaseGenerating              // Done tokens generated, at Rate tokens a second
	PhaseEnded                   // the patches that follow show how
)

// State tells how far a running answer is. Visual: the newest replaces older ones.
//
//	layout: kind, message str, phase byte, done uint, total uint, rate f32
type State struct {
	Message     string
	Phase       Phase
	Done, Total int
	Rate        float32 // tokens a second over the answer so far; 0 = not known yet
}

// Append appends the encoded frame to b.
func (s State) Append(b []byte) []byte {
	b = append(b, byte(KindState))
	b = appendString(b, s.Message)
	b = append(b, byte(s.Phase))
	b = appendUint(b, uint64(s.Done))
	b = appendUint(b, uint64(s.Total))
	return appendFloat(b, s.Rate)
}

// DecodeState decodes a State frame.
func DecodeState(b []byte) (State, error) {
	r := open(b, KindState)
	s := State{Message: r.string(), Phase: Phase(r.byte()), Done: r.int(), Total: r.int(), Rate: r.float()}
	if s.Phase > PhaseEnded {
		r.fail(ErrKind)
	}
	return s, r.end()
}
