package weights

// Block formats of GGUF: a row is a sequence of blocks, each with its scales, perhaps minima, and its codes. Reading takes
// the blocks apart into codes in order of input and scales in order of group, without rounding: where a block has a scale
// of scales, the product of the two is exact in f32. A test holds every format to llama.cpp's own values.

import (
	"encoding/binary"
	"math"

	"covey/engine/canon"
)

// blockForm is how a block format becomes a canonical form.
type blockForm struct {
	form            canon.Form
	elements, bytes int // of a block
	group           int // inputs that share a scale
	scales          canon.Form
	minima          bool
	unpack          func(codes, scales, minima, block []byte)
}

// blockForms are the block formats by name.
var blockForms = map[Type]blockForm{
	"Q4_0":  {canon.Int4, 32, 18, 32, canon.F16, false, unpackQ40},
	"Q4_1":  {canon.Int4, 32, 20, 32, canon.F16, true, unpackQ41},
	"Q5_0":  {canon.Int8, 32, 22, 32, canon.F16, false, unpackQ50},
	"Q5_1":  {canon.Int8, 32, 24, 32, canon.F16, true, unpackQ51},
	"Q8_0":  {canon.Int8, 32, 34, 32, canon.F16, false, unpackQ80},
	"Q2_K":  {canon.Int4, 256, 84, 16, canon.F32, true, unpackQ2K},
	"Q3_K":  {canon.Int4, 256, 110, 16, canon.F32, false, unpackQ3K},
	"Q4_K":  {canon.Int4, 256, 144, 32, canon.F32, true, unpackQ4K},
	"Q5_K":  {canon.Int8, 256, 176, 32, canon.F32, true, unpackQ5K},
	"Q6_K":  {canon.Int8, 256, 210, 16, canon.F32, false, unpackQ6K},
	"MXFP4": {canon.MXFP4, 32, 17, 32, canon.E8M0, false, unpackMXFP4},
}

// blockSource takes the stored rows of a tensor apart. out has its name and shape.
func (c *Checkpoint) blockSource(name string, f blockForm, stored []byte, out canon.Source, s *Scratch) (canon.Source, error) {
	blocks := len(stored) / f.bytes
	codes := f.elements * f.form.Bits() / 8
	scales := f.elements / f.group * f.scales.Bits() / 8
	minima := 0
	if f.minima {
		minima = scales
	}
	out.Form, out.Group, out.ScaleForm = f.form, f.group, f.scales
	out.Codes, out.Scales = s.take(int64(blocks*codes)), s.take(int64(blocks*scales))
	if f.minima {
		out.Minima = s.take(int64(blocks * minima))
	}
	for b := range blocks {
		f.unpack(out.Codes[b*codes:(b+1)*codes], out.Scales[b*scales:(b+1)*scales], out.Minima[b*minima:(b+1)*minima], stored[b*f.bytes:(b+1)*f.bytes])
	}
	for _, x := range [][]byte{out.Scales, out.Minima} {
		if at := nonFinite(x, f.scales); at >= 0 {
			return canon.Source{}, c.refuse(name, again, "the scale or minimum of inputs from %d of row %d is not finite", at*f.group%out.Cols, at*f.group/out.Cols)
		}
	}
	return out, nil
}

// halves writes 32 nibbles so that neighbours share a byte: stored input i < 16 is the low nibble of byte i, 16+i the high.
func halves(codes, q []byte) {
	_, _ = codes[15], q[15]
	for i := range 8 {
		codes[i] = q[2*i]&15 | q[2*i+1]<<4
		codes[8+i] = q[2*i]>>4 | q[2*i+1]&0xf0
	}
}

// fifths writes 32 codes of 5 bits plus offset as bytes: nibbles as in halves, the fifth bits in a word by input.
func fifths(codes, high, q []byte, offset byte) {
	_, _ = codes[31], q[15]
	word := binary.LittleEndian.Uint32(high)
	for i := range 16 {
		codes[i] = (q[i]&15 | byte(word>>i&1)<<4) + offset
		codes[16+i] = (q[i]>>4 | byte(word>>(16+i)&1)<<4) + offset
	}
}

// unpackQ40: f16 scale, 32 nibbles with an offset of 8.
func unpackQ40(codes, scales, _, block []byte) {
	copy(scales, block[:2])
	halves(codes, block[2:])
}

// unpackQ41: f16 scale and minimum, 32 nibbles.
func unpackQ41(codes, scales, minima, block []byte) {
	copy(scales, block[:2])
	copy(minima, block[2:4])
	halves(codes, block[4:])
}

// unpackQ50: f16 scale, fifth bits, nibbles; an offset of 16.
func unpackQ50(codes, scales, _, block []byte) {
	copy(scales, block[:2])
	fifths(codes, block[2:6], block[6:], 128-16)
}

// unpackQ51: f16 scale and minimum, fifth bits, nibbles.
func unpackQ51(codes, scales, minima, block []byte) {
	copy(scales, block[:2])
	copy(minima, block[2:4])
	fifths(codes, block[4:8], block[8:], 0)
}

// unpackQ80: f16 scale, 32 signed bytes.
func unpackQ80(codes, scales, _, block []byte) {
	copy(scales, block[:2])
	for i, q := range block[2:34] {
		codes[i] = q ^ 0x80
	}
}

