package model

import (
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
)

const (
	latentSizes = `"vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,"intermediate_size":96,"moe_intermediate_size":32,
		"n_routed_experts":8,"num_experts_per_tok":3,"kv_lora_rank":32,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":16`
	indexSizes = latentSizes + `,"q_lora_rank":24,"index_n_heads":16,"index_head_dim":16,"index_topk":16`
)

func TestLatentFamiliesHaveTheirDefaults(t *testing.T) {
	for _, test := range []struct {
		family  string
		eps     float32
		pairing canon.Pairing
		index   canon.Pairing
		dense   int // leading layers
		score   canon.ScoreKind
		normed  bool
	}{
		{"deepseek_v2", 1e-6, canon.Pairs, 0, 0, canon.ScoreSoftmax, false},
		{"deepseek_v3", 1e-6, canon.Pairs, 0, 3, canon.ScoreSigmoid, true},
		{"glm4_moe_lite", 1e-5, canon.Pairs, 0, 1, canon.ScoreSigmoid, true},
		{"deepseek_v32", 1e-6, canon.Pairs, canon.Half, 3, canon.ScoreSigmoid, true},
		{"glm_moe_dsa", 1e-5, canon.Pairs, canon.Pairs, 3, canon.ScoreSigmoid, true},
	} {
		s := spec(t, test.family, `{}`)
		dense := make([]bool, 4)
		for l := range test.dense {
			dense[l] = true
		}
		a, n := s.Attention, s.Attention.Latent
		if s.NormEps != test.eps || n.Eps != 1e-6 || s.Pairing != test.pairing || a.KVHeads != 1 || a.HeadDim != 40 || s.Rope.Rot != 8 || s.Rope.Theta != 1e4 ||
			!slices.Equal(s.Dense, dense) || s.MoE.Router.Score != test.score || s.MoE.Router.Normalise != test.normed || s.MoE.Correction != test.normed || s.MoE.Shared != 32 || n.Bias {
			t.Errorf("%s: %+v", test.family, s)
		}
		if x := n.Index; (x != nil) != (strings.Contains(base[test.family], "index")) || x != nil && (x.Pairing != test.index || x.Eps != 1e-6 || x.Dim != 16 || x.Heads != 16 || x.TopK != 16) {
			t.Errorf("%s: indexer %+v", test.family, x)
		}
	}
}

func TestLatentConfigurationDecidesTheSpec(t *testing.T) {
	for _, test := range []struct {
		family, changes string
		holds           func(*Spec) bool
	}{
		{"deepseek_v2", `{"topk_method":"group_limited_greedy","n_group":4,"topk_group":2,"norm_topk_prob":true,"routed_scaling_factor":16.0}`, func(s *Spec) bool {
			r := s.MoE.Router
			return r.GroupMax && r.Groups == 4 && r.TopGroups == 2 && !r.Normalise && r.Scale == 16
		}},
		{"deepseek_v2", `{"topk_method":"greedy","n_group":4,"topk_group":2}`, func(s *Spec) bool { return s.MoE.Router.Groups == 1 }},
		{"deepseek_v2", `{"q_lora_rank":24,"attention_bias":true,"mlp_bias":true,"n_shared_experts":2}`, func(s *Spec) bool {
			return s.Attention.Latent.Query == 24 && s.Attention.Latent.Bias && s.MLPBias && s.MoE.Shared == 64
		}},
		{"deepseek_v2", `{"rope_scaling":{"type":"yarn","factor":40,"mscale":0.707,"mscale_all_dim":0.707,"beta_fast":32,"beta_slow":1,"original_max_position_embeddings":4096}}`, func(s *Spec) bool {
			return s.Rope.Kind == canon.RopeYarn && s.Rope.MScaleAll == 0.707 && s.Rope.Original == 4096
		}},
		{"deepseek_v3", `{"rope_interleave":false,"topk_method":"noaux_tc","scoring_func":"sigmoid","moe_layer_freq":1,"ep_size":1,"num_nextn_predict_layers":1}`, func(s *Spec) bool {
			return s.Pairing == canon.Half && s.Drafting == 1
		}},
		{"glm4_moe_lite", `{"first_k_dense_replace":3}`, func(s *Spec) bool { return slices.Equal(s.Dense, []bool{true, false, false, false}) }},
		{"glm4_moe_lite", `{"mlp_layer_types":["sparse","dense","sparse","dense"]}`, func(s *Spec) bool { return slices.Equal(s.Dense, []bool{false, true, false, true}) }},
		{"glm_moe_dsa", `{"index_topk_freq":3,"index_skip_topk_offset":2}`, func(s *Spec) bool {
			return slices.Equal(s.Attention.Latent.Index.Full, []bool{true, true, false, false})
		}},
		{"glm_moe_dsa", `{"index_topk_pattern":"FSFS"}`, func(s *Spec) bool {
			return slices.Equal(s.Attention.Latent.Index.Full, []bool{true, false, true, false})
		}},
		{"glm_moe_dsa", `{"index_topk_pattern":["F","F","S","S"]}`, func(s *Spec) bool {
			return slices.Equal(s.Attention.Latent.Index.Full, []bool{true, true, false, false})
		}},
		{"glm_moe_dsa", `{"indexer_types":["full","shared","shared","full"],"index_topk_freq":4}`, func(s *Spec) bool {
			return slices.Equal(s.Attention.Latent.Index.Full, []bool{true, false, false, true}) && s.Attention.Latent.Index.place(3) == 1
		}},
		{"deepseek_v32", `{"layer_types":["deepseek_sparse_attention","deepseek_sparse_attention","deepseek_sparse_attention","deepseek_sparse_attention"]}`, func(s *Spec) bool {
			return slices.Equal(s.Attention.Latent.Index.Full, []bool{true, true, true, true})
		}},
	} {
		if s := spec(t, test.family, test.changes); !test.holds(s) {
			t.Errorf("%s with %s: %+v, latent %+v", test.family, test.changes, s, s.Attention.Latent)
		}
	}
}

