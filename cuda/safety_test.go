//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"covey/engine/canon"
	"covey/engine/model"
	"covey/engine/weights"
)

func emulatedOnly(t *testing.T) {
	t.Helper()
	if realDevice() {
		t.Skip("needs the emulated driver")
	}
}

// small builds a program that goes through every kind of driver call: weights, experts, a cache, choices.
func small(t testing.TB) *rig {
	g := newRig(t, canon.Limits{Rows: 4, Pages: 2})
	x, z, q, y := g.input(32, false), g.input(4, false), g.p.Buffer(32), g.p.Buffer(32)
	g.p.MatMul(q, x, must(g.arena.Pack(g.weight(canon.Int4, 32, 32, 32, canon.F16))), nil)
	kv := must(g.arena.NewKV(canon.KVSpec{Layers: 1, Heads: 2, Dim: 16, Pages: 2, Form: canon.F16}))
	g.p.Rope(q, 2, must(g.arena.NewRope(canon.RopeSpec{Theta: 1e4, Rot: 16})), canon.Half, 0)
	g.p.KVAppend(kv, 0, q, q)
	g.p.Attention(y, q, kv, 0, canon.AttentionSpec{Heads: 2})
	g.choices = append(g.choices, g.p.Router(z, canon.RouterSpec{Experts: 4, TopK: 2}))
	table := must(g.arena.NewExpertTable(4))
	for id := range 4 {
		part := func(rows, cols int) canon.Source { return g.weight(canon.Int8, rows, cols, 32, canon.F16) }
		if err := table.Set(id, must(g.arena.PackRecord(part(32, 32), part(32, 32), part(32, 32)))); err != nil {
			t.Fatal(err)
		}
	}
	g.p.MoE(q, y, g.choices[0], table, nil)
	g.keep(q)
	if err := g.p.Build(); err != nil {
		t.Fatal(err)
	}
	return g
}

// Whichever driver call fails, an answer is the same or ends with an error that names the call, and nothing is left behind.
func TestEveryDriverCallMayFail(t *testing.T) {
	everyCallMayFail(t, Options{}, 1)
	for _, o := range several(t) { // every 11th: what is repeated for each device and layer is the same code
		t.Run(fmt.Sprintf("beside %v, bounce %v", o.Beside, o.Bounce), func(t *testing.T) { everyCallMayFail(t, o, 11) })
	}
}

func everyCallMayFail(t *testing.T, o Options, stride int64) {
	g := small(t)
	steps := []*canon.Step{g.step(0, 3, 2)}
	for at := 3; at < 9; at++ {
		steps = append(steps, g.step(at, 1, 2))
	}
	host := must(canon.CPU.Load(g.p))
	var want []string
	for _, s := range steps {
		want = append(want, g.outcome(s, host.Run(s)))
	}
	defer FailAfter(0)
	walk := func(what string, stride int64, f func() error) {
		t.Helper()
		FailAfter(0)
		before := Calls()
		if err := f(); err != nil {
			t.Fatal(err)
		}
		calls, same := Calls()-before, 0
		for n := int64(1); n <= calls; n += stride {
			FailAfter(n)
			err := f()
			var e *Error
			if err == nil {
				same++
			} else if !errors.As(err, &e) || e.Call == "" || !e.Injected {
				t.Errorf("%s, call %d of %d: %v", what, n, calls, err)
			}
		}
		FailAfter(0)
		t.Logf("%s: %d calls, every %dth made to fail, %d failures made good", what, calls, stride, same)
		if same == 0 && what != "opening" {
			t.Errorf("%s: no failure was made good", what)
		}
	}
	opening := stride
	if realDevice() {
		opening *= 17 // a context takes a quarter of a second
	}
	walk("opening", opening, func() error {
		b, err := Open(0, o)
		if err != nil {
			return err
		}
		return b.Close()
	})
	b := open(t, o)
	walk("an answer", stride, func() (err error) {
		r, err := b.Load(g.p)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		for i, s := range steps {
			g.clobber(len(s.Tokens))
			if err := r.Run(s); err != nil {
				return err
			}
			if got := g.outcome(s, nil); got != want[i] {
				t.Errorf("step %d: %s", i, difference(got, want[i]))
			}
		}
		return nil
	})
}

// A step that takes longer than the watchdog allows loses a real device too.
func TestAStepBeyondTheWatchdogLosesTheDevice(t *testing.T) {
	if !realDevice() {
		t.Skip("NOT TESTED HERE: the emulated driver has TestAHungDeviceIsLostAndStaysSo")
	}
	const width = 4096
	g := newRig(t, canon.Limits{Rows: 256})
	x, y := g.input(width, false), g.p.Buffer(width)
	m := must(g.arena.Pack(g.weight(canon.F32, width, width, 0, 0)))
	for range 64 { // about a second of the plain kernel
		g.p.MatMul(y, x, m, nil)
	}
	if err := g.p.Build(); err != nil {
		t.Fatal(err)
	}
	b := must(Open(0, Options{Plain: true, Watchdog: 20 * time.Millisecond}))
	r := must(b.Load(g.p))
	start := time.Now()
	if err := r.Run(g.step(0, 256, 0)); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "no answer within") {
		t.Errorf("step of %v: %v", time.Since(start), err)
	}
	if err := errors.Join(r.Close(), b.Close()); err != nil {
		t.Errorf("closing a lost device: %v", err)
	}
	time.Sleep(3 * time.Second) // what the device still runs must end before the memory of the host goes
}

