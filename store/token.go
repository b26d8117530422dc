package store

// The tokens of an answer are one blob a turn: about 10 bytes a token and 10 more an alternative, against some 100 for
// rows of their own.
//
//	blob        = version (1 byte, 1), uvarint count, count x token
//	token       = alternative, uvarint n, n x alternative
//	alternative = uvarint id, uvarint length, length bytes of text, 4 bytes of float32 (little endian)

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Token is one token of an answer as the token view shows it.
type Token struct {
	ID      int32
	Text    string  // whole UTF-8 text that this token released; "" while a character was incomplete
	Logprob float32 // natural logarithm
	Top     []Alternative
}

// Alternative is a token that could have come instead.
type Alternative struct {
	ID      int32
	Text    string
	Logprob float32
}

const tokensVersion = 1

// The smallest encoding of an alternative (id, length, float32) and of a token (one more byte): a count that promises
// more than the bytes left can hold is refused before anything is allocated.
const (
	minAlternative = 1 + 1 + 4
	minToken       = minAlternative + 1
)

func encodeTokens(tokens []Token) []byte {
	blob := binary.AppendUvarint([]byte{tokensVersion}, uint64(len(tokens)))
	for _, t := range tokens {
		blob = appendAlternative(blob, Alternative{t.ID, t.Text, t.Logprob})
		blob = binary.AppendUvarint(blob, uint64(len(t.Top)))
		for _, a := range t.Top {
			blob = appendAlternative(blob, a)
		}
	}
	return blob
}

func appendAlternative(blob []byte, a Alternative) []byte {
	blob = binary.AppendUvarint(blob, uint64(uint32(a.ID)))
	blob = binary.AppendUvarint(blob, uint64(len(a.Text)))
	blob = append(blob, a.Text...)
	return binary.LittleEndian.AppendUint32(blob, math.Float32bits(a.Logprob))
}

// decodeTokens reads what encodeTokens wrote. Memory is bounded by a small multiple of the blob's length.
func decodeTokens(blob []byte) ([]Token, error) {
	if len(blob) == 0 || blob[0] != tokensVersion {
		return nil, errors.New("token blob: unknown version")
	}
	r := tokenReader{blob: blob, at: 1}
	tokens := make([]Token, r.count("tokens", minToken))
	for i := range tokens {
		a := r.alternative()
		tokens[i] = Token{ID: a.ID, Text: a.Text, Logprob: a.Logprob}
		if n := r.count("alternatives", minAlternative); n > 0 {
			tokens[i].Top = make([]Alternative, n)
		}
		for j := range tokens[i].Top {
			tokens[i].Top[j] = r.alternative()
		}
		if r.err != nil {
			return nil, fmt.Errorf("token blob: token %d: %w", i, r.err)
		}
	}
	if r.err == nil && r.at != len(blob) {
		r.err = fmt.Errorf("%d bytes too many", len(blob)-r.at)
	}
	if r.err != nil {
		return nil, fmt.Errorf("token blob: %w", r.err)
	}
	return tokens, nil
}

// tokenReader reads forward; after the first error it yields zeros.
type tokenReader struct {
	blob []byte
	at   int
	err  error
}

func (r *tokenReader) uvarint(name string) uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.blob[r.at:])
	if n <= 0 {
		r.err = fmt.Errorf("%s at byte %d: number is cut or too long", name, r.at)
		return 0
	}
	r.at += n
	return v
}

// count reads the number of items that take at least size bytes each.
func (r *tokenReader) count(name string, size int) int {
	v := r.uvarint(name)
	if left := (len(r.blob) - r.at) / size; v > uint64(left) {
		r.err = fmt.Errorf("%s at byte %d: %d do not fit in the %d bytes left", name, r.at, v, len(r.blob)-r.at)
		return 0
	}
	return int(v)
}

func (r *tokenReader) alternative() (a Alternative) {
	id := r.uvarint("id")
	if r.err == nil && id > math.MaxUint32 {
		r.err = fmt.Errorf("id at byte %d: %d is over 32 bits", r.at, id)
	}
	a.ID = int32(uint32(id))
	length := r.count("text", 1)
	if r.err == nil && len(r.blob)-r.at < length+4 {
		r.err = fmt.Errorf("text at byte %d: cut", r.at)
	}
	if r.err != nil {
		return Alternative{}
	}
	a.Text = string(r.blob[r.at : r.at+length])
	a.Logprob = math.Float32frombits(binary.LittleEndian.Uint32(r.blob[r.at+length:]))
	r.at += length + 4
	return a
}
