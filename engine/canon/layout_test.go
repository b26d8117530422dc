package canon

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func heap(n int64) []byte { return make([]byte, n) }

func TestUnpackedSourcesPackIntoTheSameBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	offsets := func(s Source, zeros bool) Source {
		if zeros {
			s.Zeros = make([]byte, len(s.Scales)*8/s.ScaleForm.Bits())
			for i := range s.Zeros {
				s.Zeros[i] = byte(r.IntN(16))
			}
		} else {
			s.Minima = slices.Clone(s.Scales)
		}
		return s
	}
	fp8 := Source{Name: "fp8", Form: FP8, Rows: 40, Cols: 300, GroupRows: 32, Group: 128, Codes: bytes.Repeat([]byte{0x31}, 40*300), Scales: bytesOf(F32, normals(r, 2*3, 1)), ScaleForm: F32}
	mx := Source{Name: "mxfp4", Form: MXFP4, Rows: 17, Cols: 64, Group: 32, Codes: bytes.Repeat([]byte{0x5a}, 17*32), Scales: bytes.Repeat([]byte{120}, 17*2), ScaleForm: E8M0}
	for _, src := range []Source{
		weight(r, F32, 3, 5, 0, F32), weight(r, BF16, 17, 32, 0, F32), weight(r, F16, 1, 7, 0, F32),
		weight(r, Int4, 16, 64, 32, F16), weight(r, Int4, 33, 160, 64, BF16), weight(r, Int4, 5, 97, 97, F32), weight(r, Int4, 5, 96, 16, F32),
		weight(r, Int8, 20, 100, 32, F16), weight(r, Int8, 40, 576, 576, F32),
		offsets(weight(r, Int4, 18, 130, 64, F16), true), offsets(weight(r, Int8, 18, 64, 16, F32), false), fp8, mx,
	} {
		l, err := src.Layout()
		if err != nil {
			t.Fatal(err)
		}
		packed := heap(l.Bytes())
		l.Pack(packed, src)
		back, err := l.Unpack(src.Name, packed, heap)
		if err != nil {
			t.Fatal(err)
		}
		if src.Cols%2 == 0 && !bytes.Equal(back.Codes, src.Codes) {
			t.Errorf("%s: other codes came back", src.Name)
		}
		if !bytes.Equal(back.Scales, src.Scales) || !bytes.Equal(back.Zeros, src.Zeros) || !bytes.Equal(back.Minima, src.Minima) {
			t.Errorf("%s: other scales came back", src.Name)
		}
		again := heap(l.Bytes())
		if l2, err := back.Layout(); err != nil || l2 != l {
			t.Fatalf("%s: %v became %v, %v", src.Name, l, l2, err)
		}
		l.Pack(again, back)
		if !bytes.Equal(again, packed) {
			t.Errorf("%s: other bytes came back", src.Name)
		}
	}
	if _, err := (Layout{Form: Int4, ScaleForm: F16, Rows: 16, Cols: 64, Group: 32}).Unpack("w", heap(64), heap); err == nil {
		t.Error("a block that is too short was unpacked")
	}
	for _, l := range []Layout{{}, {Form: 99, Rows: 1, Cols: 1}, {Form: Int4, Rows: 1, Cols: 64, Group: 48}, {Form: Int8, ScaleForm: Int4, Rows: 1, Cols: 1, Group: 32}, {Form: F32, Rows: 1 << 30, Cols: 1}, {Form: FP8, Rows: 1, Cols: 1, GroupRows: -1}, {Form: BF16, Offset: OffsetZeros, Rows: 1, Cols: 1}} {
		if l.Check("w") == nil || l.Bytes() != 0 {
			t.Errorf("%+v was accepted", l)
		}
	}
}

