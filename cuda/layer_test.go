//go:build cuda

package cuda

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"covey/engine/canon"
	"covey/engine/model"
)

// shape is a decoder as models build it; where its operations follow one another like this, the fast kernels do several in one
// launch.
type shape struct {
	name           string
	layers, stored int // layers of the program, and how many have weights of their own
	form           canon.Form
	group          int
	scale          canon.Form
	heads, kvHeads int
	dim, rot       int
	headNorm       bool
	late           bool // norms of heads follow the rotation
	plusOne        bool
	window         int
	sinks          bool
	query, rank    int // latent attention: widths of the latents; dim and rot are those of a query head's plain and rotated part
	indexers       int // heads of the indexer that chooses positions for latent attention; 0 = all are attended
	indexDim, kept int // channels of its heads, positions kept
	shared         int // width of the shared expert; 0 = none
	head           canon.Form
	router         canon.RouterSpec
	routerForm     canon.Form
	records        int // experts of a layer with weights of their own
	kv             canon.Form
	hidden, inner  int
	vocab          int
}

var shapes = []shape{
	{name: "heads normed", form: canon.Int4, group: 32, scale: canon.BF16, headNorm: true, head: canon.BF16, router: canon.RouterSpec{Experts: 12, TopK: 3, Normalise: true}, routerForm: canon.BF16, kv: canon.F16, hidden: 96, inner: 64},
	{name: "shared expert", form: canon.Int4, group: 64, scale: canon.F16, shared: 80, head: canon.F32, kv: canon.BF16, hidden: 136, inner: 72, routerForm: canon.F32,
		router: canon.RouterSpec{Score: canon.ScoreSigmoid, Experts: 16, TopK: 4, Groups: 4, TopGroups: 2, Normalise: true, Eps: 1e-20, Scale: 2.5}},
	{name: "late norms", form: canon.Int4, group: 128, scale: canon.BF16, headNorm: true, late: true, plusOne: true, head: canon.F16, router: canon.RouterSpec{Experts: 40, TopK: 6}, routerForm: canon.F16, kv: canon.F32, hidden: 520, inner: 160},
	{name: "int8", form: canon.Int8, group: 64, scale: canon.BF16, headNorm: true, shared: 64, head: canon.Int8, router: canon.RouterSpec{Experts: 8, TopK: 2}, routerForm: canon.F32, kv: canon.F16, hidden: 64, inner: 64},
	{name: "latent", form: canon.Int4, group: 32, scale: canon.F16, query: 64, rank: 64, dim: 32, rot: 16, head: canon.BF16, router: canon.RouterSpec{Experts: 8, TopK: 2}, routerForm: canon.F32, kv: canon.F16, hidden: 64, inner: 64},
}

// small fills in what the shapes of tests have in common.
func (c shape) small() shape {
	c.layers, c.stored, c.records, c.vocab = 2, 2, c.router.Experts, 90
	c.heads, c.kvHeads = 8, 2
	if c.rank == 0 {
		c.dim, c.rot = 64, 48
	}
	return c
}

// Attention of one row in one launch, or few where it is latent: query heads of a key/value head in units of four, two and one, and what else the kernel does.
var rowShapes = []shape{
	{name: "units of four", kvHeads: 2, group: 32, scale: canon.BF16, kv: canon.F16, dim: 64, rot: 48, hidden: 96, headNorm: true},
	{name: "units of two, window and sinks", kvHeads: 4, group: 64, scale: canon.F16, kv: canon.F16, dim: 64, rot: 64, hidden: 136, window: 300, sinks: true, headNorm: true, late: true, plusOne: true},
	{name: "units of one, wide heads", kvHeads: 8, group: 128, scale: canon.BF16, kv: canon.F16, dim: 128, rot: 32, hidden: 72},
	{name: "more groups of codes than threads", heads: 132, kvHeads: 1, group: 32, scale: canon.F16, kv: canon.F16, dim: 64, rot: 64, hidden: 64, window: 40},
	{name: "latent", group: 32, scale: canon.F16, kv: canon.F16, query: 72, rank: 64, dim: 96, rot: 16, hidden: 136},
	{name: "latent and chosen", group: 32, scale: canon.BF16, kv: canon.F16, query: 64, rank: 64, dim: 32, rot: 16, hidden: 96, indexers: 4, indexDim: 16, kept: 300},
	{name: "latent, values without codes", group: 128, scale: canon.BF16, kv: canon.F32, query: 128, rank: 128, dim: 32, rot: 64, hidden: 72},
}

