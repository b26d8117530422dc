//go:build cuda

package cuda

import (
	"fmt"
	"slices"
	"testing"

	"covey/engine/canon"
)

// layer is a decoder layer and a head as models build them; where operations follow one another like this the fast kernels do
// several in one launch.
type layer struct {
	name          string
	form          canon.Form
	group         int
	scale         canon.Form
	headNorm      bool
	late          bool // norms of heads follow the rotation
	plusOne       bool
	shared        int // width of the shared expert; 0 = none
	head          canon.Form
	router        canon.RouterSpec
	routerForm    canon.Form
	kv            canon.Form
	hidden, inner int
}

var layers = []layer{
	{name: "heads normed", form: canon.Int4, group: 32, scale: canon.BF16, headNorm: true, head: canon.BF16, router: canon.RouterSpec{Experts: 12, TopK: 3, Normalise: true}, routerForm: canon.BF16, kv: canon.F16, hidden: 96, inner: 64},
	{name: "shared expert", form: canon.Int4, group: 64, scale: canon.F16, shared: 80, head: canon.F32, kv: canon.BF16, hidden: 136, inner: 72, routerForm: canon.F32,
		router: canon.RouterSpec{Score: canon.ScoreSigmoid, Experts: 16, TopK: 4, Groups: 4, TopGroups: 2, Normalise: true, Eps: 1e-20, Scale: 2.5}},
	{name: "late norms", form: canon.Int4, group: 128, scale: canon.BF16, headNorm: true, late: true, plusOne: true, head: canon.F16, router: canon.RouterSpec{Experts: 40, TopK: 6}, routerForm: canon.F16, kv: canon.F32, hidden: 1032, inner: 160},
	{name: "int8", form: canon.Int8, group: 64, scale: canon.BF16, headNorm: true, shared: 64, head: canon.Int8, router: canon.RouterSpec{Experts: 8, TopK: 2}, routerForm: canon.F32, kv: canon.F16, hidden: 64, inner: 64},
}

const layerHeads, layerKVHeads, layerDim, layerVocab = 8, 2, 64, 90

