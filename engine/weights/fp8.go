package weights

// FP8 and FP4 as DeepSeek stores them. A module M in FP8 has M.weight F8_E4M3 [rows, cols] and M.weight_scale_inv (also
// spelled M.scale) [ceil(rows/height), ceil(cols/width)] in F32, BF16 or E8M0; a weight is code times scale, in spite of the
// name. One in FP4 has M.weight I8 [rows, cols/2], two e2m1 codes a byte, the low nibble being the earlier input, and M.scale
// E8M0 [rows, cols/32]. What is stored so is told by type and scale, tensor by tensor; config.json gives the block's size,
// which ragged last blocks would hide.

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"covey/engine/canon"
)

// fp8Blocks is the quantization_config of method "fp8".
type fp8Blocks struct {
	height, width int // of a block; 0 = one scale for the whole matrix
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
		return nil, refuse("%v", err)
	}
	switch {
	case q.Format != "" && q.Format != "e4m3" && q.Format != "e4m3fn":
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
	if c.scheme == nil || c.scheme.fp8 == nil {
		return canon.Source{}, c.refuse(plain, "check config.json against the tensors", "FP8, but config.json has no quantization_config of quant_method fp8")
	}
	if !slices.Equal(t.Shape, []int64{int64(rows), int64(cols)}) {
		return canon.Source{}, c.refuse(plain, "check config.json against the tensors", "shape %v, but the configuration gives [%d %d]", t.Shape, rows, cols)
	}
	b := *c.scheme.fp8
	if b.height == 0 {
		b = fp8Blocks{height: rows, width: cols}
	}
	shape := []int64{int64((rows + b.height - 1) / b.height), int64((cols + b.width - 1) / b.width)}
	out := canon.Source{Name: module, Form: canon.FP8, Rows: rows, Cols: cols, GroupRows: b.height, Group: b.width}
	return c.scaled(out, t, shape, s)
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
	plain, scale := out.Name+".weight", out.Name+".weight_scale_inv"
	other, short := c.byName[out.Name+".scale"]
	st, ok := c.byName[scale]
	if short && ok {
		return canon.Source{}, c.refuse(scale, again, "stored beside %s.scale", out.Name)
	}
	if short {
		scale, st, ok = out.Name+".scale", other, true
	}
	if !ok {
		return canon.Source{}, c.refuse(plain, again, "%s without %s", t.Type, scale)
	}
	if out.ScaleForm, ok = scaleForms[st.Type]; !ok || out.Form == canon.MXFP4 && out.ScaleForm != canon.E8M0 {
		return canon.Source{}, c.refuse(scale, "use another checkpoint", "scales of type %s are not supported for %s", st.Type, out.Form)
	}
	if one := shape[0]*shape[1] == 1 && st.Elements() == 1; !one && !slices.Equal(st.Shape, shape) {
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
