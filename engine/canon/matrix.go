package canon

/*
#include "engine.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Form is how numbers are stored.
type Form uint8

// Forms. Values enter numerics ids and must not be renumbered.
const (
	F32  Form = iota // IEEE binary32, little endian
	F16              // IEEE binary16
	BF16             // upper half of binary32
	Int8             // unsigned byte c stands for c-128, times a scale a group
	Int4             // unsigned nibble c stands for c-8, times a scale a group; the low nibble is the earlier input
)

var formNames = [...]string{"f32", "f16", "bf16", "int8", "int4"}

// String returns the lower-case name.
func (f Form) String() string {
	if int(f) < len(formNames) {
		return formNames[f]
	}
	return fmt.Sprintf("form(%d)", uint8(f))
}

// Bits is the width of one stored value, scales not counted.
func (f Form) Bits() int { return [...]int{32, 16, 16, 8, 4}[f] }

// Quantised says whether products use rule 2 (integer dots of quantised activations) instead of rule 3.
func (f Form) Quantised() bool { return f == Int8 || f == Int4 }

// Source is a weight as a checkpoint stores it: y = x W^T with W [Rows, Cols], rows contiguous.
//
//   - F32, F16, BF16: Codes holds Rows*Cols values; Group and Scales are unused.
//   - Int8: Codes holds Rows*Cols bytes, value c-128.
//   - Int4: Codes holds Rows*ceil(Cols/2) bytes; input 2i of a row is the low nibble of byte i, value c-8.
//     (compressed-tensors' I32 words, value i of a word in bits 4i..4i+3, are exactly this in little endian; likewise its
//     8-bit words are Int8.)
//   - Scales holds Rows*ceil(Cols/Group) values of ScaleForm (F16, BF16 or F32), one for Group inputs of a row.
//     Group is 32, 64 or 128, or at least Cols for one scale a row (which counts as 128 with the scale repeated).
//
// The slices are only read, and only during the call.
type Source struct {
	Name       string // tensor name, for errors
	Form       Form
	Rows, Cols int
	Group      int
	Codes      []byte
	Scales     []byte
	ScaleForm  Form
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

// Group is the number of inputs that share a scale; 0 for float forms.
func (m *Matrix) Group() int { return int(m.c.group) }

// Bytes is the packed size, scales and padding included: what one product with one row reads.
func (m *Matrix) Bytes() int64 { return m.size }

// Dequantise writes the values of one output row into dst, which must hold Cols values: code times scale, one product.
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
	if int(s.Form) >= len(formNames) {
		return fail("unknown form %d", s.Form)
	}
	rowBytes := (s.Cols*s.Form.Bits() + 7) / 8
	if want := s.Rows * rowBytes; len(s.Codes) != want {
		return fail("%d bytes of codes for %s [%d, %d], want %d", len(s.Codes), s.Form, s.Rows, s.Cols, want)
	}
	m.form, m.rows, m.cols = C.int32_t(s.Form), C.int32_t(s.Rows), C.int32_t(s.Cols)
	if s.Form.Quantised() {
		group, perRow := s.Group, (s.Cols+max(s.Group, 1)-1)/max(s.Group, 1)
		if group >= s.Cols && group != 32 && group != 64 && group != 128 {
			group = 128
		}
		if group != 32 && group != 64 && group != 128 {
			return fail("group of %d inputs; groups of 32, 64, 128 or a whole row are known", s.Group)
		}
		switch s.ScaleForm {
		case F32, F16, BF16:
		default:
			return fail("scales of form %s; f32, f16 and bf16 are known", s.ScaleForm)
		}
		if want := s.Rows * perRow * s.ScaleForm.Bits() / 8; len(s.Scales) != want {
			return fail("%d bytes of %s scales, want %d for [%d, %d]", len(s.Scales), s.ScaleForm, want, s.Rows, perRow)
		}
		m.group, m.groups = C.int32_t(group), C.int32_t((s.Cols+group-1)/group)
		m.scale_form = C.int32_t(s.ScaleForm)
	}
	codes, scales := int64(C.canon_codes_size(&m)), int64(C.canon_scales_size(&m))
	m.codes_at, m.scales_at = C.int64_t(base), C.int64_t(base+codes)
	return m, base + codes + scales, nil
}

// pack writes the source into block at the offsets of m and returns m with real pointers.
func (s *Source) pack(m C.canon_matrix, block []byte, size int64) Matrix {
	m = C.canon_matrix_at(m, unsafe.Pointer(unsafe.SliceData(block)))
	perRow := 0
	if s.Form.Quantised() {
		perRow = (s.Cols + s.Group - 1) / s.Group
	}
	C.canon_pack(&m, (*C.uint8_t)(unsafe.SliceData(s.Codes)), (*C.uint8_t)(unsafe.SliceData(s.Scales)), C.int32_t(perRow))
	return Matrix{c: m, size: size}
}

// Pack copies a source into the arena in the kernels' layout. Errors name the tensor and what is wrong with it.
func (a *Arena) Pack(src Source) (*Matrix, error) {
	m, size, err := src.layout(0)
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

// Dequantised returns the source as F32 on the Go heap: code times scale, one product each (for activations in f32, where
// rule 3 then applies). Float sources are widened exactly.
func Dequantised(src Source) (Source, error) {
	if _, _, err := src.layout(0); err != nil {
		return Source{}, err
	}
	out := Source{Name: src.Name, Form: F32, Rows: src.Rows, Cols: src.Cols, Codes: make([]byte, src.Rows*src.Cols*4)}
	C.canon_dequantise_source(C.int32_t(src.Form), C.int32_t(src.ScaleForm), C.int32_t(src.Rows), C.int32_t(src.Cols), C.int32_t(src.Group),
		(*C.uint8_t)(unsafe.SliceData(src.Codes)), (*C.uint8_t)(unsafe.SliceData(src.Scales)), (*C.float)(unsafe.Pointer(unsafe.SliceData(out.Codes))))
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