func (c shape) row() shape {
	c.form, c.layers, c.stored, c.records, c.vocab, c.inner = canon.Int4, 1, 1, 2, 32, 32
	if c.heads == 0 {
		c.heads = 8
	}
	c.head, c.routerForm, c.router = canon.F32, canon.F32, canon.RouterSpec{Experts: 2, TopK: 1}
	return c
}

// weights of a layer.
type layer struct {
	q, k, v, o, down, latent, keys, values, router *canon.Matrix
	indexQ, indexK, indexEach                      *canon.Matrix
	shared                                         *canon.Record
	experts                                        []*canon.Record
}

func (c shape) layer(g *rig) layer {
	weight := func(rows, cols int) *canon.Matrix {
		return must(g.arena.Pack(g.weight(c.form, rows, cols, c.group, c.scale)))
	}
	record := func(inner int) *canon.Record {
		part := func(rows, cols int) canon.Source { return g.weight(c.form, rows, cols, c.group, c.scale) }
		return must(g.arena.PackRecord(part(inner, c.hidden), part(inner, c.hidden), part(c.hidden, inner)))
	}
	var y layer
	if c.rank > 0 {
		y.down, y.q, y.latent = weight(c.query, c.hidden), weight(c.heads*(c.dim+c.rot), c.query), weight(c.rank+c.rot, c.hidden)
		y.keys, y.values = must(g.arena.Pack(g.weight(canon.BF16, c.heads*c.rank, c.dim, 0, 0))), must(g.arena.Pack(g.weight(canon.BF16, c.heads*c.dim, c.rank, 0, 0)))
		if c.indexers > 0 {
			exact := func(rows, cols int) *canon.Matrix { return must(g.arena.Pack(g.weight(canon.BF16, rows, cols, 0, 0))) }
			y.indexQ, y.indexK, y.indexEach = exact(c.indexers*c.indexDim, c.query), exact(c.indexDim, c.hidden), exact(c.indexers, c.hidden)
		}
	} else {
		y.q, y.k, y.v = weight(c.heads*c.dim, c.hidden), weight(c.kvHeads*c.dim, c.hidden), weight(c.kvHeads*c.dim, c.hidden)
	}
	y.o = weight(c.hidden, c.heads*c.dim)
	y.router = must(g.arena.Pack(g.weight(c.routerForm, c.router.Experts, c.hidden, 0, 0)))
	for range c.records {
		y.experts = append(y.experts, record(c.inner))
	}
	if c.shared > 0 {
		y.shared = record(c.shared)
	}
	return y
}

