package model

import "covey/engine/canon"

// deepseekV2 is DeepSeek-V2 and its Lite form: latent attention, a softmax router whose weights are not normalised, shared
// experts stored as one wide block.
func deepseekV2(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-6))
	c.latent(&s)
	s.Pairing = canon.Pairs
	s.MoE = c.sigmoidGroups(1, false)
	s.MoE.Correction = false
	r := &s.MoE.Router
	r.Score, r.Normalise, r.Eps, r.GroupMax = canon.ScoreSoftmax, false, 0, true // norm_topk_prob has no effect
	switch method := c.text("topk_method", "greedy"); method {
	case "greedy":
		r.Groups, r.TopGroups = 1, 1
	case "group_limited_greedy":
	default:
		c.refuse("topk_method", "%q is not supported; greedy and group_limited_greedy are", method)
	}
	c.only("scoring_func", "softmax")
	s.MLPBias = c.boolean("mlp_bias", false)
	s.DenseInner = c.integer("intermediate_size", required, 1, 1<<20)
	s.Dense = c.denseFirst(s.Layers, 0)
	c.training()
	return s
}

// deepseekV3 is DeepSeek-V3 and R1: latent attention, a sigmoid router with correction bias and expert groups.
func deepseekV3(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-6))
	c.latent(&s)
	c.interleave(&s)
	s.MoE = c.sigmoidGroups(1, true)
	c.only("topk_method", "noaux_tc")
	c.only("scoring_func", "sigmoid")
	s.DenseInner = c.integer("intermediate_size", required, 1, 1<<20)
	s.Dense = c.denseFirst(s.Layers, 3)
	c.training()
	return s
}

// glm4MoELite is GLM-4.7-Flash: DeepSeek-V3's blocks, with dense layers listed one by one.
func glm4MoELite(c *config) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-5))
	c.latent(&s)
	c.interleave(&s)
	s.MoE = c.sigmoidGroups(1, true)
	c.only("topk_method", "noaux_tc")
	c.only("scoring_func", "sigmoid")
	s.DenseInner = c.integer("intermediate_size", required, 1, 1<<20)
	s.Dense = c.denseListed(s.Layers, 1)
	c.without("first_k_dense_replace") // the list counts, or its default
	c.training()
	return s
}

// deepseekV32 is DeepSeek-V3.2: V3 with an indexer on every layer that chooses the positions a row attends.
func deepseekV32(c *config) Spec { return c.sparse(1e-6, canon.Half) }

// glmMoEDSA is GLM-5: DeepSeek-V3.2 whose indexer rotates neighbours, as its attention does, and which shares what it kept
// with the layers behind it that have none.
func glmMoEDSA(c *config) Spec { return c.sparse(1e-5, canon.Pairs) }

// sparse reads a model of DeepSeek-V3's blocks with indexers, whose rotation is paired as pairing says; eps is the norms' default.
func (c *config) sparse(eps float64, pairing canon.Pairing) Spec {
	s := c.common()
	s.NormEps = float32(c.positive("rms_norm_eps", eps))
	c.latent(&s)
	if s.Pairing = canon.Pairs; !c.boolean("rope_interleave", true) {
		c.refuse("rope_interleave", "false is not supported in this architecture")
	}
	s.MoE = c.sigmoidGroups(1, true)
	c.only("topk_method", "noaux_tc")
	c.only("scoring_func", "sigmoid")
	s.MLPBias = c.boolean("mlp_bias", false)
	s.DenseInner = c.integer("intermediate_size", required, 1, 1<<20)
	s.Dense = c.denseListed(s.Layers, c.integer("first_k_dense_replace", 3, 0, 1024))
	c.indexed(&s, pairing)
	c.training()
	return s
}

// latent reads the geometry of latent attention and its rotation.
func (c *config) latent(s *Spec) {
	n := &Latent{
		Query:  c.integer("q_lora_rank", 0, 0, 1<<16),
		Rank:   c.integer("kv_lora_rank", required, 1, 4096),
		Plain:  c.integer("qk_nope_head_dim", required, 1, 4096),
		Rotary: c.integer("qk_rope_head_dim", required, 2, 4096),
		Value:  c.integer("v_head_dim", required, 1, 4096),
		Eps:    1e-6,
		Bias:   c.boolean("attention_bias", false),
	}
	s.Attention = Attention{Heads: c.integer("num_attention_heads", required, 1, 4096), KVHeads: 1, HeadDim: n.Rank + n.Rotary, Latent: n, Window: make([]int, s.Layers)}
	if kv := c.integer("num_key_value_heads", s.Attention.Heads, 1, 4096); kv != s.Attention.Heads {
		c.refuse("num_key_value_heads", "%d, but all %d heads share one latent", kv, s.Attention.Heads)
	}
	if dim := c.integer("qk_head_dim", n.Plain+n.Rotary, 1, 1<<13); dim != n.Plain+n.Rotary {
		c.refuse("qk_head_dim", "%d, but qk_nope_head_dim and qk_rope_head_dim give %d", dim, n.Plain+n.Rotary)
	}
	c.without("head_dim") // the rotary part's width again, or nothing of use
	s.Rope = c.rope(n.Rotary, ropeDefaults{theta: 1e4, partial: 1, fixed: true})
}

// interleave reads which channels rotate together.
func (c *config) interleave(s *Spec) {
	s.Pairing = canon.Half
	if c.boolean("rope_interleave", true) {
		s.Pairing = canon.Pairs
	}
}

// denseListed marks the layers that mlp_layer_types calls dense; without that key the first ones.
func (c *config) denseListed(layers, first int) []bool {
	dense := make([]bool, layers)
	for l := range min(first, layers) {
		dense[l] = true
	}
	for l, kind := range c.list("mlp_layer_types", layers) {
		switch kind {
		case "dense", "sparse":
			dense[l] = kind == "dense"
		default:
			c.refuse("mlp_layer_types", "layer %d: %q is not supported; dense and sparse are", l, kind)
		}
	}
	return dense
}

// training names keys that matter in training only, and one that no published checkpoint sets otherwise.
func (c *config) training() {
	if freq := c.integer("moe_layer_freq", 1, 1, 1024); freq != 1 {
		c.refuse("moe_layer_freq", "%d is not supported; 1 is", freq)
	}
	c.without("aux_loss_alpha", "seq_aux", "ep_size", "index_loss_coef")
}
