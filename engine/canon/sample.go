package canon

/*
#include "engine.h"
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"
	"unsafe"
)

// ErrNoToken says that bans and biases left nothing to draw.
var ErrNoToken = errors.New("no token may be drawn")

// MaxTop is the largest number of alternatives that Logprobs reports.
const MaxTop = 64

// SampleParams are the parameters of rule 11. The zero value takes the most likely token. Changes to logits come first, in
// the order of the fields: biases, repetition, counts; each id may occur once in a list.
type SampleParams struct {
	Temperature float32 // 0 = the most likely token
	TopK        int     // 0 = all
	TopP        float32 // 0 or >= 1 = all
	MinP        float32 // 0 = all; relative to the most likely token
	Seed        uint64
	Choice      uint32 // index of the answer among several to one prompt
	Position    uint32 // position that the drawn token will have

	BiasIDs []int32 // l = l + bias
	Bias    []float32

	SeenIDs    []int32 // l > 0 ? l / Repetition : l * Repetition
	Repetition float32 // 0 or 1 = off

	CountIDs  []int32 // l = fmaf(-Frequency, count, l), then l = l - Presence
	Counts    []int32
	Frequency float32
	Presence  float32
}

// Plain says that nothing changes the logits before the draw: no bias, no penalty.
func (p *SampleParams) Plain() bool {
	return len(p.BiasIDs) == 0 && (p.Repetition == 0 || p.Repetition == 1 || len(p.SeenIDs) == 0) && (p.Frequency == 0 && p.Presence == 0 || len(p.CountIDs) == 0)
}

// sampleScratch keeps candidate lists between draws; a list for a large vocabulary is a megabyte.
var sampleScratch sync.Pool

// first is the address of a list's first element, nil for an empty one.
func first[T any](s []T) *T { return unsafe.SliceData(s) }

func inRange(ids []int32, n int, what string) error {
	for _, id := range ids {
		if id < 0 || int(id) >= n {
			return fmt.Errorf("canon: sampling: %s of token %d of %d", what, id, n)
		}
	}
	return nil
}

// Sample draws a token from logits [vocab], which it does not modify. The draw depends on its arguments only, with one
// random number for (Seed, Choice, Position). The error wraps ErrNonFinite if a logit is infinite or NaN before the changes,
// ErrNoToken if the changes left nothing. A bias of -inf bans a token. Safe for concurrent use.
func Sample(logits []float32, p *SampleParams) (int32, error) {
	n := len(logits)
	if n == 0 {
		return 0, fmt.Errorf("canon: sampling: no logits")
	}
	if !(p.Temperature >= 0) || !(p.Repetition >= 0) {
		return 0, fmt.Errorf("canon: sampling: temperature %v and repetition penalty %v must not be negative", p.Temperature, p.Repetition)
	}
	s := C.canon_sampling{temperature: C.float(p.Temperature), top_p: C.float(p.TopP), min_p: C.float(p.MinP), repetition: C.float(p.Repetition),
		frequency: C.float(p.Frequency), presence: C.float(p.Presence), top_k: C.int32_t(min(max(p.TopK, 0), n)),
		seed: C.uint64_t(p.Seed), choice: C.uint32_t(p.Choice), position: C.uint32_t(p.Position)}
	if len(p.Bias) != len(p.BiasIDs) || len(p.Counts) != len(p.CountIDs) {
		return 0, fmt.Errorf("canon: sampling: %d biases for %d tokens, %d counts for %d tokens", len(p.Bias), len(p.BiasIDs), len(p.Counts), len(p.CountIDs))
	}
	s.biases = C.int32_t(len(p.BiasIDs))
	if p.Repetition != 0 && p.Repetition != 1 {
		s.seen = C.int32_t(len(p.SeenIDs))
	}
	if p.Frequency != 0 || p.Presence != 0 {
		s.counted = C.int32_t(len(p.CountIDs))
	}
	for _, err := range []error{inRange(p.BiasIDs, n, "bias"), inRange(p.SeenIDs, n, "repetition"), inRange(p.CountIDs, n, "count")} {
		if err != nil {
			return 0, err
		}
	}
	scratch, _ := sampleScratch.Get().(*[]uint64)
	if scratch == nil {
		scratch = new([]uint64)
	}
	if len(*scratch) < 3*n {
		*scratch = make([]uint64, 3*n)
	}
	defer sampleScratch.Put(scratch)
	switch t := C.canon_sample((*C.float)(&logits[0]), C.int32_t(n), &s, (*C.int32_t)(first(p.BiasIDs)), (*C.float)(first(p.Bias)),
		(*C.int32_t)(first(p.SeenIDs)), (*C.int32_t)(first(p.CountIDs)), (*C.int32_t)(first(p.Counts)), (*C.uint64_t)(&(*scratch)[0])); t {
	case -1:
		return 0, fmt.Errorf("canon: sampling: %w among the logits", ErrNonFinite)
	case -3:
		return 0, fmt.Errorf("canon: sampling: %w", ErrNoToken)
	default:
		return int32(t), nil
	}
}

// Logprobs returns the natural log probability of id under unmodified logits, (logit - max) - log(sum of exp(l - max)), and
// fills topIDs and topLogprobs (of equal length, at most MaxTop) with the most likely tokens, logit descending, id ascending.
// The error wraps ErrNonFinite. Safe for concurrent use.
func Logprobs(logits []float32, id int32, topIDs []int32, topLogprobs []float32) (float32, error) {
	if id < 0 || int(id) >= len(logits) || len(topIDs) != len(topLogprobs) || len(topIDs) > MaxTop || len(topIDs) > len(logits) {
		return 0, fmt.Errorf("canon: log probabilities: token %d of %d with %d and %d places", id, len(logits), len(topIDs), len(topLogprobs))
	}
	var out C.float
	if C.canon_logprobs((*C.float)(&logits[0]), C.int32_t(len(logits)), C.int32_t(id), &out, (*C.int32_t)(first(topIDs)), (*C.float)(first(topLogprobs)), C.int32_t(len(topIDs))) < 0 {
		return 0, fmt.Errorf("canon: log probabilities: %w among the logits", ErrNonFinite)
	}
	return float32(out), nil
}

// Philox is the random word of (seed, choice, position); rule 11 uses its upper 24 bits.
func Philox(seed uint64, choice, position uint32) uint32 {
	return uint32(C.canon_random(C.uint64_t(seed), C.uint32_t(choice), C.uint32_t(position)))
}

// Argmax is the largest logit's id, the lowest among equals; -1 if all are NaN.
func Argmax(logits []float32) int32 {
	if len(logits) == 0 {
		return -1
	}
	return int32(C.canon_argmax((*C.float)(&logits[0]), C.int32_t(len(logits))))
}

// HashBits feeds the little-endian bits of a row to a hash: what identity tests compare.
func HashBits(h hash.Hash, row []float32) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(row))), len(row)*4))
		return
	}
	var b [4]byte
	for i := range row {
		binary.LittleEndian.PutUint32(b[:], *(*uint32)(unsafe.Pointer(&row[i])))
		h.Write(b[:])
	}
}
