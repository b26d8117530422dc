//go:build cuda

package cuda

import (
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
)

// several are the ways to run on two devices; on a machine with one it stands beside itself.
func several(t testing.TB) []Options {
	t.Helper()
	if !realDevice() {
		t.Setenv("COVEY_FAKE_DEVICES", "2")
	} else if len(must(Devices())) < 2 {
		return []Options{{Beside: []int{0}, Twice: true}, {Beside: []int{0}, Twice: true, Bounce: true}}
	}
	return []Options{{Beside: []int{1}}, {Beside: []int{1}, Bounce: true}}
}

// Two devices end up with about the same number of bytes, the first one's share of the experts being smaller by what it holds
// beside them, and every layer is spread.
func TestExpertsAreSpreadBySize(t *testing.T) {
	emulatedOnly(t)
	ways := several(t)
	g := newRig(t, canon.Limits{Rows: 4})
	const experts, layers, width = 16, 3, 512
	x, z, y := g.input(width, false), g.input(experts, false), g.p.Buffer(width)
	g.p.MatMul(g.p.Buffer(2048), x, must(g.arena.Pack(g.weight(canon.Int8, 2048, width, 32, canon.F16))), nil)
	for range layers {
		choice := g.p.Router(z, canon.RouterSpec{Experts: experts, TopK: 2})
		table := must(g.arena.NewExpertTable(experts))
		for id := range experts {
			part := func(rows, cols int) canon.Source { return g.weight(canon.Int8, rows, cols, 32, canon.F16) }
			if err := table.Set(id, must(g.arena.PackRecord(part(64, width), part(64, width), part(width, 64)))); err != nil {
				t.Fatal(err)
			}
		}
		g.p.MoE(y, x, choice, table, nil)
	}
	if err := g.p.Build(); err != nil {
		t.Fatal(err)
	}
	b := open(t, ways[0])
	r := must(b.Load(g.p)).(*runner)
	places := r.placement()
	for layer, list := range places {
		if !slices.Contains(list, 0) || !slices.Contains(list, 1) {
			t.Errorf("layer %d is not spread: %v", layer, list)
		}
	}
	var bytes [2]int64
	for _, l := range b.Ledger() {
		if strings.Contains(l.Line, "experts") {
			bytes[l.Device] += l.Bytes
		}
	}
	if bytes[0] == 0 || bytes[1] <= bytes[0] || bytes[0]*3 < bytes[1] {
		t.Errorf("bytes of experts by device: %v", bytes)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestDevicesAreNamedOnce(t *testing.T) {
	emulatedOnly(t)
	several(t)
	for _, beside := range [][]int{{0}, {1, 1}, {7}} {
		if b, err := Open(0, Options{Beside: beside}); err == nil {
			t.Errorf("device 0 beside %v: opened %s", beside, b.Name())
		}
	}
	if got := open(t, Options{Beside: []int{1}}).Name(); got != "cuda:0,cuda:1" {
		t.Errorf("name %q", got)
	}
}
