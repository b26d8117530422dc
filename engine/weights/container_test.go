package weights

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"covey/engine/canon"
)

// writeContainer makes a small container and returns its folder.
func writeContainer(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "c")
	w, err := OpenContainerWriter(dir, [32]byte{7}, 1<<20, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	layouts := []canon.Layout{{Form: canon.BF16, Rows: 4, Cols: 8}, {Form: canon.Int4, ScaleForm: canon.F16, Rows: 20, Cols: 40, Group: 32, Offset: canon.OffsetZeros}}
	for i, name := range []string{"a", "b"} {
		if err := w.Append([]PackedTensor{{Name: name + ".weight", Layout: layouts[i]}}, bytes.Repeat([]byte{byte(i + 1)}, int(layouts[i].Bytes())), []byte("note")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(map[string]string{"architecture": "x"}, map[string][]byte{"config.json": []byte(`{"model_type": "x"}`)}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestContainerReadsBackAsWritten(t *testing.T) {
	c, err := Open(writeContainer(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Container()["architecture"] != "x" || len(c.Names()) != 2 || !c.HasModule("b") || c.HasModule("c") {
		t.Errorf("%v, %v", c.Container(), c.Names())
	}
	var s Scratch
	src, err := c.Source("b", 20, 40, &s)
	if err != nil || src.Form != canon.Int4 || len(src.Zeros) != 40 || src.Zeros[0] != 2 {
		t.Errorf("%+v, %v", src, err)
	}
	if _, err := c.Source("b", 20, 41, &s); err == nil || !strings.Contains(err.Error(), "shape [20 40]") {
		t.Errorf("another shape: %v", err)
	}
	if _, err := c.Source("c", 1, 1, &s); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a missing module: %v", err)
	}
}

// resealed gives an index whose body was changed a right length and hash.
func resealed(index []byte) []byte {
	out := bytes.Clone(index)
	binary.LittleEndian.PutUint64(out[16:], uint64(len(out)))
	sum := sha256.Sum256(out[indexHeader:])
	copy(out[24:], sum[:])
	return out
}

func TestBadContainersAreRefusedByName(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(writeContainer(t), ContainerIndex))
	if err != nil {
		t.Fatal(err)
	}
	find := func(b []byte, what string) int {
		at := bytes.Index(b, []byte(what))
		if at < 0 {
			t.Fatalf("%q is not in the index", what)
		}
		return at
	}
	for name, test := range map[string]struct {
		change func(b []byte) []byte
		want   string
	}{
		"other magic":      {func(b []byte) []byte { b[0] = 'X'; return b }, "not the index of a container"},
		"later version":    {func(b []byte) []byte { b[8] = 9; return b }, "version 9 of the format"},
		"other layout":     {func(b []byte) []byte { b[12] = 9; return b }, "layout 9"},
		"cut":              {func(b []byte) []byte { return b[:len(b)-1] }, "it was written with"},
		"flipped":          {func(b []byte) []byte { b[len(b)-3] ^= 1; return b }, "hash does not match"},
		"cut, resealed":    {func(b []byte) []byte { return resealed(b[:len(b)-1]) }, "ends in the middle of an entry"},
		"longer, resealed": {func(b []byte) []byte { return resealed(append(b, 0)) }, "1 bytes behind the last record"},
		"unknown form":     {func(b []byte) []byte { b[find(b, "a.weight")+8] = 99; return resealed(b) }, `tensor "a.weight"`},
		"too large":        {func(b []byte) []byte { b[find(b, "a.weight")+14] = 1; return resealed(b) }, `takes`},
		"twice":            {func(b []byte) []byte { b[find(b, "b.weight")] = 'a'; return resealed(b) }, "listed twice"},
		"path":             {func(b []byte) []byte { copy(b[find(b, "data-00001"):], "../../../x"); return resealed(b) }, "data file"},
		"many records": {func(b []byte) []byte {
			at := find(b, "data-00001.covey") + 16 + 8
			binary.LittleEndian.PutUint32(b[at:], 1<<30)
			return resealed(b)
		}, "records, more than the"},
		"outside the file": {func(b []byte) []byte {
			at := find(b, "data-00001.covey") + 16 + 8 + 4
			binary.LittleEndian.PutUint64(b[at+4:], 1<<40)
			return resealed(b)
		}, "record of 4096 bytes at byte 1099511627776"},
	} {
		dir := writeContainer(t)
		if err := os.WriteFile(filepath.Join(dir, ContainerIndex), test.change(bytes.Clone(good)), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Open(dir)
		var e *FormatError
		if !errors.As(err, &e) || e.File != ContainerIndex || e.Offset < 0 || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q with an offset", name, err, test.want)
		}
		if err == nil {
			c.Close()
		}
	}
	for name, change := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.Truncate(path, 4096) },
		"of another container": func(path string) error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			data[20] ^= 1
			return os.WriteFile(path, data, 0o600)
		},
		"missing": os.Remove,
	} {
		dir := writeContainer(t)
		if err := change(filepath.Join(dir, "data-00001.covey")); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "data-00001.covey") {
			t.Errorf("a data file %s: %v", name, err)
		}
	}
}

