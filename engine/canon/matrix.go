package canon

/*
#include "engine.h"
*/
import "C"

import (
	"bytes"
	"fmt"
	"unsafe"
)

// Form is how numbers are stored.
type Form uint8

// Forms. Values enter numerics ids and must not be renumbered.
const (
	F32   Form = iota // IEEE binary32, little endian
	F16               // IEEE binary16
	BF16              // upper half of binary32
	Int8              // unsigned byte c stands for c-128, times a scale a group
	Int4              // unsigned nibble c stands for c-8, times a scale a group; the low nibble is the earlier input
	FP8               // e4m3fn byte, times a scale a block; products keep activations as floats
	MXFP4             // e2m1 nibble, times an E8M0 scale for 32 inputs; the low nibble is the earlier input
	E8M0              // byte b stands for 2^(b-127), 255 is refused; for scales only
)

var formNames = [...]string{"f32", "f16", "bf16", "int8", "int4", "fp8", "mxfp4", "e8m0"}

// String returns the lower-case name.
func (f Form) String() string {
	if int(f) < len(formNames) {
		return formNames[f]
	}
	return fmt.Sprintf("form(%d)", uint8(f))
}

// Bits is the width of one stored value, scales not counted.
func (f Form) Bits() int { return [...]int{32, 16, 16, 8, 4, 8, 4, 8}[f] }

// Quantised says whether products use rule 2 (integer dots of quantised activations) instead of rule 3.
func (f Form) Quantised() bool { return f == Int8 || f == Int4 || f == MXFP4 }

// Source is a weight as a checkpoint stores it: y = x W^T with W [Rows, Cols], rows contiguous.
//
//   - F32, F16, BF16: Codes holds Rows*Cols values; nothing else is used.
//   - Int8: Codes holds Rows*Cols bytes, value c-128.
//   - Int4: Codes holds Rows*ceil(Cols/2) bytes; input 2i of a row is the low nibble of byte i, value c-8.
//     (compressed-tensors' I32 words, value i of a word in bits 4i..4i+3, are exactly this in little endian; likewise its
//     8-bit words are Int8.) Codes of 5 and 6 bits are Int8, of 2 and 3 bits Int4.
//   - MXFP4: nibbles as Int4, Group 32, ScaleForm E8M0.
//   - FP8: Codes holds Rows*Cols bytes, none of them NaN.
//   - Scales of Int8, Int4 and MXFP4: Rows*ceil(Cols/Group) values of ScaleForm (F16, BF16 or F32), one for Group inputs of a
//     row. Group is 16, 32, 64 or 128, or at least Cols for one scale a row (which counts as 128 with the scale repeated).
//     Activations are quantised in groups as large, for 16 in groups of 32.
//   - Scales of FP8: ceil(Rows/GroupRows)*ceil(Cols/Group) values of ScaleForm (also E8M0), one for a block of GroupRows rows
//     (0 = 1) and Group inputs; GroupRows of at least Rows is one scale for all rows. Group 0 or at least Cols is one scale
//     along the row, repeated for every 128 inputs.
//   - Zeros (Int8 and Int4): one unsigned byte beside each scale takes the place of 128 or 8: value c-zero.
//   - Minima (Int8 and Int4): one value of ScaleForm beside each scale; codes are then unsigned: value c*scale + minimum.
//
// The slices are only read, and only during the call.
type Source struct {
	Name       string // tensor name, for errors
	Form       Form
	Rows, Cols int
	Group      int
	GroupRows  int
	Codes      []byte
	Scales     []byte
	ScaleForm  Form
	Zeros      []byte
	Minima     []byte
}

// Kind spells the form with all that changes a product's bits, as numerics ids hold it: "int4 g32", "int8 g16 minima",
// "fp8 128x128" (rows and inputs of a block; 0 for all of them).
func (s *Source) Kind() string {
	switch {
	case s.Form == FP8:
		height, width := max(s.GroupRows, 1), s.Group
		if height >= s.Rows && s.Rows > 1 {
			height = 0
		}
		if s.perRow() == 1 {
			width = 0
		}
		return fmt.Sprintf("fp8 %dx%d", height, width)
	case !s.Form.Quantised():
		return s.Form.String()
	case s.Zeros != nil:
		return fmt.Sprintf("%s g%d zeros", s.Form, s.Group)
	case s.Minima != nil:
		return fmt.Sprintf("%s g%d minima", s.Form, s.Group)
	}
	return fmt.Sprintf("%s g%d", s.Form, s.Group)
}

