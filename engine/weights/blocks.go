package weights

// Block formats of GGUF: a row is a sequence of blocks, each with its scales and its codes. Reading takes the blocks apart
// into codes by input and scales by group, without rounding anything.

import (
	"covey/engine/canon"
)

// blockForm is how one block format becomes a canonical form.
type blockForm struct {
	form            canon.Form
	elements, bytes int // of a block
	scale           int // bytes of scales of a block, in the canonical source
	unpack          func(codes, scales, block []byte)
}

// blockForms are the block formats by name.
var blockForms = map[Type]blockForm{
	"Q4_0": {form: canon.Int4, elements: 32, bytes: 18, scale: 2, unpack: unpackQ4},
	"Q8_0": {form: canon.Int8, elements: 32, bytes: 34, scale: 2, unpack: unpackQ8},
}

// unpackQ4 reads a f16 scale and 32 nibbles, value c-8: input i < 16 is the low nibble of byte i, input 16+i the high one.
func unpackQ4(codes, scales, block []byte) {
	copy(scales, block[:2])
	q := block[2:18]
	for i := range 8 {
		codes[i] = q[2*i]&15 | q[2*i+1]<<4
		codes[8+i] = q[2*i]>>4 | q[2*i+1]&0xf0
	}
}

// unpackQ8 reads a f16 scale and 32 signed bytes.
func unpackQ8(codes, scales, block []byte) {
	copy(scales, block[:2])
	for i, q := range block[2:34] {
		codes[i] = q ^ 0x80
	}
}

// blockSource takes the stored rows of out.Rows, out.Cols apart.
func (c *Checkpoint) blockSource(name string, f blockForm, stored []byte, out canon.Source, s *Scratch) (canon.Source, error) {
	blocks := len(stored) / f.bytes
	out.Form, out.Group, out.ScaleForm = f.form, f.elements, canon.F16
	width := f.elements * f.form.Bits() / 8
	out.Codes, out.Scales = s.take(int64(blocks)*int64(width)), s.take(int64(blocks)*int64(f.scale))
	for b := range blocks {
		f.unpack(out.Codes[b*width:(b+1)*width], out.Scales[b*f.scale:(b+1)*f.scale], stored[b*f.bytes:(b+1)*f.bytes])
	}
	if at := nonFinite(out.Scales, out.ScaleForm); at >= 0 {
		return canon.Source{}, c.refuse(name, again, "the scale of block %d is not finite", at)
	}
	return out, nil
}
