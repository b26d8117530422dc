//go:build cuda

package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
	"covey/engine/check"
	"covey/engine/model"
	"covey/engine/weights"
)

const (
	oracles = "../engine/check/testdata/oracles"
	bundled = "../models/smollm2-moe-32x"
)

// prompts are token ids of no meaning, in lengths around a page and a chunk; few under the emulated driver, which is slow.
func prompts(vocab int) [][]int32 {
	var all [][]int32
	lengths := []int{1, 9}
	if realDevice() {
		lengths = []int{1, 20, 63, 70, 150}
	}
	for i, n := range lengths {
		var p []int32
		for j := range n {
			p = append(p, int32((j*j*7+j*13+i*31+5)%vocab))
		}
		all = append(all, p)
	}
	return all
}

func answer() int {
	if realDevice() {
		return 24
	}
	return 3
}

func hashes(t *testing.T, dir string, o model.Options, batch, chunk int) []string {
	t.Helper()
	o.MaxRows = 96
	return hashesOf(t, dir, o, nil, answer(), batch, chunk)
}

// hashesOf is check.Hashes of a model; nil prompts are those of every test.
func hashesOf(t *testing.T, dir string, o model.Options, list [][]int32, n, batch, chunk int) []string {
	t.Helper()
	checkpoint := must(weights.Open(dir))
	defer checkpoint.Close()
	o.Threads = 1
	m, err := model.Load(t.Context(), checkpoint, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	if list == nil {
		list = prompts(m.Spec().Vocab)
	}
	h, err := check.Hashes(t.Context(), m, list, n, batch, chunk)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Every checkpoint gives the CPU's logits, bit for bit, alone and in company, whole and in chunks, by graphs and by launches.
func TestModelsEqualTheCPU(t *testing.T) {
	entries := must(os.ReadDir(oracles))
	for _, e := range entries {
		if !realDevice() && !slices.Contains([]string{"glm4_moe", "olmoe", "deepseek_v32", "deepseek_v4", "qwen3_next"}, e.Name()) {
			continue // the kernels are the same for all
		}
		dir := filepath.Join(oracles, e.Name())
		for _, o := range []model.Options{{KV: "f16"}, {KV: "f32", Activations: "f32"}} {
			if o.Activations == "f32" && !realDevice() {
				continue
			}
			t.Run(fmt.Sprintf("%s/kv=%s", e.Name(), o.KV), func(t *testing.T) {
				want := hashes(t, dir, o, 1, 32)
				for _, way := range several(t) {
					if !realDevice() && e.Name() != "glm4_moe" {
						break
					}
					on := o
					on.Backend = open(t, way)
					if got := hashes(t, dir, on, 5, 7); !slices.Equal(got, want) {
						t.Errorf("%+v: hashes %.8s, the CPU's are %.8s", way, got, want)
					}
				}
				for _, way := range []struct {
					batch, chunk int
					launches     bool
					plain        bool
				}{{1, 32, false, false}, {5, 7, false, true}, {5, 70, true, false}} {
					on := o
					on.Backend = open(t, Options{Launches: way.launches, Plain: way.plain})
					if got := hashes(t, dir, on, way.batch, way.chunk); !slices.Equal(got, want) {
						t.Errorf("batch %d, chunk %d, launches %v: hashes %.8s, the CPU's are %.8s", way.batch, way.chunk, way.launches, got, want)
					}
				}
			})
		}
	}
}

// The backend is no part of the numerics id: it changes no bit.
func TestOracleOnTheDevice(t *testing.T) {
	if !realDevice() {
		t.Skip("NOT TESTED HERE: the emulated driver takes minutes")
	}
	report, err := check.OracleOn(t.Context(), open(t, Options{}), filepath.Join(oracles, "qwen3_moe"), "f32")
	if err != nil || !report.Pass {
		t.Fatalf("oracle: %+v, %v", report, err)
	}
	host, err := check.OracleOn(t.Context(), canon.CPU, filepath.Join(oracles, "qwen3_moe"), "f32")
	if err != nil || host != report {
		t.Errorf("device %+v, CPU %+v, %v", report, host, err)
	}
}

// One hundred prompts of the bundled model: the hashes that engine/check holds the CPU to, 16 answers at once, on one device and
// on several.
func TestAHundredAnswersOfTheBundledModelAreTheCPUs(t *testing.T) {
	if !realDevice() {
		t.Skip("NOT TESTED HERE: the emulated driver takes hours")
	}
	want := strings.Fields(string(must(os.ReadFile("../engine/check/testdata/hashes_bundled_100.txt"))))
	list, n := check.Hundred(49152)
	for _, way := range append([]Options{{}}, several(t)...) {
		got := hashesOf(t, bundled, model.Options{Context: 1024, KVTokens: 16384, MaxRows: 256, Backend: open(t, way)}, list, n, 16, 256)
		same := 0
		for i := range got {
			if got[i] == want[i] {
				same++
			}
		}
		t.Logf("%+v: %d of %d hashes are the CPU's", way, same, len(want))
		if same != len(want) || len(got) != len(want) {
			t.Errorf("%+v: %d of %d", way, same, len(want))
		}
	}
}
