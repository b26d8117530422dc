package queue

// The two messages. Varints are encoding/binary's.
//
//	work:    byte 2, byte flags (1 routing, 2 scores), uvarint n, n x uvarint token, and with scores uvarint first and behind
//	         the last token that counts, uvarint n, n x (uvarint m, m x (uvarint layer, uvarint expert)) sets taken out
//	answer:  byte 2, byte 0, uvarint n, n bytes of routing (package route, exact weights), uvarint n, n x float64 scores,
//	         little-endian
//	failure: byte 2, byte 1, text

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"covey/atlas"
	"covey/engine"
	"covey/engine/route"
)

const (
	messageVersion = 2
	flagRouting    = 1
	flagScores     = 2
	maxTokens      = 1 << 20
	maxRemovals    = 1 << 12
	maxRemoved     = 1 << 20 // experts of one removal
	maxReason      = 2000    // bytes of a failure's text
)

var errCut = errors.New("queue: message cut short, or longer than it says")

// question is a forward that is asked for.
type question struct {
	tokens  []int32
	options atlas.ForwardOptions
}

func (q question) encode() []byte {
	flags := byte(0)
	if q.options.Routing {
		flags |= flagRouting
	}
	if q.options.Score != nil {
		flags |= flagScores
	}
	b := binary.AppendUvarint([]byte{messageVersion, flags}, uint64(len(q.tokens)))
	for _, t := range q.tokens {
		b = binary.AppendUvarint(b, uint64(uint32(t)))
	}
	if s := q.options.Score; s != nil {
		b = binary.AppendUvarint(b, uint64(s.From))
		b = binary.AppendUvarint(b, uint64(s.To))
		b = binary.AppendUvarint(b, uint64(len(s.Without)))
		for _, experts := range s.Without {
			b = binary.AppendUvarint(b, uint64(len(experts)))
			for _, x := range experts {
				b = binary.AppendUvarint(b, uint64(x.Layer))
				b = binary.AppendUvarint(b, uint64(x.ID))
			}
		}
	}
	return b
}

// key names a question: equal questions have equal keys.
func key(message []byte) string {
	sum := sha256.Sum256(message)
	return hex.EncodeToString(sum[:16])
}

// reader takes a message apart; the first thing wrong with it stays in err.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.b) {
		r.err = errCut
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// uint reads a number of at most limit.
func (r *reader) uint(limit int) int {
	v, n := binary.Uvarint(r.b)
	if r.err != nil || n <= 0 || v > uint64(limit) {
		r.err = errCut
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

// count reads a number of things that take at least size bytes each.
func (r *reader) count(size, limit int) int { return r.uint(min(limit, len(r.b)/size)) }

func decodeQuestion(b []byte) (question, error) {
	r := &reader{b: b}
	if r.byte() != messageVersion {
		return question{}, fmt.Errorf("queue: work is not of version %d", messageVersion)
	}
	flags := r.byte()
	if flags&^(flagRouting|flagScores) != 0 {
		return question{}, fmt.Errorf("queue: work with flags %#x", flags)
	}
	q := question{options: atlas.ForwardOptions{Routing: flags&flagRouting != 0}}
	n := r.count(1, maxTokens)
	q.tokens = make([]int32, n)
	for i := range q.tokens {
		q.tokens[i] = int32(r.uint(math.MaxInt32))
	}
	if flags&flagScores != 0 {
		s := &atlas.Score{From: r.uint(n), To: r.uint(n)}
		for range r.count(1, maxRemovals) {
			var experts []engine.Expert
			for range r.count(2, maxRemoved) {
				experts = append(experts, engine.Expert{Layer: r.uint(route.MaxLayers), ID: r.uint(route.MaxExperts)})
			}
			s.Without = append(s.Without, experts)
		}
		q.options.Score = s
	}
	if r.err != nil || len(r.b) > 0 {
		return question{}, errCut
	}
	return q, nil
}

func encodeAnswer(s route.Shape, f atlas.Forward) ([]byte, error) {
	var events []byte
	if len(f.Events) > 0 {
		var err error
		if events, err = route.Encode(s, f.Events, route.WeightsExact); err != nil {
			return nil, err
		}
	}
	b := binary.AppendUvarint([]byte{messageVersion, 0}, uint64(len(events)))
	b = append(b, events...)
	b = binary.AppendUvarint(b, uint64(len(f.Scores)))
	for _, v := range f.Scores {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	return b, nil
}

func encodeFailure(err error) []byte {
	reason := strings.ToValidUTF8(err.Error(), "?")
	return append([]byte{messageVersion, 1}, reason[:min(len(reason), maxReason)]...)
}

// errWorker is what a worker could not do.
type errWorker struct{ reason string }

func (e errWorker) Error() string { return "queue: a worker: " + e.reason }

// decodeAnswer reads an answer about a model of shape s.
func decodeAnswer(s route.Shape, b []byte) (atlas.Forward, error) {
	r := &reader{b: b}
	if r.byte() != messageVersion {
		return atlas.Forward{}, fmt.Errorf("queue: answer is not of version %d", messageVersion)
	}
	switch r.byte() {
	case 1:
		return atlas.Forward{}, errWorker{strings.ToValidUTF8(string(r.b[:min(len(r.b), maxReason)]), "?")}
	case 0:
	default:
		return atlas.Forward{}, errCut
	}
	var f atlas.Forward
	if events := r.take(r.count(1, maxMessage)); len(events) > 0 {
		shape, list, err := route.Decode(events)
		if err != nil {
			return atlas.Forward{}, fmt.Errorf("queue: answer: %w", err)
		}
		if !slices.Equal(shape.Layers, s.Layers) || shape.Experts != s.Experts || shape.TopK != s.TopK {
			return atlas.Forward{}, errors.New("queue: answer about a model of another shape")
		}
		f.Events = list
	}
	if n := r.count(8, 1+maxRemovals); n > 0 {
		f.Scores = make([]float64, n)
		for i := range f.Scores {
			if v := r.take(8); v != nil {
				f.Scores[i] = math.Float64frombits(binary.LittleEndian.Uint64(v))
			}
		}
	}
	if r.err != nil || len(r.b) > 0 {
		return atlas.Forward{}, errCut
	}
	return f, nil
}
