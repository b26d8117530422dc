package model

// What several families have in common: tensor names, windows by layer, dense layers, routers.

import (
	"slices"

	"github.com/go-json-experiment/json"

	"covey/engine/canon"
)

// blockSparseNames are the names of Mixtral and its kin: w1 is the gate, w3 the up and w2 the down matrix.
func blockSparseNames() Names {
	n := standardNames
	const at = "model.layers.%d.block_sparse_moe."
	n.Router = at + "gate"
	n.Correction = at + "e_score_correction_bias"
	n.Expert = [3]string{at + "experts.%d.w1", at + "experts.%d.w3", at + "experts.%d.w2"}
	return n
}

// windowEverywhere is the window of families that have one on all layers or, with the key absent, null or 0, on none.
func (c *config) windowEverywhere(layers int) []int {
	window := c.integer("sliding_window", 0, 0, 1<<24)
	return slices.Repeat([]int{window}, layers)
}

// layerTypes marks the layers that layer_types calls by the given name, all others being full_attention; without that key
// the layers that absent picks.
func (c *config) layerTypes(layers int, name string, absent func(layer int) bool) []bool {
	var types []string
	v, given := c.value("layer_types")
	if given {
		if err := json.Unmarshal(v, &types); err != nil || len(types) != layers {
			c.refuse("layer_types", "%s, want a list of %d attention types", abbreviate(string(v)), layers)
			types = slices.Repeat([]string{"full_attention"}, layers)
		}
	}
	marked := make([]bool, layers)
	for l := range marked {
		marked[l] = !given && absent(l)
		if given {
			switch types[l] {
			case name:
				marked[l] = true
			case "full_attention":
			default:
				c.refuse("layer_types", "layer %d: %q is not supported; full_attention and %s are", l, types[l], name)
			}
		}
	}
	return marked
}

// windows gives the layers that layer_types calls sliding_attention the window; without that key the layers that absent
// picks. Windows of 0 are refused where one is needed.
func (c *config) windows(layers, window int, absent func(layer int) bool) []int {
	out := make([]int, layers)
	for l, sliding := range c.layerTypes(layers, "sliding_attention", absent) {
		if sliding {
			if window < 1 {
				c.refuse("sliding_window", "missing or zero, but layer %d has a window", l)
			}
			out[l] = max(window, 1)
		}
	}
	return out
}

// denseAtIntervals marks the layers without experts of the Qwen families.
func (c *config) denseAtIntervals(layers int) []bool {
	only, step := c.integers("mlp_only_layers"), c.integer("decoder_sparse_step", 1, 1, 1024)
	dense := make([]bool, layers)
	for l := range dense {
		dense[l] = slices.Contains(only, l) || (l+1)%step != 0
	}
	return dense
}

// denseFirst marks the first layers, as many as first_k_dense_replace says.
func (c *config) denseFirst(layers, absent int) []bool {
	dense := make([]bool, layers)
	for l := range min(c.integer("first_k_dense_replace", absent, 0, 1024), layers) {
		dense[l] = true
	}
	return dense
}

// sigmoidGroups reads the routed layers of the families that score experts by a sigmoid, choose with a correction bias
// among the best groups and add shared experts that are stored as one wide block.
func (c *config) sigmoidGroups(sharedAbsent int, normalise bool) MoE {
	inner := c.integer("moe_intermediate_size", required, 1, 1<<16)
	m := MoE{
		Experts:    c.integer("n_routed_experts", required, 1, 1<<16-1),
		TopK:       c.integer("num_experts_per_tok", required, 1, 64),
		Inner:      inner,
		Shared:     inner * c.integer("n_shared_experts", sharedAbsent, 0, 1<<10),
		Correction: true,
	}
	m.Router = canon.RouterSpec{
		Score: canon.ScoreSigmoid, Experts: m.Experts, TopK: m.TopK,
		Groups: c.integer("n_group", 1, 1, 256), TopGroups: c.integer("topk_group", 1, 1, 256),
		Normalise: c.boolean("norm_topk_prob", normalise), Scale: float32(c.number("routed_scaling_factor", 1)),
	}
	if m.Router.Normalise {
		m.Router.Eps = 1e-20
	}
	r := m.Router
	if r.Experts%r.Groups != 0 || r.TopGroups > r.Groups || r.TopGroups*(r.Experts/r.Groups) < r.TopK {
		c.refuse("n_group", "%d groups, the best %d of them kept, do not fit %d experts of which %d are chosen", r.Groups, r.TopGroups, r.Experts, r.TopK)
	}
	return m
}
