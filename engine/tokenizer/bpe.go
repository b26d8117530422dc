package tokenizer

// Byte-pair encoding on ids. A word becomes the ids of its characters (of its bytes, for byte-level vocabularies), then
// the adjoining pair with the lowest merge rank, leftmost first, is replaced by the merged id until no pair is left.
// Short words scan an array for the lowest rank; long ones keep pairs in a heap over a linked list, so that the time is
// O(n log n) however repetitive the text is. Both orders are the same order, so the ids are the same.

import (
	"fmt"
	"math"
	"unicode/utf8"
)

// scanWord is the longest word, in symbols, that is merged by scanning rather than with a heap. Measured on prose,
// where the scan wins below about 40 symbols.
const scanWord = 32

// noRank marks a pair that does not merge.
const noRank = math.MaxInt32

type bpe struct {
	vocab        map[string]int32
	merges       mergeTable
	byteIDs      [256]int32 // id of each byte's character in a byte-level vocabulary, -1 = absent
	fallback     [256]int32 // id of each "<0xNN>", -1 = absent
	bytesIn      bool       // words arrive as raw bytes, not yet as byte-level characters
	byteFallback bool
	fuseUnk      bool
	ignoreMerges bool // a word that is a token is that token
	unk          int32
	hasUnk       bool
	prefix       string // put before every character of a word but the first
	suffix       string // put after the last character of a word
	special      []bool // by id; ids that untrusted text must not yield
	guarded      bool   // some merge, whole word or character yields a special id, so untrusted text needs care
	seams        *seams // where pieces may be cut into words; nil = nowhere
}

// encode appends the ids of one word to e.out.
func (m *bpe) encode(e *encoder, word string) {
	if m.ignoreMerges {
		key := word
		if m.bytesIn {
			key = byteLevel(word)
		}
		if id, ok := m.vocab[key]; ok && !(e.guard && m.special[id]) {
			e.out = append(e.out, id)
			return
		}
	}
	if m.bytesIn && m.prefix == "" && m.suffix == "" {
		if len(word) == 1 {
			if id := m.byteIDs[word[0]]; id >= 0 {
				e.out = append(e.out, id)
				return
			}
		}
		if !m.hasUnk && !m.byteFallback {
			e.symbols = e.symbols[:0]
			for i := range len(word) {
				if id := m.byteIDs[word[i]]; id >= 0 {
					e.symbols = append(e.symbols, id)
				}
			}
			m.merge(e)
			return
		}
	}
	if m.bytesIn {
		word = byteLevel(word)
	}
	m.characters(e, word)
	m.merge(e)
}

// characters sets e.symbols to the ids of a word's characters: from the vocabulary, else as fallback bytes, else
// unknown. A run of unknown characters is flushed when a known one follows, as the reference does it.
func (m *bpe) characters(e *encoder, word string) {
	e.symbols = e.symbols[:0]
	unknown := false
	for i, r := range word {
		size := utf8.RuneLen(r)
		character := word[i : i+size]
		key := character
		if i > 0 {
			key = m.prefix + key
		}
		if i+size == len(word) {
			key += m.suffix
		}
		if id, ok := m.vocab[key]; ok && !(e.guard && m.special[id]) {
			if unknown {
				e.symbols = append(e.symbols, m.unk)
				unknown = false
			}
			e.symbols = append(e.symbols, id)
			continue
		}
		if m.byteFallback && m.fallbackBytes(e, key) {
			continue
		}
		if m.hasUnk {
			if unknown && !m.fuseUnk {
				e.symbols = append(e.symbols, m.unk)
			}
			unknown = true
		}
	}
	if unknown {
		e.symbols = append(e.symbols, m.unk)
	}
}

// fallbackBytes appends the "<0xNN>" tokens of text; false, and nothing, if one is missing.
func (m *bpe) fallbackBytes(e *encoder, text string) bool {
	for i := range len(text) {
		if m.fallback[text[i]] < 0 {
			return false
		}
	}
	for i := range len(text) {
		e.symbols = append(e.symbols, m.fallback[text[i]])
	}
	return true
}

