package model

import "covey/engine/canon"

// dots1 is dots.llm1: GLM-4.5's router and shared experts with whole heads rotated, query and key norms always, and
// windows on the layers from max_window_layers on.
func dots1(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-6))
	s.Attention = c.heads(s.Hidden)
	s.Attention.QKNorm = QKNormPerHead
	bias := c.boolean("attention_bias", false)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	window, from := c.integer("sliding_window", 0, 0, 1<<24), c.integer("max_window_layers", 62, 0, 1024)
	s.Attention.Window = c.windows(s.Layers, window, func(l int) bool { return window > 0 && l >= from })
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1e4, partial: 1, fixed: true})
	s.Pairing = canon.Half
	s.MoE = c.sigmoidGroups(required, false)
	if score := c.text("scoring_func", "sigmoid"); score != "sigmoid" && score != "noaux_tc" { // both spellings are published
		c.refuse("scoring_func", "%q is not supported; sigmoid is", score)
	}
	c.only("topk_method", "noaux_tc")
	s.DenseInner = c.integer("intermediate_size", required, 1, 1<<20)
	s.Dense = c.denseFirst(s.Layers, 0)
	c.training()
	return s
}
