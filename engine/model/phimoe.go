package model

import "covey/engine/canon"

// phiMoE is Phi-3.5-MoE: layer norms with biases, and the sparse mixer, which chooses two experts one after the other and
// weights each by its share among those near it.
func phiMoE(c *config) Spec {
	s := c.common()
	s.Names = blockSparseNames()
	s.NormEps, s.LayerNorm = float32(c.positive("rms_norm_eps", 1e-5)), true
	s.Attention = c.heads(s.Hidden)
	bias := c.boolean("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	s.Attention.Window = c.windowEverywhere(s.Layers)
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1e6, partial: 1, fixed: true})
	s.Pairing = canon.Half
	s.HeadBias = c.boolean("lm_head_bias", false)
	s.MoE = MoE{
		Experts: c.experts(),
		TopK:    c.integer("num_experts_per_tok", 2, 1, 64),
		Inner:   c.integer("intermediate_size", required, 1, 1<<16), // the width of an expert, in spite of its name
	}
	if s.MoE.TopK != 2 {
		c.refuse("num_experts_per_tok", "%d is not supported; 2 is", s.MoE.TopK)
	}
	// Noise at training, a threshold here.
	s.MoE.Router = canon.RouterSpec{Score: canon.ScoreSparseMixer, Experts: s.MoE.Experts, TopK: s.MoE.TopK, Jitter: float32(c.positive("router_jitter_noise", 0.01))}
	s.Dense = make([]bool, s.Layers)
	c.without("input_jitter_noise")
	return s
}
