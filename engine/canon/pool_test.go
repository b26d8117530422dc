package canon

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// thread is a C thread of this process as the kernel describes it.
type thread struct{ dir string }

// poolOf starts a pool and returns its threads, by number, all of them past their start.
func poolOf(t *testing.T, threads int, own []core) (*Pool, []thread) {
	t.Helper()
	before := map[string]bool{}
	for _, e := range must(os.ReadDir("/proc/self/task")) {
		before[e.Name()] = true
	}
	pool := must(newPool(threads, Portable, own))
	t.Cleanup(pool.Close)
	must(pool.ReadProbe(1, 1)) // every thread takes part
	found := make([]thread, pool.Threads())
	for _, e := range must(os.ReadDir("/proc/self/task")) {
		th := thread{"/proc/self/task/" + e.Name()}
		var n int
		if _, err := fmt.Sscanf(th.read("comm"), "canon-%d", &n); err == nil && !before[e.Name()] {
			found[n] = th
		}
	}
	return pool, found
}

func (th thread) read(file string) string {
	text, _ := os.ReadFile(th.dir + "/" + file)
	return strings.TrimSpace(string(text))
}

// processors is where the thread may run.
func (th thread) processors() string {
	_, rest, _ := strings.Cut(th.read("status"), "Cpus_allowed_list:")
	list, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(list)
}

// field is a number of /proc/.../stat, counted as proc(5) does; the second one, a name in parentheses, has no spaces here.
func (th thread) field(n int) int { return must(strconv.Atoi(strings.Fields(th.read("stat"))[n-1])) }

func (th thread) faults() int  { return th.field(10) }
func (th thread) asleep() bool { return strings.Fields(th.read("stat"))[2] == "S" }

// restrict lets the calling goroutine's thread, and what it starts, run on some processors only.
func restrict(t *testing.T, cpus ...int) {
	t.Helper()
	runtime.LockOSThread()
	var old, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		t.Fatal(err)
	}
	for _, c := range cpus {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetaffinity(0, &old); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
}

func TestOneThreadForEachCoreIsPinnedToIt(t *testing.T) {
	own := ownCores()
	pool, threads := poolOf(t, len(own), own)
	if pool.Threads() != len(own) {
		t.Fatalf("%d threads for %d cores", pool.Threads(), len(own))
	}
	for i, th := range threads {
		if got := th.processors(); got != fmt.Sprint(own[i].cpu) {
			t.Errorf("thread %d may run on %s, its core is processor %d", i, got, own[i].cpu)
		}
	}
}

func TestOtherNumbersOfThreadsStayFree(t *testing.T) {
	own := ownCores()
	everywhere := thread{"/proc/self/task/" + fmt.Sprint(unix.Gettid())}.processors()
	for _, n := range []int{len(own) - 1, len(own) + 1} {
		if n == 0 {
			continue
		}
		_, threads := poolOf(t, n, own)
		for i, th := range threads {
			if got := th.processors(); got != everywhere {
				t.Errorf("thread %d of %d may run on %s, the process on %s", i, n, got, everywhere)
			}
		}
	}
}

// The same holds for a cpuset of a control group, which the kernel reports in the same way.
func TestThreadsKeepToTheProcessorsOfTheProcess(t *testing.T) {
	last := ownCores()[len(ownCores())-1].cpu
	restrict(t, last)
	for _, n := range []int{0, 1, 3} {
		pool, threads := poolOf(t, n, ownCores())
		if want := max(n, 1); pool.Threads() != want {
			t.Errorf("asked for %d threads on one processor: %d, want %d", n, pool.Threads(), want)
		}
		for i, th := range threads {
			if got := th.processors(); got != fmt.Sprint(last) {
				t.Errorf("thread %d of %d may run on %s, the process on %d", i, n, got, last)
			}
		}
	}
}

func TestDefaultThreadsFollowProcessorTime(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for _, c := range []struct {
		cores []core
		want  int
	}{{nil, 1}, {[]core{{0, 0}}, 1}, {[]core{{0, 0}, {1, 0}}, 2}, {[]core{{0, 0}, {1, 0}, {2, 0}}, 2}} {
		if got := defaultThreads(c.cores); got != c.want {
			t.Errorf("%d cores and the time of 2: %d threads, want %d", len(c.cores), got, c.want)
		}
	}
}

func TestIdleThreadsSleep(t *testing.T) {
	_, threads := poolOf(t, 3, nil)
	for i, th := range threads {
		for tries := 0; !th.asleep(); tries++ {
			if tries == 5000 {
				t.Fatalf("thread %d is in state %s", i, strings.Fields(th.read("stat"))[2])
			}
			time.Sleep(time.Millisecond)
		}
	}
	time.Sleep(5 * time.Millisecond) // one that goes on looking for work would be seen awake or use time
	before := make([]string, len(threads))
	for i, th := range threads {
		before[i] = th.read("schedstat") // time on a processor, time waiting for one, turns
	}
	time.Sleep(20 * time.Millisecond)
	for i, th := range threads {
		if now := th.read("schedstat"); now != before[i] || !th.asleep() {
			t.Errorf("idle thread %d went from %s to %s", i, before[i], now)
		}
	}
}

