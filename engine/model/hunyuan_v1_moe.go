package model

import (
	"slices"

	"github.com/go-json-experiment/json"

	"covey/engine/canon"
)

// hunyuanV1MoE is Hunyuan-A13B: queries and keys are normalised per head after they are rotated, a softmax router with
// weights normalised over the chosen, and a shared expert as wide as a routed one.
func hunyuanV1MoE(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-5))
	s.Attention = c.heads(s.Hidden)
	s.Attention.QKNorm, s.Attention.NormAfterRope = QKNormPerHead, true
	bias := c.boolean("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	s.Attention.Window = make([]int, s.Layers)
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1e4, partial: 1, fixed: true})
	s.Pairing = canon.Half
	inner := c.integer("intermediate_size", required, 1, 1<<16)
	s.MoE = MoE{
		Experts: c.perLayer("num_experts", required, s.Layers),
		TopK:    c.perLayer("moe_topk", c.perLayer("num_experts_per_tok", 1, s.Layers), s.Layers),
		Inner:   inner,
		Shared:  inner,
	}
	s.MoE.Router = canon.RouterSpec{Score: canon.ScoreSoftmax, Experts: s.MoE.Experts, TopK: s.MoE.TopK, Normalise: true}
	const at = "model.layers.%d."
	s.Names.QNorm, s.Names.KNorm = at+"self_attn.query_layernorm.weight", at+"self_attn.key_layernorm.weight"
	s.Names.Router = at + "mlp.gate.wg"
	s.Names.Shared = [3]string{at + "mlp.shared_mlp.gate_proj", at + "mlp.shared_mlp.up_proj", at + "mlp.shared_mlp.down_proj"}
	s.Dense = make([]bool, s.Layers)

	// Widths that experts would have of their own are written to files but not used.
	if width := c.perLayer("moe_intermediate_size", inner, s.Layers); width != inner {
		c.refuse("moe_intermediate_size", "%d differs from intermediate_size %d", width, inner)
	}
	if n := c.perLayer("num_shared_expert", 1, s.Layers); n != 1 {
		c.refuse("num_shared_expert", "%d is not supported; 1 is", n)
	}
	for _, key := range []string{"use_qk_norm", "use_mixed_mlp_moe", "norm_topk_prob", "use_rotary_pos_emb"} {
		if !c.boolean(key, true) {
			c.refuse(key, "false is not supported")
		}
	}
	if n := c.integer("moe_layer_num_skipped", 0, 0, 1024); n != 0 {
		c.refuse("moe_layer_num_skipped", "%d layers without experts are not supported", n)
	}
	if dim := c.integer("attention_head_dim", s.Attention.HeadDim, 1, 4096); dim != s.Attention.HeadDim {
		c.refuse("attention_head_dim", "%d differs from head_dim %d", dim, s.Attention.HeadDim)
	}
	c.only("norm_type", "rms")
	if scale := c.number("routed_scaling_factor", 1); scale != 1 {
		c.refuse("routed_scaling_factor", "%v is not supported; 1 is", scale)
	}
	s.EOS = slices.Compact(slices.Sorted(slices.Values(append(s.EOS, c.tokens("eod_token_id")...))))
	// Of classification heads and of pictures, which the checkpoints share a configuration with; layers share caches only
	// with use_cla.
	c.without("org_vocab_size", "pad_id", "cla_share_factor", "class_num", "dense_list", "pool_type", "mask_init_id",
		"im_start_id", "im_end_id", "im_newline_id", "image_token_id", "text_start_id", "text_end_id", "video_start_id", "video_end_id",
		"num_media_embeds", "anyres_pooling_size", "anyres_vit_max_image_size", "vit_input_resolution", "vit_mapping_type", "vit_norm_type", "vit_patch", "vit_token")
	return s
}

// perLayer reads a whole number that may be spelled as a list of one number a layer, all equal.
func (c *config) perLayer(key string, absent, layers int) int {
	v, ok := c.value(key)
	if !ok || v.Kind() != '[' {
		return c.integer(key, absent, 0, 1<<20)
	}
	var list []int
	if err := json.Unmarshal(v, &list); err != nil || len(list) != layers {
		c.refuse(key, "%s, want a whole number or a list of one for each of %d layers", abbreviate(string(v)), layers)
		return 1
	}
	for l, n := range list {
		if n != list[0] || n < 0 {
			c.refuse(key, "layer %d has %d and layer 0 has %d; layers that differ are not supported", l, n, list[0])
			return 1
		}
	}
	return list[0]
}
