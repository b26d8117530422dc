// Package weights reads checkpoints: the configuration, the named tensors and the side files of a model folder.
//
// A Checkpoint is what every storage format becomes: config.json's bytes, tensors by name (kind, shape, where the
// bytes lie) and small files beside them. The reader of a format (safetensors.go) fills the tensor table and nothing
// else; how quantised matrices are spelled (packed.go) is a second, separate question asked by name. Tensor bytes are
// read with pread, not mapped: a file that shrinks while it is read gives an error and never a fault.
//
// Everything in a model folder is untrusted. Sizes are checked against the real file before anything is allocated,
// names are opened through os.Root, and every refusal names the file, the tensor, the offset and the remedy.
package weights

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// Limits on what a model folder may ask for. Real checkpoints stay far below each of them.
const (
	MaxHeader  = 48 << 20 // bytes of all safetensors headers of a checkpoint: a trillion int4 parameters take 34 MB
	MaxIndex   = 32 << 20 // bytes of model.safetensors.index.json: those parameters take 21 MB
	MaxConfig  = 4 << 20  // bytes of config.json
	MaxShards  = 4096     // files of one checkpoint
	MaxTensors = 1 << 18  // tensors of one checkpoint
	MaxDims    = 8        // dimensions of one tensor

	maxSide       = 1 << 30  // bytes of a side file
	maxFileHeader = 12 << 20 // bytes of one safetensors header
	maxPerFile    = 1 << 16  // tensors of one safetensors file
	maxMetadata   = 1 << 12  // entries of __metadata__
	maxNote       = 8 << 20  // bytes of one of them
	maxName       = 255      // bytes of a file's name, as file systems have it
	maxTensorName = 1 << 10  // bytes of a tensor's name
)

// FormatError is a refusal of a model folder's content. Every field but Problem may be empty or, for Offset, negative.
type FormatError struct {
	File    string // name inside the model folder
	Tensor  string
	Offset  int64  // byte in File; negative when no single place is to blame
	Problem string // what is wrong
	Remedy  string // what the owner of the file can do
}

func (e *FormatError) Error() string {
	var b strings.Builder
	b.WriteString("weights: ")
	b.WriteString(e.File)
	if e.Tensor != "" {
		fmt.Fprintf(&b, ": tensor %q", abbreviate(e.Tensor, longestName))
	}
	if e.Offset >= 0 {
		fmt.Fprintf(&b, " at byte %d", e.Offset)
	}
	b.WriteString(": ")
	b.WriteString(abbreviate(e.Problem, longestProblem))
	if e.Remedy != "" {
		b.WriteString("; ")
		b.WriteString(e.Remedy)
	}
	return b.String()
}

const again = "download the file again"

// Longest quotation of a name and of a problem in an error line, in bytes.
const (
	longestName    = 120
	longestProblem = 600
)

// abbreviate keeps what a file says of itself from flooding an error line.
func abbreviate(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "..."
}

// Tensor says what one named tensor is and where its bytes lie. Offsets have been checked against the file.
type Tensor struct {
	Type  Type
	Shape []int64 // outermost first; read only
	file  *file
	begin int64 // absolute byte in the file
	size  int64
	heads int64 // rows are interleaved within so many heads (gguf.Place); 0 = they are not

	values *Tensor // kv_b_proj stored as keys (this tensor's bytes, of heads) and values; nil = any other tensor
}

// Bytes is the stored length of the tensor.
func (t Tensor) Bytes() int64 { return t.size }

