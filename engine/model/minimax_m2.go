package model

import "covey/engine/canon"

// minimaxM2 is MiniMax-M2: query and key norms over whole projections, partial rotation, a sigmoid router with a
// correction bias and no groups, whose weights are divided by their plain sum.
func minimaxM2(c *config) Spec {
	s := c.common()
	s.Names = blockSparseNames()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-6))
	s.Attention = c.heads(s.Hidden)
	s.Attention.QKNorm = QKNormWhole
	s.Attention.Window = make([]int, s.Layers)
	// The share of a head that is rotated is spelled rotary_dim, in channels, by the published model. Files with the newer
	// rope_parameters have it there and keep rotary_dim only as a record.
	partial, dim := 1.0, s.Attention.HeadDim
	_, newer := c.value("rope_parameters")
	if rotary := c.integer("rotary_dim", 0, 0, 4096); rotary > 0 && dim > 0 && !newer {
		partial = float64(rotary) / float64(dim)
	}
	s.Rope = c.rope(dim, ropeDefaults{theta: 5e6, partial: partial})
	s.Pairing = canon.Half
	s.MoE = MoE{
		Experts:    c.experts(),
		TopK:       c.integer("num_experts_per_tok", required, 1, 64),
		Inner:      c.integer("intermediate_size", required, 1, 1<<16), // the width of an expert, in spite of its name
		Correction: true,
	}
	s.MoE.Router = canon.RouterSpec{Score: canon.ScoreSigmoid, Experts: s.MoE.Experts, TopK: s.MoE.TopK, Normalise: true}
	s.Dense = make([]bool, s.Layers)

	for _, key := range []string{"use_qk_norm", "use_routing_bias"} {
		if !c.boolean(key, true) {
			c.refuse(key, "false is not supported")
		}
	}
	c.only("scoring_func", "sigmoid")
	c.only("qk_norm_type", "per_layer")
	if c.integer("shared_intermediate_size", 0, 0, 1<<20) != 0 {
		c.refuse("shared_intermediate_size", "shared experts are not supported in this architecture")
	}
	for l, kind := range c.integers("attn_type_list") {
		if kind != 1 {
			c.refuse("attn_type_list", "layer %d has type %d; only 1, full attention, is supported", l, kind)
		}
	}
	for _, key := range []string{"layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"} {
		if beta := c.number(key, 1); beta != 1 {
			c.refuse(key, "%v is not supported; 1 is", beta)
		}
	}
	c.without("use_mtp", "num_mtp_modules", "mtp_transformer_layers", "mlp_intermediate_size", "shared_moe_mode") // of drafting and of blocks that it has not
	return s
}
