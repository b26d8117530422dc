package canon

/*
#include "engine.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// PageTokens is the number of positions in a KV page.
const PageTokens = 64

// KVSpec is the geometry of a paged cache of keys and values.
type KVSpec struct {
	Layers int  // layers that share the page ids
	Heads  int  // key/value heads
	Dim    int  // channels a head, a multiple of 8
	Pages  int  // pages in all
	Form   Form // F32, F16 (infinite values are a fault of their row) or BF16

	// Single stores one vector a head and position, which serves as key and as value (values are its leading channels).
	Single bool
	Slots  int // single only: vectors a page; 0 = PageTokens
}

// KV is a cache of keys and values in pages of 64 positions; one page id addresses the page of every layer. A key page is
// [head][channel][64] (keys in lanes), a value page [head][64][channel], a page of single vectors [slot][head][channel]. Memory is committed as pages are first written.
// Which sequence owns a page is the caller's business; steps name pages by id. Not safe for use beside a running step,
// except for pages that the step does not name.
type KV struct {
	spec KVSpec
	c    C.canon_kv
	mem  []byte
}

// NewKV returns a zeroed cache.
func (a *Arena) NewKV(s KVSpec) (*KV, error) {
	if s.Layers <= 0 || s.Heads <= 0 || s.Dim <= 0 || s.Dim%8 != 0 || s.Pages <= 0 {
		return nil, fmt.Errorf("canon: kv cache: geometry %d layers, %d heads of %d, %d pages is out of range (the head width must be a multiple of 8)", s.Layers, s.Heads, s.Dim, s.Pages)
	}
	if s.Form != F32 && s.Form != F16 && s.Form != BF16 {
		return nil, fmt.Errorf("canon: kv cache: form %s; f32, f16 and bf16 are known", s.Form)
	}
	if s.Slots < 0 || s.Slots > 0 && !s.Single {
		return nil, fmt.Errorf("canon: kv cache: %d slots a page, which only caches of single vectors choose", s.Slots)
	}
	if s.Slots == 0 {
		s.Slots = PageTokens
	}
	kv := &KV{spec: s}
	mem, err := a.Bytes(s.Pages * int(kv.PageBytes()))
	if err != nil {
		return nil, fmt.Errorf("canon: kv cache: %w", err)
	}
	kv.mem = mem
	kv.c = C.canon_kv{data: (*C.uint8_t)(unsafe.SliceData(mem)), form: C.int32_t(s.Form), layers: C.int32_t(s.Layers),
		heads: C.int32_t(s.Heads), dim: C.int32_t(s.Dim), pages: C.int32_t(s.Pages), single: C.int32_t(b2i(s.Single)), slots: C.int32_t(s.Slots)}
	return kv, nil
}

// Spec returns the geometry.
func (kv *KV) Spec() KVSpec { return kv.spec }

// PageBytes is the size of one page over all layers.
func (kv *KV) PageBytes() int64 { return kv.spec.PageBytes() }

// PageBytes is the size of one page over all layers.
func (s KVSpec) PageBytes() int64 {
	vectors := 2 * PageTokens
	if s.Single {
		vectors = s.Slots
		if vectors == 0 {
			vectors = PageTokens
		}
	}
	return int64(s.Layers) * int64(vectors) * int64(s.Heads) * int64(s.Dim) * int64(s.Form.Bits()/8)
}

// Page returns the bytes of one page over all layers (for saving, restoring and copying). Layout: per layer keys, then values.
func (kv *KV) Page(id int) []byte {
	n := int(kv.PageBytes())
	return kv.mem[id*n : (id+1)*n : (id+1)*n]
}

// Zero clears a page, as must be done before another owner may get it.
func (kv *KV) Zero(id int) { clear(kv.Page(id)) }

// Copy makes page dst equal to page src on all layers (before a shared page is written to).
func (kv *KV) Copy(dst, src int) { copy(kv.Page(dst), kv.Page(src)) }
