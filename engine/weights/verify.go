package weights

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"covey/engine/canon"
)

// Verified is what Verify read.
type Verified struct {
	Records, Tensors int
	Bytes            int64 // of tensors and side files
}

// Verify reads a container whole and compares every hash: of side files and of each tensor. Deep also takes each weight
// apart and refuses scales and values that are not finite. The error joins the first problems, 20 at most, each with file,
// tensor and offset. progress may be nil.
func Verify(ctx context.Context, c *Checkpoint, deep bool, progress func(done, total int64)) (Verified, error) {
	if c.container == nil {
		return Verified{}, &FormatError{File: ContainerIndex, Offset: -1, Problem: "not found: this is no container", Remedy: "verify reads containers that covey convert wrote"}
	}
	in := c.container
	v := Verified{Records: len(in.records), Tensors: len(in.tensors)}
	total := int64(0)
	for _, s := range in.sides {
		total += s.size
	}
	for i := range in.tensors {
		total += in.tensors[i].Layout.Bytes()
	}
	var problems []error
	note := func(err error) {
		if err != nil && len(problems) < 20 {
			problems = append(problems, err)
		}
	}
	step := func(n int64) {
		v.Bytes += n
		if progress != nil {
			progress(v.Bytes, total)
		}
	}
	for _, s := range in.sides {
		note(c.verifySide(s))
		step(s.size)
	}
	var block, scratch []byte
	for i := range in.tensors {
		if err := ctx.Err(); err != nil {
			return v, err
		}
		t := &in.tensors[i]
		n := t.Layout.Bytes()
		if int64(len(block)) < n {
			block = make([]byte, n)
		}
		f := in.records[t.record].file
		err := c.read(t.Name, Tensor{file: f, begin: t.begin, size: n}, block)
		if sum := sha256.Sum256(block[:n]); err == nil && sum != t.Hash {
			err = &FormatError{File: f.name, Tensor: t.Name, Offset: t.begin, Problem: "its bytes do not match their hash: the file is damaged", Remedy: again}
		}
		if err == nil && deep {
			err = t.deep(f.name, block[:n], &scratch)
		}
		note(err)
		step(n)
	}
	return v, errors.Join(problems...)
}

func (c *Checkpoint) verifySide(s listedFile) error {
	f, err := openFile(c.root, s.name)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if n, err := io.Copy(h, f); err != nil || n != s.size || !bytes.Equal(h.Sum(nil), s.hash[:]) {
		return &FormatError{File: s.name, Offset: -1, Problem: "not the file that was converted", Remedy: again}
	}
	return nil
}

// deep takes a packed tensor apart.
func (t *packedTensor) deep(file string, block []byte, scratch *[]byte) error {
	refuse := func(format string, args ...any) error {
		return &FormatError{File: file, Tensor: t.Name, Offset: t.begin, Problem: fmt.Sprintf(format, args...), Remedy: "convert the source again"}
	}
	used := int64(0)
	if need := 2*int64(len(block)) + 64; int64(len(*scratch)) < need {
		*scratch = make([]byte, need)
	}
	src, err := t.Layout.Unpack(t.Name, block, func(n int64) []byte {
		if used+n > int64(len(*scratch)) {
			return make([]byte, n)
		}
		used += n
		return (*scratch)[used-n : used]
	})
	if err != nil {
		return refuse("%v", err)
	}
	values := func(what string, data []byte, form canon.Form) error {
		if at := nonFinite(data, form); at >= 0 {
			return refuse("%s %d is not finite", what, at)
		}
		return nil
	}
	if _, plain := plainTypes[src.Form]; plain {
		return values("value", src.Codes, src.Form)
	}
	if src.ScaleForm == canon.E8M0 {
		return nil
	}
	return errors.Join(values("scale", src.Scales, src.ScaleForm), values("minimum", src.Minima, src.ScaleForm))
}
