package weights

// The container (docs/container.md): a folder whose file model.covey lists records, each a 4 KiB-aligned piece of a data
// file that holds one or more packed weights exactly as the kernels read them. An expert is one record, so bringing it in
// is one read and no work. The index is small and read whole; nothing in it is believed before it has been checked against
// the length and hash of the index itself and the sizes of the data files.

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"covey/engine/canon"
)

// Format of containers that are written and read.
const (
	ContainerVersion = 1
	ContainerIndex   = "model.covey" // name of the index, which exists only when the container is whole

	indexMagic  = "COVEYMOE"
	dataMagic   = "COVEYDAT"
	indexHeader = 64       // bytes before the body of the index
	dataHeader  = 4096     // bytes before the first record of a data file
	sector      = 4096     // alignment of records
	maxIndex    = 24 << 20 // bytes of an index
	maxPacked   = 1 << 17  // tensors of a container
	maxText     = 1 << 16  // bytes of one metadata value
	maxListed   = 256      // side files and metadata entries
	maxRecord   = 1 << 36  // bytes of one record
	ownOrigin   = "written by covey convert"
)

// PackedTensor is one weight or vector of a container.
type PackedTensor struct {
	Name   string // full tensor name
	Layout canon.Layout
	Hash   [32]byte // SHA-256 of its packed bytes
}

// record is one aligned piece of a data file.
type record struct {
	file         *file
	offset, size int64 // multiples of sector
	first, count int32 // its tensors, one behind the other
}

// packedTensor is a tensor and its place.
type packedTensor struct {
	PackedTensor
	record int32
	begin  int64 // absolute byte in the record's file
}

// contents is what an index says.
type contents struct {
	id      [32]byte
	meta    map[string]string
	sides   []listedFile
	records []record
	tensors []packedTensor
	byName  map[string]int32
}

type listedFile struct {
	name string
	size int64
	hash [32]byte
}

// openIndex reads the configuration and the index and fills the tensor table.
func (c *Checkpoint) openIndex() error {
	var err error
	if c.config, err = c.File("config.json", MaxConfig); err != nil {
		return err
	}
	index, err := c.File(ContainerIndex, maxIndex)
	if err != nil {
		return err
	}
	in, names, sizes, err := parseIndex(index)
	if err != nil {
		return err
	}
	for i, name := range names {
		f, err := c.openData(name, sizes[i], i, in.id)
		if err != nil {
			return err
		}
		c.files = append(c.files, f)
	}
	c.index, c.container = index, in
	for i := range in.records {
		r := &in.records[i]
		r.file = c.files[r.offset>>48]
		r.offset &= 1<<48 - 1
		if r.offset+r.size > r.file.size {
			return &FormatError{File: r.file.name, Tensor: in.tensors[r.first].Name, Offset: r.offset, Remedy: again,
				Problem: fmt.Sprintf("its record of %d bytes ends behind the file's %d: it is truncated", r.size, r.file.size)}
		}
		for n := r.first; n < r.first+r.count; n++ {
			t := &in.tensors[n]
			l := t.Layout
			info := Tensor{Type: "PACKED", Shape: []int64{int64(l.Rows), int64(l.Cols)}, file: r.file, begin: t.begin, size: l.Bytes()}
			if !l.Form.Quantised() && l.Form != canon.FP8 {
				info.Type, info.size = plainTypes[l.Form], int64(l.Rows)*int64(l.Cols)*int64(l.Form.Bits()/8)
			}
			c.byName[t.Name] = info
		}
	}
	return nil
}

var plainTypes = map[canon.Form]Type{canon.F32: "F32", canon.F16: "F16", canon.BF16: "BF16"}

// openData opens a data file and checks its header.
func (c *Checkpoint) openData(name string, size int64, number int, id [32]byte) (*file, error) {
	handle, err := openFile(c.root, name)
	if err != nil {
		return nil, err
	}
	f := &file{name: name, handle: handle, head: dataHeader, data: dataHeader}
	header := make([]byte, dataHeader)
	refuse := func(format string, args ...any) (*file, error) {
		return nil, errors.Join(&FormatError{File: name, Offset: 0, Problem: fmt.Sprintf(format, args...), Remedy: again}, handle.Close())
	}
	info, err := handle.Stat()
	if err != nil {
		return refuse("%v", err)
	}
	if f.size = info.Size(); f.size != size {
		return refuse("%d bytes long, but %s says %d", f.size, ContainerIndex, size)
	}
	if _, err := handle.ReadAt(header, 0); err != nil {
		return refuse("reading the header: %v", err)
	}
	if !bytes.Equal(header, dataFileHeader(id, number)) {
		return refuse("its header is not that of data file %d of this container", number+1)
	}
	return f, nil
}

