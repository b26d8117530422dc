package route_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"covey/engine/route"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

var small = route.Shape{Layers: []int{1, 2, 5}, Experts: 6, TopK: 2}

// turn is two steps of one sequence: a prompt of two rows, then one generated row whose experts lay in several tiers.
func turn() []*route.Event {
	return []*route.Event{
		{Step: 7, Sequence: 3, Position: 0, Tokens: []int32{1, 300}, Bytes: 4096, StepNanos: 1500,
			IDs:     []uint16{0, 5, 1, 2, 3, 4, 5, 0, 2, 1, 4, 3},
			Weights: []float32{1, 0, 0.5, 0.5, 0.25, 0.75, 1, 0.125, 0, 0, 0.5, 0.25}},
		{Step: 9, Sequence: 3, Position: 2, Tokens: []int32{49151}, Bytes: 0, StepNanos: 900,
			IDs:     []uint16{2, 3, 2, 3, 2, 3},
			Weights: []float32{2.5, 1.25, 0, 2.5, 0.625, 0.3125},
			Tiers:   []route.Tier{route.TierRAM, route.TierVRAM, route.TierPin, route.TierDisk, route.TierRAM, route.TierRAM}},
	}
}

func encode(t *testing.T, s route.Shape, events []*route.Event, form route.WeightForm) []byte {
	t.Helper()
	blob, err := route.Encode(s, events, form)
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

func TestExactFormReadsBackBitForBit(t *testing.T) {
	events := turn()
	events[0].Weights[1] = float32(math.Copysign(0, -1))
	events[0].Weights[2] = math.Float32frombits(1)
	shape, got, err := route.Decode(encode(t, small, events, route.WeightsExact))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(small, shape); diff != "" {
		t.Errorf("shape (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(events, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if !math.Signbit(float64(got[0].Weights[1])) {
		t.Error("the sign of zero was lost")
	}
}

func TestByteFormIsOffByAtMostOneFivehundredthOfTheLargestWeight(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	e := random(rng, small, 40, 0)
	var largest float32
	for i := range e.Weights {
		e.Weights[i] = float32(rng.ExpFloat64())
		largest = max(largest, e.Weights[i])
	}
	_, got, err := route.Decode(encode(t, small, []*route.Event{e}, route.WeightsByte))
	if err != nil {
		t.Fatal(err)
	}
	bound := float64(largest)/510 + 1e-7
	for i, w := range e.Weights {
		if d := math.Abs(float64(w) - float64(got[0].Weights[i])); d > bound {
			t.Errorf("slot %d: %v read back as %v, off by %g > %g", i, w, got[0].Weights[i], d, bound)
		}
	}
}

func TestEncodingWhatWasDecodedGivesTheSameBlob(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, form := range []route.WeightForm{route.WeightsByte, route.WeightsExact} {
		events := append(turn(), random(rng, small, 9, 20))
		blob := encode(t, small, events, form)
		shape, got, err := route.Decode(blob)
		if err != nil {
			t.Fatal(err)
		}
		if again := encode(t, shape, got, form); !bytes.Equal(again, blob) {
			t.Errorf("form %d: second encoding differs", form)
		}
	}
}

func TestBlobBytesAreAsDocumented(t *testing.T) {
	for form, name := range map[route.WeightForm]string{route.WeightsByte: "byte", route.WeightsExact: "exact"} {
		got := fmt.Sprintf("% x\n", encode(t, small, turn(), form))
		path := filepath.Join("testdata", "turn-"+name+".hex")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s:\n got %swant %s", path, got, want)
		}
	}
}

func TestTurnOfFiveHundredTokensStaysBelow110KB(t *testing.T) {
	s := route.Shape{Experts: 32, TopK: 4}
	for l := range 29 {
		s.Layers = append(s.Layers, l+1)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	events := []*route.Event{random(rng, s, 100, 1)}
	for i := range 400 {
		e := random(rng, s, 1, uint64(i+2))
		e.Position, e.StepNanos, e.Bytes = 100+i, 6_000_000, 3_000_000
		events = append(events, e)
	}
	if n := len(encode(t, s, events, route.WeightsByte)); n > 110_000 {
		t.Errorf("%d bytes", n)
	}
}

func TestEncodeNamesTheEventThatDoesNotFit(t *testing.T) {
	change := func(f func(e *route.Event)) []*route.Event {
		events := turn()
		f(events[1])
		return events
	}
	for want, events := range map[string][]*route.Event{
		"event 1: slot 2: expert 6 of 6":                    change(func(e *route.Event) { e.IDs[2] = 6 }),
		"event 1: 5 ids":                                    change(func(e *route.Event) { e.IDs = e.IDs[:5] }),
		"event 1: step 6 after step 7":                      change(func(e *route.Event) { e.Step = 6 }),
		"event 1: no rows":                                  change(func(e *route.Event) { e.Tokens = nil }),
		"event 1: token -1 is negative":                     change(func(e *route.Event) { e.Tokens[0] = -1 }),
		"event 1: position -1 out of range":                 change(func(e *route.Event) { e.Position = -1 }),
		"event 1: slot 0: weight NaN is negative or not":    change(func(e *route.Event) { e.Weights[0] = float32(math.NaN()) }),
		"event 1: slot 0: weight -1 is negative or not":     change(func(e *route.Event) { e.Weights[0] = -1 }),
		"event 1: slot 0: weight +Inf is negative or not":   change(func(e *route.Event) { e.Weights[0] = float32(math.Inf(1)) }),
		"event 1: slot 5: unknown tier 4":                   change(func(e *route.Event) { e.Tiers[5] = 4 }),
		"event 1: negative bytes (-1) or time":              change(func(e *route.Event) { e.Bytes = -1 }),
		"event 1: 6 ids, 6 weights, 1 tiers for 1 rows x 6": change(func(e *route.Event) { e.Tiers = e.Tiers[:1] }),
	} {
		if _, err := route.Encode(small, events, route.WeightsByte); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for want, s := range map[string]route.Shape{
		"must ascend":     {Layers: []int{2, 2}, Experts: 4, TopK: 2},
		"0 experts":       {Layers: []int{2}, Experts: 0, TopK: 0},
		"top-k 5 of 4":    {Layers: []int{2}, Experts: 4, TopK: 5},
		"70000 experts":   {Layers: []int{2}, Experts: 70000, TopK: 5},
		"4097 layers, at": {Layers: make([]int, 4097), Experts: 4, TopK: 2},
	} {
		if _, err := route.Encode(s, nil, route.WeightsByte); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestDecodeRefusesEveryTruncationAndTrailingBytes(t *testing.T) {
	for _, form := range []route.WeightForm{route.WeightsByte, route.WeightsExact} {
		blob := encode(t, small, turn(), form)
		for n := range blob {
			if _, _, err := route.Decode(blob[:n]); !errors.Is(err, route.ErrCorrupt) {
				t.Errorf("first %d of %d bytes: %v", n, len(blob), err)
			}
		}
		if _, _, err := route.Decode(append(blob, 0)); !errors.Is(err, route.ErrCorrupt) {
			t.Errorf("one byte more: %v", err)
		}
	}
}

func TestDecodeSaysWhatIsWrongAndWhere(t *testing.T) {
	for _, c := range []struct {
		blob []byte
		want string
	}{
		{[]byte{2}, "at byte 1 of 1: version 2, want 1"},
		{[]byte{1, 9}, "unknown weight form 9"},
		{[]byte{1, 1, 0x81, 0x00}, "layers: number is not minimal"},
		{[]byte{1, 1, 0xff, 0xff, 0x7f}, "layers is 2097151, at most 4096"},
		{[]byte{1, 1, 5, 1}, "5 layers in 1 bytes"},
		{[]byte{1, 1, 1, 0, 4, 5, 0}, "top-k 5 of 4 experts"},
		{[]byte{1, 1, 1, 0, 4, 2, 100}, "100 events in 0 bytes"},
	} {
		if _, _, err := route.Decode(c.blob); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("% x: got %v, want %q", c.blob, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, form := range []route.WeightForm{route.WeightsByte, route.WeightsExact} {
		blob, err := route.Encode(small, turn(), form)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(blob)
	}
	f.Add([]byte{1, 2, 0, 1, 1, 0})
	f.Fuzz(func(t *testing.T, blob []byte) {
		shape, events, err := route.Decode(blob)
		if err != nil {
			if !errors.Is(err, route.ErrCorrupt) {
				t.Fatalf("error %v does not wrap ErrCorrupt", err)
			}
			return
		}
		again, err := route.Encode(shape, events, route.WeightForm(blob[1]))
		if err != nil {
			t.Fatalf("decoded but does not encode: %v", err)
		}
		if !bytes.Equal(again, blob) {
			t.Fatalf("not canonical:\n% x\n% x", blob, again)
		}
		counts := route.NewCounts(shape)
		for _, e := range events {
			if err := counts.Add(e); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// random is an event of distinct experts a layer with weights that fall with rank.
func random(rng *rand.Rand, s route.Shape, rows int, step uint64) *route.Event {
	e := &route.Event{Step: step, Sequence: 1}
	for range rows {
		e.Tokens = append(e.Tokens, rng.Int32N(49152))
		for range s.Layers {
			for i, id := range rng.Perm(s.Experts)[:s.TopK] {
				e.IDs = append(e.IDs, uint16(id))
				e.Weights = append(e.Weights, rng.Float32()/float32(i+1))
			}
		}
	}
	return e
}

func BenchmarkEncodeRow(b *testing.B) {
	s := route.Shape{Experts: 32, TopK: 4}
	for l := range 29 {
		s.Layers = append(s.Layers, l+1)
	}
	events := []*route.Event{random(rand.New(rand.NewPCG(1, 1)), s, 1, 1)}
	for b.Loop() {
		if _, err := route.Encode(s, events, route.WeightsByte); err != nil {
			b.Fatal(err)
		}
	}
}
