package model

import (
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
)

// usual are keys that nearly all published configurations have and that say nothing about the maths.
const usual = `"architectures":["X"],"attention_dropout":0.0,"bos_token_id":1,"hidden_act":"silu","initializer_range":0.02,"pretraining_tp":1,"torch_dtype":"bfloat16",
	"transformers_version":"4.57.1","use_cache":true,"output_router_logits":false,"router_aux_loss_coef":0.001,`

const (
	deepSeekYarn  = `"rope_theta":10000,"rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":%,"mscale_all_dim":%,"original_max_position_embeddings":4096,"type":"yarn"},`
	deepSeekV3    = `"aux_loss_alpha":0.001,"seq_aux":true,"ep_size":1,"moe_layer_freq":1,"attention_bias":false,"eos_token_id":1,"first_k_dense_replace":3,"hidden_size":7168,"intermediate_size":18432,"kv_lora_rank":512,"max_position_embeddings":163840,"moe_intermediate_size":2048,"n_group":8,"n_routed_experts":256,"n_shared_experts":1,"norm_topk_prob":true,"num_attention_heads":128,"num_experts_per_tok":8,"num_hidden_layers":61,"num_key_value_heads":128,"num_nextn_predict_layers":1,"q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"rms_norm_eps":1e-06,"routed_scaling_factor":2.5,"scoring_func":"sigmoid","tie_word_embeddings":false,"topk_group":4,"topk_method":"noaux_tc","v_head_dim":128,"vocab_size":129280,`
	deepSeekV2    = `"aux_loss_alpha":0.001,"seq_aux":true,"moe_layer_freq":1,"attention_bias":false,"eos_token_id":100001,"first_k_dense_replace":1,"kv_lora_rank":512,"max_position_embeddings":163840,"n_shared_experts":2,"norm_topk_prob":false,"num_experts_per_tok":6,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"rms_norm_eps":1e-06,"scoring_func":"softmax","tie_word_embeddings":false,"v_head_dim":128,"vocab_size":102400,`
	fp8           = `"quantization_config":{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","weight_block_size":[128,128]},`
	glm45         = `"attention_bias":true,"pad_token_id":151329,"eos_token_id":[151329,151336,151338],"head_dim":128,"partial_rotary_factor":0.5,"max_position_embeddings":131072,"norm_topk_prob":true,"num_attention_heads":96,"n_group":1,"topk_group":1,"n_shared_experts":1,"num_experts_per_tok":8,"num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":1000000,"num_nextn_predict_layers":1,"tie_word_embeddings":false,"vocab_size":151552,`
	glm5          = `"attention_bias":false,"eos_token_id":[154820,154827,154829],"ep_size":1,"first_k_dense_replace":3,"head_dim":64,"hidden_size":6144,"index_head_dim":128,"index_n_heads":32,"index_topk":2048,"indexer_rope_interleave":true,"intermediate_size":12288,"kv_lora_rank":512,"max_position_embeddings":202752,"moe_intermediate_size":2048,"moe_layer_freq":1,"n_group":1,"n_routed_experts":256,"n_shared_experts":1,"norm_topk_prob":true,"num_attention_heads":64,"num_experts_per_tok":8,"num_hidden_layers":78,"num_key_value_heads":64,"num_nextn_predict_layers":1,"pad_token_id":154820,"q_lora_rank":2048,"qk_head_dim":256,"qk_nope_head_dim":192,"qk_rope_head_dim":64,"rms_norm_eps":1e-05,"rope_interleave":true,"routed_scaling_factor":2.5,"scoring_func":"sigmoid","tie_word_embeddings":false,"topk_group":1,"topk_method":"noaux_tc","v_head_dim":256,"vocab_size":154880,`
	qwen2         = `"eos_token_id":151643,"intermediate_size":5632,"use_sliding_window":false,"tie_word_embeddings":false,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"decoder_sparse_step":1,"norm_topk_prob":false,"vocab_size":151936,`
	qwen3         = `"attention_bias":false,"decoder_sparse_step":1,"eos_token_id":151645,"head_dim":128,"mlp_only_layers":[],"norm_topk_prob":true,"num_experts_per_tok":8,"num_key_value_heads":4,"rms_norm_eps":1e-06,"rope_scaling":null,"sliding_window":null,"tie_word_embeddings":false,"use_sliding_window":false,"vocab_size":151936,`
	qwen3Coder    = `"qkv_bias":false,"use_qk_norm":true,"shared_expert_intermediate_size":0,"rope_theta":10000000,"max_position_embeddings":262144,`
	gptOss120     = `"attention_bias":true,"eos_token_id":200002,"experts_per_token":4,"head_dim":64,"hidden_size":2880,"initial_context_length":4096,"intermediate_size":2880,"max_position_embeddings":131072,"num_attention_heads":64,"num_experts_per_tok":4,"num_key_value_heads":8,"pad_token_id":199999,"quantization_config":{"modules_to_not_convert":["model.layers.*.self_attn","model.layers.*.mlp.router","model.embed_tokens","lm_head"],"quant_method":"mxfp4"},"rms_norm_eps":1e-05,"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"original_max_position_embeddings":4096,"rope_type":"yarn","truncate":false},"rope_theta":150000,"sliding_window":128,"swiglu_limit":7.0,"tie_word_embeddings":false,"vocab_size":201088,`
	graniteShared = `"attention_bias":false,"attention_multiplier":0.015625,"embedding_multiplier":12.0,"eos_token_id":0,"num_experts_per_tok":8,"num_key_value_heads":8,"pad_token_id":0,"residual_multiplier":0.22,"rms_norm_eps":1e-06,"rope_scaling":null,"tie_word_embeddings":true,"vocab_size":49155,`
	hunyuanA13B   = `"add_classification_head":false,"anyres_pooling_size":2,"anyres_vit_max_image_size":null,"anyres_vit_two_views":false,"attention_bias":false,"attention_head_dim":128,"cla_share_factor":2,"class_num":0,"dense_list":[4096,0],"eod_token_id":127967,"eos_token_id":127960,"group_limited_greedy":false,"hidden_size":4096,"im_end_id":6,"im_newline_id":12,"im_start_id":5,"image_token_id":9,"intermediate_size":3072,"kv_lora_rank":null,"mask_init_id":13,"max_position_embeddings":32768,"mlp_bias":false,"moe_drop_tokens":false,"moe_intermediate_size":[L3072],"moe_layer_num_skipped":0,"moe_random_routing_dropped_token":false,"moe_topk":[L8],"n_group":false,"norm_topk_prob":true,"norm_type":"rms","num_attention_heads":32,"num_experts":64,"num_hidden_layers":32,"num_key_value_heads":8,"num_media_embeds":257,"num_shared_expert":[L1],"org_vocab_size":128167,"pad_id":127961,"pad_token_id":127961,"pool_type":"last","position_embedding_xdrope":false,"q_lora_rank":null,"qk_nope_head_dim":null,"qk_rope_head_dim":null,"rms_norm_eps":1e-05,"rope_scaling":{"alpha":1000.0,"beta_fast":32,"beta_slow":1,"factor":1.0,"mscale":1.0,"mscale_all_dim":1.0,"type":"dynamic"},"rope_theta":10000.0,"routed_scaling_factor":1.0,"sep_token_id":127962,"skip_cls_token":false,"text_end_id":8,"text_start_id":7,"tie_word_embeddings":true,"topk_group":false,"use_cla":false,"use_mixed_mlp_moe":true,"use_mla":false,"use_qk_norm":true,"use_rotary_pos_emb":true,"v_head_dim":null,"video_end_id":11,"video_start_id":10,"vit_add_patchemb_bias":false,"vit_input_resolution":224,"vit_mapping_type":"resampler","vit_norm_type":"fused","vit_patch":1,"vit_path":null,"vit_remove_prenorm":false,"vit_token":64,"vit_type":null,"vit_used_rms_norm":false,"vocab_size":128167,"xdrope_section":null,`
	minimax       = `"attn_type_list":[L1],"eos_token_id":null,"head_dim":128,"hidden_size":3072,"intermediate_size":1536,"layernorm_full_attention_beta":1.0,"layernorm_linear_attention_beta":1.0,"layernorm_mlp_beta":1.0,"max_position_embeddings":196608,"mlp_intermediate_size":8192,"mtp_transformer_layers":1,"num_attention_heads":48,"num_experts_per_tok":8,"num_hidden_layers":62,"num_key_value_heads":8,"num_local_experts":256,"num_mtp_modules":3,"qk_norm_type":"per_layer","rms_norm_eps":1e-06,"rope_theta":5000000,"rotary_dim":64,"router_jitter_noise":0.0,"scoring_func":"sigmoid","shared_intermediate_size":0,"shared_moe_mode":"sigmoid","sliding_window":null,"tie_word_embeddings":false,"use_mtp":true,"use_qk_norm":true,"use_routing_bias":true,"vocab_size":200064,"quantization_config":{"activation_scheme":"dynamic","fmt":"float8_e4m3fn","quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["gate","e_score_correction_bias","lm_head"]},`
	phi35         = `"attention_bias":true,"eos_token_id":32000,"hidden_dropout":0.0,"hidden_size":4096,"input_jitter_noise":0.01,"intermediate_size":6400,"lm_head_bias":true,"max_position_embeddings":131072,"num_attention_heads":32,"num_experts_per_tok":2,"num_hidden_layers":32,"num_key_value_heads":8,"num_local_experts":16,"original_max_position_embeddings":4096,"rms_norm_eps":1e-05,"rope_scaling":{"long_factor":[F1.25],"long_mscale":1.243163121016122,"original_max_position_embeddings":4096,"short_factor":[F1.0],"short_mscale":1.243163121016122,"type":"longrope"},"rope_theta":10000.0,"router_jitter_noise":0.01,"sliding_window":131072,"tie_word_embeddings":false,"vocab_size":32064,`
)

