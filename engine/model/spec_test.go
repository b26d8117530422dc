package model

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
)

// base is the least that each family needs.
var base = map[string]string{
	"glm4_moe": `{"model_type":"glm4_moe","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"head_dim":16,"intermediate_size":96,"moe_intermediate_size":32,"n_routed_experts":8,"num_experts_per_tok":3}`,
	"qwen3_moe": `{"model_type":"qwen3_moe","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"head_dim":16,"moe_intermediate_size":32,"num_experts":8,"num_experts_per_tok":3}`,
	"olmoe": `{"model_type":"olmoe","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"intermediate_size":32,"num_experts":8,"num_experts_per_tok":3}`,
	"mixtral": `{"model_type":"mixtral","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"intermediate_size":32,"num_local_experts":8}`,
	"dots1": `{"model_type":"dots1","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"head_dim":16,"intermediate_size":96,"moe_intermediate_size":32,"n_routed_experts":8,"n_shared_experts":2,"num_experts_per_tok":3}`,
	"qwen2_moe": `{"model_type":"qwen2_moe","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"moe_intermediate_size":32,"num_experts":8,"num_experts_per_tok":3,"shared_expert_intermediate_size":64}`,
	"ernie4_5_moe": `{"model_type":"ernie4_5_moe","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"intermediate_size":96,"moe_intermediate_size":32,"moe_num_experts":8,"moe_k":3}`,
	"granitemoe": `{"model_type":"granitemoe","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"intermediate_size":32,"num_local_experts":8}`,
	"hunyuan_v1_moe": `{"model_type":"hunyuan_v1_moe","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"intermediate_size":32,"num_experts":8,"moe_topk":2}`,
	"phimoe": `{"model_type":"phimoe","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"intermediate_size":32,"num_local_experts":8}`,
	"gpt_oss": `{"model_type":"gpt_oss","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"head_dim":16,"intermediate_size":32,"num_local_experts":8}`,
	"qwen3_next": `{"model_type":"qwen3_next","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"head_dim":16,"moe_intermediate_size":32,"num_experts":8,"num_experts_per_tok":3,"shared_expert_intermediate_size":32}`,
	"minimax_m2": `{"model_type":"minimax_m2","vocab_size":128,"hidden_size":64,"num_hidden_layers":4,"max_position_embeddings":512,"num_attention_heads":4,
		"num_key_value_heads":2,"head_dim":16,"intermediate_size":32,"num_local_experts":8,"num_experts_per_tok":3}`,
	"deepseek_v2":   `{"model_type":"deepseek_v2",` + latentSizes + `}`,
	"deepseek_v3":   `{"model_type":"deepseek_v3",` + latentSizes + `}`,
	"glm4_moe_lite": `{"model_type":"glm4_moe_lite",` + latentSizes + `}`,
	"deepseek_v32":  `{"model_type":"deepseek_v32",` + indexSizes + `}`,
	"glm_moe_dsa":   `{"model_type":"glm_moe_dsa",` + indexSizes + `}`,
	"deepseek_v4": `{"model_type":"deepseek_v4","vocab_size":128,"hidden_size":64,"num_hidden_layers":6,"max_position_embeddings":512,"num_attention_heads":4,"head_dim":32,
		"q_lora_rank":32,"o_groups":2,"o_lora_rank":32,"index_n_heads":16,"index_head_dim":16,"index_topk":8,"moe_intermediate_size":32,"n_routed_experts":8,"num_experts_per_tok":3}`,
}