// GLM-5.2 has an indexer on layers 0, 1, 2, 6, 10 and on.
func TestSharedIndexersFollowFrequencyAndOffset(t *testing.T) {
	s := spec(t, "glm_moe_dsa", `{"num_hidden_layers":14,"index_topk_freq":4,"index_skip_topk_offset":3}`)
	var full []int
	for l, f := range s.Attention.Latent.Index.Full {
		if f {
			full = append(full, l)
		}
	}
	if !slices.Equal(full, []int{0, 1, 2, 6, 10}) {
		t.Errorf("layers with an indexer are %v", full)
	}
}

func TestCompressedConfigurationDecidesTheSpec(t *testing.T) {
	kinds := func(s *Spec) []MemoryKind { return s.Attention.Compressed.Kinds }
	for _, test := range []struct {
		changes string
		holds   func(*Spec) bool
	}{
		{`{}`, func(s *Spec) bool {
			c := s.Attention.Compressed
			return slices.Equal(c.Kinds, []MemoryKind{MemoryHeavy, MemoryHeavy, MemoryHeavy, MemoryIndexed, MemoryHeavy, MemoryIndexed}) && c.HeavyRate == 128 && c.IndexedRate == 4 &&
				s.Rope.Theta == 1e4 && c.Rope.Theta == 1.6e5 && s.Rope.Rot == 4 && s.Attention.Window[5] == 128 && *s.Streams == Streams{4, 20, 1e-6} &&
				slices.Equal(s.MoE.Hash, []bool{true, true, true, false, false, false}) && s.MoE.Activation == canon.Activation{Kind: canon.SwiGLULimited, Limit: 10} &&
				s.MoE.Router.Score == canon.ScoreSqrtSoftplus && s.MoE.Router.Normalise && s.MoE.Router.Scale == 1.5 && s.MoE.Shared == 32
		}},
		{`{"compress_ratios":[0,4,128,4,128,0,0]}`, func(s *Spec) bool {
			return slices.Equal(kinds(s), []MemoryKind{MemoryNone, MemoryIndexed, MemoryHeavy, MemoryIndexed, MemoryHeavy, MemoryNone})
		}},
		{`{"layer_types":["sliding_attention","compressed_sparse_attention","heavily_compressed_attention","sliding_attention","sliding_attention","sliding_attention"],"compress_rates":{"heavily_compressed_attention":64}}`, func(s *Spec) bool {
			return slices.Equal(kinds(s)[:3], []MemoryKind{MemoryNone, MemoryIndexed, MemoryHeavy}) && s.Attention.Compressed.HeavyRate == 64
		}},
		{`{"qk_rope_head_dim":8,"rope_theta":5000,"rope_scaling":{"type":"yarn","factor":16,"original_max_position_embeddings":65536}}`, func(s *Spec) bool {
			c := s.Attention.Compressed
			return s.Rope.Kind == canon.RopeDefault && s.Rope.Theta == 5000 && s.Rope.Rot == 8 && c.Rope.Kind == canon.RopeYarn && c.Rope.Theta == 1.6e5 && c.Rope.Attention == 1
		}},
		{`{"rope_parameters":{"main":{"rope_type":"default","rope_theta":1000,"partial_rotary_factor":0.25},"compress":{"rope_type":"default","rope_theta":2000,"partial_rotary_factor":0.25}}}`, func(s *Spec) bool {
			return s.Rope.Theta == 1000 && s.Attention.Compressed.Rope.Theta == 2000 && s.Rope.Rot == 8
		}},
		{`{"rope_parameters":{"main":{"rope_theta":1000,"partial_rotary_factor":0.25},"compress":{"rope_type":"yarn","factor":16,"truncate":false,"attention_factor":1.0,"original_max_position_embeddings":64,"rope_theta":2000,"partial_rotary_factor":0.25}}}`, func(s *Spec) bool {
			r := s.Attention.Compressed.Rope
			return r.Kind == canon.RopeYarn && r.Truncate && r.Attention == 1 && r.Original == 64 // an inner truncate is not looked at
		}},
		{`{"swiglu_limit":7,"scoring_func":"sigmoid","num_hash_layers":1,"mlp_layer_types":["moe","hash_moe","moe","moe","moe","moe"]}`, func(s *Spec) bool {
			return s.MoE.Activation.Limit == 7 && s.MoE.Router.Score == canon.ScoreSigmoid && slices.Equal(s.MoE.Hash[:3], []bool{false, true, false})
		}},
	} {
		if s := spec(t, "deepseek_v4", test.changes); !test.holds(s) {
			t.Errorf("%s: %+v, compressed %+v, streams %+v", test.changes, s, s.Attention.Compressed, s.Streams)
		}
	}
}

