package gguf

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
)

// Type is a stored element type, spelled as llama.cpp spells it.
type Type string

// block says how a type stores elements: in blocks of so many, each of so many bytes.
type block struct {
	name            Type
	elements, bytes int64
}

// blocks are the types by their number in the file. Types without a reader elsewhere are legal in a file (their size is
// known) and refused when used.
var blocks = map[uint32]block{
	0: {"F32", 1, 4}, 1: {"F16", 1, 2}, 30: {"BF16", 1, 2}, 28: {"F64", 1, 8},
	24: {"I8", 1, 1}, 25: {"I16", 1, 2}, 26: {"I32", 1, 4}, 27: {"I64", 1, 8},
	2: {"Q4_0", 32, 18}, 3: {"Q4_1", 32, 20}, 6: {"Q5_0", 32, 22}, 7: {"Q5_1", 32, 24}, 8: {"Q8_0", 32, 34}, 9: {"Q8_1", 32, 36},
	10: {"Q2_K", 256, 84}, 11: {"Q3_K", 256, 110}, 12: {"Q4_K", 256, 144}, 13: {"Q5_K", 256, 176}, 14: {"Q6_K", 256, 210}, 15: {"Q8_K", 256, 292},
	16: {"IQ2_XXS", 256, 66}, 17: {"IQ2_XS", 256, 74}, 18: {"IQ3_XXS", 256, 98}, 19: {"IQ1_S", 256, 50}, 20: {"IQ4_NL", 32, 18},
	21: {"IQ3_S", 256, 110}, 22: {"IQ2_S", 256, 82}, 23: {"IQ4_XS", 256, 136}, 29: {"IQ1_M", 256, 56}, 34: {"TQ1_0", 256, 54}, 35: {"TQ2_0", 256, 66},
	39: {"MXFP4", 32, 17}, 40: {"NVFP4", 64, 36},
}

// Block is the number of elements of a block and its bytes.
func (t Type) Block() (elements, bytes int64) {
	b := byName[t]
	return b.elements, b.bytes
}

var byName = func() map[Type]block {
	m := make(map[Type]block, len(blocks))
	for _, b := range blocks {
		m[b.name] = b
	}
	return m
}()

func typeOf(number uint32) (Type, string) {
	b, ok := blocks[number]
	if !ok {
		return "", fmt.Sprintf("unknown type %d", number)
	}
	return b.name, ""
}

// size is the bytes of a tensor, or what is wrong with its shape.
func (t Type) size(shape []int64) (int64, string) {
	elements, bytes := t.Block()
	if len(shape) == 0 {
		shape = []int64{1}
	}
	inner := shape[len(shape)-1]
	if inner%elements != 0 {
		return 0, fmt.Sprintf("rows of %d are not whole %s blocks of %d", inner, t, elements)
	}
	size := uint64(inner/elements) * uint64(bytes)
	if uint64(inner/elements) > 1<<48 {
		return 0, fmt.Sprintf("shape %v overflows", shape)
	}
	for _, d := range shape[:len(shape)-1] {
		high, low := bits.Mul64(size, uint64(d))
		if high != 0 || low > 1<<62 {
			return 0, fmt.Sprintf("shape %v overflows", shape)
		}
		size = low
	}
	return int64(size), ""
}

// overlaps refuses tensors that share bytes.
func overlaps(tensors []Tensor) error {
	order := make([]*Tensor, len(tensors))
	for i := range tensors {
		order[i] = &tensors[i]
	}
	slices.SortFunc(order, func(a, b *Tensor) int { return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size)) })
	end := int64(0)
	for _, t := range order {
		if t.Offset < end {
			return &Error{Tensor: t.Name, Offset: t.Offset, Problem: "overlaps the tensor before it"}
		}
		end = t.Offset + t.Size
	}
	return nil
}

// shortest is the float64 of the shortest decimal that reads as x in single precision.
func shortest(x float32) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(float64(x), 'g', -1, 32), 64)
	if err != nil {
		return float64(x) // infinities and NaN
	}
	return y
}
