package heat

import "testing"

func TestNewestTokenIsFullAndEarlierOnesFade(t *testing.T) {
	g := New(2, 3)
	g.Add([]uint16{0, 2}, []byte{255, 255})
	g.Add([]uint16{1, 2}, []byte{255, 0})
	var alpha []byte
	for i, p := range g.Pixels(1, 2, 3) {
		if i%4 == 3 {
			alpha = append(alpha, p)
		}
	}
	want := []byte{204, 255, 0, 0, 0, 204} // 0.8 of full; the weight of 0 does not dim the faded cell
	if string(alpha) != string(want) {
		t.Errorf("alpha %v, want %v", alpha, want)
	}
}

func TestRowsOfAnotherShapeAreIgnored(t *testing.T) {
	g := New(2, 3)
	g.Show([]uint16{0, 1, 2}, []byte{1, 2, 3})
	g.Show([]uint16{7, 7}, []byte{255, 255})
	for i, p := range g.Pixels(0, 0, 0) {
		if p != 0 {
			t.Fatalf("byte %d is %d", i, p)
		}
	}
}

func TestSumScalesTheLargestToFull(t *testing.T) {
	g := New(1, 2)
	g.Sum(3, func(i int) ([]uint16, []byte) { return []uint16{uint16(i % 2)}, []byte{100} })
	if p := g.Pixels(0, 0, 0); p[3] != 255 || p[7] != 127 {
		t.Errorf("alpha %d and %d, want 255 and 127", p[3], p[7])
	}
}

func BenchmarkPixelsOf20000Cells(b *testing.B) {
	g := New(80, 250)
	for b.Loop() {
		g.Pixels(11, 114, 133)
	}
}
