package canon

/*
#include "engine.h"
*/
import "C"

import (
	"encoding/binary"
	"hash"
	"unsafe"
)

// Sampling are the parameters of rule 11. Penalties, bans and grammar masks are applied to the logits before.
type Sampling struct {
	Temperature float32 // 0 = the most likely token
	TopK        int     // 0 = all
	TopP        float32 // 0 or >= 1 = all
	MinP        float32 // 0 = all
	Seed        uint64
	Choice      uint32 // index of the answer among several to one prompt
	Position    uint32 // position that the drawn token will have
}

// Sample draws a token id from logits [vocab] (rule 11). The draw depends on logits, parameters, seed, choice and position
// only. It returns -1 if no logit is finite. NaN logits are never drawn; -inf marks a token that must not be drawn.
func Sample(logits []float32, s Sampling) int32 {
	if len(logits) == 0 {
		return -1
	}
	return int32(C.canon_sample((*C.float)(&logits[0]), C.int32_t(len(logits)), C.float(s.Temperature), C.int32_t(s.TopK), C.float(s.TopP), C.float(s.MinP),
		C.uint64_t(s.Seed), C.uint32_t(s.Choice), C.uint32_t(s.Position)))
}

// Draw is the random number of (seed, choice, position): a multiple of 2^-24 in [0, 1).
func Draw(seed uint64, choice, position uint32) float32 {
	return float32(C.canon_draw(C.uint64_t(seed), C.uint32_t(choice), C.uint32_t(position)))
}

// Argmax is the first candidate in the order of rule 8: largest logit, lowest id; -1 if all are NaN.
func Argmax(logits []float32) int32 {
	if len(logits) == 0 {
		return -1
	}
	return int32(C.canon_argmax((*C.float)(&logits[0]), C.int32_t(len(logits))))
}

// Penalty changes the logits of tokens that were seen. The zero value changes nothing.
type Penalty struct {
	Repetition float32 // logits of seen tokens: positive divided, negative multiplied; 0 or 1 = off
	Frequency  float32 // subtracted times the count
	Presence   float32 // subtracted once
}

// Penalise applies a penalty in place to the tokens ids that were seen counts times. Ids must be distinct and in range.
func Penalise(logits []float32, ids, counts []int32, p Penalty) {
	for _, id := range ids {
		_ = logits[id]
	}
	if len(ids) == 0 {
		return
	}
	_ = counts[len(ids)-1]
	C.canon_penalise((*C.float)(&logits[0]), (*C.int32_t)(&ids[0]), (*C.int32_t)(&counts[0]), C.int32_t(len(ids)), C.float(p.Repetition), C.float(p.Frequency), C.float(p.Presence))
}

// AddBias adds bias[i] to the logit of ids[i], one operation each.
func AddBias(logits []float32, ids []int32, bias []float32) {
	for i, id := range ids {
		_, _ = logits[id], bias[i]
	}
	if len(ids) > 0 {
		C.canon_add_bias((*C.float)(&logits[0]), (*C.int32_t)(&ids[0]), (*C.float)(&bias[0]), C.int32_t(len(ids)))
	}
}

// LogSumExp is max + log(sum of exp(l - max)), the sum in 32 lanes over ids and the tree of rule 3. A token's natural log
// probability is its logit minus this.
func LogSumExp(logits []float32) float32 {
	if len(logits) == 0 {
		return 0
	}
	return float32(C.canon_logsumexp((*C.float)(&logits[0]), C.int32_t(len(logits))))
}

// LogProb is the natural log probability of a token given LogSumExp of its logits.
func LogProb(logits []float32, token int32, logSumExp float32) float32 {
	return float32(C.canon_subtract(C.float(logits[token]), C.float(logSumExp)))
}

// Top writes the ids of the len(ids) most likely tokens, most likely first (rule 8's order), and returns how many there are.
func Top(logits []float32, ids []int32) int {
	if len(logits) == 0 || len(ids) == 0 {
		return 0
	}
	return int(C.canon_top((*C.float)(&logits[0]), C.int32_t(len(logits)), (*C.int32_t)(&ids[0]), C.int32_t(len(ids))))
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
