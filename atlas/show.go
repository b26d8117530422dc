package atlas

// This file is the text report of `covey atlas show`: what was measured, what came out, how far to trust it.

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// shownLabels is how many labels a topic shows.
const shownLabels = 5

// Show writes the report.
func Show(w io.Writer, a *Atlas) error {
	var b strings.Builder
	p := a.Provenance
	fmt.Fprintf(&b, "%s\n", a.Name)
	fmt.Fprintf(&b, "id %.16s, %s, made %s\n", a.ID, a.Kind, a.Created.Format("2006-01-02 15:04 MST"))
	if a.Kind == Imported {
		fmt.Fprintf(&b, "from %s: %d experts of %d layers, %d topics. No intervals, no tests: nothing here is labelled.\n",
			p.Source, len(a.Experts), len(a.Shape.Layers), len(a.Topics))
		_, err := io.WriteString(w, b.String())
		return err
	}
	fmt.Fprintf(&b, "model   %s (%s), hash %.12s, numerics %s\n", p.ModelName, p.Architecture, p.ModelHash, p.NumericsID)
	fmt.Fprintf(&b, "probes  %s, hash %.12s: %d open, %d sealed, %d crossed texts of %d topics, %d tokens, %s\n",
		p.ProbeSet, p.ProbeSetHash, p.Open, p.SealedTexts, p.Crossed, len(a.Topics), p.Tokens, p.Phase)
	fmt.Fprintf(&b, "rule    corrected p <= %g (%d permutations), 95 %% lower bound of lift > %g (%d draws), selected in >= %.0f %% of the topic's texts\n\n",
		p.Alpha, p.Permutations, p.MinLift, p.Draws, 100*p.MinSupport)

	total := len(a.Experts)
	fmt.Fprintf(&b, "%d of %d experts have enough data; %d are labelled for at least one topic (%d labels, %d of them lexical).\n",
		a.Summary.Experts, total, a.Summary.Specialists, len(a.Labels), a.Controls.LexicalLabels)
	a.showTopics(&b)
	a.showControls(&b)
	a.showSealed(&b)
	a.showCausal(&b)
	a.showLayers(&b)
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (a *Atlas) showTopics(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\ntopic\tlabels\tlexical\tstrongest experts: layer:id lift [95 %% interval]\n")
	for c, topic := range a.Topics {
		var own []Label
		lexical := 0
		for _, l := range a.Labels {
			if l.Topic != c {
				continue
			}
			own = append(own, l)
			if l.Lexical {
				lexical++
			}
		}
		slices.SortStableFunc(own, func(x, y Label) int { return cmp.Compare(y.Low, x.Low) })
		var shown []string
		for _, l := range own[:min(shownLabels, len(own))] {
			mark := ""
			if l.Lexical {
				mark = " lexical"
			}
			shown = append(shown, fmt.Sprintf("%d:%d %.1f [%.1f, %.1f]%s", l.Layer, l.ID, l.Lift, l.Low, l.High, mark))
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", topic, len(own), lexical, strings.Join(shown, "; "))
	}
	t.Flush()
}

func (a *Atlas) showControls(b *strings.Builder) {
	c := a.Controls
	fmt.Fprintf(b, "\ncontrols\n")
	fmt.Fprintf(b, "  shuffled labels: %.3g labels a shuffle over %d shuffles, %.2g of those found (at most 0.05 is acceptable)\n", c.ShuffledLabels, c.Shuffles, c.FalseLabelRate)
	fmt.Fprintf(b, "  token identity: %d of %d labels do not survive among tokens of the same id (%.0f %% of positions have a token that occurs in two topics)\n",
		c.LexicalLabels, len(a.Labels), 100*c.CommonTokens)
	if c.ShuffledWords > 0 {
		fmt.Fprintf(b, "  word order: %.0f %% of labels keep a lift above %g in %d texts with shuffled words\n", 100*c.ShuffleSurvival, a.Provenance.MinLift, c.ShuffledWords)
	}
	fmt.Fprintf(b, "  position: %.0f %% of labels keep a lift above %g without the first %d positions\n", 100*c.PositionSurvival, a.Provenance.MinLift, early)
	if c.CrossedLabels > 0 {
		fmt.Fprintf(b, "  crossed texts: %d of %d labels keep a lift above %g where their topic meets another (a recipe in Chinese)\n", c.CrossedHeld, c.CrossedLabels, a.Provenance.MinLift)
	}
}

func (a *Atlas) showSealed(b *strings.Builder) {
	s := a.Sealed
	if s == nil {
		fmt.Fprintf(b, "\nno sealed texts: nothing is confirmed\n")
		return
	}
	fmt.Fprintf(b, "\n%d sealed texts: %d of %d labels keep their sign, %d have an interval above 1\n", s.Texts, s.LabelsSigns, len(a.Labels), s.LabelsHeld)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "  naming the topic (chance %.1f %%)\tcorrect\tof\taccuracy [95 %% interval]\n", 100*s.Chance)
	for _, d := range s.Decoding {
		fmt.Fprintf(t, "  %s from %s\t%d\t%d\t%.1f %% [%.1f, %.1f]\n", d.Method, d.Features, d.Correct, d.N, 100*d.Accuracy, 100*d.Low, 100*d.High)
	}
	t.Flush()
	for _, x := range s.Crossed {
		first, second, _ := strings.Cut(x.Topic, "+")
		fmt.Fprintf(b, "  %d texts of %s: %d named %s, %d named %s, %d another topic\n", x.Texts, x.Topic, x.First, first, x.Second, second, x.Texts-x.First-x.Second)
	}
}

func (a *Atlas) showCausal(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	row := func(what string, topic int, e Effect) {
		verdict := "not shown"
		if e.Matters {
			verdict = "matters"
		}
		fmt.Fprintf(t, "  %s\t%s\t%+.4f\t%+.4f\t%+.4f [%+.4f, %+.4f]\t%s\n", what, a.Topics[topic], e.Change, e.Control, e.Net, e.Low, e.High, verdict)
	}
	started := false
	start := func() {
		if !started {
			started = true
			fmt.Fprintf(t, "\nremoved\ttopic\tchange, nats a token\tcontrols\tbeyond controls [95 %% interval]\t\n")
		}
	}
	for _, l := range a.Labels {
		if l.Causal != nil {
			start()
			row(fmt.Sprintf("%d:%d", l.Layer, l.ID), l.Topic, *l.Causal)
		}
	}
	for _, g := range a.Groups {
		start()
		row(fmt.Sprintf("all %d", g.Experts), g.Topic, g.Effect)
	}
	t.Flush()
}

func (a *Atlas) showLayers(b *strings.Builder) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nlayer\tlabels\tI(expert;topic) bits\ttoken part %%\treliability\tlength part %%\tI(expert;position) bits\t\n")
	labels := map[int]int{}
	for _, l := range a.Labels {
		labels[l.Layer]++
	}
	for _, l := range a.Layers {
		fmt.Fprintf(t, "%d\t%d\t%.4f\t%.0f\t%.2f\t%.1f\t%.4f\t\n", l.Layer, labels[l.Layer], l.Information, 100*l.Lexical, l.Reliability, 100*l.LengthPart, l.PositionPart)
	}
	t.Flush()
}
