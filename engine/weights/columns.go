package weights

// GPTQ and AutoAWQ: matrices stored with the inputs outermost, [cols, rows], so that reading turns them round. Of a module M,
// with n = 32/bits values in a word of 32 bits and value i of a word in bits bits*i..:
//
//	           GPTQ                                     AutoAWQ ("gemm")
//	M.qweight  I32 [cols/n, rows], along the inputs     I32 [cols, rows/n], along the outputs in the order awqOrder
//	M.qzeros   I32 [groups, rows/n], along the outputs  I32 [groups, rows/n], as qweight
//	M.scales   F16 [groups, rows]                       F16 [groups, rows]
//	M.g_idx    I32 [cols], the group of each input      -
//
// A weight is (code - zero) * scale. GPTQ's first format stores zero-1. A g_idx that is not ascending (act-order) permutes
// inputs, which differ from module to module, and is refused.

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"covey/engine/canon"
	"covey/engine/jsonfault"
)

// columns is the quantization_config of GPTQ and AutoAWQ.
type columns struct {
	awq    bool
	bits   int
	inputs int // inputs that share a scale; 0 = all inputs of a row
	less   int // what stored zero points are short of
}

// awqOrder is the output, of eight, that value i of a word belongs to.
var awqOrder = [8]int{0, 2, 4, 6, 1, 3, 5, 7}

// readColumns decodes the quantization_config of method "gptq" or "awq".
func readColumns(method string, raw []byte) (*columns, error) {
	refuse := func(format string, args ...any) error {
		return &FormatError{File: "config.json", Offset: -1, Problem: "quantization_config: " + method + ": " + fmt.Sprintf(format, args...),
			Remedy: "use a checkpoint in one of the forms that docs/forms.md lists"}
	}
	var q struct {
		Bits      int      `json:"bits"`
		WidthBits int      `json:"w_bit"`
		Inputs    *int     `json:"group_size"`
		GroupSize *int     `json:"q_group_size"`
		Version   string   `json:"version"`
		Format    string   `json:"checkpoint_format"`
		ActOrder  bool     `json:"desc_act"`
		Marlin    bool     `json:"is_marlin_format"`
		Dynamic   rawValue `json:"dynamic"`
	}
	if err := json.Unmarshal(raw, &q); err != nil {
		return nil, refuse("%v", jsonfault.Plain(err))
	}
	c := &columns{awq: method == "awq", bits: max(q.Bits, q.WidthBits), less: 1}
	inputs := q.Inputs
	if inputs == nil {
		inputs = q.GroupSize
	}
	switch {
	case c.bits != 4 && (c.bits != 8 || c.awq):
		return nil, refuse("%d-bit weights are not supported", c.bits)
	case inputs == nil || *inputs != -1 && !slices.Contains([]int{32, 64, 128}, *inputs):
		return nil, refuse("group_size must be 32, 64, 128 or -1")
	case c.awq && q.Version != "" && !strings.EqualFold(q.Version, "gemm"):
		return nil, refuse("version %q is not supported; gemm is", q.Version)
	case q.Marlin || q.Format != "" && q.Format != "gptq" && q.Format != "gptq_v2":
		return nil, refuse("checkpoint_format %q is not supported; gptq and gptq_v2 are", q.Format)
	case present(q.Dynamic):
		return nil, refuse("bits that differ from module to module (dynamic) are not supported")
	}
	if c.inputs = *inputs; c.inputs < 0 {
		c.inputs = 0
	}
	if c.awq || q.Format == "gptq_v2" {
		c.less = 0
	}
	return c, nil
}

