package wire

// Token is one generated token.
//
//	layout: id uint, logprob f32, text str
type Token struct {
	ID      int
	Logprob float32 // natural logarithm under the unmodified distribution
	Text    string  // released by this token, markup included; "" while a character is incomplete
}

const minToken = 1 + 4 + 1 // smallest encoded token, for count checks

func (t Token) append(b []byte) []byte {
	return appendString(appendFloat(appendUint(b, uint64(t.ID)), t.Logprob), t.Text)
}

func (r *reader) token() Token {
	return Token{ID: r.int(), Logprob: r.float(), Text: r.string()}
}

// Tokens carries what a running answer has grown by: consecutive tokens, and the text that they added to what the
// person reads. The two differ where a model marks its reasoning: markers are tokens, but no text. Never dropped; at
// most one a message each 30 ms.
//
//	layout: kind, message str, first uint, answer uint, reasoning uint, text str, thought str, n uint, n x Token
type Tokens struct {
	Message   string
	First     int    // index of the first token in the answer
	Answer    int    // bytes of answer text before Text
	Reasoning int    // bytes of reasoning text before Thought
	Text      string // added to the answer
	Thought   string // added to the reasoning
	Tokens    []Token
}

// Append appends the encoded frame to b.
func (t Tokens) Append(b []byte) []byte {
	b = append(b, byte(KindTokens))
	b = appendString(b, t.Message)
	b = appendUint(b, uint64(t.First))
	b = appendUint(b, uint64(t.Answer))
	b = appendUint(b, uint64(t.Reasoning))
	b = appendString(b, t.Text)
	b = appendString(b, t.Thought)
	b = appendUint(b, uint64(len(t.Tokens)))
	for _, token := range t.Tokens {
		b = token.append(b)
	}
	return b
}

// DecodeTokens decodes a Tokens frame.
func DecodeTokens(b []byte) (Tokens, error) {
	r := open(b, KindTokens)
	t := Tokens{Message: r.string(), First: r.int(), Answer: r.int(), Reasoning: r.int(), Text: r.string(), Thought: r.string()}
	n := r.count(minToken, MaxFrame)
	if r.err == nil {
		t.Tokens = make([]Token, n)
	}
	for i := range t.Tokens {
		t.Tokens[i] = r.token()
	}
	return t, r.end()
}

// Experts is the routing of consecutive rows. Weights are quantised: weight = Scale * w / 255, so the error is at most
// Scale / 510. Index of (row, MoE layer, rank): (row*layers + layer)*k + rank; ranks are the router's order.
//
//	layout: rows uint, layers uint, k uint, wide byte (1 = ids take two bytes, little-endian), scale f32,
//	        rows*layers*k ids, rows*layers*k weight bytes
type Experts struct {
	Rows, Layers, TopK int
	Scale              float32
	IDs                []uint16
	Weights            []byte
}

// Quantise packs routing rows. ids and weights are [rows, layers, k]; weights may be nil (all zero).
func Quantise(rows, layers, k int, ids []uint16, weights []float32) Experts {
	e := Experts{Rows: rows, Layers: layers, TopK: k, IDs: ids, Weights: make([]byte, len(ids))}
	for _, w := range weights {
		e.Scale = max(e.Scale, w)
	}
	if e.Scale == 0 {
		return e
	}
	for i, w := range weights {
		e.Weights[i] = byte(max(w, 0)/e.Scale*255 + 0.5)
	}
	return e
}

// Row returns the ids and weights of one row, [layers, k], sharing e's memory.
func (e Experts) Row(row int) (ids []uint16, weights []byte) {
	n := e.Layers * e.TopK
	return e.IDs[row*n : (row+1)*n], e.Weights[row*n : (row+1)*n]
}

func (e Experts) append(b []byte) []byte {
	b = appendUint(b, uint64(e.Rows))
	b = appendUint(b, uint64(e.Layers))
	b = appendUint(b, uint64(e.TopK))
	wide := byte(0)
	for _, id := range e.IDs {
		if id > 255 {
			wide = 1
			break
		}
	}
	b = append(b, wide)
	b = appendFloat(b, e.Scale)
	for _, id := range e.IDs {
		b = append(b, byte(id))
		if wide == 1 {
			b = append(b, byte(id>>8))
		}
	}
	return append(b, e.Weights...)
}