// build appends the shape's operations.
func (c shape) build(g *rig) {
	p := g.p
	x, h, branch := g.input(c.hidden, false), p.Buffer(c.hidden), p.Buffer(c.hidden)
	q, attended := p.Buffer(c.heads*(c.dim+c.query0())), p.Buffer(c.heads*c.dim)
	logits := p.Buffer(c.router.Experts)
	rope := must(g.arena.NewRope(canon.RopeSpec{Theta: 10000, Rot: c.rot}))
	spec := canon.KVSpec{Layers: c.layers, Heads: c.kvHeads, Dim: c.dim, Pages: p.Limits().Pages * p.Limits().Sequences, Form: c.kv}
	if c.rank > 0 {
		spec.Heads, spec.Dim, spec.Single = 1, c.rank+c.rot, true
	}
	kv := must(g.arena.NewKV(spec))
	var attend func(l int, y layer)
	if c.rank > 0 {
		down, latent, absorbed, kept := p.Buffer(c.query), p.Buffer(c.rank+c.rot), p.Buffer(c.heads*(c.rank+c.rot)), p.Buffer(c.heads*c.rank)
		var choose func(l int, y layer)
		spec := canon.AttentionSpec{Heads: c.heads, Values: c.rank}
		if c.indexers > 0 {
			cache := must(g.arena.NewKV(canon.KVSpec{Layers: c.layers, Heads: 1, Dim: c.indexDim, Pages: p.Limits().Pages * p.Limits().Sequences, Form: c.kv, Single: true}))
			queries, keys, each := p.Buffer(c.indexers*c.indexDim), p.Buffer(c.indexDim), p.Buffer(c.indexers)
			spec.Kept = p.NewSelection(c.kept, 1)
			choose = func(l int, y layer) {
				p.MatMul(queries, down, y.indexQ, nil)
				p.MatMulN(h, canon.Product{Dst: keys, M: y.indexK}, canon.Product{Dst: each, M: y.indexEach})
				p.LayerNorm(keys, keys, g.normals(c.indexDim, 1), g.normals(c.indexDim, 1), 1e-6)
				p.Rope(queries, c.indexers, rope, canon.Pairs, 0)
				p.Rope(keys, 1, rope, canon.Pairs, 0)
				p.KVAppend(cache, l, keys, nil)
				p.Index(spec.Kept, queries, each, cache, l)
			}
		}
		attend = func(l int, y layer) {
			p.MatMulN(h, canon.Product{Dst: down, M: y.down}, canon.Product{Dst: latent, M: y.latent})
			p.RMSNorm(down, down, g.normals(c.query, 1), 1e-6, false)
			p.MatMul(q, down, y.q, nil)
			part := latent.Slice(0, c.rank)
			p.RMSNorm(part, part, g.normals(c.rank, 1), 1e-6, false)
			p.Rope(latent, 1, rope, canon.Pairs, c.rank)
			p.KVAppend(kv, l, latent, nil)
			p.HeadMatMul(absorbed, 0, q, 0, y.keys, c.heads)
			p.HeadCopy(absorbed, c.rank, q, c.dim, c.rot, c.heads)
			p.Rope(absorbed, c.heads, rope, canon.Pairs, c.rank)
			if choose != nil {
				choose(l, y)
			}
			p.Attention(kept, absorbed, kv, l, spec)
			p.HeadMatMul(attended, 0, kept, 0, y.values, c.heads)
		}
	} else {
		k, v := p.Buffer(c.kvHeads*c.dim), p.Buffer(c.kvHeads*c.dim)
		attend = func(l int, y layer) {
			p.MatMulN(h, canon.Product{Dst: q, M: y.q}, canon.Product{Dst: k, M: y.k, Bias: g.normals(c.kvHeads*c.dim, 1)}, canon.Product{Dst: v, M: y.v})
			norms := func() {
				p.HeadNorm(q, c.heads, g.normals(c.dim, 1), 1e-6, c.plusOne)
				p.HeadNorm(k, c.kvHeads, g.normals(c.dim, 1), 1e-6, c.plusOne)
			}
			if c.headNorm && !c.late {
				norms()
			}
			p.Rope(q, c.heads, rope, canon.Half, 0)
			p.Rope(k, c.kvHeads, rope, canon.Half, 0)
			if c.headNorm && c.late {
				norms()
			}
			p.KVAppend(kv, l, k, v)
			spec := canon.AttentionSpec{Heads: c.heads, Window: c.window}
			if c.sinks {
				spec.Sinks = g.normals(c.heads, 1)
			}
			p.Attention(attended, q, kv, l, spec)
		}
	}
	var stored []layer
	for range c.stored {
		stored = append(stored, c.layer(g))
	}
	for l := range c.layers {
		y := stored[l%c.stored]
		p.Label(fmt.Sprintf("layer %d attention", l))
		p.RMSNorm(h, x, g.normals(c.hidden, 1), 1e-6, c.plusOne)
		attend(l, y)
		p.MatMul(branch, attended, y.o, nil)
		p.Add(x, branch)

		p.Label(fmt.Sprintf("layer %d feed-forward", l))
		p.RMSNorm(h, x, g.normals(c.hidden, 1), 1e-6, c.plusOne)
		p.MatMul(logits, h, y.router, nil)
		router := c.router
		router.Bias = g.normals(router.Experts, 0.1)
		choice := p.Router(logits, router)
		g.choices = append(g.choices, choice)
		table := must(g.arena.NewExpertTable(router.Experts))
		for id := range router.Experts {
			if err := table.Set(id, y.experts[id%c.records]); err != nil {
				g.t.Fatal(err)
			}
		}
		p.FeedForward(branch, h, canon.FeedForward{Choice: choice, Table: table, Shared: y.shared})
		p.Add(x, branch)
	}
	p.Label("head")
	last, out := p.LogitBuffer(c.hidden), p.LogitBuffer(c.vocab)
	p.GatherRows(last, x)
	p.RMSNorm(last, last, g.normals(c.hidden, 1), 1e-6, c.plusOne)
	p.MatMul(out, last, must(g.arena.Pack(g.weight(c.head, c.vocab, c.hidden, c.group, c.scale))), nil)
	p.CheckFinite(out)
	g.keep(out)
}

