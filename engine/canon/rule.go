package canon

/*
#include "engine.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"unsafe"
)

// This file makes the scalar rules of canon.h callable: equality suites hold every kernel, of this package and of other back
// ends, to them. They are slow and allocate; no forward pass uses them.

// Function is an elementary function of rule 5.
type Function uint8

// Elementary functions.
const (
	Exp Function = iota
	Log
	Log1p
	Tanh
	Sigmoid
	SiLU
	Softplus
)

func floats(s []float32) *C.float { return (*C.float)(unsafe.SliceData(s)) }

// RuleElementary writes f(src[i]) to dst[i]. dst may be src.
func RuleElementary(f Function, dst, src []float32) {
	_ = dst[:len(src)]
	C.canon_rule_elementary(C.int32_t(f), floats(src), floats(dst), C.int64_t(len(src)))
}

// RuleQuantise is rule 1 on one row: codes [len(x)], and scale and sum of codes for each group.
func RuleQuantise(x []float32, group int) (q []int8, scale []float32, sum []int32) {
	groups := (len(x) + group - 1) / group
	q, scale, sum = make([]int8, len(x)), make([]float32, groups), make([]int32, groups)
	if len(x) > 0 {
		C.canon_rule_quantise(floats(x), C.int32_t(len(x)), C.int32_t(group), (*C.int8_t)(&q[0]), floats(scale), (*C.int32_t)(&sum[0]))
	}
	return q, scale, sum
}

// RuleProduct is one output of src: rule 2 for integer forms, rule 3 for the others, no bias.
func RuleProduct(src Source, row int, x []float32) (float32, error) {
	l, err := src.Layout()
	if err != nil {
		return 0, err
	}
	m, _, _ := l.place(src.Name, 0)
	if row < 0 || row >= src.Rows || len(x) != src.Cols {
		return 0, fmt.Errorf("canon: rule: row %d of [%d, %d] with %d inputs", row, src.Rows, src.Cols, len(x))
	}
	var y C.float
	if C.canon_rule_product(&m, C.int32_t(row), octets(src.Codes), octets(src.Scales), octets(src.offsets()), C.int32_t(src.perRow()), floats(x), &y) != 0 {
		return 0, fmt.Errorf("canon: rule: out of memory")
	}
	return float32(y), nil
}

// RuleNorm is rule 4 on one row; weight may be nil.
func RuleNorm(x, weight []float32, eps float32, plusOne bool) []float32 {
	y := make([]float32, len(x))
	C.canon_rule_norm(floats(y), floats(x), floats(weight), C.int32_t(len(x)), C.float(eps), C.int32_t(b2i(plusOne)))
	return y
}

// RuleLayerNorm is rule 4's LayerNorm on one row.
func RuleLayerNorm(x, weight, bias []float32, eps float32) []float32 {
	y := make([]float32, len(x))
	C.canon_rule_layer_norm(floats(y), floats(x), floats(weight), floats(bias), C.int32_t(len(x)), C.float(eps))
	return y
}

// RuleGated is an activation on one row.
func RuleGated(a Activation, gate, up []float32) []float32 {
	y := make([]float32, len(gate))
	C.canon_rule_gated(C.int32_t(a.Kind), C.float(a.Limit), floats(y), floats(gate), floats(up), C.int32_t(len(gate)))
	return y
}

// RuleDeltaNet is rule 7's gated delta net over a sequence from its position 0 on: projections and rates by row, as of
// Program.DeltaNet.
func RuleDeltaNet(d DeltaNet, projections, rates [][]float32) ([][]float32, error) {
	values := d.ValueHeads * d.ValueDim
	y := make([]float32, len(projections)*values)
	p, r := slices.Concat(projections...), slices.Concat(rates...)
	if C.canon_rule_delta_net(C.int32_t(len(projections)), C.int32_t(d.KeyHeads), C.int32_t(d.ValueHeads/d.KeyHeads), C.int32_t(d.KeyDim), C.int32_t(d.ValueDim), C.int32_t(d.Taps),
		floats(p), floats(r), floats(d.Conv), floats(d.Decay), floats(d.Shift), floats(d.Norm), C.float(d.Eps), deltaEps, floats(y)) != 0 {
		return nil, fmt.Errorf("canon: rule: out of memory")
	}
	return slices.Collect(slices.Chunk(y, values)), nil
}

// RuleRotate turns the first Rot channels of x in place.
func RuleRotate(x []float32, r *Rope, pairing Pairing, position int) {
	_ = x[:r.spec.Rot]
	C.canon_rule_rotate(floats(x), C.int32_t(r.spec.Rot), C.int32_t(pairing), C.int32_t(position), floats(r.inv), C.double(r.factor))
}

// RuleAttention is rule 6 for one query: keys [positions, dim] and values [positions, width] as stored, the row's own position
// being the last; lo is the first attended position; sink may be nil.
func RuleAttention(q, keys, values []float32, lo int, scale float32, sink *float32) []float32 {
	o := make([]float32, len(values)/(len(keys)/len(q)))
	ruleAttention(o, q, keys, values, lo, nil, scale, sink)
	return o
}

// RuleMemory is RuleAttention over keys that are also the values, and then over the vectors of memory, [listed, dim].
func RuleMemory(q, keys []float32, lo int, memory []float32, scale float32, sink *float32) []float32 {
	o := make([]float32, len(q))
	ruleAttention(o, q, keys, keys, lo, memory, scale, sink)
	return o
}

func ruleAttention(o, q, keys, values []float32, lo int, memory []float32, scale float32, sink *float32) {
	n := len(q)
	C.canon_rule_attention(floats(q), floats(keys), floats(values), C.int32_t(n), C.int32_t(len(o)), C.int32_t(lo), C.int32_t(len(keys)/n-1),
		floats(memory), C.int32_t(len(memory)/n), C.float(scale), (*C.float)(sink), floats(o))
}

// RuleStore is a value after a round trip through a KV form.
func RuleStore(form Form, x float32) float32 {
	return float32(C.canon_rule_store(C.int32_t(form), C.float(x)))
}

// RuleSum is a sum in the 32 lanes and the tree of rule 3.
func RuleSum(x []float32) float32 { return float32(C.canon_rule_sum(floats(x), C.int32_t(len(x)))) }

// RuleFMA is a*b+c rounded once; soft uses the code for machines without the instruction.
func RuleFMA(a, b, c float32, soft bool) float32 {
	if soft {
		return float32(C.canon_rule_soft_fma(C.float(a), C.float(b), C.float(c)))
	}
	return float32(C.canon_rule_fma(C.float(a), C.float(b), C.float(c)))
}
