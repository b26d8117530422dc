//go:build cuda

package cuda

import (
	"math"
	"math/rand/v2"
	"testing"

	"covey/engine/canon"
)

// Tokens drawn on the device are those that canon.Sample draws from the same logits; where it draws none, the logits are there.
func TestDrawsEqualTheCPU(t *testing.T) {
	for _, vocab := range []int{7, 300, 5000} {
		g := newRig(t, canon.Limits{})
		x := g.input(vocab, true)
		logits := g.p.LogitBuffer(vocab)
		g.p.GatherRows(logits, x)
		g.p.Keep(logits)
		if err := g.p.Build(); err != nil {
			t.Fatal(err)
		}
		host := must(canon.CPU.Load(g.p))
		device := must(open(t, Options{}).Load(g.p))
		rows := []int{0, 1, 2, 3, 4, 7, 8, 9} // of random values; zeros; tiny; huge; with an infinity; with a NaN
		s := &canon.Step{Pages: make([][]int32, 1)}
		for i, row := range rows {
			s.Tokens, s.Positions, s.Sequence, s.LogitRows = append(s.Tokens, int32(row)), append(s.Positions, int32(i)), append(s.Sequence, 0), append(s.LogitRows, int32(i))
		}
		r := rand.New(rand.NewPCG(5, 5))
		draws, drawn := 0, 0
		for _, base := range []canon.SampleParams{
			{}, {Temperature: 1}, {Temperature: 0.05}, {Temperature: 3, TopK: 5}, {Temperature: 0.7, TopK: 40, TopP: 0.9}, {Temperature: 1, TopP: 0.3},
			{Temperature: 1.5, TopK: 1}, {Temperature: 1, TopK: 100, MinP: 0.2}, {Temperature: 1, TopK: vocab + 5, TopP: 0.99, MinP: 1e-3}, {Temperature: 0.3, TopK: 2000},
		} {
			for try := range 3 {
				s.Draws = nil
				for i := range rows {
					p := base
					p.Seed, p.Choice, p.Position = r.Uint64(), uint32(try), uint32(i)
					s.Draws = append(s.Draws, &p)
				}
				if err := host.Run(s); err != nil {
					t.Fatal(err)
				}
				want := make([]int32, len(rows))
				for i := range rows {
					var err error
					if want[i], err = canon.Sample(logits.Row(i), s.Draws[i]); err != nil {
						want[i] = -1
					}
				}
				for i := range rows {
					for j := range logits.Row(i) {
						logits.Row(i)[j] = float32(math.Inf(-1))
					}
				}
				if err := device.Run(s); err != nil {
					t.Fatal(err)
				}
				for i, token := range device.(canon.Drawer).Drawn() {
					draws++
					if token >= 0 {
						drawn++
						if token != want[i] {
							t.Errorf("vocabulary %d, %+v, row %d: token %d, want %d", vocab, base, rows[i], token, want[i])
						}
						continue
					}
					again, err := canon.Sample(logits.Row(i), s.Draws[i])
					if err != nil {
						again = -1
					}
					if again != want[i] {
						t.Errorf("vocabulary %d, %+v, row %d: the logits that came give %d, want %d", vocab, base, rows[i], again, want[i])
					}
				}
			}
		}
		if drawn*4 < draws {
			t.Errorf("vocabulary %d: %d of %d tokens were drawn", vocab, drawn, draws)
		}
		// A bias changes logits, and one row that wants its logits keeps all: both are the host's.
		s.Draws[1] = nil
		if err := device.Run(s); err != nil || device.(canon.Drawer).Drawn() != nil {
			t.Errorf("a step that wants logits drew %v, %v", device.(canon.Drawer).Drawn(), err)
		}
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	}
}
