package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
)

// ggufWriter writes small GGUF files as the format's description says, metadata and tensors in the order given.
type ggufWriter struct {
	entries, tensors, data bytes.Buffer
	entryCount, count      uint64
}

func (w *ggufWriter) text(b *bytes.Buffer, s string) {
	b.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(s))))
	b.WriteString(s)
}

func (w *ggufWriter) put(key string, kind uint32, content any) {
	w.entryCount++
	w.text(&w.entries, key)
	_ = binary.Write(&w.entries, binary.LittleEndian, kind)
	if s, ok := content.(string); ok {
		w.text(&w.entries, s)
		return
	}
	if list, ok := content.([]string); ok {
		_ = binary.Write(&w.entries, binary.LittleEndian, uint32(8))
		_ = binary.Write(&w.entries, binary.LittleEndian, uint64(len(list)))
		for _, s := range list {
			w.text(&w.entries, s)
		}
		return
	}
	_ = binary.Write(&w.entries, binary.LittleEndian, content)
}

func (w *ggufWriter) number(key string, n uint32)     { w.put(key, 4, n) }
func (w *ggufWriter) float(key string, x float32)     { w.put(key, 6, x) }
func (w *ggufWriter) string(key, s string)            { w.put(key, 8, s) }
func (w *ggufWriter) strings(key string, s ...string) { w.put(key, 9, s) }

// tensor adds a tensor; dims innermost first.
func (w *ggufWriter) tensor(name string, kind uint32, data []byte, dims ...uint64) {
	w.count++
	w.text(&w.tensors, name)
	_ = binary.Write(&w.tensors, binary.LittleEndian, uint32(len(dims)))
	_ = binary.Write(&w.tensors, binary.LittleEndian, dims)
	_ = binary.Write(&w.tensors, binary.LittleEndian, kind)
	_ = binary.Write(&w.tensors, binary.LittleEndian, uint64(w.data.Len()))
	w.data.Write(data)
	w.data.Write(make([]byte, -w.data.Len()&31))
}

func (w *ggufWriter) bytes() []byte {
	out := append([]byte("GGUF"), words(3)...)
	out = binary.LittleEndian.AppendUint64(out, w.count)
	out = binary.LittleEndian.AppendUint64(out, w.entryCount)
	out = append(append(out, w.entries.Bytes()...), w.tensors.Bytes()...)
	out = append(out, make([]byte, -len(out)&31)...)
	return append(out, w.data.Bytes()...)
}

// mixtralLike is a model of llama.cpp's architecture "llama" with two experts of inner width 2, hidden width 4, two query
// heads and one key head of width 4, and a vocabulary of 3. Weights count up.
func mixtralLike() *ggufWriter {
	w := &ggufWriter{}
	w.string("general.architecture", "llama")
	for key, n := range map[string]uint32{"block_count": 1, "embedding_length": 4, "context_length": 32, "attention.head_count": 2,
		"attention.head_count_kv": 1, "attention.key_length": 4, "attention.value_length": 4, "feed_forward_length": 2, "expert_count": 2,
		"expert_used_count": 1, "rope.dimension_count": 4, "vocab_size": 3} {
		w.number("llama."+key, n)
	}
	w.float("llama.attention.layer_norm_rms_epsilon", 1e-6)
	w.float("llama.rope.freq_base", 1e6)
	return w
}

// counting gives n floats: first, first+1, ...
func counting(first, n int) []byte {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(first + i)
	}
	return floats(values...)
}

func (w *ggufWriter) mixtralTensors() {
	w.tensor("token_embd.weight", 0, counting(0, 12), 4, 3)
	w.tensor("output_norm.weight", 0, counting(0, 4), 4)
	w.tensor("blk.0.attn_q.weight", 0, counting(0, 32), 4, 8)
	w.tensor("blk.0.attn_k.weight", 0, counting(0, 16), 4, 4)
	w.tensor("blk.0.ffn_gate_exps.weight", 0, counting(100, 16), 4, 2, 2)
	w.tensor("blk.0.ffn_down_exps.weight", 0, counting(200, 16), 2, 4, 2)
}

