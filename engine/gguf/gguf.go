// Package gguf reads GGUF files, the format of llama.cpp: typed metadata and a table of named tensors, and tells both in
// the words of a Hugging Face checkpoint: config.json (config.go), tensor names (names.go), tokenizer.json and the chat
// template (vocabulary.go). What reads checkpoints of that kind needs to know nothing of GGUF.
//
// A file is: "GGUF", version (2 or 3), tensor count, metadata count; metadata entries {key, type, value}; tensor entries
// {name, dimensions innermost first, type, offset}; padding to the alignment; data. All little endian, counts and lengths
// in 64 bits. The file is untrusted: it is read once, through a small window, every count is held to what the rest of the
// file can contain before anything is done for it, and long arrays are left on disk until somebody asks for them.
package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"unicode/utf8"
	"unsafe"
)

// Limits on what a file may hold. Real ones stay far below each of them.
const (
	MaxHeader   = 24 << 20 // bytes before the data: long vocabularies take 15 MB
	maxEntries  = 1 << 12  // metadata entries
	maxTensors  = 1 << 16  // tensors of one file
	maxKey      = 1 << 8   // bytes of a key or of a tensor's name
	maxText     = 1 << 24  // bytes of one string: a chat template, or a whole tokenizer
	maxElements = 1 << 19  // elements of one array: the longest vocabularies have 450,000 merges
	maxDims     = 4        // dimensions of a tensor
	maxAlign    = 1 << 20  // bytes; 32 is the common one
)

// Error is a refusal of a file's content.
type Error struct {
	Key     string // metadata key to blame, or ""
	Tensor  string // tensor to blame, or ""
	Offset  int64  // byte of the file, or -1
	Problem string
}

func (e *Error) Error() string {
	what := ""
	if e.Key != "" {
		what = fmt.Sprintf("metadata %q: ", e.Key)
	}
	if e.Tensor != "" {
		what = fmt.Sprintf("tensor %q: ", e.Tensor)
	}
	if e.Offset >= 0 {
		return fmt.Sprintf("gguf: %s%s (at byte %d)", what, e.Problem, e.Offset)
	}
	return "gguf: " + what + e.Problem
}

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

// Tensor is one entry of the tensor table.
type Tensor struct {
	Name   string
	Type   Type
	Shape  []int64 // outermost first
	Offset int64   // first byte, from the beginning of the file
	Size   int64   // bytes
}

// File is a parsed header. It reads strings and arrays from the reader when asked for them; the reader must outlive it.
// Safe for concurrent use.
type File struct {
	Version int
	Data    int64    // first byte of tensor data
	Tensors []Tensor // in file order
	values  map[string]value
	reader  io.ReaderAt
}

// Parse reads the header of a file of size bytes. Errors are of type *Error, but for those of the reader.
func Parse(reader io.ReaderAt, size int64) (*File, error) {
	s := &scanner{reader: reader, size: min(size, MaxHeader), whole: size}
	f := &File{reader: reader, values: map[string]value{}}
	var magic [4]byte
	s.bytes(magic[:])
	if s.err == nil && string(magic[:]) != "GGUF" {
		return nil, &Error{Offset: 0, Problem: fmt.Sprintf("begins with %q, not with \"GGUF\"", magic[:])}
	}
	f.Version = int(s.u32())
	switch {
	case s.err != nil:
	case f.Version == 2<<24 || f.Version == 3<<24:
		return nil, &Error{Offset: 4, Problem: "the file is big endian, which is not supported"}
	case f.Version != 2 && f.Version != 3:
		return nil, &Error{Offset: 4, Problem: fmt.Sprintf("version %d is not supported; 2 and 3 are", f.Version)}
	}
	// The shortest tensor entry takes 24 bytes (name length, dimension count, type, offset), the shortest metadata entry 13.
	tensors := s.count("tensors", maxTensors, 24)
	entries := s.count("metadata entries", maxEntries, 13)
	for range entries {
		at := s.at
		key := s.text(maxKey, "a metadata key")
		v := s.value(key)
		if s.err != nil {
			break
		}
		if _, twice := f.values[key]; twice {
			s.fail(&Error{Key: key, Offset: at, Problem: "given twice"})
			break
		}
		f.values[key] = v
	}
	if s.err != nil {
		return nil, s.err
	}
	align, err := f.alignment()
	if err != nil {
		return nil, err
	}
	f.Tensors = make([]Tensor, 0, tensors)
	seen := make(map[string]bool, tensors)
	for range tensors {
		at := s.at
		t := s.tensor(align)
		if s.err != nil {
			return nil, s.err
		}
		if seen[t.Name] {
			return nil, &Error{Tensor: t.Name, Offset: at, Problem: "given twice"}
		}
		seen[t.Name] = true
		f.Tensors = append(f.Tensors, t)
	}
	f.Data = (s.at + align - 1) / align * align
	return f, f.place(size)
}

