package canon

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// tiny is a program with every kind of row: embedding, attention, logits for some rows.
func tiny(t *testing.T, pool *Pool, form Form) (*Program, *Buffer) {
	t.Helper()
	a := newArena(t)
	x := normals(rand.New(rand.NewPCG(16, 16)), 5*16, 1)
	x[4*16] = float32(math.Inf(1)) // token 4
	x[3*16+8] = 1e5                // token 3, beyond f16
	p := NewProgram(pool, a, Limits{Rows: 4, LogitRows: 2, Sequences: 2, Pages: 2})
	kv := must(a.NewKV(KVSpec{Layers: 1, Heads: 2, Dim: 8, Pages: 3, Form: form}))
	in, o, last := p.Buffer(16), p.Buffer(16), p.LogitBuffer(16)
	m := must(a.Pack(Source{Name: "x", Form: F32, Rows: 5, Cols: 16, Codes: bytesOf(F32, x)}))
	p.Embed(in, m)
	p.Label("layer 0 cache")
	p.KVAppend(kv, 0, in, in)
	p.Attention(o, in, kv, 0, AttentionSpec{Heads: 2})
	p.Add(o, in)
	p.Label("logits")
	p.GatherRows(last, o)
	p.CheckFinite(last)
	if err := p.Build(); err != nil {
		t.Fatal(err)
	}
	return p, last
}

func TestFaultsNameRowsAndSpareTheOthers(t *testing.T) {
	families(t, func(t *testing.T, pool *Pool) {
		p, last := tiny(t, pool, F16)
		alone := &Step{Tokens: []int32{1, 2}, Positions: []int32{0, 1}, Sequence: []int32{0, 0}, Pages: [][]int32{{0}}, LogitRows: []int32{1}}
		if err := p.Run(alone); err != nil {
			t.Fatal(err)
		}
		want := append([]float32(nil), last.Row(0)...)
		// A second sequence with a value that f16 cannot hold and then an infinite one.
		both := &Step{Tokens: []int32{3, 4, 1, 2}, Positions: []int32{0, 1, 0, 1}, Sequence: []int32{1, 1, 0, 0}, Pages: [][]int32{{0}, {2}}, LogitRows: []int32{3, 1}}
		err := p.Run(both)
		var faults *FaultError
		if !errors.As(err, &faults) || len(faults.Faults) != 2 || faults.Faults[0] != (Fault{0, ErrKVRange, "layer 0 cache"}) || faults.Faults[1] != (Fault{1, ErrKVRange, "layer 0 cache"}) {
			t.Fatalf("faults are %v", err)
		}
		sameRow(t, "the other sequence", last.Row(0), want)

		q, _ := tiny(t, pool, F32)
		err = q.Run(both)
		if !errors.As(err, &faults) || len(faults.Faults) != 1 || faults.Faults[0] != (Fault{1, ErrNonFinite, "logits"}) || !errors.Is(err, ErrNonFinite) || errors.Is(err, ErrKVRange) {
			t.Fatalf("faults are %v", err)
		}
	})
}

