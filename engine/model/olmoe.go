package model

import "covey/engine/canon"

// olmoe is OLMoE: query and key norms over whole projections, optional clipping, a softmax router, experts in every layer.
func olmoe(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-5))
	s.Attention = c.heads(s.Hidden)
	s.Attention.QKNorm = QKNormWhole
	bias := c.boolean("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	if s.Attention.Clip = float32(c.number("clip_qkv", 0)); s.Attention.Clip < 0 {
		c.refuse("clip_qkv", "%v is negative", s.Attention.Clip)
	}
	s.Attention.Window = make([]int, s.Layers)
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1e4, partial: 1, fixed: true})
	s.Pairing = canon.Half

	s.MoE = MoE{
		Experts: c.experts(),
		TopK:    c.integer("num_experts_per_tok", required, 1, 64),
		Inner:   c.integer("intermediate_size", required, 1, 1<<16), // the width of an expert, in spite of its name
	}
	s.MoE.Router = canon.RouterSpec{Score: canon.ScoreSoftmax, Experts: s.MoE.Experts, TopK: s.MoE.TopK, Normalise: c.boolean("norm_topk_prob", false)}
	s.Dense = make([]bool, s.Layers)
	return s
}