// published makes a configuration: "[L8]" is a list of one such number for each layer, "[F1.0]" one for each rotated pair of a
// head of 128, and "%" the number after the text's first "|".
func published(kind, text string) []byte {
	text, number, _ := strings.Cut(text, "|")
	text = strings.ReplaceAll(text, "%", number)
	layers := 1
	if _, after, ok := strings.Cut(text, `"num_hidden_layers":`); ok {
		layers = 0
		for _, d := range after {
			if d < '0' || d > '9' {
				break
			}
			layers = 10*layers + int(d-'0')
		}
	}
	for mark, n := range map[string]int{"[L": layers, "[F": 64} {
		for {
			before, rest, ok := strings.Cut(text, mark)
			if !ok {
				break
			}
			value, after, _ := strings.Cut(rest, "]")
			text = before + "[" + strings.TrimSuffix(strings.Repeat(value+",", n), ",") + "]" + after
		}
	}
	return []byte(`{` + usual + text + `"model_type":"` + kind + `"}`)
}

// understood are what published checkpoints say, key for key, and what follows from it.
var understood = []struct {
	name, kind, text string
	holds            func(*Spec) bool
}{
	{"DeepSeek-V2", "deepseek_v2", deepSeekV2 + deepSeekYarn + `"hidden_size":5120,"intermediate_size":12288,"moe_intermediate_size":1536,"n_group":8,"n_routed_experts":160,"num_attention_heads":128,"num_hidden_layers":60,"num_key_value_heads":128,"q_lora_rank":1536,"routed_scaling_factor":16.0,"topk_group":3,"topk_method":"group_limited_greedy",|0.707`, func(s *Spec) bool {
		r := s.MoE.Router
		return r.Groups == 8 && r.TopGroups == 3 && r.GroupMax && r.Scale == 16 && !r.Normalise && s.Attention.Latent.Query == 1536 && s.MoE.Shared == 3072 && s.Rope.MScaleAll == 0.707 && s.Rope.Factor == 40
	}},
	{"DeepSeek-V2-Lite", "deepseek_v2", deepSeekV2 + deepSeekYarn + `"hidden_size":2048,"intermediate_size":10944,"moe_intermediate_size":1408,"n_group":1,"n_routed_experts":64,"num_attention_heads":16,"num_hidden_layers":27,"num_key_value_heads":16,"q_lora_rank":null,"routed_scaling_factor":1.0,"topk_group":1,"topk_method":"greedy",|0.707`, func(s *Spec) bool {
		return s.Attention.Latent.Query == 0 && s.MoE.Router.Groups <= 1 && s.MoE.Shared == 2816 && s.Dense[0] && !s.Dense[1] && s.Pairing == canon.Pairs
	}},
	{"DeepSeek-V3, R1", "deepseek_v3", deepSeekV3 + deepSeekYarn + fp8 + "|1.0", func(s *Spec) bool {
		return s.Drafting == 1 && s.MoE.Router.Groups == 8 && s.MoE.Router.TopGroups == 4 && s.MoE.Correction && s.Dense[2] && !s.Dense[3] && s.Rope.Kind == canon.RopeYarn && s.Context == 163840
	}},
	{"DeepSeek-V3.1", "deepseek_v3", deepSeekV3 + deepSeekYarn + strings.Replace(fp8, `"fmt"`, `"scale_fmt":"ue8m0","fmt"`, 1) + "|1.0", func(s *Spec) bool { return s.MoE.Router.Scale == 2.5 }},
	{"DeepSeek-V3.2-Exp", "deepseek_v32", deepSeekV3 + deepSeekYarn + fp8 + `"index_head_dim":128,"index_n_heads":64,"index_topk":2048,|1.0`, func(s *Spec) bool {
		x := s.Attention.Latent.Index
		return x.Heads == 64 && x.Dim == 128 && x.TopK == 2048 && x.Pairing == canon.Half && s.Pairing == canon.Pairs && s.Dense[2] && !s.Dense[3]
	}},
	{"GLM-4.5", "glm4_moe", glm45 + `"hidden_size":5120,"intermediate_size":12288,"moe_intermediate_size":1536,"n_routed_experts":160,"routed_scaling_factor":2.5,"first_k_dense_replace":3,"num_hidden_layers":92,"use_qk_norm":true,`, func(s *Spec) bool {
		return s.Rope.Rot == 64 && s.Attention.QKNorm == QKNormPerHead && s.Attention.QKVBias && !s.Attention.OutBias && s.Dense[2] && !s.Dense[3] && len(s.EOS) == 3
	}},
	{"GLM-4.5-Air", "glm4_moe", glm45 + `"hidden_size":4096,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":128,"routed_scaling_factor":1.0,"first_k_dense_replace":1,"num_hidden_layers":46,"use_qk_norm":false,`, func(s *Spec) bool { return s.Attention.QKNorm == QKNormNone && s.MoE.Experts == 128 }},
	{"GLM-4.6", "glm4_moe", strings.Replace(glm45, "131072", "202752", 1) + `"dtype":"bfloat16","hidden_size":5120,"intermediate_size":12288,"moe_intermediate_size":1536,"n_routed_experts":160,"routed_scaling_factor":2.5,"first_k_dense_replace":3,"num_hidden_layers":92,"use_qk_norm":true,`, func(s *Spec) bool { return s.Context == 202752 }},
	{"GLM-4.7-Flash", "glm4_moe_lite", `"attention_bias":false,"pad_token_id":154820,"eos_token_id":[154820,154827,154829],"hidden_size":2048,"intermediate_size":10240,"max_position_embeddings":202752,"moe_intermediate_size":1536,"topk_method":"noaux_tc","norm_topk_prob":true,"num_attention_heads":20,"n_group":1,"topk_group":1,"n_routed_experts":64,"n_shared_experts":1,"routed_scaling_factor":1.8,"num_experts_per_tok":4,"first_k_dense_replace":1,"num_hidden_layers":47,"num_key_value_heads":20,"num_nextn_predict_layers":1,"partial_rotary_factor":1.0,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":1000000,"tie_word_embeddings":false,"q_lora_rank":768,"kv_lora_rank":512,"qk_nope_head_dim":192,"qk_rope_head_dim":64,"v_head_dim":256,"vocab_size":154880,`, func(s *Spec) bool {
		n := s.Attention.Latent
		return n.Value == 256 && n.Plain == 192 && s.Dense[0] && !s.Dense[1] && s.MoE.Router.Scale == 1.8 && s.Drafting == 1
	}},
	{"GLM-5", "glm_moe_dsa", glm5 + `"rope_parameters":{"rope_theta":1000000,"rope_type":"default"},`, func(s *Spec) bool {
		x := s.Attention.Latent.Index
		return !slices.Contains(x.Full, false) && x.Pairing == canon.Pairs && s.Rope.Theta == 1e6
	}},
	{"GLM-5.2", "glm_moe_dsa", glm5 + `"rope_parameters":{"rope_theta":8000000,"rope_type":"default"},"index_topk_freq":4,"index_skip_topk_offset":3,"index_topk_pattern":null,"index_share_for_mtp_iteration":true,`, func(s *Spec) bool {
		full := s.Attention.Latent.Index.Full
		return full[0] && full[1] && full[2] && !full[3] && full[6] && !full[7] && full[74] && !full[77]
	}},
	{"Qwen1.5-MoE-A2.7B", "qwen2_moe", qwen2 + `"hidden_size":2048,"max_position_embeddings":8192,"max_window_layers":21,"num_attention_heads":16,"num_hidden_layers":24,"num_key_value_heads":16,"sliding_window":32768,"moe_intermediate_size":1408,"shared_expert_intermediate_size":5632,"num_experts_per_tok":4,"num_experts":60,`, func(s *Spec) bool {
		return s.Attention.QKVBias && s.MoE.Shared == 5632 && s.MoE.SharedGate && s.MoE.Experts == 60 && !slices.ContainsFunc(s.Attention.Window, func(w int) bool { return w != 0 })
	}},
	{"Qwen2-57B-A14B", "qwen2_moe", qwen2 + `"hidden_size":3584,"max_position_embeddings":131072,"max_window_layers":28,"num_attention_heads":28,"num_hidden_layers":28,"num_key_value_heads":4,"sliding_window":65536,"moe_intermediate_size":2560,"shared_expert_intermediate_size":20480,"num_experts_per_tok":8,"num_experts":64,`, func(s *Spec) bool { return s.Attention.HeadDim == 128 && s.MoE.Shared == 20480 }},
	{"Qwen3-30B-A3B", "qwen3_moe", qwen3 + `"hidden_size":2048,"intermediate_size":6144,"max_position_embeddings":40960,"max_window_layers":48,"moe_intermediate_size":768,"num_attention_heads":32,"num_experts":128,"num_hidden_layers":48,"rope_theta":1000000.0,`, func(s *Spec) bool { return s.MoE.Router.Normalise && s.Rope.Theta == 1e6 && s.MoE.Inner == 768 }},
	{"Qwen3-235B-A22B with yarn", "qwen3_moe", strings.Replace(qwen3, `"rope_scaling":null`, `"rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}`, 1) + `"hidden_size":4096,"intermediate_size":12288,"max_position_embeddings":131072,"max_window_layers":94,"moe_intermediate_size":1536,"num_attention_heads":64,"num_experts":128,"num_hidden_layers":94,"rope_theta":1000000.0,`, func(s *Spec) bool {
		return s.Rope.Kind == canon.RopeYarn && s.Rope.Original == 32768 && s.Rope.Truncate
	}},
	{"Qwen3-Coder-30B-A3B", "qwen3_moe", qwen3 + qwen3Coder + `"hidden_size":2048,"intermediate_size":5472,"max_window_layers":28,"moe_intermediate_size":768,"num_attention_heads":32,"num_experts":128,"num_hidden_layers":48,`, func(s *Spec) bool { return s.Context == 262144 && !s.Attention.QKVBias && s.MoE.Shared == 0 }},
	{"Qwen3-Coder-480B-A35B", "qwen3_moe", strings.Replace(qwen3, `"num_key_value_heads":4`, `"num_key_value_heads":8`, 1) + qwen3Coder + `"hidden_size":6144,"intermediate_size":8192,"max_window_layers":62,"moe_intermediate_size":2560,"num_attention_heads":96,"num_experts":160,"num_hidden_layers":62,` + fp8, func(s *Spec) bool { return s.Attention.Heads == 96 && s.MoE.Experts == 160 }},
	{"Qwen3-Next-80B-A3B", "qwen3_next", `"attention_bias":false,"decoder_sparse_step":1,"eos_token_id":151645,"full_attention_interval":4,"head_dim":256,"hidden_size":2048,"intermediate_size":5120,"linear_conv_kernel_dim":4,"linear_key_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_value_head_dim":128,"max_position_embeddings":262144,"mlp_only_layers":[],"moe_intermediate_size":512,"norm_topk_prob":true,"num_attention_heads":16,"num_experts":512,"num_experts_per_tok":10,"num_hidden_layers":48,"num_key_value_heads":2,"partial_rotary_factor":0.25,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":10000000,"shared_expert_intermediate_size":512,"tie_word_embeddings":false,"use_sliding_window":false,"vocab_size":151936,`, func(s *Spec) bool {
		return s.Rope.Rot == 64 && s.Delta.ValueHeads == 32 && s.Delta.Layers[0] && !s.Delta.Layers[3] && s.Attention.Gate && s.MoE.TopK == 10
	}},
	{"gpt-oss-20b", "gpt_oss", gptOss120 + `"num_hidden_layers":24,"num_local_experts":32,`, func(s *Spec) bool {
		return s.Attention.Window[0] == 128 && s.Attention.Window[1] == 0 && s.Attention.OutBias && s.Rope.Kind == canon.RopeYarn && !s.Rope.Truncate && s.Attention.HeadDim == 64
	}},
	{"gpt-oss-120b", "gpt_oss", gptOss120 + `"num_hidden_layers":36,"num_local_experts":128,"layer_types":[L"full_attention"],`, func(s *Spec) bool { return s.MoE.Experts == 128 && s.Attention.Window[0] == 0 }},
	{"Granite-3.0-1B-A400M", "granitemoe", graniteShared + `"hidden_size":1024,"intermediate_size":512,"logits_scaling":6.0,"max_position_embeddings":4096,"num_attention_heads":16,"num_hidden_layers":24,"num_local_experts":32,"rope_theta":10000,`, func(s *Spec) bool {
		return s.Tied && s.EmbedScale == 12 && s.LogitDivisor == 6 && s.Attention.Scale == 0.015625 && s.ResidualScale == 0.22 && s.MoE.Stack == StackRows
	}},
	{"Granite-3.1-3B-A800M", "granitemoe", graniteShared + `"hidden_size":1536,"intermediate_size":512,"logits_scaling":6.0,"max_position_embeddings":131072,"num_attention_heads":24,"num_hidden_layers":32,"num_local_experts":40,"rope_theta":5000000.0,`, func(s *Spec) bool { return s.Attention.HeadDim == 64 && s.MoE.Experts == 40 }},
	{"MiniMax-M2", "minimax_m2", minimax, func(s *Spec) bool {
		return s.Rope.Rot == 64 && s.Attention.QKNorm == QKNormWhole && s.MoE.Correction && s.MoE.Router.Score == canon.ScoreSigmoid && s.MoE.Shared == 0
	}},
	{"dots.llm1", "dots1", `"attention_bias":false,"eos_token_id":151645,"first_k_dense_replace":1,"hidden_size":4096,"intermediate_size":10944,"max_position_embeddings":32768,"moe_intermediate_size":1408,"moe_layer_freq":1,"n_routed_experts":128,"n_shared_experts":2,"norm_topk_prob":true,"num_attention_heads":32,"num_experts_per_tok":6,"num_hidden_layers":62,"num_key_value_heads":32,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000000,"routed_scaling_factor":2.5,"scoring_func":"noaux_tc","topk_method":"noaux_tc","sliding_window":null,"use_sliding_window":false,"tie_word_embeddings":false,"vocab_size":152064,`, func(s *Spec) bool {
		return s.MoE.Shared == 2816 && s.MoE.Router.Scale == 2.5 && s.Attention.HeadDim == 128 && s.Attention.Window[61] == 0 && s.Attention.QKNorm == QKNormPerHead
	}},
	{"ERNIE-4.5-21B-A3B", "ernie4_5_moe", `"eos_token_id":2,"head_dim":128,"hidden_size":2560,"intermediate_size":12288,"max_position_embeddings":131072,"num_attention_heads":20,"num_hidden_layers":28,"num_key_value_heads":4,"pad_token_id":0,"rms_norm_eps":1e-05,"vocab_size":103424,"rope_theta":500000,"rope_scaling":null,"use_rmsnorm":true,"tie_word_embeddings":true,"use_bias":false,"moe_num_experts":64,"moe_layer_start_index":1,"moe_layer_end_index":27,"moe_intermediate_size":1536,"moe_capacity":[64,64,64],"moe_gate":"topk","moe_k":6,"moe_layer_interval":1,"moe_use_aux_free":true,"num_nextn_predict_layers":1,"moe_num_shared_experts":2,`, func(s *Spec) bool {
		return s.Tied && s.MoE.Shared == 3072 && s.Dense[0] && !s.Dense[1] && !s.Dense[27] && s.Pairing == canon.Pairs && s.Attention.HeadDim == 128
	}},
	{"Hunyuan-A13B", "hunyuan_v1_moe", hunyuanA13B, func(s *Spec) bool {
		return s.Tied && s.MoE.TopK == 8 && s.MoE.Experts == 64 && s.MoE.Shared == 3072 && s.Rope.Alpha == 1000 && slices.Contains(s.EOS, 127960)
	}},
	{"Mixtral-8x7B", "mixtral", `"eos_token_id":2,"hidden_size":4096,"intermediate_size":14336,"max_position_embeddings":32768,"num_attention_heads":32,"num_experts_per_tok":2,"num_hidden_layers":32,"num_key_value_heads":8,"num_local_experts":8,"rms_norm_eps":1e-05,"rope_theta":1000000.0,"sliding_window":null,"tie_word_embeddings":false,"vocab_size":32000,`, func(s *Spec) bool { return s.Rope.Theta == 1e6 && s.MoE.Router.Normalise }},
	{"Mixtral-8x22B", "mixtral", `"eos_token_id":2,"hidden_size":6144,"intermediate_size":16384,"max_position_embeddings":65536,"num_attention_heads":48,"num_experts_per_tok":2,"num_hidden_layers":56,"num_key_value_heads":8,"num_local_experts":8,"rms_norm_eps":1e-05,"rope_theta":1000000,"router_jitter_noise":0.0,"sliding_window":null,"tie_word_embeddings":false,"vocab_size":32768,`, func(s *Spec) bool { return s.Attention.HeadDim == 128 }},
	{"OLMoE-1B-7B", "olmoe", `"attention_bias":false,"clip_qkv":null,"eos_token_id":50279,"hidden_size":2048,"intermediate_size":1024,"max_position_embeddings":4096,"norm_topk_prob":false,"num_attention_heads":16,"num_experts":64,"num_experts_per_tok":8,"num_hidden_layers":16,"num_key_value_heads":16,"pad_token_id":1,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000.0,"tie_word_embeddings":false,"vocab_size":50304,`, func(s *Spec) bool { return s.Attention.Clip == 0 && !s.MoE.Router.Normalise }},
	{"Phi-3.5-MoE", "phimoe", phi35, func(s *Spec) bool {
		r := s.Rope
		return r.Kind == canon.RopeLong && len(r.Short) == 64 && r.Short[0] == 1 && r.Long[63] == 1.25 && r.Original == 4096 && r.Attention == 1.243163121016122 && r.LongAttention == 1.243163121016122 &&
			s.HeadBias && s.Attention.OutBias && s.LongFrom() == 4096 && s.Attention.Window[0] == 131072
	}},
	{"DeepSeek-V4, compress_ratios", "deepseek_v4", `"attention_bias":false,"hidden_size":4096,"num_hidden_layers":5,"num_attention_heads":64,"num_key_value_heads":1,"head_dim":512,"qk_rope_head_dim":64,"q_lora_rank":1024,"o_groups":8,"o_lora_rank":1024,"sliding_window":128,"compress_ratios":[0,0,4,128,4,0],"compress_rope_theta":160000,"index_n_heads":64,"index_head_dim":128,"index_topk":512,"hc_mult":4,"hc_sinkhorn_iters":20,"hc_eps":1e-06,"n_routed_experts":256,"num_experts_per_tok":6,"n_shared_experts":1,"moe_intermediate_size":2048,"num_hash_layers":3,"scoring_func":"sqrtsoftplus","topk_method":"noaux_tc","norm_topk_prob":true,"routed_scaling_factor":1.5,"swiglu_limit":10.0,"rms_norm_eps":1e-06,"rope_theta":10000,"rope_scaling":{"type":"yarn","factor":16,"original_max_position_embeddings":65536,"beta_fast":32,"beta_slow":1},"max_position_embeddings":1048576,"num_nextn_predict_layers":1,"expert_dtype":"fp4","vocab_size":129280,"eos_token_id":1,"tie_word_embeddings":false,` + fp8, func(s *Spec) bool {
		n := s.Attention.Compressed
		return slices.Equal(n.Kinds, []MemoryKind{MemoryNone, MemoryNone, MemoryIndexed, MemoryHeavy, MemoryIndexed}) && s.Rope.Theta == 1e4 && n.Rope.Theta == 1.6e5 && n.Rope.Kind == canon.RopeYarn && slices.Equal(s.MoE.Hash, []bool{true, true, true, false, false})
	}},
}

