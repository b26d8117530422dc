package canon

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// decoder is a model of the bundled one's shape with random weights: 30 layers, hidden 576, 9 query and 3 key/value heads of
// 64, shared width 1536, 4 of 32 experts of width 32, int4 in groups of 32, head of 49152 int8 rows.
type decoder struct {
	p     *Program
	bytes int64 // weights read for one row
}

func newDecoder(b *testing.B, pool *Pool, rows, pages int) *decoder {
	const hidden, layers, experts, k, vocab = 576, 30, 32, 4, 49152
	a := newArena(b)
	r := rand.New(rand.NewPCG(11, 11))
	d := &decoder{}
	pack := func(form Form, rows, cols int) *Matrix {
		m := must(a.Pack(weight(r, form, rows, cols, 32, F16)))
		d.bytes += m.Bytes()
		return m
	}
	record := func(inner int) *Record {
		bl := newBlock(r, Int4, hidden, inner, 32)
		return must(a.PackRecord(bl.gate, bl.up, bl.down))
	}
	p := NewProgram(pool, a, Limits{Rows: rows, LogitRows: 1, Sequences: 1, Pages: pages})
	kv := must(a.NewKV(KVSpec{Layers: layers, Heads: 3, Dim: 64, Pages: pages, Form: F16}))
	rope := must(a.NewRope(RopeSpec{Theta: 1e5, Rot: 64}))
	x, n, q, kk, v, o, y, z := p.Buffer(hidden), p.Buffer(hidden), p.Buffer(576), p.Buffer(192), p.Buffer(192), p.Buffer(576), p.Buffer(hidden), p.Buffer(experts)
	ones := make([]float32, hidden)
	for i := range ones {
		ones[i] = 1
	}
	head := pack(Int8, vocab, hidden)
	p.Embed(x, head)
	for l := range layers {
		p.Label(fmt.Sprintf("layer %d", l))
		p.RMSNorm(n, x, ones, 1e-5, false)
		p.MatMulN(n, Product{q, pack(Int4, 576, hidden), nil}, Product{kk, pack(Int4, 192, hidden), nil}, Product{v, pack(Int4, 192, hidden), nil})
		p.Rope(q, 9, rope, Half, 0)
		p.Rope(kk, 3, rope, Half, 0)
		p.KVAppend(kv, l, kk, v)
		p.Attention(o, q, kv, l, AttentionSpec{Heads: 9})
		p.MatMul(y, o, pack(Int4, hidden, 576), nil)
		p.Add(x, y)
		p.RMSNorm(n, x, ones, 1e-5, false)
		shared := record(1536)
		d.bytes += shared.Bytes()
		if l == 0 {
			p.FFN(y, n, shared)
		} else {
			t := must(a.NewExpertTable(experts))
			for e := range experts {
				rec := record(32)
				if err := t.Set(e, rec); err != nil {
					b.Fatal(err)
				}
				if e < k {
					d.bytes += rec.Bytes()
				}
			}
			p.MatMul(z, n, pack(F32, experts, hidden), nil)
			p.MoE(y, n, p.Router(z, RouterSpec{Score: ScoreSigmoid, Experts: experts, TopK: k, Bias: ones[:experts], Normalise: true, Eps: 1e-20, Scale: 2.5}), t, shared)
		}
		p.Add(x, y)
	}
	last, logits := p.LogitBuffer(hidden), p.LogitBuffer(vocab)
	p.RMSNorm(n, x, ones, 1e-5, false)
	p.GatherRows(last, n)
	p.Label("head")
	p.MatMul(logits, last, head, nil)
	p.CheckFinite(logits)
	if err := p.Build(); err != nil {
		b.Fatal(err)
	}
	d.p = p
	return d
}

