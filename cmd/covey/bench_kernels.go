package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"covey/engine/canon"
)

// kernelRate is the speed of one product of the forward pass.
type kernelRate struct {
	Form     string    `json:"form"`
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

// kernelShape is what bench kernels multiplies: matrices large enough to keep every thread busy, copies in all larger than
// caches, and on a device larger than what starting a step costs.
type kernelShape struct {
	out, in, group int
	bytes          int64 // of all copies together
}

var (
	cpuKernels    = kernelShape{2048, 2048, 32, 64 << 20}
	deviceKernels = kernelShape{4096, 4096, 64, 1 << 30}
)

const kernelBudget = 150 * time.Millisecond

// kernelSpeeds measures the product of 1 and of 32 rows with a matrix of each form, on a backend, in the kernel family and with
// the threads that the flags choose. read is what reading alone reaches there, in GB/s.
func kernelSpeeds(backend canon.Backend, isa string, threads, runs int, read float64) ([]kernelRate, error) {
	pool, err := benchPool(isa, threads)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	var rates []kernelRate
	for _, form := range []canon.Form{canon.Int4, canon.Int8, canon.MXFP4, canon.FP8, canon.BF16, canon.F32} {
		for _, rows := range []int{1, 32} {
			r, err := kernelSpeed(backend, pool, form, rows, runs)
			if err != nil {
				return nil, fmt.Errorf("%s, %d rows: %w", form, rows, err)
			}
			r.Fraction = r.GBs / read
			rates = append(rates, r)
		}
	}
	return rates, nil
}

func kernelSpeed(backend canon.Backend, pool *canon.Pool, form canon.Form, rows, runs int) (r kernelRate, err error) {
	arena := canon.NewArena(0)
	defer func() { err = errors.Join(err, arena.Close()) }()
	program := canon.NewProgram(pool, arena, canon.Limits{Rows: rows, Sequences: 1, Pages: 1})
	defer program.Close()
	shape := cpuKernels
	if backend != canon.CPU {
		shape = deviceKernels
	}
	src, dst := program.Buffer(shape.in), program.Buffer(shape.out)
	values := make([]float32, rows*shape.in)
	for i := range values {
		values[i] = float32((i*7+i/shape.in)%13) - 6
	}
	inputs, err := arena.PackFloats("inputs", values, rows, shape.in)
	if err != nil {
		return r, err
	}
	program.Embed(src, inputs)
	r = kernelRate{Form: form.String(), Out: shape.out, In: shape.in, Rows: rows}
	for ; r.Moved < shape.bytes; r.Moved += r.Bytes {
		m, err := arena.Pack(benchSource(form, shape))
		if err != nil {
			return r, err
		}
		program.MatMul(dst, src, m, nil)
		r.Bytes = m.Bytes()
		r.Matrices++
	}
	if err := program.Build(); err != nil {
		return r, err
	}
	runner, err := backend.Load(program)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	step := &canon.Step{Tokens: make([]int32, rows), Positions: make([]int32, rows), Sequence: make([]int32, rows), Pages: [][]int32{{0}}}
	for i := range rows {
		step.Tokens[i], step.Positions[i] = int32(i), int32(i)
	}
	for i := range runs + 1 {
		passes, start := 0, time.Now()
		for time.Since(start) < kernelBudget {
			if err := runner.Run(step); err != nil {
				return r, err
			}
			passes++
		}
		if i > 0 { // the first run warms pages and clocks
			r.RunsGBs = append(r.RunsGBs, float64(int64(passes)*r.Moved)/1e9/time.Since(start).Seconds())
		}
	}
	r.GBs = median(r.RunsGBs)
	r.Gops = r.GBs / float64(r.Bytes) * float64(rows) * float64(shape.out) * float64(shape.in)
	return r, nil
}

// benchSource is a matrix of harmless values: codes that differ, scales of about 0.01 (0x3c24 in bf16).
func benchSource(form canon.Form, shape kernelShape) canon.Source {
	s := canon.Source{Name: "bench", Form: form, Rows: shape.out, Cols: shape.in, Codes: make([]byte, shape.out*shape.in*form.Bits()/8)}
	switch form {
	case canon.Int4, canon.Int8:
		for i := range s.Codes {
			s.Codes[i] = byte(i * 37)
		}
		s.Group, s.ScaleForm, s.Scales = shape.group, canon.F16, make([]byte, shape.out*shape.in/shape.group*2)
		for i := 0; i < len(s.Scales); i += 2 {
			s.Scales[i], s.Scales[i+1] = 0x1f, 0x21 // 0.01 in f16
		}
	case canon.MXFP4, canon.FP8: // any codes but FP8's NaN
		for i := range s.Codes {
			s.Codes[i] = byte(i*37) & 0xbf
		}
		if form == canon.MXFP4 {
			s.Group, s.ScaleForm, s.Scales = 32, canon.E8M0, bytes.Repeat([]byte{120}, shape.out*shape.in/32)
		} else {
			s.Group, s.GroupRows, s.ScaleForm, s.Scales = 128, 128, canon.BF16, bytes.Repeat([]byte{0x24, 0x3c}, shape.out*shape.in/128/128)
		}
	default: // values of about 0.01
		for i := form.Bits()/8 - 1; i < len(s.Codes); i += form.Bits() / 8 {
			s.Codes[i], s.Codes[i-1] = 0x3c, 0x24
		}
	}
	return s
}
