package model

import "covey/engine/canon"

// qwen3MoE is Qwen3-30B-A3B and its kin: per-head query and key norms, a softmax router, no shared expert, and dense
// layers at intervals.
func qwen3MoE(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-6))
	s.Attention = c.heads(s.Hidden)
	s.Attention.QKNorm = QKNormPerHead
	bias := c.boolean("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	s.Attention.Window = make([]int, s.Layers)
	// The window counts only if its flag is set, and then on every layer whatever max_window_layers says.
	window := c.integer("sliding_window", 4096, 0, 1<<24)
	if c.boolean("use_sliding_window", false) {
		if window == 0 {
			c.refuse("sliding_window", "zero, but use_sliding_window is set")
		}
		for l := range s.Attention.Window {
			s.Attention.Window[l] = window
		}
	}
	if !c.boolean("use_qk_norm", true) {
		c.refuse("use_qk_norm", "false is not supported")
	}
	if n := c.integer("shared_expert_intermediate_size", 0, 0, 1<<20); n != 0 {
		c.refuse("shared_expert_intermediate_size", "%d: this architecture has no shared expert", n)
	}
	c.without("max_window_layers")
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1e4, partial: 1, fixed: true})
	s.Pairing = canon.Half

	s.MoE = c.softmaxExperts(false)
	s.DenseInner = c.integer("intermediate_size", 6144, 1, 1<<20)
	s.Dense = c.denseAtIntervals(s.Layers)
	return s
}

// experts reads the number of routed experts, which two keys may spell.
func (c *config) experts() int {
	n := c.integer("num_experts", 0, 0, 1<<16-1)
	other := c.integer("num_local_experts", n, 0, 1<<16-1)
	switch {
	case n == 0:
		n = other
	case n != other:
		c.refuse("num_local_experts", "%d, but num_experts is %d", other, n)
	}
	if n == 0 {
		c.refuse("num_experts", "missing or zero")
		n = 1
	}
	return n
}