func TestUnsafeStepsAreRefused(t *testing.T) {
	pool := must(NewPool(1, Portable))
	p, _ := tiny(t, pool, F16)
	good := func() *Step {
		return &Step{Tokens: []int32{1, 2}, Positions: []int32{0, 64}, Sequence: []int32{0, 1}, Pages: [][]int32{{0}, {1, 2}}, LogitRows: []int32{1}}
	}
	if err := p.Run(good()); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*Step){
		"no rows":             func(s *Step) { s.Tokens = nil },
		"too many rows":       func(s *Step) { s.Tokens = make([]int32, 5) },
		"position missing":    func(s *Step) { s.Positions = s.Positions[:1] },
		"negative position":   func(s *Step) { s.Positions[0] = -1 },
		"position off pages":  func(s *Step) { s.Positions[0] = 64 },
		"token off the table": func(s *Step) { s.Tokens[0] = 5 },
		"negative token":      func(s *Step) { s.Tokens[0] = -1 },
		"unknown sequence":    func(s *Step) { s.Sequence[0] = 2 },
		"unknown page":        func(s *Step) { s.Pages[1][0] = 3 },
		"too many pages":      func(s *Step) { s.Pages[1] = []int32{0, 1, 2} },
		"too many sequences":  func(s *Step) { s.Pages = append(s.Pages, nil) },
		"too many logit rows": func(s *Step) { s.LogitRows = []int32{0, 1, 1} },
		"unknown logit row":   func(s *Step) { s.LogitRows[0] = 2 },
		"bans for some":       func(s *Step) { s.Banned = []*Ban{nil} },
		"bans of another":     func(s *Step) { s.Banned = []*Ban{{bits: make([]uint64, 7)}, nil} },
	} {
		s := good()
		change(s)
		if err := p.Run(s); err == nil || !strings.HasPrefix(err.Error(), "canon: step: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	pool.Close()
	pool.Close()
	if err := p.Run(good()); err == nil {
		t.Error("a step ran on a closed pool")
	}
}

func TestMistakesOfConstructionAreReported(t *testing.T) {
	pool := must(NewPool(1, Portable))
	defer pool.Close()
	for what, build := range map[string]func(a *Arena, p *Program){
		"nothing":       func(a *Arena, p *Program) {},
		"widths differ": func(a *Arena, p *Program) { p.Add(p.Buffer(4), p.Buffer(5)) },
		"in place product": func(a *Arena, p *Program) {
			b := p.Buffer(2)
			p.MatMul(b, b, table(a, [][]float32{{1, 2}, {3, 4}}), nil)
		},
		"logits and rows": func(a *Arena, p *Program) { p.Add(p.Buffer(4), p.LogitBuffer(4)) },
		"foreign buffer":  func(a *Arena, p *Program) { p.Scale(NewProgram(pool, a, p.Limits()).Buffer(3), 2) },
		"no feed-forward": func(a *Arena, p *Program) { p.MoE(p.Buffer(4), p.Buffer(4), nil, nil, nil) },
		"top-k too large": func(a *Arena, p *Program) { p.Router(p.Buffer(4), RouterSpec{Experts: 4, TopK: 5}) },
		"heads":           func(a *Arena, p *Program) { p.HeadNorm(p.Buffer(9), 2, nil, 0, false) },
	} {
		a := newArena(t)
		p := NewProgram(pool, a, Limits{Rows: 1, Sequences: 1})
		p.Label("layer 7")
		build(a, p)
		if err := p.Build(); err == nil || !strings.HasPrefix(err.Error(), "canon: program: layer 7: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestArenaKeepsItsLimitAndAligns(t *testing.T) {
	a := NewArena(1 << 20)
	defer a.Close()
	for _, n := range []int{1, 63, 64, 1000} {
		b := must(a.Bytes(n))
		if at := addressOf(b); len(b) != n || at%64 != 0 {
			t.Errorf("%d bytes at %x", n, at)
		}
	}
	if a.Size() != 64+64+64+1024 {
		t.Errorf("size is %d", a.Size())
	}
	if _, err := a.Floats(1 << 18); !errors.Is(err, ErrArenaFull) {
		t.Errorf("a megabyte more: %v", err)
	}
}

func TestInstructionSetNames(t *testing.T) {
	if isa, err := Resolve("portable"); err != nil || isa != Portable {
		t.Errorf("portable: %v %v", isa, err)
	}
	best := must(Resolve(""))
	if s := Supported(); s[0] != Portable || !slices.Contains(s, best) || best == AMX || len(s) > 1 && best == Portable {
		t.Errorf("supported %v, best %v", s, best)
	}
	foreign := NEON
	if foreign.built() {
		foreign = VNNI
	}
	if _, err := Resolve(foreign.String()); err == nil || !strings.Contains(err.Error(), "not built: use one of portable") {
		t.Errorf("%s: %v", foreign, err)
	}
	if _, err := Resolve("mmx"); err == nil || !strings.Contains(err.Error(), "unknown instruction set \"mmx\": use one of portable") {
		t.Errorf("mmx: %v", err)
	}
	if _, err := NewPool(1, foreign); err == nil {
		t.Errorf("a pool of %s kernels started", foreign)
	}
}

func TestReadProbeMeasures(t *testing.T) {
	families(t, func(t *testing.T, pool *Pool) {
		rates, err := pool.ReadProbe(3<<20, 3)
		if err != nil || len(rates) != 3 {
			t.Fatal(rates, err)
		}
		for _, r := range rates {
			if !(r > 0) {
				t.Errorf("rates are %v", rates)
			}
		}
	})
}
