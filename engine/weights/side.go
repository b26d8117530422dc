package weights

// Side files: config.json, tokenizer.json and their kin. A folder has them as files; a format that holds them within its
// own file (GGUF) gives them from memory. Either way readers see one file system.

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// File reads a whole side file of at most limit bytes. A missing file gives an error that matches fs.ErrNotExist.
func (c *Checkpoint) File(name string, limit int64) ([]byte, error) {
	if c.side == nil {
		return c.readFile(name, limit)
	}
	content, ok := c.side[name]
	if !ok {
		return nil, fmt.Errorf("weights: %s has no %s: %w", c.files[0].name, name, fs.ErrNotExist)
	}
	data, err := content()
	switch {
	case err != nil:
		return nil, err
	case data == nil:
		return nil, fmt.Errorf("weights: %s has no %s: %w", c.files[0].name, name, fs.ErrNotExist)
	case int64(len(data)) > limit:
		return nil, tooLong(name, int64(len(data)), limit)
	}
	return data, nil
}

// FS shows the side files as a file system, for readers of tokenizers and chat templates. It is valid until the checkpoint
// closes.
func (c *Checkpoint) FS() fs.FS {
	if c.side == nil {
		return c.root.FS()
	}
	return sideFS{c}
}

// readFile reads a file of the folder.
func (c *Checkpoint) readFile(name string, limit int64) ([]byte, error) {
	f, err := openFile(c.root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("weights: reading %s: %w", name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, &FormatError{File: name, Offset: -1, Problem: "not a regular file", Remedy: "replace it by a plain file"}
	}
	if info.Size() > limit {
		return nil, tooLong(name, info.Size(), limit)
	}
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("weights: reading %s: %w", name, err)
	}
	return data, nil
}

func tooLong(name string, size, limit int64) error {
	return &FormatError{File: name, Offset: -1, Problem: fmt.Sprintf("%d bytes, more than the %d allowed", size, limit), Remedy: again}
}

// sideFS is the side files of a checkpoint that holds them within its own file.
type sideFS struct{ c *Checkpoint }

// Open implements fs.FS.
func (s sideFS) Open(name string) (fs.File, error) {
	data, err := s.c.File(name, maxSide)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &sideFile{Reader: bytes.NewReader(data), name: name, size: int64(len(data))}, nil
}

// Stat implements fs.StatFS: without making the file, which can be long.
func (s sideFS) Stat(name string) (fs.FileInfo, error) {
	if _, ok := s.c.side[name]; !ok {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return &sideFile{name: name}, nil
}

// sideFile is an open side file and its own description.
type sideFile struct {
	*bytes.Reader
	name string
	size int64
}

func (f *sideFile) Close() error               { return nil }
func (f *sideFile) Stat() (fs.FileInfo, error) { return f, nil }
func (f *sideFile) Name() string               { return f.name }
func (f *sideFile) Size() int64                { return f.size }
func (f *sideFile) Mode() fs.FileMode          { return 0o400 }
func (f *sideFile) ModTime() time.Time         { return time.Time{} }
func (f *sideFile) IsDir() bool                { return false }
func (f *sideFile) Sys() any                   { return nil }
