package weights

// GGUF checkpoints: one file, or the parts NAME-00001-of-00009.gguf of a split one. Package gguf tells what is in them in
// the words of a folder with config.json; here that becomes tensors and side files. The side files exist in memory only and
// are made when they are asked for.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"covey/engine/canon"
	"covey/engine/gguf"
)

// extension is that of GGUF files.
const extension = ".gguf"

// part matches the name of a file of a split checkpoint.
var part = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// findGGUF looks for the one GGUF checkpoint of a folder and returns the name of its (first) file; "" when there is none.
func findGGUF(root modelFolder) (string, error) {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return "", fmt.Errorf("weights: reading the model folder: %w", err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), extension) {
			continue
		}
		if m := part.FindStringSubmatch(e.Name()); m == nil || m[2] == "00001" {
			names = append(names, e.Name())
		}
	}
	switch {
	case len(names) == 0:
		return "", nil
	case len(names) > 1:
		return "", &FormatError{File: names[1], Offset: -1, Problem: "the folder holds another checkpoint, " + abbreviate(names[0], longestName), Remedy: "point at the file itself"}
	}
	return names[0], nil
}

// openGGUF fills the checkpoint from the file called name, and from its other parts where it is split.
func (c *Checkpoint) openGGUF(name string) error {
	names := []string{name}
	if m := part.FindStringSubmatch(name); m != nil {
		count, err := strconv.Atoi(m[3])
		if err != nil || count < 1 || count > MaxShards {
			return &FormatError{File: name, Offset: -1, Problem: fmt.Sprintf("one of %s parts; 1 to %d are allowed", m[3], MaxShards), Remedy: again}
		}
		names = names[:0]
		for i := range count {
			names = append(names, fmt.Sprintf("%s-%05d-of-%05d%s", m[1], i+1, count, extension))
		}
	}
	var head *gguf.File
	var tensors []gguf.Tensor // of all parts, for the description
	var parts [][]gguf.Tensor
	for i, name := range names {
		f, table, err := c.parseGGUF(name)
		if err != nil {
			return err
		}
		c.files = append(c.files, f)
		if err := checkSplit(name, table, i, len(names)); err != nil {
			return err
		}
		if i == 0 {
			head = table
		}
		parts = append(parts, table.Tensors)
		if tensors = append(tensors, table.Tensors...); len(tensors) > MaxTensors {
			return &FormatError{File: name, Offset: -1, Problem: fmt.Sprintf("more than the %d tensors allowed", MaxTensors), Remedy: again}
		}
	}
	description, err := gguf.Describe(head, tensors)
	if err != nil {
		return ggufError(names[0], err)
	}
	for i, list := range parts {
		for _, t := range list {
			places, err := description.Places(t, MaxTensors-len(c.byName))
			if err != nil {
				return ggufError(names[i], err)
			}
			for _, p := range places {
				if other, twice := c.byName[p.Name]; twice {
					return &FormatError{File: names[i], Tensor: t.Name, Offset: p.Offset, Problem: "also in " + other.file.name, Remedy: again}
				}
				c.byName[p.Name] = Tensor{Type: Type(t.Type), Shape: p.Shape, file: c.files[i], begin: p.Offset, size: p.Size, heads: p.Heads}
			}
		}
	}
	if err := c.joinExpansions(); err != nil {
		return err
	}
	c.config = description.Config
	c.side = map[string]func() ([]byte, error){
		"config.json":            func() ([]byte, error) { return c.config, nil },
		"tokenizer.json":         head.Tokenizer,
		"tokenizer_config.json":  head.TokenizerConfig,
		"generation_config.json": head.GenerationConfig,
	}
	for side, content := range c.side {
		c.side[side] = func() ([]byte, error) {
			text, err := content()
			if err != nil {
				return nil, ggufError(names[0], err)
			}
			return text, nil
		}
	}
	return nil
}

// parseGGUF opens one file.
func (c *Checkpoint) parseGGUF(name string) (*file, *gguf.File, error) {
	handle, err := openFile(c.root, name)
	if err != nil {
		return nil, nil, err
	}
	info, err := handle.Stat()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("weights: reading %s: %w", name, err), handle.Close())
	}
	table, err := gguf.Parse(handle, info.Size())
	if err != nil {
		return nil, nil, errors.Join(ggufError(name, err), handle.Close())
	}
	return &file{name: name, handle: handle, size: info.Size(), head: min(table.Data, info.Size()), data: min(table.Data, info.Size())}, table, nil
}

