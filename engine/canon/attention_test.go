package canon

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// attentionCase is one sequence with queries, keys and values for each position.
type attentionCase struct {
	heads, kvHeads, dim, positions, window int
	form                                   Form
	sinks                                  []float32
}

type attentionRun struct {
	attentionCase
	q, k, v [][]float32
	want    [][]float32 // nil where not computed
}

func newAttentionRun(c attentionCase, check func(position int) bool) *attentionRun {
	r := rand.New(rand.NewPCG(7, uint64(c.dim*c.positions)))
	run := &attentionRun{attentionCase: c, want: make([][]float32, c.positions)}
	for range c.positions {
		run.q = append(run.q, normals(r, c.heads*c.dim, 1.5))
		run.k = append(run.k, normals(r, c.kvHeads*c.dim, 1.5))
		run.v = append(run.v, normals(r, c.kvHeads*c.dim, 1))
	}
	share := c.heads / c.kvHeads
	for g := range c.kvHeads {
		var keys, values []float32
		for pos := range c.positions {
			for d := range c.dim {
				keys = append(keys, RuleStore(c.form, run.k[pos][g*c.dim+d]))
				values = append(values, RuleStore(c.form, run.v[pos][g*c.dim+d]))
			}
			if !check(pos) {
				continue
			}
			lo := 0
			if c.window > 0 {
				lo = max(0, pos-c.window+1)
			}
			if run.want[pos] == nil {
				run.want[pos] = make([]float32, c.heads*c.dim)
			}
			for h := g * share; h < (g+1)*share; h++ {
				var sink *float32
				if c.sinks != nil {
					sink = &c.sinks[h]
				}
				copy(run.want[pos][h*c.dim:], RuleAttention(run.q[pos][h*c.dim:(h+1)*c.dim], keys, values, lo, float32(0.125), sink))
			}
		}
	}
	return run
}

// run feeds the sequence in chunks and compares each computed position.
func (c *attentionRun) run(t *testing.T, pool *Pool, chunk int) {
	t.Helper()
	a := newArena(t)
	pages := (c.positions+63)/64 + 2
	kv := must(a.NewKV(KVSpec{Layers: 2, Heads: c.kvHeads, Dim: c.dim, Pages: pages, Form: c.form}))
	p := NewProgram(pool, a, Limits{Rows: chunk, Sequences: 2, Pages: pages})
	q, k, v, o := p.Buffer(c.heads*c.dim), p.Buffer(c.kvHeads*c.dim), p.Buffer(c.kvHeads*c.dim), p.Buffer(c.heads*c.dim)
	p.Embed(k, table(a, c.k))
	p.Embed(v, table(a, c.v))
	p.Embed(q, table(a, c.q))
	p.KVAppend(kv, 1, k, v)
	p.Attention(o, q, kv, 1, AttentionSpec{Heads: c.heads, Scale: 0.125, Window: c.window, Sinks: c.sinks})
	if err := p.Build(); err != nil {
		t.Fatal(err)
	}
	behind := must(a.Floats(1 << 14)) // what lies behind the program's scratch is not its own
	ids := make([]int32, pages-1)     // pages in no order, not from 0
	for i, id := range rand.New(rand.NewPCG(8, 8)).Perm(pages)[:pages-1] {
		ids[i] = int32(id)
	}
	for at := 0; at < c.positions; at += chunk {
		s := &Step{Pages: [][]int32{nil, ids}}
		for pos := at; pos < min(at+chunk, c.positions); pos++ {
			s.Tokens, s.Positions, s.Sequence = append(s.Tokens, int32(pos)), append(s.Positions, int32(pos)), append(s.Sequence, 1)
		}
		if err := p.Run(s); err != nil {
			t.Fatal(err)
		}
		for i := range s.Tokens {
			if want := c.want[at+i]; want != nil {
				sameRow(t, fmt.Sprintf("%+v chunk %d position %d", c.attentionCase, chunk, at+i), o.Row(i), want)
			}
		}
	}
	if slices.ContainsFunc(behind, func(v float32) bool { return v != 0 }) {
		t.Errorf("%+v chunk %d: scratch was written behind its end", c.attentionCase, chunk)
	}
}

// Two rows read keys together where one thread has many heads.
func TestTwoRowsOfManyHeadsStayInTheirScratch(t *testing.T) {
	run := newAttentionRun(attentionCase{heads: 16, kvHeads: 16, dim: 16, positions: 70, form: F16}, func(pos int) bool { return pos > 60 })
	for _, isa := range Supported() {
		pool := must(NewPool(1, isa))
		run.run(t, pool, 2)
		pool.Close()
	}
}

// Attention equals the scalar rule for every form, grouping, window and sinks, whatever the chunks of the prefill; one row at
// a time takes the split path from the second block on.
func TestAttentionEqualsTheRule(t *testing.T) {
	some := func(pos int) bool { return pos < 3 || pos%29 == 0 || pos > 590 || pos/3 == 85 || pos%256 == 255 }
	sinks := []float32{0.5, -3, 9, 0, 1, 2}
	for _, c := range []attentionCase{
		{heads: 3, kvHeads: 1, dim: 64, positions: 600, form: F16},
		{heads: 4, kvHeads: 2, dim: 16, positions: 600, form: F32},
		{heads: 2, kvHeads: 2, dim: 40, positions: 300, form: BF16},
		{heads: 6, kvHeads: 1, dim: 24, positions: 600, form: F16, window: 100, sinks: sinks},
		{heads: 4, kvHeads: 1, dim: 8, positions: 600, form: F32, window: 256},
		{heads: 5, kvHeads: 1, dim: 128, positions: 270, form: F16, window: 1, sinks: sinks[:5]},
	} {
		run := newAttentionRun(c, some)
		t.Run(fmt.Sprintf("%dx%d", c.heads, c.dim), func(t *testing.T) {
			families(t, func(t *testing.T, pool *Pool) {
				chunks := []int{1, 17, 256}
				if pool.ISA() == Portable {
					chunks = []int{17}
				}
				for _, chunk := range chunks {
					run.run(t, pool, chunk)
				}
			})
		})
	}
}

func TestKVPageIsClearedAndCopied(t *testing.T) {
	a := newArena(t)
	kv := must(a.NewKV(KVSpec{Layers: 2, Heads: 1, Dim: 8, Pages: 3, Form: F16}))
	if n := kv.PageBytes(); n != 2*2*8*64*2 {
		t.Fatalf("page of %d bytes", n)
	}
	for i := range kv.Page(1) {
		kv.Page(1)[i] = 7
	}
	kv.Copy(2, 1)
	kv.Zero(1)
	for i := range kv.Page(1) {
		if kv.Page(0)[i] != 0 || kv.Page(1)[i] != 0 || kv.Page(2)[i] != 7 {
			t.Fatalf("byte %d of the pages is %d %d %d", i, kv.Page(0)[i], kv.Page(1)[i], kv.Page(2)[i])
		}
	}
}
