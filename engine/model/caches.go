package model

import (
	"fmt"

	"covey/engine/canon"
)

// cacheName tells a model's paged caches apart. One page id addresses the page of every one of them.
type cacheName string

const (
	cacheKV    cacheName = "kv"    // keys and values, or latents
	cacheIndex cacheName = "index" // keys of the indexer

	// Compressed memories: entries, and the states of their compressors behind each page's last position.
	cacheHeavy        cacheName = "heavy"
	cacheHeavyState   cacheName = "heavy state"
	cacheIndexed      cacheName = "indexed"
	cacheIndexedState cacheName = "indexed state"
	cacheIndexState   cacheName = "index state"
)

// caches lists the paged caches of an architecture.
func (s *Spec) caches(form canon.Form, pages int) map[cacheName]canon.KVSpec {
	a := s.Attention
	list := map[cacheName]canon.KVSpec{
		cacheKV: {Layers: s.attentionPlace(s.Layers), Heads: a.KVHeads, Dim: a.HeadDim, Pages: pages, Form: form, Single: a.Latent != nil || a.Compressed != nil},
	}
	if a.Latent != nil && a.Latent.Index != nil {
		list[cacheIndex] = canon.KVSpec{Layers: a.Latent.Index.place(s.Layers), Heads: 1, Dim: a.Latent.Index.Dim, Pages: pages, Form: form, Single: true}
	}
	if c := a.Compressed; c != nil {
		memory := func(kind MemoryKind, entries, state cacheName, dim, rate, parts int) {
			if n := c.place(len(c.Kinds), kind); n > 0 {
				list[entries] = canon.KVSpec{Layers: n, Heads: 1, Dim: dim, Pages: pages, Form: form, Single: true, Slots: max(canon.PageTokens/rate, 1)}
				list[state] = canon.KVSpec{Layers: n, Heads: 1, Dim: parts * dim, Pages: pages, Form: canon.F32, Single: true, Slots: 1}
			}
		}
		overlap := canon.Compressor{Overlap: true}.Parts()
		memory(MemoryHeavy, cacheHeavy, cacheHeavyState, a.HeadDim, c.HeavyRate, canon.Compressor{}.Parts())
		memory(MemoryIndexed, cacheIndexed, cacheIndexedState, a.HeadDim, c.IndexedRate, overlap)
		memory(MemoryIndexed, cacheIndex, cacheIndexState, c.IndexDim, c.IndexedRate, overlap)
	}
	return list
}

// pageBytes is the size of one page over all layers and caches.
func (s *Spec) pageBytes(form canon.Form) int64 {
	total := int64(0)
	for _, c := range s.caches(form, 1) {
		total += c.PageBytes()
	}
	return total
}

// TokenBytes is the share of one position in all caches that hold keys and values in the form of Options.KV.
func (s *Spec) TokenBytes(kv string) (int64, error) {
	form, err := cacheForm(kv)
	return s.pageBytes(form) / canon.PageTokens, err
}

// cacheForm resolves Options.KV; the empty name is f16.
func cacheForm(name string) (canon.Form, error) {
	switch name {
	case "", "f16":
		return canon.F16, nil
	case "bf16":
		return canon.BF16, nil
	case "f32":
		return canon.F32, nil
	}
	return 0, fmt.Errorf("model: option KV: %s, want f16, bf16 or f32", name)
}
