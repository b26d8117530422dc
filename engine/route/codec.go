package route

// The blob: a self-contained, canonical encoding of events (one turn, or one live frame of a single event).
//
//	byte     version, 1
//	byte     weight form, 1 = one byte a weight, 2 = float32
//	uvarint  number of MoE layers L
//	L x      uvarint: the first layer's index, then differences to the layer before (at least 1)
//	uvarint  experts a layer E
//	uvarint  experts a row k
//	uvarint  number of events
//	events, each:
//	  uvarint  step, as difference to the event before (the first to 0)
//	  zigzag   sequence, as difference to the event before (the first to 0)
//	  zigzag   position, as difference to position + rows of the event before (the first to 0)
//	  uvarint  rows R
//	  R x      uvarint: input token of the row
//	  uvarint  expert bytes
//	  uvarint  nanoseconds of the step
//	  byte     1 if tiers follow, else 0
//	  ids      R*L*k fields of bits.Len(E-1) bits, least significant bit first, padded with zero bits to a whole byte
//	  weights  form 1: float32 little endian m = the largest weight of the event, then R*L*k bytes q = rint(255 * w / m);
//	           form 2: R*L*k float32 little endian
//	  tiers    R*L*k fields of two bits, packed like ids; only if the byte said so
//
// Varints are encoding/binary's and minimal. Order inside ids, weights and tiers is that of Event. Encoding is a
// function of the events alone and decoding accepts nothing that encoding does not write, so equal blobs mean equal
// events. Form 1 reads back q * m / 255 and is off by at most m/510 (0.2 % of the event's largest weight), or by 2^-126
// when m is below that; encoding what was decoded gives the same blob again. A row of 29 layers x 4 of 32 experts
// takes 189 bytes and an event about 15 more.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// ErrCorrupt is wrapped by every error of Decode: the blob was not written by Encode.
var ErrCorrupt = errors.New("route: corrupt blob")

// WeightForm says how a blob holds weights.
type WeightForm byte

// Weight forms. The numbers are part of the format.
const (
	WeightsByte  WeightForm = 1 // one byte each, error at most 1/510 of the event's largest weight; weights must be >= 0
	WeightsExact WeightForm = 2 // the float32 bits
)

// Limits of what Encode writes and Decode accepts.
const (
	MaxLayers  = 1 << 12
	MaxExperts = 1 << 16
	MaxTopK    = 1 << 8
	version    = 1
	minNormal  = 0x1p-126
)

func (s Shape) check() error {
	if len(s.Layers) > MaxLayers {
		return fmt.Errorf("%d layers, at most %d", len(s.Layers), MaxLayers)
	}
	for j, l := range s.Layers {
		if l < 0 || l > math.MaxInt32 || j > 0 && l <= s.Layers[j-1] {
			return fmt.Errorf("layer indices must ascend from 0: index %d is %d", j, l)
		}
	}
	if s.Experts < 1 || s.Experts > MaxExperts {
		return fmt.Errorf("%d experts, want 1 to %d", s.Experts, MaxExperts)
	}
	if s.TopK < 1 || s.TopK > MaxTopK || s.TopK > s.Experts {
		return fmt.Errorf("top-k %d of %d experts, want 1 to %d", s.TopK, s.Experts, min(MaxTopK, s.Experts))
	}
	return nil
}

// Encode writes events as a blob. Steps must not descend. It fails on an event that does not fit the shape: slices of
// the wrong length, ids out of range, or weights that the form cannot hold (negative or not finite for WeightsByte).
func Encode(s Shape, events []*Event, form WeightForm) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("route: encoding shape: %w", err)
	}
	if form != WeightsByte && form != WeightsExact {
		return nil, fmt.Errorf("route: encoding: unknown weight form %d", form)
	}
	b := []byte{version, byte(form)}
	b = binary.AppendUvarint(b, uint64(len(s.Layers)))
	for j, l := range s.Layers {
		if j > 0 {
			l -= s.Layers[j-1]
		}
		b = binary.AppendUvarint(b, uint64(l))
	}
	b = binary.AppendUvarint(b, uint64(s.Experts))
	b = binary.AppendUvarint(b, uint64(s.TopK))
	b = binary.AppendUvarint(b, uint64(len(events)))
	var last cursor
	for i, e := range events {
		var err error
		if b, err = last.append(b, s, e, form); err != nil {
			return nil, fmt.Errorf("route: encoding event %d: %w", i, err)
		}
	}
	return b, nil
}

// cursor is what an event is written relative to.
type cursor struct {
	step, sequence uint64
	position       int64
}

