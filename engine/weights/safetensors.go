package weights

// The safetensors format: 8 bytes little-endian header length N, N bytes of JSON {name: {dtype, shape, data_offsets}}
// (plus an optional __metadata__ of strings), then the data, to which offsets are relative. The format demands that
// tensors cover the data without gaps or overlaps; holding files to that closes the known aliasing tricks.

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Type is a stored element type, spelled as safetensors spells it.
type Type string

// elementBits lists every type of the format. Types without a reader are legal in a file and refused when used.
var elementBits = map[Type]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
	"U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// entry is one tensor of a header; offsets are relative to the data.
type entry struct {
	Type    Type      `json:"dtype"`
	Shape   shape     `json:"shape"`
	Offsets [2]uint64 `json:"data_offsets"`
}

// shape decodes at most MaxDims dimensions: a header may hold tens of millions of them.
type shape []uint64

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (s *shape) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if kind := dec.PeekKind(); kind != '[' {
		return fmt.Errorf("shape is not a list")
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	*s = shape{}
	for dec.PeekKind() != ']' {
		if len(*s) == MaxDims {
			return fmt.Errorf("more than the %d dimensions allowed", MaxDims)
		}
		var d uint64
		if err := json.UnmarshalDecode(dec, &d); err != nil {
			return err
		}
		*s = append(*s, d)
	}
	_, err := dec.ReadToken()
	return err
}

