package memory

import (
	"runtime"
	"testing"
	"testing/fstest"
)

// file is a file of a made-up machine.
func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

const meminfo = "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    8388608 kB\n"

func TestMemoryIsTheSmallestLimitOnTheWayUp(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name string
		root fstest.MapFS
		want Limits
	}{
		{"nothing known", fstest.MapFS{}, Limits{}},
		{"bare machine", fstest.MapFS{"proc/meminfo": file(meminfo)}, Limits{Total: 16 * gib, Available: 8 * gib}},
		{"no limit in the group", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/app\n"), "sys/fs/cgroup/app/memory.max": file("max\n"),
		}, Limits{Total: 16 * gib, Available: 8 * gib}},
		{"limit of a parent group", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/pod/app\n"), "sys/fs/cgroup/pod/app/memory.max": file("max\n"),
			"sys/fs/cgroup/pod/memory.max": file("2147483648\n"), "sys/fs/cgroup/pod/memory.current": file("1073741824\n"),
		}, Limits{Total: 2 * gib, Available: gib, Grouped: true}},
		{"cached files give way", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/app\n"), "sys/fs/cgroup/app/memory.max": file("2147483648\n"),
			"sys/fs/cgroup/app/memory.current": file("2147483648\n"), "sys/fs/cgroup/app/memory.stat": file("anon 1073741824\nfile 1073741824\n"),
		}, Limits{Total: 2 * gib, Available: gib, Grouped: true}},
		{"files in memory do not give way", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/app\n"), "sys/fs/cgroup/app/memory.max": file("3221225472\n"),
			"sys/fs/cgroup/app/memory.current": file("3221225472\n"), "sys/fs/cgroup/app/memory.stat": file("file 2147483648\nshmem 1073741824\n"),
		}, Limits{Total: 3 * gib, Available: gib, Grouped: true}},
		{"neighbours in a larger group have taken what it allows", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/pod/app\n"),
			"sys/fs/cgroup/pod/app/memory.max": file("2147483648\n"), "sys/fs/cgroup/pod/app/memory.current": file("1\n"),
			"sys/fs/cgroup/pod/memory.max": file("4294967296\n"), "sys/fs/cgroup/pod/memory.current": file("3221225472\n"),
		}, Limits{Total: 2 * gib, Available: gib, Grouped: true}},
		{"container whose group is the root", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("4294967296\n"),
		}, Limits{Total: 4 * gib, Available: 4 * gib, Grouped: true}},
		{"version 1", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("5:cpu,memory:/app\n"),
			"sys/fs/cgroup/memory/app/memory.limit_in_bytes": file("1073741824"), "sys/fs/cgroup/memory/app/memory.usage_in_bytes": file("2147483648"),
		}, Limits{Total: gib, Available: 1, Grouped: true}},
		{"version 1 in a container, its path is the host's", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("9:memory:/docker/0a1b\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("2147483648"), "sys/fs/cgroup/memory/memory.usage_in_bytes": file("1610612736"),
			"sys/fs/cgroup/memory/memory.stat": file("cache 1\ntotal_cache 536870912\n"),
		}, Limits{Total: 2 * gib, Available: gib, Grouped: true}},
		{"version 1 without a limit", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("9:memory:/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712"),
		}, Limits{Total: 16 * gib, Available: 8 * gib}},
	} {
		if got := Read(c.root); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestThisMachineHasMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says")
	}
	if n := Available(); n < 1<<20 || n > 1<<50 {
		t.Errorf("%d bytes available", n)
	}
}