func (c *cursor) append(b []byte, s Shape, e *Event, form WeightForm) ([]byte, error) {
	slots := e.Rows() * s.Slots()
	switch {
	case e.Rows() == 0:
		return nil, errors.New("no rows")
	case len(e.IDs) != slots || len(e.Weights) != slots || e.Tiers != nil && len(e.Tiers) != slots:
		return nil, fmt.Errorf("%d ids, %d weights, %d tiers for %d rows x %d slots", len(e.IDs), len(e.Weights), len(e.Tiers), e.Rows(), s.Slots())
	case e.Step < c.step:
		return nil, fmt.Errorf("step %d after step %d", e.Step, c.step)
	case e.Position < 0 || e.Position > math.MaxInt32 || e.Rows() > math.MaxInt32-e.Position:
		return nil, fmt.Errorf("position %d out of range", e.Position)
	case e.Bytes < 0 || e.StepNanos < 0:
		return nil, fmt.Errorf("negative bytes (%d) or time (%d ns)", e.Bytes, e.StepNanos)
	}
	b = binary.AppendUvarint(b, e.Step-c.step)
	b = binary.AppendVarint(b, int64(e.Sequence-c.sequence))
	b = binary.AppendVarint(b, int64(e.Position)-c.position)
	b = binary.AppendUvarint(b, uint64(e.Rows()))
	*c = cursor{e.Step, e.Sequence, int64(e.Position + e.Rows())}
	for _, t := range e.Tokens {
		if t < 0 {
			return nil, fmt.Errorf("token %d is negative", t)
		}
		b = binary.AppendUvarint(b, uint64(t))
	}
	b = binary.AppendUvarint(b, uint64(e.Bytes))
	b = binary.AppendUvarint(b, uint64(e.StepNanos))
	if e.Tiers == nil {
		b = append(b, 0)
	} else {
		b = append(b, 1)
	}
	w := bitWriter{b: b}
	width := idBits(s)
	for i, id := range e.IDs {
		if int(id) >= s.Experts {
			return nil, fmt.Errorf("slot %d: expert %d of %d", i, id, s.Experts)
		}
		w.put(uint64(id), width)
	}
	b = w.done()
	if form == WeightsExact {
		for _, x := range e.Weights {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
	} else {
		var m float32
		for i, x := range e.Weights {
			if !(x >= 0) || math.IsInf(float64(x), 0) {
				return nil, fmt.Errorf("slot %d: weight %v is negative or not finite", i, x)
			}
			m = max(m, x)
		}
		if m < minNormal {
			m = 0
		}
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(m))
		for _, x := range e.Weights {
			var q byte
			if m > 0 {
				q = byte(math.RoundToEven(float64(x) / float64(m) * 255))
			}
			b = append(b, q)
		}
	}
	if e.Tiers != nil {
		w = bitWriter{b: b}
		for i, t := range e.Tiers {
			if t > TierDisk {
				return nil, fmt.Errorf("slot %d: unknown tier %d", i, t)
			}
			w.put(uint64(t), 2)
		}
		b = w.done()
	}
	return b, nil
}

func idBits(s Shape) int { return bits.Len(uint(s.Experts - 1)) }

// Decode reads a blob whole. What it allocates is at most thirty times the length of the blob.
func Decode(blob []byte) (Shape, []*Event, error) {
	d := decoder{b: blob}
	s, events := d.blob()
	if d.err == nil && len(d.b) != 0 {
		d.fail("%d bytes follow the last event", len(d.b))
	}
	if d.err != nil {
		return Shape{}, nil, fmt.Errorf("%w: at byte %d of %d: %w", ErrCorrupt, len(blob)-len(d.b), len(blob), d.err)
	}
	return s, events, nil
}

// decoder consumes b; after the first error every read gives zero.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

func (d *decoder) take(n int) []byte {
	if d.err == nil && (n < 0 || n > len(d.b)) {
		d.fail("%d bytes wanted, %d left", n, len(d.b))
	}
	if d.err != nil {
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) byte() byte {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

// uvarint reads a minimal varint of at most limit.
func (d *decoder) uvarint(what string, limit uint64) uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.b)
	switch {
	case n <= 0:
		d.fail("%s: no whole number here", what)
	case n > 1 && d.b[n-1] == 0:
		d.fail("%s: number is not minimal", what)
	case v > limit:
		d.fail("%s is %d, at most %d", what, v, limit)
	default:
		d.b = d.b[n:]
		return v
	}
	return 0
}

func (d *decoder) varint(what string) int64 {
	u := d.uvarint(what, math.MaxUint64)
	return int64(u>>1) ^ -int64(u&1)
}