// merge applies the merges to e.symbols and appends the result to e.out.
func (m *bpe) merge(e *encoder) {
	if len(e.symbols) > scanWord {
		m.mergeLong(e)
		return
	}
	ids := e.symbols
	var ranks, merged [scanWord]int32
	for i := 0; i+1 < len(ids); i++ {
		ranks[i], merged[i] = m.pair(e, ids[i], ids[i+1])
	}
	for n := len(ids) - 1; n > 0; n-- {
		best, lowest := -1, int32(noRank)
		for i := range n {
			if ranks[i] < lowest {
				best, lowest = i, ranks[i]
			}
		}
		if best < 0 {
			break
		}
		ids[best] = merged[best]
		copy(ids[best+1:], ids[best+2:])
		ids = ids[:n]
		copy(ranks[best:n], ranks[best+1:n])
		copy(merged[best:n], merged[best+1:n])
		if best > 0 {
			ranks[best-1], merged[best-1] = m.pair(e, ids[best-1], ids[best])
		}
		if best+1 < n {
			ranks[best], merged[best] = m.pair(e, ids[best], ids[best+1])
		}
	}
	e.out = append(e.out, ids...)
}

// link is a symbol in the linked list of a long word.
type link struct {
	prev, next int32 // -1 = none
	id         int32
	rank       int32 // of the pair (this, next); noRank = does not merge
	merged     int32
}

// mergeLong is merge for long words. The heap holds rank<<32|position; an entry is stale when its position no longer
// has that rank, which identifies the pair because no two pairs share a rank.
func (m *bpe) mergeLong(e *encoder) {
	n := len(e.symbols)
	e.links = append(e.links[:0], make([]link, n)...)
	e.heap = e.heap[:0]
	links := e.links
	for i, id := range e.symbols {
		links[i] = link{prev: int32(i - 1), next: int32(i + 1), id: id, rank: noRank}
	}
	links[n-1].next = -1
	rank := func(i int32) {
		l := &links[i]
		if l.next < 0 {
			l.rank = noRank
			return
		}
		if l.rank, l.merged = m.pair(e, l.id, links[l.next].id); l.rank != noRank {
			e.heap = push(e.heap, uint64(l.rank)<<32|uint64(i))
		}
	}
	for i := range int32(n) {
		rank(i)
	}
	for len(e.heap) > 0 {
		var top uint64
		top, e.heap = pop(e.heap)
		i := int32(top & math.MaxUint32)
		l := &links[i]
		if l.rank != int32(top>>32) {
			continue
		}
		gone := l.next
		l.id, l.next = l.merged, links[gone].next
		links[gone].rank = noRank
		if l.next >= 0 {
			links[l.next].prev = i
		}
		rank(i)
		if l.prev >= 0 {
			rank(l.prev)
		}
	}
	for i := int32(0); i >= 0; i = links[i].next {
		e.out = append(e.out, links[i].id)
	}
}

// pair is the rank and result of merging a and b.
func (m *bpe) pair(e *encoder, a, b int32) (rank, merged int32) {
	rank, merged = m.merges.get(a, b)
	if e.guard && rank != noRank && m.special[merged] {
		return noRank, 0
	}
	return rank, merged
}

// push and pop keep a binary min-heap.
func push(h []uint64, v uint64) []uint64 {
	h = append(h, v)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up] <= v {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = v
	return h
}

