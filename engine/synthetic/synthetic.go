// Package synthetic writes checkpoints of random weights in the shape of a real architecture: for speed, for models larger
// than memory, and for tests. Equal shapes and seeds give equal bytes. Weights are streamed to the disk, so a checkpoint may
// be larger than memory; their standard deviation is about inputs^-0.5, which keeps a forward pass finite.
package synthetic

import (
	"fmt"
	"slices"
	"strings"
)

// Shape is what a checkpoint is made of.
type Shape struct {
	Architecture            string // glm4_moe, qwen3_moe or olmoe
	Layers, Dense           int    // layers in all, and how many of the first have a plain feed-forward block
	Hidden, Vocab           int
	Heads, KVHeads, HeadDim int
	Experts, TopK, Inner    int
	Shared                  int // shared experts, each as wide as a routed one
	DenseInner              int
	Form                    Form
	Seed                    uint64
}

// Form is how matrices are stored; embedding, head, routers and norms are BF16 always.
type Form string

// Forms. The packed ones are compressed-tensors' pack-quantized in groups of 32 or 64 inputs.
const (
	BF16    Form = "bf16"
	Int8    Form = "int8"
	Int4    Form = "int4"
	Int4G64 Form = "int4-g64"
)

// Forms lists the known forms.
var Forms = []Form{BF16, Int8, Int4, Int4G64}

func (f Form) bits() int { return map[Form]int{BF16: 16, Int8: 8, Int4: 4, Int4G64: 4}[f] }
func (f Form) group() int {
	if f == Int4G64 {
		return 64
	}
	return 32
}

// presets are the shapes of published models.
var presets = map[string]Shape{
	"glm-4.5-air":   {Architecture: "glm4_moe", Layers: 46, Dense: 1, Hidden: 4096, Vocab: 151552, Heads: 96, KVHeads: 8, HeadDim: 128, Experts: 128, TopK: 8, Inner: 1408, Shared: 1, DenseInner: 10944},
	"qwen3-30b-a3b": {Architecture: "qwen3_moe", Layers: 48, Hidden: 2048, Vocab: 151936, Heads: 32, KVHeads: 4, HeadDim: 128, Experts: 128, TopK: 8, Inner: 768, DenseInner: 6144},
	"olmoe":         {Architecture: "olmoe", Layers: 16, Hidden: 2048, Vocab: 50304, Heads: 16, KVHeads: 16, HeadDim: 128, Experts: 64, TopK: 8, Inner: 1024},
	"tiny":          {Architecture: "glm4_moe", Layers: 3, Dense: 1, Hidden: 64, Vocab: 512, Heads: 4, KVHeads: 2, HeadDim: 16, Experts: 8, TopK: 2, Inner: 32, Shared: 1, DenseInner: 96},
}

// Presets lists the names that Preset knows, ascending.
func Presets() []string {
	var names []string
	for n := range presets {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Preset is the shape of a published model, in BF16.
func Preset(name string) (Shape, error) {
	s, ok := presets[name]
	if !ok {
		return s, fmt.Errorf("synthetic: no shape %q; known are %s", name, strings.Join(Presets(), ", "))
	}
	s.Form = BF16
	return s, nil
}

// check refuses shapes that no checkpoint can have.
func (s *Shape) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("synthetic: %s", fmt.Sprintf(format, args...))
	}
	switch s.Architecture {
	case "glm4_moe", "qwen3_moe", "olmoe":
	default:
		return bad("architecture %q; glm4_moe, qwen3_moe and olmoe can be made", s.Architecture)
	}
	for _, d := range []struct {
		name       string
		value, low int
	}{{"layers", s.Layers, 1}, {"hidden", s.Hidden, 8}, {"vocab", s.Vocab, 260}, {"heads", s.Heads, 1}, {"kv heads", s.KVHeads, 1}, {"head width", s.HeadDim, 8},
		{"experts", s.Experts, 1}, {"top-k", s.TopK, 1}, {"inner", s.Inner, 1}, {"dense layers", s.Dense, 0}, {"shared experts", s.Shared, 0}} {
		if d.value < d.low || d.value > 1<<20 {
			return bad("%s is %d; %d to %d are possible", d.name, d.value, d.low, 1<<20)
		}
	}
	switch {
	case !slices.Contains(Forms, s.Form):
		return bad("form %q; %v are known", s.Form, Forms)
	case s.Dense >= s.Layers:
		return bad("%d dense layers of %d leave none with experts", s.Dense, s.Layers)
	case s.Dense > 0 && s.DenseInner < 1:
		return bad("dense layers of width %d", s.DenseInner)
	case s.Dense > 0 && s.Architecture == "olmoe", s.Shared > 0 && s.Architecture != "glm4_moe":
		return bad("%s has no dense layers or no shared experts", s.Architecture)
	case s.Heads%s.KVHeads != 0:
		return bad("%d key/value heads do not divide %d heads", s.KVHeads, s.Heads)
	case s.Architecture == "olmoe" && s.Heads*s.HeadDim != s.Hidden:
		return bad("olmoe needs heads times head width to be hidden: %d * %d and %d", s.Heads, s.HeadDim, s.Hidden)
	case s.TopK > s.Experts:
		return bad("%d of %d experts", s.TopK, s.Experts)
	}
	return nil
}

