package weights

// FP8 and FP4 as DeepSeek stores them. A module M in FP8 has M.weight F8_E4M3 [rows, cols] and M.weight_scale_inv (also
// spelled M.scale or M.weight_scale) [ceil(rows/height), ceil(cols/width)] in F32, BF16 or E8M0; a weight is code times scale,
// in spite of the name. One in FP4 has M.weight I8 [rows, cols/2], two e2m1 codes a byte, the low nibble being the earlier
// input, and M.scale E8M0 [rows, cols/32]. What is stored so is told by type and scale, tensor by tensor; config.json gives the
// block's size, which ragged last blocks would hide.

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"covey/engine/canon"
	"covey/engine/jsonfault"
)

// fp8Blocks are the blocks that share a scale.
type fp8Blocks struct {
	height, width int // 0 = all rows, all inputs
}

// scaleForms are the types of block scales.
var scaleForms = map[Type]canon.Form{"F32": canon.F32, "F16": canon.F16, "BF16": canon.BF16, "F8_E8M0": canon.E8M0}

// readFP8 decodes the quantization_config of method "fp8". How activations would be quantised by faster kernels
// (activation_scheme) does not matter: products take them as floats.
func readFP8(raw []byte) (*fp8Blocks, error) {
	refuse := func(format string, args ...any) error {
		return &FormatError{File: "config.json", Offset: -1, Problem: "quantization_config: fp8: " + fmt.Sprintf(format, args...),
			Remedy: "use a checkpoint in FP8 e4m3 with one scale a block, or a plain f32, f16 or bf16 one"}
	}
	var q struct {
		Format string `json:"fmt"`
		Block  []int  `json:"weight_block_size"`
	}
	if err := json.Unmarshal(raw, &q); err != nil {
		return nil, refuse("%v", jsonfault.Plain(err))
	}
	switch {
	case q.Format != "" && !slices.Contains([]string{"e4m3", "e4m3fn", "float8_e4m3fn"}, q.Format):
		return nil, refuse("fmt %q is not supported", q.Format)
	case len(q.Block) == 0:
		return &fp8Blocks{}, nil
	case len(q.Block) != 2 || q.Block[0] < 1 || q.Block[1] < 1 || q.Block[0] > 1<<16 || q.Block[1] > 1<<16:
		return nil, refuse("weight_block_size %v, want two positive numbers", q.Block)
	}
	return &fp8Blocks{height: q.Block[0], width: q.Block[1]}, nil
}

// fp8Source reads a module whose weight is FP8.
func (c *Checkpoint) fp8Source(module string, t Tensor, rows, cols int, s *Scratch) (canon.Source, error) {
	plain := module + ".weight"
	blocks, err := c.fp8Blocks(module)
	if err != nil {
		return canon.Source{}, err
	}
	if !slices.Equal(t.Shape, []int64{int64(rows), int64(cols)}) {
		return canon.Source{}, c.refuse(plain, "check config.json against the tensors", "shape %v, but the configuration gives [%d %d]", t.Shape, rows, cols)
	}
	b := *blocks
	if b.height == 0 {
		b.height = rows
	}
	if b.width == 0 {
		b.width = cols
	}
	shape := []int64{int64((rows + b.height - 1) / b.height), int64((cols + b.width - 1) / b.width)}
	out := canon.Source{Name: module, Form: canon.FP8, Rows: rows, Cols: cols, GroupRows: b.height, Group: b.width}
	return c.scaled(out, t, shape, s)
}

// fp8Blocks are the blocks of a module that is stored in FP8.
func (c *Checkpoint) fp8Blocks(module string) (*fp8Blocks, error) {
	if c.scheme != nil && c.scheme.fp8 != nil {
		return c.scheme.fp8, nil
	}
	switch g, err := c.plainGroup(module); {
	case err != nil:
		return nil, err
	case g != nil && g.blocks != nil:
		return g.blocks, nil
	}
	return nil, c.refuse(module+".weight", "check config.json against the tensors", "FP8, but config.json has no quantization_config of quant_method fp8, and no group of compressed-tensors in FP8 that claims it")
}

// fp4Source reads a module whose weight is packed FP4.
func (c *Checkpoint) fp4Source(module string, t Tensor, rows, cols int, s *Scratch) (canon.Source, error) {
	if cols%32 != 0 || !slices.Equal(t.Shape, []int64{int64(rows), int64(cols / 2)}) {
		return canon.Source{}, c.refuse(module+".weight", "check config.json against the tensors", "I8 %v, but FP4 of [%d %d] needs [%d %d] and whole groups of 32 inputs", t.Shape, rows, cols, rows, cols/2)
	}
	return c.scaled(canon.Source{Name: module, Form: canon.MXFP4, Rows: rows, Cols: cols, Group: 32}, t, []int64{int64(rows), int64(cols / 32)}, s)
}

// scaled fills in the codes, which t holds, and the scales of a source.
func (c *Checkpoint) scaled(out canon.Source, t Tensor, shape []int64, s *Scratch) (canon.Source, error) {
	plain, scale := out.Name+".weight", ""
	var st Tensor
	for _, suffix := range []string{".weight_scale_inv", ".scale", ".weight_scale"} {
		found, ok := c.byName[out.Name+suffix]
		if ok && scale != "" {
			return canon.Source{}, c.refuse(scale, again, "stored beside %s%s", out.Name, suffix)
		}
		if ok {
			scale, st = out.Name+suffix, found
		}
	}
	if scale == "" {
		return canon.Source{}, c.refuse(plain, again, "%s without %s.weight_scale_inv", t.Type, out.Name)
	}
	var ok bool
	if out.ScaleForm, ok = scaleForms[st.Type]; !ok || out.Form == canon.MXFP4 && out.ScaleForm != canon.E8M0 {
		return canon.Source{}, c.refuse(scale, "use another checkpoint", "scales of type %s are not supported for %s", st.Type, out.Form)
	}
	flat := st.Elements() == shape[0]*shape[1] && (len(st.Shape) < 2 && shape[1] == 1 || st.Elements() == 1)
	if !flat && !slices.Equal(st.Shape, shape) {
		return canon.Source{}, c.refuse(scale, "check weight_block_size in config.json against the tensors", "shape %v, but blocks of [%d %d] in [%d %d] need %v",
			st.Shape, max(out.GroupRows, 1), out.Group, out.Rows, out.Cols, shape)
	}
	out.Codes, out.Scales = s.take(t.size), s.take(st.size)
	if err := c.read(plain, t, out.Codes); err != nil {
		return canon.Source{}, err
	}
	if err := c.read(scale, st, out.Scales); err != nil {
		return canon.Source{}, err
	}
	if out.ScaleForm != canon.E8M0 {
		if at := nonFinite(out.Scales, out.ScaleForm); at >= 0 {
			return canon.Source{}, c.refuse(scale, again, "scale %d is not finite", at)
		}
	}
	return out, nil
}
