package model

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
	"covey/engine/weights"
)

const (
	oracles = "../check/testdata/oracles"
	bundled = "../../models/smollm2-moe-32x"
)

func open(t testing.TB, dir string, options Options) *Model {
	t.Helper()
	checkpoint, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer checkpoint.Close()
	m, err := Load(t.Context(), checkpoint, options, nil)
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

// rows makes a batch of one sequence over the given pages whose rows all want logits.
func rows(tokens []int32, first int, pages ...int32) *Batch {
	b := &Batch{Step: canon.Step{Tokens: tokens, Pages: [][]int32{pages}}}
	for i := range tokens {
		b.Positions = append(b.Positions, int32(first+i))
		b.Sequence = append(b.Sequence, 0)
		b.LogitRows = append(b.LogitRows, int32(i))
	}
	return b
}

func TestInfoOfTheBundledModel(t *testing.T) {
	m := open(t, bundled, Options{Threads: 2})
	i := m.Info()
	t.Logf("%s: loaded in %v, %d MB resident, %d MB a token, %d bytes of KV a token", i.Numerics, i.LoadTime, i.Bytes>>20, i.BytesPerToken>>20, i.KVBytes)
	if i.Parameters != 186_397_024 && i.Parameters/100_000 != 1863 && i.Parameters/100_000 != 1864 {
		t.Errorf("%d parameters, want 186.4 million", i.Parameters)
	}
	if i.Active/1_000_000 != 141 {
		t.Errorf("%d active, want 141 million", i.Active)
	}
	if len(i.Shape.Layers) != 29 || i.Shape.Layers[0] != 1 || i.Shape.Experts != 32 || i.Shape.TopK != 4 {
		t.Errorf("shape %+v", i.Shape)
	}
	// Routed experts take 3*576*32 weights of half a byte and a scale of two bytes for 32 of them.
	if want := int64(3*576*32/2 + 3*576*32/32*2); i.RecordBytes[0] != want {
		t.Errorf("a record has %d bytes, want %d", i.RecordBytes[0], want)
	}
	if i.BytesPerToken != i.Bytes-29*28*i.RecordBytes[0] {
		t.Errorf("%d bytes a token of %d", i.BytesPerToken, i.Bytes)
	}
	if want := "rules 1, exact, activations int8, weights f32 + int4 g32 + int8 g32, kv f16"; i.Numerics != want {
		t.Errorf("numerics %q, want %q", i.Numerics, want)
	}
	if !slices.Equal(m.Spec().EOS, []int32{0, 2}) || m.Spec().MoE.Shared != 1536 || !m.Spec().Tied {
		t.Errorf("spec %+v", m.Spec())
	}
}

func TestModelsBeyondTheMemoryAreRefused(t *testing.T) {
	checkpoint, err := weights.Open(filepath.Join(oracles, "olmoe"))
	if err != nil {
		t.Fatal(err)
	}
	defer checkpoint.Close()
	const page = 4 * 2 * 32 * 2 * canon.PageTokens // layers, keys and values, channels, bytes of an f16
	for _, test := range []struct {
		memory int64
		want   string
		read   bool // a weight was read before the refusal
	}{
		{checkpoint.Bytes() - 1, "of weights, but only", false},
		{checkpoint.Bytes() + page - 1, "a KV cache of 16 tokens", false},
		{checkpoint.Bytes() + page + 4096, "arena", true}, // the buffers of a step do not fit
	} {
		read := false
		m, err := Load(t.Context(), checkpoint, Options{Memory: test.memory, Context: 16, KVTokens: 16}, func(int64, int64) { read = true })
		if err == nil {
			m.Close()
		}
		p, planned := Place(checkpoint, Options{Memory: test.memory, Context: 16, KVTokens: 16})
		if p == nil || p.Weights != checkpoint.Bytes() || p.Cache != page || (planned == nil) != test.read || planned != nil && planned.Error() != err.Error() {
			t.Errorf("%d bytes: planned %+v, %v", test.memory, p, planned)
		}
		if !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), test.want) || read != test.read {
			t.Errorf("%d bytes for a checkpoint of %d: %v (weights read: %v), want %q", test.memory, checkpoint.Bytes(), err, read, test.want)
		}
	}
}