func TestLatentAndCompressedMistakesAreNamed(t *testing.T) {
	for _, test := range []struct{ family, changes, want string }{
		{"deepseek_v2", `{"topk_method":"best"}`, `topk_method: "best" is not supported`},
		{"deepseek_v2", `{"qk_head_dim":20}`, "qk_nope_head_dim and qk_rope_head_dim give 24"},
		{"deepseek_v3", `{"num_key_value_heads":2}`, "all 4 heads share one latent"},
		{"deepseek_v3", `{"moe_layer_freq":2}`, "moe_layer_freq"},
		{"deepseek_v3", `{"kv_lora_rank":null}`, "kv_lora_rank: missing"},
		{"glm4_moe_lite", `{"mlp_layer_types":["dense"]}`, "want a list of 4 texts"},
		{"glm4_moe_lite", `{"mlp_layer_types":["dense","sparse","sparse","thin"]}`, `layer 3: "thin" is not supported`},
		{"deepseek_v32", `{"q_lora_rank":null}`, "the indexer's queries come from it"},
		{"deepseek_v32", `{"index_head_dim":4}`, "want a multiple of 8"},
		{"deepseek_v32", `{"layer_types":["full_attention","full_attention","full_attention","full_attention"]}`, "deepseek_sparse_attention is"},
		{"glm_moe_dsa", `{"indexer_types":["shared","full","full","full"]}`, "layer 0 has no indexer"},
		{"glm_moe_dsa", `{"index_topk_pattern":"FF"}`, "2 layers of 4"},
		{"deepseek_v4", `{"compress_rates":{"heavily_compressed_attention":96}}`, "96 neither divides 64"},
		{"deepseek_v4", `{"compress_ratios":[0,4,128,4,128,7]}`, "layer 5: 7 is neither"},
		{"deepseek_v4", `{"o_groups":3}`, "does not divide num_attention_heads"},
		{"deepseek_v4", `{"num_key_value_heads":2}`, "num_key_value_heads"},
		{"deepseek_v4", `{"compress_rates":{"other":4}}`, "compress_rates.other"},
		{"deepseek_v4", `{"attention_bias":true}`, "biases are not supported"},
	} {
		if _, err := parseSpec(with(t, test.family, test.changes)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with %s: %v, want %q", test.family, test.changes, err, test.want)
		}
	}
}
