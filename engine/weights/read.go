package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"covey/engine/canon"
)

// Scratch is memory that one reader reuses from source to source. The zero value is ready; not safe for concurrent use.
type Scratch struct {
	block     []byte
	used      int64
	all, most int64 // taken since Reset, and at most between two
}

// Reset makes all memory available again: sources read with this scratch are void.
func (s *Scratch) Reset() { s.most, s.used, s.all = max(s.most, s.all), 0, 0 }

// take returns n bytes that stay valid until Reset.
func (s *Scratch) take(n int64) []byte {
	s.all += n
	if s.used+n > int64(len(s.block)) {
		// The old block lives on for as long as a source points into it. One for all that was taken before serves from then on.
		s.block, s.used = make([]byte, max(n, s.most, min(2*n, 16<<20), 1<<16)), 0
	}
	b := s.block[s.used : s.used+n : s.used+n]
	s.used += n
	return b
}

// floatForms maps stored float types to canonical forms.
var floatForms = map[Type]canon.Form{"F32": canon.F32, "F16": canon.F16, "BF16": canon.BF16}

// HasModule says whether the checkpoint has a weight for module, plain or packed.
func (c *Checkpoint) HasModule(module string) bool {
	_, plain := c.byName[module+".weight"]
	_, packed := c.byName[module+".weight_packed"]
	_, columns := c.byName[module+".qweight"]
	return plain || packed || columns
}

// Source reads the weight of a module ("model.layers.0.mlp.up_proj") of shape [rows, cols] as stored, quantised or not.
// The result lies in s and is valid until s is reset.
func (c *Checkpoint) Source(module string, rows, cols int, s *Scratch) (canon.Source, error) {
	if c.container != nil {
		return c.unpackedSource(module, rows, cols, s)
	}
	plain, packed := module+".weight", module+".weight_packed"
	t, isPlain := c.byName[plain]
	_, isPacked := c.byName[packed]
	_, isColumns := c.byName[module+".qweight"]
	switch {
	case isPlain && (isPacked || isColumns):
		return canon.Source{}, c.refuse(plain, again, "stored both plain and packed")
	case isColumns:
		return c.columnSource(module, rows, cols, s)
	case isPacked:
		return c.packedSource(module, rows, cols, s)
	case !isPlain:
		return canon.Source{}, c.refuse(plain, "the configuration promises it: "+again, "missing")
	}
	switch t.Type {
	case "F8_E4M3":
		return c.fp8Source(module, t, rows, cols, s)
	case "I8":
		g, err := c.plainGroup(module)
		if err != nil {
			return canon.Source{}, err
		}
		if g != nil {
			return c.int8Source(module, t, g, rows, cols, s)
		}
		return c.fp4Source(module, t, rows, cols, s)
	case "U8":
		return c.containerSource(plain, t, canon.Source{Name: module, Rows: rows, Cols: cols}, s)
	}
	if !slices.Equal(t.Shape, []int64{int64(rows), int64(cols)}) {
		return canon.Source{}, c.refuse(plain, "check config.json against the tensors", "shape %v, but the configuration gives [%d %d]", t.Shape, rows, cols)
	}
	if t.values != nil {
		return c.joinedSource(plain, t, s)
	}
	return c.plainSource(plain, t, canon.Source{Name: module, Rows: rows, Cols: cols}, s)
}

// plainSource reads a tensor of floats or blocks; out has the module's name and shape.
func (c *Checkpoint) plainSource(name string, t Tensor, out canon.Source, s *Scratch) (canon.Source, error) {
	form, float := floatForms[t.Type]
	blocks, blocked := blockForms[t.Type]
	if !float && !blocked {
		return canon.Source{}, c.refuse(name, "use a checkpoint in one of the forms that docs/forms.md lists", "type %s is not supported", t.Type)
	}
	stored := s.take(t.size)
	if err := c.read(name, t, stored); err != nil {
		return canon.Source{}, err
	}
	if t.heads > 0 {
		if int64(out.Rows)%(2*t.heads) != 0 {
			return canon.Source{}, c.refuse(name, again, "%d rows are not %d heads of pairs", out.Rows, t.heads)
		}
		straight := s.take(t.size)
		uninterleave(straight, stored, t.heads, t.size/int64(out.Rows))
		stored = straight
	}
	if blocked {
		return c.blockSource(name, blocks, stored, out, s)
	}
	if at := nonFinite(stored, form); at >= 0 {
		return canon.Source{}, c.refuse(name, again, "value %d is not finite", at)
	}
	out.Form, out.Codes = form, stored
	return out, nil
}

