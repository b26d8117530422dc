package quant

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"covey/engine/canon"
)

func normals(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64() * 0.02)
	}
	return v
}

// values reads a source back by the meaning that canon gives it.
func values(t *testing.T, s canon.Source) []float32 {
	t.Helper()
	wide, err := canon.Dequantised(s)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float32, len(wide.Codes)/4)
	if _, err := binary.Decode(wide.Codes, binary.LittleEndian, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestErrorOfNormalWeightsIsWhatTheBitsAllow(t *testing.T) {
	for _, c := range []struct {
		spec  Spec
		worst float64
	}{
		{Spec{canon.Int4, 32, false}, 0.086}, {Spec{canon.Int4, 64, false}, 0.096}, {Spec{canon.Int4, 128, false}, 0.106},
		{Spec{canon.Int4, 64, true}, 0.096}, {Spec{canon.Int8, 64, false}, 0.0062}, {Spec{canon.Int8, 64, true}, 0.0062},
	} {
		const rows, cols = 16, 300 // with a short last group
		w := normals(rows*cols, 7)
		out, err := c.spec.Make("w", rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		var loss Loss
		for first := 0; first < rows; first += 5 {
			l, err := c.spec.Rows(&out, first, w[first*cols:min(first+5, rows)*cols], nil)
			if err != nil {
				t.Fatal(err)
			}
			loss.Noise, loss.Signal = loss.Noise+l.Noise, loss.Signal+l.Signal
		}
		var noise, signal float64
		for i, v := range values(t, out) {
			noise += float64(v-w[i]) * float64(v-w[i])
			signal += float64(w[i]) * float64(w[i])
		}
		if rms := math.Sqrt(noise / signal); math.Abs(rms-loss.RMS()) > 1e-6 || rms > c.worst {
			t.Errorf("%+v: relative error %.4f, reported %.4f, want at most %.4f", c.spec, rms, loss.RMS(), c.worst)
		}
	}
}

func TestZeroPointsServeWeightsOfOneSign(t *testing.T) {
	w := normals(64*64, 3)
	for i := range w {
		w[i] = float32(math.Abs(float64(w[i])))
	}
	loss := func(zeros bool) float64 {
		spec := Spec{canon.Int4, 64, zeros}
		out, _ := spec.Make("w", 64, 64)
		l, err := spec.Rows(&out, 0, w, nil)
		if err != nil {
			t.Fatal(err)
		}
		return l.RMS()
	}
	if with, without := loss(true), loss(false); with > 0.75*without {
		t.Errorf("relative error %.4f with zero points, %.4f without", with, without)
	}
}

// A zero point in the middle is among those that are tried: weights that fit a symmetric range lose nothing, and weights that
// were quantised so before are found again exactly.
func TestZeroPointsAreNeverWorseThanNone(t *testing.T) {
	w := normals(32*64, 11)
	loss := func(zeros bool, w []float32) (float64, []float32) {
		spec := Spec{canon.Int4, 32, zeros}
		out, err := spec.Make("w", 32, 64)
		if err != nil {
			t.Fatal(err)
		}
		l, err := spec.Rows(&out, 0, w, nil)
		if err != nil {
			t.Fatal(err)
		}
		return l.RMS(), values(t, out)
	}
	without, rounded := loss(false, w)
	if with, _ := loss(true, w); with > without {
		t.Errorf("relative error %.4f with zero points, %.4f without", with, without)
	}
	if again, _ := loss(true, rounded); again != 0 {
		t.Errorf("quantised weights have a relative error of %.2g", again)
	}
}

func TestImportantInputsAreKeptBetter(t *testing.T) {
	w := normals(32*64, 5)
	importance := make([]float32, 64)
	for i := range importance {
		importance[i] = 0.001
		if i%8 == 0 {
			importance[i] = 1
		}
	}
	at := func(importance []float32) (kept float64) {
		spec := Spec{canon.Int4, 64, false}
		out, _ := spec.Make("w", 32, 64)
		if _, err := spec.Rows(&out, 0, w, importance); err != nil {
			t.Fatal(err)
		}
		for i, v := range values(t, out) {
			if i%8 == 0 {
				kept += float64(v-w[i]) * float64(v-w[i])
			}
		}
		return kept
	}
	if weighted, plain := at(importance), at(nil); weighted > 0.9*plain {
		t.Errorf("squared error of the important inputs %.3g weighted, %.3g not", weighted, plain)
	}
}

func TestWeightsThatCannotBeQuantisedAreRefused(t *testing.T) {
	spec := Spec{canon.Int4, 32, false}
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1)), 1e7} {
		out, _ := spec.Make("w", 1, 32)
		w := make([]float32, 32)
		w[17] = bad
		if _, err := spec.Rows(&out, 0, w, nil); err == nil {
			t.Errorf("%v was quantised", bad)
		}
	}
	out, _ := spec.Make("w", 1, 32)
	if l, err := spec.Rows(&out, 0, make([]float32, 32), nil); err != nil || l.RMS() != 0 {
		t.Errorf("zeros: %v, %v", l, err)
	}
	if _, err := (Spec{canon.BF16, 32, false}).Make("w", 1, 32); err == nil {
		t.Error("bf16 was made")
	}
}
