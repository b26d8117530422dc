package weights

// The safetensors format: 8 bytes little-endian header length N, N bytes of JSON {name: {dtype, shape, data_offsets}}
// (plus an optional __metadata__ of strings), then the data, to which offsets are relative. The format demands that
// tensors cover the data without gaps or overlaps; holding files to that closes the known aliasing tricks.

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// Type is a stored element type, spelled as safetensors spells it.
type Type string

// elementBits lists every type of the format. Types without a reader are legal in a file and refused when used.
var elementBits = map[Type]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
	"U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// typeNames are the same types by their spelling.
var typeNames = func() map[string]Type {
	names := make(map[string]Type, len(elementBits))
	for t := range elementBits {
		names[string(t)] = t
	}
	return names
}()

// entry is one tensor of a header; offsets are relative to the data.
type entry struct {
	Type    Type
	Shape   []int64
	Offsets [2]uint64
}

// named is an entry with its name.
type named struct {
	name string
	entry
}

// table is a decoded header.
type table struct {
	tensors []named           // in order of offset
	notes   map[string]string // of __metadata__: those that some reader wants
}

// wantedNotes are the entries of __metadata__ that say how tensors are stored.
var wantedNotes = map[string]bool{formatNote: true}

// headerReader decodes a safetensors header as it streams by.
type headerReader struct {
	*jsonStream
	data uint64  // bytes of tensor data
	dims []int64 // shapes, many in one block
	table
}

// parseHeader decodes a header of length bytes and checks it against the length of the data behind it. most bounds the
// number of tensors.
func parseHeader(file string, header io.Reader, length int64, data uint64, most int) (*table, error) {
	refuse := func(tensor string, at int64, format string, args ...any) error {
		return &FormatError{File: file, Tensor: tensor, Offset: at, Problem: fmt.Sprintf(format, args...), Remedy: again}
	}
	h := &headerReader{jsonStream: newJSONStream(header), data: data}
	h.tensors = make([]named, 0, min(int(length/64), most)) // entries of checkpoints take 90 bytes and more
	var names uniqueNames
	if h.more(); len(h.window) == 0 || h.window[0] != '{' {
		return nil, refuse("", 8, "header does not start with '{'")
	}
	for more := h.open('{', '}'); more; more = h.next('}') {
		name := string(h.text(maxTensorName))
		h.want(':')
		if name == "__metadata__" {
			h.metadata()
			if h.err != nil {
				return nil, refuse("", 8+h.at(), "__metadata__: %v", h.err)
			}
			continue
		}
		n := named{name: name, entry: h.entry()}
		if h.err != nil {
			return nil, refuse(name, 8+h.at(), "header: %v", h.err)
		}
		names.add([]byte(name))
		if problem := n.check(data); problem != "" {
			return nil, refuse(name, 8+h.at(), "%s", problem)
		}
		if h.tensors = append(h.tensors, n); len(h.tensors) > most {
			return nil, refuse("", 8+h.at(), "more than the %d tensors allowed in a file", most)
		}
	}
	h.end()
	if h.err != nil {
		return nil, refuse("", 8+h.at(), "header: %v", h.err)
	}
	if names.repeated() {
		return nil, refuse("", 8, "header: duplicate name of a tensor")
	}
	slices.SortFunc(h.tensors, func(a, b named) int {
		if c := cmp.Compare(a.Offsets[0], b.Offsets[0]); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.Offsets[1], b.Offsets[1]), strings.Compare(a.name, b.name))
	})
	at := uint64(0)
	for _, n := range h.tensors {
		if n.Offsets[0] != at {
			kind := "overlaps the tensor before it"
			if n.Offsets[0] > at {
				kind = "leaves a gap behind the tensor before it"
			}
			return nil, refuse(n.name, 8+length+int64(n.Offsets[0]), "starts at data byte %d but %d was expected: it %s", n.Offsets[0], at, kind)
		}
		at = n.Offsets[1]
	}
	if at != data {
		return nil, refuse("", 8+length+int64(at), "tensors cover %d bytes of %d: the file is too long", at, data)
	}
	return &h.table, nil
}

// uniqueNames finds out whether names repeat, from their hashes: a hundredth of the names' memory. That two names of a
// quarter of a million share a hash happens once in 10^8 files.
type uniqueNames struct {
	seed   maphash.Seed
	hashes []uint64
}

func (u *uniqueNames) add(name []byte) {
	if u.hashes == nil {
		u.seed = maphash.MakeSeed()
	}
	u.hashes = append(u.hashes, maphash.Bytes(u.seed, name))
}

func (u *uniqueNames) repeated() bool {
	slices.Sort(u.hashes)
	return len(slices.Compact(u.hashes)) < len(u.hashes)
}