// Matrix is a packed weight in an arena: immutable, valid until the arena closes, safe for concurrent reads. Integer
// forms lie in tiles of 16 output rows with the rows in lanes; float forms lie row by row.
type Matrix struct {
	c    C.canon_matrix
	size int64
}

// Rows is the number of outputs.
func (m *Matrix) Rows() int { return int(m.c.rows) }

// Cols is the number of inputs.
func (m *Matrix) Cols() int { return int(m.c.cols) }

// Form is the form of the stored codes.
func (m *Matrix) Form() Form { return Form(m.c.form) }

// Group is the number of inputs that are quantised together; 0 for forms whose products keep activations as floats.
func (m *Matrix) Group() int { return int(m.c.group) }

// Bytes is the packed size, scales and padding included: what one product with one row reads.
func (m *Matrix) Bytes() int64 { return m.size }

// Dequantise writes the values of one output row into dst, which must hold Cols values: code times scale, one product, or
// with a minimum one fused multiply-add.
func (m *Matrix) Dequantise(row int, dst []float32) {
	if row < 0 || row >= m.Rows() || len(dst) < m.Cols() {
		panic(fmt.Sprintf("canon: dequantise row %d of [%d, %d] into %d values", row, m.Rows(), m.Cols(), len(dst)))
	}
	C.canon_dequantise(&m.c, C.int32_t(row), (*C.float)(unsafe.SliceData(dst)))
}

// layout checks a source and returns the packed matrix's shape with offsets in place of pointers, starting at base, and
// the offset after it.
func (s *Source) layout(base int64) (C.canon_matrix, int64, error) {
	var m C.canon_matrix
	fail := func(format string, args ...any) (C.canon_matrix, int64, error) {
		return m, 0, fmt.Errorf("canon: packing %s: %s", s.Name, fmt.Sprintf(format, args...))
	}
	if s.Rows <= 0 || s.Cols <= 0 || s.Rows > 1<<24 || s.Cols > 1<<24 {
		return fail("shape [%d, %d] is out of range", s.Rows, s.Cols)
	}
	if s.Form > MXFP4 {
		return fail("unknown form %d of weights", s.Form)
	}
	rowBytes := (s.Cols*s.Form.Bits() + 7) / 8
	if want := s.Rows * rowBytes; len(s.Codes) != want {
		return fail("%d bytes of codes for %s [%d, %d], want %d", len(s.Codes), s.Form, s.Rows, s.Cols, want)
	}
	m.form, m.rows, m.cols = C.int32_t(s.Form), C.int32_t(s.Rows), C.int32_t(s.Cols)
	m.scale_form = C.int32_t(s.ScaleForm)
	if (s.Zeros != nil || s.Minima != nil) && s.Form != Int8 && s.Form != Int4 || s.Zeros != nil && s.Minima != nil {
		return fail("zero points and minima belong to int4 and int8, one of the two")
	}
	switch {
	case s.Form == FP8:
		if s.ScaleForm != F32 && s.ScaleForm != F16 && s.ScaleForm != BF16 && s.ScaleForm != E8M0 {
			return fail("scales of form %s; f32, f16, bf16 and e8m0 are known", s.ScaleForm)
		}
		if s.Group < 0 || s.GroupRows < 0 {
			return fail("blocks of [%d, %d]", s.GroupRows, s.Group)
		}
		width, height := s.Group, min(max(s.GroupRows, 1), s.Rows)
		if width == 0 || width >= s.Cols {
			width = 128
		}
		blocks := s.perRow()
		if want := (s.Rows + height - 1) / height * blocks * s.ScaleForm.Bits() / 8; len(s.Scales) != want {
			return fail("%d bytes of %s scales, want %d for blocks of [%d, %d] in [%d, %d]", len(s.Scales), s.ScaleForm, want, height, s.Group, s.Rows, s.Cols)
		}
		m.block_rows, m.block_cols, m.blocks = C.int32_t(height), C.int32_t(width), C.int32_t(blocks)
	case s.Form.Quantised():
		group, sub := s.Group, s.Group
		if group >= s.Cols && group != 16 && group != 32 && group != 64 && group != 128 {
			group, sub = 128, 128
		}
		if group == 16 {
			group = 32
		}
		if group != 32 && group != 64 && group != 128 {
			return fail("group of %d inputs; groups of 16, 32, 64, 128 or a whole row are known", s.Group)
		}
		mx := s.Form == MXFP4
		if mx != (s.ScaleForm == E8M0) || mx && sub != 32 || !mx && s.ScaleForm != F32 && s.ScaleForm != F16 && s.ScaleForm != BF16 {
			return fail("%s scales for groups of %d; f32, f16 and bf16 are known, for mxfp4 e8m0 in groups of 32", s.ScaleForm, s.Group)
		}
		scales := s.Rows * s.perRow()
		if want := scales * s.ScaleForm.Bits() / 8; len(s.Scales) != want {
			return fail("%d bytes of %s scales, want %d for [%d, %d]", len(s.Scales), s.ScaleForm, want, s.Rows, s.perRow())
		}
		switch {
		case s.Zeros != nil:
			if len(s.Zeros) != scales {
				return fail("%d zero points for %d scales", len(s.Zeros), scales)
			}
			m.offset = C.CANON_OFFSET_ZEROS
		case s.Minima != nil:
			if len(s.Minima) != len(s.Scales) {
				return fail("%d bytes of minima for %d of scales", len(s.Minima), len(s.Scales))
			}
			m.offset = C.CANON_OFFSET_MINIMA
		}
		m.group, m.groups, m.sub = C.int32_t(group), C.int32_t((s.Cols+group-1)/group), C.int32_t(sub)
	}
	m.codes_at = C.int64_t(base)
	m.scales_at = m.codes_at + C.canon_codes_size(&m)
	m.offsets_at = m.scales_at + C.canon_scales_size(&m)
	return m, int64(m.offsets_at + C.canon_offsets_size(&m)), nil
}