// packedSource reads a pack-quantized module.
func (c *Checkpoint) packedSource(module string, rows, cols int, s *Scratch) (canon.Source, error) {
	packed, shape := module+".weight_packed", module+".weight_shape"
	fail := func(tensor, format string, args ...any) (canon.Source, error) {
		return canon.Source{}, c.refuse(tensor, "check config.json against the tensors", format, args...)
	}
	if c.scheme == nil {
		return fail(packed, "packed, but config.json has no quantization_config")
	}
	if c.scheme.ignore.rank(module) != matchNone {
		return fail(packed, "packed, although quantization_config ignores it")
	}
	g := c.scheme.method(module)
	if g == nil {
		return fail(packed, "packed, but no group of quantization_config claims it")
	}
	for _, extra := range []string{".weight_g_idx", ".weight_global_scale"} {
		if _, ok := c.byName[module+extra]; ok {
			return fail(module+extra, "permuted inputs and global scales are not supported")
		}
	}
	dims, err := c.Integers(shape, 2)
	if err != nil {
		return canon.Source{}, err
	}
	if dims[0] != int64(rows) || dims[1] != int64(cols) {
		return fail(shape, "shape %v, but the configuration gives [%d %d]", dims, rows, cols)
	}
	perWord := 32 / g.bits
	words := (cols + perWord - 1) / perWord
	t := c.byName[packed]
	if t.Type != "I32" || !slices.Equal(t.Shape, []int64{int64(rows), int64(words)}) {
		return fail(packed, "%s %v, but %d-bit values of [%d %d] need I32 [%d %d]", t.Type, t.Shape, g.bits, rows, cols, rows, words)
	}
	codes := s.take(t.size)
	if err := c.read(packed, t, codes); err != nil {
		return canon.Source{}, err
	}
	codes = trimRows(codes, words*4, (cols*g.bits+7)/8)

	out := canon.Source{Name: module, Form: canon.Int4, Rows: rows, Cols: cols, Group: g.inputs, Codes: codes}
	if g.bits == 8 {
		out.Form = canon.Int8
	}
	groups, err := c.groupScales(&out, g, s)
	if err != nil {
		return canon.Source{}, err
	}
	if out.Zeros, err = c.packedZeros(module, g, rows, groups, s); err != nil {
		return canon.Source{}, err
	}
	return out, nil
}

// int8Source reads a module whose values lie one by one as I8.
func (c *Checkpoint) int8Source(module string, t Tensor, g *group, rows, cols int, s *Scratch) (canon.Source, error) {
	name := module + ".weight"
	if g.blocks != nil || !slices.Equal(t.Shape, []int64{int64(rows), int64(cols)}) {
		return canon.Source{}, c.refuse(name, "check config.json against the tensors", "I8 %v, but the configuration gives [%d %d]", t.Shape, rows, cols)
	}
	if g.zeros {
		return canon.Source{}, c.refuse(name, "use a symmetric checkpoint", "%s has zero points, which are not supported for 8-bit values one by one", g.name)
	}
	out := canon.Source{Name: module, Form: canon.Int8, Rows: rows, Cols: cols, Group: cols, Codes: s.take(t.size)}
	if err := c.read(name, t, out.Codes); err != nil {
		return canon.Source{}, err
	}
	for i := range out.Codes {
		out.Codes[i] ^= 0x80 // codes have an offset of 128
	}
	if _, err := c.groupScales(&out, g, s); err != nil {
		return canon.Source{}, err
	}
	return out, nil
}

// plainGroup is the group that claims a module whose values lie one by one; nil if the checkpoint has no such groups.
func (c *Checkpoint) plainGroup(module string) (*group, error) {
	if c.scheme == nil || !slices.ContainsFunc(c.scheme.groups, func(g group) bool { return g.plain }) {
		return nil, nil
	}
	g := c.scheme.method(module)
	if g == nil || !g.plain || c.scheme.ignore.rank(module) != matchNone {
		return nil, c.refuse(module+".weight", "check config.json against the tensors", "quantised, but no group of quantization_config claims it")
	}
	return g, nil
}