func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkStep is a whole step: decode of one row and prefill of 256, at the start of a sequence and after 1,000 positions.
func BenchmarkStep(b *testing.B) {
	for _, threads := range slices.Compact([]int{1, 2, max(2, len(ownCores()))}) {
		pool := must(NewPool(threads, must(Resolve(""))))
		d := newDecoder(b, pool, 256, 32)
		pages := make([]int32, 32)
		for i := range pages {
			pages[i] = int32(i)
		}
		for _, c := range []struct{ rows, at int }{{1, 20}, {1, 1000}, {7, 1000}, {256, 0}, {256, 1000}} {
			b.Run(fmt.Sprintf("threads=%d/rows=%d/at=%d", threads, c.rows, c.at), func(b *testing.B) {
				s := rowsStep(c.rows)
				s.Pages[0], s.LogitRows = pages, []int32{int32(c.rows - 1)}
				for i := range s.Positions {
					s.Positions[i] += int32(c.at)
				}
				start := cpuSeconds()
				for b.Loop() {
					if err := d.p.Run(s); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric((cpuSeconds()-start)/float64(b.N)*1e3, "cpu-ms/op") // what a busy machine cannot distort much
				b.ReportMetric(float64(b.N*c.rows)/b.Elapsed().Seconds(), "tok/s")
				b.ReportMetric(float64(b.N)*float64(d.bytes)/b.Elapsed().Seconds()/1e9, "GB/s")
			})
		}
		d.p.Close()
		pool.Close()
	}
}

// BenchmarkNeighbours is decoding beside two busy processes, each pinned to one of the pool's cores, by turns with decoding alone:
// what is left of the speed, next to what is left of the processors. A phase that waited for all of its threads alike would
// keep half at best, whatever the number of cores.
func BenchmarkNeighbours(b *testing.B) {
	pool := must(NewPool(0, must(Resolve(""))))
	defer pool.Close()
	own := ownCores()
	d := newDecoder(b, pool, 1, 1)
	defer d.p.Close()
	s := rowsStep(1)
	s.Pages[0], s.LogitRows = []int32{0}, []int32{0}
	var busy []*exec.Cmd
	for i := range 2 {
		c := exec.Command("sh", "-c", "while :; do :; done")
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
		var set unix.CPUSet
		set.Set(own[i*len(own)/2].cpu)
		if err := unix.SchedSetaffinity(c.Process.Pid, &set); err != nil {
			b.Fatal(err)
		}
		busy = append(busy, c)
	}
	signal := func(sig unix.Signal) {
		for _, c := range busy {
			_ = c.Process.Signal(sig)
		}
	}
	var took [2]time.Duration // alone, beside them
	for b.Loop() {
		for i, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGCONT} {
			signal(sig)
			start := time.Now()
			for range 20 {
				if err := d.p.Run(s); err != nil {
					b.Fatal(err)
				}
			}
			took[i] += time.Since(start)
		}
	}
	b.ReportMetric(100*took[0].Seconds()/took[1].Seconds(), "%alone")
	b.ReportMetric(100-100/float64(max(len(own), 2)), "%left") // two halves of a core
	b.ReportMetric(float64(20*b.N)/took[0].Seconds(), "tok/s")
}

// BenchmarkProduct is one matrix that no cache holds, with few and many rows; for one row the bound is the read probe.
func BenchmarkProduct(b *testing.B) {
	pool := must(NewPool(0, must(Resolve(""))))
	defer pool.Close()
	probe := must(pool.ReadProbe(256<<20, 5))
	read := slices.Max(probe)
	for _, form := range []Form{Int4, Int8, F16, F32} {
		for _, rows := range []int{1, 4, 32} {
			b.Run(fmt.Sprintf("%v/rows=%d", form, rows), func(b *testing.B) {
				const cols = 2048
				outs := 64 << 20 * 8 / form.Bits() / cols
				a := newArena(b)
				p := NewProgram(pool, a, Limits{Rows: rows, Sequences: 1})
				in, out := p.Buffer(cols), p.Buffer(outs)
				src := Source{Name: "w", Form: form, Rows: outs, Cols: cols, Codes: make([]byte, outs*cols*form.Bits()/8)}
				if form.Quantised() {
					src.Group, src.ScaleForm, src.Scales = 32, F16, make([]byte, outs*cols/32*2)
				}
				m := must(a.Pack(src))
				p.MatMul(out, in, m, nil)
				if err := p.Build(); err != nil {
					b.Fatal(err)
				}
				s := rowsStep(rows)
				for b.Loop() {
					if err := p.Run(s); err != nil {
						b.Fatal(err)
					}
				}
				rate := float64(b.N) * float64(m.Bytes()) / b.Elapsed().Seconds()
				b.ReportMetric(rate/1e9, "GB/s")
				b.ReportMetric(100*rate/read, "%read")
				b.ReportMetric(float64(b.N)*float64(outs*cols*rows)/b.Elapsed().Seconds()/1e9, "GMAC/s")
				p.Close()
			})
		}
	}
}
