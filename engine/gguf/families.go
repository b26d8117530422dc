package gguf

// The architectures of llama.cpp as tables: which key of config.json comes from which key of the metadata, what is always so,
// and what is seen from the tensors (biases and norms are nowhere written down).

import "slices"

// family is an architecture as data.
type family struct {
	model     string         // config.json's model_type
	fields    []field        // beyond the common ones
	constants map[string]any // of config.json
	ignored   []string       // keys of the metadata that do not change the maths
	gating    int64          // expert_gating_func that the family means; 0 = the key is not read
	ungated   bool           // a missing expert_gating_func means that one too
	ownGate   bool           // derive reads expert_gating_func
	derive    func(d *reader, config map[string]any)
	names     map[string]string // tensor names that differ from the common ones
	permuted  bool              // rows of attn_q and attn_k are interleaved within heads
}

// Values of expert_gating_func.
const (
	gateSoftmax = 1
	gateSigmoid = 2
)

// field takes one value of config.json from the metadata.
type field struct {
	name   string // in config.json
	key    string // in the metadata, without the architecture's prefix
	kind   fieldKind
	absent any // for an absent key; nil = left out, must = refused
}

type fieldKind uint8

const (
	whole fieldKind = iota // a whole number, or an array of equal ones
	real
	truth
)

type mandatory struct{}

var must = mandatory{}

// common are the fields that every architecture has.
var common = []field{
	{"hidden_size", "embedding_length", whole, must},
	{"max_position_embeddings", "context_length", whole, must},
	{"num_attention_heads", "attention.head_count", whole, must},
	{"num_experts_per_tok", "expert_used_count", whole, must},
	{"rms_norm_eps", "attention.layer_norm_rms_epsilon", real, must},
	{"rope_theta", "rope.freq_base", real, 10000},
}

// groupedHeads are the fields of grouped-query attention with equal key and value heads.
var groupedHeads = []field{
	{"num_key_value_heads", "attention.head_count_kv", whole, nil},
	{"head_dim", "attention.key_length", whole, nil},
}

// bookkeeping are keys of any architecture that say nothing about the maths.
var bookkeeping = []string{"block_count", "vocab_size", "nextn_predict_layers", "attention.value_length", "attention.causal"}

// sigmoidGroups are the fields of a sigmoid router over groups with shared experts.
var sigmoidGroups = []field{
	{"intermediate_size", "feed_forward_length", whole, must},
	{"moe_intermediate_size", "expert_feed_forward_length", whole, must},
	{"n_routed_experts", "expert_count", whole, must},
	{"n_shared_experts", "expert_shared_count", whole, 0},
	{"n_group", "expert_group_count", whole, 1},
	{"topk_group", "expert_group_used_count", whole, 1},
	{"norm_topk_prob", "expert_weights_norm", truth, false},
	{"routed_scaling_factor", "expert_weights_scale", real, 1},
	{"first_k_dense_replace", "leading_dense_block_count", whole, 0},
}

// blockSparse are the tensor names of Mixtral and its kin.
var blockSparse = map[string]string{
	"ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate_exps": "block_sparse_moe.experts.%d.w1",
	"ffn_up_exps": "block_sparse_moe.experts.%d.w3", "ffn_down_exps": "block_sparse_moe.experts.%d.w2",
}

