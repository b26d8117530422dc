package gguf

// Reading a header: one pass through a small window. Strings and arrays are passed by, and their places kept.

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"unicode/utf8"
)

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
