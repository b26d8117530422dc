package weights

// Reading records while a model runs: whole aligned records into aligned memory, past the page cache where the file system
// allows it, since the cache in front of the disk is ours and a second copy would halve the memory that holds experts.

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// Errors of a record that cannot be read, for errors.Is. The text names file and offset.
var (
	ErrChanged   = errors.New("the file has changed since the model was loaded")
	ErrShortRead = errors.New("short read")
)

// RecordReader reads records of a container that may be closed meanwhile. Read may be called from several goroutines.
type RecordReader struct{ files []*recordFile }

type recordFile struct {
	name     string
	handle   *os.File
	size     int64
	modified time.Time
	direct   atomic.Bool // opened with O_DIRECT
	buffered *os.File    // for file systems that refuse O_DIRECT only when read
}

// RecordReader opens the data files of a container a second time, with O_DIRECT where possible. The caller closes it.
func (c *Checkpoint) RecordReader() (*RecordReader, error) {
	r := &RecordReader{}
	for _, f := range c.files {
		file := &recordFile{name: f.name, size: f.size}
		r.files = append(r.files, file)
		var err error
		if file.buffered, err = openFile(c.root, f.name); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		file.handle = file.buffered
		if direct, err := c.root.OpenFile(f.name, os.O_RDONLY|syscall.O_DIRECT, 0); err == nil {
			file.handle = direct
			file.direct.Store(true)
		}
		info, err := file.handle.Stat()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("weights: %s: %w", f.name, err), r.Close())
		}
		file.modified = info.ModTime()
		if info.Size() != f.size {
			return nil, errors.Join(fmt.Errorf("weights: %s: %w", f.name, ErrChanged), r.Close())
		}
	}
	return r, nil
}

// Direct says whether all files are read past the page cache.
func (r *RecordReader) Direct() bool {
	for _, f := range r.files {
		if !f.direct.Load() {
			return false
		}
	}
	return true
}

// Read reads a whole record into block, which must be aligned to 4096 and have rec.Size bytes. A failed read is tried once
// more.
func (r *RecordReader) Read(rec Record, block []byte) error {
	f := r.files[rec.file]
	err := f.read(rec, block)
	if err != nil && !errors.Is(err, ErrChanged) {
		err = f.read(rec, block)
	}
	if err != nil {
		return fmt.Errorf("weights: %s: %s: reading %d bytes at byte %d: %w", f.name, rec.Name, rec.Size, rec.offset, err)
	}
	return nil
}

func (f *recordFile) read(rec Record, block []byte) error {
	info, err := f.handle.Stat()
	if err != nil {
		return err
	}
	if info.Size() != f.size || !info.ModTime().Equal(f.modified) {
		return ErrChanged
	}
	handle := f.handle
	if !f.direct.Load() {
		handle = f.buffered
	}
	n, err := handle.ReadAt(block[:rec.Size], rec.offset)
	if errors.Is(err, syscall.EINVAL) && f.direct.Swap(false) { // this file system knows O_DIRECT by name only
		n, err = f.buffered.ReadAt(block[:rec.Size], rec.offset)
	}
	if int64(n) < rec.Size && (err == nil || n > 0) {
		return fmt.Errorf("%w: %d bytes of %d", ErrShortRead, n, rec.Size)
	}
	return err
}

// Close closes the files.
func (r *RecordReader) Close() error {
	var errs []error
	for _, f := range r.files {
		if f.handle != f.buffered && f.handle != nil {
			errs = append(errs, f.handle.Close())
		}
		if f.buffered != nil {
			errs = append(errs, f.buffered.Close())
		}
	}
	r.files = nil
	return errors.Join(errs...)
}
