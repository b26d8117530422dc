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
//   - Bias holds Rows values or is nil. Only records keep it (PackRecord); elsewhere a bias belongs to the product.
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
	Bias       []float32
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

// shape is the layout of a source that has not been checked.
func (s *Source) shape() Layout {
	l := Layout{Form: s.Form, ScaleForm: s.ScaleForm, Rows: s.Rows, Cols: s.Cols, Group: s.Group, GroupRows: s.GroupRows, Biased: s.Bias != nil}
	switch {
	case s.Zeros != nil:
		l.Offset = OffsetZeros
	case s.Minima != nil:
		l.Offset = OffsetMinima
	}
	return l
}

// Kind is Layout.Kind of the source.
func (s *Source) Kind() string { return s.shape().Kind() }

// Layout is what the source becomes when it is packed. It checks the source's fields and its data.
func (s *Source) Layout() (Layout, error) {
	l := s.shape()
	fail := func(format string, args ...any) (Layout, error) {
		return l, fmt.Errorf("canon: packing %s: %s", s.Name, fmt.Sprintf(format, args...))
	}
	if s.Zeros != nil && s.Minima != nil {
		return fail("zero points and minima belong to int4 and int8, one of the two")
	}
	if err := l.Check(s.Name); err != nil {
		return l, err
	}
	if want := s.Rows * ((s.Cols*s.Form.Bits() + 7) / 8); len(s.Codes) != want {
		return fail("%d bytes of codes for %s [%d, %d], want %d", len(s.Codes), s.Form, s.Rows, s.Cols, want)
	}
	scales := l.scales()
	switch {
	case len(s.Scales) != scales*s.ScaleForm.Bits()/8 && (s.Form == FP8 || s.Form.Quantised()):
		return fail("%d bytes of %s scales, want %d for groups of %d in [%d, %d]", len(s.Scales), s.ScaleForm, scales*s.ScaleForm.Bits()/8, s.Group, s.Rows, s.Cols)
	case s.Zeros != nil && len(s.Zeros) != scales:
		return fail("%d zero points for %d scales", len(s.Zeros), scales)
	case s.Bias != nil && len(s.Bias) != s.Rows:
		return fail("%d biases for [%d, %d]", len(s.Bias), s.Rows, s.Cols)
	case s.Minima != nil && len(s.Minima) != len(s.Scales):
		return fail("%d bytes of minima for %d of scales", len(s.Minima), len(s.Scales))
	}
	return l, s.values()
}

// perRow is the number of stored scales along a row.
func (s *Source) perRow() int { return scalesAlong(s.Cols, s.Group) }

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

// pack writes the source into block at the offsets of m.
func (s *Source) pack(m C.canon_matrix, block []byte) {
	copy(block[int(m.bias_at):], unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s.Bias))), 4*len(s.Bias)))
	C.canon_pack(&m, octets(block), octets(s.Codes), octets(s.Scales), octets(s.offsets()), C.int32_t(s.perRow()))
}

func octets(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.SliceData(b)) }

// Pack copies a source into the arena in the kernels' layout. Errors name the tensor and what is wrong with it.
func (a *Arena) Pack(src Source) (*Matrix, error) {
	l, err := src.Layout()
	if err == nil && src.Bias != nil {
		err = fmt.Errorf("canon: packing %s: a bias outside a record", src.Name)
	}
	if err != nil {
		return nil, err
	}
	block, err := a.Room(l)
	if err != nil {
		return nil, fmt.Errorf("canon: packing %s: %w", src.Name, err)
	}
	l.Pack(block, src)
	return l.View(block), nil
}

// Record is a gated feed-forward block (gate, up, down) as one contiguous piece of memory: the unit that tiers move.
// Immutable. Records of equal shape and forms have equal layouts, so a table of experts needs only a pointer each.
type Record struct {
	layout         *RecordLayout
	block          []byte
	gate, up, down Matrix
}

// Hidden is the width of input and output.
func (r *Record) Hidden() int { return r.layout.Down.Rows }

// Inner is the width between up and down.
func (r *Record) Inner() int { return r.layout.Gate.Rows }

// Bytes is the size of the record.
func (r *Record) Bytes() int64 { return int64(len(r.block)) }

// Parts returns the three matrices that lie in the record.
func (r *Record) Parts() (gate, up, down *Matrix) { return &r.gate, &r.up, &r.down }

// PackRecord packs gate and up [inner, hidden] and down [hidden, inner] as one block. Gate and up must have the same form
// and group, since their input is quantised once.
func (a *Arena) PackRecord(gate, up, down Source) (*Record, error) {
	l, err := RecordLayoutOf(gate, up, down)
	if err != nil {
		return nil, err
	}
	block, err := a.Room(l)
	if err != nil {
		return nil, fmt.Errorf("canon: packing %s: %w", gate.Name, err)
	}
	l.Pack(block, gate, up, down)
	return l.View(block), nil
}

// Dequantised returns the source as F32 on the Go heap: code times scale, one product each, or with a minimum one fused
// multiply-add (for activations in f32, where rule 3 then applies). Float sources are widened exactly;
// a bias is kept.
func Dequantised(src Source) (Source, error) {
	l, err := src.Layout()
	if err != nil {
		return Source{}, err
	}
	m, _, _ := l.place(src.Name, 0)
	out := Source{Name: src.Name, Form: F32, Rows: src.Rows, Cols: src.Cols, Codes: make([]byte, src.Rows*src.Cols*4), Bias: src.Bias}
	C.canon_dequantise_source(&m, octets(src.Codes), octets(src.Scales), octets(src.offsets()), C.int32_t(src.perRow()), (*C.float)(unsafe.Pointer(unsafe.SliceData(out.Codes))))
	return out, nil
}

// ExpertTable holds the records of one layer's routed experts. Entries may be replaced between steps and at a stop of
// RunInParts, never while operations run.
type ExpertTable struct {
	layout  *RecordLayout
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

// SetLayout says what all records of the table have in common, for a table whose records come later; otherwise the first
// record says it.
func (t *ExpertTable) SetLayout(l *RecordLayout) { t.layout = l }

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
		t.layout = r.layout
	} else if !t.layout.Equal(r.layout) {
		return fmt.Errorf("canon: expert table: expert %d is %s, but the table holds %s", id, r.layout, t.layout)
	}
	*slot = unsafe.Pointer(unsafe.SliceData(r.block))
	return nil
}