func TestOutOfMemoryNamesTheLineOfTheLedger(t *testing.T) {
	emulatedOnly(t)
	t.Setenv("COVEY_FAKE_MEMORY", "1000000")
	g := small(t)
	_, err := open(t, Options{}).Load(g.p)
	if !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "activations wants") || !strings.Contains(err.Error(), "lower the context") {
		t.Errorf("loading into too little memory: %v", err)
	}
}

func TestAHungDeviceIsLostAndStaysSo(t *testing.T) {
	emulatedOnly(t)
	g := small(t)
	b := must(Open(0, Options{Watchdog: 200 * time.Millisecond}))
	r := must(b.Load(g.p))
	t.Setenv("COVEY_FAKE_HANG", "1")
	start := time.Now()
	if err := r.Run(g.step(0, 1, 2)); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "no answer within") {
		t.Errorf("hung step: %v", err)
	}
	if err := r.Run(g.step(0, 1, 2)); !errors.Is(err, ErrLost) {
		t.Errorf("step after the loss: %v", err)
	}
	if err := errors.Join(r.Close(), b.Close()); err != nil {
		t.Errorf("closing a lost device: %v", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}

// A device that dies in the middle of an answer: the step's error says so, and from then on the CPU computes, the same logits
// where the sequence begins anew.
func TestTheCPUTakesOverFromALostDevice(t *testing.T) {
	emulatedOnly(t)
	checkpoint := must(weights.Open(filepath.Join(oracles, "olmoe")))
	defer checkpoint.Close()
	load := func(b canon.Backend) *model.Model {
		m := must(model.Load(t.Context(), checkpoint, model.Options{Threads: 1, MaxRows: 8, Context: 64, KVTokens: 64, Backend: b}, nil))
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		return m
	}
	step := func(from, to int) *model.Batch {
		b := &model.Batch{Step: canon.Step{Pages: [][]int32{{0}}}}
		for i := from; i < to; i++ {
			b.Tokens, b.Positions, b.Sequence = append(b.Tokens, int32(3*i+1)), append(b.Positions, int32(i)), append(b.Sequence, 0)
		}
		b.LogitRows = []int32{int32(to - from - 1)}
		return b
	}
	b := must(Open(0, Options{}))
	device, host := load(b), load(canon.CPU)
	must(device.Step(step(0, 5)))
	t.Setenv("COVEY_FAKE_ERROR", "719")
	if _, err := device.Step(step(5, 6)); !errors.Is(err, canon.ErrLost) || !strings.Contains(err.Error(), "cuStreamSynchronize") {
		t.Errorf("step on a dead device: %v", err)
	}
	for _, part := range [][2]int{{0, 5}, {5, 6}} {
		got, want := must(device.Step(step(part[0], part[1]))), must(host.Step(step(part[0], part[1])))
		if !slices.Equal(got.Logits[0], want.Logits[0]) {
			t.Errorf("logits of position %d differ after the CPU took over", part[1]-1)
		}
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestStickyErrorsAreNotTakenForFailuresOfACall(t *testing.T) {
	for code, sticky := range map[int]bool{2: false, 701: false, 700: true, 719: true, 214: true, 999: true} {
		if got := failure("x", code).sticky(); got != sticky {
			t.Errorf("code %d: sticky %v", code, got)
		}
	}
	if (&Error{Injected: true, Code: 719}).sticky() {
		t.Error("an injected failure makes no call and cannot harm the device")
	}
}

func TestUnknownDevicesAreRefused(t *testing.T) {
	if _, err := Open(99, Options{}); !errors.Is(err, ErrNoDevice) {
		t.Errorf("device 99: %v", err)
	}
}

// Without a driver the same binary starts and finds no device.
func TestWithoutADriver(t *testing.T) {
	emulatedOnly(t)
	if os.Getenv("COVEY_FAKE_DRIVER") == "none" {
		infos, err := Devices()
		version, _ := Driver()
		if len(infos) != 0 || err != nil || version != 0 {
			t.Errorf("devices %v, driver %d, %v", infos, version, err)
		}
		return
	}
	again := exec.Command(must(os.Executable()), "-test.run", "^TestWithoutADriver$")
	again.Env = append(os.Environ(), "COVEY_FAKE_DRIVER=none", "LD_LIBRARY_PATH=")
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
