// Package memory says how much memory this process may use.
package memory

import (
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Limits is what a process may use, in bytes; 0 = not known.
type Limits struct {
	Total     int64 // of the machine, or of the control group with the least
	Available int64 // of that, not in use; cached file pages count as available
	Grouped   bool  // a control group limits it rather than the machine
}

// Available is how many bytes this process may still take; 0 = not known.
func Available() int64 { return Read(os.DirFS("/")).Available }

// Read reads /proc and the control groups (version 2, and 1 where it is mounted the usual way) below root. In a container the
// machine's own numbers lie: the smallest limit on the way up the group's path counts, and so does the least that any of them
// has left, for others of a larger group may use it. A container may see its own group as the
// root of the mount, or by its path on the host, which it cannot see: both are looked at.
func Read(root fs.FS) Limits {
	l := Limits{Total: math.MaxInt64, Available: math.MaxInt64}
	if kib, ok := field(root, "proc/meminfo", "MemTotal:"); ok {
		l.Total = kib << 10
	}
	if kib, ok := field(root, "proc/meminfo", "MemAvailable:"); ok {
		l.Available = kib << 10
	}
	machine := l.Total
	group := func(folder, limitFile, usedFile, cached, shared string) {
		limit, ok := number(root, path.Join(folder, limitFile))
		if !ok || limit >= machine { // "none" is a number beyond any machine's in version 1
			return
		}
		if limit < l.Total {
			l.Total, l.Grouped = limit, true
		}
		if used, ok := number(root, path.Join(folder, usedFile)); ok {
			// The group is charged for cached file pages, which give way, but for those of files that lie in memory.
			files, _ := field(root, path.Join(folder, "memory.stat"), cached)
			held, _ := field(root, path.Join(folder, "memory.stat"), shared)
			l.Available = min(l.Available, max(1, limit-used+max(0, files-held)))
		}
	}
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			switch {
			case parts[0] == "0" && parts[1] == "":
				group(path.Join("sys/fs/cgroup", at), "memory.max", "memory.current", "file", "shmem")
			case strings.Contains(","+parts[1]+",", ",memory,"):
				group(path.Join("sys/fs/cgroup/memory", at), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem")
			}
			if at == "/" {
				break
			}
		}
	}
	if l.Total == math.MaxInt64 {
		l.Total = 0
	}
	if l.Available == math.MaxInt64 {
		l.Available = l.Total
	}
	if l.Total > 0 {
		l.Available = min(l.Available, l.Total)
	}
	return l
}

// number reads a file that holds one; "max" is none.
func number(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && n > 0
}

// field reads the number behind a word at the start of a line.
func field(root fs.FS, name, word string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if parts := strings.Fields(line); len(parts) >= 2 && parts[0] == word {
			n, err := strconv.ParseInt(parts[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
