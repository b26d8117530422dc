package canon

// Packed weights outside an arena: a container stores the bytes that the kernels read, so that a record that comes from
// disk is ready when the read is done. Layouts say what lies in such bytes; LayoutVersion changes whenever the same source
// would be packed into other bytes.

/*
#include "engine.h"
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"
)

// Offset is what is taken from integer codes.
type Offset uint8

// Offsets. Values lie in files and must not be renumbered.
const (
	OffsetForm   Offset = iota // the form's own: 8 or 128
	OffsetZeros                // an integer zero point beside each scale
	OffsetMinima               // nothing: codes are unsigned, with a float minimum beside each scale
)

// Layout is a packed weight without its bytes: what a file must say to make them readable again. Fields are those of
// Source.
type Layout struct {
	Form, ScaleForm  Form
	Offset           Offset
	Rows, Cols       int
	Group, GroupRows int
	Biased           bool // a bias of Rows float32 lies behind the rest
}

// scalesAlong is the number of stored scales along a row.
func scalesAlong(cols, group int) int {
	if group <= 0 || group >= cols {
		return 1
	}
	return (cols + group - 1) / group
}

// scales is the number of stored scales; 0 for forms without.
func (l Layout) scales() int {
	switch {
	case l.Form == FP8:
		height := min(max(l.GroupRows, 1), l.Rows)
		return (l.Rows + height - 1) / height * scalesAlong(l.Cols, l.Group)
	case l.Form.Quantised():
		return l.Rows * scalesAlong(l.Cols, l.Group)
	}
	return 0
}

// place checks a layout and returns the packed matrix's shape with offsets in place of pointers, starting at base, and the
// offset after it, a multiple of 64.
func (l Layout) place(name string, base int64) (C.canon_matrix, int64, error) {
	var m C.canon_matrix
	fail := func(format string, args ...any) (C.canon_matrix, int64, error) {
		return m, 0, fmt.Errorf("canon: packing %s: %s", name, fmt.Sprintf(format, args...))
	}
	if l.Rows <= 0 || l.Cols <= 0 || l.Rows > 1<<24 || l.Cols > 1<<24 || l.Group < 0 || l.Group > 1<<24 || l.GroupRows < 0 || l.GroupRows > 1<<24 {
		return fail("shape [%d, %d] with groups of [%d, %d] is out of range", l.Rows, l.Cols, l.GroupRows, l.Group)
	}
	if l.Form > MXFP4 {
		return fail("unknown form %d of weights", l.Form)
	}
	if l.Offset > OffsetMinima || l.Offset != OffsetForm && l.Form != Int8 && l.Form != Int4 {
		return fail("zero points and minima belong to int4 and int8")
	}
	m.form, m.rows, m.cols = C.int32_t(l.Form), C.int32_t(l.Rows), C.int32_t(l.Cols)
	m.scale_form, m.offset = C.int32_t(l.ScaleForm), C.int32_t(l.Offset)
	switch {
	case l.Form == FP8:
		if l.ScaleForm != F32 && l.ScaleForm != F16 && l.ScaleForm != BF16 && l.ScaleForm != E8M0 {
			return fail("scales of form %s; f32, f16, bf16 and e8m0 are known", l.ScaleForm)
		}
		width, height := l.Group, min(max(l.GroupRows, 1), l.Rows)
		if width == 0 || width >= l.Cols {
			width = 128
		}
		m.block_rows, m.block_cols, m.blocks = C.int32_t(height), C.int32_t(width), C.int32_t(scalesAlong(l.Cols, l.Group))
	case l.Form.Quantised():
		group, sub := l.Group, l.Group
		if group >= l.Cols && group != 16 && group != 32 && group != 64 && group != 128 {
			group, sub = 128, 128
		}
		if group == 16 {
			group = 32
		}
		if group != 32 && group != 64 && group != 128 {
			return fail("group of %d inputs; groups of 16, 32, 64, 128 or a whole row are known", l.Group)
		}
		mx := l.Form == MXFP4
		if mx != (l.ScaleForm == E8M0) || mx && sub != 32 || !mx && l.ScaleForm != F32 && l.ScaleForm != F16 && l.ScaleForm != BF16 {
			return fail("%s scales for groups of %d; f32, f16 and bf16 are known, for mxfp4 e8m0 in groups of 32", l.ScaleForm, l.Group)
		}
		m.group, m.groups, m.sub = C.int32_t(group), C.int32_t((l.Cols+group-1)/group), C.int32_t(sub)
	}
	m.codes_at = C.int64_t(base)
	m.scales_at = m.codes_at + C.canon_codes_size(&m)
	m.offsets_at = m.scales_at + C.canon_scales_size(&m)
	end := int64(m.offsets_at + C.canon_offsets_size(&m))
	if l.Biased {
		m.bias_at = C.int64_t(end)
		end += int64(l.Rows*4+63) &^ 63
	}
	return m, end, nil
}

// LayoutVersion names the order of packed bytes (pack.c). Files that hold packed bytes carry it.
const LayoutVersion = 1

// Bytes is the packed size, a multiple of 64; 0 if the layout is not valid.
func (l Layout) Bytes() int64 {
	_, size, err := l.place("", 0)
	if err != nil {
		return 0
	}
	return size
}

func (l Layout) matrices() []C.canon_matrix {
	m, _, _ := l.place("", 0)
	return []C.canon_matrix{m}
}

// Check says what is wrong with a layout; name is the tensor's, for the error.
func (l Layout) Check(name string) error {
	_, _, err := l.place(name, 0)
	return err
}

// Kind spells the form with all that changes a product's bits, as numerics ids hold it: "int4 g32", "int8 g16 minima",
// "fp8 128x128" (rows and inputs of a block; 0 for all of them).
func (l Layout) Kind() string {
	switch {
	case l.Form == FP8:
		height, width := max(l.GroupRows, 1), l.Group
		if height >= l.Rows && l.Rows > 1 {
			height = 0
		}
		if scalesAlong(l.Cols, l.Group) == 1 {
			width = 0
		}
		return fmt.Sprintf("fp8 %dx%d", height, width)
	case !l.Form.Quantised():
		return l.Form.String()
	case l.Offset == OffsetZeros:
		return fmt.Sprintf("%s g%d zeros", l.Form, l.Group)
	case l.Offset == OffsetMinima:
		return fmt.Sprintf("%s g%d minima", l.Form, l.Group)
	}
	return fmt.Sprintf("%s g%d", l.Form, l.Group)
}

// String reads "int4 g64 [2048, 768]", with a bias "int4 g64 [2048, 768] biased".
func (l Layout) String() string {
	if l.Biased {
		return fmt.Sprintf("%s [%d, %d] biased", l.Kind(), l.Rows, l.Cols)
	}
	return fmt.Sprintf("%s [%d, %d]", l.Kind(), l.Rows, l.Cols)
}

// Pack writes the source, whose layout l is, into block, [Bytes] zeroed bytes anywhere.
func (l Layout) Pack(block []byte, src Source) { l.packAt(block, 0, src) }

// packAt packs at an offset and returns the one behind. The layout has been checked.
func (l Layout) packAt(block []byte, base int64, src Source) int64 {
	m, end, err := l.place(src.Name, base)
	if err != nil || end > int64(len(block)) {
		panic(fmt.Sprintf("canon: packing %s into %d bytes at %d: %v", src.Name, len(block), base, err))
	}
	src.pack(m, block)
	return end
}

// View is the matrix that lies packed in block, which must be outside the Go heap, aligned to 64 and outlive the matrix.
func (l Layout) View(block []byte) *Matrix {
	m, _ := l.viewAt(block, 0)
	return &m
}

func (l Layout) viewAt(block []byte, base int64) (Matrix, int64) {
	m, end, err := l.place("", base)
	if err != nil || end > int64(len(block)) {
		panic(fmt.Sprintf("canon: view of %s in %d bytes at %d: %v", l, len(block), base, err))
	}
	return Matrix{c: C.canon_matrix_at(m, unsafe.Pointer(unsafe.SliceData(block))), size: end - base}, end
}

// Unpack is the inverse of packing: the source that lies packed in block. Its data is written to memory that take returns.
func (l Layout) Unpack(name string, block []byte, take func(n int64) []byte) (Source, error) {
	m, end, err := l.place(name, 0)
	if err != nil {
		return Source{}, err
	}
	if int64(len(block)) < end {
		return Source{}, fmt.Errorf("canon: unpacking %s: %d bytes of %d", name, len(block), end)
	}
	s := Source{Name: name, Form: l.Form, ScaleForm: l.ScaleForm, Rows: l.Rows, Cols: l.Cols, Group: l.Group, GroupRows: l.GroupRows}
	s.Codes = take(int64(l.Rows) * ((int64(l.Cols)*int64(l.Form.Bits()) + 7) / 8))
	scales := int64(l.scales())
	if scales > 0 {
		s.Scales = take(scales * int64(l.ScaleForm.Bits()/8))
	}
	switch l.Offset {
	case OffsetZeros:
		s.Zeros = take(scales)
	case OffsetMinima:
		s.Minima = take(int64(len(s.Scales)))
	}
	if l.Biased {
		s.Bias = make([]float32, l.Rows)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s.Bias))), 4*l.Rows), block[int(m.bias_at):])
	}
	C.canon_unpack(&m, octets(block), octets(s.Codes), octets(s.Scales), octets(s.offsets()), C.int32_t(s.perRow()))
	return s, s.values()
}

// RecordLayout is what all records of one shape and form have in common: gate and up [inner, hidden], down [hidden, inner],
// one behind the other.
type RecordLayout struct {
	Gate, Up, Down Layout
	c              C.canon_record // offsets from the start of the block
	bytes          int64
}

// NewRecordLayout checks that three layouts make a record. Gate and up must have the same form and group, since their
// input is quantised once. name is the gate's, for errors.
func NewRecordLayout(name string, gate, up, down Layout) (*RecordLayout, error) {
	l := &RecordLayout{Gate: gate, Up: up, Down: down}
	var err error
	at := int64(0)
	for _, part := range []struct {
		layout Layout
		c      *C.canon_matrix
	}{{gate, &l.c.gate}, {up, &l.c.up}, {down, &l.c.down}} {
		if *part.c, at, err = part.layout.place(name, at); err != nil {
			return nil, err
		}
	}
	l.bytes = at
	switch {
	case up.Rows != gate.Rows || up.Cols != gate.Cols:
		return nil, fmt.Errorf("canon: packing %s: up [%d, %d] beside gate [%d, %d]", name, up.Rows, up.Cols, gate.Rows, gate.Cols)
	case down.Rows != gate.Cols || down.Cols != gate.Rows:
		return nil, fmt.Errorf("canon: packing %s: down [%d, %d] beside gate [%d, %d]", name, down.Rows, down.Cols, gate.Rows, gate.Cols)
	case l.c.up.form != l.c.gate.form || l.c.up.group != l.c.gate.group:
		return nil, fmt.Errorf("canon: packing %s: up is %s, gate %s: their forms and groups must be equal", name, up, gate)
	}
	return l, nil
}

// RecordLayoutOf is the layout that three sources have when they are packed.
func RecordLayoutOf(gate, up, down Source) (*RecordLayout, error) {
	var parts [3]Layout
	for i, s := range []*Source{&gate, &up, &down} {
		var err error
		if parts[i], err = s.Layout(); err != nil {
			return nil, err
		}
	}
	return NewRecordLayout(gate.Name, parts[0], parts[1], parts[2])
}

// Bytes is the size of a record.
func (l *RecordLayout) Bytes() int64 { return l.bytes }

func (l *RecordLayout) matrices() []C.canon_matrix {
	return []C.canon_matrix{l.c.gate, l.c.up, l.c.down}
}

// Equal says whether records of both layouts differ in their bytes only.
func (l *RecordLayout) Equal(o *RecordLayout) bool { return l.c == o.c }

// String reads "gate and up int4 g64 [768, 2048], down int4 g64 [2048, 768]".
func (l *RecordLayout) String() string { return fmt.Sprintf("gate and up %s, down %s", l.Gate, l.Down) }

// Pack writes three sources of this layout into block, [Bytes] zeroed bytes anywhere.
func (l *RecordLayout) Pack(block []byte, gate, up, down Source) {
	at := l.Gate.packAt(block, 0, gate)
	at = l.Up.packAt(block, at, up)
	l.Down.packAt(block, at, down)
}

// View is the record that lies in block, which must be outside the Go heap, aligned to 64 and outlive the record.
func (l *RecordLayout) View(block []byte) *Record {
	r := &Record{layout: l, block: block[:l.bytes:l.bytes]}
	var at int64
	r.gate, at = l.Gate.viewAt(block, 0)
	r.up, at = l.Up.viewAt(block, at)
	r.down, _ = l.Down.viewAt(block, at)
	return r
}

// Band is rows [first, first+n) of a source without its bias, sharing its data. With scales for several rows at once (fp8) first must begin a
// block.
func (s Source) Band(first, n int) Source {
	codes := len(s.Codes) / s.Rows
	b := s
	b.Rows, b.Codes, b.Bias = n, s.Codes[first*codes:(first+n)*codes], nil
	height := 1
	if s.Form == FP8 {
		height = min(max(s.GroupRows, 1), s.Rows)
	}
	from, to := first/height*s.perRow(), (first+n+height-1)/height*s.perRow()
	cut := func(data []byte, width int) []byte {
		if data == nil {
			return nil
		}
		return data[from*width : to*width]
	}
	width := s.ScaleForm.Bits() / 8
	b.Scales, b.Zeros, b.Minima = cut(s.Scales, width), cut(s.Zeros, 1), cut(s.Minima, width)
	return b
}

// ToBF16 rounds to the nearest bf16, ties to even.
func ToBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16 | 0x40)
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBF16 widens, exactly.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }
