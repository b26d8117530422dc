package model

import (
	"github.com/go-json-experiment/json/jsontext"

	"covey/engine/canon"
)

// deepseekV4 is DeepSeek-V4: several residual streams, one shared key and value head with a window, compressed memories,
// experts by a table of tokens on the first layers, outputs turned back by the row's angle.
func deepseekV4(c *config) Spec {
	s := c.common()
	s.Names = deepseekNames("model.", "model.embed_tokens")
	s.published = []Names{deepseekNames("", "embed")}
	s.NormEps = float32(c.positive("rms_norm_eps", 1e-6))
	a := Attention{Heads: c.integer("num_attention_heads", required, 1, 4096), KVHeads: 1, HeadDim: c.integer("head_dim", 512, 8, 4096)}
	if kv := c.integer("num_key_value_heads", 1, 1, 4096); kv != 1 {
		c.refuse("num_key_value_heads", "%d is not supported; 1 is", kv)
	}
	if c.boolean("attention_bias", false) || c.boolean("mlp_bias", false) {
		c.refuse("attention_bias", "biases are not supported in this architecture")
	}
	window := c.integer("sliding_window", 128, 1, 1<<24)
	for range s.Layers {
		a.Window = append(a.Window, window)
	}
	n := &Compressed{
		Query:  c.integer("q_lora_rank", required, 1, 1<<16),
		Groups: c.integer("o_groups", required, 1, 4096), GroupRank: c.integer("o_lora_rank", required, 1, 1<<16),
		IndexHeads: c.integer("index_n_heads", required, 1, 4096), IndexDim: c.integer("index_head_dim", required, 8, 4096), IndexTopK: c.integer("index_topk", required, 1, 1<<20),
	}
	if a.Heads%n.Groups != 0 {
		c.refuse("o_groups", "%d does not divide num_attention_heads %d", n.Groups, a.Heads)
		n.Groups = 1
	}
	c.memories(n, s.Layers)
	c.twoRopes(&s, n, a.HeadDim)
	if n.IndexDim < s.Rope.Rot || n.IndexDim%8 != 0 {
		c.refuse("index_head_dim", "%d, want a multiple of 8 of at least the %d channels that turn", n.IndexDim, s.Rope.Rot)
	}
	a.Compressed = n
	s.Attention = a
	s.Streams = &Streams{
		Count: c.integer("hc_mult", 4, 1, 16), Rounds: c.integer("hc_sinkhorn_iters", 20, 1, 1000), Eps: float32(c.positive("hc_eps", 1e-6)),
	}

	inner := c.integer("moe_intermediate_size", required, 1, 1<<16)
	s.MoE = MoE{
		Experts: c.integer("n_routed_experts", required, 1, 1<<16-1), TopK: c.integer("num_experts_per_tok", required, 1, 64),
		Inner: inner, Correction: true, Hash: c.hashLayers(s.Layers),
		Activation: canon.Activation{Kind: canon.SwiGLULimited, Limit: float32(c.positive("swiglu_limit", 10))},
	}
	if c.integer("n_shared_experts", 1, 0, 1<<10) > 0 {
		s.MoE.Shared = inner // whatever their number
	}
	s.MoE.Router = canon.RouterSpec{Experts: s.MoE.Experts, TopK: s.MoE.TopK, Normalise: true, Eps: 1e-20, Scale: float32(c.number("routed_scaling_factor", 1.5))}
	switch score := c.text("scoring_func", "sqrtsoftplus"); score {
	case "sqrtsoftplus":
		s.MoE.Router.Score = canon.ScoreSqrtSoftplus
	case "sigmoid":
		s.MoE.Router.Score = canon.ScoreSigmoid
	default:
		c.refuse("scoring_func", "%q is not supported; sqrtsoftplus and sigmoid are", score)
	}
	c.only("topk_method", "noaux_tc")
	s.Dense = make([]bool, s.Layers)
	c.without("norm_topk_prob", "qk_rope_head_dim", "expert_dtype") // weights are always normalised; tensors tell their form
	c.training()
	return s
}

// deepseekNames are the names of DeepSeek's own files, whose published ones have no root.
func deepseekNames(root, embed string) Names {
	at := root + "layers.%d."
	return Names{
		Root: root, Embed: embed, Norm: root + "norm.weight", Head: "head",
		AttentionNorm: at + "attn_norm.weight", MLPNorm: at + "ffn_norm.weight",
		Shared: [3]string{at + "ffn.shared_experts.w1", at + "ffn.shared_experts.w3", at + "ffn.shared_experts.w2"},
		Expert: [3]string{at + "ffn.experts.%d.w1", at + "ffn.experts.%d.w3", at + "ffn.experts.%d.w2"},
		Router: at + "ffn.gate", Correction: at + "ffn.gate.bias", Hash: at + "ffn.gate.tid2eid",
	}
}

