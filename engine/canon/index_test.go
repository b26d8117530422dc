package canon

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// before is rule 8's order, written once more.
func before(a, b float32, i, j int32) int {
	switch an, bn := a != a, b != b; {
	case an != bn:
		return map[bool]int{true: 1, false: -1}[an]
	case an || a == b:
		return cmp.Compare(i, j)
	}
	return cmp.Compare(b, a)
}

// best lists the k best of scores by number.
func best(scores []float32, k int) []int32 {
	ids := make([]int32, len(scores))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortFunc(ids, func(i, j int32) int { return before(scores[i], scores[j], i, j) })
	ids = ids[:min(k, len(ids))]
	slices.Sort(ids)
	return ids
}

// The indexer keeps the keys with the best scores, ties going to the earlier one, and attention over them takes its blocks
// by rank in the list.
func TestIndexedAttentionEqualsTheRule(t *testing.T) {
	const positions, heads, dim, values, most = 700, 5, 40, 32, 300
	for _, c := range []struct {
		indexHeads, indexDim int
		form                 Form
	}{{16, 16, F32}, {3, 24, F16}, {2, 8, BF16}} {
		r := rand.New(rand.NewPCG(31, uint64(c.indexDim)))
		var q, k, iq, ik, w [][]float32
		for pos := range positions {
			q, k = append(q, normals(r, heads*dim, 1.5)), append(k, normals(r, dim, 1.5))
			iq, ik, w = append(iq, normals(r, c.indexHeads*c.indexDim, 1)), append(ik, normals(r, c.indexDim, 1)), append(w, normals(r, c.indexHeads, 1))
			if pos%5 == 4 {
				ik[pos] = ik[pos-3] // equal scores
			}
		}
		type result struct {
			ids []int32
			o   []float32
		}
		want := map[int]result{}
		var keys []float32
		for pos := range positions {
			for _, x := range ik[pos] {
				keys = append(keys, RuleStore(c.form, x))
			}
			if pos%61 != 0 && pos < positions-2 && pos/2 != most/2 {
				continue
			}
			res := result{ids: best(RuleIndex(iq[pos], w[pos], keys), most)}
			var kept, value []float32
			for _, id := range res.ids {
				for d, x := range k[id] {
					kept = append(kept, RuleStore(c.form, x))
					if d < values {
						value = append(value, RuleStore(c.form, x))
					}
				}
			}
			for h := range heads {
				res.o = append(res.o, RuleAttention(q[pos][h*dim:(h+1)*dim], kept, value, 0, 0.125, nil)...)
			}
			want[pos] = res
		}
		families(t, func(t *testing.T, pool *Pool) {
			for _, chunk := range []int{1, 17, 256} {
				if chunk != 17 && pool.ISA() == Portable {
					continue
				}
				a := newArena(t)
				const pages = 11
				kv := must(a.NewKV(KVSpec{Layers: 1, Heads: 1, Dim: dim, Pages: pages, Form: c.form, Single: true}))
				index := must(a.NewKV(KVSpec{Layers: 2, Heads: 1, Dim: c.indexDim, Pages: pages, Form: c.form, Single: true}))
				p := NewProgram(pool, a, Limits{Rows: chunk, Sequences: 1, Pages: pages})
				bq, bk, o := p.Buffer(heads*dim), p.Buffer(dim), p.Buffer(heads*values)
				biq, bik, bw := p.Buffer(c.indexHeads*c.indexDim), p.Buffer(c.indexDim), p.Buffer(c.indexHeads)
				for _, x := range []struct {
					b    *Buffer
					rows [][]float32
				}{{bq, q}, {bk, k}, {biq, iq}, {bik, ik}, {bw, w}} {
					p.Embed(x.b, table(a, x.rows))
				}
				kept := p.NewSelection(most, 1)
				p.KVAppend(kv, 0, bk, nil)
				p.KVAppend(index, 1, bik, nil)
				p.Index(kept, biq, bw, index, 1)
				p.Attention(o, bq, kv, 0, AttentionSpec{Heads: heads, Scale: 0.125, Values: values, Kept: kept})
				if err := p.Build(); err != nil {
					t.Fatal(err)
				}
				for at := 0; at < positions; at += chunk {
					s := rowsStep(min(chunk, positions-at))
					s.Pages = [][]int32{{7, 2, 9, 0, 4, 1, 8, 3, 6, 5, 10}}
					for i := range s.Tokens {
						s.Tokens[i], s.Positions[i] = int32(at+i), int32(at+i)
					}
					if err := p.Run(s); err != nil {
						t.Fatal(err)
					}
					for i := range s.Tokens {
						res, ok := want[at+i]
						if !ok {
							continue
						}
						what := fmt.Sprintf("%+v chunk %d position %d", c, chunk, at+i)
						if got := kept.Row(i, at+i); !slices.Equal(got, res.ids) {
							t.Fatalf("%s: kept %v, want %v", what, got, res.ids)
						}
						sameRow(t, what, o.Row(i), res.o)
					}
				}
			}
		})
	}
}

// Zeros of both signs are equal, infinities have their place, NaN comes last.
func TestIndexerOrdersAwkwardScores(t *testing.T) {
	pool := must(NewPool(1, Portable))
	defer pool.Close()
	inf, minus := float32(math.Inf(1)), float32(math.Copysign(0, -1))
	// The score of a key (x, y) is the sum of x and y - y, up to a factor.
	keys := [][]float32{{0, inf}, {minus, 0}, {0, 0}, {-1, 0}, {1, 0}, {-inf, 0}, {0x1p-140, 0}, {inf, 0}, {minus, 0}, {0, inf}, {-0x1p-140, 0}}
	query, weight := []float32{1, 0, -1, 0, 0, 1, 0, 1}, []float32{1, -1, 1, -1}
	var wide []float32
	var rows, queries, weights [][]float32
	for _, key := range keys {
		rows = append(rows, append(key, 0, 0, 0, 0, 0, 0))
		wide = append(wide, rows[len(rows)-1]...)
		var q []float32
		for h := range weight {
			q = append(q, query[2*h], query[2*h+1], 0, 0, 0, 0, 0, 0)
		}
		queries, weights = append(queries, q), append(weights, weight)
	}
	scores := RuleIndex(queries[0], weight, wide)
	if scores[0] == scores[0] || scores[3] >= 0 || scores[7] != inf || scores[5] != -inf {
		t.Fatalf("scores are %v", scores)
	}
	for most := 1; most < len(keys); most++ {
		a := newArena(t)
		kv := must(a.NewKV(KVSpec{Layers: 1, Heads: 1, Dim: 8, Pages: 1, Form: F32, Single: true}))
		p := NewProgram(pool, a, Limits{Rows: len(keys), Sequences: 1, Pages: 1})
		q, k, w := p.Buffer(32), p.Buffer(8), p.Buffer(4)
		p.Embed(k, table(a, rows))
		p.Embed(q, table(a, queries))
		p.Embed(w, table(a, weights))
		kept := p.NewSelection(most, 1)
		p.KVAppend(kv, 0, k, nil)
		p.Index(kept, q, w, kv, 0)
		if err := p.Build(); err != nil {
			t.Fatal(err)
		}
		s := rowsStep(len(keys))
		s.Pages = [][]int32{{0}}
		if err := p.Run(s); err != nil {
			t.Fatal(err)
		}
		last := len(keys) - 1
		if got, want := kept.Row(last, last), best(scores, most); !slices.Equal(got, want) {
			t.Errorf("the best %d are %v, want %v", most, got, want)
		}
	}
}
