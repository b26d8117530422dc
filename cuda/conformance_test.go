//go:build cuda

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"covey/engine/canon"
)

// The conformance suite: programs of one or few operations run on the CPU backend and on the device, and every kept value,
// choice and fault must be equal bit for bit (NaNs count as equal). Inputs reach a program as an embedding of float rows.

func open(t testing.TB, o Options) *Backend {
	t.Helper()
	b, err := Open(0, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if l := b.Ledger(); len(l) > 0 {
			t.Errorf("device memory left: %v", l)
		}
	})
	return b
}

// rig is one program under test.
type rig struct {
	t       testing.TB
	r       *rand.Rand
	arena   *canon.Arena
	pool    *canon.Pool
	p       *canon.Program
	kept    []*canon.Buffer
	choices []*canon.Choice
	ways    []Options // beside those of every test
}

const rigRows = 20

func newRig(t testing.TB, lim canon.Limits) *rig {
	t.Helper()
	g := &rig{t: t, r: rand.New(rand.NewPCG(7, 11)), arena: canon.NewArena(0)}
	g.pool = must(canon.NewPool(1, canon.Portable))
	if lim.Rows == 0 {
		lim.Rows = rigRows
	}
	if lim.Sequences == 0 {
		lim.Sequences = 1
	}
	g.p = canon.NewProgram(g.pool, g.arena, lim)
	t.Cleanup(func() {
		g.p.Close()
		g.pool.Close()
		if err := g.arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func littleEndian(v []float32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func (g *rig) normals(n int, size float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(g.r.NormFloat64() * size)
	}
	return v
}

// input is a buffer whose row for token t is a row of random values; among them rows of zeros, of very small and very large
// values, and, if odd is set, with an infinity and a NaN.
func (g *rig) input(width int, odd bool) *canon.Buffer {
	rows := g.p.Limits().Rows
	v := g.normals(rows*width, 1)
	for row, factor := range map[int]float32{3: 0, 4: 0x1p-101, 5: 0x1p-99, 6: 0x1p-130, 7: 0x1p60} {
		for i := row * width; row < rows && i < (row+1)*width; i++ {
			v[i] *= factor
		}
	}
	if odd {
		v[8*width+1], v[9*width+width/2] = float32(math.Inf(1)), float32(math.NaN())
	}
	b := g.p.Buffer(width)
	g.p.Embed(b, must(g.arena.Pack(canon.Source{Name: "input", Form: canon.F32, Rows: rows, Cols: width, Codes: littleEndian(v)})))
	return b
}

// freshBytes is how much of a matrix is random; what is beyond repeats it.
const freshBytes = 4 << 20

func repeated(n int, fresh []byte) []byte {
	out := make([]byte, n)
	for at := copy(out, fresh); at < n; at *= 2 {
		copy(out[at:], out[:at])
	}
	return out
}

// weight is a matrix of random codes and scales.
func (g *rig) weight(form canon.Form, rows, cols, group int, scale canon.Form) canon.Source {
	s := canon.Source{Name: fmt.Sprintf("%v[%d,%d]/%d", form, rows, cols, group), Form: form, Rows: rows, Cols: cols}
	size := rows * ((cols*form.Bits() + 7) / 8)
	codes := make([]byte, min(size, freshBytes))
	switch form {
	case canon.F32:
		s.Codes = repeated(size, littleEndian(g.normals(len(codes)/4, 0.05)))
		return s
	case canon.F16, canon.BF16:
		for i := 0; i < len(codes); i += 2 { // small normal numbers of either sign
			binary.LittleEndian.PutUint16(codes[i:], uint16(g.r.Uint32())&0x83ff|0x2c00|uint16(g.r.IntN(4)))
		}
		s.Codes = repeated(size, codes)
		return s
	}
	for i := range codes {
		codes[i] = byte(g.r.Uint32())
		if i%7 == 0 {
			codes[i] = 0
		}
		if form == canon.FP8 && codes[i]&127 == 127 {
			codes[i]--
		}
	}
	s.Codes = repeated(size, codes)
	s.Group, s.ScaleForm = group, scale
	n := rows * ((cols + group - 1) / group)
	if form == canon.FP8 { // blocks of group by group
		s.GroupRows = group
		n = (rows + group - 1) / group * ((cols + group - 1) / group)
	}
	fresh := min(n, freshBytes)
	var scales []byte
	for range fresh {
		switch scale {
		case canon.F32:
			scales = append(scales, littleEndian([]float32{float32(0.001 + 0.01*g.r.Float64())})...)
		case canon.E8M0:
			scales = append(scales, byte(110+g.r.IntN(16)))
		case canon.BF16: // from 0.002 on
			scales = binary.LittleEndian.AppendUint16(scales, uint16(0x3b00+g.r.IntN(128)))
		default:
			scales = binary.LittleEndian.AppendUint16(scales, uint16(0x1c00+g.r.IntN(1024)))
		}
	}
	s.Scales = repeated(n*len(scales)/fresh, scales)
	return s
}

func (g *rig) keep(b ...*canon.Buffer) { g.p.Keep(b...); g.kept = append(g.kept, b...) }

// step is a step of rows first .. first+n of one sequence.
func (g *rig) step(first, n int, pages int) *canon.Step {
	s := &canon.Step{Pages: make([][]int32, 1)}
	for i := range pages {
		s.Pages[0] = append(s.Pages[0], int32(pages-1-i)) // not in the order of positions
	}
	for i := range n {
		s.Tokens, s.Positions, s.Sequence = append(s.Tokens, int32((first+i)%g.p.Limits().Rows)), append(s.Positions, int32(first+i)), append(s.Sequence, 0)
		s.LogitRows = append(s.LogitRows, int32(n-1-i))
	}
	return s
}

// outcome is everything that a step gives.
func (g *rig) outcome(s *canon.Step, err error) string {
	var out []byte
	for _, b := range g.kept {
		for i := range len(s.Tokens) {
			for _, x := range b.Row(i) {
				if x != x {
					x = float32(math.NaN())
				}
				out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
			}
		}
	}
	for _, c := range g.choices {
		for i := range len(s.Tokens) {
			out = fmt.Appendf(out, "%v", c.IDs(i))
			for _, w := range c.Weights(i) {
				out = fmt.Appendf(out, " %08x", math.Float32bits(w))
			}
		}
	}
	if err != nil {
		out = append(out, err.Error()...)
	}
	return string(out)
}

// clobber overwrites what a step gave, so that a value which the device does not write cannot pass for its result.
func (g *rig) clobber(rows int) {
	for _, b := range g.kept {
		for i := range rows {
			for j := range b.Row(i) {
				b.Row(i)[j] = 12345
			}
		}
	}
	for _, c := range g.choices {
		for i := range rows {
			for j := range c.IDs(i) {
				c.IDs(i)[j], c.Weights(i)[j] = -7, 12345
			}
		}
	}
}

// same runs the steps on both backends and compares. Steps run twice on the device, since the second run of a bucket is a
// graph.
func (g *rig) same(steps ...*canon.Step) {
	g.t.Helper()
	g.compare(2, steps)
}

// once is same for steps that go on where the one before ended: each runs once.
func (g *rig) once(steps ...*canon.Step) {
	g.t.Helper()
	g.compare(1, steps)
}

func (g *rig) compare(runs int, steps []*canon.Step) {
	g.t.Helper()
	if err := g.p.Build(); err != nil {
		g.t.Fatal(err)
	}
	host := must(canon.CPU.Load(g.p))
	var want []string
	for _, s := range steps {
		want = append(want, g.outcome(s, host.Run(s)))
	}
	for _, o := range append([]Options{{Plain: true}, {}}, g.ways...) {
		device := must(open(g.t, o).Load(g.p))
		for i, s := range steps {
			for run := range runs {
				if run > 0 && !realDevice() && len(s.Tokens) > 8 {
					break // the emulated driver is slow, and a graph is a graph
				}
				g.clobber(len(s.Tokens))
				if got := g.outcome(s, device.Run(s)); got != want[i] {
					g.t.Errorf("%+v, step %d, run %d: %s", o, i, run, difference(got, want[i]))
				}
			}
		}
		if err := device.Close(); err != nil {
			g.t.Fatal(err)
		}
	}
}

func difference(got, want string) string {
	n := 0
	for n < min(len(got), len(want)) && got[n] == want[n] {
		n++
	}
	return fmt.Sprintf("device and CPU differ at byte %d of %d (device %d): %q, want %q", n, len(want), len(got), got[n:min(n+60, len(got))], want[n:min(n+60, len(want))])
}

func TestProductsEqualTheCPU(t *testing.T) {
	type shape struct{ rows, cols int }
	shapes := []shape{{16, 32}, {24, 96}, {17, 576}, {33, 1056}, {136, 352}}
	if thorough() {
		shapes = append(shapes, shape{40, 160}, shape{300, 2880}, shape{1000, 4096})
	}
	for _, form := range []struct {
		form   canon.Form
		groups []int
		scale  canon.Form
	}{{canon.F32, []int{0}, 0}, {canon.F16, []int{0}, 0}, {canon.BF16, []int{0}, 0}, {canon.Int4, []int{32, 64, 128}, canon.F16}, {canon.Int4, []int{64}, canon.BF16},
		{canon.Int4, []int{128}, canon.F32}, {canon.Int8, []int{32, 128}, canon.F16}, {canon.MXFP4, []int{32}, canon.E8M0}, {canon.FP8, []int{128, 64}, canon.F32}} {
		for _, group := range form.groups {
			t.Run(fmt.Sprintf("%v/%d/%v", form.form, group, form.scale), func(t *testing.T) {
				for _, s := range shapes {
					g := newRig(t, canon.Limits{})
					x, y, z := g.input(s.cols, true), g.p.Buffer(s.rows), g.p.Buffer(s.rows)
					m := must(g.arena.Pack(g.weight(form.form, s.rows, s.cols, group, form.scale)))
					g.p.MatMul(y, x, m, nil)
					g.p.MatMul(z, x, m, g.normals(s.rows, 1))
					g.keep(y, z)
					g.same(g.step(0, 1, 0), g.step(0, 3, 0), g.step(0, rigRows, 0))
				}
			})
		}
	}
}

func TestRowOperationsEqualTheCPU(t *testing.T) {
	g := newRig(t, canon.Limits{})
	const width = 192
	x, y := g.input(width, true), g.input(width, false)
	buffers := []*canon.Buffer{}
	fresh := func() *canon.Buffer { b := g.p.Buffer(width); buffers = append(buffers, b); return b }
	w := g.normals(width, 1)
	g.p.RMSNorm(fresh(), x, w, 1e-6, false)
	g.p.RMSNorm(fresh(), x, w, 1e-5, true)
	g.p.RMSNorm(fresh(), x, nil, 1e-5, false)
	heads := fresh()
	g.p.RMSNorm(heads, y, nil, 1e-6, false)
	g.p.HeadNorm(heads, 3, w[:64], 1e-6, false)
	g.p.LayerNorm(fresh(), x, w, g.normals(width, 1), 1e-5)
	for _, pairing := range []canon.Pairing{canon.Half, canon.Pairs} {
		turned := fresh()
		g.p.RMSNorm(turned, y, nil, 1e-6, false)
		g.p.Rope(turned, 3, must(g.arena.NewRope(canon.RopeSpec{Theta: 10000, Rot: 32})), pairing, 16)
		g.p.Rope(turned, 3, must(g.arena.NewRope(canon.RopeSpec{Theta: 1e6, Rot: 48})), pairing, 0)
	}
	g.p.SwiGLU(fresh(), x, y)
	sum := fresh()
	g.p.SwiGLU(sum, y, y)
	g.p.Add(sum, x)
	g.p.AddScaled(sum, y, 0.3)
	g.p.Scale(sum, 1.7)
	g.p.Divide(sum, 3)
	clamped := fresh()
	g.p.RMSNorm(clamped, x, nil, 1e-5, false)
	g.p.Clamp(clamped, -0.5, 0.25)
	copied := fresh()
	g.p.RMSNorm(copied, y, nil, 1e-5, false)
	g.p.HeadCopy(copied, 8, x, 16, 20, 4)
	g.p.HeadMatMul(copied, 0, y, 8, must(g.arena.Pack(g.weight(canon.F32, 3*24, 40, 0, 0))), 3)
	last := g.p.LogitBuffer(width)
	g.p.GatherRows(last, x)
	g.p.RMSNorm(last, last, nil, 1e-5, false)
	g.p.Label("check")
	g.p.CheckFinite(last)
	g.keep(append(buffers, last)...)
	g.same(g.step(0, 1, 0), g.step(0, 7, 0), g.step(0, rigRows, 0))
}

func TestAttentionEqualsTheCPU(t *testing.T) {
	for _, c := range []struct {
		name   string
		form   canon.Form
		window int
		sinks  bool
		single bool
	}{{"f32", canon.F32, 0, false, false}, {"f16", canon.F16, 0, false, false}, {"bf16 window", canon.BF16, 100, false, false}, {"f16 window and sinks", canon.F16, 300, true, false}, {"latent", canon.F16, 0, false, true}} {
		t.Run(c.name, func(t *testing.T) {
			const heads, kvHeads, dim = 4, 2, 16
			positions := 330
			if thorough() {
				positions = 560
			}
			pages := (positions + 63) / 64
			g := newRig(t, canon.Limits{Pages: pages})
			q, k, v, y := g.input(heads*dim, false), g.input(kvHeads*dim, false), g.input(kvHeads*dim, false), g.p.Buffer(heads*dim)
			spec, at := canon.KVSpec{Layers: 2, Heads: kvHeads, Dim: dim, Pages: pages, Form: c.form}, canon.AttentionSpec{Heads: heads, Window: c.window}
			if c.single {
				spec.Heads, spec.Single, at.Values = 1, true, 8
				k, v, y = g.input(dim, false), nil, g.p.Buffer(heads*8)
			}
			if c.sinks {
				at.Sinks = g.normals(heads, 1)
			}
			for _, b := range []*canon.Buffer{q, k, v} {
				if b != nil {
					g.p.Clamp(b, -3, 3)
				}
			}
			kv := must(g.arena.NewKV(spec))
			g.p.KVAppend(kv, 1, k, v)
			g.p.Attention(y, q, kv, 1, at)
			g.keep(y)
			var steps []*canon.Step
			for first := 0; first < positions; first += rigRows {
				steps = append(steps, g.step(first, rigRows, pages))
			}
			g.same(append(steps, g.step(0, 1, pages), g.step(positions-5, 3, pages), g.step(positions-1, 1, pages))...)
		})
	}
}

// A page that is cleared is clear in all layers, and no other page is.
func TestAClearedPageEqualsTheCPU(t *testing.T) {
	const heads, dim, layers, pages, cleared = 2, 32, 3, 4, 3
	g := newRig(t, canon.Limits{Pages: pages})
	kv := must(g.arena.NewKV(canon.KVSpec{Layers: layers, Heads: 1, Dim: dim, Pages: pages, Form: canon.F16}))
	for l := range layers {
		q, k, y := g.input(heads*dim, false), g.input(dim, false), g.p.Buffer(heads*dim)
		g.p.Clamp(k, -3, 3)
		g.p.KVAppend(kv, l, k, k)
		g.p.Attention(y, q, kv, l, canon.AttentionSpec{Heads: heads})
		g.keep(y)
	}
	if err := g.p.Build(); err != nil {
		t.Fatal(err)
	}
	outcomes := func(r canon.Runner) (out []string) {
		for _, s := range []*canon.Step{g.step(0, 20, pages), g.step(64, 20, pages), g.step(84, 1, pages)} {
			if s.Positions[0] == 84 { // the step before left keys in page 2, the first one in page 3
				if err := r.Zero(kv, cleared); err != nil {
					t.Fatal(err)
				}
			}
			g.clobber(len(s.Tokens))
			out = append(out, g.outcome(s, r.Run(s)))
		}
		return out
	}
	want := outcomes(must(canon.CPU.Load(g.p)))
	device := must(open(t, Options{}).Load(g.p))
	if got := outcomes(device); !slices.Equal(got, want) {
		t.Error("outcomes of device and CPU differ")
	}
	if err := device.Close(); err != nil {
		t.Error(err)
	}
}

// Few rows in blocks of 256 positions: more thread blocks than multiprocessors and fewer, with 8, 4, 2 and 1 query heads each.
func TestAttentionOfSeveralRowsEqualsTheCPU(t *testing.T) {
	for _, c := range []struct {
		heads, kvHeads, dim int
		form                canon.Form
	}{{8, 1, 32, canon.F16}, {8, 1, 64, canon.F16}, {4, 1, 32, canon.BF16}, {2, 1, 32, canon.F16}, {1, 1, 32, canon.F32}} {
		t.Run(fmt.Sprintf("%d of %d, %d wide, %v", c.heads, c.kvHeads, c.dim, c.form), func(t *testing.T) {
			const pages = 5
			dim := c.dim
			g := newRig(t, canon.Limits{Pages: pages})
			q, k, v, y := g.input(c.heads*dim, false), g.input(c.kvHeads*dim, false), g.input(c.kvHeads*dim, false), g.p.Buffer(c.heads*dim)
			for _, b := range []*canon.Buffer{q, k, v} {
				g.p.Clamp(b, -3, 3)
			}
			kv := must(g.arena.NewKV(canon.KVSpec{Layers: 1, Heads: c.kvHeads, Dim: dim, Pages: pages, Form: c.form}))
			g.p.KVAppend(kv, 0, k, v)
			g.p.Attention(y, q, kv, 0, canon.AttentionSpec{Heads: c.heads})
			g.keep(y)
			g.same(g.step(0, 20, pages), g.step(250, 20, pages), g.step(270, 5, pages), g.step(275, 1, pages))
		})
	}
}

// Many rows at once: tiles of queries, with rows of two sequences, of which each row attends another part; windows and sinks.
func TestAttentionOfManyRowsEqualsTheCPU(t *testing.T) {
	for _, c := range []struct {
		name                string
		form                canon.Form
		heads, kvHeads, dim int
		window              int
		sinks               bool
	}{{"f16", canon.F16, 4, 2, 64, 0, false}, {"bf16 window and sinks", canon.BF16, 6, 1, 64, 40, true}, {"f32 wide", canon.F32, 2, 2, 128, 0, false}} {
		t.Run(c.name, func(t *testing.T) {
			const pages = 5
			g := newRig(t, canon.Limits{Rows: 80, Pages: pages, Sequences: 2})
			q, k, v, y := g.input(c.heads*c.dim, false), g.input(c.kvHeads*c.dim, false), g.input(c.kvHeads*c.dim, false), g.p.Buffer(c.heads*c.dim)
			at := canon.AttentionSpec{Heads: c.heads, Window: c.window}
			if c.sinks {
				at.Sinks = g.normals(c.heads, 1)
			}
			for _, b := range []*canon.Buffer{q, k, v} {
				g.p.Clamp(b, -3, 3)
			}
			kv := must(g.arena.NewKV(canon.KVSpec{Layers: 2, Heads: c.kvHeads, Dim: c.dim, Pages: 2 * pages, Form: c.form}))
			g.p.KVAppend(kv, 1, k, v)
			g.p.Attention(y, q, kv, 1, at)
			g.keep(y)
			next := [2]int{}
			step := func(rows ...int) *canon.Step {
				s := &canon.Step{Pages: [][]int32{{4, 2, 0, 1, 3}, {5, 9, 8, 6, 7}}}
				for sequence, n := range rows {
					for range n {
						s.Tokens, s.Positions, s.Sequence = append(s.Tokens, int32(len(s.Tokens))), append(s.Positions, int32(next[sequence])), append(s.Sequence, int32(sequence))
						next[sequence]++
					}
				}
				return s
			}
			g.same(step(70), step(40, 30), step(80), step(66), step(40, 36), step(0, 75))
		})
	}
}

func TestValuesBeyondTheCacheAreFaultsOfTheirRows(t *testing.T) {
	g := newRig(t, canon.Limits{Pages: 1})
	k := g.input(32, true)
	kv := must(g.arena.NewKV(canon.KVSpec{Layers: 1, Heads: 1, Dim: 32, Pages: 1, Form: canon.F16}))
	g.p.Label("append")
	g.p.KVAppend(kv, 0, k, k)
	g.same(g.step(0, rigRows, 1))
}

func TestRoutersEqualTheCPU(t *testing.T) {
	for name, spec := range map[string]canon.RouterSpec{
		"softmax":        {Score: canon.ScoreSoftmax, Experts: 40, TopK: 6, Normalise: true},
		"softmax scaled": {Score: canon.ScoreSoftmax, Experts: 8, TopK: 2, Scale: 2.5},
		"top softmax":    {Score: canon.ScoreTopSoftmax, Experts: 33, TopK: 4},
		"sigmoid groups": {Score: canon.ScoreSigmoid, Experts: 64, TopK: 6, Groups: 8, TopGroups: 3, Normalise: true, Eps: 1e-20, Scale: 1.5},
		"group maximum":  {Score: canon.ScoreSigmoid, Experts: 64, TopK: 6, Groups: 4, TopGroups: 2, GroupMax: true, MinSum: 1e-3, Normalise: true},
		"sparse mixer":   {Score: canon.ScoreSparseMixer, Experts: 16, TopK: 2, Jitter: 0.2},
		"square root":    {Score: canon.ScoreSqrtSoftplus, Experts: 16, TopK: 3, Normalise: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, biased := range []bool{false, true} {
				g := newRig(t, canon.Limits{})
				z := g.input(spec.Experts, true)
				if biased {
					spec.Bias = g.normals(spec.Experts, 0.3)
				}
				g.p.Label("router")
				g.choices = append(g.choices, g.p.Router(z, spec))
				g.keep(z)
				banned := g.step(0, rigRows, 0)
				ban := g.p.NewBan()
				for id := 0; id < spec.Experts && ban.Add(0, id) == nil; id += 3 {
				}
				banned.Banned = []*canon.Ban{ban}
				steps := []*canon.Step{g.step(0, 1, 0), g.step(0, 7, 0), banned}
				for _, s := range steps { // what the CPU chooses in a row that is not finite is nobody's business
					s.Tokens = slices.Clone(s.Tokens)
					for i, token := range s.Tokens {
						if token == 8 || token == 9 {
							s.Tokens[i] = 10
						}
					}
				}
				g.same(steps...)
			}
		})
	}
}

func TestFeedForwardEqualsTheCPU(t *testing.T) {
	const experts, k = 12, 3
	for _, form := range []struct {
		form  canon.Form
		group int
		scale canon.Form
	}{{canon.Int4, 32, canon.F16}, {canon.Int4, 64, canon.BF16}, {canon.Int8, 128, canon.F16}, {canon.BF16, 0, 0}, {canon.F32, 0, 0}, {canon.MXFP4, 32, canon.E8M0}, {canon.FP8, 128, canon.BF16}} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/%d/shared=%v", form.form, form.group, shared), func(t *testing.T) {
				hidden, inner := 96, 80
				if form.form == canon.FP8 { // more than one block either way, the last one short
					hidden, inner = 288, 160
				}
				g := newRig(t, canon.Limits{})
				g.ways = several(t)
				record := func(inner int) *canon.Record {
					part := func(rows, cols int) canon.Source {
						s := g.weight(form.form, rows, cols, form.group, form.scale)
						if shared {
							s.Bias = g.normals(rows, 0.5)
						}
						return s
					}
					return must(g.arena.PackRecord(part(inner, hidden), part(inner, hidden), part(hidden, inner)))
				}
				x, z, y, d := g.input(hidden, false), g.input(experts, false), g.p.Buffer(hidden), g.p.Buffer(hidden)
				g.choices = append(g.choices, g.p.Router(z, canon.RouterSpec{Experts: experts, TopK: k, Normalise: true}))
				table := must(g.arena.NewExpertTable(experts))
				for id := range experts {
					if id != 5 { // rows that choose it have a fault
						if err := table.Set(id, record(inner)); err != nil {
							t.Fatal(err)
						}
					}
				}
				f := canon.FeedForward{Choice: g.choices[0], Table: table}
				if shared {
					f.Shared, f.SharedGate = record(inner+16), g.input(1, false)
					f.Activation = canon.Activation{Kind: canon.SwiGLUOss, Limit: 0.7}
				}
				g.p.Label("experts")
				g.p.FeedForward(y, x, f)
				g.p.FFN(d, x, record(144))
				g.keep(y, d)
				g.same(g.step(0, 1, 0), g.step(0, 7, 0), g.step(0, rigRows, 0))
			})
		}
	}
}
