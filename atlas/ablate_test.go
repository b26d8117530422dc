package atlas

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"covey/engine"
)

// The planted model loses 0.3 nats a token on a specialist's topic when the specialist has an even id and is removed.
func TestAblationFindsWhichSpecialistsMatter(t *testing.T) {
	p, set := planted(t, 3)
	ctx := context.Background()
	a, err := Run(ctx, p, set, quick, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &counted{Model: p}
	o := AblateOptions{Labels: 1000, Groups: true, Controls: 5}
	b, err := Ablate(ctx, m, set, a, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	// A text whose removals take several forwards is read as it is in each.
	if n, err := AblationReadings(set, a, o); err != nil || int64(n) > m.readings.Load() || int64(n)+m.forwards.Load() < m.readings.Load() {
		t.Errorf("%d readings were announced, %d made in %d forwards; error %v", n, m.readings.Load(), m.forwards.Load(), err)
	}
	matter, not := 0, 0
	for _, l := range b.Labels {
		if l.Causal == nil {
			t.Fatalf("layer %d expert %d was not tested", l.Layer, l.ID)
		}
		r := p.roles[l.Layer][l.ID]
		planted := r.kind == specialist && r.topic == l.Topic && causes(engine.Expert{Layer: l.Layer, ID: l.ID})
		if planted != l.Causal.Matters {
			t.Errorf("layer %d expert %d, %+v: %+v", l.Layer, l.ID, r, *l.Causal)
		}
		if planted {
			matter++
			if math.Abs(l.Causal.Change+0.3) > 1e-6 {
				t.Errorf("layer %d expert %d changes %g nats, 0.3 are planted", l.Layer, l.ID, l.Causal.Change)
			}
		} else {
			not++
		}
	}
	if matter == 0 || not == 0 {
		t.Fatalf("%d labels matter and %d do not: the test needs both", matter, not)
	}
	if len(b.Groups) == 0 {
		t.Error("no group was tested")
	}
	for _, g := range b.Groups {
		sum := 0.0
		for _, l := range b.Labels {
			if l.Topic == g.Topic {
				sum += l.Causal.Change
			}
		}
		if math.Abs(g.Effect.Change-sum) > 1e-5 {
			t.Errorf("topic %d: the group changes %g nats, its members %g together", g.Topic, g.Effect.Change, sum)
		}
	}
	if a.Labels[0].Causal != nil {
		t.Error("the atlas that was given has changed")
	}
	if a.ID != b.ID {
		t.Error("effects changed the id of what was measured")
	}
	back, err := Decode(bytes.NewReader(encode(t, b)))
	if err != nil || len(back.Groups) != len(b.Groups) {
		t.Errorf("read back: %v", err)
	}
	var report strings.Builder
	if err := Show(&report, b); err != nil || !strings.Contains(report.String(), "beyond controls") {
		t.Errorf("the report shows no effects: %v", err)
	}
}

func TestAblationNeedsTheSameModelAndTexts(t *testing.T) {
	p, set := planted(t, 1)
	a := small()
	if _, err := Ablate(context.Background(), p, set, a, AblateOptions{}, nil); err == nil || !strings.Contains(err.Error(), "is of model") {
		t.Errorf("another model: error %v", err)
	}
	a.Provenance.ModelHash, a.Provenance.NumericsID = p.Info().Hash, p.Info().NumericsID
	if _, err := Ablate(context.Background(), p, set, a, AblateOptions{}, nil); err == nil || !strings.Contains(err.Error(), "of probe set") {
		t.Errorf("another set: error %v", err)
	}
}

func TestACancelledAblationEndsWithItsContext(t *testing.T) {
	p, set := planted(t, 2)
	a, err := Run(context.Background(), p, set, quick, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m := &counted{Model: p, after: 3, cancel: cancel}
	if _, err := Ablate(ctx, m, set, a, AblateOptions{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestMasksKeepWhatATopicUses(t *testing.T) {
	a := small()
	m, err := a.Mask(MaskRule{Topics: []string{"code"}, Coverage: 0.85})
	if err != nil {
		t.Fatal(err)
	}
	// Layer 1: expert 0 takes 0.9 of code; layer 2: expert 0 takes 0.99 of it.
	if want := []engine.Expert{{Layer: 1, ID: 0}, {Layer: 2, ID: 0}}; !slices.Equal(m.Keep, want) {
		t.Errorf("kept %v, want %v", m.Keep, want)
	}
	if want := []engine.Expert{{Layer: 1, ID: 1}, {Layer: 2, ID: 1}}; !slices.Equal(m.Drop, want) {
		t.Errorf("dropped %v, want %v", m.Drop, want)
	}
	if want := []float64{0.945, 0.55}; !slices.Equal(m.Coverage, want) {
		t.Errorf("coverage %v, want %v: code (0.9+0.99)/2, law (0.1+1)/2", m.Coverage, want)
	}
	if want := []float64{0.9, 0.1}; !slices.Equal(m.Least, want) {
		t.Errorf("least coverage %v, want %v", m.Least, want)
	}
	all, err := a.Mask(MaskRule{PerLayer: 2})
	if err != nil || len(all.Keep) != 4 || len(all.Drop) != 0 {
		t.Errorf("two of two experts a layer: kept %v, error %v", all.Keep, err)
	}
	for _, r := range []MaskRule{{}, {Coverage: 0.5, PerLayer: 1}, {Coverage: 1.5}, {PerLayer: 3}, {Topics: []string{"art"}, PerLayer: 1}} {
		if _, err := a.Mask(r); err == nil {
			t.Errorf("%+v was accepted", r)
		}
	}
}

func TestComparingTellsWhatOnlyOneAtlasLabels(t *testing.T) {
	a, b := small(), small()
	b.Labels = []Label{{Layer: 1, ID: 1, Topic: 1}}
	b.Provenance.NumericsID = "other"
	c, err := Compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if c.Experts != 3 || c.Correlation != 1 || c.SameTop != 1 || c.Both != 0 || len(c.OnlyFirst) != 1 || len(c.OnlySecond) != 1 {
		t.Errorf("%+v", c)
	}
	if !c.SameModel || c.SameNumerics || !c.SameProbes {
		t.Errorf("same model %v, numerics %v, probes %v", c.SameModel, c.SameNumerics, c.SameProbes)
	}
	b.Shape.Experts = 3
	if _, err := Compare(a, b); err == nil {
		t.Error("another shape was accepted")
	}
}