// build appends the layer twice, so that what one leaves the next one meets, and a head.
func (c layer) build(g *rig) {
	p := g.p
	weight := func(rows, cols int) *canon.Matrix {
		return must(g.arena.Pack(g.weight(c.form, rows, cols, c.group, c.scale)))
	}
	record := func(inner int) *canon.Record {
		part := func(rows, cols int) canon.Source { return g.weight(c.form, rows, cols, c.group, c.scale) }
		return must(g.arena.PackRecord(part(inner, c.hidden), part(inner, c.hidden), part(c.hidden, inner)))
	}
	x, h, branch := g.input(c.hidden, false), p.Buffer(c.hidden), p.Buffer(c.hidden)
	q, attended := p.Buffer(layerHeads*layerDim), p.Buffer(layerHeads*layerDim)
	k, v, logits := p.Buffer(layerKVHeads*layerDim), p.Buffer(layerKVHeads*layerDim), p.Buffer(c.router.Experts)
	rope := must(g.arena.NewRope(canon.RopeSpec{Theta: 10000, Rot: 48}))
	kv := must(g.arena.NewKV(canon.KVSpec{Layers: 2, Heads: layerKVHeads, Dim: layerDim, Pages: g.p.Limits().Pages, Form: c.kv}))
	for l := range 2 {
		p.Label(fmt.Sprintf("layer %d attention", l))
		p.RMSNorm(h, x, g.normals(c.hidden, 1), 1e-6, c.plusOne)
		p.MatMulN(h, canon.Product{Dst: q, M: weight(layerHeads*layerDim, c.hidden)}, canon.Product{Dst: k, M: weight(layerKVHeads*layerDim, c.hidden), Bias: g.normals(layerKVHeads*layerDim, 1)}, canon.Product{Dst: v, M: weight(layerKVHeads*layerDim, c.hidden)})
		p.Clamp(v, -3, 3)
		norms := func() {
			p.HeadNorm(q, layerHeads, g.normals(layerDim, 1), 1e-6, c.plusOne)
			p.HeadNorm(k, layerKVHeads, g.normals(layerDim, 1), 1e-6, c.plusOne)
		}
		if c.headNorm && !c.late {
			norms()
		}
		p.Rope(q, layerHeads, rope, canon.Half, 0)
		p.Rope(k, layerKVHeads, rope, canon.Half, 0)
		if c.headNorm && c.late {
			norms()
		}
		p.KVAppend(kv, l, k, v)
		p.Attention(attended, q, kv, l, canon.AttentionSpec{Heads: layerHeads})
		p.MatMul(branch, attended, weight(c.hidden, layerHeads*layerDim), nil)
		p.Add(x, branch)

		p.Label(fmt.Sprintf("layer %d feed-forward", l))
		p.RMSNorm(h, x, g.normals(c.hidden, 1), 1e-6, c.plusOne)
		p.MatMul(logits, h, must(g.arena.Pack(g.weight(c.routerForm, c.router.Experts, c.hidden, 0, 0))), nil)
		router := c.router
		router.Bias = g.normals(router.Experts, 0.1)
		choice := p.Router(logits, router)
		g.choices = append(g.choices, choice)
		table := must(g.arena.NewExpertTable(router.Experts))
		for id := range router.Experts {
			if err := table.Set(id, record(c.inner)); err != nil {
				g.t.Fatal(err)
			}
		}
		f := canon.FeedForward{Choice: choice, Table: table}
		if c.shared > 0 {
			f.Shared = record(c.shared)
		}
		p.FeedForward(branch, h, f)
		p.Add(x, branch)
	}
	p.Label("head")
	last, out := p.LogitBuffer(c.hidden), p.LogitBuffer(layerVocab)
	p.GatherRows(last, x)
	p.RMSNorm(last, last, g.normals(c.hidden, 1), 1e-6, c.plusOne)
	p.MatMul(out, last, must(g.arena.Pack(g.weight(c.head, layerVocab, c.hidden, c.group, c.scale))), nil)
	p.CheckFinite(out)
	g.keep(out)
}

func TestLayersEqualTheCPU(t *testing.T) {
	for _, c := range layers {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, canon.Limits{Pages: 5})
			c.build(g)
			steps := []*canon.Step{g.step(0, 1, 5), g.step(1, 5, 5)}
			if realDevice() {
				for at := 6; at < 300; at += rigRows {
					steps = append(steps, g.step(at, rigRows, 5))
				}
			} else {
				steps = append(steps, g.step(6, 12, 5))
			}
			last := steps[len(steps)-1].Positions
			end := int(last[len(last)-1]) + 1
			g.same(append(steps, g.step(end, 1, 5), g.step(end+1, 1, 5))...)
		})
	}
}

// The launches of a step of one row: what a model's speed for one answer hangs on.
func TestOneRowTakesFewLaunches(t *testing.T) {
	g := newRig(t, canon.Limits{Pages: 5})
	layers[0].build(g)
	if err := g.p.Build(); err != nil {
		t.Fatal(err)
	}
	device := must(open(t, Options{}).Load(g.p)).(*runner)
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	names := must(device.kernels(1))
	layer := []string{"rows_int4_g32", "elementwise", "heads_ready", "attend_blocks4_f16", "attend_fold", "rows_int4_g32"} // the second is the clamp of values
	if realDevice() {
		layer = append(layer, "moe_row_int4_g32_bf16")
	} else { // the driver for tests has no one-row kernel
		layer = append(layer, "norm_codes", "floats_lane1_bf16", "router", "group", "up_few_int4_g32", "down_few_int4_g32", "combine_sum")
	}
	want := slices.Concat([]string{"angles_table", "embed"}, layer, layer, []string{"norm_codes", "floats_lane1_bf16"})
	if !slices.Equal(names, want) {
		t.Errorf("launches %v\nwant %v", names, want)
	}
}