// with gives a family's base configuration with keys of a JSON object added or replaced.
func with(t testing.TB, family, changes string) []byte {
	t.Helper()
	var config, more map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal([]byte(base[family]), &config), json.Unmarshal([]byte(changes), &more)); err != nil {
		t.Fatalf("%s: %v", changes, err)
	}
	maps.Copy(config, more)
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func spec(t testing.TB, family, changes string) *Spec {
	t.Helper()
	s, err := parseSpec(with(t, family, changes))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDefaultsOfFamilies(t *testing.T) {
	for _, test := range []struct {
		family   string
		eps      float32
		kvHeads  int
		norm     QKNorm
		rot      int
		dense    []bool
		shared   int
		score    canon.ScoreKind
		normed   bool
		routerEp float32
	}{
		{"glm4_moe", 1e-5, 2, QKNormNone, 8, []bool{true, false, false, false}, 32, canon.ScoreSigmoid, true, 1e-20},
		{"qwen3_moe", 1e-6, 2, QKNormPerHead, 16, []bool{false, false, false, false}, 0, canon.ScoreSoftmax, false, 0},
		{"olmoe", 1e-5, 4, QKNormWhole, 16, []bool{false, false, false, false}, 0, canon.ScoreSoftmax, false, 0},
		{"mixtral", 1e-5, 2, QKNormNone, 16, []bool{false, false, false, false}, 0, canon.ScoreSoftmax, true, 0},
		{"dots1", 1e-6, 4, QKNormPerHead, 16, []bool{false, false, false, false}, 64, canon.ScoreSigmoid, false, 0},
		{"minimax_m2", 1e-6, 2, QKNormWhole, 16, []bool{false, false, false, false}, 0, canon.ScoreSigmoid, true, 0},
	} {
		theta, pairing := 1e4, canon.Half
		if other, ok := map[string]float64{"mixtral": 1e6, "minimax_m2": 5e6}[test.family]; ok {
			theta = other
		}
		s := spec(t, test.family, `{}`)
		if s.NormEps != test.eps || s.Attention.KVHeads != test.kvHeads || s.Attention.HeadDim != 16 || s.Attention.QKNorm != test.norm || s.Attention.QKVBias || s.Attention.OutBias ||
			s.Rope.Rot != test.rot || s.Rope.Theta != theta || s.Rope.Kind != canon.RopeDefault || s.Pairing != pairing || !slices.Equal(s.Dense, test.dense) ||
			s.MoE.Shared != test.shared || s.MoE.Inner != 32 || s.MoE.Router.Score != test.score || s.MoE.Router.Normalise != test.normed || s.MoE.Router.Eps != test.routerEp || s.Tied {
			t.Errorf("%s: %+v", test.family, s)
		}
	}
}

func TestConfigurationDecidesTheSpec(t *testing.T) {
	for _, test := range []struct {
		family, changes string
		holds           func(*Spec) bool
	}{
		{"glm4_moe", `{"attention_bias":true,"use_qk_norm":true}`, func(s *Spec) bool {
			return s.Attention.QKVBias && !s.Attention.OutBias && s.Attention.QKNorm == QKNormPerHead
		}},
		{"glm4_moe", `{"n_group":4,"topk_group":2,"routed_scaling_factor":2.5,"norm_topk_prob":false}`, func(s *Spec) bool {
			r := s.MoE.Router
			return r.Groups == 4 && r.TopGroups == 2 && r.Scale == 2.5 && !r.Normalise
		}},
		{"glm4_moe", `{"n_shared_experts":48}`, func(s *Spec) bool { return s.MoE.Shared == 48*32 }},
		{"glm4_moe", `{"n_shared_experts":0}`, func(s *Spec) bool { return s.MoE.Shared == 0 }},
		{"glm4_moe", `{"first_k_dense_replace":0}`, func(s *Spec) bool { return !s.Dense[0] && len(s.MoELayers()) == 4 }},
		{"glm4_moe", `{"partial_rotary_factor":1.0}`, func(s *Spec) bool { return s.Rope.Rot == 16 }},
		{"glm4_moe", `{"partial_rotary_factor":1.0,"rope_parameters":{"rope_type":"default","rope_theta":5e5,"partial_rotary_factor":0.25}}`, func(s *Spec) bool {
			return s.Rope.Rot == 4 && s.Rope.Theta == 5e5
		}},
		{"glm4_moe", `{"tie_word_embeddings":true,"eos_token_id":[7,3,7]}`, func(s *Spec) bool { return s.Tied && slices.Equal(s.EOS, []int32{3, 7}) }},
		{"qwen3_moe", `{"eos_token_id":5}`, func(s *Spec) bool { return slices.Equal(s.EOS, []int32{5}) }},
		{"qwen3_moe", `{"attention_bias":true}`, func(s *Spec) bool { return s.Attention.QKVBias && s.Attention.OutBias }},
		{"qwen3_moe", `{"norm_topk_prob":true}`, func(s *Spec) bool { return s.MoE.Router.Normalise && s.MoE.Router.Eps == 0 }},
		{"qwen3_moe", `{"sliding_window":8,"max_window_layers":2}`, func(s *Spec) bool { return slices.Equal(s.Attention.Window, []int{0, 0, 0, 0}) }},
		{"qwen3_moe", `{"sliding_window":8,"use_sliding_window":true}`, func(s *Spec) bool { return slices.Equal(s.Attention.Window, []int{8, 8, 8, 8}) }},
		{"qwen3_moe", `{"decoder_sparse_step":2,"mlp_only_layers":[3]}`, func(s *Spec) bool { return slices.Equal(s.Dense, []bool{true, false, true, true}) }},
		{"qwen3_moe", `{"num_experts":null,"num_local_experts":16}`, func(s *Spec) bool { return s.MoE.Experts == 16 && s.MoE.Router.Experts == 16 }},
		{"qwen3_moe", `{"head_dim":null}`, func(s *Spec) bool { return s.Attention.HeadDim == 16 }},
		{"qwen3_moe", `{"head_dim":32}`, func(s *Spec) bool { return s.Attention.HeadDim == 32 && s.Rope.Rot == 32 }},
		{"olmoe", `{"clip_qkv":8.0,"num_key_value_heads":2}`, func(s *Spec) bool { return s.Attention.Clip == 8 && s.Attention.KVHeads == 2 }},
		{"olmoe", `{"rope_theta":5e5,"rope_scaling":{"type":"linear","factor":4.0}}`, func(s *Spec) bool {
			return s.Rope.Kind == canon.RopeLinear && s.Rope.Factor == 4 && s.Rope.Theta == 5e5
		}},
		{"olmoe", `{"rope_scaling":{"rope_type":"yarn","factor":4,"original_max_position_embeddings":128}}`, func(s *Spec) bool {
			r := s.Rope
			return r.Kind == canon.RopeYarn && r.Original == 128 && r.BetaFast == 32 && r.BetaSlow == 1 && r.Truncate
		}},
		{"olmoe", `{"rope_scaling":{"rope_type":"yarn","factor":4,"truncate":false},"original_max_position_embeddings":64}`, func(s *Spec) bool {
			return s.Rope.Original == 64 && !s.Rope.Truncate
		}},
		{"olmoe", `{"rope_scaling":{"rope_type":"yarn","factor":4}}`, func(s *Spec) bool { return s.Rope.Original == 512 }},
		{"olmoe", `{"rope_parameters":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":128}}`, func(s *Spec) bool {
			r := s.Rope
			return r.Kind == canon.RopeLlama3 && r.Factor == 8 && r.LowFreq == 1 && r.HighFreq == 4
		}},
		{"olmoe", `{"rope_scaling":{"rope_type":"dynamic","factor":8}}`, func(s *Spec) bool { return s.Rope.Kind == canon.RopeDefault }},
		{"olmoe", `{"rope_scaling":null,"rope_parameters":{}}`, func(s *Spec) bool { return s.Rope.Kind == canon.RopeDefault }},
		{"olmoe", `{"rope_parameters":{"full_attention":{"rope_theta":5e5,"rope_type":"default"},"sliding_attention":{"rope_type":"default","rope_theta":5e5}}}`, func(s *Spec) bool { return s.Rope.Theta == 5e5 }},
		{"olmoe", `{"rope_scaling":{"type":"linear","factor":2},"rope_parameters":{"factor":2, "type":"linear"}}`, func(s *Spec) bool { return s.Rope.Kind == canon.RopeLinear }},
		{"olmoe", `{"rope_scaling":{"type":"su","attention_factor":1.5,"original_max_position_embeddings":128,"short_factor":[1,1,1,1,2,2,2,2],"long_factor":[2,2,2,2,3,3,3,3]}}`, func(s *Spec) bool {
			return s.Rope.Attention == 1.5 && s.Rope.LongAttention == 1.5 && s.LongFrom() == 128 && s.Rope.Factor == 4 && s.Rope.Long[7] == 3
		}},
		{"minimax_m2", `{"rotary_dim":8,"rope_parameters":{"rope_type":"default"}}`, func(s *Spec) bool { return s.Rope.Rot == 16 }},
		{"mixtral", `{"sliding_window":8,"num_experts_per_tok":1}`, func(s *Spec) bool {
			return slices.Equal(s.Attention.Window, []int{8, 8, 8, 8}) && s.MoE.TopK == 1 && s.Names.Expert[2] == "model.layers.%d.block_sparse_moe.experts.%d.w2"
		}},
		{"mixtral", `{"sliding_window":null}`, func(s *Spec) bool { return slices.Equal(s.Attention.Window, []int{0, 0, 0, 0}) }},
		{"dots1", `{"sliding_window":8}`, func(s *Spec) bool { return slices.Equal(s.Attention.Window, []int{0, 0, 0, 0}) }},
		{"dots1", `{"sliding_window":8,"max_window_layers":2}`, func(s *Spec) bool { return slices.Equal(s.Attention.Window, []int{0, 0, 8, 8}) }},
		{"dots1", `{"sliding_window":8,"layer_types":["sliding_attention","full_attention","full_attention","sliding_attention"]}`, func(s *Spec) bool {
			return slices.Equal(s.Attention.Window, []int{8, 0, 0, 8})
		}},
		{"dots1", `{"first_k_dense_replace":2,"n_group":4,"topk_group":2,"attention_bias":true}`, func(s *Spec) bool {
			return s.Dense[1] && !s.Dense[2] && s.MoE.Router.TopGroups == 2 && s.Attention.QKVBias && s.Attention.OutBias
		}},
		{"qwen2_moe", `{}`, func(s *Spec) bool {
			return s.Attention.QKVBias && !s.Attention.OutBias && s.MoE.SharedGate && s.MoE.Shared == 64 && slices.Equal(s.Attention.Window, []int{0, 0, 0, 0})
		}},
		{"qwen2_moe", `{"qkv_bias":false,"use_sliding_window":true,"sliding_window":8,"max_window_layers":2}`, func(s *Spec) bool {
			return !s.Attention.QKVBias && slices.Equal(s.Attention.Window, []int{8, 0, 0, 0})
		}},
		{"qwen2_moe", `{"sliding_window":8,"layer_types":["full_attention","sliding_attention","full_attention","full_attention"]}`, func(s *Spec) bool {
			return slices.Equal(s.Attention.Window, []int{0, 8, 0, 0})
		}},
		{"ernie4_5_moe", `{}`, func(s *Spec) bool {
			return s.Tied && s.Pairing == canon.Pairs && s.Rope.Theta == 5e5 && slices.Equal(s.Dense, []bool{true, false, false, false}) && s.MoE.Shared == 64 && s.MoE.Router.MinSum == 1e-12
		}},
		{"ernie4_5_moe", `{"tie_word_embeddings":false,"use_bias":true,"moe_num_shared_experts":0}`, func(s *Spec) bool {
			return !s.Tied && s.MLPBias && s.HeadBias && s.Attention.QKVBias && s.Attention.OutBias && s.MoE.Shared == 0
		}},
		{"ernie4_5_moe", `{"moe_layer_interval":2,"moe_layer_start_index":0}`, func(s *Spec) bool { return slices.Equal(s.Dense, []bool{true, false, true, false}) }},
		{"ernie4_5_moe", `{"moe_layer_start_index":0,"moe_layer_end_index":1}`, func(s *Spec) bool { return slices.Equal(s.Dense, []bool{false, false, true, true}) }},
		{"granitemoe", `{}`, func(s *Spec) bool {
			return s.EmbedScale == 1 && s.ResidualScale == 1 && s.LogitDivisor == 1 && s.Attention.Scale == 1 && s.MoE.Stack == StackRows
		}},
		{"granitemoe", `{"embedding_multiplier":12,"residual_multiplier":0.22,"logits_scaling":6,"attention_multiplier":0.015625}`, func(s *Spec) bool {
			return s.EmbedScale == 12 && s.ResidualScale == 0.22 && s.LogitDivisor == 6 && s.Attention.Scale == 0.015625
		}},
		{"hunyuan_v1_moe", `{"num_experts":[8,8,8,8],"moe_topk":[3,3,3,3],"num_shared_expert":[1,1,1,1],"moe_intermediate_size":[32,32,32,32],"eod_token_id":3}`, func(s *Spec) bool {
			return s.MoE.Experts == 8 && s.MoE.TopK == 3 && s.MoE.Shared == 32 && s.Attention.NormAfterRope && slices.Equal(s.EOS, []int32{3})
		}},
		{"hunyuan_v1_moe", `{"moe_topk":null,"num_experts_per_tok":4}`, func(s *Spec) bool { return s.MoE.TopK == 4 }},
		{"hunyuan_v1_moe", `{"rope_scaling":{"type":"dynamic","alpha":1000.0,"factor":1.0,"beta_fast":32,"beta_slow":1,"mscale":1.0,"mscale_all_dim":1.0}}`, func(s *Spec) bool {
			return s.Rope.Kind == canon.RopeDefault && s.Rope.Alpha == 1000
		}},
		{"qwen3_next", `{}`, func(s *Spec) bool {
			return [5]int{s.Delta.KeyHeads, s.Delta.ValueHeads, s.Delta.KeyDim, s.Delta.ValueDim, s.Delta.Taps} == [5]int{16, 32, 128, 128, 4} && slices.Equal(s.Delta.Layers, []bool{true, true, true, false}) && s.Rope.Rot == 4 && s.NormPlusOne &&
				s.Attention.Gate && s.MoE.SharedGate && s.MoE.Router.Normalise && s.attentionPlace(4) == 1
		}},
		{"qwen3_next", `{"layer_types":["full_attention","linear_attention","full_attention","linear_attention"],"full_attention_interval":4,"linear_num_key_heads":2,"linear_num_value_heads":4}`, func(s *Spec) bool {
			return slices.Equal(s.Delta.Layers, []bool{false, true, false, true}) && s.attentionPlace(2) == 1 && s.stateFloats(1) == 0 && s.stateFloats(4) == 2*s.stateFloats(2)
		}},
		{"qwen3_next", `{"full_attention_interval":2,"decoder_sparse_step":2,"norm_topk_prob":false}`, func(s *Spec) bool {
			return slices.Equal(s.Delta.Layers, []bool{true, false, true, false}) && slices.Equal(s.Dense, []bool{true, false, true, false}) && !s.MoE.Router.Normalise
		}},
		{"phimoe", `{}`, func(s *Spec) bool {
			return s.LayerNorm && s.Rope.Theta == 1e6 && s.MoE.TopK == 2 && s.MoE.Router.Score == canon.ScoreSparseMixer && s.MoE.Router.Jitter == 0.01 && !s.HeadBias
		}},
		{"phimoe", `{"attention_bias":true,"lm_head_bias":true,"sliding_window":16,"input_jitter_noise":0.01}`, func(s *Spec) bool {
			return s.Attention.QKVBias && s.Attention.OutBias && s.HeadBias && slices.Equal(s.Attention.Window, []int{16, 16, 16, 16})
		}},
		{"gpt_oss", `{}`, func(s *Spec) bool {
			r := s.Rope
			return r.Kind == canon.RopeYarn && r.Factor == 32 && r.Original == 4096 && !r.Truncate && r.Theta == 1.5e5 && s.MoE.TopK == 4 && s.MoE.Activation.Limit == 7 &&
				slices.Equal(s.Attention.Window, []int{128, 0, 128, 0}) && s.Attention.Sinks && s.Attention.QKVBias && s.Attention.OutBias
		}},
		{"gpt_oss", `{"num_experts_per_tok":null,"experts_per_token":2,"attention_bias":false,"swiglu_limit":5.0,"initial_context_length":4096}`, func(s *Spec) bool {
			return s.MoE.TopK == 2 && !s.Attention.OutBias && s.MoE.Activation.Limit == 5
		}},
		{"minimax_m2", `{"rotary_dim":8}`, func(s *Spec) bool { return s.Rope.Rot == 8 }},
		{"minimax_m2", `{"rotary_dim":8,"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.25}}`, func(s *Spec) bool { return s.Rope.Rot == 4 }},
		{"minimax_m2", `{"use_mtp":true,"num_mtp_modules":3,"attn_type_list":[1,1,1,1],"scoring_func":"sigmoid"}`, func(s *Spec) bool {
			return s.MoE.Correction && s.Names.Correction == "model.layers.%d.block_sparse_moe.e_score_correction_bias"
		}},
		{"olmoe", `{"use_cache":true,"transformers_version":"5","new_feature":null,"other_feature":false}`, func(s *Spec) bool {
			return slices.Equal(s.Ignored, []string{"new_feature", "other_feature", "transformers_version", "use_cache"})
		}},
	} {
		if s := spec(t, test.family, test.changes); !test.holds(s) {
			t.Errorf("%s with %s: %+v", test.family, test.changes, s)
		}
	}
}

func TestConfigurationsThatWouldMisleadAreRefused(t *testing.T) {
	for _, test := range []struct{ family, changes, want string }{
		{"olmoe", `{"model_type":"llama"}`, `"llama": architecture not supported; supported: ` + strings.Join(Architectures(), ", ")},
		{"olmoe", `{"attention_multiplier":0.2}`, "attention_multiplier: 0.2 is not known to olmoe and may change the maths"},
		{"olmoe", `{"layer_types":["sliding_attention"]}`, "layer_types"},
		{"olmoe", `{"hidden_act":"gelu"}`, "gelu"},
		{"olmoe", `{"hidden_size":0}`, "hidden_size: 0, want a whole number from 1"},
		{"olmoe", `{"hidden_size":64.5}`, "hidden_size: 64.5"},
		{"olmoe", `{"hidden_size":"64"}`, `hidden_size: "64"`},
		{"olmoe", `{"hidden_size":null}`, "hidden_size: missing"},
		{"olmoe", `{"num_hidden_layers":1000000000000}`, "num_hidden_layers"},
		{"olmoe", `{"num_attention_heads":5}`, "5 does not divide hidden_size 64"},
		{"olmoe", `{"num_key_value_heads":3}`, "3 does not divide num_attention_heads 4"},
		{"olmoe", `{"head_dim":12}`, "head_dim: 12 is not a multiple of 8"},
		{"olmoe", `{"num_experts_per_tok":9}`, "9 of 8 experts"},
		{"olmoe", `{"num_experts":0}`, "num_experts: missing or zero"},
		{"olmoe", `{"num_local_experts":9}`, "9, but num_experts is 8"},
		{"olmoe", `{"clip_qkv":-1}`, "negative"},
		{"olmoe", `{"partial_rotary_factor":0.5}`, "olmoe rotates whole heads"},
		{"olmoe", `{"rope_scaling":{"rope_type":"longrope","factor":4}}`, `rope_scaling.short_factor: missing`},
		{"olmoe", `{"rope_scaling":{"rope_type":"mrope","factor":4}}`, `rope_scaling.rope_type: "mrope" is not supported`},
		{"olmoe", `{"rope_parameters":{"full_attention":{"rope_theta":1e4},"sliding_attention":{"rope_theta":1e5}}}`, `rope_parameters: full_attention and sliding_attention differ`},
		{"olmoe", `{"rope_parameters":{"full_attention":{"rope_theta":1e4,"mystery":1}}}`, `rope_parameters.full_attention.mystery`},
		{"deepseek_v4", `{"rope_scaling":{"type":"longrope","short_factor":[1,1],"long_factor":[1,1]}}`, "longrope is not supported in this architecture"},
		{"olmoe", `{"rope_scaling":{"rope_type":"linear"}}`, "rope_scaling.factor"},
		{"olmoe", `{"rope_scaling":{"rope_type":"linear","factor":2,"mystery":1}}`, "rope_scaling.mystery"},
		{"olmoe", `{"rope_scaling":{"rope_type":"linear","factor":2},"rope_parameters":{"rope_type":"default"}}`, "given beside rope_parameters"},
		{"olmoe", `{"rope_theta":0}`, "rope_theta"},
		{"olmoe", `{"rms_norm_eps":-1}`, "rms_norm_eps"},
		{"olmoe", `{"eos_token_id":128}`, "outside the vocabulary"},
		{"olmoe", `{"eos_token_id":-1}`, "eos_token_id"},
		{"olmoe", `{"eos_token_id":"x"}`, "eos_token_id"},
		{"olmoe", `{"tie_word_embeddings":1}`, "want true or false"},
		{"glm4_moe", `{"n_group":3}`, "do not fit 8 experts"},
		{"glm4_moe", `{"n_group":4,"topk_group":1}`, "do not fit 8 experts"},
		{"glm4_moe", `{"n_group":2,"topk_group":3}`, "do not fit 8 experts"},
		{"glm4_moe", `{"first_k_dense_replace":4}`, "none of the 4 layers has experts"},
		{"glm4_moe", `{"partial_rotary_factor":2}`, "more than 1"},
		{"qwen3_moe", `{"mlp_only_layers":[0,1,2,3]}`, "none of the 4 layers has experts"},
		{"dots1", `{"n_shared_experts":null}`, "n_shared_experts: missing"},
		{"dots1", `{"layer_types":["full_attention"]}`, "want a list of 4 attention types"},
		{"dots1", `{"layer_types":["full_attention","full_attention","full_attention","linear_attention"]}`, `layer 3: "linear_attention" is not supported`},
		{"dots1", `{"layer_types":["full_attention","full_attention","full_attention","sliding_attention"]}`, "sliding_window: missing or zero, but layer 3 has a window"},
		{"mixtral", `{"layer_types":["sliding_attention"]}`, "layer_types"},
		{"hunyuan_v1_moe", `{"num_experts":[8,8,8,16]}`, "layer 3 has 16 and layer 0 has 8"},
		{"hunyuan_v1_moe", `{"moe_topk":[2]}`, "a list of one for each of 4 layers"},
		{"hunyuan_v1_moe", `{"num_shared_expert":2}`, "num_shared_expert: 2 is not supported"},
		{"hunyuan_v1_moe", `{"moe_intermediate_size":64}`, "differs from intermediate_size 32"},
		{"hunyuan_v1_moe", `{"use_cla":true}`, "use_cla"},
		{"ernie4_5_moe", `{"moe_layer_start_index":4}`, "none of the 4 layers has experts"},
		{"granitemoe", `{"logits_scaling":0}`, "logits_scaling"},
		{"qwen3_next", `{"linear_num_key_heads":3}`, "3 does not divide linear_num_value_heads 32"},
		{"qwen3_next", `{"full_attention_interval":8}`, "none of the 4 layers has full attention"},
		{"qwen3_next", `{"layer_types":["linear_attention","linear_attention","sliding_attention","full_attention"]}`, `layer 2: "sliding_attention" is not supported`},
		{"qwen3_next", `{"linear_conv_kernel_dim":1}`, "linear_conv_kernel_dim: 1"},
		{"phimoe", `{"num_experts_per_tok":3}`, "num_experts_per_tok: 3 is not supported; 2 is"},
		{"gpt_oss", `{"sliding_window":0}`, "sliding_window: missing or zero, but layer 0 has a window"},
		{"qwen2_moe", `{"layer_types":["full_attention"]}`, "want a list of 4 attention types"},
		{"minimax_m2", `{"attn_type_list":[1,1,0,1]}`, "layer 2 has type 0"},
		{"minimax_m2", `{"use_qk_norm":false}`, "use_qk_norm: false is not supported"},
		{"minimax_m2", `{"scoring_func":"softmax"}`, `scoring_func: "softmax" is not supported`},
		{"minimax_m2", `{"shared_intermediate_size":64}`, "shared_intermediate_size"},
		{"qwen3_moe", `{"mlp_only_layers":"x"}`, "list of whole numbers"},
	} {
		_, err := parseSpec(with(t, test.family, test.changes))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with %s: %v, want %q", test.family, test.changes, err, test.want)
		}
	}
	for _, text := range []string{``, `[]`, `{"model_type":"olmoe","model_type":"olmoe"}`, `{"a":NaN}`} {
		if _, err := parseSpec([]byte(text)); err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
}

func TestAllProblemsOfAConfigurationAreReportedAtOnce(t *testing.T) {
	_, err := parseSpec(with(t, "olmoe", `{"hidden_act":"gelu","mystery":1,"vocab_size":null}`))
	for _, want := range []string{"hidden_act", "mystery", "vocab_size"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not speak of %s", err, want)
		}
	}
}