func (d *decoder) blob() (s Shape, events []*Event) {
	if v := d.byte(); d.err == nil && v != version {
		d.fail("version %d, want %d", v, version)
	}
	form := WeightForm(d.byte())
	if d.err == nil && form != WeightsByte && form != WeightsExact {
		d.fail("unknown weight form %d", form)
	}
	layers := int(d.uvarint("layers", MaxLayers))
	if layers > len(d.b) {
		d.fail("%d layers in %d bytes", layers, len(d.b))
	}
	if d.err != nil {
		return
	}
	s.Layers = make([]int, layers)
	for j := range s.Layers {
		s.Layers[j] = int(d.uvarint("layer", math.MaxInt32))
		if j > 0 {
			s.Layers[j] += s.Layers[j-1]
		}
	}
	s.Experts = int(d.uvarint("experts", MaxExperts))
	s.TopK = int(d.uvarint("top-k", MaxTopK))
	if d.err == nil {
		d.err = s.check()
	}
	n := d.uvarint("events", math.MaxInt32)
	const least = 9 // bytes of an event of one row without layers
	if d.err == nil && n > uint64(len(d.b)/least) {
		d.fail("%d events in %d bytes", n, len(d.b))
	}
	if d.err != nil {
		return
	}
	events = make([]*Event, 0, n)
	var last cursor
	for range n {
		e := d.event(s, form, &last)
		if d.err != nil {
			return
		}
		events = append(events, e)
	}
	return
}

func (d *decoder) event(s Shape, form WeightForm, c *cursor) *Event {
	e := &Event{Step: c.step + d.uvarint("step", math.MaxUint64-c.step)}
	e.Sequence = c.sequence + uint64(d.varint("sequence"))
	delta := d.varint("position")
	if delta < -c.position || delta > math.MaxInt32-c.position {
		d.fail("position: %d%+d is out of range", c.position, delta)
		return nil
	}
	e.Position = int(c.position + delta)
	rows := int(d.uvarint("rows", uint64(math.MaxInt32-e.Position)))
	if d.err == nil && rows == 0 {
		d.fail("event without rows")
	}
	if rows > len(d.b)/(1+s.Slots()) { // a row takes at least a byte for its token and one for each weight
		d.fail("%d rows of %d slots in %d bytes", rows, s.Slots(), len(d.b))
	}
	if d.err != nil {
		return nil
	}
	*c = cursor{e.Step, e.Sequence, int64(e.Position + rows)}
	e.Tokens = make([]int32, rows)
	for r := range e.Tokens {
		e.Tokens[r] = int32(d.uvarint("token", math.MaxInt32))
	}
	e.Bytes = int64(d.uvarint("bytes", math.MaxInt64))
	e.StepNanos = int64(d.uvarint("nanoseconds", math.MaxInt64))
	tiers := d.byte()
	if tiers > 1 {
		d.fail("tier mark is %d, want 0 or 1", tiers)
	}
	slots := rows * s.Slots()
	e.IDs = make([]uint16, slots)
	d.packed(slots, idBits(s), func(i int, v uint64) {
		if v >= uint64(s.Experts) {
			d.fail("slot %d: expert %d of %d", i, v, s.Experts)
		}
		e.IDs[i] = uint16(v)
	})
	e.Weights = make([]float32, slots)
	if form == WeightsExact {
		p := d.take(4 * slots)
		for i := range len(p) / 4 {
			e.Weights[i] = math.Float32frombits(binary.LittleEndian.Uint32(p[4*i:]))
		}
	} else {
		d.bytes(e.Weights)
	}
	if tiers == 1 {
		e.Tiers = make([]Tier, slots)
		d.packed(slots, 2, func(i int, v uint64) { e.Tiers[i] = Tier(v) })
	}
	return e
}

// bytes reads weights of form 1.
func (d *decoder) bytes(dst []float32) {
	p := d.take(4 + len(dst))
	if p == nil {
		return
	}
	m := math.Float32frombits(binary.LittleEndian.Uint32(p))
	if !(m == 0 && !math.Signbit(float64(m)) || m >= minNormal) || math.IsInf(float64(m), 0) {
		d.fail("largest weight %v", m)
		return
	}
	var top byte
	for i, q := range p[4:] {
		top = max(top, q)
		dst[i] = float32(float64(q) * float64(m) / 255)
	}
	if len(dst) > 0 && (m == 0) != (top == 0) || m > 0 && top != 255 {
		d.fail("largest weight is %v but largest byte %d", m, top)
	}
}

// packed reads n fields of width bits and the padding, which must be zero.
func (d *decoder) packed(n, width int, put func(i int, v uint64)) {
	p := d.take((n*width + 7) / 8)
	if p == nil {
		return
	}
	var acc uint64
	have := 0
	for i := range n {
		for have < width {
			acc |= uint64(p[0]) << have
			p, have = p[1:], have+8
		}
		put(i, acc&(1<<width-1))
		acc, have = acc>>width, have-width
	}
	if acc != 0 {
		d.fail("padding bits are not zero")
	}
}

// bitWriter appends fields of bits to b, least significant bit first.
type bitWriter struct {
	b    []byte
	acc  uint64
	have int
}

func (w *bitWriter) put(v uint64, width int) {
	w.acc |= v << w.have
	for w.have += width; w.have >= 8; w.have -= 8 {
		w.b = append(w.b, byte(w.acc))
		w.acc >>= 8
	}
}

func (w *bitWriter) done() []byte {
	if w.have > 0 {
		w.b = append(w.b, byte(w.acc))
	}
	return w.b
}
