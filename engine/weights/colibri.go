package weights

// Containers of colibri: safetensors files out-00000.safetensors and so on, in which a quantised matrix keeps its name, has
// type U8 and comes with NAME.qs, its scales in f32. The container does not say which of its formats a tensor has: that
// follows from the byte counts of both, and newer files stamp the format's name into __metadata__. Here a stamp is held to
// the byte counts, and a tensor without a stamp that fits two formats is refused rather than guessed at.

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"

	"covey/engine/canon"
)

// formatNote is the entry of __metadata__ that names the storage format of tensors: a JSON object of texts by tensor.
const formatNote = "colibri.fmt"

// container matches the names of a container's files: those of the model, and of the layer that only drafts.
var container = regexp.MustCompile(`^out-(mtp-)?(\d{5})\.safetensors$`)

// containerFiles lists the files of a container in a folder; empty when there is none. A missing number is refused.
func (c *Checkpoint) containerFiles() ([]string, error) {
	entries, err := fs.ReadDir(c.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("weights: reading the model folder: %w", err)
	}
	var names []string
	next := map[string]int{}
	for _, e := range entries { // in order of name
		m := container.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if number, err := strconv.Atoi(m[2]); err != nil || number != next[m[1]] {
			return nil, &FormatError{File: e.Name(), Offset: -1, Problem: fmt.Sprintf("out-%s%05d.safetensors, which comes before it, is missing", m[1], next[m[1]]), Remedy: again}
		}
		next[m[1]]++
		if names = append(names, e.Name()); len(names) > MaxShards {
			return nil, &FormatError{File: e.Name(), Offset: -1, Problem: fmt.Sprintf("more than the %d files allowed", MaxShards), Remedy: again}
		}
	}
	return names, nil
}

// openContainer opens the files of a container.
func (c *Checkpoint) openContainer(names []string) error {
	c.formats = map[string]string{}
	for _, name := range names {
		if err := c.openSafetensors(name); err != nil {
			return err
		}
		stamp, ok := c.files[len(c.files)-1].notes[formatNote]
		if !ok {
			continue
		}
		var formats map[string]string
		if err := json.Unmarshal([]byte(stamp), &formats); err != nil {
			return &FormatError{File: name, Offset: 8, Problem: "__metadata__: " + formatNote + ": " + err.Error(), Remedy: again}
		}
		for tensor, format := range formats {
			c.formats[tensor] = format
		}
		c.files[len(c.files)-1].notes = nil
	}
	return nil
}

// packing is one of the container's formats for a matrix [rows, cols].
type packing struct {
	name   string
	bytes  func(rows, cols int) int // of the codes
	scales func(rows, cols int) int // f32 scales; -1 = scales of another type
	read   func(rows, cols int, codes []byte) (out canon.Source, problem string)
}

func ceil(a, b int) int { return (a + b - 1) / b }

// perGroup counts scales for groups of that many inputs.
func perGroup(inputs int) func(rows, cols int) int {
	return func(rows, cols int) int { return rows * ceil(cols, inputs) }
}

func perRow(rows, _ int) int { return rows }

// perByte is the bytes of rows of codes, so many to a byte.
func perByte(n int) func(rows, cols int) int {
	return func(rows, cols int) int { return rows * ceil(cols, n) }
}

// packings are the formats, those without a reader too: a tensor that fits one of those as well is not taken for another.
var packings = []packing{
	{"f32", func(rows, cols int) int { return 4 * rows * cols }, func(int, int) int { return 0 }, func(_, _ int, codes []byte) (canon.Source, string) {
		if at := nonFinite(codes, canon.F32); at >= 0 {
			return canon.Source{}, fmt.Sprintf("value %d is not finite", at)
		}
		return canon.Source{Form: canon.F32, Codes: codes}, ""
	}},
	{"int8-row", perByte(1), perRow, func(_, cols int, codes []byte) (canon.Source, string) {
		for i := range codes {
			codes[i] ^= 0x80
		}
		return canon.Source{Form: canon.Int8, Group: cols, Codes: codes}, ""
	}},
	{"int4-row", perByte(2), perRow, func(_, cols int, codes []byte) (canon.Source, string) {
		return canon.Source{Form: canon.Int4, Group: cols, Codes: codes}, ""
	}},
	{"int2-row", perByte(4), perRow, readInt2},
	{"int4-grouped", perByte(2), nil, nil}, // each group size is an entry of its own, below
	{"int3-g64", func(rows, cols int) int { return rows * ceil(cols, 64) * 24 }, perGroup(64), readInt3},
	{"e8-iq3", func(rows, cols int) int { return rows * ceil(cols, 256) * 98 }, func(int, int) int { return 1 }, nil},
	{"mxfp4", perByte(2), func(int, int) int { return -1 }, nil},
	{"fp8-e4m3-b128", perByte(1), func(rows, cols int) int { return ceil(rows, 128) * ceil(cols, 128) }, func(_, _ int, codes []byte) (canon.Source, string) {
		if at := slices.IndexFunc(codes, func(c byte) bool { return c&0x7f == 0x7f }); at >= 0 {
			return canon.Source{}, fmt.Sprintf("value %d is not a number", at)
		}
		return canon.Source{Form: canon.FP8, Group: 128, GroupRows: 128, Codes: codes}, ""
	}},
}