// checkSplit holds a part to what it says of itself.
func checkSplit(name string, table *gguf.File, index, count int) error {
	number, _, err := table.Integer("split.no")
	if err != nil {
		return ggufError(name, err)
	}
	of, given, err := table.Integer("split.count")
	if err != nil {
		return ggufError(name, err)
	}
	if !given {
		of = 1
	}
	if number != int64(index) || max(of, 1) != int64(count) {
		return &FormatError{File: name, Offset: -1, Problem: fmt.Sprintf("is part %d of %d, but its name says part %d of %d", number+1, of, index+1, count), Remedy: "name the parts NAME-00001-of-00009.gguf and so on"}
	}
	return nil
}

// ggufError gives a refusal its file.
func ggufError(name string, err error) error {
	var refusal *gguf.Error
	if !errors.As(err, &refusal) {
		return fmt.Errorf("weights: %s: %w", name, err)
	}
	problem := refusal.Problem
	if refusal.Key != "" {
		problem = fmt.Sprintf("metadata %q: %s", abbreviate(refusal.Key, longestName), problem)
	}
	return &FormatError{File: name, Tensor: refusal.Tensor, Offset: refusal.Offset, Problem: problem, Remedy: "use a whole file of a supported model"}
}

// joinExpansions puts one tensor, kv_b_proj, in the place of each pair that expands the latent into keys and values.
func (c *Checkpoint) joinExpansions() error {
	for name, k := range c.byName {
		base, ok := strings.CutSuffix(name, gguf.KeyExpansion+".weight")
		if !ok {
			continue
		}
		v, ok := c.byName[base+gguf.ValueExpansion+".weight"]
		if !ok || len(k.Shape) != 3 || len(v.Shape) != 3 || k.Shape[0] != v.Shape[0] || k.Shape[1] != v.Shape[2] {
			return c.refuse(name, again, "shape %v does not fit that of the values, %v", k.Shape, v.Shape)
		}
		joined := k
		joined.Shape = []int64{k.Shape[0] * (k.Shape[2] + v.Shape[1]), k.Shape[1]}
		joined.values = &v
		joined.heads = k.Shape[0]
		c.byName[base+"kv_b_proj.weight"] = joined
		delete(c.byName, name)
		delete(c.byName, base+gguf.ValueExpansion+".weight")
	}
	return nil
}

// joinedSource reads a kv_b_proj that is stored as two: of each head the rows for keys, which lie transposed, then those for
// values. The result is F32, which holds either stored form exactly.
func (c *Checkpoint) joinedSource(name string, t Tensor, s *Scratch) (canon.Source, error) {
	heads, latent := int(t.heads), int(t.Shape[1])
	values := int(t.values.Shape[1])
	keys := int(t.Shape[0])/heads - values
	part := func(t Tensor, rows, cols int) ([]byte, error) {
		t.Shape, t.heads, t.values = []int64{int64(rows), int64(cols)}, 0, nil
		source, err := c.plainSource(name, t, canon.Source{Name: name, Rows: rows, Cols: cols}, s)
		if err != nil {
			return nil, err
		}
		wide, err := canon.Dequantised(source)
		return wide.Codes, err
	}
	k, err := part(t, heads*latent, keys)
	if err != nil {
		return canon.Source{}, err
	}
	v, err := part(*t.values, heads*values, latent)
	if err != nil {
		return canon.Source{}, err
	}
	out := canon.Source{Name: name, Form: canon.F32, Rows: heads * (keys + values), Cols: latent, Codes: make([]byte, 0, len(k)+len(v))}
	for h := range heads {
		for j := range keys {
			for i := range latent {
				at := 4 * ((h*latent+i)*keys + j)
				out.Codes = append(out.Codes, k[at:at+4]...)
			}
		}
		out.Codes = append(out.Codes, v[4*h*values*latent:4*(h+1)*values*latent]...)
	}
	return out, nil
}

// uninterleave undoes the interleaving of rows within heads (gguf.Place), from src to dst: rows of width bytes each.
func uninterleave(dst, src []byte, heads, width int64) {
	rows := int64(len(src)) / width
	dim := rows / heads
	for r := range rows {
		within := r % dim
		from := r - within + 2*within // row i of the first half is row 2i
		if within >= dim/2 {
			from = r - within + 2*(within-dim/2) + 1
		}
		copy(dst[r*width:(r+1)*width], src[from*width:])
	}
}

// splitPath tells a GGUF file from a folder: the folder, and the file's name in it or "".
func splitPath(path string) (dir, name string) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() && strings.HasSuffix(path, extension) {
		return filepath.Dir(path), filepath.Base(path)
	}
	return path, ""
}