func TestTensorsThatNobodyReadsAreListed(t *testing.T) {
	m := open(t, configured(t, filepath.Join(oracles, "olmoe"), `"num_hidden_layers": 4`, `"num_hidden_layers": 3, "num_nextn_predict_layers": 1`), Options{})
	if n := len(m.Info().Unused); n != 33 || m.Info().Unused[0] != "model.layers.3.input_layernorm.weight" {
		t.Errorf("%d unused tensors: %v, want the 33 of layer 3", n, m.Info().Unused)
	}
	for _, dir := range []string{bundled, filepath.Join(oracles, "glm4_moe"), filepath.Join(oracles, "qwen3_moe")} {
		if unused := open(t, dir, Options{}).Info().Unused; unused != nil {
			t.Errorf("%s: unused %v", dir, unused)
		}
	}
}

func TestNumericsIDChangesWithWhatResultsDependOn(t *testing.T) {
	dir := filepath.Join(oracles, "olmoe")
	ids := map[string]bool{}
	for _, o := range []Options{{}, {KV: "bf16"}, {KV: "f32"}, {Activations: "f32"}} {
		ids[open(t, dir, o).Info().NumericsID] = true
	}
	if len(ids) != 4 {
		t.Errorf("%d ids for 4 ways of computing", len(ids))
	}
	a, b := open(t, dir, Options{Threads: 1, ISA: "portable"}), open(t, dir, Options{Threads: 2, MaxRows: 3})
	if a.Info().NumericsID != b.Info().NumericsID {
		t.Error("threads, instruction set or batch changed the id")
	}
}

func TestBannedExpertsAreNotChosen(t *testing.T) {
	m := open(t, filepath.Join(oracles, "olmoe"), Options{})
	tokens := []int32{1, 2, 3, 4, 5, 6, 7, 8}
	run := func(ban *Ban) []uint16 {
		b := rows(tokens, 0, 0)
		if ban != nil {
			b.Banned = []*Ban{ban}
		}
		out, err := m.Step(b)
		if err != nil || out.Faults != nil {
			t.Fatal(err, out.Faults)
		}
		return slices.Clone(out.IDs)
	}
	free := run(nil)
	victim := Expert{Layer: 2, ID: int(free[2*3])} // first choice of the first row in layer 2
	ban, err := m.NewBan([]Expert{victim})
	if err != nil {
		t.Fatal(err)
	}
	banned := run(ban)
	for r := range tokens {
		if slices.Contains(banned[(r*4+2)*3:(r*4+3)*3], uint16(victim.ID)) {
			t.Errorf("row %d chose banned expert %d", r, victim.ID)
		}
		if !slices.Equal(free[r*12:r*12+6], banned[r*12:r*12+6]) {
			t.Errorf("row %d: a ban in layer 2 changed layers before it", r)
		}
	}
	for _, test := range []struct {
		experts []Expert
		want    string
	}{
		{[]Expert{{9, 0}}, "layer 9 has no experts"},
		{[]Expert{{1, 8}}, "does not exist"},
		{[]Expert{{1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 5}}, "fewer experts left"},
	} {
		if _, err := m.NewBan(test.experts); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want %q", test.experts, err, test.want)
		}
	}
}