// columnSource reads a module of GPTQ or AutoAWQ.
func (c *Checkpoint) columnSource(module string, rows, cols int, s *Scratch) (canon.Source, error) {
	codes, zeros, scales := module+".qweight", module+".qzeros", module+".scales"
	fail := func(tensor, format string, args ...any) (canon.Source, error) {
		return canon.Source{}, c.refuse(tensor, "check config.json against the tensors", format, args...)
	}
	if c.scheme == nil || c.scheme.columns == nil {
		return fail(codes, "packed, but config.json's quantization_config is not of gptq or awq")
	}
	q := c.scheme.columns
	n := 32 / q.bits
	groups, inputs := 1, cols
	if q.inputs > 0 {
		inputs = q.inputs
		groups = (cols + inputs - 1) / inputs
	}
	if rows%n != 0 || cols%n != 0 {
		return fail(codes, "[%d %d] is not a multiple of %d", rows, cols, n)
	}
	want := []int64{int64(cols / n), int64(rows)}
	if q.awq {
		want = []int64{int64(cols), int64(rows / n)}
	}
	packed, err := c.words(codes, want, s)
	if err != nil {
		return canon.Source{}, err
	}
	packedZeros, err := c.words(zeros, []int64{int64(groups), int64(rows / n)}, s)
	if err != nil {
		return canon.Source{}, err
	}
	if err := c.ascendingGroups(module+".g_idx", cols, inputs); err != nil {
		return canon.Source{}, err
	}
	t, ok := c.byName[scales]
	if !ok {
		return fail(scales, "missing")
	}
	form, ok := floatForms[t.Type]
	if !ok || !slices.Equal(t.Shape, []int64{int64(groups), int64(rows)}) {
		return fail(scales, "%s %v, but %d groups of %d rows need floats [%d %d]", t.Type, t.Shape, groups, rows, groups, rows)
	}
	stored := s.take(t.size)
	if err := c.read(scales, t, stored); err != nil {
		return canon.Source{}, err
	}
	if at := nonFinite(stored, form); at >= 0 {
		return canon.Source{}, c.refuse(scales, again, "scale %d is not finite", at)
	}

	out := canon.Source{Name: module, Form: canon.Int4, Rows: rows, Cols: cols, Group: inputs, ScaleForm: form}
	if q.bits == 8 {
		out.Form = canon.Int8
	}
	width := form.Bits() / 8
	out.Scales, out.Zeros = s.take(t.size), s.take(int64(rows*groups))
	for r := range rows {
		word, shift := r/n, r%n*q.bits
		if q.awq {
			shift = slices.Index(awqOrder[:], r%n) * q.bits
		}
		for g := range groups {
			copy(out.Scales[(r*groups+g)*width:], stored[(g*rows+r)*width:][:width])
			zero := binary.LittleEndian.Uint32(packedZeros[4*(g*(rows/n)+word):]) >> shift
			out.Zeros[r*groups+g] = byte((int(zero) + q.less) & (1<<q.bits - 1))
		}
	}
	out.Codes = s.take(int64(rows) * int64(cols) * int64(q.bits) / 8)
	if q.awq {
		turnAWQ(out.Codes, packed, rows, cols)
	} else {
		turnGPTQ(out.Codes, packed, rows, cols, n)
	}
	return out, nil
}

// turnGPTQ writes words [cols/n, rows] as [rows, cols/n]: a word holds neighbouring inputs already. Tiles of 16 by 16 words
// keep both sides in the cache.
func turnGPTQ(dst, src []byte, rows, cols, n int) {
	const tile = 16
	words := cols / n
	for w0 := 0; w0 < words; w0 += tile {
		for r0 := 0; r0 < rows; r0 += tile {
			for w := w0; w < min(w0+tile, words); w++ {
				for r := r0; r < min(r0+tile, rows); r++ {
					copy(dst[4*(r*words+w):][:4], src[4*(w*rows+r):])
				}
			}
		}
	}
}

// turnAWQ writes words [cols, rows/8] of eight outputs each as nibbles [rows, cols].
func turnAWQ(dst, src []byte, rows, cols int) {
	words := rows / 8
	for i := 0; i < cols; i += 2 {
		for w := range words {
			low, high := binary.LittleEndian.Uint32(src[4*(i*words+w):]), binary.LittleEndian.Uint32(src[4*((i+1)*words+w):])
			for k, r := range awqOrder {
				dst[((8*w+r)*cols+i)/2] = byte(low>>(4*k)&15 | high>>(4*k)&15<<4)
			}
		}
	}
}

// words reads a tensor of 32-bit words of that shape.
func (c *Checkpoint) words(name string, shape []int64, s *Scratch) ([]byte, error) {
	t, ok := c.byName[name]
	if !ok {
		return nil, c.refuse(name, again, "missing")
	}
	if t.Type != "I32" || !slices.Equal(t.Shape, shape) {
		return nil, c.refuse(name, "check config.json against the tensors", "%s %v, but the configuration gives I32 %v", t.Type, t.Shape, shape)
	}
	data := s.take(t.size)
	return data, c.read(name, t, data)
}

// ascendingGroups refuses a g_idx that permutes inputs.
func (c *Checkpoint) ascendingGroups(name string, cols, inputs int) error {
	if _, ok := c.byName[name]; !ok {
		return nil
	}
	list, err := c.Integers(name, cols)
	if err != nil {
		return err
	}
	for i, group := range list {
		if group != int64(i/inputs) {
			return c.refuse(name, "use a checkpoint that was quantised without act-order (desc_act)", "input %d is in group %d: permuted inputs are not supported", i, group)
		}
	}
	return nil
}
