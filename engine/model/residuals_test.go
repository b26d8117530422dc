package model

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
)

// reading is what a text of one sequence gives: logits and choices by position.
type reading struct {
	logits [][]float32
	ids    []uint16
}

// readText runs tokens in steps of at most chunk rows; change sets what makes the steps special.
func readText(t *testing.T, m *Model, tokens []int32, chunk int, change func(*Batch)) reading {
	t.Helper()
	var out reading
	for first := 0; first < len(tokens); first += chunk {
		b := rows(tokens[first:min(first+chunk, len(tokens))], first, 0)
		b.States = []int32{0}
		if m.Info().States == 0 {
			b.States = nil
		}
		change(b)
		o, err := m.Step(b)
		if err != nil || o.Faults != nil {
			t.Fatal(err, o)
		}
		for _, l := range o.Logits {
			out.logits = append(out.logits, slices.Clone(l))
		}
		out.ids = append(out.ids, o.IDs...)
	}
	return out
}

// The definition is a whole reading under the ban.
func TestAReadingThatBeginsAtARouterEqualsAWholeOne(t *testing.T) {
	tokens := make([]int32, 40)
	for i := range tokens {
		tokens[i] = int32(i * 7 % 61)
	}
	for _, c := range []struct{ name, activations string }{
		{"olmoe", "int8"}, {"glm4_moe", "int8"}, {"qwen3_moe", "int8"}, {"qwen3_next", "int8"}, {"gpt_oss", "int8"}, {"deepseek_v3", "int8"}, {"qwen2_moe", "f32"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := open(t, filepath.Join(oracles, c.name), Options{MaxRows: 40, KVTokens: 128, Activations: c.activations})
			layers := m.Info().Shape.Layers
			kept, err := m.NewResiduals(layers, len(tokens))
			if err != nil {
				t.Fatal(err)
			}
			plain := readText(t, m, tokens, 16, func(b *Batch) { b.Keep = []*Residuals{kept} })
			shape := m.Info().Shape
			for router, layer := range layers {
				victim := Expert{Layer: layer, ID: int(plain.ids[(3*len(layers)+router)*shape.TopK])} // row 3's first choice
				if kept.Unchanged([]Expert{victim}) {
					t.Fatalf("layer %d expert %d was chosen, yet its removal is said to change nothing", layer, victim.ID)
				}
				ban, err := m.NewBan([]Expert{victim})
				if err != nil {
					t.Fatal(err)
				}
				if ban.First() != router {
					t.Fatalf("the first router with a ban is %d, want %d", ban.First(), router)
				}
				whole := readText(t, m, tokens, 16, func(b *Batch) { b.Banned = []*Ban{ban} })
				part := readText(t, m, tokens, 24, func(b *Batch) {
					b.Banned, b.From, b.Router = []*Ban{ban}, []*Residuals{kept}, router
				})
				for i := range tokens {
					at := (i*len(layers) + router) * shape.TopK
					if end := (i + 1) * len(layers) * shape.TopK; !slices.Equal(part.ids[at:end], whole.ids[at:end]) {
						t.Fatalf("layer %d: row %d chose %v, want %v", layer, i, part.ids[at:end], whole.ids[at:end])
					}
					if !slices.Equal(part.logits[i], whole.logits[i]) {
						t.Fatalf("layer %d: logits of row %d differ", layer, i)
					}
				}
				if slices.EqualFunc(plain.logits, whole.logits, slices.Equal[[]float32]) {
					t.Errorf("layer %d: a removal changed no logit, so the test shows nothing", layer)
				}
			}
		})
	}
}