// entry reads the description of one tensor.
func (h *headerReader) entry() entry {
	e := entry{Offsets: [2]uint64{1, 0}}
	var seen [3]bool
	first := func(field int) {
		if seen[field] {
			h.fail("duplicate key")
		}
		seen[field] = true
	}
	for more := h.open('{', '}'); more; more = h.next('}') {
		key := h.text(maxTensorName)
		switch string(key) {
		case "dtype":
			h.want(':')
			first(0)
			e.Type = typeNamed(h.text(maxTensorName))
		case "shape":
			h.want(':')
			first(1)
			e.Shape = h.shape()
		case "data_offsets":
			h.want(':')
			first(2)
			h.want('[')
			e.Offsets[0] = h.number()
			h.want(',')
			e.Offsets[1] = h.number()
			h.want(']')
		default:
			h.fail("unknown key %q", abbreviate(string(key), longestName))
		}
	}
	if !seen[0] || !seen[1] {
		h.fail("dtype or shape missing")
	}
	return e
}

// typeNamed is the type of that name, without memory of its own for those that are known.
func typeNamed(name []byte) Type {
	if t, ok := typeNames[string(name)]; ok {
		return t
	}
	return Type(name)
}

// shape reads a list of dimensions.
func (h *headerReader) shape() []int64 {
	if h.peek() != '[' {
		h.fail("shape is not a list")
	}
	begin := len(h.dims)
	for more := h.open('[', ']'); more; more = h.next(']') {
		d := h.number()
		switch {
		case len(h.dims)-begin == MaxDims:
			h.fail("more than the %d dimensions allowed", MaxDims)
		case d > 1<<62:
			h.fail("dimension %d out of range: the shape overflows", d)
		}
		if cap(h.dims) == len(h.dims) { // earlier shapes keep the old block
			h.dims, begin = append(make([]int64, 0, 4096), h.dims[begin:]...), 0
		}
		h.dims = append(h.dims, int64(d))
	}
	return h.dims[begin:len(h.dims):len(h.dims)]
}

// metadata reads past __metadata__, an object of texts, and keeps those that are wanted.
func (h *headerReader) metadata() {
	if h.peek() != '{' {
		h.fail("not an object")
	}
	n := 0
	for more := h.open('{', '}'); more; more = h.next('}') {
		if n++; n > maxMetadata {
			h.fail("more than the %d entries allowed", maxMetadata)
		}
		key := string(h.text(maxNote))
		h.want(':')
		if h.peek() != '"' {
			h.fail("a value is not a text")
		}
		value := h.text(maxNote)
		if h.err == nil && wantedNotes[key] {
			if h.notes == nil {
				h.notes = map[string]string{}
			}
			h.notes[key] = string(value)
		}
	}
}

// check returns what is wrong with an entry in a file with data bytes of tensor data, or "".
func (e entry) check(data uint64) string {
	width, ok := elementBits[e.Type]
	if !ok {
		return fmt.Sprintf("unknown dtype %q", e.Type)
	}
	size := width
	for _, d := range e.Shape {
		high, low := bits.Mul64(size, uint64(d))
		if high != 0 {
			return fmt.Sprintf("shape %v overflows", e.Shape)
		}
		size = low
	}
	if size%8 != 0 {
		return fmt.Sprintf("shape %v of %s does not fill whole bytes", e.Shape, e.Type)
	}
	size /= 8
	begin, end := e.Offsets[0], e.Offsets[1]
	switch {
	case begin > end:
		return fmt.Sprintf("data_offsets [%d, %d] missing or backwards", begin, end)
	case end > data:
		return fmt.Sprintf("ends at data byte %d but the file holds %d: it is truncated", end, data)
	case end-begin != size:
		return fmt.Sprintf("shape %v of %s needs %d bytes but data_offsets [%d, %d] give %d", e.Shape, e.Type, size, begin, end, end-begin)
	}
	return ""
}

// openSafetensors opens one file of root and adds its tensors to the table. Errors leave the table as it was.
func (t *Tensors) openSafetensors(name string) error {
	handle, err := openFile(t.root, name)
	if err != nil {
		return err
	}
	if err := t.readTable(handle, name); err != nil {
		return errors.Join(err, handle.Close())
	}
	return nil
}