// alignment is that of tensor data.
func (f *File) alignment() (int64, error) {
	const key = "general.alignment"
	v, ok := f.values[key]
	if !ok {
		return 32, nil
	}
	if v.kind != kindU32 {
		return 0, &Error{Key: key, Offset: -1, Problem: fmt.Sprintf("is of type %v, want u32", v.kind)}
	}
	if bits.OnesCount64(v.bits) != 1 || v.bits > maxAlign {
		return 0, &Error{Key: key, Offset: -1, Problem: fmt.Sprintf("%d is not a power of two up to %d", v.bits, maxAlign)}
	}
	return int64(v.bits), nil
}

// place turns offsets that count from the data into offsets of the file and holds them to it. Overlaps are refused: two
// names for the same bytes have no honest use.
func (f *File) place(size int64) error {
	room := size - f.Data
	end := int64(0)
	ordered := true
	for i := range f.Tensors {
		t := &f.Tensors[i]
		if t.Offset > room || t.Size > room-t.Offset {
			return &Error{Tensor: t.Name, Offset: f.Data, Problem: fmt.Sprintf("%d bytes at byte %d of the data, but the file holds %d: it is truncated", t.Size, t.Offset, max(room, 0))}
		}
		ordered = ordered && t.Offset >= end
		end = t.Offset + t.Size
		t.Offset += f.Data
	}
	if ordered {
		return nil
	}
	return overlaps(f.Tensors)
}

// scanner reads a header through a window and counts what it has read. After the first error every read yields zero.
type scanner struct {
	reader io.ReaderAt
	size   int64 // of the header at most
	whole  int64 // of the file
	at     int64
	window []byte // unread bytes, from at
	block  []byte
	err    error
}

func (s *scanner) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// fill makes the window hold n bytes, n at most half a block.
func (s *scanner) fill(n int64) bool {
	if s.err != nil {
		return false
	}
	if int64(len(s.window)) >= n {
		return true
	}
	if n > s.size-s.at {
		problem := fmt.Sprintf("the file ends inside its header, after %d bytes", s.whole)
		if s.whole > s.size {
			problem = fmt.Sprintf("the header is longer than the %d bytes allowed", int64(MaxHeader))
		}
		s.fail(&Error{Offset: s.at, Problem: problem})
		return false
	}
	if s.block == nil {
		s.block = make([]byte, 1<<18)
	}
	kept := copy(s.block, s.window)
	got, err := s.reader.ReadAt(s.block[kept:min(int64(len(s.block)), s.size-s.at)], s.at+int64(kept))
	if err != nil && err != io.EOF {
		s.fail(fmt.Errorf("gguf: reading the header: %w", err))
		return false
	}
	if int64(kept+got) < n {
		s.fail(&Error{Offset: s.at, Problem: "the file became shorter while it was read"})
		return false
	}
	s.window = s.block[:kept+got]
	return true
}

func (s *scanner) advance(n int64) []byte {
	b := s.window[:n]
	s.window, s.at = s.window[n:], s.at+n
	return b
}

func (s *scanner) bytes(dst []byte) {
	if s.fill(int64(len(dst))) {
		copy(dst, s.advance(int64(len(dst))))
	}
}

func (s *scanner) u32() uint32 {
	if !s.fill(4) {
		return 0
	}
	return binary.LittleEndian.Uint32(s.advance(4))
}

func (s *scanner) u64() uint64 {
	if !s.fill(8) {
		return 0
	}
	return binary.LittleEndian.Uint64(s.advance(8))
}

// skip reads past n bytes.
func (s *scanner) skip(n int64) {
	for n > 0 && s.fill(1) {
		step := min(n, int64(len(s.window)))
		s.advance(step)
		n -= step
	}
}

// count reads a 64-bit number of things of at least width bytes each.
func (s *scanner) count(what string, most, width int64) int64 {
	at, n := s.at, s.u64()
	switch {
	case s.err != nil:
		return 0
	case n > uint64(most):
		s.fail(&Error{Offset: at, Problem: fmt.Sprintf("%d %s, more than the %d allowed", n, what, most)})
		return 0
	case int64(n) > (s.size-s.at)/width:
		s.fail(&Error{Offset: at, Problem: fmt.Sprintf("%d %s do not fit the rest of the file", n, what)})
		return 0
	}
	return int64(n)
}