// A step with stops, whose layers get the chosen experts at the last moment and lose them afterwards, gives the same bits as
// one with all experts in place.
func TestStopsChangeNothing(t *testing.T) {
	const experts, k, hidden, rows, layers = 6, 2, 64, 9, 3
	r := rand.New(rand.NewPCG(31, 32))
	families(t, func(t *testing.T, pool *Pool) {
		a := newArena(t)
		p := NewProgram(pool, a, Limits{Rows: rows, Sequences: 1})
		x, h, logits, y := p.Buffer(hidden), p.Buffer(hidden), p.Buffer(experts), p.Buffer(hidden)
		p.Embed(x, table(a, inputs(r, rows, hidden)))
		var tables []*ExpertTable
		var records [][]*Record
		var choices []*Choice
		for l := range layers {
			table, list := must(a.NewExpertTable(experts)), []*Record(nil)
			for range experts {
				b := newBlock(r, Int4, hidden, 48, 32)
				list = append(list, must(a.PackRecord(b.gate, b.up, b.down)))
			}
			table.SetLayout(list[0].layout)
			tables, records = append(tables, table), append(records, list)
			p.Label(fmt.Sprintf("layer %d", l))
			p.RMSNorm(h, x, nil, 1e-5, false)
			p.MatMul(logits, h, must(a.Pack(weight(r, F32, experts, hidden, 0, F32))), nil)
			choices = append(choices, p.Router(logits, RouterSpec{Score: ScoreSoftmax, Experts: experts, TopK: k}))
			p.MoE(y, h, choices[l], table, nil)
			p.Add(x, y)
		}
		if err := p.Build(); err != nil {
			t.Fatal(err)
		}
		set := func(layer, id int, r *Record) {
			if err := tables[layer].Set(id, r); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range []int{1, rows} {
			for l := range layers {
				for id := range experts {
					set(l, id, records[l][id])
				}
			}
			whole := p.Run(rowsStep(n))
			want := make([][]float32, n)
			for i := range want {
				want[i] = slices.Clone(x.Row(i))
			}
			for l := range layers {
				for id := range experts {
					set(l, id, nil)
				}
			}
			var stops []int
			parts := p.RunInParts(rowsStep(n), func(router int) error {
				stops = append(stops, router)
				for id := range experts {
					if router > 0 {
						set(router-1, id, nil)
					}
				}
				for i := range n {
					for _, id := range choices[router].IDs(i) {
						if id >= 0 {
							set(router, int(id), records[router][id])
						}
					}
				}
				return nil
			})
			if !slices.Equal(stops, []int{0, 1, 2}) {
				t.Fatalf("stops at routers %v", stops)
			}
			if fmt.Sprint(whole) != fmt.Sprint(parts) {
				t.Fatalf("errors %v and %v", whole, parts)
			}
			for i := range want {
				sameRow(t, fmt.Sprintf("row %d of %d", i, n), x.Row(i), want[i])
			}
		}
		lost := errors.New("disk")
		if err := p.RunInParts(rowsStep(1), func(router int) error { return lost }); err != lost {
			t.Errorf("error is %v", err)
		}
	})
}

// A bias lies behind a weight's other bytes and comes back with it.
func TestLayoutsWithABiasAreUnpackedWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 1))
	src := weight(r, Int4, 40, 64, 32, F16)
	plain, err := src.Layout()
	if err != nil {
		t.Fatal(err)
	}
	src.Bias = normals(r, 40, 1)
	l, err := src.Layout()
	if err != nil || l == plain || l.Bytes() != plain.Bytes()+192 || l.String() != "int4 g32 [40, 64] biased" {
		t.Fatalf("%v of %d bytes beside %v of %d, %v", l, l.Bytes(), plain, plain.Bytes(), err)
	}
	block := make([]byte, l.Bytes())
	l.Pack(block, src)
	got, err := l.Unpack("w", block, func(n int64) []byte { return make([]byte, n) })
	if err != nil || !slices.Equal(got.Bias, src.Bias) || !slices.Equal(got.Codes, src.Codes) {
		t.Errorf("bias %v, want %v; %v", got.Bias, src.Bias, err)
	}
	src.Bias = src.Bias[1:]
	if _, err := src.Layout(); err == nil {
		t.Error("39 biases for 40 rows were accepted")
	}
}
