package doctor

import (
	"bufio"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// memory is what this process may use. limit 0 = not known.
type memory struct {
	limit, available int64
	limited          bool // by a control group rather than by the machine
}

// memoryFiles reads /proc and the control groups (version 2, and 1 where it is mounted the usual way) below root. In a
// container the machine's own numbers lie: the smallest limit on the way up the group's path counts.
func memoryFiles(root fs.FS) memory {
	m := memory{limit: math.MaxInt64, available: math.MaxInt64}
	if text, err := fs.ReadFile(root, "proc/meminfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 2 {
				continue
			}
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				continue
			}
			switch fields[0] {
			case "MemTotal:":
				m.limit = kib << 10
			case "MemAvailable:":
				m.available = kib << 10
			}
		}
	}
	group := func(folder, limitFile, usedFile string) {
		limit, ok := number(root, path.Join(folder, limitFile))
		if !ok || limit >= m.limit {
			return
		}
		m.limit, m.limited = limit, true
		if used, ok := number(root, path.Join(folder, usedFile)); ok {
			m.available = min(m.available, max(0, limit-used))
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
				group(path.Join("sys/fs/cgroup", at), "memory.max", "memory.current")
			case strings.Contains(","+parts[1]+",", ",memory,"):
				group(path.Join("sys/fs/cgroup/memory", at), "memory.limit_in_bytes", "memory.usage_in_bytes")
			}
			if at == "/" {
				break
			}
		}
	}
	if m.limit == math.MaxInt64 {
		return memory{}
	}
	m.available = min(m.available, m.limit)
	return m
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

// processor reads the name and those instruction sets that kernels are written for from /proc/cpuinfo below root.
func processor(root fs.FS) (name string, features []string) {
	name = "unknown processor"
	file, err := root.Open("proc/cpuinfo")
	if err != nil {
		return name, nil
	}
	defer file.Close()
	wanted := []string{"avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp"}
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		key, value, _ := strings.Cut(scanner.Text(), ":")
		switch strings.TrimSpace(key) {
		case "model name":
			name = strings.TrimSpace(value)
		case "flags", "Features":
			has := " " + strings.TrimSpace(value) + " "
			for _, w := range wanted {
				if strings.Contains(has, " "+w+" ") {
					features = append(features, w)
				}
			}
			return name, features // every core says the same
		}
	}
	return name, features
}