func TestStepCountsEachRecordOnce(t *testing.T) {
	m := open(t, filepath.Join(oracles, "olmoe"), Options{})
	record := m.Info().RecordBytes[0]
	one, err := m.Step(rows([]int32{5}, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if want := 4 * 3 * record; one.Bytes != want {
		t.Errorf("one row read %d bytes, want %d", one.Bytes, want)
	}
	two := rows([]int32{5, 5}, 0, 0)
	two.Positions, two.Sequence, two.Pages = []int32{0, 0}, []int32{0, 1}, [][]int32{{0}, {1}}
	same, err := m.Step(two)
	if err != nil {
		t.Fatal(err)
	}
	if want := 4 * 3 * record; same.Bytes != want {
		t.Errorf("two equal rows read %d bytes, want %d", same.Bytes, want)
	}
	if !slices.Equal(same.Logits[0], same.Logits[1]) {
		t.Error("two equal rows differ")
	}
}

func TestMalformedBatchesAreRefused(t *testing.T) {
	m := open(t, filepath.Join(oracles, "olmoe"), Options{MaxRows: 4, KVTokens: 128})
	for name, b := range map[string]*Batch{
		"no rows":               {},
		"too many rows":         rows([]int32{1, 2, 3, 4, 5}, 0, 0),
		"token out of range":    rows([]int32{128}, 0, 0),
		"negative token":        rows([]int32{-1}, 0, 0),
		"position without page": rows([]int32{1}, 64, 0),
		"page out of range":     rows([]int32{1}, 0, 2),
		"negative page":         rows([]int32{1}, 0, -1),
	} {
		if _, err := m.Step(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// patched copies a checkpoint and overwrites the start of one tensor.
func patched(t *testing.T, from, tensor string, data []byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "model.safetensors")
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(file)
	var header map[string]struct {
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(file[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	copy(file[8+int(n)+header[tensor].Offsets[0]:], data)
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestNonFiniteRowsAreFaultsOfTheirOwn(t *testing.T) {
	// A norm weight near the largest bfloat16 in the first channel, where token 0 has nothing and other tokens have something.
	huge := patched(t, filepath.Join(oracles, "olmoe"), "model.layers.0.input_layernorm.weight", []byte{0x61, 0x7f})
	m := open(t, patched(t, huge, "model.embed_tokens.weight", []byte{0, 0}), Options{})
	b := rows([]int32{7, 0}, 0, 0)
	b.Positions, b.Sequence, b.Pages = []int32{0, 0}, []int32{0, 1}, [][]int32{{0}, {1}}
	out, err := m.Step(b)
	if err != nil {
		t.Fatal(err)
	}
	if out.Faults == nil || out.Faults[0] == nil || out.Faults[1] != nil {
		t.Fatalf("faults %v, want one of row 0", out.Faults)
	}
	t.Log(out.Faults[0])
	if !errors.Is(out.Faults[0], canon.ErrNonFinite) && !errors.Is(out.Faults[0], canon.ErrKVRange) {
		t.Errorf("%v names no known kind", out.Faults[0])
	}
	good := slices.Clone(out.Logits[1])
	alone, err := m.Step(rows([]int32{0}, 0, 1))
	if err != nil || !slices.Equal(alone.Logits[0], good) {
		t.Errorf("the good row changed beside a bad one: %v", err)
	}
}

func TestTablesOfExpertsHoldWholeNumbersInRange(t *testing.T) {
	if got, err := expertIDs("t", []float32{0, 3, 2, 1}, 2, 4); err != nil || !slices.Equal(got, []int32{0, 3, 2, 1}) {
		t.Errorf("ids %v, %v", got, err)
	}
	for _, v := range []float32{-1, -0.5, 0.5, 4, 1e30, float32(math.NaN()), float32(math.Inf(1))} {
		if _, err := expertIDs("t", []float32{0, 1, v}, 2, 4); err == nil || !strings.Contains(err.Error(), "tensor t: token 1 goes to expert") {
			t.Errorf("expert %v: %v", v, err)
		}
	}
	for _, v := range []int64{-1, 4, 1 << 40} {
		if _, err := expertIDs("t", []int64{v}, 2, 4); err == nil || !strings.Contains(err.Error(), "token 0 goes to expert") {
			t.Errorf("expert %d: %v", v, err)
		}
	}
}

// configured copies a checkpoint and replaces a piece of its config.json.
func configured(t *testing.T, from, old, new string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte(old)) {
		t.Fatalf("%s does not contain %s", path, old)
	}
	if err := os.WriteFile(path, bytes.Replace(text, []byte(old), []byte(new), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBrokenCheckpointsAreNamed(t *testing.T) {
	dir := filepath.Join(oracles, "olmoe")
	edit := func(old, new string) string { return configured(t, dir, old, new) }
	nan := binary.LittleEndian.AppendUint16(nil, uint16(math.Float32bits(float32(math.NaN()))>>16))
	for _, test := range []struct{ dir, want string }{
		{edit(`"num_hidden_layers": 4`, `"num_hidden_layers": 5`), `"model.layers.4.input_layernorm.weight": missing`},
		{edit(`"num_hidden_layers": 4`, `"num_hidden_layers": 3`), "num_hidden_layers: 3, but the checkpoint has model.layers.3.input_layernorm.weight too"},
		{edit(`"intermediate_size": 32`, `"intermediate_size": 64`), "shape [32 64], but the configuration gives [64 64]"},
		{edit(`"attention_bias": false`, `"attention_bias": true`), `"model.layers.0.self_attn.q_proj.bias": missing`},
		{edit(`"vocab_size": 128`, `"vocab_size": 129`), "model.embed_tokens.weight"},
		{patched(t, dir, "model.norm.weight", nan), `"model.norm.weight" at byte`},
	} {
		checkpoint, err := weights.Open(test.dir)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Load(t.Context(), checkpoint, Options{}, nil)
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
		checkpoint.Close()
	}
}

func TestLoadReportsProgressAndStopsWhenCancelled(t *testing.T) {
	checkpoint, err := weights.Open(filepath.Join(oracles, "glm4_moe"))
	if err != nil {
		t.Fatal(err)
	}
	defer checkpoint.Close()
	var last, whole int64
	m, err := Load(t.Context(), checkpoint, Options{}, func(done, total int64) {
		if done < last || done > total {
			t.Errorf("progress went from %d to %d of %d", last, done, total)
		}
		last, whole = done, total
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if last != whole || whole == 0 {
		t.Errorf("progress ended at %d of %d", last, whole)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = Load(ctx, checkpoint, Options{}, func(int64, int64) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled load: %v", err)
	}
}

// The bundled model's speed of loading, decode (one row over a short past) and prefill.
func BenchmarkBundled(b *testing.B) {
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			checkpoint, err := weights.Open(bundled)
			if err != nil {
				b.Fatal(err)
			}
			m, err := Load(b.Context(), checkpoint, Options{}, nil)
			if err != nil {
				b.Fatal(err)
			}
			m.Close()
			checkpoint.Close()
		}
	})
	for _, threads := range []int{1, 2} {
		m := open(b, bundled, Options{Threads: threads, MaxRows: 512, MaxLogits: 1})
		prompt := make([]int32, 512)
		for i := range prompt {
			prompt[i] = int32(1000 + 7*i)
		}
		prefill := rows(prompt, 0, 0, 1, 2, 3, 4, 5, 6, 7)
		prefill.LogitRows = []int32{511}
		name := map[int]string{1: "1thread", 2: "2threads"}[threads]
		b.Run("prefill512/"+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := m.Step(prefill); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(512*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
		})
		decode := rows(prompt[:1], 64, 0, 1)
		b.Run("decode/"+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := m.Step(decode); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tok/s")
			b.ReportMetric(float64(m.Info().BytesPerToken)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
		})
	}
}

func TestHeadsAreReadAloneAndExpertsTogether(t *testing.T) {
	for _, c := range []struct {
		kind ItemKind
		size int64
		want bool
	}{{MatrixItem, 576 * 576, false}, {MatrixItem, 49152 * 576, true}, {ExactItem, 50304 * 2048, true}, {RecordItem, 3 * 2048 * 6144, false}, {RecordItem, 3 * 14336 * 4096, true}} {
		if got := (&job{item: Item{Kind: c.kind}, size: c.size}).large(); got != c.want {
			t.Errorf("kind %d of %d weights is read alone: %v", c.kind, c.size, got)
		}
	}
}