// memories reads what each layer sees beyond its window, from layer_types or in the older spelling from compress_ratios;
// without either two heavy layers come first and then heavy and indexed ones in turn.
func (c *config) memories(n *Compressed, layers int) {
	n.HeavyRate, n.IndexedRate = c.integer("compress_rate_hca", 128, 1, 4096), c.integer("compress_rate_csa", 4, 1, 4096)
	if rates := c.object("compress_rates"); rates != nil {
		rates.architecture = c.architecture
		n.HeavyRate = rates.integer("heavily_compressed_attention", n.HeavyRate, 1, 4096)
		n.IndexedRate = rates.integer("compressed_sparse_attention", n.IndexedRate, 1, 4096)
		if _, err := rates.finish(); err != nil {
			c.problems = append(c.problems, rates.problems...)
		}
	}
	n.Kinds = make([]MemoryKind, layers)
	for l := range n.Kinds {
		n.Kinds[l] = MemoryHeavy
		if l >= 2 && l%2 == 1 {
			n.Kinds[l] = MemoryIndexed
		}
	}
	if ratios := c.integers("compress_ratios"); ratios != nil {
		if len(ratios) < layers { // drafting layers may be listed behind the others
			c.refuse("compress_ratios", "%d layers of %d", len(ratios), layers)
			ratios = make([]int, layers)
		}
		for l := range n.Kinds {
			switch ratios[l] {
			case 0:
				n.Kinds[l] = MemoryNone
			case n.IndexedRate:
				n.Kinds[l] = MemoryIndexed
			case n.HeavyRate:
				n.Kinds[l] = MemoryHeavy
			default:
				c.refuse("compress_ratios", "layer %d: %d is neither 0 nor %d nor %d", l, ratios[l], n.IndexedRate, n.HeavyRate)
			}
		}
	}
	for l, kind := range c.list("layer_types", layers) {
		switch kind {
		case "sliding_attention":
			n.Kinds[l] = MemoryNone
		case "compressed_sparse_attention":
			n.Kinds[l] = MemoryIndexed
		case "heavily_compressed_attention":
			n.Kinds[l] = MemoryHeavy
		default:
			c.refuse("layer_types", "layer %d: %q is not supported; sliding_attention, compressed_sparse_attention and heavily_compressed_attention are", l, kind)
		}
	}
	for key, rate := range map[string]int{"heavily_compressed_attention": n.HeavyRate, "compressed_sparse_attention": n.IndexedRate} {
		if canon.PageTokens%rate != 0 && rate%canon.PageTokens != 0 {
			c.refuse("compress_rates", "%s: %d neither divides %d nor is a multiple of it", key, rate, canon.PageTokens)
		}
	}
}

// hashLayers marks the layers whose experts a table of tokens names.
func (c *config) hashLayers(layers int) []bool {
	hash := make([]bool, layers)
	for l := range min(c.integer("num_hash_layers", 3, 0, 1024), layers) {
		hash[l] = true
	}
	for l, kind := range c.list("mlp_layer_types", layers) {
		switch kind {
		case "hash_moe", "moe":
			hash[l] = kind == "hash_moe"
		default:
			c.refuse("mlp_layer_types", "layer %d: %q is not supported; hash_moe and moe are", l, kind)
		}
	}
	return hash
}

// twoRopes reads the rotation of layers without a memory and of those with one: nested under rope_parameters, or flat, and
// then the flat one belongs to the memories, with the attention factor 1.
func (c *config) twoRopes(s *Spec, n *Compressed, dim int) {
	absent := ropeDefaults{theta: 1e4, partial: 0.125}
	if rot := c.integer("qk_rope_head_dim", 0, 0, 4096); rot > 0 {
		absent.partial = float64(rot) / float64(dim)
	}
	long := absent
	long.theta = c.positive("compress_rope_theta", 1.6e5)
	outer := c.object("rope_parameters")
	if outer != nil && (outer.values["main"] != nil || outer.values["compress"] != nil) {
		outer.architecture = c.architecture
		s.Rope, n.Rope = c.nestedRope(outer, "main", dim, absent), c.nestedRope(outer, "compress", dim, long)
		if _, err := outer.finish(); err != nil {
			c.problems = append(c.problems, outer.problems...)
		}
	} else {
		n.Rope = c.rope(dim, long)
		n.Rope.Theta = long.theta
		if n.Rope.Kind == canon.RopeYarn {
			n.Rope.Attention = 1
		}
		s.Rope = canon.RopeSpec{Theta: c.positive("rope_theta", absent.theta), Rot: n.Rope.Rot}
	}
	c.without("rope_theta", "partial_rotary_factor", "rope_scaling")
	if s.Rope.Kind == canon.RopeLong || n.Rope.Kind == canon.RopeLong {
		c.refuse("rope_parameters", "longrope is not supported in this architecture")
	}
	if s.Rope.Rot != n.Rope.Rot {
		c.refuse("rope_parameters", "main turns %d channels and compress %d", s.Rope.Rot, n.Rope.Rot)
	}
}

// nestedRope reads one of several rotations.
func (c *config) nestedRope(outer *config, key string, dim int, absent ropeDefaults) canon.RopeSpec {
	v, ok := outer.value(key)
	if !ok {
		return canon.RopeSpec{Theta: absent.theta, Rot: int(float64(dim) * absent.partial)}
	}
	one := *c
	one.values = map[string]jsontext.Value{"rope_parameters": v, "max_position_embeddings": c.values["max_position_embeddings"]}
	one.problems = nil
	one.used = map[string]bool{}
	spec := one.rope(dim, absent)
	c.problems = append(c.problems, one.problems...)
	spec.Truncate = spec.Kind == canon.RopeYarn && outer.boolean("truncate", true) // the key counts outside only
	return spec
}