func TestHostileIndexCostsLittle(t *testing.T) {
	// As many one-row tensors as an index may hold.
	body := make([]byte, 32)
	le := binary.LittleEndian
	body = le.AppendUint32(le.AppendUint32(body, 0), 0)
	body = le.AppendUint64(appendText(le.AppendUint32(body, 1), 2, "d"), 1<<40)
	at := len(body)
	body = le.AppendUint32(body, 0)
	n := 0
	for ; n < maxPacked+1 && len(body) < maxIndex-200; n++ {
		body = le.AppendUint64(le.AppendUint32(body, 0), uint64(dataHeader+n*sector))
		body = le.AppendUint16(le.AppendUint64(body, sector), 1)
		var name [4]byte
		le.PutUint32(name[:], uint32(n))
		body = appendTensor(body, PackedTensor{Name: string(name[:]), Layout: canon.Layout{Form: canon.F32, Rows: 1, Cols: 1}})
	}
	le.PutUint32(body[at:], uint32(n))
	index := append(append([]byte(indexMagic), make([]byte, indexHeader-8)...), body...)
	le.PutUint32(index[8:], ContainerVersion)
	le.PutUint32(index[12:], canon.LayoutVersion)
	index = resealed(index)
	start := time.Now()
	_, _, _, err := parseIndex(index)
	t.Logf("%d records in %d bytes: %v", n, len(index), time.Since(start))
	if err == nil || !strings.Contains(err.Error(), "more than the") {
		t.Errorf("error is %v", err)
	}
}

func FuzzContainerIndex(f *testing.F) {
	index, err := os.ReadFile(filepath.Join(writeContainer(f), ContainerIndex))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(index[indexHeader:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		b := append(bytes.Clone(index[:indexHeader]), body...)
		in, names, sizes, err := parseIndex(resealed(b))
		if err != nil {
			var e *FormatError
			if !errors.As(err, &e) {
				t.Fatalf("%v is no format error", err)
			}
			return
		}
		for _, r := range in.records {
			file, offset := int(r.offset>>48), r.offset&(1<<48-1)
			if file >= len(names) || offset+r.size > sizes[file] || int(r.first+r.count) > len(in.tensors) {
				t.Fatalf("record %+v lies outside its file", r)
			}
			end := offset
			for _, x := range in.tensors[r.first : r.first+r.count] {
				if x.begin != end {
					t.Fatalf("tensor %+v leaves a gap", x)
				}
				end += x.Layout.Bytes()
			}
			if end > offset+r.size {
				t.Fatalf("record %+v overflows", r)
			}
		}
	})
}