// query0 is how many rotated channels a query head has beside its plain ones.
func (c shape) query0() int {
	if c.rank > 0 {
		return c.rot
	}
	return 0
}

func TestLayersEqualTheCPU(t *testing.T) {
	for _, c := range shapes {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, canon.Limits{Pages: 5})
			c.small().build(g)
			steps := []*canon.Step{g.step(0, 1, 5), g.step(1, 5, 5)}
			if thorough() {
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

// Rows by themselves at positions around the ends of pages and blocks, among rows of larger steps.
func TestOneRowOfAttentionEqualsTheCPU(t *testing.T) {
	for _, c := range rowShapes {
		t.Run(c.name, func(t *testing.T) {
			const pages = 12
			g := newRig(t, canon.Limits{Pages: pages})
			c.row().build(g)
			var steps []*canon.Step
			for _, at := range []struct{ first, rows int }{{0, 1}, {1, 1}, {2, 3}, {63, 1}, {64, 1}, {250, 5}, {255, 1}, {256, 1}, {510, 1}, {511, 2}, {513, 1}, {767, 1}} {
				steps = append(steps, g.step(at.first, at.rows, pages))
			}
			g.same(steps...)
		})
	}
}

// A fold takes the factors of 32 blocks at once: the last position of 32 blocks, the first ones of the next, and one block more.
func TestOneRowBeyondThirtyTwoBlocksEqualsTheCPU(t *testing.T) {
	const pages = 133
	g := newRig(t, canon.Limits{Pages: pages})
	rowShapes[0].row().build(g)
	var steps []*canon.Step
	for _, at := range []struct{ first, rows int }{{0, 5}, {5000, 4}, {8191, 1}, {8192, 1}, {8193, 1}, {8448, 1}} {
		steps = append(steps, g.step(at.first, at.rows, pages))
	}
	g.same(steps...)
}

// Heads of one row: short and several stretches of a matrix's rows, a last tile that is not whole, values that are not finite.
func TestOneRowByALargeMatrixEqualsTheCPU(t *testing.T) {
	for _, c := range []struct {
		form canon.Form
		cols int
	}{{canon.F32, 520}, {canon.F16, 72}, {canon.BF16, 1032}} {
		t.Run(fmt.Sprint(c.form), func(t *testing.T) {
			const outputs = 8203
			g := newRig(t, canon.Limits{Pages: 1})
			x := g.input(c.cols, true)
			last, out := g.p.LogitBuffer(c.cols), g.p.LogitBuffer(outputs)
			g.p.GatherRows(last, x)
			g.p.MatMul(out, last, must(g.arena.Pack(g.weight(c.form, outputs, c.cols, 0, 0))), g.normals(outputs, 1))
			g.p.CheckFinite(out)
			g.keep(out)
			g.same(g.step(0, 1, 1), g.step(5, 1, 1), g.step(8, 1, 1), g.step(9, 1, 1))
		})
	}
}

// What a program keeps is cleared when it is loaded: logits of few rows, and not what lies behind them.
func TestLogitsOfFewerRowsThanAStepsEqualTheCPU(t *testing.T) {
	const cols, outputs = 32, 8203
	g := newRig(t, canon.Limits{Rows: 64, LogitRows: 1, Pages: 1})
	x := g.input(cols, true)
	last, out := g.p.LogitBuffer(cols), g.p.LogitBuffer(outputs)
	g.p.GatherRows(last, x)
	g.p.MatMul(out, last, must(g.arena.Pack(g.weight(canon.F16, outputs, cols, 0, 0))), nil)
	g.keep(out)
	g.same(g.step(0, 1, 1))
}

// A step of one row leaves out the normed row where the products of one launch are all that reads it: not where they become several
// launches, nor where the row is brought to the host.
func TestNormedRowsThatOthersReadEqualTheCPU(t *testing.T) {
	const cols, outputs = 64, 24
	weight := func(g *rig, form canon.Form) *canon.Matrix {
		return must(g.arena.Pack(g.weight(form, outputs, cols, 32, canon.F16)))
	}
	t.Run("products of two forms", func(t *testing.T) {
		g := newRig(t, canon.Limits{Pages: 1})
		x, h, a, b := g.input(cols, true), g.p.Buffer(cols), g.p.Buffer(outputs), g.p.Buffer(outputs)
		lastA, lastB := g.p.LogitBuffer(outputs), g.p.LogitBuffer(outputs)
		g.p.RMSNorm(h, x, g.normals(cols, 1), 1e-6, false)
		g.p.MatMulN(h, canon.Product{Dst: a, M: weight(g, canon.Int4)}, canon.Product{Dst: b, M: weight(g, canon.Int8)})
		g.p.GatherRows(lastA, a)
		g.p.GatherRows(lastB, b)
		g.keep(lastA, lastB)
		g.same(g.step(0, 1, 1), g.step(1, 1, 1))
	})
	t.Run("logit rows", func(t *testing.T) {
		g := newRig(t, canon.Limits{Pages: 1})
		x, last, out := g.input(cols, true), g.p.LogitBuffer(cols), g.p.LogitBuffer(outputs)
		g.p.GatherRows(last, x)
		g.p.RMSNorm(last, last, g.normals(cols, 1), 1e-6, false)
		g.p.MatMul(out, last, weight(g, canon.Int4), nil)
		g.keep(last, out)
		g.same(g.step(0, 1, 1), g.step(1, 1, 1))
	})
}

// headOfOneRow is the kernel of a small shape's head: fewer outputs a block where there are more multiprocessors than blocks.
func headOfOneRow() string {
	if realDevice() {
		return "floats_small_bf16"
	}
	return "floats_one_bf16"
}

// launchesOfOneRow names the kernels of a step of one row.
func launchesOfOneRow(t *testing.T, c shape) []string {
	g := newRig(t, canon.Limits{Pages: 5})
	c.build(g)
	if err := g.p.Build(); err != nil {
		t.Fatal(err)
	}
	device := must(open(t, Options{}).Load(g.p)).(*runner)
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	return must(device.kernels(1))
}

// The launches of a step of one row: what a model's speed for one answer hangs on.
func TestOneRowTakesFewLaunches(t *testing.T) {
	names := launchesOfOneRow(t, shapes[0].small())
	layer := []string{"attend_row_d64_int4_g32_bf16", "moe_row_int4_g32_bf16"}
	want := slices.Concat([]string{"angles_table", "embed"}, layer, layer, []string{"norm_codes", headOfOneRow()})
	if !slices.Equal(names, want) {
		t.Errorf("launches %v\nwant %v", names, want)
	}
}

// The same with latent attention.
func TestOneRowOfLatentAttentionTakesFewLaunches(t *testing.T) {
	names := launchesOfOneRow(t, shapes[4].small())
	layer := []string{"product_row_int4_g32_f16", "product_row_int4_g32_f16", "latent_heads_bf16", "attend_latent_row_f16", "latent_values_bf16", "product_row_int4_g32_f16", "moe_row_int4_g32_f16"}
	want := slices.Concat([]string{"angles_table", "embed"}, layer, layer, []string{"norm_codes", headOfOneRow()})
	if !slices.Equal(names, want) {
		t.Errorf("launches %v\nwant %v", names, want)
	}
}

// What devices of other generations get: less shared memory a block, before 9.0 no kernels that live from bulk copies. The operands
// are such that some kernels want more than there is.
func TestOtherDevicesEqualTheCPU(t *testing.T) {
	emulatedOnly(t)
	for _, capability := range []string{"80", "89", "120"} {
		t.Run(capability, func(t *testing.T) {
			t.Setenv("COVEY_FAKE_CAPABILITY", capability)
			for _, group := range []int{64, 128} {
				g := newRig(t, canon.Limits{Pages: 1})
				q, k, y, z, out := g.input(256, false), g.input(128, false), g.p.Buffer(256), g.p.Buffer(256), g.p.Buffer(48)
				w, wide := g.p.Buffer(256), g.p.Buffer(48)
				kv := must(g.arena.NewKV(canon.KVSpec{Layers: 1, Heads: 1, Dim: 128, Pages: 1, Form: canon.F16}))
				g.p.Clamp(k, -3, 3)
				g.p.KVAppend(kv, 0, k, k)
				g.p.Attention(y, q, kv, 0, canon.AttentionSpec{Heads: 2})
				part := func(rows, cols int) canon.Source { return g.weight(canon.Int8, rows, cols, group, canon.F16) }
				g.p.FFN(z, q, must(g.arena.PackRecord(part(144, 256), part(144, 256), part(256, 144))))
				g.p.MatMul(out, z, must(g.arena.Pack(part(48, 256))), nil)
				float := func(rows, cols int) canon.Source { return g.weight(canon.F32, rows, cols, 0, 0) }
				g.p.FFN(w, q, must(g.arena.PackRecord(float(144, 256), float(144, 256), float(256, 144))))
				g.p.MatMul(wide, w, must(g.arena.Pack(float(48, 256))), nil)
				g.keep(y, z, out, w, wide)
				g.same(g.step(0, 1, 1), g.step(1, 3, 1), g.step(4, rigRows, 1))
			}
			for _, c := range shapes {
				if c.rank > 0 {
					g := newRig(t, canon.Limits{Pages: 5})
					c.small().build(g)
					g.same(g.step(0, 1, 5), g.step(1, 5, 5), g.step(6, 1, 5))
				}
			}
			dir, o := filepath.Join(oracles, "glm4_moe"), model.Options{KV: "f16"}
			want := hashes(t, dir, o, 1, 32)
			o.Backend = open(t, Options{})
			if got := hashes(t, dir, o, 5, 7); !slices.Equal(got, want) {
				t.Errorf("hashes %.8s, the CPU's are %.8s", got, want)
			}
		})
	}
}

// A device whose driver compiled the kernels from PTX for compute_80 has no bulk copies in them, however new it is.
func TestKernelsFromOldPTXAreNotThoseWithBulkCopies(t *testing.T) {
	emulatedOnly(t)
	t.Setenv("COVEY_FAKE_PTX", "80")
	g := newRig(t, canon.Limits{Pages: 5})
	shapes[0].small().build(g)
	if err := g.p.Build(); err != nil {
		t.Fatal(err)
	}
	device := must(open(t, Options{}).Load(g.p)).(*runner)
	names := must(device.kernels(1))
	blocks := func(name string) bool { return strings.HasPrefix(name, "attend_blocks") }
	if !slices.Contains(names, "rows_int4_g32") || !slices.Contains(names, "attend_split") || slices.ContainsFunc(names, blocks) {
		t.Errorf("launches %v", names)
	}
	// Wherever such a kernel ran all the same, the driver would end the process.
	steps := newRig(t, canon.Limits{Pages: 5})
	shapes[0].small().build(steps)
	steps.same(steps.step(0, 1, 5), steps.step(1, 5, 5), steps.step(6, 1, 5))
	for _, l := range device.plans[device.bucket(1, 1, 1)].at() {
		if l.overlap != 0 {
			t.Error("launches overlap without an instruction to wait for one another")
		}
	}
	if err := device.Close(); err != nil {
		t.Error(err)
	}
}
