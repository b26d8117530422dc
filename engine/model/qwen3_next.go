package model

import "covey/engine/canon"

// qwen3Next is Qwen3-Next: three layers of gated delta net to one of attention, whose outputs are gated; norms that store
// their weight less one; a softmax router and a shared expert behind a sigmoid gate.
func qwen3Next(c *config) Spec {
	s := c.common()
	s.NormEps, s.NormPlusOne = float32(c.positive("rms_norm_eps", 1e-6)), true
	s.Attention = c.heads(s.Hidden)
	s.Attention.QKNorm, s.Attention.Gate = QKNormPerHead, true
	bias := c.boolean("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	s.Attention.Window = make([]int, s.Layers)
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1e4, partial: 0.25})
	s.Pairing = canon.Half

	s.Delta = &DeltaNet{
		KeyHeads: c.integer("linear_num_key_heads", 16, 1, 4096), ValueHeads: c.integer("linear_num_value_heads", 32, 1, 4096),
		KeyDim: c.integer("linear_key_head_dim", 128, 1, 4096), ValueDim: c.integer("linear_value_head_dim", 128, 1, 4096),
		Taps: c.integer("linear_conv_kernel_dim", 4, 2, 64),
	}
	if s.Delta.ValueHeads%s.Delta.KeyHeads != 0 {
		c.refuse("linear_num_key_heads", "%d does not divide linear_num_value_heads %d", s.Delta.KeyHeads, s.Delta.ValueHeads)
		s.Delta.KeyHeads = s.Delta.ValueHeads
	}
	every := c.integer("full_attention_interval", 4, 1, 1024)
	s.Delta.Layers = c.layerTypes(s.Layers, "linear_attention", func(l int) bool { return (l+1)%every != 0 })
	if s.attentionPlace(s.Layers) == 0 {
		c.refuse("layer_types", "none of the %d layers has full attention, which is not supported", s.Layers)
	}

	s.MoE = c.softmaxExperts(true)
	s.MoE.Shared, s.MoE.SharedGate = c.integer("shared_expert_intermediate_size", 512, 1, 1<<20), true
	s.Names.Shared = sharedExpertNames()
	const at = "model.layers.%d.linear_attn."
	s.Names.Delta = DeltaNames{Projections: at + "in_proj_qkvz", Rates: at + "in_proj_ba", Out: at + "out_proj",
		Conv: at + "conv1d.weight", Decay: at + "A_log", Shift: at + "dt_bias", Norm: at + "norm.weight"}
	s.DenseInner = c.integer("intermediate_size", 5632, 1, 1<<20)
	s.Dense = c.denseAtIntervals(s.Layers)
	return s
}
