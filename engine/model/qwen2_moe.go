package model

import "covey/engine/canon"

// qwen2MoE is Qwen1.5-MoE and Qwen2-57B-A14B: biases on q, k and v, a softmax router, a shared expert behind a sigmoid gate,
// and dense layers at intervals.
func qwen2MoE(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-6))
	s.Attention = c.heads(s.Hidden)
	s.Attention.QKVBias = c.boolean("qkv_bias", true)
	// Without layer_types the flag puts windows on every second layer before max_window_layers.
	window, before := c.integer("sliding_window", 4096, 0, 1<<24), c.integer("max_window_layers", 28, 0, 1024)
	on := c.boolean("use_sliding_window", false)
	s.Attention.Window = c.windows(s.Layers, window, func(l int) bool { return on && l%2 == 0 && l < before })
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1e4, partial: 1, fixed: true})
	s.Pairing = canon.Half
	s.MoE = c.softmaxExperts(false)
	s.MoE.Shared, s.MoE.SharedGate = c.integer("shared_expert_intermediate_size", 5632, 1, 1<<20), true
	s.Names.Shared = sharedExpertNames()
	s.DenseInner = c.integer("intermediate_size", 5632, 1, 1<<20)
	s.Dense = c.denseAtIntervals(s.Layers)
	return s
}

// sharedExpertNames are the names of the Qwen families' one shared expert.
func sharedExpertNames() [3]string {
	const at = "model.layers.%d.mlp.shared_expert."
	return [3]string{at + "gate_proj", at + "up_proj", at + "down_proj"}
}

// softmaxExperts reads the routed layers of the Qwen families.
func (c *config) softmaxExperts(normalise bool) MoE {
	m := MoE{
		Experts: c.experts(),
		TopK:    c.integer("num_experts_per_tok", required, 1, 64),
		Inner:   c.integer("moe_intermediate_size", required, 1, 1<<16),
	}
	m.Router = canon.RouterSpec{Score: canon.ScoreSoftmax, Experts: m.Experts, TopK: m.TopK, Normalise: c.boolean("norm_topk_prob", normalise)}
	return m
}
