package canon

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// families runs f once for each instruction set of the architecture, with a pool of two threads; a set that this processor
// lacks is skipped by name, so that a log shows what was not tested.
func families(t *testing.T, f func(t *testing.T, pool *Pool)) {
	t.Helper()
	for i := range isaNames {
		isa := ISA(i)
		if !isa.built() {
			continue
		}
		t.Run(isa.String(), func(t *testing.T) {
			pool, err := NewPool(2, isa)
			if err != nil {
				t.Skipf("NOT TESTED HERE: %v", err)
			}
			t.Cleanup(pool.Close)
			f(t, pool)
		})
	}
}

func newArena(t testing.TB) *Arena {
	a := NewArena(0)
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// equalBits compares with NaNs equal.
func equalBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || (a != a && b != b)
}

func sameRow(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range want {
		if !equalBits(got[i], want[i]) {
			t.Fatalf("%s: value %d is %x (%08x), the rule gives %x (%08x)", what, i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

func bytesOf(form Form, v []float32) []byte {
	var out []byte
	for _, x := range v {
		switch form {
		case F32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
		case BF16:
			out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(x)>>16))
		case F16:
			out = binary.LittleEndian.AppendUint16(out, f16(x))
		}
	}
	return out
}

// f16 truncates a small normal number to binary16: good enough to make test weights.
func f16(x float32) uint16 {
	b := math.Float32bits(x)
	e := int(b>>23&255) - 112
	if e <= 0 || e >= 31 {
		return uint16(b >> 16 & 0x8000)
	}
	return uint16(b>>16&0x8000) | uint16(e)<<10 | uint16(b>>13&1023)
}

func normals(r *rand.Rand, n int, size float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64() * size)
	}
	return v
}

// weight returns random weights of one form; scales, where there are any, in scaleForm.
func weight(r *rand.Rand, form Form, rows, cols, group int, scaleForm Form) Source {
	s := Source{Name: fmt.Sprintf("%v[%d,%d]/%d", form, rows, cols, group), Form: form, Rows: rows, Cols: cols}
	if !form.Quantised() && form != FP8 {
		s.Codes = bytesOf(form, normals(r, rows*cols, 0.05))
		return s
	}
	s.Group, s.ScaleForm = group, scaleForm
	s.Codes = make([]byte, rows*((cols*form.Bits()+7)/8))
	for i := range s.Codes {
		s.Codes[i] = byte(r.Uint32())
		if i%7 == 0 {
			s.Codes[i] = 0 // the most negative codes
		} else if i%11 == 0 {
			s.Codes[i] = 255
		}
		if form == FP8 && s.Codes[i]&127 == 127 {
			s.Codes[i]-- // the largest value, 448
		}
	}
	s.Scales = scales(r, rows*s.perRow(), scaleForm)
	return s
}

// scales are small positive numbers; those in E8M0 run over all that the form has.
func scales(r *rand.Rand, n int, form Form) []byte {
	if form == E8M0 {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.IntN(255))
			if i%3 > 0 {
				b[i] = byte(118 + r.IntN(6))
			}
		}
		return b
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(0.001 + 0.02*r.Float64())
	}
	return bytesOf(form, v)
}

// withZeros gives each scale of an integer weight a zero point; the extremes are among them.
func withZeros(r *rand.Rand, s Source) Source {
	s.Zeros = make([]byte, s.Rows*s.perRow())
	for i := range s.Zeros {
		s.Zeros[i] = byte(r.IntN(1<<s.Form.Bits() + 1 - s.Form.Bits()/8))
	}
	s.Name += "+zeros"
	return s
}

// withMinima gives each scale of an integer weight a float minimum of either sign.
func withMinima(r *rand.Rand, s Source) Source {
	s.Minima = bytesOf(s.ScaleForm, normals(r, s.Rows*s.perRow(), 0.1))
	s.Name += "+minima"
	return s
}

// blocks gives an fp8 weight one scale for each block of rows and inputs.
func blocks(r *rand.Rand, rows, cols, height, width int, form Form) Source {
	s := weight(r, FP8, rows, cols, width, form)
	s.GroupRows = height
	s.Name = fmt.Sprintf("%s blocks of [%d,%d]", s.Name, height, width)
	s.Scales = scales(r, (rows+height-1)/height*s.perRow(), form)
	return s
}

// inputs returns rows of activations; the first ones are the awkward cases.
func inputs(r *rand.Rand, rows, cols int) [][]float32 {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	out := make([][]float32, rows)
	for i := range out {
		x := normals(r, cols, 1)
		switch i {
		case 1: // denormals
			for j := range x {
				x[j] = math.Float32frombits(uint32(r.IntN(1 << 23)))
			}
		case 2: // an infinite value in one group
			x[r.IntN(cols)] = -inf
		case 3: // NaN in one group
			x[r.IntN(cols)] = nan
		case 4: // zero groups
			for j := range x {
				if j/32%2 == 0 {
					x[j] = 0
				}
			}
		case 5: // largest magnitude at, below and above 2^-100 by group
			for j := range x {
				x[j] = float32(r.Float64()) * 0x1p-101
				if j%32 == 5 {
					x[j] = []float32{0x1p-100, -0x1.fffffep-101, 0x1.000002p-100}[j/32%3]
				}
			}
		case 6: // maximal codes
			for j := range x {
				x[j] = []float32{3, -3}[j%2]
			}
		case 7: // maximal codes of one sign, large
			for j := range x {
				x[j] = 0x1p100
			}
		case 8: // ties of the rounding to codes
			for j := range x {
				x[j] = float32(j%254)/2 - 63.5
				if j%32 == 0 {
					x[j] = 127
				}
			}
		case 9: // overflow of products
			for j := range x {
				x[j] = float32(r.NormFloat64()) * 0x1p126
			}
		case 10: // negative zero
			for j := range x {
				x[j] = math.Float32frombits(1 << 31)
			}
		}
		out[i] = x
	}
	return out
}

// table packs rows as an embedding, the way by which tests bring arbitrary rows into a program: token i is row i.
func table(a *Arena, rows [][]float32) *Matrix {
	var all []float32
	for _, x := range rows {
		all = append(all, x...)
	}
	return must(a.Pack(Source{Name: "inputs", Form: F32, Rows: len(rows), Cols: len(rows[0]), Codes: bytesOf(F32, all)}))
}

// rowsStep is a step of n rows whose tokens are 0..n-1, each in its own place of one sequence.
func rowsStep(n int) *Step {
	s := &Step{Pages: [][]int32{nil}, Tokens: make([]int32, n), Positions: make([]int32, n), Sequence: make([]int32, n)}
	for i := range n {
		s.Tokens[i], s.Positions[i] = int32(i), int32(i)
	}
	return s
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
