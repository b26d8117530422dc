package model

// The indexer of sparse attention: a small attention of its own that chooses which positions a row attends. A layer
// without one attends what the nearest layer before it chose.

import (
	"fmt"

	"github.com/go-json-experiment/json"

	"covey/engine/canon"
)

// Index is the geometry of an indexer. Its queries come from the latent of the attention's queries, its keys and weights
// from the input; the leading channels of both turn by the attention's angles.
type Index struct {
	Heads, Dim int
	TopK       int // positions kept
	Pairing    canon.Pairing
	Full       []bool  // [layers] the layer has an indexer; the first one has
	Eps        float32 // of the keys' LayerNorm
}

// place is a layer's number among those that have an indexer.
func (x *Index) place(layer int) int {
	n := 0
	for _, full := range x.Full[:layer] {
		if full {
			n++
		}
	}
	return n
}

// indexLayer holds the packed weights of one indexer.
type indexLayer struct {
	q, k, weights      *canon.Matrix
	keyNorm, keyOffset []float32
}

// indexer returns the jobs that read the indexer of layer i.
func (l *loader) indexer(z *latentLayer, i int) []job {
	n, at := l.spec.Attention.Latent, fmt.Sprintf("model.layers.%d.self_attn.indexer.", i)
	x, hidden := n.Index, l.spec.Hidden
	z.index = &indexLayer{}
	return []job{
		l.matrix(&z.index.q, at+"wq_b", x.Heads*x.Dim, n.Query),
		l.matrix(&z.index.k, at+"wk", x.Dim, hidden),
		l.matrix(&z.index.weights, at+"weights_proj", x.Heads, hidden),
		l.vector(&z.index.keyNorm, at+"k_norm.weight", x.Dim),
		l.vector(&z.index.keyOffset, at+"k_norm.bias", x.Dim),
	}
}

// indexBuffers are what indexers keep beside the builder.
type indexBuffers struct {
	kept       *canon.Selection // of the latest indexer; nil without any
	q, k, each *canon.Buffer    // [heads*dim], [dim], [heads]
}

func (b *builder) newIndexer() {
	p, x := b.program, b.spec.Attention.Latent.Index
	b.mla.index = indexBuffers{kept: p.NewSelection(x.TopK, 1), q: p.Buffer(x.Heads * x.Dim), k: p.Buffer(x.Dim), each: p.Buffer(x.Heads)}
}

// choose runs a layer's indexer: it leaves the positions to attend in the selection.
func (b *builder) choose(l int, z *indexLayer) {
	p, x, g := b.program, b.spec.Attention.Latent.Index, &b.mla.index
	p.MatMul(g.q, b.mla.down, z.q, nil)
	p.MatMulN(b.h, canon.Product{Dst: g.k, M: z.k}, canon.Product{Dst: g.each, M: z.weights})
	p.LayerNorm(g.k, g.k, z.keyNorm, z.keyOffset, x.Eps)
	p.Rope(g.q, x.Heads, b.mla.rope, x.Pairing, 0)
	p.Rope(g.k, 1, b.mla.rope, x.Pairing, 0)
	p.KVAppend(b.caches[cacheIndex], x.place(l), g.k, nil)
	p.Index(g.kept, g.q, g.each, b.caches[cacheIndex], x.place(l))
}

// indexed reads the geometry of the indexer.
func (c *config) indexed(s *Spec, pairing canon.Pairing) {
	n := s.Attention.Latent
	n.Index = &Index{
		Heads: c.integer("index_n_heads", required, 1, 4096), Dim: c.integer("index_head_dim", required, 1, 4096), TopK: c.integer("index_topk", required, 1, 1<<20),
		Pairing: pairing, Full: c.indexLayers(s.Layers), Eps: 1e-6,
	}
	if n.Query == 0 {
		c.refuse("q_lora_rank", "missing, but the indexer's queries come from it")
	}
	if x := n.Index; x.Dim%8 != 0 || x.Dim < n.Rotary {
		c.refuse("index_head_dim", "%d, want a multiple of 8 of at least qk_rope_head_dim, %d", x.Dim, n.Rotary)
	}
	if pairs := pairing == canon.Pairs; c.boolean("indexer_rope_interleave", pairs) != pairs {
		c.refuse("indexer_rope_interleave", "%v is not supported in this architecture", !pairs)
	}
	c.without("index_share_for_mtp_iteration") // of layers that draft
	for l, kind := range c.list("layer_types", s.Layers) {
		if kind != "deepseek_sparse_attention" {
			c.refuse("layer_types", "layer %d: %q is not supported; deepseek_sparse_attention is", l, kind)
		}
	}
}

// indexLayers says which layers have an indexer: as indexer_types lists, else by the letters F and S of index_topk_pattern,
// else every index_topk_freq-th layer from index_skip_topk_offset on.
func (c *config) indexLayers(layers int) []bool {
	full := make([]bool, layers)
	freq, offset := c.integer("index_topk_freq", 1, 1, 1024), c.integer("index_skip_topk_offset", 2, 0, 1024)
	for l := range full {
		full[l] = max(l-offset+1, 0)%freq == 0
	}
	kinds, key := c.list("indexer_types", layers), "indexer_types"
	if pattern, ok := c.value("index_topk_pattern"); ok && kinds == nil {
		var letters string
		if key = "index_topk_pattern"; pattern.Kind() == '"' && json.Unmarshal(pattern, &letters) == nil {
			for _, letter := range letters {
				kinds = append(kinds, string(letter))
			}
		} else {
			kinds = c.list(key, layers)
		}
		if len(kinds) != layers {
			c.refuse(key, "%d layers of %d", len(kinds), layers)
			return full
		}
	}
	for l, kind := range kinds {
		switch kind {
		case "full", "F", "shared", "S":
			full[l] = kind == "full" || kind == "F"
		default:
			c.refuse(key, "layer %d: %q is not supported; full and shared are", l, kind)
		}
	}
	if !full[0] {
		c.refuse(key, "layer 0 has no indexer, and no layer before it whose choice it could share")
		full[0] = true
	}
	return full
}
