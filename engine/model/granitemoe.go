package model

import "covey/engine/canon"

// graniteMoE is Granite 3 MoE: factors on embeddings, scores, residual branches and logits, weights that are a softmax over
// the chosen experts, and stacked expert tensors.
func graniteMoE(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-6))
	s.Attention = c.heads(s.Hidden)
	s.Attention.Scale = float32(c.positive("attention_multiplier", 1))
	bias := c.boolean("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	s.Attention.Window = make([]int, s.Layers)
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1e4, partial: 1, fixed: true})
	s.Pairing = canon.Half
	s.EmbedScale = float32(c.positive("embedding_multiplier", 1))
	s.ResidualScale = float32(c.positive("residual_multiplier", 1))
	s.LogitDivisor = float32(c.positive("logits_scaling", 1))
	s.MoE = MoE{
		Experts: c.experts(),
		TopK:    c.integer("num_experts_per_tok", 2, 1, 64),
		Inner:   c.integer("intermediate_size", required, 1, 1<<16), // the width of an expert, in spite of its name
		Stack:   StackRows,
	}
	s.MoE.Router = canon.RouterSpec{Score: canon.ScoreTopSoftmax, Experts: s.MoE.Experts, TopK: s.MoE.TopK}
	const at = "model.layers.%d.block_sparse_moe."
	s.Names.Router = at + "router.layer"
	s.Names.Expert = [3]string{at + "input_linear", at + "input_linear", at + "output_linear"}
	s.Dense = make([]bool, s.Layers)
	return s
}
