package canon

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// Every form and group size, widths with tails, outputs that do not fill a tile, and batches of every size class give the
// bits of the scalar rule.
func TestProductsEqualTheRule(t *testing.T) {
	const outs = 21 // one whole tile and a part
	var sources []Source
	for _, cols := range []int{32, 96, 160, 576, 2880} {
		r := rand.New(rand.NewPCG(1, uint64(cols)))
		for _, form := range []Form{F32, F16, BF16} {
			sources = append(sources, weight(r, form, outs, cols, 0, F32))
		}
		for _, form := range []Form{Int8, Int4} {
			for _, group := range []int{32, 64, 128} {
				sources = append(sources, weight(r, form, outs, cols, group, F16), withZeros(r, weight(r, form, outs, cols, group, F16)), withMinima(r, weight(r, form, outs, cols, group, F16)))
			}
			sources = append(sources, weight(r, form, outs, cols, 32, BF16), weight(r, form, outs, cols, cols, F32), withZeros(r, weight(r, form, outs, cols, cols, F32)),
				weight(r, form, outs, cols, 16, F32), withMinima(r, weight(r, form, outs, cols, 16, F32)), withZeros(r, weight(r, form, outs, cols, 16, BF16)))
		}
		sources = append(sources, weight(r, MXFP4, outs, cols, 32, E8M0),
			blocks(r, outs, cols, 128, 128, F32), blocks(r, outs, cols, 16, 64, E8M0), blocks(r, outs, cols, 8, 48, BF16), // a width that no vector divides
			blocks(r, outs, cols, outs, cols, F32), blocks(r, outs, cols, 1, cols, F16)) // one scale in all, one a row
	}
	r := rand.New(rand.NewPCG(1, 1))
	sources = append(sources, weight(r, Int4, outs, 77, 32, F32), weight(r, Int8, outs, 45, 64, F16), weight(r, F32, outs, 45, 0, F32), weight(r, F16, outs, 1, 0, F32),
		withMinima(r, weight(r, Int4, outs, 77, 16, F16)), withZeros(r, weight(r, Int8, outs, 45, 32, F16)), weight(r, MXFP4, outs, 45, 32, E8M0), blocks(r, outs, 77, 2, 32, F32))
	const most = 512
	for _, src := range sources {
		batch := 13 // the scalar rule is slow: only a few shapes get large batches here, all of them in the long form
		switch plain := src.Zeros == nil && src.Minima == nil && (src.Group == 32 || src.Group == 0 || src.GroupRows == 16); {
		case os.Getenv("COVEY_LONG") != "" || src.Cols == 576 && plain:
			batch = most
		case src.Cols == 576 || src.Cols == 160:
			batch = 33
		}
		x := inputs(r, batch, src.Cols)
		bias := normals(r, outs, 1)
		want := make([][]float32, batch)
		for i := range want {
			for o := range outs {
				want[i] = append(want[i], must(RuleProduct(src, o, x[i])))
			}
		}
		t.Run(src.Name, func(t *testing.T) {
			families(t, func(t *testing.T, pool *Pool) {
				a := newArena(t)
				p := NewProgram(pool, a, Limits{Rows: batch, Sequences: 1})
				in, plain, biased := p.Buffer(src.Cols), p.Buffer(outs), p.Buffer(outs)
				m := must(a.Pack(src))
				p.Embed(in, table(a, x))
				p.MatMulN(in, Product{plain, m, nil}, Product{biased, m, bias})
				if err := p.Build(); err != nil {
					t.Fatal(err)
				}
				for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 13, 17, 33, 64, 100, 512} {
					if n > batch {
						continue
					}
					if err := p.Run(rowsStep(n)); err != nil {
						t.Fatal(err)
					}
					for i := range n {
						sameRow(t, fmt.Sprintf("%d rows, row %d", n, i), plain.Row(i), want[i])
						for o := range outs {
							if y := biased.Row(i)[o]; !equalBits(y, want[i][o]+bias[o]) {
								t.Fatalf("%d rows, row %d, output %d with bias: %x, want %x", n, i, o, y, want[i][o]+bias[o])
							}
						}
					}
				}
			})
		})
	}
}