// skipMetadata reads past the value of __metadata__, an object of texts.
func skipMetadata(dec *jsontext.Decoder) error {
	if kind := dec.PeekKind(); kind != '{' {
		return fmt.Errorf("not an object")
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for n := 0; dec.PeekKind() != '}'; n++ {
		if n == maxMetadata {
			return fmt.Errorf("more than the %d entries allowed", maxMetadata)
		}
		if _, err := dec.ReadToken(); err != nil {
			return err
		}
		if kind := dec.PeekKind(); kind != '"' {
			return fmt.Errorf("a value is not a text")
		}
		if _, err := dec.ReadToken(); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// named is an entry with its name.
type named struct {
	name string
	entry
}

// parseHeader decodes a safetensors header and checks it against the length of the data behind it. The result is in
// order of offset. header is not kept.
func parseHeader(file string, header []byte, data uint64) ([]named, error) {
	refuse := func(tensor string, at int64, format string, args ...any) error {
		return &FormatError{File: file, Tensor: tensor, Offset: at, Problem: fmt.Sprintf(format, args...), Remedy: again}
	}
	if len(header) == 0 || header[0] != '{' {
		return nil, refuse("", 8, "header does not start with '{'")
	}
	// The decoder refuses duplicate names, invalid UTF-8, and numbers that are negative, fractional or too large.
	dec := jsontext.NewDecoder(bytes.NewBuffer(header)) // a Buffer is decoded in place; a Reader would be copied
	if _, err := dec.ReadToken(); err != nil {
		return nil, refuse("", 8+dec.InputOffset(), "header: %v", err)
	}
	var list []named
	for dec.PeekKind() == '"' {
		token, err := dec.ReadToken()
		if err != nil {
			return nil, refuse("", 8+dec.InputOffset(), "header: %v", err)
		}
		name := token.String()
		if name == "__metadata__" {
			if err := skipMetadata(dec); err != nil {
				return nil, refuse("", 8+dec.InputOffset(), "__metadata__: %v", err)
			}
			continue
		}
		n := named{name: name, entry: entry{Offsets: [2]uint64{1, 0}}}
		if err := json.UnmarshalDecode(dec, &n.entry, json.RejectUnknownMembers(true)); err != nil {
			return nil, refuse(name, 8+dec.InputOffset(), "header: %v", err)
		}
		if problem := n.check(data); problem != "" {
			return nil, refuse(name, 8+dec.InputOffset(), "%s", problem)
		}
		if list = append(list, n); len(list) > MaxTensors {
			return nil, refuse("", 8+dec.InputOffset(), "more than the %d tensors allowed in one file", MaxTensors)
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, refuse("", 8+dec.InputOffset(), "header: %v", err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, refuse("", 8+dec.InputOffset(), "header: text after the closing brace")
	}
	slices.SortFunc(list, func(a, b named) int {
		return cmp.Or(cmp.Compare(a.Offsets[0], b.Offsets[0]), cmp.Compare(a.Offsets[1], b.Offsets[1]), strings.Compare(a.name, b.name))
	})
	at := uint64(0)
	for _, n := range list {
		if n.Offsets[0] != at {
			kind := "overlaps the tensor before it"
			if n.Offsets[0] > at {
				kind = "leaves a gap behind the tensor before it"
			}
			return nil, refuse(n.name, 8+int64(len(header))+int64(n.Offsets[0]), "starts at data byte %d but %d was expected: it %s", n.Offsets[0], at, kind)
		}
		at = n.Offsets[1]
	}
	if at != data {
		return nil, refuse("", 8+int64(len(header))+int64(at), "tensors cover %d bytes of %d: the file is too long", at, data)
	}
	return list, nil
}

// check returns what is wrong with an entry in a file with data bytes of tensor data, or "".
func (e entry) check(data uint64) string {
	width, ok := elementBits[e.Type]
	if !ok {
		return fmt.Sprintf("unknown dtype %q", e.Type)
	}
	size := width
	for _, d := range e.Shape {
		high, low := bits.Mul64(size, d)
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

// openSafetensors opens one file of root and returns it with its tensors.
func openSafetensors(root *os.Root, name string) (*file, map[string]Tensor, error) {
	handle, err := openFile(root, name)
	if err != nil {
		return nil, nil, err
	}
	f, tensors, err := readTable(handle, name)
	if err != nil {
		return nil, nil, errors.Join(err, handle.Close())
	}
	return f, tensors, nil
}

func readTable(handle *os.File, name string) (*file, map[string]Tensor, error) {
	info, err := handle.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("weights: reading %s: %w", name, err)
	}
	refuse := func(format string, args ...any) error {
		return &FormatError{File: name, Offset: 0, Problem: fmt.Sprintf(format, args...), Remedy: again}
	}
	if !info.Mode().IsRegular() {
		return nil, nil, refuse("not a regular file")
	}
	var prefix [8]byte
	if _, err := handle.ReadAt(prefix[:], 0); err != nil {
		return nil, nil, refuse("%d bytes long, too short for a safetensors file", info.Size())
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if length > MaxHeader {
		return nil, nil, refuse("header length %d exceeds the %d allowed: not a safetensors file", length, int64(MaxHeader))
	}
	if int64(length) > info.Size()-8 {
		return nil, nil, refuse("header length %d exceeds the file's %d bytes: it is truncated", length, info.Size())
	}
	f := &file{name: name, handle: handle, size: info.Size(), header: make([]byte, length), data: 8 + int64(length)}
	if _, err := handle.ReadAt(f.header, 8); err != nil {
		return nil, nil, refuse("reading the header: %v", err)
	}
	list, err := parseHeader(name, f.header, uint64(f.size-f.data))
	if err != nil {
		return nil, nil, err
	}
	tensors := make(map[string]Tensor, len(list))
	for _, n := range list {
		shape := make([]int64, len(n.Shape))
		for i, d := range n.Shape {
			if d > 1<<62 {
				return nil, nil, &FormatError{File: name, Tensor: n.name, Offset: 8, Problem: fmt.Sprintf("dimension %d out of range", d), Remedy: again}
			}
			shape[i] = int64(d)
		}
		tensors[n.name] = Tensor{Type: n.Type, Shape: shape, file: f, begin: f.data + int64(n.Offsets[0]), size: int64(n.Offsets[1] - n.Offsets[0])}
	}
	return f, tensors, nil
}

// openShards opens every file that the index names, one after the other, and checks that the index and the files
// agree: each listed tensor is in its file, and no tensor is in two.
func (c *Checkpoint) openShards(index string) error {
	text, err := c.File(index, MaxIndex)
	if err != nil {
		return err
	}
	refuse := func(tensor, format string, args ...any) error {
		return &FormatError{File: index, Tensor: tensor, Offset: -1, Problem: fmt.Sprintf(format, args...), Remedy: again}
	}
	var content struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &content); err != nil {
		return refuse("", "%v", err)
	}
	if len(content.WeightMap) == 0 {
		return refuse("", "weight_map is missing or empty")
	}
	shards := map[string]bool{}
	for tensor, name := range content.WeightMap {
		// A shard lies beside its index: separators, "..", drive letters and hidden names have no honest use.
		if len(name) > maxName || name != filepath.Base(name) || !filepath.IsLocal(name) || strings.ContainsAny(name, `/\:`) || strings.ContainsFunc(name, unicode.IsControl) || !strings.HasSuffix(name, ".safetensors") {
			return refuse(tensor, "names the file %q, which is not a plain .safetensors name", abbreviate(name, longestName))
		}
		if shards[name] = true; len(shards) > MaxShards {
			return refuse("", "more than the %d shards allowed", MaxShards)
		}
	}
	names := make([]string, 0, len(shards))
	for name := range shards {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		f, tensors, err := openSafetensors(c.root, name)
		if errors.Is(err, os.ErrNotExist) {
			return refuse("", "names the shard %s, which is missing", name)
		}
		if err != nil {
			return err
		}
		c.files = append(c.files, f)
		for tensor, t := range tensors {
			if other, twice := c.byName[tensor]; twice {
				return &FormatError{File: name, Tensor: tensor, Offset: t.begin, Problem: "also in " + other.file.name, Remedy: again}
			}
			c.byName[tensor] = t
		}
	}
	for tensor, name := range content.WeightMap {
		if t, ok := c.byName[tensor]; !ok || t.file.name != name {
			return refuse(tensor, "is not in %s where the index places it", name)
		}
	}
	return nil
}
