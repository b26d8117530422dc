package doctor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// file is a file of a made-up machine.
func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

const meminfo = "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n"

func TestMemoryIsTheSmallestLimitOnTheWayUp(t *testing.T) {
	const gib = 1 << 30
	cases := []struct {
		name string
		root fstest.MapFS
		want memory
	}{
		{"nothing known", fstest.MapFS{}, memory{}},
		{"bare machine", fstest.MapFS{"proc/meminfo": file(meminfo)}, memory{limit: 16 * gib, available: 8 * gib}},
		{"no limit in the group", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/app\n"), "sys/fs/cgroup/app/memory.max": file("max\n"),
		}, memory{limit: 16 * gib, available: 8 * gib}},
		{"limit of a parent group", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/pod/app\n"), "sys/fs/cgroup/pod/app/memory.max": file("max\n"),
			"sys/fs/cgroup/pod/memory.max": file("2147483648\n"), "sys/fs/cgroup/pod/memory.current": file("1073741824\n"),
		}, memory{limit: 2 * gib, available: gib, limited: true}},
		{"container whose group is the root", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("4294967296\n"),
		}, memory{limit: 4 * gib, available: 4 * gib, limited: true}},
		{"version 1", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("5:cpu,memory:/app\n"),
			"sys/fs/cgroup/memory/app/memory.limit_in_bytes": file("1073741824"), "sys/fs/cgroup/memory/app/memory.usage_in_bytes": file("2147483648"),
		}, memory{limit: gib, available: 0, limited: true}},
	}
	for _, c := range cases {
		if got := memoryFiles(c.root); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestMemoryFindingWeighsTheModel(t *testing.T) {
	const gib = 1 << 30
	cases := []struct {
		m       memory
		weights int64
		want    Status
	}{
		{memory{}, 100 * gib, OK},
		{memory{limit: 8 * gib, available: 4 * gib}, gib, OK},
		{memory{limit: 8 * gib, available: gib}, gib, Warn},
		{memory{limit: 8 * gib, available: 8 * gib}, 9 * gib, Fail},
		{memory{limit: 8 * gib, available: 1}, 0, OK},
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
	for _, c := range []struct {
		dir  string
		want Status
	}{{dir, OK}, {filepath.Join(dir, "new", "deep"), OK}, {plain, Fail}, {"", Fail}, {open, Warn}} {
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