// groupScales reads the scales of a module of compressed-tensors into out and returns how many a row has.
func (c *Checkpoint) groupScales(out *canon.Source, g *group, s *Scratch) (int, error) {
	scale, rows, cols := out.Name+".weight_scale", out.Rows, out.Cols
	fail := func(tensor, format string, args ...any) (int, error) {
		return 0, c.refuse(tensor, "check config.json against the tensors", format, args...)
	}
	t, ok := c.byName[scale]
	if !ok {
		return fail(scale, "missing")
	}
	if out.ScaleForm, ok = floatForms[t.Type]; !ok {
		return fail(scale, "scales of dtype %s are not supported", t.Type)
	}
	width := out.ScaleForm.Bits() / 8
	switch {
	case g.inputs > 0:
		if groups := (cols + g.inputs - 1) / g.inputs; !slices.Equal(t.Shape, []int64{int64(rows), int64(groups)}) {
			return fail(scale, "shape %v, but groups of %d need [%d %d]", t.Shape, g.inputs, rows, groups)
		}
	case g.inputs == 0: // one scale a row
		if t.Elements() != int64(rows) {
			return fail(scale, "shape %v, but one scale a row needs [%d 1]", t.Shape, rows)
		}
		out.Group = cols
	default: // one scale for all
		if t.Elements() != 1 {
			return fail(scale, "shape %v, but one scale a matrix needs [1]", t.Shape)
		}
		out.Group = cols
	}
	out.Scales = s.take(int64(width) * int64(max(rows, int(t.Elements()))))[:t.size]
	if err := c.read(scale, t, out.Scales); err != nil {
		return 0, err
	}
	if at := nonFinite(out.Scales, out.ScaleForm); at >= 0 {
		return 0, c.refuse(scale, again, "scale %d is not finite", at)
	}
	groups := int(t.Elements()) / max(rows, 1)
	if g.inputs < 0 {
		one := slices.Clone(out.Scales)
		out.Scales = out.Scales[:rows*width]
		for r := range rows {
			copy(out.Scales[r*width:], one)
		}
	}
	return groups, nil
}

// packedZeros reads the zero points of a pack-quantized module, one byte for each of the groups of each row; nil where the
// group is symmetric.
func (c *Checkpoint) packedZeros(module string, g *group, rows, groups int, s *Scratch) ([]byte, error) {
	name := module + ".weight_zero_point"
	t, ok := c.byName[name]
	fail := func(format string, args ...any) ([]byte, error) {
		return nil, c.refuse(name, "check config.json against the tensors", format, args...)
	}
	switch {
	case !g.zeros && ok:
		return fail("zero points, although %s is symmetric", g.name)
	case !g.zeros:
		return nil, nil
	case !ok:
		return fail("missing, but %s is asymmetric", g.name)
	case g.inputs < 0:
		return fail("one zero point for a whole matrix is not supported")
	}
	perWord := 32 / g.bits
	words := (rows + perWord - 1) / perWord
	if t.Type != "I32" || !slices.Equal(t.Shape, []int64{int64(words), int64(groups)}) {
		return fail("%s %v, but %d-bit zero points of %d rows and %d groups need I32 [%d %d]", t.Type, t.Shape, g.bits, rows, groups, words, groups)
	}
	packed := s.take(t.size)
	if err := c.read(name, t, packed); err != nil {
		return nil, err
	}
	zeros := s.take(int64(rows) * int64(groups))
	for r := range rows {
		shift := r % perWord * g.bits
		for k := range groups {
			word := binary.LittleEndian.Uint32(packed[4*(r/perWord*groups+k):])
			zeros[r*groups+k] = byte(word >> shift & (1<<g.bits - 1))
		}
	}
	return zeros, nil
}

// trimRows drops the padding at the end of each row of from bytes, in place, so that rows of to bytes are contiguous.
func trimRows(codes []byte, from, to int) []byte {
	if from == to {
		return codes
	}
	rows := len(codes) / from
	for r := range rows {
		copy(codes[r*to:(r+1)*to], codes[r*from:r*from+to])
	}
	return codes[:rows*to]
}

// nonFinite returns the index of the first infinity or NaN (of E8M0, the byte that is no number), or -1. It looks at eight bytes at a time: every weight passes
// here once, at about the speed of memory.
func nonFinite(data []byte, form canon.Form) int {
	exponent, one, width := uint64(0x7c00_7c00_7c00_7c00), uint64(0x0001_0001_0001_0001), 2
	switch form {
	case canon.E8M0:
		return bytes.IndexByte(data, 255)
	case canon.BF16:
		exponent = 0x7f80_7f80_7f80_7f80
	case canon.F32:
		exponent, one, width = 0x7f80_0000_7f80_0000, 0x0000_0001_0000_0001, 4
	}
	i := 0
	for ; i+8 <= len(data); i += 8 {
		// A lane whose exponent is all ones becomes zero, and only such a lane borrows from its highest bit.
		y := binary.LittleEndian.Uint64(data[i:])&exponent ^ exponent
		if (y-one)&^y&(one<<(8*width-1)) != 0 {
			break
		}
	}
	for ; i+width <= len(data); i += width {
		var word [8]byte
		copy(word[:], data[i:i+width])
		mask := exponent & (1<<(8*width) - 1)
		if binary.LittleEndian.Uint64(word[:])&mask == mask {
			return i / width
		}
	}
	return -1
}

