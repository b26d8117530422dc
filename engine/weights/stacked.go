package weights

// Stacked tensors: the matrices of all experts of a layer as one tensor, experts outermost, gate and up often in one.

import (
	"fmt"
	"slices"

	"covey/engine/canon"
)

// Stack is a tensor of equal matrices, one for each expert.
type Stack struct {
	Tensor     string // full name, or without ".weight"
	Experts    int
	Rows, Cols int  // outputs and inputs of one matrix
	Transposed bool // stored [experts, inputs, outputs]
}

// Outputs picks output rows First, First+Step, ... of a stacked matrix, Count of them.
type Outputs struct{ First, Step, Count int }

// Expert reads the picked outputs of one expert's matrix in a stack as stored. The result lies in s and is valid until s
// is reset. Plain rows are read alone; for interleaved or transposed ones the expert's whole matrix is read.
//
// A stack in MXFP4 has two tensors beside each other, K_blocks U8 [experts, outputs, inputs/32, 16] and K_scales U8
// [experts, outputs, inputs/32]: 32 codes of an output with the earlier one in the low nibble, and their E8M0 scale. It is
// never transposed.
func (c *Checkpoint) Expert(k Stack, expert int, out Outputs, s *Scratch) (canon.Source, error) {
	if _, ok := c.byName[k.Tensor+"_blocks"]; ok {
		return c.mxfp4(k, expert, out, s)
	}
	name := k.name(c)
	t, ok := c.byName[name]
	if !ok {
		return canon.Source{}, c.refuse(name, "the configuration promises it: "+again, "missing")
	}
	form, ok := floatForms[t.Type]
	if !ok {
		return canon.Source{}, c.refuse(name, "use a plain f32, f16 or bf16 checkpoint", "dtype %s is not supported", t.Type)
	}
	shape := []int64{int64(k.Experts), int64(k.Rows), int64(k.Cols)}
	if k.Transposed {
		shape[1], shape[2] = shape[2], shape[1]
	}
	if err := c.shaped(name, t, shape); err != nil {
		return canon.Source{}, err
	}
	width := form.Bits() / 8
	whole := int64(k.Rows) * int64(k.Cols) * int64(width)
	source := canon.Source{Name: fmt.Sprintf("%s[%d]", name, expert), Form: form, Rows: out.Count, Cols: k.Cols}
	if !k.Transposed {
		codes, err := c.rows(name, t, int64(expert)*whole, k.Cols*width, out, s)
		source.Codes = codes
		return source, err
	}
	all := s.take(whole)
	if err := c.readAt(name, t, int64(expert)*whole, all); err != nil {
		return source, err
	}
	source.Codes = s.take(int64(out.Count) * int64(k.Cols) * int64(width))
	for r := range out.Count {
		row := source.Codes[r*k.Cols*width : (r+1)*k.Cols*width]
		for i := range k.Cols {
			at := (i*k.Rows + out.First + r*out.Step) * width
			copy(row[i*width:(i+1)*width], all[at:at+width])
		}
	}
	return source, nil
}

func (c *Checkpoint) mxfp4(k Stack, expert int, out Outputs, s *Scratch) (canon.Source, error) {
	const inputs = 32
	blocks := k.Cols / inputs
	source := canon.Source{Name: fmt.Sprintf("%s[%d]", k.Tensor, expert), Form: canon.MXFP4, Rows: out.Count, Cols: k.Cols, Group: inputs, ScaleForm: canon.E8M0}
	if k.Cols%inputs != 0 {
		return source, c.refuse(k.Tensor+"_blocks", "check config.json against the tensors", "%d inputs are not whole blocks of %d", k.Cols, inputs)
	}
	shape := []int64{int64(k.Experts), int64(k.Rows), int64(blocks)}
	for _, part := range []struct {
		suffix string
		shape  []int64
		size   int // bytes of an output
		to     *[]byte
	}{{"_blocks", append(slices.Clone(shape), inputs/2), blocks * inputs / 2, &source.Codes}, {"_scales", shape, blocks, &source.Scales}} {
		name := k.Tensor + part.suffix
		t, ok := c.byName[name]
		if !ok {
			return source, c.refuse(name, "the configuration promises it: "+again, "missing")
		}
		if t.Type != "U8" {
			return source, c.refuse(name, again, "dtype %s, want U8", t.Type)
		}
		if err := c.shaped(name, t, part.shape); err != nil {
			return source, err
		}
		var err error
		if *part.to, err = c.rows(name, t, int64(expert)*int64(k.Rows)*int64(part.size), part.size, out, s); err != nil {
			return source, err
		}
	}
	return source, nil
}

// ExpertBias reads the picked values of one expert's row of the float tensor name [experts, rows], widened exactly to f32.
func (c *Checkpoint) ExpertBias(name string, experts, rows, expert int, out Outputs, s *Scratch) ([]float32, error) {
	t, ok := c.byName[name]
	if !ok {
		return nil, c.refuse(name, "the configuration promises it: "+again, "missing")
	}
	form, ok := floatForms[t.Type]
	if !ok {
		return nil, c.refuse(name, "use a checkpoint that keeps it in f32, f16 or bf16", "dtype %s is not supported", t.Type)
	}
	if err := c.shaped(name, t, []int64{int64(experts), int64(rows)}); err != nil {
		return nil, err
	}
	width := form.Bits() / 8
	raw, err := c.rows(name, t, int64(expert)*int64(rows)*int64(width), width, out, s)
	if err != nil {
		return nil, err
	}
	if at := nonFinite(raw, form); at >= 0 {
		return nil, c.refuse(name, again, "a value of expert %d is not finite", expert)
	}
	return widen(raw, form, out.Count)
}

// name is the tensor's stored name.
func (k Stack) name(c *Checkpoint) string {
	if _, ok := c.byName[k.Tensor+".weight"]; ok {
		return k.Tensor + ".weight"
	}
	return k.Tensor
}

func (c *Checkpoint) shaped(name string, t Tensor, shape []int64) error {
	if slices.Equal(t.Shape, shape) {
		return nil
	}
	return c.refuse(name, "check config.json against the tensors", "shape %v, but the configuration gives %v", t.Shape, shape)
}

// rows reads rows of size bytes, the first one lying offset bytes after the tensor's start.
func (c *Checkpoint) rows(name string, t Tensor, offset int64, size int, out Outputs, s *Scratch) ([]byte, error) {
	offset += int64(out.First) * int64(size)
	raw := s.take(int64((out.Count-1)*out.Step+1) * int64(size))
	if err := c.readAt(name, t, offset, raw); err != nil {
		return nil, err
	}
	for r := range out.Count {
		copy(raw[r*size:(r+1)*size], raw[r*out.Step*size:(r*out.Step+1)*size])
	}
	return raw[:out.Count*size], nil
}