// dataFileHeader is the first sector of a data file.
func dataFileHeader(id [32]byte, number int) []byte {
	h := make([]byte, 0, dataHeader)
	h = append(h, dataMagic...)
	h = binary.LittleEndian.AppendUint32(h, ContainerVersion)
	h = binary.LittleEndian.AppendUint32(h, uint32(number))
	h = append(h, id[:]...)
	return h[:dataHeader]
}

// cursor reads the body of an index. The first mistake sticks.
type cursor struct {
	text    string // the whole index
	at      int
	problem string
	tensor  string // that the mistake is about
	where   int    // byte of the mistake
}

func (c *cursor) fail(tensor, format string, args ...any) {
	if c.problem == "" {
		c.problem, c.tensor, c.where = fmt.Sprintf(format, args...), tensor, c.at
	}
}

func (c *cursor) bytes(n int) string {
	if c.problem != "" {
		return ""
	}
	if n < 0 || n > len(c.text)-c.at {
		c.fail("", "ends in the middle of an entry")
		return ""
	}
	c.at += n
	return c.text[c.at-n : c.at]
}

func (c *cursor) number(width int) uint64 {
	var b [8]byte
	copy(b[:], c.bytes(width))
	return binary.LittleEndian.Uint64(b[:])
}

func (c *cursor) hash() (h [32]byte) { copy(h[:], c.bytes(32)); return h }

func (c *cursor) count(width int, what string, most uint64) int {
	n := c.number(width)
	if n > most {
		c.fail("", "%d %s, more than the %d allowed", n, what, most)
		return 0
	}
	return int(n)
}

func (c *cursor) string(width int, most uint64) string {
	return c.bytes(c.count(width, "bytes of a text", most))
}