func pop(h []uint64) (uint64, []uint64) {
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	if len(h) == 0 {
		return top, h
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1] < h[down] {
			down++
		}
		if last <= h[down] {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = last
	return top, h
}

// mergeTable maps a pair of ids to the merge's rank and result: open addressing at half load, 16 bytes an entry. A
// lookup reads one line of memory, which for the tables in use comes from the second or third level cache.
type mergeTable struct {
	entries []mergeEntry
	shift   uint
}

type mergeEntry struct {
	a, b         int32 // a < 0 = free
	rank, merged int32
}

func newMergeTable(n int) mergeTable {
	bits := uint(4)
	for 1<<bits < 2*n {
		bits++
	}
	t := mergeTable{entries: make([]mergeEntry, 1<<bits), shift: 64 - bits}
	for i := range t.entries {
		t.entries[i].a = -1
	}
	return t
}

func (t *mergeTable) slot(a, b int32) uint64 {
	return ((uint64(uint32(a))<<32 | uint64(uint32(b))) * 0x9E3779B97F4A7C15) >> t.shift
}

// put records a merge; one for the same pair is replaced.
func (t *mergeTable) put(a, b, rank, merged int32) {
	mask := uint64(len(t.entries) - 1)
	for i := t.slot(a, b); ; i = (i + 1) & mask {
		e := &t.entries[i]
		if e.a < 0 || (e.a == a && e.b == b) {
			*e = mergeEntry{a, b, rank, merged}
			return
		}
	}
}

func (t *mergeTable) get(a, b int32) (rank, merged int32) {
	mask := uint64(len(t.entries) - 1)
	for i := t.slot(a, b); ; i = (i + 1) & mask {
		e := &t.entries[i]
		if e.a == a && e.b == b {
			return e.rank, e.merged
		}
		if e.a < 0 {
			return noRank, 0
		}
	}
}

// prepare derives the tables that depend on the whole vocabulary. special is by id.
func (m *bpe) prepare(special []bool) {
	m.special = special
	for b := range 256 {
		m.byteIDs[b], m.fallback[b] = -1, -1
		if id, ok := m.vocab[string(byteRunes[b])]; ok {
			m.byteIDs[b] = id
		}
		if id, ok := m.vocab[fmt.Sprintf("<0x%02X>", b)]; ok {
			m.fallback[b] = id
		}
	}
	for token, id := range m.vocab {
		if special[id] && (m.ignoreMerges || utf8.RuneCountInString(token) == 1) {
			m.guarded = true
		}
	}
	for _, entry := range m.merges.entries {
		if entry.a >= 0 && special[entry.merged] {
			m.guarded = true
		}
	}
}

// seams says where a text that reaches the model in one piece may be cut without changing its ids. A merge joins the last
// character of its left side with the first of its right; between two characters that no merge joins, no token can ever
// span, so both sides encode independently. Vocabularies without a pre-tokenizer thereby get words, which the cache holds.
type seams struct {
	ascii [128][128]bool       // may cut between these two
	joins map[[2]rune]struct{} // pairs that some merge joins
	known map[rune]struct{}    // characters in the vocabulary
	whole bool                 // every byte has a fallback token, so characters outside the vocabulary do not fuse
}

// findSeams returns nil when the vocabulary allows no cut that can be proven: words with affixes, whole-word lookups, and
// merges that involve fallback bytes or the unknown token.
func (m *bpe) findSeams(merges []mergeNames) *seams {
	if m.bytesIn || m.ignoreMerges || m.prefix != "" || m.suffix != "" {
		return nil
	}
	s := &seams{joins: make(map[[2]rune]struct{}), known: make(map[rune]struct{}), whole: m.byteFallback}
	for _, id := range m.fallback {
		s.whole = s.whole && id >= 0
	}
	for token := range m.vocab {
		if r, n := utf8.DecodeRuneInString(token); n == len(token) {
			s.known[r] = struct{}{}
		}
	}
	for _, p := range merges {
		for _, side := range []string{p.a, p.b} {
			if _, ok := fallbackByte(side); ok || m.hasUnk && m.vocab[side] == m.unk {
				return nil
			}
		}
		last, _ := utf8.DecodeLastRuneInString(p.a)
		first, _ := utf8.DecodeRuneInString(p.b)
		s.joins[[2]rune{last, first}] = struct{}{}
	}
	for x := range rune(128) {
		for y := range rune(128) {
			s.ascii[x][y] = s.between(x, y)
		}
	}
	return s
}

// between reports whether a text may be cut between x and y.
func (s *seams) between(x, y rune) bool {
	if _, joined := s.joins[[2]rune{x, y}]; joined {
		return false
	}
	if s.whole {
		return true
	}
	_, knownX := s.known[x]
	_, knownY := s.known[y]
	return knownX && knownY
}

// next is the end of the part of text that begins at from.
func (s *seams) next(text string, from int) int {
	x, n := utf8.DecodeRuneInString(text[from:])
	for at := from + n; at < len(text); {
		y, n := rune(text[at]), 1
		if y >= utf8.RuneSelf {
			y, n = utf8.DecodeRuneInString(text[at:])
		}
		if x < 128 && y < 128 {
			if s.ascii[x][y] {
				return at
			}
		} else if s.between(x, y) {
			return at
		}
		x, at = y, at+n
	}
	return len(text)
}