// perRow is the number of stored scales along a row.
func (s *Source) perRow() int {
	if s.Group <= 0 || s.Group >= s.Cols {
		return 1
	}
	return (s.Cols + s.Group - 1) / s.Group
}

// offsets are what lies beside the scales: zero points, minima or nothing.
func (s *Source) offsets() []byte {
	if s.Zeros != nil {
		return s.Zeros
	}
	return s.Minima
}

// values refuses codes and scales that stand for NaN.
func (s *Source) values() error {
	if s.Form == FP8 {
		for _, code := range []byte{0x7f, 0xff} {
			if at := bytes.IndexByte(s.Codes, code); at >= 0 {
				return fmt.Errorf("canon: packing %s: the weight at [%d, %d] is NaN (byte %#x): the file is damaged or another fp8 format", s.Name, at/s.Cols, at%s.Cols, code)
			}
		}
	}
	if s.ScaleForm == E8M0 && (s.Form == FP8 || s.Form == MXFP4) {
		if at := bytes.IndexByte(s.Scales, 255); at >= 0 {
			return fmt.Errorf("canon: packing %s: scale %d is NaN (byte 255): the file is damaged", s.Name, at)
		}
	}
	return nil
}

// pack writes the source into block at the offsets of m and returns m with real pointers.
func (s *Source) pack(m C.canon_matrix, block []byte, size int64) Matrix {
	m = C.canon_matrix_at(m, unsafe.Pointer(unsafe.SliceData(block)))
	C.canon_pack(&m, octets(s.Codes), octets(s.Scales), octets(s.offsets()), C.int32_t(s.perRow()))
	return Matrix{c: m, size: size}
}

func octets(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.SliceData(b)) }

// Pack copies a source into the arena in the kernels' layout. Errors name the tensor and what is wrong with it.
func (a *Arena) Pack(src Source) (*Matrix, error) {
	m, size, err := src.layout(0)
	if err == nil {
		err = src.values()
	}
	if err != nil {
		return nil, err
	}
	block, err := a.Bytes(int(size))
	if err != nil {
		return nil, fmt.Errorf("canon: packing %s: %w", src.Name, err)
	}
	out := src.pack(m, block, size)
	return &out, nil
}

// Record is a gated feed-forward block (gate, up, down) as one contiguous piece of memory: the unit that tiers move.
// Immutable. Records of equal shape and forms have equal layouts, so a table of experts needs only a pointer each.
type Record struct {
	c              C.canon_record
	block          []byte
	inner, hidden  int
	gateName       string
	gate, up, down Matrix
}

// Hidden is the width of input and output.
func (r *Record) Hidden() int { return r.hidden }

// Inner is the width between up and down.
func (r *Record) Inner() int { return r.inner }