func TestPublishedConfigurationsAreUnderstood(t *testing.T) {
	for _, test := range understood {
		s, err := parseSpec(published(test.kind, test.text))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		} else if !test.holds(s) {
			t.Errorf("%s: %+v, rope %+v, router %+v", test.name, s, s.Rope, s.MoE.Router)
		}
	}
}

// Checkpoints beside these families, and keys that would change their maths.
func TestPublishedConfigurationsOfOthersAreRefusedByName(t *testing.T) {
	for _, test := range []struct{ kind, text, want string }{
		{"ernie4_5_moe_vl", `"moe_num_experts":[64,64],`, `model_type "ernie4_5_moe_vl": architecture not supported`},
		{"granitemoeshared", graniteShared, `model_type "granitemoeshared"`},
		{"qwen3_vl_moe", qwen3, `model_type "qwen3_vl_moe"`},
		{"granitemoe", graniteShared + `"hidden_size":1024,"intermediate_size":512,"logits_scaling":6.0,"max_position_embeddings":4096,"num_attention_heads":16,"num_hidden_layers":24,"num_local_experts":32,"shared_intermediate_size":1024,`, "shared_intermediate_size"},
		{"hunyuan_v1_moe", strings.Replace(hunyuanA13B, `"use_cla":false`, `"use_cla":true`, 1), "use_cla"},
		{"hunyuan_v1_moe", strings.Replace(hunyuanA13B, `"routed_scaling_factor":1.0`, `"routed_scaling_factor":2.5`, 1), "routed_scaling_factor"},
		{"hunyuan_v1_moe", strings.Replace(hunyuanA13B, `"num_shared_expert":[L1]`, `"num_shared_expert":[L2]`, 1), "num_shared_expert"},
		{"minimax_m2", strings.Replace(minimax, `"layernorm_mlp_beta":1.0`, `"layernorm_mlp_beta":3.5`, 1), "layernorm_mlp_beta"},
		{"minimax_m2", strings.Replace(minimax, `[L1]`, `[L0]`, 1), "attn_type_list"},
		{"qwen3_moe", qwen3 + strings.Replace(qwen3Coder, `"use_qk_norm":true`, `"use_qk_norm":false`, 1) + `"hidden_size":2048,"moe_intermediate_size":768,"num_attention_heads":32,"num_experts":128,"num_hidden_layers":48,`, "use_qk_norm"},
		{"qwen3_moe", qwen3 + strings.Replace(qwen3Coder, `_size":0`, `_size":768`, 1) + `"hidden_size":2048,"moe_intermediate_size":768,"num_attention_heads":32,"num_experts":128,"num_hidden_layers":48,`, "shared_expert_intermediate_size"},
		{"phimoe", strings.Replace(phi35, "[F1.0]", "[1.0]", 1), "short_factor: 1 factors, but a head rotates 64 pairs"},
		{"phimoe", strings.Replace(phi35, "[F1.25]", "[F-1]", 1), "long_factor"},
		{"glm_moe_dsa", strings.Replace(glm5, `"indexer_rope_interleave":true`, `"indexer_rope_interleave":false`, 1), "indexer_rope_interleave"},
		{"dots1", `"scoring_func":"softmax",`, "scoring_func"},
	} {
		_, err := parseSpec(published(test.kind, test.text))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.kind, err, test.want)
		}
	}
}
