// Package kv keeps the books of the paged KV cache: which page holds which 64 positions of which sequence.
//
// It knows page numbers and tokens, never the numbers stored in a page; the same page number addresses every layer of
// the model. Pages that a finished sequence filled whole stay behind in a prefix index, one tree per owner, so that a
// later prompt of the same owner with equal leading tokens starts from them. Reuse cannot change a result: the stored
// keys and values depend on the tokens alone (numerics rule 6). Where they also depend on whether a sequence is long, the
// caller names another owner for those that are.
//
// A model with recurrent state keeps some of each sequence's past outside its pages, in a slot of its own. Keys and values
// without the state behind them are no use to another sequence, so such a cache reuses nothing.
//
// A page changes owner only after it was cleared. Pages without a sequence are evicted least recently used first, leaves
// before their parents.
package kv

import (
	"container/list"
	"errors"
	"fmt"
	"slices"
)

// PageTokens is the number of positions a page holds.
const PageTokens = 64

// ErrFull means that not enough pages are free; nothing was changed.
var ErrFull = errors.New("kv: no free pages")

// Cache is the allocator. It is not safe for concurrent use: one goroutine, the one that builds steps, owns it.
type Cache struct {
	clear  func(page int32)
	free   []int32          // pages without content of interest; last in, first out
	owners []string         // [pages] owner of the page's content; meaningful where used
	used   []bool           // [pages] the page holds somebody's content, even if it is free now
	roots  map[string]*node // per owner
	idle   list.List        // *node without sequences, least recently used first
	states []int32          // free slots of recurrent state

	recurrent bool // sequences have such slots
	inUse     int  // pages held by open sequences, shared ones once
}

// node is one whole page in an owner's prefix tree.
type node struct {
	page     int32
	refs     int // open sequences that use the page
	tokens   [PageTokens]int32
	parent   *node // nil for roots
	children map[uint64][]*node
	place    *list.Element // in idle; nil while refs > 0
}

// New makes a cache over pages numbered 0..pages-1 and as many slots of recurrent state as states, 0 for a model without.
// clear must overwrite the page's content in every layer; it is called before a page that held one owner's content is given
// to another.
func New(pages, states int, clear func(page int32)) *Cache {
	if pages < 0 || states < 0 || clear == nil {
		panic("kv: New needs a page count and a clear function")
	}
	c := &Cache{clear: clear, owners: make([]string, pages), used: make([]bool, pages), roots: map[string]*node{}, recurrent: states > 0}
	for p := pages - 1; p >= 0; p-- {
		c.free = append(c.free, int32(p))
	}
	for s := states - 1; s >= 0; s-- {
		c.states = append(c.states, int32(s))
	}
	return c
}

// Sequence is one open sequence: its tokens so far and the pages that hold them.
type Sequence struct {
	cache  *Cache
	owner  string
	tokens []int32 // tokens whose keys and values are in pages
	pages  []int32
	state  int32   // slot of recurrent state; -1 = none
	nodes  []*node // the leading pages that are in the index; len(nodes) <= len(pages)
	closed bool
}

// Stats is a snapshot of the cache in pages.
type Stats struct {
	Pages int // all
	InUse int // held by open sequences
	Idle  int // kept for reuse only; evicted on demand
}

// Stats counts pages.
func (c *Cache) Stats() Stats { return Stats{Pages: len(c.used), InUse: c.inUse, Idle: c.idle.Len()} }

// Capacity is the number of tokens that all sequences together may hold.
func (c *Cache) Capacity() int { return len(c.used) * PageTokens }

// Available is the number of pages that Reserve could still hand out: free ones and idle ones.
func (c *Cache) Available() int { return len(c.free) + c.idle.Len() }

// pagesFor is the number of pages that n tokens need.
func pagesFor(n int) int { return (n + PageTokens - 1) / PageTokens }

// Open starts a sequence of owner whose first tokens are prompt and returns it with as many leading whole pages as the
// index holds for that owner, limited to reuse tokens (0 = start empty). The tokens covered count as written: Len says
// how many, and the caller goes on from there. At least one prompt token is always left to compute, because its logits
// are needed. The empty owner shares with nobody. prompt is not kept.
func (c *Cache) Open(owner string, prompt []int32, reuse int) *Sequence {
	s := &Sequence{cache: c, owner: owner, state: -1}
	if owner == "" || c.recurrent {
		return s
	}
	limit := min(reuse, len(prompt)-1)
	at := c.roots[owner]
	for n := 0; at != nil && n+PageTokens <= limit; n += PageTokens {
		at = at.child(prompt[n : n+PageTokens])
		if at == nil {
			break
		}
		c.hold(at)
		s.nodes = append(s.nodes, at)
		s.pages = append(s.pages, at.page)
		s.tokens = append(s.tokens, at.tokens[:]...)
	}
	return s
}

// Reserve makes sure that positions 0..n-1 have pages, and the sequence a slot of recurrent state where there is one. On ErrFull the sequence is as before.
func (s *Sequence) Reserve(n int) error {
	s.open()
	need := pagesFor(n) - len(s.pages)
	if s.cache.recurrent && s.state < 0 && len(s.cache.states) == 0 {
		return fmt.Errorf("%w: no slot of recurrent state", ErrFull)
	}
	if have := s.cache.Available(); have < need {
		return fmt.Errorf("%w: %d more needed for %d tokens, %d available of %d", ErrFull, need, n, have, len(s.cache.used))
	}
	if last := len(s.cache.states) - 1; last >= 0 && s.state < 0 {
		s.state, s.cache.states = s.cache.states[last], s.cache.states[:last]
	}
	for range need {
		s.pages = append(s.pages, s.cache.take(s.owner))
	}
	return nil
}

