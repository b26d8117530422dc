package model

import "covey/engine/canon"

// ernie4_5MoE is ERNIE 4.5: neighbouring channels rotate together, a softmax router whose correction bias is added to the
// probabilities, weights divided by a sum that is kept from vanishing, shared experts stored as one wide block.
func ernie4_5MoE(c *config) Spec {
	s := c.common()
	s.Tied = c.boolean("tie_word_embeddings", true)
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-5))
	s.Attention = c.heads(s.Hidden)
	bias := c.boolean("use_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias, s.MLPBias, s.HeadBias = bias, bias, bias, bias
	s.Attention.Window = make([]int, s.Layers)
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 5e5, partial: 1, fixed: true})
	s.Pairing = canon.Pairs
	inner := c.integer("moe_intermediate_size", required, 1, 1<<16)
	s.MoE = MoE{
		Experts:    c.integer("moe_num_experts", 64, 1, 1<<16-1),
		TopK:       c.integer("moe_k", 6, 1, 64),
		Inner:      inner,
		Shared:     inner * c.integer("moe_num_shared_experts", 2, 0, 1<<10),
		Correction: true,
	}
	s.MoE.Router = canon.RouterSpec{Score: canon.ScoreSoftmax, Experts: s.MoE.Experts, TopK: s.MoE.TopK, Normalise: true, MinSum: float32(c.number("moe_norm_min", 1e-12))}
	s.Names.Correction = "model.layers.%d.mlp.moe_statics.e_score_correction_bias"
	s.DenseInner = c.integer("intermediate_size", required, 1, 1<<20)
	s.Dense = make([]bool, s.Layers)
	from, to, step := c.integer("moe_layer_start_index", 1, 0, 1024), c.integer("moe_layer_end_index", -1, -1, 1024), c.integer("moe_layer_interval", 1, 1, 1024)
	if to == -1 {
		to = s.Layers - 1
	}
	for l := range s.Dense {
		s.Dense[l] = l < from || l > to || (l+1)%step != 0
	}
	c.without("moe_use_aux_free", "moe_capacity", "moe_gate", "use_rmsnorm", "compression_ratio", "fuse_rope")
	return s
}
