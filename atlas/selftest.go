package atlas

import (
	"context"
	"fmt"
	"time"
)

// Selftest is how well the instrument finds a planted truth.
type Selftest struct {
	RecallLift2      float64 `json:"recall_lift2"`      // part of the planted specialists of lift 2 that were labelled
	RecallLift4      float64 `json:"recall_lift4"`      // the same at lift 4
	Recall           float64 `json:"recall"`            // both
	FalseLabelRate   float64 `json:"false_label_rate"`  // labels that were not planted and not marked lexical, over labels
	ConfoundRecovery float64 `json:"confound_recovery"` // part of the labelled confounds that were marked lexical
	Confounds        int     `json:"confounds"`         // confounds that were labelled
	Coverage         float64 `json:"coverage"`          // part of 95 % intervals that contain the true lift
	LexicalMistakes  float64 `json:"lexical_mistakes"`  // part of the labelled specialists that were marked lexical
	Experts          int     `json:"experts"`
	Labels           int     `json:"labels"`
	ShuffledRate     float64 `json:"shuffled_rate"` // the run's own control 1
	Seconds          float64 `json:"seconds"`
	Pass             bool    `json:"pass"`
}

// Criteria of the self-test.
const (
	minRecallLift4 = 0.9
	maxFalseLabels = 0.05
	minCoverage    = 0.92
	maxCoverage    = 0.98
)

// RunSelftest plants a truth in a synthetic router of the given number of layers (29 has the bundled model's 928
// experts), measures it as any model is measured, and compares. progress may be nil.
func RunSelftest(ctx context.Context, layers int, o Options, progress func(Progress)) (*Selftest, error) {
	start := time.Now()
	o = o.withDefaults()
	o.Store, o.Job = nil, ""
	p, set, err := NewPlanted(layers, o.Seed)
	if err != nil {
		return nil, err
	}
	a, err := Run(ctx, p, set, o, progress)
	if err != nil {
		return nil, fmt.Errorf("atlas: self-test: %w", err)
	}
	t := p.compare(a)
	t.Seconds = round(time.Since(start).Seconds())
	return t, nil
}

// compare counts what the atlas says against what was planted.
func (p *Planted) compare(a *Atlas) *Selftest {
	t := &Selftest{Experts: len(a.Experts), Labels: len(a.Labels), ShuffledRate: a.Controls.FalseLabelRate}
	planted := map[float64]int{}
	covered, intervals := 0, 0
	for i := range a.Experts {
		e := &a.Experts[i]
		r := p.roles[e.Layer][e.ID]
		if r.kind == specialist {
			planted[r.lift]++
		}
		if len(e.Low) == 0 {
			continue
		}
		for c := range a.Topics {
			if r.kind != null && (r.kind != specialist || c != r.topic) {
				continue
			}
			intervals++
			if v := r.truth(c); e.Low[c] <= v && v <= e.High[c] {
				covered++
			}
		}
	}
	found, marked, falseLabels, recovered := map[float64]int{}, 0, 0, 0
	for _, l := range a.Labels {
		switch r := p.roles[l.Layer][l.ID]; {
		case r.kind == specialist && r.topic == l.Topic:
			found[r.lift]++
			if l.Lexical {
				marked++
			}
		case r.kind == confound && r.topic == l.Topic:
			t.Confounds++
			if l.Lexical {
				recovered++
			} else {
				falseLabels++
			}
		case !l.Lexical:
			falseLabels++
		}
	}
	part := func(n, of int) float64 {
		if of == 0 {
			return 0
		}
		return round(float64(n) / float64(of))
	}
	t.RecallLift2, t.RecallLift4 = part(found[2], planted[2]), part(found[4], planted[4])
	t.Recall = part(found[2]+found[4], planted[2]+planted[4])
	t.FalseLabelRate = part(falseLabels, len(a.Labels))
	t.ConfoundRecovery = part(recovered, t.Confounds)
	t.LexicalMistakes = part(marked, found[2]+found[4])
	t.Coverage = part(covered, intervals)
	t.Pass = t.RecallLift4 >= minRecallLift4 && t.FalseLabelRate <= maxFalseLabels && t.Coverage >= minCoverage && t.Coverage <= maxCoverage
	return t
}
