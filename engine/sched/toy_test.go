package sched

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"

	"covey/engine/canon"
	"covey/engine/kv"
	"covey/engine/model"
	"covey/engine/route"
)

const (
	toyVocab = 64
	toyEOS   = 63
	toyPages = 64
)

var toyShape = route.Shape{Layers: []int{1, 3}, Experts: 8, TopK: 2}

// toy is a model whose only arithmetic is a hash: a row's logits and experts depend on all tokens of its sequence up to
// its position, which it reads back from the KV pages of the batch. A wrong page, a missing row or a neighbour's influence
// changes every later token. It also checks that each batch is well formed.
type toy struct {
	t      testing.TB
	limits Options
	before func(*model.Batch) // called before each step, if set
	bad    func(token int32) bool

	mu    sync.Mutex
	pages [toyPages][kv.PageTokens]uint64 // 1 + token; 0 = never written
	out   model.Output
	fail  error
}

func (m *toy) clear(page int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pages[page] = [kv.PageTokens]uint64{}
}

func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}

// draw gives the n-th number below limit that belongs to state h.
func draw(h uint64, n, limit int) int { return int(mix(h, uint64(n)+1) >> 20 % uint64(limit)) }

// logits of a state: one token stands out, the others vary.
func toyLogits(h uint64) []float32 {
	l := make([]float32, toyVocab)
	for i := range l {
		l[i] = float32(draw(h, i, 1000)) / 250
	}
	l[draw(h, 500, toyVocab)] = 6
	return l
}

func toyRouting(h uint64, banned *model.Ban) (ids []uint16, weights []float32) {
	for j := range toyShape.Layers {
		first := draw(h, 1000+j, toyShape.Experts)
		second := (first + 1 + draw(h, 2000+j, toyShape.Experts-1)) % toyShape.Experts
		if banned != nil {
			first, second = 6, 7
		}
		ids = append(ids, uint16(first), uint16(second))
		weights = append(weights, 0.75, 0.25)
	}
	return ids, weights
}

func toyState(tokens []int32) uint64 {
	h := uint64(1)
	for _, t := range tokens {
		h = mix(h, uint64(t)+1)
	}
	return h
}

func (m *toy) NewBan(experts []Expert) (*model.Ban, error) {
	if len(experts) > 6 {
		return nil, fmt.Errorf("%d of %d experts banned", len(experts), toyShape.Experts)
	}
	return new(model.Ban), nil
}

func (m *toy) NewResiduals([]int, int) (*model.Residuals, error) { return nil, model.ErrNoResiduals }

func (m *toy) Step(b *model.Batch) (*model.Output, error) {
	if m.before != nil {
		m.before(b)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return nil, m.fail
	}
	rows := len(b.Tokens)
	if rows == 0 || rows > m.limits.BatchRows || len(b.Positions) != rows || len(b.Sequence) != rows {
		m.t.Errorf("batch of %d tokens, %d positions, %d sequences; at most %d rows", rows, len(b.Positions), len(b.Sequence), m.limits.BatchRows)
	}
	if len(b.Pages) > m.limits.Sequences || len(b.LogitRows) > m.limits.LogitRows {
		m.t.Errorf("batch of %d sequences and %d logit rows, at most %d and %d", len(b.Pages), len(b.LogitRows), m.limits.Sequences, m.limits.LogitRows)
	}
	m.out = model.Output{}
	next := 0
	for r := range rows {
		slot, position := b.Sequence[r], int(b.Positions[r])
		if r > 0 && slot == b.Sequence[r-1] && position != int(b.Positions[r-1])+1 {
			m.t.Errorf("row %d: position %d follows %d", r, position, b.Positions[r-1])
		}
		pages := b.Pages[slot]
		m.pages[pages[position/kv.PageTokens]][position%kv.PageTokens] = uint64(b.Tokens[r]) + 1
		h := uint64(1)
		for p := range position + 1 {
			v := m.pages[pages[p/kv.PageTokens]][p%kv.PageTokens]
			if v == 0 {
				m.t.Errorf("row %d at position %d: position %d was never written", r, position, p)
			}
			h = mix(h, v)
		}
		var banned *model.Ban
		if b.Banned != nil {
			banned = b.Banned[slot]
		}
		ids, weights := toyRouting(h, banned)
		m.out.IDs = append(m.out.IDs, ids...)
		m.out.Weights = append(m.out.Weights, weights...)
		if m.bad != nil && m.bad(b.Tokens[r]) {
			if m.out.Faults == nil {
				m.out.Faults = make([]error, rows)
			}
			m.out.Faults[r] = fmt.Errorf("lm_head: %w", canon.ErrNonFinite)
		}
		if next < len(b.LogitRows) && b.LogitRows[next] == int32(r) {
			m.out.Logits = append(m.out.Logits, toyLogits(h))
			next++
		}
	}
	if next != len(b.LogitRows) {
		m.t.Errorf("logit rows %v do not ascend below %d", b.LogitRows, rows)
	}
	return &m.out, nil
}

