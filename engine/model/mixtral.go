package model

import "covey/engine/canon"

// mixtral is Mixtral: no query or key norms, weights normalised over the chosen experts, a window on all layers or none.
func mixtral(c *config) Spec {
	s := c.common()
	s.Names = blockSparseNames()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-5))
	s.Attention = c.heads(s.Hidden)
	s.Attention.Window = c.windowEverywhere(s.Layers)
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1e6, partial: 1, fixed: true})
	s.Pairing = canon.Half
	s.MoE = MoE{
		Experts: c.experts(),
		TopK:    c.integer("num_experts_per_tok", 2, 1, 64),
		Inner:   c.integer("intermediate_size", required, 1, 1<<16), // the width of an expert, in spite of its name
	}
	s.MoE.Router = canon.RouterSpec{Score: canon.ScoreSoftmax, Experts: s.MoE.Experts, TopK: s.MoE.TopK, Normalise: true}
	s.Dense = make([]bool, s.Layers)
	return s
}
