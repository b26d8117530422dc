package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"covey/engine/canon"
)

// kernelRate is the speed of one product of the forward pass.
type kernelRate struct {
	Form     string    `json:"form"`
	Group    int       `json:"group,omitempty"` // inputs of a scale; 0 = values that have none
	Out      int       `json:"out"`
	In       int       `json:"in"`
	Rows     int       `json:"rows"`
	GBs      float64   `json:"gb_s"`     // weight bytes read, median
	Fraction float64   `json:"fraction"` // of what reading alone reaches in the same call
	Gops     float64   `json:"gops"`     // multiply-adds, median
	RunsGBs  []float64 `json:"runs"`     // weight bytes a second of each run
	Bytes    int64     `json:"bytes"`    // of the packed matrix
	Moved    int64     `json:"moved"`    // bytes of weights that a pass over all copies reads
	Matrices int       `json:"copies"`   // used in turn, so that weights come from memory and not from a cache
}

// group is the form's suffix.
func (r kernelRate) group() string {
	if r.Group == 0 {
		return ""
	}
	return fmt.Sprintf("g%d", r.Group)
}

// kernelBench is what bench kernels multiplies: matrices large enough to keep every thread busy, copies in all larger than
// caches, and on a device larger than what starting a step costs.
type kernelBench struct {
	out, in int
	bytes   int64 // of all copies together
	rows    []int
	forms   []kernelForm
	budget  time.Duration // of one run
	shared  bool          // the backend itself makes copies of a matrix that several products use
}

type kernelForm struct {
	form  canon.Form
	group int // inputs of a scale; 0 = the form has none
}

var (
	cpuKernels = kernelBench{out: 2048, in: 2048, bytes: 64 << 20, rows: []int{1, 32}, budget: 150 * time.Millisecond,
		forms: []kernelForm{{canon.Int4, 32}, {canon.Int8, 32}, {canon.MXFP4, 32}, {canon.FP8, 128}, {canon.BF16, 0}, {canon.F32, 0}}}
	deviceKernels = kernelBench{out: 4096, in: 4096, bytes: 1 << 30, rows: []int{1, 8, 32, 128, 512}, budget: 20 * time.Millisecond, shared: true,
		forms: []kernelForm{{canon.Int4, 32}, {canon.Int4, 64}, {canon.Int4, 128}, {canon.Int8, 64}, {canon.MXFP4, 32}, {canon.FP8, 128}, {canon.BF16, 0}, {canon.F16, 0}, {canon.F32, 0}}}
)

// kernelSpeeds measures the products of a few to many rows with a matrix of each form, on a backend, in the kernel family and with
// the threads that the flags choose. read is what reading alone reaches there, in GB/s.
func kernelSpeeds(backend canon.Backend, isa string, threads, runs int, read float64) ([]kernelRate, error) {
	pool, err := benchPool(isa, threads)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	bench := cpuKernels
	if backend != canon.CPU {
		bench = deviceKernels
	}
	var rates []kernelRate
	for _, f := range bench.forms {
		of, err := bench.speeds(backend, pool, f, runs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.form, err)
		}
		for _, r := range of {
			r.Fraction = r.GBs / read
			rates = append(rates, r)
		}
	}
	return rates, nil
}

// speeds measures one form at every number of rows, with one program.
func (k kernelBench) speeds(backend canon.Backend, pool *canon.Pool, f kernelForm, runs int) (rates []kernelRate, err error) {
	arena := canon.NewArena(0)
	defer func() { err = errors.Join(err, arena.Close()) }()
	most := slices.Max(k.rows)
	pages := make([]int32, (most+63)/64)
	for i := range pages {
		pages[i] = int32(i)
	}
	program := canon.NewProgram(pool, arena, canon.Limits{Rows: most, Sequences: 1, Pages: len(pages)})
	defer program.Close()
	src, dst := program.Buffer(k.in), program.Buffer(k.out)
	values := make([]float32, most*k.in)
	for i := range values {
		values[i] = float32((i*7+i/k.in)%13) - 6
	}
	inputs, err := arena.PackFloats("inputs", values, most, k.in)
	if err != nil {
		return nil, err
	}
	program.Embed(src, inputs)
	r := kernelRate{Form: f.form.String(), Group: f.group, Out: k.out, In: k.in}
	var m *canon.Matrix
	for ; r.Moved < k.bytes; r.Moved += r.Bytes {
		if m == nil || !k.shared {
			if m, err = arena.Pack(k.source(f)); err != nil {
				return nil, err
			}
		}
		program.MatMul(dst, src, m, nil)
		r.Bytes = m.Bytes()
		r.Matrices++
	}
	if err := program.Build(); err != nil {
		return nil, err
	}
	runner, err := backend.Load(program)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	for _, r.Rows = range k.rows {
		step := &canon.Step{Tokens: make([]int32, r.Rows), Positions: make([]int32, r.Rows), Sequence: make([]int32, r.Rows), Pages: [][]int32{pages}}
		for i := range r.Rows {
			step.Tokens[i], step.Positions[i] = int32(i), int32(i)
		}
		r.RunsGBs = nil
		for i := range runs + 1 {
			passes, start := 0, time.Now()
			for passes < 2 || time.Since(start) < k.budget { // a device makes its graph in the second
				if err := runner.Run(step); err != nil {
					return nil, err
				}
				passes++
			}
			if i > 0 { // the first run warms pages and clocks
				r.RunsGBs = append(r.RunsGBs, float64(int64(passes)*r.Moved)/1e9/time.Since(start).Seconds())
			}
		}
		r.GBs = median(r.RunsGBs)
		r.Gops = r.GBs / float64(r.Bytes) * float64(r.Rows) * float64(k.out) * float64(k.in)
		rates = append(rates, r)
	}
	return rates, nil
}

// source is a matrix of harmless values: codes that differ, scales of about 0.01 (0x3c24 in bf16).
func (k kernelBench) source(f kernelForm) canon.Source {
	weights := k.out * k.in
	s := canon.Source{Name: "bench", Form: f.form, Rows: k.out, Cols: k.in, Group: f.group, Codes: make([]byte, weights*f.form.Bits()/8)}
	switch f.form {
	case canon.Int4, canon.Int8:
		for i := range s.Codes {
			s.Codes[i] = byte(i * 37)
		}
		s.ScaleForm, s.Scales = canon.F16, make([]byte, weights/f.group*2)
		for i := 0; i < len(s.Scales); i += 2 {
			s.Scales[i], s.Scales[i+1] = 0x1f, 0x21 // 0.01 in f16
		}
	case canon.MXFP4, canon.FP8: // any codes but FP8's NaN
		for i := range s.Codes {
			s.Codes[i] = byte(i*37) & 0xbf
		}
		if f.form == canon.MXFP4 {
			s.ScaleForm, s.Scales = canon.E8M0, bytes.Repeat([]byte{120}, weights/f.group)
		} else {
			s.GroupRows, s.ScaleForm, s.Scales = f.group, canon.BF16, bytes.Repeat([]byte{0x24, 0x3c}, weights/f.group/f.group)
		}
	default: // values of about 0.01
		for i := f.form.Bits()/8 - 1; i < len(s.Codes); i += f.form.Bits() / 8 {
			s.Codes[i], s.Codes[i-1] = 0x3c, 0x24
		}
	}
	return s
}