// length reads the 64-bit length of a string. What it is the length of is said in two parts, which are joined only for an
// error: a vocabulary has a quarter of a million strings.
func (s *scanner) length(most int64, what, of string) int64 {
	at, n := s.at, s.u64()
	switch {
	case s.err != nil:
		return 0
	case n > uint64(most):
		s.fail(&Error{Offset: at, Problem: fmt.Sprintf("%s%s of %d bytes, more than the %d allowed", what, of, n, most)})
		return 0
	case int64(n) > s.size-s.at:
		s.fail(&Error{Offset: at, Problem: fmt.Sprintf("%s%s of %d bytes goes beyond the file", what, of, n)})
		return 0
	}
	return int64(n)
}

// text reads a short string.
func (s *scanner) text(most int64, what string) string {
	at, n := s.at, s.length(most, what, "")
	if !s.fill(n) {
		return ""
	}
	text := string(s.advance(n))
	if !utf8.ValidString(text) {
		s.fail(&Error{Offset: at, Problem: what + " is not UTF-8"})
	}
	return text
}

// value reads a type and a value of it.
func (s *scanner) value(key string) value {
	at := s.at
	v := value{kind: kind(s.u32())}
	fail := func(format string, args ...any) value {
		s.fail(&Error{Key: key, Offset: at, Problem: fmt.Sprintf(format, args...)})
		return v
	}
	switch {
	case s.err != nil:
		return v
	case int(v.kind) >= len(widths):
		return fail("unknown type %d", uint32(v.kind))
	case v.kind == kindString:
		v.count = s.length(maxText, "the text of ", key)
		v.at, v.size = s.at, v.count
		s.skip(v.count)
		return v
	case v.kind != kindArray:
		var b [8]byte
		s.bytes(b[:widths[v.kind]])
		v.bits = binary.LittleEndian.Uint64(b[:])
		if v.kind == kindBool && v.bits > 1 {
			return fail("a bool of %d", v.bits)
		}
		return v
	}
	v.element = kind(s.u32())
	switch {
	case s.err != nil:
		return v
	case int(v.element) >= len(widths):
		return fail("array of the unknown type %d", uint32(v.element))
	case v.element == kindArray:
		return fail("array of arrays")
	case v.element != kindString:
		v.count = s.count("elements of "+key, maxElements, widths[v.element])
		v.at, v.size = s.at, v.count*widths[v.element]
		s.skip(v.size)
		return v
	}
	v.count = s.count("elements of "+key, maxElements, 8)
	v.at = s.at
	for range v.count {
		s.skip(s.length(maxText, "an element of ", key))
		if s.err != nil {
			break
		}
	}
	v.size = s.at - v.at
	return v
}

// tensor reads one tensor entry. Its offset counts from the data.
func (s *scanner) tensor(align int64) Tensor {
	at := s.at
	t := Tensor{Name: s.text(maxKey, "a tensor's name")}
	fail := func(format string, args ...any) Tensor {
		s.fail(&Error{Tensor: t.Name, Offset: at, Problem: fmt.Sprintf(format, args...)})
		return t
	}
	dims := s.u32()
	if s.err == nil && dims > maxDims {
		return fail("%d dimensions, more than the %d allowed", dims, maxDims)
	}
	t.Shape = make([]int64, dims)
	for i := range t.Shape {
		d := s.u64()
		if d > math.MaxInt64 {
			return fail("dimension %d out of range", d)
		}
		t.Shape[len(t.Shape)-1-i] = int64(d)
	}
	number := s.u32()
	offset := s.u64()
	if s.err != nil {
		return t
	}
	var problem string
	if t.Type, problem = typeOf(number); problem != "" {
		return fail("%s", problem)
	}
	if t.Size, problem = t.Type.size(t.Shape); problem != "" {
		return fail("%s", problem)
	}
	if offset > math.MaxInt64 || offset%uint64(align) != 0 {
		return fail("offset %d is not a multiple of the alignment of %d", offset, align)
	}
	t.Offset = int64(offset)
	return t
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

// IsGGUF says whether a file's first bytes are those of a GGUF file.
func IsGGUF(head []byte) bool { return bytes.HasPrefix(head, []byte("GGUF")) }
