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
	"fmt"
	"io"
	"math/bits"
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