// unpackMXFP4: scale exponent, 32 nibbles.
func unpackMXFP4(codes, scales, _, block []byte) {
	scales[0] = block[0]
	halves(codes, block[1:])
}

// put stores x as number i of a list of f32.
func put(list []byte, i int, x float32) {
	binary.LittleEndian.PutUint32(list[4*i:], math.Float32bits(x))
}

// unpackQ2K: 16 bytes of scale (low nibble) and minimum (high nibble) for 16 inputs each, 64 bytes of codes, f16 factor of
// scales, f16 factor of minima. Of 32 bytes of codes, two bits each belong to inputs 0..31, 32..63, 64..95 and 96..127.
func unpackQ2K(codes, scales, minima, block []byte) {
	d, dmin := half(block[80:]), half(block[82:])
	for i, s := range block[:16] {
		put(scales, i, d*float32(s&15))
		put(minima, i, -(dmin * float32(s>>4)))
	}
	for i := range 128 {
		at := 2 * i
		q, shift := block[16+at/128*32+at%32:], at%128/32*2
		codes[i] = q[0]>>shift&3 | q[1]>>shift&3<<4
	}
}

// unpackQ3K: 32 bytes of third bits, 64 bytes of codes as in Q2_K, 12 bytes of 6-bit scales with an offset of 32, f16 factor.
// A third bit that is absent takes 4 away. Bit 4*half+k of byte i belongs to input i of the half's k-th 32 inputs.
func unpackQ3K(codes, scales, _, block []byte) {
	d, packed := half(block[108:]), block[96:108]
	for i := range 16 {
		low, high := packed[i%8]>>(i/8*4)&15, packed[8+i%4]>>(i/4*2)&3
		put(scales, i, d*float32(int(low|high<<4)-32))
	}
	for i := range 128 {
		at := 2 * i
		q, h := block[32+at/128*32+at%32:], block[at%32:]
		shift, bit := at%128/32*2, at/32
		codes[i] = (q[0]>>shift&3 + h[0]>>bit&1<<2 + 4) | (q[1]>>shift&3+h[1]>>bit&1<<2+4)<<4
	}
}

// sixBits reads scale and minimum of 32 inputs from the 12 bytes that Q4_K and Q5_K pack eight of each into.
func sixBits(packed []byte, i int) (scale, minimum byte) {
	if i < 4 {
		return packed[i] & 63, packed[i+4] & 63
	}
	return packed[i+4]&15 | packed[i-4]>>6<<4, packed[i+4]>>4 | packed[i]>>6<<4
}

// superScales writes the eight scales and minima of Q4_K and Q5_K: f16 factors, then the 12 bytes.
func superScales(scales, minima, block []byte) {
	d, dmin := half(block), half(block[2:])
	for i := range 8 {
		s, m := sixBits(block[4:16], i)
		put(scales, i, d*float32(s))
		put(minima, i, -(dmin * float32(m)))
	}
}

// unpackQ4K: scales, then for each 64 inputs 32 bytes: low nibbles for the first 32, high ones for the others.
func unpackQ4K(codes, scales, minima, block []byte) {
	superScales(scales, minima, block)
	for c := range 4 {
		q, out := block[16+32*c:][:32], codes[32*c:][:32]
		for i := range 16 {
			out[i] = q[2*i]&15 | q[2*i+1]<<4
			out[16+i] = q[2*i]>>4 | q[2*i+1]&0xf0
		}
	}
}

// unpackQ5K: scales, 32 bytes of fifth bits (bit k of byte i belongs to input i of the k-th 32 inputs), nibbles as in Q4_K.
func unpackQ5K(codes, scales, minima, block []byte) {
	superScales(scales, minima, block)
	high := block[16:48]
	for c := range 4 {
		q, out := block[48+32*c:][:32], codes[64*c:][:64]
		for i := range 32 {
			out[i] = q[i]&15 | high[i]>>(2*c)&1<<4
			out[32+i] = q[i]>>4 | high[i]>>(2*c+1)&1<<4
		}
	}
}

// unpackQ6K: 128 bytes of low nibbles, 64 of upper two bits, 16 signed scales, f16 factor; an offset of 32.
func unpackQ6K(codes, scales, _, block []byte) {
	d := half(block[208:])
	for i, s := range block[192:208] {
		put(scales, i, d*float32(int8(s)))
	}
	for h := range 2 {
		low, high, out := block[64*h:][:64], block[128+32*h:][:32], codes[128*h:][:128]
		for i := range 32 {
			out[i] = (low[i]&15 | high[i]&3<<4) + (128 - 32)
			out[32+i] = (low[32+i]&15 | high[i]>>2&3<<4) + (128 - 32)
			out[64+i] = (low[i]>>4 | high[i]>>4&3<<4) + (128 - 32)
			out[96+i] = (low[32+i]>>4 | high[i]>>6<<4) + (128 - 32)
		}
	}
}

// half widens a binary16.
func half(b []byte) float32 {
	h := uint32(binary.LittleEndian.Uint16(b))
	sign, exponent, fraction := h>>15<<31, h>>10&31, h&1023
	switch exponent {
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)*0x1p-24))
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}