// families are the architectures by llama.cpp's name.
var families = map[string]*family{
	"glm4moe": {
		model: "glm4_moe", fields: slices.Concat(groupedHeads, sigmoidGroups), gating: gateSigmoid, ungated: true,
		derive: func(d *reader, c map[string]any) {
			d.partialRotation(c)
			c["use_qk_norm"] = d.hasTensor("attn_q_norm.weight")
			c["attention_bias"] = d.hasTensor("attn_q.bias") || d.hasTensor("attn_qkv.bias")
		},
	},
	"dots1": {
		model: "dots1", fields: slices.Concat(groupedHeads, sigmoidGroups), gating: gateSigmoid,
		derive: func(d *reader, c map[string]any) { d.wholeRotation(c); d.biases(c) },
	},
	"qwen3moe": {
		model: "qwen3_moe",
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "feed_forward_length", whole, nil},
			{"moe_intermediate_size", "expert_feed_forward_length", whole, must},
			{"num_experts", "expert_count", whole, must},
			{"norm_topk_prob", "expert_weights_norm", truth, true}, // llama.cpp always normalises
		}),
		derive: func(d *reader, c map[string]any) { d.wholeRotation(c); d.biases(c) },
	},
	"olmoe": {
		model: "olmoe",
		fields: slices.Concat(groupedHeads[:1], []field{
			{"intermediate_size", "feed_forward_length", whole, must},
			{"num_experts", "expert_count", whole, must},
			{"clip_qkv", "attention.clamp_kqv", real, nil},
		}),
		constants: map[string]any{"norm_topk_prob": false}, // llama.cpp never normalises
		ignored:   []string{"attention.key_length"},
		derive:    func(d *reader, c map[string]any) { d.wholeRotation(c); d.biases(c) },
	},
	"llama": {
		model: "mixtral", permuted: true, names: blockSparse,
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "feed_forward_length", whole, must},
			{"num_local_experts", "expert_count", whole, must},
		}),
		derive: func(d *reader, c map[string]any) { d.wholeRotation(c); d.plainProjections() },
	},
	"minimax-m2": {
		model: "minimax_m2", gating: gateSigmoid,
		names: with(blockSparse, "exp_probs_b", "block_sparse_moe.e_score_correction_bias"),
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "expert_feed_forward_length", whole, must},
			{"num_local_experts", "expert_count", whole, must},
			{"rotary_dim", "rope.dimension_count", whole, must},
		}),
		ignored: []string{"feed_forward_length"},
		derive:  func(d *reader, c map[string]any) { d.plainProjections() },
	},
	"qwen2moe": {
		model: "qwen2_moe",
		names: map[string]string{
			"ffn_gate_inp_shexp": "mlp.shared_expert_gate", "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
			"ffn_up_shexp": "mlp.shared_expert.up_proj", "ffn_down_shexp": "mlp.shared_expert.down_proj",
		},
		fields: slices.Concat(groupedHeads[:1], []field{
			{"intermediate_size", "feed_forward_length", whole, nil},
			{"moe_intermediate_size", "expert_feed_forward_length", whole, must},
			{"shared_expert_intermediate_size", "expert_shared_feed_forward_length", whole, must},
			{"num_experts", "expert_count", whole, must},
		}),
		constants: map[string]any{"norm_topk_prob": false}, // llama.cpp never normalises
		ignored:   []string{"attention.key_length"},
		derive: func(d *reader, c map[string]any) {
			d.wholeRotation(c)
			c["qkv_bias"] = d.hasTensor("attn_q.bias") || d.hasTensor("attn_qkv.bias")
		},
	},
	"ernie4_5-moe": {
		model: "ernie4_5_moe", names: map[string]string{"exp_probs_b": "mlp.moe_statics.e_score_correction_bias"},
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "feed_forward_length", whole, must},
			{"moe_intermediate_size", "expert_feed_forward_length", whole, must},
			{"moe_num_experts", "expert_count", whole, must},
			{"moe_k", "expert_used_count", whole, must},
			{"moe_num_shared_experts", "expert_shared_count", whole, 0},
			{"moe_layer_start_index", "leading_dense_block_count", whole, 0},
			{"moe_layer_interval", "interleave_moe_layer_step", whole, 1},
		}),
		constants: map[string]any{"num_experts_per_tok": nil}, // spelled moe_k
		ignored:   []string{"expert_shared_feed_forward_length"},
		derive:    func(d *reader, c map[string]any) { d.wholeRotation(c); d.plainProjections() },
	},
	"granitemoe": {
		model: "granitemoe", permuted: true, names: map[string]string{"ffn_gate_inp": "block_sparse_moe.router.layer"},
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "feed_forward_length", whole, must},
			{"num_local_experts", "expert_count", whole, must},
			{"logits_scaling", "logit_scale", real, must},
			{"residual_multiplier", "residual_scale", real, 1},
			{"embedding_multiplier", "embedding_scale", real, 1},
			{"attention_multiplier", "attention.scale", real, must},
		}),
		derive: func(d *reader, c map[string]any) { d.wholeRotation(c); d.biases(c) },
	},
	"hunyuan-moe": {
		model: "hunyuan_v1_moe",
		names: map[string]string{
			"ffn_gate_inp": "mlp.gate.wg", "attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm",
			"ffn_gate_shexp": "mlp.shared_mlp.gate_proj", "ffn_up_shexp": "mlp.shared_mlp.up_proj", "ffn_down_shexp": "mlp.shared_mlp.down_proj",
		},
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "expert_shared_feed_forward_length", whole, must},
			{"moe_intermediate_size", "expert_feed_forward_length", whole, must},
			{"num_experts", "expert_count", whole, must},
			{"moe_topk", "expert_used_count", whole, must},
			{"num_shared_expert", "expert_shared_count", whole, 1},
		}),
		ignored: []string{"feed_forward_length"},
		derive:  func(d *reader, c map[string]any) { d.wholeRotation(c); d.biases(c) },
	},
	"gpt-oss": {
		model: "gpt_oss",
		names: map[string]string{"ffn_gate_inp": "mlp.router", "attn_sinks": "self_attn.sinks"},
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "expert_feed_forward_length", whole, must},
			{"num_local_experts", "expert_count", whole, must},
			{"sliding_window", "attention.sliding_window", whole, must},
		}),
		constants: map[string]any{"attention_bias": true},
		ignored:   []string{"feed_forward_length"},
		derive: func(d *reader, c map[string]any) {
			d.wholeRotation(c)
			if yarn, ok := c["rope_scaling"].(map[string]any); ok {
				yarn["truncate"] = false // the architecture's own; files do not say
			}
		},
	},
	"deepseek2": {fields: sigmoidGroups, names: latentNames, ignored: latentKeys, ownGate: true, derive: func(d *reader, c map[string]any) {
		d.latent(c)
		switch gating, _ := d.integer("expert_gating_func"); gating {
		case 0, gateSoftmax:
			c["model_type"], c["topk_method"] = "deepseek_v2", "greedy"
			if groups, ok := c["n_group"].(int64); ok && groups > 1 {
				c["topk_method"] = "group_limited_greedy"
			}
		case gateSigmoid:
			c["model_type"] = "deepseek_v3"
		default:
			d.refuse("expert_gating_func", "%d is not supported in this architecture", gating)
		}
	}},
	"deepseek32": {model: "deepseek_v32", fields: slices.Concat(sigmoidGroups, indexer), names: latentNames, ignored: latentKeys, gating: gateSigmoid, ungated: true,
		derive: func(d *reader, c map[string]any) { d.latent(c) }},
	"glm-dsa": {model: "glm_moe_dsa", fields: slices.Concat(sigmoidGroups, indexer), names: latentNames, ignored: latentKeys, gating: gateSigmoid, ungated: true,
		derive: func(d *reader, c map[string]any) {
			d.latent(c)
			const key = "attention.indexer.types"
			d.used[d.prefix+key] = true
			full, err := d.file.Integers(d.prefix + key)
			d.keep(err)
			var types []string
			for _, is := range full {
				types = append(types, map[bool]string{true: "full", false: "shared"}[is != 0])
			}
			if layers, ok := c["num_hidden_layers"].(int64); ok && int64(len(types)) > layers {
				types = types[:layers] // those behind belong to layers that draft
			}
			if types != nil {
				c["indexer_types"] = types
			}
		}},
}