// read fills dst[:t.size] with the stored bytes of t.
func (t *Tensors) read(name string, info Tensor, dst []byte) error {
	return t.readAt(name, info, 0, dst[:info.size])
}

// readAt fills dst with the stored bytes of t from offset on.
func (t *Tensors) readAt(name string, info Tensor, offset int64, dst []byte) error {
	if _, err := info.file.handle.ReadAt(dst, info.begin+offset); err != nil {
		return &FormatError{File: info.file.name, Tensor: name, Offset: info.begin + offset,
			Problem: fmt.Sprintf("reading %d bytes: %v", len(dst), err), Remedy: "the file changed or the disk failed; " + again}
	}
	return nil
}

// Vector reads n floats stored under the full tensor name, widened exactly to f32. Any shape of n elements is accepted.
// A value that is not finite is refused: norms and biases have no use for one.
func (t *Tensors) Vector(name string, n int) ([]float32, error) {
	info, ok := t.byName[name]
	if !ok {
		return nil, t.refuse(name, "the configuration promises it: "+again, "missing")
	}
	form, ok := floatForms[info.Type]
	if !ok {
		return nil, t.refuse(name, "use a checkpoint that keeps it in f32, f16 or bf16", "dtype %s is not supported", info.Type)
	}
	if info.Elements() != int64(n) {
		return nil, t.refuse(name, "check config.json against the tensors", "shape %v, but the configuration gives %d values", info.Shape, n)
	}
	raw := make([]byte, info.size)
	if err := t.read(name, info, raw); err != nil {
		return nil, err
	}
	if at := nonFinite(raw, form); at >= 0 {
		return nil, t.refuse(name, again, "value %d is not finite", at)
	}
	return widen(raw, form, n)
}

// widen converts stored floats to f32; every such conversion is exact.
func widen(raw []byte, form canon.Form, n int) ([]float32, error) {
	if n == 0 {
		return nil, nil
	}
	wide, err := canon.Dequantised(canon.Source{Form: form, Rows: 1, Cols: n, Codes: raw})
	if err != nil {
		return nil, fmt.Errorf("weights: widening: %w", err)
	}
	out := make([]float32, n)
	if _, err := binary.Decode(wide.Codes, binary.LittleEndian, out); err != nil {
		return nil, fmt.Errorf("weights: widening: %w", err)
	}
	return out, nil
}

// Integers reads n integers of type I64 or I32.
func (t *Tensors) Integers(name string, n int) ([]int64, error) {
	info, ok := t.byName[name]
	if !ok {
		return nil, t.refuse(name, again, "missing")
	}
	if info.Type != "I64" && info.Type != "I32" || info.Elements() != int64(n) {
		return nil, t.refuse(name, again, "%s %v, want %d integers", info.Type, info.Shape, n)
	}
	raw := make([]byte, info.size)
	if err := t.read(name, info, raw); err != nil {
		return nil, err
	}
	out := make([]int64, n)
	for i := range out {
		if info.Type == "I64" {
			out[i] = int64(binary.LittleEndian.Uint64(raw[8*i:]))
		} else {
			out[i] = int64(int32(binary.LittleEndian.Uint32(raw[4*i:])))
		}
	}
	return out, nil
}

// refuse makes a FormatError about a tensor, with its file and offset where it has one.
func (t *Tensors) refuse(tensor, remedy, format string, args ...any) error {
	e := &FormatError{File: t.files[0].name, Tensor: tensor, Offset: -1, Problem: fmt.Sprintf(format, args...), Remedy: remedy}
	if len(t.files) > 1 {
		e.File = "model.safetensors.index.json"
	}
	if info, ok := t.byName[tensor]; ok {
		e.File, e.Offset = info.file.name, info.begin
	} else if base, packed := strings.CutSuffix(tensor, ".weight"); packed {
		if info, ok := t.byName[base+".weight_packed"]; ok {
			e.File = info.file.name
		}
	}
	return e
}