// groupSizes are those of int4-grouped.
var groupSizes = []int{32, 64, 128}

// candidates lists the formats that a tensor of so many bytes and scales can have; stamp, if not "", is the only one to try.
func candidates(stamp string, rows, cols, size, scales int) []packing {
	var fit []packing
	for _, p := range packings {
		if stamp != "" && p.name != stamp || size != p.bytes(rows, cols) {
			continue
		}
		if p.scales != nil {
			if scales == p.scales(rows, cols) {
				fit = append(fit, p)
			}
			continue
		}
		for _, inputs := range groupSizes {
			// One group a row is the same as one scale a row, which is int4-row already unless the stamp says this.
			if scales == perGroup(inputs)(rows, cols) && (cols > inputs || stamp != "" && len(fit) == 0) {
				fit = append(fit, packing{name: p.name, read: func(_, _ int, codes []byte) (canon.Source, string) {
					return canon.Source{Form: canon.Int4, Group: inputs, Codes: codes}, ""
				}})
			}
		}
	}
	return fit
}

// containerSource reads a matrix of type U8.
func (c *Checkpoint) containerSource(name string, t Tensor, out canon.Source, s *Scratch) (canon.Source, error) {
	scales, ok := c.byName[name+".qs"]
	count := 0
	switch {
	case ok && scales.Type == "F32":
		count = int(scales.Elements())
	case ok:
		count = -1
	}
	stamp := c.formats[name]
	fit := candidates(stamp, out.Rows, out.Cols, int(t.size), count)
	const remedy = "convert the model again with a version that stamps formats"
	switch {
	case len(fit) == 0 && stamp != "":
		return canon.Source{}, c.refuse(name, again, "stamped as %s, which for [%d %d] does not give %d bytes and %d scales", abbreviate(stamp, longestName), out.Rows, out.Cols, t.size, count)
	case len(fit) == 0:
		return canon.Source{}, c.refuse(name, again, "%d bytes and %d scales are no format of a matrix [%d %d]", t.size, count, out.Rows, out.Cols)
	case len(fit) > 1:
		return canon.Source{}, c.refuse(name, remedy, "%d bytes and %d scales for [%d %d] may be %s or %s", t.size, count, out.Rows, out.Cols, fit[0].name, fit[1].name)
	case fit[0].read == nil:
		return canon.Source{}, c.refuse(name, "convert the model to int4-grouped or int8-row", "format %s is not supported", fit[0].name)
	}
	codes := s.take(t.size)
	if err := c.read(name, t, codes); err != nil {
		return canon.Source{}, err
	}
	source, problem := fit[0].read(out.Rows, out.Cols, codes)
	if problem != "" {
		return canon.Source{}, c.refuse(name, again, "%s", problem)
	}
	source.Name, source.Rows, source.Cols, source.ScaleForm = out.Name, out.Rows, out.Cols, canon.F32
	if count > 0 {
		source.Scales = s.take(scales.size)
		if err := c.read(name+".qs", scales, source.Scales); err != nil {
			return canon.Source{}, err
		}
		if at := nonFinite(source.Scales, canon.F32); at >= 0 {
			return canon.Source{}, c.refuse(name+".qs", again, "scale %d is not finite", at)
		}
	}
	return source, nil
}

// readInt2 widens codes of two bits, the earlier input in the lower bits, value code-2.
func readInt2(rows, cols int, codes []byte) (canon.Source, string) {
	out := make([]byte, rows*ceil(cols, 2))
	for r := range rows {
		row := codes[r*ceil(cols, 4):]
		for i := range cols {
			code := row[i/4]>>(i%4*2)&3 + 8 - 2
			out[r*ceil(cols, 2)+i/2] |= code << (i % 2 * 4)
		}
	}
	return canon.Source{Form: canon.Int4, Group: cols, Codes: out}, ""
}

// readInt3 widens codes of three bits, value code-4: for 64 inputs 16 bytes of their lower two bits, then 8 of their third.
func readInt3(rows, cols int, codes []byte) (canon.Source, string) {
	out := make([]byte, rows*ceil(cols, 2))
	for r := range rows {
		for i := range cols {
			block := codes[(r*ceil(cols, 64)+i/64)*24:][:24]
			k := i % 64
			code := block[k/4]>>(k%4*2)&3 | block[16+k/8]>>(k%8)&1<<2
			out[r*ceil(cols, 2)+i/2] |= (code + 8 - 4) << (i % 2 * 4)
		}
	}
	return canon.Source{Form: canon.Int4, Group: 64, Codes: out}, ""
}
