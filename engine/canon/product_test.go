package canon

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Every form and group size, widths with tails, outputs that do not fill a tile, and batches of every size class give the
// bits of the scalar rule.
func TestProductsEqualTheRule(t *testing.T) {
	type shape struct {
		form        Form
		cols, group int
		scale       Form
	}
	var shapes []shape
	for _, cols := range []int{32, 96, 160, 576, 2880} {
		for _, form := range []Form{F32, F16, BF16} {
			shapes = append(shapes, shape{form, cols, 0, F32})
		}
		for _, form := range []Form{Int8, Int4} {
			for _, group := range []int{32, 64, 128} {
				shapes = append(shapes, shape{form, cols, group, F16})
			}
			shapes = append(shapes, shape{form, cols, 32, BF16}, shape{form, cols, cols, F32})
		}
	}
	shapes = append(shapes, shape{Int4, 77, 32, F32}, shape{Int8, 45, 64, F16}, shape{F32, 45, 0, F32}, shape{F16, 1, 0, F32})
	const most = 512
	for _, s := range shapes {
		r := rand.New(rand.NewPCG(1, uint64(s.cols)))
		outs := 21   // one whole tile and a part
		batch := 100 // the scalar rule is slow: only the shapes of a model get the largest batch
		if s.cols == 576 && s.scale == F16 && s.group == 32 {
			batch = most
		}
		src := weight(r, s.form, outs, s.cols, s.group, s.scale)
		x := inputs(r, batch, s.cols)
		bias := normals(r, outs, 1)
		want := make([][]float32, batch)
		for i := range want {
			for o := range outs {
				want[i] = append(want[i], must(RuleProduct(src, o, x[i])))
			}
		}
		t.Run(fmt.Sprintf("%v/%d/%d", s.form, s.cols, s.group), func(t *testing.T) {
			families(t, func(t *testing.T, pool *Pool) {
				a := newArena(t)
				p := NewProgram(pool, a, Limits{Rows: batch, Sequences: 1})
				in, plain, biased := p.Buffer(s.cols), p.Buffer(outs), p.Buffer(outs)
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
	for _, src := range []Source{weight(r, Int4, 19, 77, 32, F16), weight(r, Int8, 17, 160, 160, BF16), weight(r, F16, 3, 5, 0, F32), weight(r, BF16, 3, 5, 0, F32)} {
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
