package engine

import (
	"math"
	"os"
	"strconv"
	"strings"
)

// memoryLimit is the memory that this process may use in bytes: what the system has available, or less where a control
// group says so. 0 = not known on this system.
func memoryLimit() int64 {
	limit := int64(math.MaxInt64)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		limit = min(limit, available(string(text)))
	}
	if text, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 { // "max" is no number
			limit = min(limit, n)
		}
	}
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// available finds MemAvailable in /proc/meminfo, whose lines read "Name:  123 kB".
func available(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "MemAvailable:" {
			if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return n << 10
			}
		}
	}
	return math.MaxInt64
}