func TestARefusedFieldIsNotJudgedByWhatStandsInItsPlace(t *testing.T) {
	for changes, want := range map[string]string{
		`{"vocab_size":99999999999,"eos_token_id":2}`: "model: config.json: vocab_size: 99999999999, want a whole number from 1 to 4194304",
		`{"num_hidden_layers":1000000000}`:            "model: config.json: num_hidden_layers: 1000000000, want a whole number from 1 to 1024",
	} {
		if _, err := parseSpec(with(t, "glm4_moe", changes)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q alone", changes, err, want)
		}
	}
}

func TestUnknownArchitectureCanBeTestedFor(t *testing.T) {
	if _, err := parseSpec([]byte(`{"model_type":"mamba"}`)); !errors.Is(err, ErrArchitecture) {
		t.Errorf("%v, want ErrArchitecture", err)
	}
}

func TestOptionsAreCheckedByName(t *testing.T) {
	s := spec(t, "olmoe", `{}`)
	for _, test := range []struct {
		options Options
		want    string
	}{
		{Options{ISA: "mmx"}, "option ISA"},
		{Options{KV: "int4"}, "option KV"},
		{Options{Activations: "fp8"}, "option Activations"},
		{Options{MaxRows: -1}, "option MaxRows"},
		{Options{MaxRows: 4, MaxLogits: 5}, "option MaxLogits"},
		{Options{MaxSlots: -1}, "option MaxSlots"},
		{Options{Context: 513}, "option Context: 513, want 1 to the model's 512"},
		{Options{KVTokens: -1}, "option KVTokens"},
	} {
		if _, err := test.options.resolve(s); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q", test.options, err, test.want)
		}
	}
	r, err := Options{}.resolve(s)
	if err != nil || r.KV != "f16" || r.Activations != "int8" || r.MaxRows != 256 || r.MaxSlots != 16 || r.MaxLogits != 256 || r.Context != 512 || r.pages != 16 {
		t.Errorf("defaults: %+v, %v", r, err)
	}
}