// config is config.json.
func (s *Shape) config() map[string]any {
	c := map[string]any{
		"model_type": s.Architecture, "hidden_size": s.Hidden, "num_hidden_layers": s.Layers, "vocab_size": s.Vocab,
		"num_attention_heads": s.Heads, "num_key_value_heads": s.KVHeads, "num_experts_per_tok": s.TopK, "norm_topk_prob": true,
		"rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 32768, "hidden_act": "silu", "attention_bias": false,
		"tie_word_embeddings": false, "bos_token_id": 256, "eos_token_id": 257, "torch_dtype": "bfloat16",
	}
	switch s.Architecture {
	case "glm4_moe":
		c["head_dim"], c["n_routed_experts"], c["n_shared_experts"], c["moe_intermediate_size"] = s.HeadDim, s.Experts, s.Shared, s.Inner
		c["first_k_dense_replace"], c["intermediate_size"], c["n_group"], c["topk_group"] = s.Dense, max(s.DenseInner, 1), 1, 1
		c["routed_scaling_factor"], c["partial_rotary_factor"], c["use_qk_norm"] = 1.0, 0.5, true
	case "qwen3_moe":
		c["head_dim"], c["num_experts"], c["moe_intermediate_size"], c["intermediate_size"] = s.HeadDim, s.Experts, s.Inner, max(s.DenseInner, 1)
		c["decoder_sparse_step"], c["mlp_only_layers"] = 1, first(s.Dense)
	case "olmoe":
		c["num_experts"], c["intermediate_size"] = s.Experts, s.Inner
	}
	if s.Form != BF16 {
		c["quantization_config"] = map[string]any{
			"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
			"ignore": []string{"lm_head", `re:.*mlp\.gate$`},
			"config_groups": map[string]any{"group_0": map[string]any{
				"targets": []string{"Linear"},
				"weights": map[string]any{"num_bits": s.Form.bits(), "type": "int", "symmetric": true, "strategy": "group", "group_size": s.Form.group(), "dynamic": false},
			}},
		}
	}
	return c
}

func first(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// tensor is one entry of a shard.
type tensor struct {
	name  string
	dtype string
	shape []int
	bytes int64
	fill  filler
}

// tensors lists everything in the order of the files.
func (s *Shape) tensors() []tensor {
	var out []tensor
	plain := func(name string, fill filler, shape ...int) {
		n := int64(2)
		for _, d := range shape {
			n *= int64(d)
		}
		out = append(out, tensor{name, "BF16", shape, n, fill})
	}
	matrix := func(module string, rows, cols int) {
		if s.Form == BF16 {
			plain(module+".weight", weights(cols), rows, cols)
			return
		}
		bits, group := s.Form.bits(), s.Form.group()
		words, groups := (cols*bits+31)/32, (cols+group-1)/group
		out = append(out,
			tensor{module + ".weight_packed", "I32", []int{rows, words}, int64(rows) * int64(words) * 4, noise},
			tensor{module + ".weight_scale", "BF16", []int{rows, groups}, int64(rows) * int64(groups) * 2, scales(cols, bits)},
			tensor{module + ".weight_shape", "I64", []int{2}, 16, numbers(rows, cols)})
	}
	block := func(prefix string, inner int) {
		matrix(prefix+"gate_proj", inner, s.Hidden)
		matrix(prefix+"up_proj", inner, s.Hidden)
		matrix(prefix+"down_proj", s.Hidden, inner)
	}
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	plain("model.embed_tokens.weight", weights(1), s.Vocab, s.Hidden)
	for l := range s.Layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		plain(p+"input_layernorm.weight", ones, s.Hidden)
		plain(p+"post_attention_layernorm.weight", ones, s.Hidden)
		matrix(p+"self_attn.q_proj", q, s.Hidden)
		matrix(p+"self_attn.k_proj", kv, s.Hidden)
		matrix(p+"self_attn.v_proj", kv, s.Hidden)
		matrix(p+"self_attn.o_proj", s.Hidden, q)
		if s.Architecture == "olmoe" {
			plain(p+"self_attn.q_norm.weight", ones, q)
			plain(p+"self_attn.k_norm.weight", ones, kv)
		} else {
			plain(p+"self_attn.q_norm.weight", ones, s.HeadDim)
			plain(p+"self_attn.k_norm.weight", ones, s.HeadDim)
		}
		if l < s.Dense {
			block(p+"mlp.", s.DenseInner)
			continue
		}
		plain(p+"mlp.gate.weight", weights(s.Hidden), s.Experts, s.Hidden)
		if s.Architecture == "glm4_moe" {
			plain(p+"mlp.gate.e_score_correction_bias", zeros, s.Experts)
		}
		for e := range s.Experts {
			block(fmt.Sprintf("%smlp.experts.%d.", p, e), s.Inner)
		}
		if s.Shared > 0 {
			block(p+"mlp.shared_experts.", s.Inner*s.Shared)
		}
	}
	plain("model.norm.weight", ones, s.Hidden)
	plain("lm_head.weight", weights(s.Hidden), s.Vocab, s.Hidden)
	return out
}

// Bytes is the size of all weights on the disk; 0 for a shape that Write refuses.
func (s Shape) Bytes() int64 {
	var n int64
	if s.check() == nil {
		for _, t := range s.tensors() {
			n += t.bytes
		}
	}
	return n
}