// Elements is the product of the shape (1 for a scalar); it cannot overflow because Bytes was checked.
func (t Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// file is one open tensor file.
type file struct {
	name   string
	handle *os.File
	size   int64
	headAt int64             // where the header begins, which is part of the checkpoint's hash
	head   int64             // its length
	data   int64             // first byte of tensor data
	notes  map[string]string // of the header, where a reader wants them; else nil
}

// Tensors is a table of named tensors over open files. It is immutable after opening; all methods but Close may be
// called from several goroutines at once.
type Tensors struct {
	root   modelFolder
	files  []*file
	byName map[string]Tensor
}

// Checkpoint is one open model folder: its tensors, its configuration and how packed matrices are to be read.
type Checkpoint struct {
	Tensors
	config []byte
	side   map[string]func() ([]byte, error) // side files made from the tensor files; nil = they are files of the folder
	scheme *scheme                           // nil = nothing is quantised

	formats map[string]string // names of storage formats that a colibri container stamps, by tensor; else nil
	hash    string

	index     []byte    // of a container
	container *contents // what it says; nil = another format
}

// Open reads the configuration and the tensor table of the model at path: a GGUF file, or a folder with config.json and
// either model.safetensors or the shards that model.safetensors.index.json names or a colibri container, or the folder of a
// container of ours (container.go), or a folder with one GGUF checkpoint. No tensor is read. The caller closes it.
func Open(path string) (*Checkpoint, error) {
	dir, name := splitPath(path)
	root, err := openModelFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("weights: opening model folder: %w", err)
	}
	c := &Checkpoint{Tensors: Tensors{root: root, byName: map[string]Tensor{}}}
	if err := c.open(name); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// OpenTensors opens the single safetensors file called name in the folder dir. The caller closes it.
func OpenTensors(dir, name string) (*Tensors, error) {
	root, err := openModelFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("weights: opening folder: %w", err)
	}
	t := &Tensors{root: root, byName: map[string]Tensor{}}
	if err := t.openSafetensors(name); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// open fills the checkpoint from the GGUF file called name, or from what the folder holds if name is "".
func (c *Checkpoint) open(name string) error {
	var err error
	contained := name == "" && c.has(ContainerIndex)
	if name == "" && !contained && c.has(journalName) {
		return &FormatError{File: journalName, Offset: -1, Problem: "the conversion into this folder has not finished", Remedy: "run it again: it goes on where it stopped"}
	}
	if name == "" && !contained && !c.hasSafetensors() { // a container of colibri has other names still, but no GGUF file beside it
		if name, err = findGGUF(c.root); err != nil {
			return err
		}
	}
	switch {
	case contained:
		err = c.openIndex()
	case name != "":
		err = c.openGGUF(name)
	default:
		err = c.openFolder()
	}
	if err != nil {
		return err
	}
	c.hash, err = c.fingerprint()
	return err
}

// openFolder reads a folder with config.json and safetensors files.
func (c *Checkpoint) openFolder() error {
	config, err := c.File("config.json", MaxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; point at a folder with a safetensors checkpoint, or at a GGUF file", err)
	}
	if err != nil {
		return err
	}
	c.config = config
	if c.scheme, err = readScheme(config); err != nil {
		return err
	}
	return c.openTensors()
}

// Names of the tensor files of a folder.
const single, index = "model.safetensors", "model.safetensors.index.json"

func (c *Checkpoint) hasSafetensors() bool { return c.has(single) || c.has(index) }

// has says whether the folder has something of that name.
func (c *Checkpoint) has(name string) bool {
	_, err := c.root.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// openTensors opens the tensor files and fills the table.
func (c *Checkpoint) openTensors() error {
	_, err := c.root.Lstat(index)
	switch {
	case err == nil:
		return c.openShards()
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("weights: %s: %w", index, err)
	}
	if _, err := c.root.Lstat(single); errors.Is(err, fs.ErrNotExist) {
		if names, err := c.containerFiles(); err != nil || len(names) > 0 {
			return errors.Join(err, c.openContainer(names))
		}
		return &FormatError{File: single, Offset: -1, Problem: "not found, nor " + index,
			Remedy: "point at a folder with a safetensors checkpoint"}
	}
	return c.openSafetensors(single)
}

// Close releases the files. Tensors must not be read afterwards.
func (t *Tensors) Close() error {
	var errs []error
	for _, f := range t.files {
		errs = append(errs, f.handle.Close())
	}
	t.files = nil
	return errors.Join(append(errs, t.root.Close())...)
}

// Config is the content of config.json; read only.
func (c *Checkpoint) Config() []byte { return c.config }

// Hash identifies the checkpoint: hex SHA-256 over the configuration, the tokenizer, every tensor file's name, size
// and header, and 64 evenly spaced blocks of 4 KiB of each file's data. It tells a fine-tune from its parent in
// milliseconds; it is an identity, not a proof against deliberate tampering.
func (c *Checkpoint) Hash() string { return c.hash }

// openFile opens a file of the folder. A link out of it is refused: a checkpoint must not be able to name other files.
// Neither is anything but a plain file opened: a pipe would wait for a writer for ever.
func openFile(root modelFolder, name string) (*os.File, error) {
	info, err := root.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return nil, &FormatError{File: name, Offset: -1, Problem: "not a regular file", Remedy: "replace it by a plain file"}
	}
	if err == nil {
		var f *os.File
		if f, err = root.Open(name); err == nil {
			return f, nil
		}
	}
	if info, e := root.Lstat(name); e == nil && info.Mode()&fs.ModeSymlink != 0 && !errors.Is(err, fs.ErrNotExist) {
		return nil, &FormatError{File: name, Offset: -1, Problem: "a link that leaves the model folder: " + err.Error(), Remedy: "put the file itself in its place"}
	}
	return nil, fmt.Errorf("weights: opening %s: %w", name, err)
}

// Bytes is the stored size of all tensors.
func (t *Tensors) Bytes() int64 {
	total := int64(0)
	for _, f := range t.files {
		total += f.size - f.data
	}
	return total
}

// Names lists all tensors in lexical order.
func (t *Tensors) Names() []string { return slices.Sorted(maps.Keys(t.byName)) }

// Tensor describes a tensor by name.
func (t *Tensors) Tensor(name string) (Tensor, bool) {
	found, ok := t.byName[name]
	return found, ok
}

// fingerprint computes Hash.
func (c *Checkpoint) fingerprint() (string, error) {
	h := newFingerprint()
	h.part("config.json", c.config)
	if c.side == nil { // side files that come from the tensor files are covered by those
		if err := c.addFile(h, "tokenizer.json"); err != nil {
			return "", err
		}
	}
	if c.container != nil {
		h.part(ContainerIndex, c.index)
	}
	const blocks, block = 64, 4096
	buf := make([]byte, block)
	for _, f := range c.files {
		if err := h.stream(f.name, io.NewSectionReader(f.handle, f.headAt, f.head)); err != nil {
			return "", fmt.Errorf("weights: reading %s: %w", f.name, err)
		}
		data := f.size - f.data
		h.number(data)
		for i := range int64(blocks) {
			at := f.data + data/blocks*i
			n, err := f.handle.ReadAt(buf, at)
			if err != nil && err != io.EOF {
				return "", fmt.Errorf("weights: reading %s: %w", f.name, err)
			}
			h.part("", buf[:n])
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// addFile adds a file of the folder to a fingerprint, as an empty one if it is missing.
func (c *Checkpoint) addFile(h fingerprint, name string) error {
	f, err := openFile(c.root, name)
	if errors.Is(err, fs.ErrNotExist) {
		h.part(name, nil)
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("weights: reading %s: %w", name, err)
	}
	if info.Size() > maxSide {
		return tooLong(name, info.Size(), maxSide)
	}
	if err := h.stream(name, io.NewSectionReader(f, 0, info.Size())); err != nil {
		return fmt.Errorf("weights: reading %s: %w", name, err)
	}
	return nil
}