func TestRemovingWhatNoRowChoseChangesNothing(t *testing.T) {
	m := open(t, filepath.Join(oracles, "olmoe"), Options{MaxRows: 4, KVTokens: 128})
	tokens := []int32{5, 9}
	layers, shape := m.Info().Shape.Layers, m.Info().Shape
	kept, err := m.NewResiduals(layers[1:2], len(tokens))
	if err != nil {
		t.Fatal(err)
	}
	plain := readText(t, m, tokens, 2, func(b *Batch) { b.Keep = []*Residuals{kept} })
	unchosen := 0
	for id := range shape.Experts {
		chosen := false
		for r := range tokens {
			chosen = chosen || slices.Contains(plain.ids[(r*len(layers)+1)*shape.TopK:][:shape.TopK], uint16(id))
		}
		e := Expert{Layer: layers[1], ID: id}
		if kept.Unchanged([]Expert{e}) == chosen {
			t.Errorf("expert %d: chosen %v, unchanged %v", id, chosen, !chosen)
		}
		if chosen {
			continue
		}
		unchosen++
		ban, err := m.NewBan([]Expert{e})
		if err != nil {
			t.Fatal(err)
		}
		without := readText(t, m, tokens, 2, func(b *Batch) { b.Banned = []*Ban{ban} })
		if !slices.EqualFunc(plain.logits, without.logits, slices.Equal[[]float32]) {
			t.Errorf("removing expert %d, which no row chose, changed logits", id)
		}
	}
	for _, e := range []Expert{{Layer: 99}, {Layer: layers[1], ID: shape.Experts}, {Layer: layers[1], ID: 1 << 16}, {Layer: layers[1], ID: -1}} {
		if kept.Unchanged([]Expert{e}) {
			t.Errorf("the removal of %+v, which does not exist, is said to change nothing", e)
		}
	}
	if unchosen == 0 {
		t.Fatal("every expert was chosen: the test shows nothing")
	}
}

func TestStepsThatCannotBeginAtARouterAreRefused(t *testing.T) {
	m := open(t, filepath.Join(oracles, "olmoe"), Options{MaxRows: 4, KVTokens: 128})
	other := open(t, filepath.Join(oracles, "olmoe"), Options{MaxRows: 4, KVTokens: 128})
	for _, layers := range [][]int{{99}, {-1}} {
		if _, err := m.NewResiduals(layers, 4); err == nil {
			t.Errorf("residuals of layers %v were made", layers)
		}
	}
	mine, err := m.NewResiduals([]int{1}, 2)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.NewResiduals([]int{1}, 4)
	if err != nil {
		t.Fatal(err)
	}
	for i, change := range []func(*Batch){
		func(b *Batch) { b.From, b.Router = []*Residuals{mine}, 1 },    // three rows, two kept
		func(b *Batch) { b.From, b.Router = []*Residuals{foreign}, 1 }, // of another model
		func(b *Batch) { b.From, b.Router = []*Residuals{nil}, 1 },
		func(b *Batch) { b.From, b.Router = []*Residuals{mine, mine}, 1 },
		func(b *Batch) { b.Keep = []*Residuals{mine} },
		func(b *Batch) { b.Keep, b.Sequence[0] = []*Residuals{mine}, -1 },
		func(b *Batch) { b.Keep, b.Positions[0] = []*Residuals{mine}, -1 },
		func(b *Batch) { b.Keep, b.Positions = []*Residuals{mine}, nil },
		func(b *Batch) { b.From, b.Router, b.Positions[0] = []*Residuals{mine}, 1, -1 },
	} {
		b := rows([]int32{1, 2, 3}, 0, 0)
		change(b)
		if _, err := m.Step(b); err == nil {
			t.Errorf("case %d was run", i)
		}
	}
	b := rows([]int32{1, 2}, 0, 0)
	b.From, b.Router = []*Residuals{mine}, 2 // not kept
	if _, err := m.Step(b); err == nil {
		t.Error("rows began at a router whose residuals were not kept")
	}
	streams := open(t, filepath.Join(oracles, "deepseek_v4"), Options{MaxRows: 4, KVTokens: 256})
	if _, err := streams.NewResiduals(streams.Info().Shape.Layers, 4); !errors.Is(err, ErrNoResiduals) {
		t.Error(fmt.Sprint("several residual streams: ", err))
	}
}