// On a machine with several memory nodes a page lies on the node of the thread that writes to it first. This machine need not
// have two: each thread's page faults tell what it has written to.
func TestEachThreadIsTheFirstToWriteToItsPart(t *testing.T) {
	own := []core{{ownCores()[0].cpu, 0}, {ownCores()[0].cpu, 0}, {ownCores()[0].cpu, 1}, {ownCores()[0].cpu, 1}}
	pool, threads := poolOf(t, len(own), own)
	if pool.nodes != 2 {
		t.Fatalf("%d nodes", pool.nodes)
	}
	l := Layout{Form: Int8, ScaleForm: F16, Rows: 4096, Cols: 1024, Group: 64} // 4 MiB of codes, 128 KiB of scales
	block := must(unix.Mmap(-1, 0, int(l.Bytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))
	defer unix.Munmap(block)
	_ = unix.Madvise(block, unix.MADV_NOHUGEPAGE)
	var a Arena
	before := make([]int, len(threads))
	count := func(what string, want int) {
		t.Helper()
		got := make([]int, len(threads))
		for i, th := range threads {
			got[i] = th.faults() - before[i]
			before[i] += got[i]
		}
		// A few belong to the threads themselves; under a sanitizer each page has some of its own.
		if least, most := slices.Min(got), slices.Max(got); least < want || most > least+8 || want == 0 && most > 8 {
			t.Errorf("%s: threads were the first on %v pages, want %d each", what, got, want)
		}
	}
	for i, th := range threads {
		before[i] = th.faults()
	}
	a.Settle(l, block)
	count("no pool", 0)
	a.Near(pool)
	a.Settle(l, block)
	count("two nodes", (4<<20+128<<10)/4096/4)
	a.Settle(l, block)
	count("pages that are there", 0)

	var b Arena
	b.Near(must(newPool(1, Portable, own[:1])))
	if b.near != nil {
		t.Error("one node: pages are not left to whoever packs")
	}
}

// Chunks of a phase are dealt out node by node, so a step on two nodes does the same work in another order.
func TestNodesDoNotChangeAStep(t *testing.T) {
	const hidden, inner, rows = 96, 160, 5
	run := func(own []core) [][]float32 {
		pool := must(newPool(len(own), Portable, own))
		defer pool.Close()
		a := newArena(t)
		a.Near(pool)
		r := rand.New(rand.NewPCG(3, 5))
		p := NewProgram(pool, a, Limits{Rows: rows, Sequences: 1, Pages: 1})
		x, y, q, k, z := p.Buffer(hidden), p.Buffer(hidden), p.Buffer(hidden), p.Buffer(16), p.Buffer(4)
		x0 := make([][]float32, rows)
		for i := range x0 {
			x0[i] = normals(r, hidden, 1)
		}
		p.Embed(x, table(a, x0))
		pack := func(n int) *Matrix { return must(a.Pack(weight(r, Int4, n, hidden, 32, F16))) }
		p.MatMulN(x, Product{q, pack(hidden), nil}, Product{k, pack(16), nil}, Product{z, pack(4), nil})
		experts := must(a.NewExpertTable(4))
		record := func() *Record {
			b := newBlock(r, Int4, hidden, inner, 32)
			return must(a.PackRecord(b.gate, b.up, b.down))
		}
		for e := range 4 {
			if err := experts.Set(e, record()); err != nil {
				t.Fatal(err)
			}
		}
		p.MoE(y, q, p.Router(z, RouterSpec{Experts: 4, TopK: 2}), experts, record())
		if err := p.Build(); err != nil {
			t.Fatal(err)
		}
		if err := p.Run(rowsStep(rows)); err != nil {
			t.Fatal(err)
		}
		var out [][]float32
		for i := range rows {
			out = append(out, append(append([]float32(nil), y.Row(i)...), k.Row(i)...))
		}
		return out
	}
	cpu := ownCores()[0].cpu
	want := run([]core{{cpu, 0}})
	for _, own := range [][]core{{{cpu, 0}, {cpu, 1}}, {{cpu, 0}, {cpu, 1}, {cpu, 1}}, {{cpu, 0}, {cpu, 2}, {cpu, 5}}} {
		for i, row := range run(own) {
			sameRow(t, fmt.Sprintf("%v, row %d", own, i), row, want[i])
		}
	}
}

// The whole engine runs under ThreadSanitizer in `make tsan`; this is its pool alone, in seconds.
func TestPoolHasNoDataRaces(t *testing.T) {
	for _, tool := range []string{"gcc", "setarch"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("NOT TESTED HERE: %v", err)
		}
	}
	for _, c := range []struct{ what, flag, want string }{{"the pool", "-UPLANTED", "done"}, {"a planted race", "-DPLANTED", "WARNING: ThreadSanitizer: data race"}} {
		program := filepath.Join(t.TempDir(), "race")
		build := exec.Command("gcc", "-std=c11", "-O1", "-g", "-D_GNU_SOURCE", "-fsanitize=thread", c.flag, "-I.", "pool.c", "testdata/race.c", "-o", program, "-lpthread")
		if out, err := build.CombinedOutput(); err != nil && strings.Contains(string(out), "tsan") {
			t.Skipf("NOT TESTED HERE: %s", out)
		} else if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		out, err := exec.Command("setarch", "-R", program).CombinedOutput() // it knows nothing of widely scattered addresses
		if !strings.Contains(string(out), c.want) || (err == nil) != (c.want == "done") {
			t.Errorf("%s: %v, want %q:\n%s", c.what, err, c.want, out)
		}
	}
}
