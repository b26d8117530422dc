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

	inner := c.integer("moe_intermediate_size", required, 1, 1<<16)
	s.MoE = MoE{
		Experts:    c.integer("n_routed_experts", required, 1, 1<<16-1),
		TopK:       c.integer("num_experts_per_tok", required, 1, 64),
		Inner:      inner,
		Shared:     inner * c.integer("n_shared_experts", 1, 0, 1<<10),
		Correction: true,
	}
	s.MoE.Router = canon.RouterSpec{
		Score: canon.ScoreSigmoid, Experts: s.MoE.Experts, TopK: s.MoE.TopK,
		Groups: c.integer("n_group", 1, 1, 256), TopGroups: c.integer("topk_group", 1, 1, 256),
		Normalise: c.boolean("norm_topk_prob", true), Scale: float32(c.number("routed_scaling_factor", 1)),
	}
	if s.MoE.Router.Normalise {
		s.MoE.Router.Eps = 1e-20
	}
	r := s.MoE.Router
	if r.Experts%r.Groups != 0 || r.TopGroups > r.Groups || r.TopGroups*(r.Experts/r.Groups) < r.TopK {
		c.refuse("n_group", "%d groups, the best %d of them kept, do not fit %d experts of which %d are chosen", r.Groups, r.TopGroups, r.Experts, r.TopK)
	}
	s.DenseInner = c.integer("intermediate_size", required, 1, 1<<20)
	s.Dense = make([]bool, s.Layers)
	for l := range min(c.integer("first_k_dense_replace", 1, 0, 1024), s.Layers) {
		s.Dense[l] = true
	}
	return s
}
