package check

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
	"covey/engine/kv"
	"covey/engine/model"
)

// Latent attention, indexed attention past its cut of 16 positions, and compressed attention past its window of 8 give the
// same bits whatever the batch, the chunks, the threads and the instruction set.
func TestHashesOfLatentAttentionNeverChange(t *testing.T) {
	list, n := append(Prompts(15, 40, 128), Prompts(1, 300, 128)...), 4
	if long() {
		list, n = append(Prompts(96, 100, 128), Prompts(4, 400, 128)...), 24
	}
	best := canon.Supported()[len(canon.Supported())-1]
	variants := []variant{{2, best, 1, 17}, {1, best, 7, 1}, {2, best, 16, 256}, {1, best, 16, 17}, {2, canon.Portable, 7, 17}}
	for _, name := range []string{"deepseek_v3", "glm_moe_dsa", "deepseek_v4"} {
		golden := "hashes_%s.txt"
		if long() {
			golden = "hashes_%s_long.txt"
		}
		sameHashes(t, fmt.Sprintf(golden, name), filepath.Join("testdata/oracles", name), model.Options{KV: "f16", KVTokens: 8192}, list, n, variants)
	}
}

// A prompt that starts from another's pages gives the same bits as one that is read whole: index keys, compressed entries and
// the states of compressors are all in the pages.
func TestSharedPagesHoldAllThatAttentionNeeds(t *testing.T) {
	for _, name := range []string{"deepseek_v3", "glm_moe_dsa", "deepseek_v4"} {
		m := load(t, filepath.Join("testdata/oracles", name), model.Options{KVTokens: 1024, MaxRows: 50})
		cache := kv.New(m.Info().KVPages, m.Info().States, m.ZeroPage)
		prompt := Prompts(1, 150, 128)[0]
		// read gives the logits of the last row of a prompt, and how many positions came from the cache.
		read := func(owner string, tokens []int32) ([]float32, int) {
			s := cache.Open(owner, tokens, len(tokens))
			defer s.Close()
			if err := s.Reserve(len(tokens)); err != nil {
				t.Fatal(err)
			}
			reused := s.Len()
			for s.Len() < len(tokens) {
				b := model.Batch{}
				b.Pages = [][]int32{s.Pages()}
				for p := s.Len(); p < min(s.Len()+50, len(tokens)); p++ {
					b.Tokens, b.Positions, b.Sequence = append(b.Tokens, tokens[p]), append(b.Positions, int32(p)), append(b.Sequence, 0)
				}
				b.LogitRows = []int32{int32(len(b.Tokens) - 1)}
				out, err := m.Step(&b)
				if err != nil || out.Faults != nil {
					t.Fatal(err, out)
				}
				s.Append(b.Tokens...)
				if s.Len() == len(tokens) {
					return slices.Clone(out.Logits[0]), reused
				}
			}
			return nil, reused
		}
		read("a", prompt)
		other := append(slices.Clone(prompt[:135]), 5, 6, 7)
		got, reused := read("a", other)
		want, fresh := read("b", other)
		if reused != 128 || fresh != 0 {
			t.Fatalf("%s: %d and %d positions came from the cache, want 128 and 0", name, reused, fresh)
		}
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Fatalf("%s: logit %d is %v after shared pages and %v without", name, i, got[i], want[i])
			}
		}
	}
}

// Published files of deepseek_v4 have no "model." before their names, and spell three of them otherwise.
func TestPublishedNamesOfDeepSeekV4AreRead(t *testing.T) {
	const from = "testdata/oracles/deepseek_v4"
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(from, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	size := binary.LittleEndian.Uint64(file)
	head := strings.NewReplacer(`"model.embed_tokens.`, `"embed.`, `"model.hc_head.hc_`, `"hc_head_`, `.attn.norm.weight"`, `.attn.kv_norm.weight"`, `"model.`, `"`).Replace(string(file[8 : 8+size]))
	file = append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), file[8+size:]...)
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Oracle(t.Context(), dir, "f32"); err != nil || !r.Pass {
		t.Errorf("%+v, %v", r, err)
	}
}

// A layer with a window alone is one whose memory has no entry yet: with a rate above the sequence's length and one rotation for
// both, the bits are the same.
func TestAWindowAloneIsAMemoryWithoutEntries(t *testing.T) {
	const from = "testdata/oracles/deepseek_v4"
	file, err := os.ReadFile(filepath.Join(from, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	size := binary.LittleEndian.Uint64(file)
	var header map[string]map[string]any
	var config map[string]any
	text, err := os.ReadFile(filepath.Join(from, "config.json"))
	if err := errors.Join(err, json.Unmarshal(file[8:8+size], &header), json.Unmarshal(text, &config)); err != nil {
		t.Fatal(err)
	}
	delete(header, "__metadata__")
	data := file[8+size:]
	const width, hidden, rate = 32, 64, 128
	for l := range 4 { // compressors of zeros in the shape that the rate asks for
		for name, shape := range map[string][]int{"wkv.weight": {width, hidden}, "wgate.weight": {width, hidden}, "ape": {rate, width}, "norm.weight": {width}} {
			n := 4
			for _, d := range shape {
				n *= d
			}
			at := fmt.Sprintf("model.layers.%d.attn.compressor.%s", l, name)
			header[at] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{len(data), len(data) + n}}
			data = append(data, make([]byte, n)...)
		}
	}
	// Nothing may be left between the tensors that stay.
	names := slices.SortedFunc(maps.Keys(header), func(a, b string) int { return cmp.Compare(first(header[a]), first(header[b])) })
	var packed []byte
	for _, name := range names {
		begin, end := first(header[name]), last(header[name])
		header[name]["data_offsets"] = []int{len(packed), len(packed) + end - begin}
		packed = append(packed, data[begin:end]...)
	}
	head, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file = append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), packed...)
	rotation := map[string]any{"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25}
	config["rope_parameters"] = map[string]any{"main": rotation, "compress": rotation}
	config["compress_rates"] = map[string]any{"heavily_compressed_attention": rate}
	prompt := Prompts(1, 100, 128)
	var rows [2][][]float32
	for i, kind := range []string{"sliding_attention", "heavily_compressed_attention"} {
		config["layer_types"] = slices.Repeat([]string{kind}, 4)
		text, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600), os.WriteFile(filepath.Join(dir, "model.safetensors"), file, 0o600)); err != nil {
			t.Fatal(err)
		}
		m := load(t, dir, model.Options{KV: "f32", MaxRows: 17})
		d := newDriver(m, 17, true, func(got row) error {
			rows[i] = append(rows[i], slices.Clone(got.logits))
			return nil
		})
		if _, err := d.run(t.Context(), prompt, 4); err != nil {
			t.Fatal(err)
		}
	}
	for r, logits := range rows[0] {
		if !slices.Equal(logits, rows[1][r]) {
			t.Fatalf("row %d differs", r)
		}
	}
}

// first and last are where a tensor's bytes begin and end.
func first(entry map[string]any) int { return offset(entry, 0) }
func last(entry map[string]any) int  { return offset(entry, 1) }

func offset(entry map[string]any, i int) int {
	if list, ok := entry["data_offsets"].([]int); ok {
		return list[i]
	}
	return int(entry["data_offsets"].([]any)[i].(float64))
}
