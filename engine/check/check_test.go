package check

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
	"covey/engine/model"
	"covey/engine/weights"
)

var update = flag.Bool("update", false, "write golden files")

const bundled = "../../models/smollm2-moe-32x"

func long() bool { return os.Getenv("COVEY_LONG") != "" }

func oracles(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("testdata/oracles/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no oracles: %v", err)
	}
	return dirs
}

func TestForwardPassAgreesWithTheOracles(t *testing.T) {
	for _, dir := range oracles(t) {
		for _, activations := range []string{"f32", "int8"} {
			r, err := Oracle(t.Context(), dir, activations)
			if err != nil {
				t.Errorf("%s: %v", dir, err)
				continue
			}
			t.Logf("%s, %s: %+v", filepath.Base(dir), activations, r)
			weight, kl := 1e-5, 1e-9
			switch name := filepath.Base(dir); {
			case name == "gpt_oss_mxfp4" && activations == "int8": // quantised activations: the report's own tolerance counts
				weight, kl = 1, 1
			case name == "qwen3_next": // what rounding becomes in a state that sums up the sequence
				weight, kl = 1e-4, 1e-8
			}
			if !r.Pass || r.ArgmaxAgree != 1 || r.WeightDiff > weight || r.KLMean > kl {
				t.Errorf("%s, %s: %+v", dir, activations, r)
			}
		}
	}
}

// An oracle must fail when the maths is changed: here by one configuration key that the tensors do not betray.
func TestOracleFailsOnOtherMaths(t *testing.T) {
	for _, test := range []struct{ oracle, key, value string }{
		{"glm4_moe", "routed_scaling_factor", "1.4"},
		{"glm4_moe", "norm_topk_prob", "false"},
		{"glm4_moe", "rms_norm_eps", "1e-3"},
		{"qwen3_moe", "norm_topk_prob", "false"},
		{"olmoe", "norm_topk_prob", "true"},
		{"olmoe", "clip_qkv", "1.0"},
		{"qwen2_moe", "norm_topk_prob", "true"},
		{"qwen3_next", "norm_topk_prob", "false"},
		{"qwen3_next", "rms_norm_eps", "1e-3"},
		{"qwen3_next", "rope_parameters", `{"partial_rotary_factor":0.5,"rope_theta":10000.0,"rope_type":"default"}`},
		{"ernie4_5_moe", "rope_parameters", `{"rope_theta":10000.0,"rope_type":"default"}`},
		{"granitemoe", "residual_multiplier", "1.0"},
		{"granitemoe", "attention_multiplier", "0.25"},
		{"granitemoe", "embedding_multiplier", "1.0"},
		{"granitemoe", "logits_scaling", "1.0"},
		{"phimoe", "router_jitter_noise", "1.0"},
		{"phimoe", "rms_norm_eps", "1e-2"},
		{"gpt_oss", "sliding_window", "7"},
		{"gpt_oss", "sliding_window", "9"},
		{"gpt_oss_mxfp4", "swiglu_limit", "100"},
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata/oracles", test.oracle))); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "config.json")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]json.RawMessage
		if err := json.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		config[test.key] = json.RawMessage(test.value)
		if text, err = json.Marshal(config); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Oracle(t.Context(), dir, "f32")
		if err != nil || r.Pass {
			t.Errorf("%s with %s %s: %+v, %v; want a report that fails", test.oracle, test.key, test.value, r, err)
		}
	}
}

func TestBundledModelAgreesWithItsReference(t *testing.T) {
	var names []string
	if !long() {
		names = []string{"math", "poetry"}
	}
	for _, activations := range []string{"f32", "int8"} {
		r, err := Reference(t.Context(), bundled, filepath.Join(bundled, "reference.safetensors"), activations, names...)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range r.Texts {
			t.Logf("%s: %+v", activations, text)
		}
		if !r.Pass {
			t.Errorf("%s: %+v", activations, r)
		}
	}
}

