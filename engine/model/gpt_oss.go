package model

import "covey/engine/canon"

// gptOss is gpt-oss: attention with sinks, a window on every second layer, biases everywhere, a clamped activation and
// stacked experts whose gate and up outputs take turns.
func gptOss(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-5))
	s.Attention = c.heads(s.Hidden)
	s.Attention.Sinks = true
	bias := c.boolean("attention_bias", true)
	s.Attention.QKVBias, s.Attention.OutBias = bias, bias
	s.Attention.Window = c.windows(s.Layers, c.integer("sliding_window", 128, 0, 1<<24), func(l int) bool { return l%2 == 0 })
	_, given := c.value("rope_parameters")
	_, old := c.value("rope_scaling")
	s.Rope = c.rope(s.Attention.HeadDim, ropeDefaults{theta: 1.5e5, partial: 1, fixed: true})
	if !given && !old {
		s.Rope.Kind, s.Rope.Factor, s.Rope.Original, s.Rope.BetaFast, s.Rope.BetaSlow = canon.RopeYarn, 32, 4096, 32, 1
	}
	s.Pairing = canon.Half
	s.MoE = MoE{
		Experts:    c.experts(),
		TopK:       c.integer("num_experts_per_tok", c.integer("experts_per_token", 4, 1, 64), 1, 64),
		Inner:      c.integer("intermediate_size", required, 1, 1<<16), // the width of an expert, in spite of its name
		RouterBias: true,
		Bias:       true,
		Stack:      StackInterleaved,
		Activation: canon.Activation{Kind: canon.SwiGLUOss, Limit: float32(c.positive("swiglu_limit", 7))},
	}
	s.MoE.Router = canon.RouterSpec{Score: canon.ScoreTopSoftmax, Experts: s.MoE.Experts, TopK: s.MoE.TopK}
	const at = "model.layers.%d.mlp."
	s.Names.Router = at + "router"
	s.Names.Expert = [3]string{at + "experts.gate_up_proj", at + "experts.gate_up_proj", at + "experts.down_proj"}
	s.Dense = make([]bool, s.Layers)
	c.without("initial_context_length") // original_max_position_embeddings in another spelling
	return s
}