// parseIndex decodes an index. Offsets of the records carry the number of their file in the upper 16 bits until the files
// are open. names and sizes are the data files.
func parseIndex(index []byte) (in *contents, names []string, sizes []int64, err error) {
	refuse := func(at int, format string, args ...any) (*contents, []string, []int64, error) {
		return nil, nil, nil, &FormatError{File: ContainerIndex, Offset: int64(at), Problem: fmt.Sprintf(format, args...), Remedy: again}
	}
	if len(index) < indexHeader || string(index[:8]) != indexMagic {
		return refuse(0, "not the index of a container")
	}
	if v := binary.LittleEndian.Uint32(index[8:]); v != ContainerVersion {
		return nil, nil, nil, &FormatError{File: ContainerIndex, Offset: 8, Problem: fmt.Sprintf("version %d of the format; this program reads version %d", v, ContainerVersion), Remedy: "convert the source again"}
	}
	if v := binary.LittleEndian.Uint32(index[12:]); v != canon.LayoutVersion {
		return nil, nil, nil, &FormatError{File: ContainerIndex, Offset: 12, Problem: fmt.Sprintf("weights packed in layout %d; this program reads layout %d", v, canon.LayoutVersion), Remedy: "convert the source again"}
	}
	if n := binary.LittleEndian.Uint64(index[16:]); n != uint64(len(index)) {
		return refuse(16, "%d bytes long, but it was written with %d", len(index), n)
	}
	if sum := sha256.Sum256(index[indexHeader:]); !bytes.Equal(sum[:], index[24:56]) {
		return refuse(24, "its hash does not match: the file is damaged")
	}
	c := &cursor{text: string(index), at: indexHeader}
	in = &contents{meta: map[string]string{}}
	in.id = c.hash()
	for range c.count(4, "metadata entries", maxListed) {
		key := c.string(2, 1<<10)
		in.meta[key] = c.string(4, maxText)
	}
	for range c.count(4, "side files", maxListed) {
		s := listedFile{name: c.string(2, maxName)}
		s.size, s.hash = int64(c.number(8)), c.hash()
		if !plainName(s.name) || s.size < 0 {
			c.fail("", "side file %q of %d bytes", abbreviate(s.name, longestName), s.size)
		}
		in.sides = append(in.sides, s)
	}
	for range c.count(4, "data files", MaxShards) {
		name, size := c.string(2, maxName), int64(c.number(8))
		if !plainName(name) || size < dataHeader || size >= 1<<48 {
			c.fail("", "data file %q of %d bytes", abbreviate(name, longestName), size)
		}
		names, sizes = append(names, name), append(sizes, size)
	}
	n := c.count(4, "records", maxPacked)
	end, last := int64(0), -1 // end of the record before
	for range n {
		number, r := int(c.number(4)), record{}
		r.offset, r.size = int64(c.number(8)), int64(c.number(8))
		r.first, r.count = int32(len(in.tensors)), int32(c.number(2))
		if number != last {
			end = dataHeader
		}
		switch {
		case c.problem != "":
		case number >= len(names) || number < last:
			c.fail("", "record in data file %d of %d", number+1, len(names))
		case r.offset%sector != 0 || r.size%sector != 0 || r.size <= 0 || r.size > maxRecord || r.offset < end || r.offset > sizes[number]-r.size:
			c.fail("", "record of %d bytes at byte %d of %s, which has %d bytes, the record before ending at %d", r.size, r.offset, names[number], sizes[number], end)
		case len(in.tensors)+int(r.count) > maxPacked || r.count == 0:
			c.fail("", "record of %d tensors; %d tensors are allowed in all", r.count, maxPacked)
		}
		at := r.offset
		for i := int32(0); i < r.count && c.problem == ""; i++ {
			t := c.tensor1()
			size := t.Layout.Bytes()
			if c.problem == "" && (size == 0 || size > r.offset+r.size-at) {
				c.fail(t.Name, "%s takes %d bytes of a record that has %d left", t.Layout, size, r.offset+r.size-at)
			}
			in.tensors = append(in.tensors, packedTensor{PackedTensor: t, record: int32(len(in.records)), begin: at})
			at += size
		}
		if c.problem != "" {
			break
		}
		end, last = r.offset+r.size, number
		r.offset |= int64(number) << 48
		in.records = append(in.records, r)
	}
	if c.problem == "" && c.at != len(c.text) {
		c.fail("", "%d bytes behind the last record", len(c.text)-c.at)
	}
	in.byName = make(map[string]int32, len(in.tensors))
	for i, t := range in.tensors {
		if _, twice := in.byName[t.Name]; twice {
			c.fail(t.Name, "listed twice")
		}
		in.byName[t.Name] = int32(i)
	}
	if c.problem != "" {
		return nil, nil, nil, &FormatError{File: ContainerIndex, Tensor: c.tensor, Offset: int64(c.where), Problem: c.problem, Remedy: again}
	}
	return in, names, sizes, nil
}

// tensor1 reads one tensor of a record.
func (c *cursor) tensor1() PackedTensor {
	t := PackedTensor{Name: c.string(2, 1<<10)}
	kind := c.bytes(4)
	rows, cols, group, groupRows := c.number(4), c.number(4), c.number(4), c.number(4)
	t.Hash = c.hash()
	if c.problem != "" {
		return t
	}
	t.Layout = canon.Layout{Form: canon.Form(kind[0]), ScaleForm: canon.Form(kind[1]), Offset: canon.Offset(kind[2]), Rows: int(rows), Cols: int(cols), Group: int(group), GroupRows: int(groupRows), Biased: kind[3] == 1}
	if kind[3] > 1 || t.Name == "" {
		c.fail(t.Name, "unknown kind of tensor")
	} else if err := t.Layout.Check(t.Name); err != nil {
		c.fail(t.Name, "%v", err)
	}
	return t
}

// appendTensor is the inverse of tensor1.
func appendTensor(b []byte, t PackedTensor) []byte {
	l := t.Layout
	b = appendText(b, 2, t.Name)
	biased := byte(0)
	if l.Biased {
		biased = 1
	}
	b = append(b, byte(l.Form), byte(l.ScaleForm), byte(l.Offset), biased)
	for _, v := range []int{l.Rows, l.Cols, l.Group, l.GroupRows} {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return append(b, t.Hash[:]...)
}

func appendText(b []byte, width int, text string) []byte {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(text)))
	return append(append(b, n[:width]...), text...)
}

