package weights

// Writing a container: records are appended to data files, and a journal beside them remembers each record once its bytes
// are on the disk. A writer that was killed goes on behind the last record of the journal; bytes behind that are cut off.
// The index appears under its name, in one step, when everything is there.

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"covey/engine/canon"
)

const (
	journalName  = ContainerIndex + ".partial"
	journalMagic = "COVEYJRN"

	flushBytes = 256 << 20 // unflushed data that makes a writer wait for the disk
)

// ErrOtherConversion says that a folder holds the beginning of another conversion.
var ErrOtherConversion = errors.New("holds the beginning of another conversion")

// ContainerWriter appends records to a container. Not safe for concurrent use.
type ContainerWriter struct {
	root    *os.Root
	id      [32]byte
	split   int64
	every   time.Duration
	journal *os.File
	data    *os.File
	names   []string
	sizes   []int64
	index   []byte   // records so far, as the index has them
	notes   [][]byte // one a record
	pending []byte   // journal entries whose data may not be on the disk yet
	written int64    // data bytes since the last flush
	flushed time.Time
}

// OpenContainerWriter begins a container in dir, which is made if it does not exist, or goes on with one that a writer of
// the same id left unfinished. id stands for everything that decides the content: source and options. A data file of at
// least split bytes takes no further record. every is how much work may be lost when the process is killed.
func OpenContainerWriter(dir string, id [32]byte, split int64, every time.Duration) (*ContainerWriter, error) {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("weights: container: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("weights: container: %w", err)
	}
	w := &ContainerWriter{root: root, id: id, split: split, every: every, flushed: time.Now()}
	if err := w.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("weights: container in %s: %w", dir, err), w.Close())
	}
	return w, nil
}

func (w *ContainerWriter) open() error {
	entries, err := fs.ReadDir(w.root.FS(), ".")
	if err != nil {
		return err
	}
	begun := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == journalName })
	if len(entries) > 0 && !begun {
		return fmt.Errorf("the folder is not empty (%s): nothing is overwritten; choose another one", entries[0].Name())
	}
	if w.journal, err = w.root.OpenFile(journalName, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return err
	}
	text, err := io.ReadAll(w.journal)
	if err != nil {
		return err
	}
	header := append([]byte(journalMagic), binary.LittleEndian.AppendUint32(nil, ContainerVersion)...)
	header = binary.LittleEndian.AppendUint32(header, canon.LayoutVersion)
	header = append(header, w.id[:]...)
	whole := 0
	switch {
	case len(text) < len(header): // killed before the first byte counted
		text = nil
	case !bytes.Equal(text[:len(header)], header):
		return fmt.Errorf("%w: %s is of another source, other options or another version; remove the folder or choose another one", ErrOtherConversion, journalName)
	default:
		if whole, err = w.replay(text[len(header):]); err != nil {
			return err
		}
	}
	if err := w.journal.Truncate(int64(len(header) + whole)); err != nil {
		return err
	}
	if whole == 0 {
		if _, err := w.journal.WriteAt(header, 0); err != nil {
			return err
		}
	}
	if _, err := w.journal.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if len(w.names) == 0 {
		return nil
	}
	last := len(w.names) - 1
	if w.data, err = w.root.OpenFile(w.names[last], os.O_RDWR, 0); err != nil {
		return err
	}
	if info, err := w.data.Stat(); err != nil || info.Size() < w.sizes[last] {
		return errors.Join(err, fmt.Errorf("%s is shorter than %s says; remove the folder", w.names[last], journalName))
	}
	return w.data.Truncate(w.sizes[last])
}

// replay takes over the whole entries of a journal and returns their length.
func (w *ContainerWriter) replay(text []byte) (int, error) {
	at := 0
	for len(text)-at >= 12 {
		index, note := int(binary.LittleEndian.Uint32(text[at:])), int(binary.LittleEndian.Uint32(text[at+4:]))
		end := at + 12 + index + note
		if index < 0 || note < 0 || end > len(text) || end < at {
			break
		}
		body := text[at+12 : end]
		if crc32.ChecksumIEEE(body) != binary.LittleEndian.Uint32(text[at+8:]) || index < 22 {
			break
		}
		number := int(binary.LittleEndian.Uint32(body))
		if number != len(w.names)-1 && number != len(w.names) {
			return 0, fmt.Errorf("%s names data file %d after %d; remove the folder", journalName, number+1, len(w.names))
		}
		if number == len(w.names) {
			w.names, w.sizes = append(w.names, dataName(number)), append(w.sizes, 0)
		}
		w.sizes[number] = int64(binary.LittleEndian.Uint64(body[4:]) + binary.LittleEndian.Uint64(body[12:]))
		w.index = append(w.index, body[:index]...)
		w.notes = append(w.notes, bytes.Clone(body[index:]))
		at = end
	}
	return at, nil
}

func dataName(number int) string { return fmt.Sprintf("data-%05d.covey", number+1) }

// Done is the number of records that are safe; the writer goes on behind them. Notes are what was given with each of them.
func (w *ContainerWriter) Done() int { return len(w.notes) }

// Notes are the notes of all records so far, in order.
func (w *ContainerWriter) Notes() [][]byte { return w.notes }

