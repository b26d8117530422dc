package doctor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"covey/engine/memory"
)

// file is a file of a made-up machine.
func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

func TestMemoryFindingWeighsTheModel(t *testing.T) {
	const gib = 1 << 30
	cases := []struct {
		m       memory.Limits
		weights int64
		want    Status
	}{
		{memory.Limits{}, 100 * gib, OK},
		{memory.Limits{Total: 8 * gib, Available: 4 * gib}, gib, OK},
		{memory.Limits{Total: 8 * gib, Available: gib}, gib, Warn},
		{memory.Limits{Total: 8 * gib, Available: 8 * gib}, 9 * gib, Fail},
		{memory.Limits{Total: 8 * gib, Available: 1}, 0, OK},
	}
	for _, c := range cases {
		if got := examineMemory(c.m, c.weights); got.Status != c.want || (c.want != OK) != (got.Hint != "") {
			t.Errorf("%+v for %d: %+v, want %s", c.m, c.weights, got, c.want)
		}
	}
}

func TestProcessorIsReadFromCPUInfo(t *testing.T) {
	root := fstest.MapFS{"proc/cpuinfo": file("processor : 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx avx2 fma avx512foo\n\nprocessor : 1\n")}
	if name, features := processor(root); name != "Some CPU" || strings.Join(features, " ") != "avx2 fma" {
		t.Errorf("got %q %v", name, features)
	}
}

func TestDataFolderFindings(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "file")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := t.TempDir()
	if err := os.WriteFile(filepath.Join(open, "token"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir()
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	if got, want := examineData(shared).Hint, "chmod go-w "+shared; !strings.HasSuffix(got, want) {
		t.Errorf("a folder that others may write: hint %q, want %q", got, want)
	}
	for _, c := range []struct {
		dir  string
		want Status
	}{{shared, Warn}, {dir, OK}, {filepath.Join(dir, "new", "deep"), OK}, {plain, Fail}, {"", Fail}, {open, Warn}} {
		if got := examineData(c.dir); got.Status != c.want {
			t.Errorf("%q: %+v, want %s", c.dir, got, c.want)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("the examination left %v behind", entries)
	}
}

func TestPortFindings(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close() // another program, not speaking HTTP
		}
	}()
	if got := examinePort(context.Background(), l.Addr().String()); got.Status != Fail || got.Hint == "" {
		t.Errorf("a used port: %+v", got)
	}
	if got := examinePort(context.Background(), "127.0.0.1:0"); got.Status != OK {
		t.Errorf("any free port: %+v", got)
	}
}

func TestAFolderWithoutAModelFailsWithTheRemedy(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		if got, _ := examineModel(Options{Model: dir}); got.Status != Fail || got.Hint == "" {
			t.Errorf("%q: %+v", dir, got)
		}
	}
}

func TestWorst(t *testing.T) {
	for _, c := range []struct {
		in   []Finding
		want Status
	}{
		{nil, OK}, {[]Finding{{Status: OK}, {Status: Warn}}, Warn}, {[]Finding{{Status: Fail}, {Status: Warn}}, Fail},
	} {
		if got := Worst(c.in); got != c.want {
			t.Errorf("%v: %s, want %s", c.in, got, c.want)
		}
	}
}