// moduleValues reads a module as f32.
func moduleValues(t *testing.T, c *Checkpoint, module string, rows, cols int) []float32 {
	t.Helper()
	source, err := c.Source(module, rows, cols, new(Scratch))
	if err != nil {
		t.Fatal(err)
	}
	return values(t, source)
}

// Whether projections have biases is seen from the tensors.
func TestBiasesOfGGUFAreSeenFromItsTensors(t *testing.T) {
	for names, want := range map[string]string{
		"":               `"attention_bias": false`,
		"q k v output":   `"attention_bias": true`,
		"qkv output":     `"attention_bias": true`,
		"q k v":          "all projections of attention have biases, or none",
		"output":         "all projections of attention have biases, or none",
		"q k v qkv norm": "all projections of attention have biases, or none",
	} {
		w := &ggufWriter{}
		w.string("general.architecture", "qwen3moe")
		for key, n := range map[string]uint32{"block_count": 1, "embedding_length": 8, "context_length": 32, "attention.head_count": 1, "expert_feed_forward_length": 2, "expert_count": 2, "expert_used_count": 1} {
			w.number("qwen3moe."+key, n)
		}
		w.float("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6)
		w.tensor("token_embd.weight", 0, counting(0, 24), 8, 3)
		for _, name := range strings.Fields(names) {
			n := map[string]int{"qkv": 24}[name]
			w.tensor("blk.0.attn_"+name+".bias", 0, counting(0, max(n, 8)), uint64(max(n, 8)))
		}
		c, err := Open(folder(t, map[string][]byte{"m.gguf": w.bytes()}))
		got := fmt.Sprint(err)
		if err == nil {
			got = string(c.Config())
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if !strings.Contains(got, want) {
			t.Errorf("biases of %q: %s, want %q", names, got, want)
		}
	}
}

func (w *ggufWriter) fusedTensors() {
	w.tensor("token_embd.weight", 0, counting(0, 12), 4, 3)
	w.tensor("blk.0.attn_qkv.weight", 0, counting(0, 64), 4, 16)
	w.tensor("blk.0.ffn_gate_up_exps.weight", 0, counting(100, 32), 4, 4, 2)
}

// Newer files may hold queries, keys and values in one tensor, and gate and up matrices of experts in one stack.
func TestFusedTensorsOfGGUFFallIntoTheirParts(t *testing.T) {
	w := mixtralLike()
	w.fusedTensors()
	c, err := Open(folder(t, map[string][]byte{"m.gguf": w.bytes()}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, test := range []struct {
		module string
		rows   int
		want   []float32 // first value of each row
	}{
		{"self_attn.q_proj", 8, []float32{0, 8, 4, 12, 16, 24, 20, 28}}, // turned as queries of their own are
		{"self_attn.k_proj", 4, []float32{32, 40, 36, 44}},
		{"self_attn.v_proj", 4, []float32{48, 52, 56, 60}},
		{"block_sparse_moe.experts.0.w1", 2, []float32{100, 104}},
		{"block_sparse_moe.experts.0.w3", 2, []float32{108, 112}},
		{"block_sparse_moe.experts.1.w1", 2, []float32{116, 120}},
		{"block_sparse_moe.experts.1.w3", 2, []float32{124, 128}},
	} {
		got := moduleValues(t, c, "model.layers.0."+test.module, test.rows, 4)
		for r, want := range test.want {
			if got[4*r] != want {
				t.Errorf("%s: row %d begins with %v, want %v", test.module, r, got[4*r], want)
			}
		}
	}
	for _, bad := range []func(*ggufWriter){
		func(w *ggufWriter) { w.tensor("blk.0.attn_qkv.weight", 0, counting(0, 60), 4, 15) },
		func(w *ggufWriter) { w.tensor("blk.0.attn_qkv.weight", 0, counting(0, 1)) },
		func(w *ggufWriter) { w.tensor("blk.0.ffn_gate_up_exps.weight", 0, counting(0, 12), 4, 3, 1) },
		func(w *ggufWriter) { w.tensor("blk.0.ffn_gate_up_exps.weight", 24, make([]byte, 1<<20), 1, 1, 1<<20) },
		func(w *ggufWriter) { w.tensor("blk.0.ffn_gate_up_exps.weight", 0, nil, 4, 0, 2) },
	} {
		w := mixtralLike()
		w.tensor("token_embd.weight", 0, counting(0, 12), 4, 3)
		bad(w)
		if _, err := Open(folder(t, map[string][]byte{"m.gguf": w.bytes()})); err == nil || !strings.Contains(err.Error(), "does not fall into its parts") {
			t.Errorf("%v", err)
		}
	}
}

func TestGGUFBecomesACheckpoint(t *testing.T) {
	w := mixtralLike()
	w.mixtralTensors()
	dir := folder(t, map[string][]byte{"tiny.gguf": w.bytes()})
	for _, path := range []string{dir, filepath.Join(dir, "tiny.gguf")} {
		c, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, want := range []string{`"model_type": "mixtral"`, `"hidden_size": 4`, `"rms_norm_eps": 0.000001`, `"rope_theta": 1000000`, `"vocab_size": 3`, `"tie_word_embeddings": true`, `"num_local_experts": 2`} {
			if !strings.Contains(string(c.Config()), want) {
				t.Errorf("config.json lacks %s:\n%s", want, c.Config())
			}
		}
		// Rows 2i and 2i+1 of a head in the file are rows i and D/2+i of the checkpoint: heads of 4 rows of 4.
		if got, want := moduleValues(t, c, "model.layers.0.self_attn.q_proj", 8, 4), []float32{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18, 19, 24}; !slices.Equal(got[:21], want) {
			t.Errorf("queries are %v, want %v...", got, want)
		}
		if got, want := moduleValues(t, c, "model.layers.0.self_attn.k_proj", 4, 4)[:8], []float32{0, 1, 2, 3, 8, 9, 10, 11}; !slices.Equal(got, want) {
			t.Errorf("keys begin with %v, want %v", got, want)
		}
		if got, want := moduleValues(t, c, "model.layers.0.block_sparse_moe.experts.1.w1", 2, 4), []float32{108, 109, 110, 111, 112, 113, 114, 115}; !slices.Equal(got, want) {
			t.Errorf("the gate of expert 1 is %v, want %v", got, want)
		}
		if got, want := moduleValues(t, c, "model.layers.0.block_sparse_moe.experts.0.w2", 4, 2), []float32{200, 201, 202, 203, 204, 205, 206, 207}; !slices.Equal(got, want) {
			t.Errorf("down of expert 0 is %v, want %v", got, want)
		}
		if _, err := c.Source("model.layers.0.self_attn.v_proj", 4, 4, new(Scratch)); err == nil || !strings.Contains(err.Error(), `tensor "model.layers.0.self_attn.v_proj.weight": missing`) {
			t.Errorf("a missing tensor: %v", err)
		}
		if _, err := c.File("tokenizer.json", 1<<20); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file without a vocabulary gives %v", err)
		}
	}
}

func TestSplitGGUFIsReadWhole(t *testing.T) {
	first, second := mixtralLike(), &ggufWriter{}
	first.number("split.no", 0)
	first.number("split.count", 2)
	first.tensor("token_embd.weight", 0, counting(0, 12), 4, 3)
	second.number("split.no", 1)
	second.number("split.count", 2)
	second.tensor("output_norm.weight", 0, counting(7, 4), 4)
	dir := folder(t, map[string][]byte{"m-00001-of-00002.gguf": first.bytes(), "m-00002-of-00002.gguf": second.bytes()})
	for _, path := range []string{dir, filepath.Join(dir, "m-00002-of-00002.gguf")} {
		c, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		norm, err := c.Vector("model.norm.weight", 4)
		if err != nil || norm[0] != 7 {
			t.Errorf("the norm of the second part is %v, %v", norm, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "m-00002-of-00002.gguf")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing part gives %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "m-00002-of-00002.gguf"), first.bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "m-00002-of-00002.gguf: is part 1 of 2, but its name says part 2 of 2") {
		t.Errorf("the first part in place of the second: %v", err)
	}
}

func TestBadGGUFCheckpointsAreRefused(t *testing.T) {
	whole := func(change func(w *ggufWriter)) []byte {
		w := mixtralLike()
		change(w)
		return w.bytes()
	}
	for _, test := range []struct {
		name string
		file []byte
		want string
	}{
		{"a model whose files leave something out", func() []byte { w := &ggufWriter{}; w.string("general.architecture", "phimoe"); return w.bytes() }(), `"phimoe" is not supported: its files leave out`},
		{"other architecture", func() []byte { w := &ggufWriter{}; w.string("general.architecture", "mamba"); return w.bytes() }(), `"mamba" is not supported; supported: `},
		{"no architecture", (&ggufWriter{}).bytes(), `metadata "general.architecture": missing`},
		{"an adapter", whole(func(w *ggufWriter) { w.string("general.type", "adapter"); w.mixtralTensors() }), `only "model" is a whole model`},
		{"unknown key", whole(func(w *ggufWriter) { w.mixtralTensors(); w.float("llama.attention.temperature_scale", 0.5) }), `metadata "llama.attention.temperature_scale": is not known`},
		{"other rotary scaling", whole(func(w *ggufWriter) { w.mixtralTensors(); w.string("llama.rope.scaling.type", "longrope") }), `"longrope" is not supported`},
		{"frequency factors", whole(func(w *ggufWriter) { w.mixtralTensors(); w.tensor("rope_freqs.weight", 0, counting(1, 2), 2) }), `tensor "rope_freqs.weight"`},
		{"no embedding", whole(func(w *ggufWriter) {}), `tensor "token_embd.weight": missing`},
		{"biases that the architecture lacks", whole(func(w *ggufWriter) {
			w.mixtralTensors()
			for _, name := range []string{"q", "k", "v"} {
				w.tensor("blk.0.attn_"+name+".bias", 0, counting(0, 8), 8)
			}
		}), `tensor "blk.0.attn_q.bias": this architecture has no biases of attention`},
		{"a bias of queries alone", whole(func(w *ggufWriter) { w.mixtralTensors(); w.tensor("blk.0.attn_q.bias", 0, counting(0, 8), 8) }), "queries, keys and values do not all have a bias"},
		{"experts that are no stack", whole(func(w *ggufWriter) { w.mixtralTensors(); w.tensor("blk.0.ffn_up_exps.weight", 0, counting(0, 8), 8) }), "is not a stack of experts"},
		{"two tensors for one name", whole(func(w *ggufWriter) { w.mixtralTensors(); w.tensor("blk.+0.attn_q.weight", 0, counting(0, 32), 4, 8) }), "also in tiny.gguf"},
	} {
		_, err := Open(folder(t, map[string][]byte{"tiny.gguf": test.file}))
		var refusal *FormatError
		if !errors.As(err, &refusal) || !strings.Contains(err.Error(), test.want) || refusal.File != "tiny.gguf" || refusal.Remedy == "" {
			t.Errorf("%s: %v, want a FormatError with %q", test.name, err, test.want)
		}
	}
	two := folder(t, map[string][]byte{"a.gguf": mixtralLike().bytes(), "b.gguf": mixtralLike().bytes()})
	if _, err := Open(two); err == nil || !strings.Contains(err.Error(), "another checkpoint, a.gguf") {
		t.Errorf("two checkpoints in one folder: %v", err)
	}
}

// The values of testdata/blocks.safetensors were computed by llama.cpp's own Python package (gguf 0.19.0) from random
// blocks.
func TestBlocksHoldTheValuesOfTheReference(t *testing.T) {
	const rows, cols = 3, 256
	golden, err := OpenTensors("testdata", "blocks.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer golden.Close()
	numbers := map[string]uint32{"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "MXFP4": 39}
	for name := range blockForms {
		stored, _ := golden.Tensor(string(name) + ".blocks")
		raw := make([]byte, stored.Bytes())
		if err := golden.read(string(name), stored, raw); err != nil {
			t.Fatal(err)
		}
		want, err := golden.Vector(string(name)+".values", rows*cols)
		if err != nil {
			t.Fatal(err)
		}
		w := mixtralLike()
		w.tensor("token_embd.weight", numbers[string(name)], raw, cols, rows)
		c, err := Open(folder(t, map[string][]byte{"m.gguf": w.bytes()}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		got := moduleValues(t, c, "model.embed_tokens", rows, cols)
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: value %d is %v, want %v", name, i, got[i], want[i])
				break
			}
		}
	}
}

func TestSideFilesOfGGUFAreAFileSystem(t *testing.T) {
	w := mixtralLike()
	w.mixtralTensors()
	w.string("tokenizer.ggml.model", "gpt2")
	w.string("tokenizer.ggml.pre", "gpt-2")
	w.strings("tokenizer.ggml.tokens", "a", "b", "ab")
	w.strings("tokenizer.ggml.merges", "a b")
	w.string("tokenizer.chat_template", "{{ 'hi' }}")
	c, err := Open(folder(t, map[string][]byte{"m.gguf": w.bytes()}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f, err := c.FS().Open("tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(f)
	if err != nil || !bytes.Contains(text, []byte(`"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]`)) {
		t.Errorf("tokenizer.json is %s, %v", text, err)
	}
	config, err := c.File("tokenizer_config.json", MaxConfig)
	if err != nil || string(config) != `{"chat_template":"{{ 'hi' }}"}` {
		t.Errorf("tokenizer_config.json is %s, %v", config, err)
	}
	if _, err := c.FS().Open("chat_template.jinja"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another name gives %v", err)
	}
	if _, err := c.File("tokenizer.json", 10); err == nil || !strings.Contains(err.Error(), "more than the 10 allowed") {
		t.Errorf("a limit below the size: %v", err)
	}
}

func TestNonFiniteValuesAreFound(t *testing.T) {
	for _, test := range []struct {
		form canon.Form
		data []byte
		want int
	}{
		{canon.F32, floats(1, -2, 3, 4, 5), -1},
		{canon.F32, floats(1, -2, 3, float32(math.Inf(1)), 5), 3},
		{canon.F32, floats(1, -2, 3, 4, float32(math.NaN())), 4},
		{canon.F32, words(0x7f7fffff, 0xff7fffff, 0, 0xff800000), 3},
		{canon.F16, words(0x7bff_fbff, 0x0001_0000, 0x3c00_7bff), -1},
		{canon.F16, words(0x7bff_fbff, 0x7c00_0000, 0), 3},
		{canon.F16, words(0, 0, 0x7e01), 4},
		{canon.BF16, words(0x7c00_7f7f, 0xff7f_0000), -1},
		{canon.BF16, words(0x7c00_7f7f, 0xff80_0000), 3},
		{canon.E8M0, []byte{0, 254, 255}, 2},
	} {
		if got := nonFinite(test.data, test.form); got != test.want {
			t.Errorf("%s % x: first at %d, want %d", test.form, test.data, got, test.want)
		}
	}
	w := mixtralLike()
	w.tensor("token_embd.weight", 0, floats(0, 1, 2, 3, 4, 5, float32(math.Inf(-1)), 7, 8, 9, 10, 11), 4, 3)
	c, err := Open(folder(t, map[string][]byte{"m.gguf": w.bytes()}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Source("model.embed_tokens", 3, 4, new(Scratch)); err == nil || !strings.Contains(err.Error(), "value 6 is not finite") {
		t.Errorf("an infinite weight: %v", err)
	}
}
