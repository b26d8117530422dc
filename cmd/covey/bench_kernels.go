package main

import (
	"fmt"
	"time"

	"covey/engine/canon"
)

// kernelRate is the speed of one product of the forward pass.
type kernelRate struct {
	Form      string    `json:"form"`
	Out       int       `json:"out"`
	In        int       `json:"in"`
	Rows      int       `json:"rows"`
	GBs       float64   `json:"gb_s"`   // weight bytes read, median
	Gops      float64   `json:"gops"`   // multiply-adds, median
	RunsGBs   []float64 `json:"runs"`   // weight bytes a second of each run
	Bytes     int64     `json:"bytes"`  // of the packed matrix
	Matrices  int       `json:"copies"` // used in turn, so that weights come from memory and not from a cache
	perKernel int64
}

// Shapes of bench kernels: [out, in], large enough to keep every thread busy.
const (
	kernelOut    = 2048
	kernelIn     = 2048
	kernelGroup  = 32
	kernelBytes  = 64 << 20 // of all copies together
	kernelBudget = 150 * time.Millisecond
)

// kernelSpeeds measures the product of 1 and of 32 rows with a matrix of each form, in the kernel family and with the
// threads that the flags choose.
func kernelSpeeds(isa string, threads, runs int) ([]kernelRate, error) {
	pool, err := benchPool(isa, threads)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	var rates []kernelRate
	for _, form := range []canon.Form{canon.Int4, canon.Int8, canon.BF16, canon.F32} {
		for _, rows := range []int{1, 32} {
			r, err := kernelSpeed(pool, form, rows, runs)
			if err != nil {
				return nil, fmt.Errorf("%s, %d rows: %w", form, rows, err)
			}
			rates = append(rates, r)
		}
	}
	return rates, nil
}

func kernelSpeed(pool *canon.Pool, form canon.Form, rows, runs int) (kernelRate, error) {
	arena := canon.NewArena(0)
	defer arena.Close()
	program := canon.NewProgram(pool, arena, canon.Limits{Rows: rows, Sequences: 1, Pages: 1})
	defer program.Close()
	src, dst := program.Buffer(kernelIn), program.Buffer(kernelOut)
	r := kernelRate{Form: form.String(), Out: kernelOut, In: kernelIn, Rows: rows, Matrices: 1}
	for done := int64(0); done < kernelBytes; done += r.Bytes {
		m, err := arena.Pack(benchSource(form))
		if err != nil {
			return r, err
		}
		program.MatMul(dst, src, m, nil)
		r.Bytes = m.Bytes()
		r.perKernel++
	}
	r.Matrices = int(r.perKernel)
	if err := program.Build(); err != nil {
		return r, err
	}
	step := &canon.Step{Tokens: make([]int32, rows), Positions: make([]int32, rows), Sequence: make([]int32, rows), Pages: [][]int32{{0}}}
	for i := range rows {
		step.Positions[i] = int32(i)
	}
	for i := range runs + 1 {
		for row := range rows {
			for j, values := 0, src.Row(row); j < len(values); j++ {
				values[j] = float32((j*7+row)%13) - 6
			}
		}
		passes, start := 0, time.Now()
		for time.Since(start) < kernelBudget {
			if err := program.Run(step); err != nil {
				return r, err
			}
			passes++
		}
		if i > 0 { // the first run warms pages and clocks
			r.RunsGBs = append(r.RunsGBs, float64(int64(passes)*r.perKernel*r.Bytes)/1e9/time.Since(start).Seconds())
		}
	}
	r.GBs = median(r.RunsGBs)
	r.Gops = r.GBs / float64(r.Bytes) * float64(rows) * kernelOut * kernelIn
	return r, nil
}

// benchSource is a matrix of harmless values: codes that differ, scales of about 0.01 (0x3c24 in bf16).
func benchSource(form canon.Form) canon.Source {
	s := canon.Source{Name: "bench", Form: form, Rows: kernelOut, Cols: kernelIn, Codes: make([]byte, kernelOut*kernelIn*form.Bits()/8)}
	switch form {
	case canon.Int4, canon.Int8:
		for i := range s.Codes {
			s.Codes[i] = byte(i * 37)
		}
		s.Group, s.ScaleForm, s.Scales = kernelGroup, canon.F16, make([]byte, kernelOut*kernelIn/kernelGroup*2)
		for i := 0; i < len(s.Scales); i += 2 {
			s.Scales[i], s.Scales[i+1] = 0x1f, 0x21 // 0.01 in f16
		}
	default: // values of about 0.01
		for i := form.Bits()/8 - 1; i < len(s.Codes); i += form.Bits() / 8 {
			s.Codes[i], s.Codes[i-1] = 0x3c, 0x24
		}
	}
	return s
}