func FuzzSpec(f *testing.F) {
	for _, text := range base {
		f.Add([]byte(text))
	}
	for _, p := range understood {
		f.Add(published(p.kind, p.text))
	}
	f.Add(with(f, "olmoe", `{"rope_scaling":{"rope_type":"yarn","factor":4},"mystery":{"a":[1]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseSpec(text)
		if err != nil {
			return
		}
		// Whatever was accepted can be divided by.
		if s.Attention.Heads%s.Attention.KVHeads != 0 || s.MoE.TopK > s.MoE.Experts || s.MoE.Experts%max(s.MoE.Router.Groups, 1) != 0 ||
			len(s.Dense) != s.Layers || len(s.Attention.Window) != s.Layers || s.Rope.Rot > s.Attention.HeadDim || s.Rope.Rot%2 != 0 {
			t.Errorf("accepted %s as %+v", text, s)
		}
	})
}

func TestCacheTooLargeToAddressIsKnownBeforeItIsMade(t *testing.T) {
	for _, c := range []struct {
		layers, heads, dim, tokens int
		want                       int64 // 0 = cannot be addressed
	}{
		{1024, 4096, 4096, 64, 1 << 42}, // one page of the most that a configuration may say
		{1024, 4096, 4096, 1 << 26, 1 << 62},
		{1024, 4096, 4096, 1 << 27, 0},
		{1024, 4096, 4096, 1 << 30, 0},
		{2, 2, 8, 1 << 30, 2 * 2 * 8 * 2 * 2 * (1 << 30)},
	} {
		spec := &Spec{Layers: c.layers, Dense: make([]bool, c.layers), Context: 1 << 24, Attention: Attention{Heads: c.heads, KVHeads: c.heads, HeadDim: c.dim}}
		s, err := Options{KVTokens: c.tokens, Memory: 1 << 62}.resolve(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := s.cacheBytes(spec); ok != (c.want != 0) || ok && got != c.want {
			t.Errorf("%+v: %d bytes, %t", c, got, ok)
		}
	}
}