// Append records that the keys and values of tokens now lie in the sequence's pages, at positions Len() onwards, which
// must be reserved. Pages that became full join the owner's prefix index.
func (s *Sequence) Append(tokens ...int32) {
	s.open()
	s.tokens = append(s.tokens, tokens...)
	if len(s.tokens) > len(s.pages)*PageTokens {
		panic("kv: Append beyond the reserved pages")
	}
	if s.owner == "" || s.cache.recurrent {
		return
	}
	for len(s.nodes) < len(s.tokens)/PageTokens {
		n := len(s.nodes)
		if !s.cache.publish(s, s.tokens[n*PageTokens:(n+1)*PageTokens]) {
			break
		}
	}
}

// Pages lists the sequence's pages in order of position; it stays valid until the next Reserve or Close.
func (s *Sequence) Pages() []int32 { return s.pages }

// State is the sequence's slot of recurrent state once it has reserved positions; -1 where there is none.
func (s *Sequence) State() int32 { return s.state }

// Len is the number of positions written.
func (s *Sequence) Len() int { return len(s.tokens) }

// Close gives the pages back: those in the prefix index stay there for reuse, the others become free. Closing twice is
// harmless.
func (s *Sequence) Close() {
	if s.closed {
		return
	}
	s.closed = true
	c := s.cache
	for i := len(s.nodes) - 1; i >= 0; i-- { // leaves first: they age first
		c.release(s.nodes[i])
	}
	for _, page := range s.pages[len(s.nodes):] {
		c.free = append(c.free, page)
		c.inUse--
	}
	if s.state >= 0 {
		c.states = append(c.states, s.state)
		s.state = -1
	}
	s.pages, s.nodes = nil, nil
}

func (s *Sequence) open() {
	if s.closed {
		panic("kv: use of a closed sequence")
	}
}

// Void drops everything that is kept for reuse, after the memory behind the pages has lost what it held. No sequence may be
// open.
func (c *Cache) Void() {
	for c.idle.Len() > 0 {
		c.evictOldest()
	}
	clear(c.used)
	clear(c.owners)
}

// take hands out one page, evicting an idle one if none is free. The caller has checked Available.
func (c *Cache) take(owner string) int32 {
	if len(c.free) == 0 {
		c.evictOldest()
	}
	page := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	if c.used[page] && (c.owners[page] != owner || owner == "") {
		c.clear(page)
	}
	c.used[page], c.owners[page] = true, owner
	c.inUse++
	return page
}

// evictOldest frees the least recently used idle page that has no children. One exists whenever idle is not empty: a
// node's descendants are idle too if the node is, because a sequence holds the whole path to each of its pages.
func (c *Cache) evictOldest() {
	for e := c.idle.Front(); e != nil; e = e.Next() {
		if n := e.Value.(*node); len(n.children) == 0 {
			c.evict(n)
			return
		}
	}
	panic("kv: idle pages without a leaf")
}

// evict removes an idle leaf from its tree and frees its page.
func (c *Cache) evict(n *node) {
	c.idle.Remove(n.place)
	n.place = nil
	key := hashTokens(n.tokens[:])
	bucket := slices.DeleteFunc(n.parent.children[key], func(other *node) bool { return other == n })
	if len(bucket) == 0 {
		delete(n.parent.children, key)
	} else {
		n.parent.children[key] = bucket
	}
	if n.parent.parent == nil && len(n.parent.children) == 0 {
		delete(c.roots, c.owners[n.page])
	}
	c.free = append(c.free, n.page)
}

// publish adds the next full page of s to its owner's tree and reports whether it did. When another sequence has
// published the same tokens first, s keeps its copy private and publishes nothing beyond it.
func (c *Cache) publish(s *Sequence, tokens []int32) bool {
	parent := c.roots[s.owner]
	if parent == nil {
		parent = &node{page: -1, children: map[uint64][]*node{}}
		c.roots[s.owner] = parent
	}
	if n := len(s.nodes); n > 0 {
		parent = s.nodes[n-1]
	}
	if parent.child(tokens) != nil {
		return false
	}
	n := &node{page: s.pages[len(s.nodes)], refs: 1, parent: parent, children: map[uint64][]*node{}}
	copy(n.tokens[:], tokens)
	key := hashTokens(tokens)
	parent.children[key] = append(parent.children[key], n)
	s.nodes = append(s.nodes, n)
	return true
}

// hold counts one more sequence on n.
func (c *Cache) hold(n *node) {
	if n.refs++; n.refs == 1 {
		c.idle.Remove(n.place)
		n.place = nil
		c.inUse++
	}
}

// release counts one sequence less on n; without any the page becomes idle.
func (c *Cache) release(n *node) {
	if n.refs--; n.refs == 0 {
		n.place = c.idle.PushBack(n)
		c.inUse--
	}
}

// child finds the child of n that holds exactly tokens.
func (n *node) child(tokens []int32) *node {
	for _, child := range n.children[hashTokens(tokens)] {
		if slices.Equal(child.tokens[:], tokens) {
			return child
		}
	}
	return nil
}

// hashTokens is FNV-1a over the tokens; equality is always checked on the tokens themselves.
func hashTokens(tokens []int32) uint64 {
	h := uint64(14695981039346656037)
	for _, t := range tokens {
		h = (h ^ uint64(uint32(t))) * 1099511628211
	}
	return h
}