// One rounded product a group and segments of 512 inputs, by hand.
func TestQuantisedProductByHand(t *testing.T) {
	// Weights -1 (code 7) in the first group, 2 (code 10) in the second, scales 0.5 and 0.25; inputs 1 and then 127.
	codes := make([]byte, 32)
	for i := range codes {
		codes[i] = 0x77
		if i >= 16 {
			codes[i] = 0xaa
		}
	}
	src := Source{Name: "w", Form: Int4, Rows: 1, Cols: 64, Group: 32, Codes: codes, Scales: bytesOf(F16, []float32{0.5, 0.25}), ScaleForm: F16}
	x := make([]float32, 64)
	for i := range x {
		x[i] = 1
		if i >= 32 {
			x[i] = 127
		}
	}
	// Group 1: amax 1, scale 1/127, codes 127: I = -4064, times 0.5/127 = -16. Group 2: scale 1, codes 127: I = 8128, times 0.25 = 2032.
	if got := must(RuleProduct(src, 0, x)); got != 2016 {
		t.Errorf("product is %v, want 2016", got)
	}
	q, scale, sum := RuleQuantise([]float32{0.5, -1, 0.25, 0}, 32)
	if fmt.Sprint(q, scale, sum) != "[64 -127 32 0] [0.007874016] [-31]" { // 63.5 rounds to the even 64, 31.75 to 32
		t.Errorf("codes, scale, sum are %v %v %v", q, scale, sum)
	}
}

func TestDequantisedValues(t *testing.T) {
	a := newArena(t)
	r := rand.New(rand.NewPCG(2, 2))
	for _, src := range []Source{weight(r, Int4, 19, 77, 32, F16), weight(r, Int8, 17, 160, 160, BF16), weight(r, F16, 3, 5, 0, F32), weight(r, BF16, 3, 5, 0, F32),
		withZeros(r, weight(r, Int4, 19, 77, 16, F16)), withMinima(r, weight(r, Int8, 17, 160, 32, F32)), weight(r, MXFP4, 18, 96, 32, E8M0), blocks(r, 19, 77, 4, 32, F32), blocks(r, 5, 200, 5, 200, BF16)} {
		m, wide := must(a.Pack(src)), must(Dequantised(src))
		got := make([]float32, src.Cols)
		one := must(a.Pack(wide))
		want := make([]float32, src.Cols)
		for row := range src.Rows {
			m.Dequantise(row, got)
			one.Dequantise(row, want)
			sameRow(t, fmt.Sprintf("%s row %d", src.Name, row), got, want)
		}
	}
	// 13 in the low nibble is 5, 2 in the high one is -6.
	m := must(a.Pack(Source{Name: "hand", Form: Int4, Rows: 1, Cols: 2, Group: 32, Codes: []byte{0x2d}, Scales: bytesOf(F32, []float32{0.5}), ScaleForm: F32}))
	v := make([]float32, 2)
	m.Dequantise(0, v)
	sameRow(t, "hand", v, []float32{2.5, -3})
	for _, c := range []struct {
		src  Source
		want []float32
	}{
		{Source{Name: "zero 3", Form: Int4, Rows: 1, Cols: 2, Group: 32, Codes: []byte{0x2d}, Scales: bytesOf(F32, []float32{0.5}), Zeros: []byte{3}}, []float32{5, -0.5}},
		{Source{Name: "minimum 10", Form: Int8, Rows: 1, Cols: 2, Group: 32, Codes: []byte{200, 1}, Scales: bytesOf(F32, []float32{0.5}), Minima: bytesOf(F32, []float32{10})}, []float32{110, 10.5}},
		{Source{Name: "mxfp4 6 and -0.5", Form: MXFP4, Rows: 1, Cols: 2, Group: 32, Codes: []byte{0x97}, Scales: []byte{128}, ScaleForm: E8M0}, []float32{12, -1}},
		{Source{Name: "mxfp4 least scale", Form: MXFP4, Rows: 1, Cols: 2, Group: 32, Codes: []byte{0x12}, Scales: []byte{0}, ScaleForm: E8M0}, []float32{0x1p-127, 0x1p-128}},
		{Source{Name: "fp8 448, least, -1.125", Form: FP8, Rows: 1, Cols: 3, Codes: []byte{0x7e, 1, 0xb9}, Scales: bytesOf(F32, []float32{2})}, []float32{896, 0x1p-8, -2.25}},
	} {
		got := make([]float32, c.src.Cols)
		must(a.Pack(c.src)).Dequantise(0, got)
		sameRow(t, c.src.Name, got, c.want)
	}
}