func (r *reader) experts() Experts {
	e := Experts{Rows: r.count(0, MaxFrame), Layers: r.count(0, maxLayers), TopK: r.count(0, maxTopK)}
	wide := r.byte()
	if wide > 1 {
		r.fail(ErrKind)
	}
	e.Scale = r.float()
	slots := uint64(e.Layers) * uint64(e.TopK) // below 2^16
	if slots == 0 && e.Rows > 0 {
		r.fail(ErrLimit)
	}
	total := uint64(e.Rows) * slots // below 2^39
	if total*uint64(2+wide) > uint64(len(r.b)) {
		r.fail(ErrShort)
	}
	if r.err != nil {
		return Experts{}
	}
	raw := r.bytes(int(total) * int(1+wide))
	e.IDs = make([]uint16, total)
	for i := range e.IDs {
		if wide == 1 {
			e.IDs[i] = uint16(raw[2*i]) | uint16(raw[2*i+1])<<8
		} else {
			e.IDs[i] = uint16(raw[i])
		}
	}
	e.Weights = append([]byte{}, r.bytes(int(total))...)
	return e
}

// Routing carries the experts that served consecutive answer tokens. Visual: dropped first when a reader is slow, at
// most ten a second; Detail fetches what was missed.
//
//	layout: kind, message str, first uint, Experts
type Routing struct {
	Message string
	First   int // answer token index of row 0
	Experts Experts
}

// Append appends the encoded frame to b.
func (t Routing) Append(b []byte) []byte {
	b = append(b, byte(KindRouting))
	b = appendString(b, t.Message)
	b = appendUint(b, uint64(t.First))
	return t.Experts.append(b)
}

// DecodeRouting decodes a Routing frame.
func DecodeRouting(b []byte) (Routing, error) {
	r := open(b, KindRouting)
	t := Routing{Message: r.string(), First: r.int(), Experts: r.experts()}
	return t, r.end()
}

// Alternative is another token the model might have taken.
//
//	layout: logprob f32, text str
type Alternative struct {
	Logprob float32
	Text    string
}

// Detailed answers Detail: everything the token view shows of a run of tokens. A long answer takes several frames.
//
//	layout: kind, message str, first uint, total uint, shape, n uint, n x (Token, m byte, m x Alternative), Experts
type Detailed struct {
	Message      string
	First        int // index of the first token here
	Total        int // tokens of the answer
	Shape        Shape
	Tokens       []Token
	Alternatives [][]Alternative // [tokens][up to 20], most likely first
	Experts      Experts         // Rows is len(Tokens), or 0 when no routing was kept
}

// Append appends the encoded frame to b.
func (d Detailed) Append(b []byte) []byte {
	b = append(b, byte(KindDetailed))
	b = appendString(b, d.Message)
	b = appendUint(b, uint64(d.First))
	b = appendUint(b, uint64(d.Total))
	b = d.Shape.append(b)
	b = appendUint(b, uint64(len(d.Tokens)))
	for i, t := range d.Tokens {
		b = t.append(b)
		alternatives := d.Alternatives[i]
		b = append(b, byte(len(alternatives)))
		for _, a := range alternatives {
			b = appendString(appendFloat(b, a.Logprob), a.Text)
		}
	}
	return d.Experts.append(b)
}

// DecodeDetailed decodes a Detailed frame.
func DecodeDetailed(b []byte) (Detailed, error) {
	r := open(b, KindDetailed)
	d := Detailed{Message: r.string(), First: r.int(), Total: r.int(), Shape: r.shape()}
	n := r.count(minToken+1, MaxFrame)
	if r.err == nil {
		d.Tokens, d.Alternatives = make([]Token, n), make([][]Alternative, n)
	}
	for i := range d.Tokens {
		d.Tokens[i] = r.token()
		m := int(r.byte())
		for range m {
			if r.err != nil {
				break
			}
			d.Alternatives[i] = append(d.Alternatives[i], Alternative{Logprob: r.float(), Text: r.string()})
		}
	}
	d.Experts = r.experts()
	if r.err == nil && d.Experts.Rows != 0 && (d.Experts.Rows != n || d.Experts.Layers != len(d.Shape.Layers) || d.Experts.TopK != d.Shape.TopK) {
		r.fail(ErrLimit)
	}
	return d, r.end()
}