func (t *Tensors) readTable(handle *os.File, name string) error {
	info, err := handle.Stat()
	if err != nil {
		return fmt.Errorf("weights: reading %s: %w", name, err)
	}
	refuse := func(format string, args ...any) error {
		return &FormatError{File: name, Offset: 0, Problem: fmt.Sprintf(format, args...), Remedy: again}
	}
	if !info.Mode().IsRegular() {
		return refuse("not a regular file")
	}
	var prefix [8]byte
	if _, err := handle.ReadAt(prefix[:], 0); err != nil {
		return refuse("%d bytes long, too short for a safetensors file", info.Size())
	}
	head := int64(min(binary.LittleEndian.Uint64(prefix[:]), math.MaxInt64))
	if head > maxFileHeader {
		return refuse("header length %d exceeds the %d allowed: not a safetensors file", head, int64(maxFileHeader))
	}
	if head > info.Size()-8 {
		return refuse("header length %d exceeds the file's %d bytes: it is truncated", head, info.Size())
	}
	all := head
	for _, f := range t.files {
		all += f.head
	}
	if all > MaxHeader {
		return refuse("the headers of all files take more than the %d bytes allowed", int64(MaxHeader))
	}
	f := &file{name: name, handle: handle, size: info.Size(), headAt: 8, head: head, data: 8 + head}
	list, err := parseHeader(name, io.NewSectionReader(handle, 8, head), head, uint64(f.size-f.data), min(maxPerFile, MaxTensors-len(t.byName)))
	if err != nil {
		return err
	}
	if len(t.byName) == 0 {
		t.byName = make(map[string]Tensor, len(list.tensors))
	}
	for _, n := range list.tensors {
		if other, twice := t.byName[n.name]; twice {
			return &FormatError{File: name, Tensor: n.name, Offset: f.data + int64(n.Offsets[0]), Problem: "also in " + other.file.name, Remedy: again}
		}
	}
	for _, n := range list.tensors {
		t.byName[n.name] = Tensor{Type: n.Type, Shape: n.Shape, file: f, begin: f.data + int64(n.Offsets[0]), size: int64(n.Offsets[1] - n.Offsets[0])}
	}
	f.notes = list.notes
	t.files = append(t.files, f)
	return nil
}

// eachPlacement reads the index and hands out every tensor with the file that is said to hold it. Nothing is kept: an index
// of a quarter of a million tensors takes more memory than their table.
func (c *Checkpoint) eachPlacement(yield func(tensor, name []byte) error) error {
	f, err := openFile(c.root, index)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("weights: reading %s: %w", index, err)
	}
	if info.Size() > MaxIndex {
		return tooLong(index, info.Size(), MaxIndex)
	}
	s := newJSONStream(io.NewSectionReader(f, 0, info.Size()))
	fail := func() error {
		return &FormatError{File: index, Offset: s.at(), Problem: s.err.Error(), Remedy: again}
	}
	found, n := false, 0
	var names uniqueNames
	var tensor []byte
	for more := s.open('{', '}'); more; more = s.next('}') {
		key := string(s.text(maxTensorName))
		s.want(':')
		if key != "weight_map" {
			s.skip(8)
			continue
		}
		if found {
			s.fail("duplicate name weight_map")
		}
		found = true
		for more := s.open('{', '}'); more; more = s.next('}') {
			tensor = append(tensor[:0], s.text(maxTensorName)...)
			s.want(':')
			name := s.text(maxTensorName)
			if s.err != nil {
				return fail()
			}
			names.add(tensor)
			if n++; n > MaxTensors {
				s.fail("more than the %d tensors allowed", MaxTensors)
				return fail()
			}
			if err := yield(tensor, name); err != nil {
				return err
			}
		}
	}
	s.end()
	if s.err != nil {
		return fail()
	}
	if names.repeated() {
		return &FormatError{File: index, Offset: -1, Problem: "duplicate name of a tensor", Remedy: again}
	}
	if n == 0 {
		return &FormatError{File: index, Offset: -1, Problem: "weight_map is missing or empty", Remedy: again}
	}
	return nil
}

// openShards opens every file that the index names, one after the other, and checks that the index and the files
// agree: each listed tensor is in its file, and no tensor is in two.
func (c *Checkpoint) openShards() error {
	refuse := func(tensor, format string, args ...any) error {
		return &FormatError{File: index, Tensor: tensor, Offset: -1, Problem: fmt.Sprintf(format, args...), Remedy: again}
	}
	shards := map[string]bool{}
	err := c.eachPlacement(func(tensor, name []byte) error {
		if shards[string(name)] {
			return nil
		}
		if !plainShard(string(name)) {
			return refuse(string(tensor), "names the file %q, which is not a plain .safetensors name", abbreviate(string(name), longestName))
		}
		if shards[string(name)] = true; len(shards) > MaxShards {
			return refuse("", "more than the %d shards allowed", MaxShards)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(shards)) {
		err := c.openSafetensors(name)
		if errors.Is(err, os.ErrNotExist) {
			return refuse("", "names the shard %s, which is missing", name)
		}
		if err != nil {
			return err
		}
	}
	return c.eachPlacement(func(tensor, name []byte) error {
		if t, ok := c.byName[string(tensor)]; !ok || t.file.name != string(name) {
			return refuse(string(tensor), "is not in %s where the index places it", name)
		}
		return nil
	})
}

// plainShard says whether name is that of a file beside the index: separators, "..", drive letters and hidden names have no
// honest use.
func plainShard(name string) bool {
	return len(name) <= maxName && name == filepath.Base(name) && filepath.IsLocal(name) && !strings.ContainsAny(name, `/\:`) &&
		!strings.ContainsFunc(name, unicode.IsControl) && strings.HasSuffix(name, ".safetensors")
}