// load opens a model for the test's duration.
func load(t *testing.T, dir string, options model.Options) *model.Model {
	t.Helper()
	checkpoint, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer checkpoint.Close()
	m, err := model.Load(t.Context(), checkpoint, options, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// variant is one way of computing the same numbers.
type variant struct {
	threads      int
	isa          canon.ISA
	batch, chunk int
}

// sameHashes runs every variant and compares with the golden file: placement, threads, instruction set, batch and chunk
// never change a bit.
func sameHashes(t *testing.T, golden, dir string, options model.Options, list [][]int32, n int, variants []variant) {
	t.Helper()
	path := filepath.Join("testdata", golden)
	stored, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	want := strings.Fields(string(stored))
	for i, v := range variants {
		options.Threads, options.ISA = v.threads, v.isa.String()
		m := load(t, dir, options)
		hashes, err := Hashes(t.Context(), m, list, n, v.batch, v.chunk)
		if err != nil {
			t.Fatalf("%+v: %v", v, err)
		}
		if i == 0 && *update {
			want = hashes
			if err := os.WriteFile(path, []byte(strings.Join(hashes, "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(hashes, want) {
			t.Errorf("%s: %+v: hashes\n%s\nwant\n%s", dir, v, strings.Join(hashes, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestHashesOfTinyCheckpointsNeverChange(t *testing.T) {
	list := append(Prompts(3, 40, 128), Prompts(1, 280, 128)...)
	golden, n := "hashes_%s.txt", 6
	if long() {
		list, golden, n = Prompts(96, 300, 128), "hashes_%s_long.txt", 24
		for i := range 4 {
			list = append(list, Prompts(1, 310+9*i, 128)...)
		}
	}
	shapes := [][2]int{{1, 1}, {4, 17}, {1, 256}, {4, 1}, {1, 17}, {7, 256}}
	for _, name := range []string{"glm4_moe", "qwen3_moe", "olmoe"} {
		var variants []variant
		for _, isa := range canon.Supported() {
			for _, threads := range []int{1, 2} {
				for i, shape := range shapes {
					if isa != canon.Portable || i == threads { // portable code is slow: two shapes
						variants = append(variants, variant{threads, isa, shape[0], shape[1]})
					}
				}
			}
		}
		sameHashes(t, fmt.Sprintf(golden, name), filepath.Join("testdata/oracles", name), model.Options{KV: "f16", KVTokens: 4096}, list, n, variants)
	}
}

// Windows, sinks and recurrent state: 100 prompts, four of them past 300 tokens and so far past the window of 8, in any batch
// and cut; the short form has 16 prompts, one of them long.
func TestHashesPastTheWindowNeverChange(t *testing.T) {
	for _, name := range []string{"gpt_oss", "qwen3_next"} {
		list, golden, n := append(Prompts(15, 30, 128), Prompts(1, 301, 128)...), "hashes_%s.txt", 4
		variants := []variant{{2, canon.AVX2, 1, 256}, {1, canon.AVX2, 7, 17}, {2, canon.AVX2, 16, 1}, {2, canon.Portable, 16, 17}}
		if long() {
			list, golden, n = Prompts(96, 60, 128), "hashes_%s_long.txt", 16
			for i := range 4 {
				list = append(list, Prompts(1, 310+9*i, 128)...)
			}
			variants = nil
			for _, isa := range canon.Supported() {
				for _, threads := range []int{1, 2} {
					for _, batch := range []int{1, 7, 16} {
						for _, chunk := range []int{1, 17, 256} {
							variants = append(variants, variant{threads, isa, batch, chunk})
						}
					}
				}
			}
		}
		variants = slices.DeleteFunc(variants, func(v variant) bool { return !slices.Contains(canon.Supported(), v.isa) })
		sameHashes(t, fmt.Sprintf(golden, name), filepath.Join("testdata/oracles", name), model.Options{KV: "f16", KVTokens: 16384}, list, n, variants)
	}
}

func TestHashesOfTheBundledModelNeverChange(t *testing.T) {
	best := canon.Supported()[len(canon.Supported())-1]
	list, n := Prompts(2, 20, 49152), 4
	variants := []variant{{2, best, 1, 1}, {1, best, 2, 17}, {2, canon.Portable, 2, 256}}
	golden := "hashes_bundled.txt"
	if long() {
		list, n, golden = append(Prompts(14, 150, 49152), Prompts(2, 620, 49152)...), 32, "hashes_bundled_long.txt"
		variants = nil
		for _, isa := range canon.Supported()[1:] {
			for _, threads := range []int{1, 2} {
				variants = append(variants, variant{threads, isa, 1, 17}, variant{threads, isa, 4, 256})
			}
		}
	}
	sameHashes(t, golden, bundled, model.Options{KVTokens: 2048}, list, n, variants)
	if long() { // what devices are held to
		list, n := Hundred(49152)
		sameHashes(t, "hashes_bundled_100.txt", bundled, model.Options{KVTokens: 8192}, list, n, []variant{{2, best, 4, 256}})
	}
}

func TestChecksStopWhenTheContextIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Oracle(ctx, "testdata/oracles/olmoe", "f32"); !errors.Is(err, context.Canceled) {
		t.Errorf("Oracle: %v", err)
	}
	m := load(t, "testdata/oracles/olmoe", model.Options{})
	if _, err := Hashes(ctx, m, [][]int32{{1, 2}}, 2, 1, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Hashes: %v", err)
	}
}

func TestBrokenReferencesAreNamed(t *testing.T) {
	if _, err := Oracle(t.Context(), bundled, "f32"); err == nil || !strings.Contains(err.Error(), "oracle.safetensors") {
		t.Errorf("a folder without an oracle: %v", err)
	}
	if _, err := Reference(t.Context(), "testdata/oracles/olmoe", "testdata/oracles/olmoe/oracle.safetensors", "f32"); err == nil {
		t.Error("an oracle was taken for a reference")
	}
	m := load(t, "testdata/oracles/olmoe", model.Options{})
	for _, args := range [][3]int{{-1, 1, 1}, {1, 0, 1}, {1, 1, 0}} {
		if _, err := Hashes(t.Context(), m, [][]int32{{1}}, args[0], args[1], args[2]); err == nil {
			t.Errorf("Hashes%v was accepted", args)
		}
	}
	if _, err := Hashes(t.Context(), m, [][]int32{{}}, 1, 1, 1); err == nil || !strings.Contains(err.Error(), "prompt 0 is empty") {
		t.Errorf("an empty prompt: %v", err)
	}
}

func ExampleReport() {
	text, _ := json.Marshal(Report{MaxAbsDiff: 1e-6, MaxAbsLogit: 9.5, ArgmaxAgree: 1, Greedy: 24, GreedyTotal: 24, ExpertsAgree: 1, Pass: true})
	fmt.Println(string(text))
	// Output: {"max_abs_diff":0.000001,"max_abs_logit":9.5,"argmax_agree":1,"greedy":24,"greedy_total":24,"experts_agree":1,"weight_diff":0,"kl_mean":0,"pass":true}
}