// By hand: zero points enter the exact dot, a minimum follows its term, a block of fp8 its own sum.
func TestOffsetsByHand(t *testing.T) {
	x := make([]float32, 32) // quantised: scale 1, codes 127 at input 0 and 1 at input 16
	x[0], x[16] = 127, 1
	codes := make([]byte, 16)
	codes[0], codes[8] = 5, 9
	for _, c := range []struct {
		src  Source
		want float32
	}{
		{Source{Name: "zero 2", Form: Int4, Rows: 1, Cols: 32, Group: 32, Codes: codes, Scales: bytesOf(F32, []float32{2}), Zeros: []byte{2}}, 2 * (3*127 + 7)},
		{Source{Name: "minimum -3", Form: Int4, Rows: 1, Cols: 32, Group: 32, Codes: codes, Scales: bytesOf(F32, []float32{2}), Minima: bytesOf(F32, []float32{-3})}, 2*(5*127+9) - 3*128},
		{Source{Name: "two scales", Form: Int4, Rows: 1, Cols: 32, Group: 16, Codes: codes, Scales: bytesOf(F32, []float32{2, 10}), Minima: bytesOf(F32, []float32{-3, 1})}, 2*5*127 - 3*127 + 10*9 + 1},
		{Source{Name: "fp8", Form: FP8, Rows: 1, Cols: 32, Group: 16, Codes: append(append([]byte{0x38}, make([]byte, 15)...), append([]byte{0xc0}, make([]byte, 15)...)...), Scales: bytesOf(F32, []float32{1, 4})}, 127 - 2*4},
	} {
		if got := must(RuleProduct(c.src, 0, x)); got != c.want {
			t.Errorf("%s: %v, want %v", c.src.Name, got, c.want)
		}
	}
}

func TestPackingRefusesNaN(t *testing.T) {
	a := newArena(t)
	r := rand.New(rand.NewPCG(4, 4))
	fp8, mx := blocks(r, 3, 40, 3, 40, F32), weight(r, MXFP4, 3, 64, 32, E8M0)
	fp8.Codes[47], mx.Scales[5] = 0xff, 255
	for _, c := range []struct {
		src  Source
		want string
	}{{fp8, "the weight at [1, 7] is NaN (byte 0xff)"}, {mx, "scale 5 is NaN (byte 255)"}} {
		if _, err := a.Pack(c.src); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("packing: %v", err)
		}
		if _, err := Dequantised(c.src); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("dequantising: %v", err)
		}
		if _, err := a.PackRecord(c.src, c.src, weight(r, Int4, c.src.Cols, c.src.Rows, 32, F16)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("packing a record: %v", err)
		}
	}
}

func TestPackingRefusesBadSources(t *testing.T) {
	a := newArena(t)
	good := weight(rand.New(rand.NewPCG(3, 3)), Int4, 4, 64, 32, F16)
	for what, change := range map[string]func(*Source){
		"codes cut short":   func(s *Source) { s.Codes = s.Codes[1:] },
		"scales cut short":  func(s *Source) { s.Scales = s.Scales[2:] },
		"group of 48":       func(s *Source) { s.Group = 48 },
		"group of 0":        func(s *Source) { s.Group = 0 },
		"scales of int8":    func(s *Source) { s.ScaleForm = Int8 },
		"scales of e8m0":    func(s *Source) { s.ScaleForm = E8M0 },
		"weights of e8m0":   func(s *Source) { s.Form = E8M0 },
		"zeros cut short":   func(s *Source) { s.Zeros = make([]byte, 3) },
		"minima cut short":  func(s *Source) { s.Minima = s.Scales[2:] },
		"zeros and minima":  func(s *Source) { s.Zeros, s.Minima = make([]byte, 8), s.Scales },
		"mxfp4 of group 64": func(s *Source) { s.Form, s.Group, s.ScaleForm, s.Scales = MXFP4, 64, E8M0, s.Scales[:4] },
		"no rows":           func(s *Source) { s.Rows = 0 },
		"unknown form":      func(s *Source) { s.Form = 77 },
		"columns in excess": func(s *Source) { s.Cols = 1 << 30 },
	} {
		s := good
		change(&s)
		if _, err := a.Pack(s); err == nil {
			t.Errorf("%s: packed", what)
		}
		if _, err := Dequantised(s); err == nil {
			t.Errorf("%s: dequantised", what)
		}
	}
	if _, err := a.PackRecord(good, good, good); err == nil {
		t.Error("a down matrix of the wrong shape was packed")
	}
}
