package canon

import (
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// core is one processor of a physical core, with the number of the memory node that it is near to.
type core struct{ cpu, node int }

// cores lists one processor of each physical core, by node and number, of the processors that allowed names. Siblings share
// a core's arithmetic, so the first usable one stands for all. system is /sys/devices/system; what it does not tell is
// taken as a core of its own, on node 0.
func cores(system fs.FS, allowed []int) []core {
	nodes := map[int]int{}
	found, _ := fs.Glob(system, "node/node[0-9]*/cpulist")
	for _, name := range found {
		node, _ := strconv.Atoi(strings.TrimPrefix(path.Base(path.Dir(name)), "node"))
		for _, cpu := range readList(system, name) {
			nodes[cpu] = node
		}
	}
	var out []core
	for _, cpu := range allowed {
		siblings := readList(system, "cpu/cpu"+strconv.Itoa(cpu)+"/topology/thread_siblings_list")
		if slices.ContainsFunc(siblings, func(s int) bool { return s < cpu && slices.Contains(allowed, s) }) {
			continue
		}
		out = append(out, core{cpu, nodes[cpu]})
	}
	slices.SortStableFunc(out, func(a, b core) int { return a.node - b.node })
	return out
}

// readList reads numbers as the kernel lists them, "0-3,8"; empty if there is no such file.
func readList(system fs.FS, name string) []int {
	text, err := fs.ReadFile(system, name)
	if err != nil {
		return nil
	}
	var out []int
	for _, field := range strings.Split(strings.TrimSpace(string(text)), ",") {
		first, last, isRange := strings.Cut(field, "-")
		from, err := strconv.Atoi(first)
		to := from
		if err == nil && isRange {
			to, err = strconv.Atoi(last)
		}
		if err != nil || to-from > 1<<16 {
			return nil
		}
		for n := from; n <= to; n++ {
			out = append(out, n)
		}
	}
	return out
}

// ownCores are the cores that this process may use, by its affinity (taskset, cpuset).
func ownCores() []core {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var allowed []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			allowed = append(allowed, cpu)
		}
	}
	return cores(os.DirFS("/sys/devices/system"), allowed)
}

// defaultThreads is one for each core, or fewer where a control group gives the process less processor time than that.
func defaultThreads(own []core) int { return max(min(len(own), runtime.GOMAXPROCS(0)), 1) }