// Append writes tensors as one record: blocks holds their packed bytes, one behind the other, in whole multiples of 64 as
// their layouts say. The note is kept in the journal.
func (w *ContainerWriter) Append(tensors []PackedTensor, block, note []byte) error {
	if len(w.names) == 0 || w.sizes[len(w.names)-1] >= w.split {
		if err := w.nextFile(); err != nil {
			return fmt.Errorf("weights: container: %w", err)
		}
	}
	number := len(w.names) - 1
	size := (int64(len(block)) + sector - 1) &^ (sector - 1)
	at := w.sizes[number]
	entry := binary.LittleEndian.AppendUint32(nil, uint32(number))
	entry = binary.LittleEndian.AppendUint64(entry, uint64(at))
	entry = binary.LittleEndian.AppendUint64(entry, uint64(size))
	entry = binary.LittleEndian.AppendUint16(entry, uint16(len(tensors)))
	for _, t := range tensors {
		n := t.Layout.Bytes()
		t.Hash = sha256.Sum256(block[:n])
		if _, err := w.data.WriteAt(block[:n], at); err != nil {
			return fmt.Errorf("weights: container: %w", err)
		}
		block, at = block[n:], at+n
		entry = appendTensor(entry, t)
	}
	w.sizes[number] = w.sizes[number] + size
	if err := w.data.Truncate(w.sizes[number]); err != nil { // the padding
		return fmt.Errorf("weights: container: %w", err)
	}
	w.index, w.notes = append(w.index, entry...), append(w.notes, note)
	body := append(entry, note...)
	w.pending = binary.LittleEndian.AppendUint32(w.pending, uint32(len(entry)))
	w.pending = binary.LittleEndian.AppendUint32(w.pending, uint32(len(note)))
	w.pending = binary.LittleEndian.AppendUint32(w.pending, crc32.ChecksumIEEE(body))
	w.pending = append(w.pending, body...)
	w.written += size
	if w.written >= flushBytes || time.Since(w.flushed) >= w.every {
		return w.flush()
	}
	return nil
}

func (w *ContainerWriter) nextFile() error {
	if w.data != nil {
		if err := errors.Join(w.flush(), w.data.Close()); err != nil {
			return err
		}
	}
	name := dataName(len(w.names))
	var err error
	if w.data, err = w.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644); err != nil {
		return err
	}
	if _, err := w.data.WriteAt(dataFileHeader(w.id, len(w.names)), 0); err != nil {
		return err
	}
	w.names, w.sizes = append(w.names, name), append(w.sizes, dataHeader)
	return nil
}

// flush brings the data to the disk, then the journal that speaks of it.
func (w *ContainerWriter) flush() error {
	if w.data != nil {
		if err := w.data.Sync(); err != nil {
			return fmt.Errorf("weights: container: %w", err)
		}
	}
	if _, err := w.journal.Write(w.pending); err != nil {
		return fmt.Errorf("weights: container: %w", err)
	}
	w.pending, w.written, w.flushed = w.pending[:0], 0, time.Now()
	if err := w.journal.Sync(); err != nil {
		return fmt.Errorf("weights: container: %w", err)
	}
	return nil
}

// Finish writes the side files and the index, after which the folder is a checkpoint. sides are small files by name.
func (w *ContainerWriter) Finish(meta map[string]string, sides map[string][]byte) error {
	if err := w.flush(); err != nil {
		return err
	}
	body := bytes.Clone(w.id[:])
	number := func(n int) { body = binary.LittleEndian.AppendUint32(body, uint32(n)) }
	number(len(meta))
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		body = appendText(appendText(body, 2, key), 4, meta[key])
	}
	number(len(sides))
	for _, name := range slices.Sorted(maps.Keys(sides)) {
		sum := sha256.Sum256(sides[name])
		body = append(binary.LittleEndian.AppendUint64(appendText(body, 2, name), uint64(len(sides[name]))), sum[:]...)
		if err := w.write(name, sides[name]); err != nil {
			return fmt.Errorf("weights: container: %w", err)
		}
	}
	number(len(w.names))
	for i, name := range w.names {
		body = binary.LittleEndian.AppendUint64(appendText(body, 2, name), uint64(w.sizes[i]))
	}
	number(len(w.notes))
	body = append(body, w.index...)
	sum := sha256.Sum256(body)
	index := append([]byte(indexMagic), binary.LittleEndian.AppendUint32(nil, ContainerVersion)...)
	index = binary.LittleEndian.AppendUint32(index, canon.LayoutVersion)
	index = binary.LittleEndian.AppendUint64(index, uint64(indexHeader+len(body)))
	index = append(append(index, sum[:]...), make([]byte, 8)...)
	index = append(index, body...)
	if _, _, _, err := parseIndex(index); err != nil { // too many tensors or names that no reader would take
		return err
	}
	if err := w.write(ContainerIndex, index); err != nil {
		return fmt.Errorf("weights: container: %w", err)
	}
	if err := w.root.Remove(journalName); err != nil {
		return fmt.Errorf("weights: container: %w", err)
	}
	return nil
}

// write makes a file appear whole under its name.
func (w *ContainerWriter) write(name string, data []byte) error {
	const temporary = "writing.tmp"
	f, err := w.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return w.root.Rename(temporary, name)
}

// Close releases the files. What was not finished can be gone on with.
func (w *ContainerWriter) Close() error {
	var errs []error
	if w.data != nil {
		errs = append(errs, w.flush(), w.data.Close())
	}
	if w.journal != nil {
		errs = append(errs, w.journal.Close())
	}
	return errors.Join(append(errs, w.root.Close())...)
}
