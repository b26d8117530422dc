package model

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// availableMemory is how many bytes this process may still take: what the kernel calls available, or less inside a
// control group with a limit of its own. 0 = unknown.
func availableMemory() int64 {
	available := field("/proc/meminfo", "MemAvailable:") << 10
	const group = "/sys/fs/cgroup/"
	limit, used := number(group+"memory.max"), number(group+"memory.current")
	if limit <= 0 {
		return available
	}
	// The group is charged for cached file pages, which give way.
	left := max(limit-used+field(group+"memory.stat", "file"), 1)
	if available == 0 {
		return left
	}
	return min(available, left)
}

// number reads a file that holds one number; 0 if it does not ("max", or no such file).
func number(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// field reads the number behind a word at the start of a line; 0 if there is none.
func field(path, word string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if parts := strings.Fields(lines.Text()); len(parts) >= 2 && parts[0] == word {
			n, err := strconv.ParseInt(parts[1], 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}