// letters decodes token i as the letter 'a'+i%26; token 40 is the first half of "é" and token 41 the second.
type letters struct{ half bool }

func (d *letters) Push(token int32) string {
	switch {
	case token == 40:
		was := d.half
		d.half = true
		if was {
			return "\uFFFD"
		}
		return ""
	case token == 41 && d.half:
		d.half = false
		return "é"
	case d.half:
		d.half = false
		return "\uFFFD" + letter(token)
	}
	return letter(token)
}

func (d *letters) Pending() bool { return d.half }

func (d *letters) Flush() string {
	if d.half {
		d.half = false
		return "\uFFFD"
	}
	return ""
}

func letter(token int32) string { return string(rune('a' + token%26)) }

// rig is a scheduler over the toy.
type rig struct {
	*Scheduler
	model *toy
	cache *kv.Cache
}

// start runs a scheduler over the toy; change may alter the options and the toy before.
func start(t testing.TB, change func(*Options, *toy)) *rig {
	t.Helper()
	m := &toy{t: t}
	o := Options{
		Model: m, Decoder: func() Decoder { return &letters{} }, Shape: toyShape, ExpertBytes: []int64{100, 1000},
		Vocab: toyVocab, EOS: []int32{toyEOS}, Context: 2048, BatchRows: 32, Sequences: 8, QueueLimit: 128,
	}
	m.limits = o
	m.limits.LogitRows = o.BatchRows
	pages := toyPages
	if change != nil {
		change(&o, m)
		if o.KV != nil {
			pages = o.KV.Stats().Pages
		}
		m.limits = o
		if o.LogitRows == 0 {
			m.limits.LogitRows = o.BatchRows
		}
	}
	o.KV = kv.New(pages, 0, m.clear)
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{s, m, o.KV}
	t.Cleanup(func() {
		s.Close()
		if st := r.cache.Stats(); st.InUse != 0 {
			t.Errorf("%d pages are still in use", st.InUse)
		}
	})
	return r
}

// smallCache limits the pages of a rig.
func smallCache(pages int) *kv.Cache { return kv.New(pages, 0, func(int32) {}) }

func (r *rig) submit(t testing.TB, q Request) *Stream {
	t.Helper()
	s, err := r.Submit(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// read collects a stream to its end.
func read(t testing.TB, s *Stream) (outputs []Output, text string, result *Result) {
	t.Helper()
	var b strings.Builder
	for {
		o, err := s.Next(context.Background())
		if err == io.EOF {
			return outputs, b.String(), s.Result()
		}
		if err != nil {
			t.Fatal(err)
		}
		outputs = append(outputs, o)
		b.WriteString(o.Text)
	}
}

// prompt is n tokens that differ from those of another seed.
func prompt(seed, n int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32(draw(uint64(seed)+77, i, 40))
	}
	return p
}

// greedy is what the toy must answer: computed without scheduler, cache or batches.
func greedy(p []int32, n int, eos bool) []int32 {
	tokens := append([]int32(nil), p...)
	var answer []int32
	for range n {
		best, at := float32(math.Inf(-1)), int32(0)
		for i, l := range toyLogits(toyState(tokens)) {
			if l > best {
				best, at = l, int32(i)
			}
		}
		if eos && at == toyEOS {
			break
		}
		tokens = append(tokens, at)
		answer = append(answer, at)
	}
	return answer
}