// refused are architectures of models that are supported otherwise, with the reason why their GGUF files are not read.
var refused = map[string]string{
	"phimoe":    "its files leave out what the router needs (router_jitter_noise) and mean another one; use a safetensors checkpoint",
	"qwen3next": "its files hold decays and norms in another form, which would be rounded on the way back; use a safetensors checkpoint",
	"deepseek4": "its tensors have no names here; use a safetensors checkpoint",
}

// latentNames are the tensor names of latent attention and its indexer.
var latentNames = map[string]string{
	"attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
	"attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_kv_b": "self_attn.kv_b_proj",
	"attn_k_b": "self_attn." + KeyExpansion, "attn_v_b": "self_attn." + ValueExpansion,
	"indexer.attn_q_b": "self_attn.indexer.wq_b", "indexer.attn_k": "self_attn.indexer.wk", "indexer.k_norm": "self_attn.indexer.k_norm",
	"indexer.proj": "self_attn.indexer.weights_proj",
}

// latentKeys are keys of latent attention that derive reads, or that say the same again.
var latentKeys = []string{"attention.head_count_kv", "attention.key_length", "attention.key_length_mla", "attention.value_length_mla", "rope.scaling.yarn_log_multiplier"}

// indexer are the fields of sparse attention.
var indexer = []field{
	{"index_n_heads", "attention.indexer.head_count", whole, must},
	{"index_head_dim", "attention.indexer.key_length", whole, must},
	{"index_topk", "attention.indexer.top_k", whole, must},
}
