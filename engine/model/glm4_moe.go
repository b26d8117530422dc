package model

import "covey/engine/canon"

// glm4MoE is GLM-4.5 and 4.6: partial rotation, optional per-head query and key norms, biases on q, k and v only, a
// sigmoid router with correction bias and expert groups, a shared expert, and dense first layers.
func glm4MoE(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-5))
	s.Attention = c.heads(s.Hidden)
	s.Attention.QKVBias = c.boolean("attention_bias", false)
	if c.boolean("use_qk_norm", false) {
		s.Attention.QKNorm = QKNormPerHead
	}
	s.Attention.Window = make([]int, s.Layers)
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1e4, partial: 0.5})
	s.Pairing = canon.Half

	s.MoE = c.sigmoidGroups(1, true)
	s.DenseInner = c.integer("intermediate_size", required, 1, 1<<20)
	s.Dense = c.denseFirst(s.Layers, 1)
	return s
}
