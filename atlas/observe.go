package atlas

// This file is one observation: the routing of one text, and its form as bytes, in which the store keeps it.
//
//	byte    version (1)
//	uvarint layers, experts a layer, top-k, tokens
//	uvarint each token id
//	bytes   expert ids [tokens, layers, k]: one byte each up to 256 experts, else two, little-endian
//	float32 router weight mass [layers, experts], little-endian
//
// Selections are counted from the ids. The mass is summed in float64 with positions ascending, layers ascending, ranks
// ascending (route.Counts) and rounded once, so that equal forwards give equal bytes.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"covey/engine/route"
)

const (
	observationVersion = 1
	maxTokens          = 1 << 20 // of one observation
	maxExperts         = 1 << 20 // of a model, over all layers
)

// Observation is what one text showed. Only counted positions are in it.
type Observation struct {
	Tokens []int32   // [n]
	IDs    []uint16  // [n, layers, k] experts by rank
	Mass   []float32 // [layers, experts] sum of combination weights
}

// observe collects the counted rows of a forward.
func observe(s route.Shape, p Prompt, events []*route.Event) (*Observation, error) {
	counts := route.NewCounts(s)
	o := &Observation{}
	next, slots := 0, s.Slots()
	for _, e := range events {
		if e.Position != next {
			return nil, fmt.Errorf("atlas: routing continues at position %d, expected %d", e.Position, next)
		}
		next += e.Rows()
		from, to := max(p.From, e.Position), min(p.To, next)
		if from >= to {
			continue
		}
		a, b := from-e.Position, to-e.Position
		if len(e.IDs) != e.Rows()*slots || len(e.Weights) != e.Rows()*slots {
			return nil, fmt.Errorf("atlas: routing of %d rows has %d ids and %d weights", e.Rows(), len(e.IDs), len(e.Weights))
		}
		part := route.Event{Tokens: e.Tokens[a:b], IDs: e.IDs[a*slots : b*slots], Weights: e.Weights[a*slots : b*slots]}
		if !slices.Equal(part.Tokens, p.Tokens[from:to]) {
			return nil, errors.New("atlas: routing is of other tokens than were asked for")
		}
		if err := counts.Add(&part); err != nil {
			return nil, err
		}
		o.Tokens = append(o.Tokens, part.Tokens...)
		o.IDs = append(o.IDs, part.IDs...)
	}
	if len(o.Tokens) != p.To-p.From {
		return nil, fmt.Errorf("atlas: routing of %d of %d positions", len(o.Tokens), p.To-p.From)
	}
	o.Mass = make([]float32, len(counts.Mass))
	for i, m := range counts.Mass {
		o.Mass[i] = float32(m)
	}
	return o, nil
}

// encode makes the bytes of an observation.
func (o *Observation) encode(s route.Shape) []byte {
	out := []byte{observationVersion}
	for _, v := range []int{len(s.Layers), s.Experts, s.TopK, len(o.Tokens)} {
		out = binary.AppendUvarint(out, uint64(v))
	}
	for _, t := range o.Tokens {
		out = binary.AppendUvarint(out, uint64(uint32(t)))
	}
	for _, id := range o.IDs {
		if s.Experts <= 256 {
			out = append(out, byte(id))
		} else {
			out = binary.LittleEndian.AppendUint16(out, id)
		}
	}
	for _, m := range o.Mass {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(m))
	}
	return out
}

// decodeObservation reads what encode wrote for the same shape.
func decodeObservation(s route.Shape, b []byte) (*Observation, error) {
	bad := func(format string, args ...any) (*Observation, error) {
		return nil, fmt.Errorf("atlas: observation: "+format, args...)
	}
	if len(b) == 0 || b[0] != observationVersion {
		return bad("not version %d", observationVersion)
	}
	rest := b[1:]
	number := func() (int, bool) {
		v, n := binary.Uvarint(rest)
		if n <= 0 || v > math.MaxInt32 {
			return 0, false
		}
		rest = rest[n:]
		return int(v), true
	}
	var head [4]int
	for i := range head {
		v, ok := number()
		if !ok {
			return bad("cut short in its head")
		}
		head[i] = v
	}
	if head[0] != len(s.Layers) || head[1] != s.Experts || head[2] != s.TopK {
		return bad("of %d layers, %d experts, top-%d; the model has %d, %d, top-%d", head[0], head[1], head[2], len(s.Layers), s.Experts, s.TopK)
	}
	n := head[3]
	if n > maxTokens || n > len(rest) {
		return bad("%d tokens in %d bytes", n, len(b))
	}
	o := &Observation{Tokens: make([]int32, n)}
	for i := range o.Tokens {
		v, ok := number()
		if !ok {
			return bad("cut short at token %d", i)
		}
		o.Tokens[i] = int32(v)
	}
	wide := 1
	if s.Experts > 256 {
		wide = 2
	}
	ids, experts := n*s.Slots(), len(s.Layers)*s.Experts
	if len(rest) != ids*wide+experts*4 {
		return bad("%d bytes after the tokens, expected %d", len(rest), ids*wide+experts*4)
	}
	o.IDs = make([]uint16, ids)
	for i := range o.IDs {
		if wide == 1 {
			o.IDs[i] = uint16(rest[i])
		} else {
			o.IDs[i] = binary.LittleEndian.Uint16(rest[2*i:])
		}
		if int(o.IDs[i]) >= s.Experts {
			return bad("expert %d of %d", o.IDs[i], s.Experts)
		}
	}
	rest = rest[ids*wide:]
	o.Mass = make([]float32, experts)
	for i := range o.Mass {
		o.Mass[i] = math.Float32frombits(binary.LittleEndian.Uint32(rest[4*i:]))
		if m := float64(o.Mass[i]); math.IsNaN(m) || math.IsInf(m, 0) {
			return bad("mass of expert %d is not finite", i)
		}
	}
	return o, nil
}

// selections counts how often each expert was selected over positions [from, n), [layers*experts].
func (o *Observation) selections(s route.Shape, from int) []int64 {
	out := make([]int64, len(s.Layers)*s.Experts)
	slots := s.Slots()
	for i, id := range o.IDs[min(from*slots, len(o.IDs)):] {
		out[i%slots/s.TopK*s.Experts+int(id)]++
	}
	return out
}