// plainName says whether a file of that name lies in the folder itself: separators, "..", drive letters and control
// characters have no honest use.
func plainName(name string) bool {
	return name != "" && len(name) <= maxName && name == filepath.Base(name) && filepath.IsLocal(name) && !strings.ContainsAny(name, `/\:`) && !strings.ContainsFunc(name, unicode.IsControl)
}

// ---- reading -----------------------------------------------------------------------------------------------------------

// Container returns the metadata of a container, nil for other checkpoints: architecture, numerics, source and options.
func (c *Checkpoint) Container() map[string]string {
	if c.container == nil {
		return nil
	}
	return maps.Clone(c.container.meta)
}

// Packed says how a module lies in a container, ready for the kernels; false if it is not there or this is no container.
func (c *Checkpoint) Packed(module string) (canon.Layout, bool) {
	if c.container == nil {
		return canon.Layout{}, false
	}
	i, ok := c.container.byName[module+".weight"]
	if !ok {
		return canon.Layout{}, false
	}
	return c.container.tensors[i].Layout, true
}

// ReadPacked reads the packed bytes of a module, whose layout is Packed's, into dst.
func (c *Checkpoint) ReadPacked(module string, dst []byte) error {
	t := c.container.tensors[c.container.byName[module+".weight"]]
	return c.read(t.Name, Tensor{file: c.container.records[t.record].file, begin: t.begin, size: t.Layout.Bytes()}, dst)
}

// unpackedSource reads a module of a container back into the form of checkpoints.
func (c *Checkpoint) unpackedSource(module string, rows, cols int, s *Scratch) (canon.Source, error) {
	name := module + ".weight"
	l, ok := c.Packed(module)
	if !ok {
		return canon.Source{}, c.refuse(name, "the configuration promises it: "+again, "missing")
	}
	if l.Rows != rows || l.Cols != cols {
		return canon.Source{}, c.refuse(name, "check config.json against the tensors", "shape [%d %d], but the configuration gives [%d %d]", l.Rows, l.Cols, rows, cols)
	}
	block := s.take(l.Bytes())
	if err := c.ReadPacked(module, block); err != nil {
		return canon.Source{}, err
	}
	src, err := l.Unpack(module, block, s.take)
	if err != nil {
		return canon.Source{}, c.refuse(name, again, "%v", err)
	}
	return src, nil
}

// Record is the place of one expert in a container: gate, up and down in one aligned piece of a file.
type Record struct {
	Name    string    // of the gate, for errors
	Modules [3]string // gate, up, down
	Layout  *canon.RecordLayout
	Size    int64 // bytes to read, a multiple of 4096
	file    int
	offset  int64
}

// Record finds the record of three modules (gate, up, down). ok is false if this is no container or the three do not lie in
// one record in this order.
func (c *Checkpoint) Record(modules [3]string) (r Record, ok bool, err error) {
	if c.container == nil {
		return Record{}, false, nil
	}
	var at [3]int32
	for i, module := range modules {
		if at[i], ok = c.container.byName[module+".weight"]; !ok {
			return Record{}, false, nil
		}
	}
	t := c.container.tensors
	place := c.container.records[t[at[0]].record]
	if at[0] != place.first || place.count != 3 || at[1] != at[0]+1 || at[2] != at[0]+2 {
		return Record{}, false, nil
	}
	r = Record{Name: t[at[0]].Name, Modules: modules, Size: place.size, file: slices.Index(c.files, place.file), offset: place.offset}
	r.Layout, err = canon.NewRecordLayout(modules[0], t[at[0]].Layout, t[at[1]].Layout, t[at[2]].Layout)
	if err != nil {
		return r, false, c.refuse(r.Name, again, "%v", err)
	}
	return r, true, nil
}

// ReadRecord reads the packed bytes of a record, without its padding, into dst.
func (c *Checkpoint) ReadRecord(r Record, dst []byte) error {
	return c.read(r.Name, Tensor{file: c.files[r.file], begin: r.offset, size: r.Layout.Bytes()}, dst)
}

// Files lists the names of the open tensor files.
func (t *Tensors) Files() []string {
	names := make([]string, len(t.files))
	for i, f := range t.files {
		names[i] = f.name
	}
	return names
}