// Bytes is the size of the record.
func (r *Record) Bytes() int64 { return int64(len(r.block)) }

// Parts returns the three matrices that lie in the record.
func (r *Record) Parts() (gate, up, down *Matrix) { return &r.gate, &r.up, &r.down }

// PackRecord packs gate and up [inner, hidden] and down [hidden, inner] as one block. Gate and up must have the same form
// and group, since their input is quantised once.
func (a *Arena) PackRecord(gate, up, down Source) (*Record, error) {
	r := &Record{inner: gate.Rows, hidden: gate.Cols, gateName: gate.Name}
	switch {
	case up.Rows != gate.Rows || up.Cols != gate.Cols:
		return nil, fmt.Errorf("canon: packing %s: up [%d, %d] beside gate [%d, %d]", up.Name, up.Rows, up.Cols, gate.Rows, gate.Cols)
	case down.Rows != gate.Cols || down.Cols != gate.Rows:
		return nil, fmt.Errorf("canon: packing %s: down [%d, %d] beside gate [%d, %d]", down.Name, down.Rows, down.Cols, gate.Rows, gate.Cols)
	}
	g, at, err := gate.layout(0)
	if err != nil {
		return nil, err
	}
	u, at2, err := up.layout(at)
	if err != nil {
		return nil, err
	}
	d, at3, err := down.layout(at2)
	if err != nil {
		return nil, err
	}
	for _, s := range []*Source{&gate, &up, &down} {
		if err := s.values(); err != nil {
			return nil, err
		}
	}
	if g.form != u.form || g.group != u.group {
		return nil, fmt.Errorf("canon: packing %s: up is %s in groups of %d, gate %s in groups of %d", up.Name, Form(u.form), u.group, Form(g.form), g.group)
	}
	if r.block, err = a.Bytes(int(at3)); err != nil {
		return nil, fmt.Errorf("canon: packing %s: %w", gate.Name, err)
	}
	r.c = C.canon_record{gate: g, up: u, down: d}
	r.gate, r.up, r.down = gate.pack(g, r.block, at), up.pack(u, r.block, at2-at), down.pack(d, r.block, at3-at2)
	return r, nil
}

// sameLayout says whether two records differ in their bytes only.
func (r *Record) sameLayout(o *Record) bool { return r.c == o.c }

// Dequantised returns the source as F32 on the Go heap: code times scale, one product each, or with a minimum one fused
// multiply-add (for activations in f32, where rule 3 then applies). Float sources are widened exactly.
func Dequantised(src Source) (Source, error) {
	m, _, err := src.layout(0)
	if err == nil {
		err = src.values()
	}
	if err != nil {
		return Source{}, err
	}
	out := Source{Name: src.Name, Form: F32, Rows: src.Rows, Cols: src.Cols, Codes: make([]byte, src.Rows*src.Cols*4)}
	C.canon_dequantise_source(&m, octets(src.Codes), octets(src.Scales), octets(src.offsets()), C.int32_t(src.perRow()), (*C.float)(unsafe.Pointer(unsafe.SliceData(out.Codes))))
	return out, nil
}

// ExpertTable holds the records of one layer's routed experts. Entries may be replaced between steps, never during one.
type ExpertTable struct {
	layout  *Record
	ptrs    []byte // [experts] pointers in C memory; 0 = not here
	experts int
}

// NewExpertTable returns a table without records.
func (a *Arena) NewExpertTable(experts int) (*ExpertTable, error) {
	b, err := a.Bytes(experts * 8)
	if err != nil {
		return nil, err
	}
	return &ExpertTable{ptrs: b, experts: experts}, nil
}

// Len is the number of experts.
func (t *ExpertTable) Len() int { return t.experts }

// Set puts a record in place of expert id; nil means that the expert is not here. All records of a table have one layout.
func (t *ExpertTable) Set(id int, r *Record) error {
	if id < 0 || id >= t.experts {
		return fmt.Errorf("canon: expert table: id %d of %d", id, t.experts)
	}
	slot := (*unsafe.Pointer)(unsafe.Pointer(&t.ptrs[id*8]))
	if r == nil {
		*slot = nil
		return nil
	}
	if t.layout == nil {
		t.layout = r
	} else if !t.layout.sameLayout(r) {
		return fmt.Errorf("canon: expert table: %s differs in shape or form from %s", r.gateName, t.layout.gateName)
	}
	*slot = unsafe.Pointer(unsafe.SliceData(r.block))
	return nil
}
