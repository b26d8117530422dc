package gguf

// Metadata values by key, each in the type that the reader wants: another one is refused, never converted.

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
	"unsafe"
)

// kind is the type of a metadata value.
type kind uint32

const (
	kindU8 kind = iota
	kindI8
	kindU16
	kindI16
	kindU32
	kindI32
	kindF32
	kindBool
	kindString
	kindArray
	kindU64
	kindI64
	kindF64
)

// widths are the bytes of one value; 0 = no fixed width.
var widths = [...]int64{kindU8: 1, kindI8: 1, kindU16: 2, kindI16: 2, kindU32: 4, kindI32: 4, kindF32: 4, kindBool: 1, kindU64: 8, kindI64: 8, kindF64: 8}

var kindNames = [...]string{"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"}

func (k kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("type %d", uint32(k))
}

// value is a metadata value: a scalar in bits, a string or array by its place in the file.
type value struct {
	kind    kind
	element kind   // of an array
	count   int64  // elements of an array, bytes of a string
	bits    uint64 // a scalar, as stored
	at      int64  // first byte of the content of a string or array
	size    int64  // bytes of that content
}

// Has says whether key is in the metadata.
func (f *File) Has(key string) bool { _, ok := f.values[key]; return ok }

// Keys are all metadata keys, in no order.
func (f *File) Keys() []string {
	keys := make([]string, 0, len(f.values))
	for key := range f.values {
		keys = append(keys, key)
	}
	return keys
}

// wrong is the error about a value of another type.
func wrong(key string, v value, want string) error {
	is := v.kind.String()
	if v.kind == kindArray {
		is = "an array of " + v.element.String()
	}
	return &Error{Key: key, Offset: -1, Problem: fmt.Sprintf("is %s, want %s", is, want)}
}

// integer decodes a stored integer of any width.
func (k kind) integer(bits uint64) (int64, bool) {
	switch k {
	case kindU8, kindU16, kindU32:
		return int64(bits), true
	case kindU64:
		return int64(bits), bits <= math.MaxInt64
	case kindI8:
		return int64(int8(bits)), true
	case kindI16:
		return int64(int16(bits)), true
	case kindI32:
		return int64(int32(bits)), true
	case kindI64:
		return int64(bits), true
	}
	return 0, false
}

// Integer reads a whole number of any width; false when the key is absent.
func (f *File) Integer(key string) (int64, bool, error) {
	v, ok := f.values[key]
	if !ok {
		return 0, false, nil
	}
	n, ok := v.kind.integer(v.bits)
	if !ok {
		return 0, false, wrong(key, v, "a whole number")
	}
	return n, true, nil
}

// Number reads a float or whole number; false when the key is absent. An f32 comes back as the shortest decimal that
// reads as the same f32, because that is what its writer had: 1e-05 and not 9.999999747378752e-06.
func (f *File) Number(key string) (float64, bool, error) {
	v, ok := f.values[key]
	if !ok {
		return 0, false, nil
	}
	var x float64
	switch n, whole := v.kind.integer(v.bits); {
	case whole:
		x = float64(n)
	case v.kind == kindF32:
		x = shortest(math.Float32frombits(uint32(v.bits)))
	case v.kind == kindF64:
		x = math.Float64frombits(v.bits)
	default:
		return 0, false, wrong(key, v, "a number")
	}
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, false, &Error{Key: key, Offset: -1, Problem: fmt.Sprintf("%v is not finite", x)}
	}
	return x, true, nil
}

// Bool reads a truth value; false, false when the key is absent.
func (f *File) Bool(key string) (is, ok bool, err error) {
	v, ok := f.values[key]
	if !ok {
		return false, false, nil
	}
	if v.kind != kindBool {
		return false, false, wrong(key, v, "a bool")
	}
	return v.bits == 1, true, nil
}

// Text reads a string; false when the key is absent.
func (f *File) Text(key string) (string, bool, error) {
	v, ok := f.values[key]
	if !ok {
		return "", false, nil
	}
	if v.kind != kindString {
		return "", false, wrong(key, v, "a string")
	}
	content, err := f.content(key, v)
	if err != nil {
		return "", false, err
	}
	if !utf8.Valid(content) {
		return "", false, &Error{Key: key, Offset: v.at, Problem: "is not UTF-8"}
	}
	return string(content), true, nil
}

// content reads the bytes of a string or array.
func (f *File) content(key string, v value) ([]byte, error) {
	b := make([]byte, v.size)
	if v.size == 0 {
		return b, nil // it may lie at the very end
	}
	if _, err := f.reader.ReadAt(b, v.at); err != nil {
		return nil, fmt.Errorf("gguf: metadata %q: reading %d bytes at byte %d: %w", key, v.size, v.at, err)
	}
	return b, nil
}

// IsArray says whether key is an array.
func (f *File) IsArray(key string) bool { return f.values[key].kind == kindArray }

// Integers reads an array of whole numbers or bools; nil when the key is absent.
func (f *File) Integers(key string) ([]int64, error) {
	v, ok := f.values[key]
	if !ok {
		return nil, nil
	}
	if v.kind != kindArray || v.element == kindString || v.element == kindF32 || v.element == kindF64 {
		return nil, wrong(key, v, "an array of whole numbers")
	}
	content, err := f.content(key, v)
	if err != nil {
		return nil, err
	}
	out, width := make([]int64, v.count), widths[v.element]
	for i := range out {
		var b [8]byte
		copy(b[:], content[int64(i)*width:][:width])
		bits := binary.LittleEndian.Uint64(b[:])
		if v.element == kindBool {
			out[i] = int64(bits & 1)
			continue
		}
		if out[i], ok = v.element.integer(bits); !ok {
			return nil, &Error{Key: key, Offset: v.at + int64(i)*width, Problem: fmt.Sprintf("%d is out of range", bits)}
		}
	}
	return out, nil
}

// Numbers reads an array of f32; nil when the key is absent.
func (f *File) Numbers(key string) ([]float32, error) {
	v, ok := f.values[key]
	if !ok {
		return nil, nil
	}
	if v.kind != kindArray || v.element != kindF32 {
		return nil, wrong(key, v, "an array of f32")
	}
	content, err := f.content(key, v)
	if err != nil {
		return nil, err
	}
	out := make([]float32, v.count)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(content[4*i:]))
	}
	return out, nil
}

// Texts reads an array of strings; nil when the key is absent. The strings share one block of memory.
func (f *File) Texts(key string) ([]string, error) {
	v, ok := f.values[key]
	if !ok {
		return nil, nil
	}
	if v.kind != kindArray || v.element != kindString {
		return nil, wrong(key, v, "an array of strings")
	}
	content, err := f.content(key, v)
	if err != nil {
		return nil, err
	}
	whole := unsafe.String(unsafe.SliceData(content), len(content)) // nobody else has these bytes
	out := make([]string, 0, v.count)
	for at := 0; len(out) < int(v.count); {
		// The lengths have been held to the array's end when the header was read, and are again in case the file changed.
		if len(content)-at < 8 {
			return nil, &Error{Key: key, Offset: v.at, Problem: "changed while it was read"}
		}
		n := binary.LittleEndian.Uint64(content[at:])
		at += 8
		if n > uint64(len(content)-at) {
			return nil, &Error{Key: key, Offset: v.at, Problem: "changed while it was read"}
		}
		text := whole[at : at+int(n)]
		if !utf8.ValidString(text) {
			return nil, &Error{Key: key, Offset: v.at + int64(at), Problem: fmt.Sprintf("element %d is not UTF-8", len(out))}
		}
		out, at = append(out, text), at+int(n)
	}
	return out, nil
}
