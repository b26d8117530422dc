package canon

import (
	"math/rand"
	"testing"
)

func TestSmoke(t *testing.T) {
	for _, isa := range Supported() {
		a := NewArena(0)
		pool, err := NewPool(2, isa)
		if err != nil {
			t.Fatal(err)
		}
		p := NewProgram(pool, a, Limits{Rows: 4, Sequences: 1, Pages: 1})
		r := rand.New(rand.NewSource(1))
		src := Source{Name: "w", Form: Int4, Rows: 40, Cols: 576, Group: 32, ScaleForm: F32, Codes: make([]byte, 40*288), Scales: make([]byte, 40*18*4)}
		r.Read(src.Codes)
		for i := range src.Scales {
			src.Scales[i] = byte(0x3c)
		}
		m, err := a.Pack(src)
		if err != nil {
			t.Fatal(err)
		}
		emb := Source{Name: "e", Form: Int8, Rows: 10, Cols: 576, Group: 32, ScaleForm: F32, Codes: make([]byte, 10*576), Scales: make([]byte, 10*18*4)}
		r.Read(emb.Codes)
		for i := range emb.Scales {
			emb.Scales[i] = byte(0x3c)
		}
		e, err := a.Pack(emb)
		x, y := p.Buffer(576), p.Buffer(40)
		p.Embed(x, e)
		p.MatMul(y, x, m, nil)
		if err := p.Build(); err != nil {
			t.Fatal(err)
		}
		if err := p.Run(&Step{Tokens: []int32{3, 4, 5}, Positions: []int32{0, 1, 2}, Sequence: []int32{0, 0, 0}, Pages: [][]int32{{0}}}); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			for j := range 40 {
				want, err := RuleProduct(src, j, x.Row(i))
				if err != nil {
					t.Fatal(err)
				}
				if y.Row(i)[j] != want {
					t.Fatalf("%v row %d out %d: %v want %v", isa, i, j, y.Row(i)[j], want)
				}
			}
		}
		pool.Close()
		a.Close()
	}
}
