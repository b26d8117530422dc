package daemon

// The report of an atlas: the figures of its pages with the method in words and what was found, also what was not.

import (
	"context"
	"fmt"
	"io"
	"strings"

	"covey/atlas"
	"covey/atlas/probes"
	"covey/store"
	"covey/web"
)

// WriteReport writes an atlas as one HTML page that needs nothing else: style inside, figures as SVG, no script.
func WriteReport(ctx context.Context, w io.Writer, doc *atlas.Atlas) error {
	view := atlasView(&opened{Atlas: doc, stored: store.Atlas{Name: doc.Name}})
	r := web.Report{Atlas: view, Limits: view.Warnings, Style: web.ReportStyle(), MinLift: doc.Provenance.MinLift, Imported: view.Imported, Method: method(doc)}
	if !view.Imported {
		r.Found = found(doc)
		r.Rerun, r.Remove = rerun(doc), remove(doc)
	}
	return web.ReportPage(r).Render(ctx, w)
}

// found says what came out, in sentences that can be wrong.
func found(a *atlas.Atlas) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	c, n := a.Controls, len(a.Labels)
	say("%d of %d experts were chosen often enough to say anything about them; %d of these are labelled for at least one of %d topics, with %s in all.",
		a.Summary.Experts, len(a.Experts), a.Summary.Specialists, len(a.Topics), web.Counted(n, "label"))
	if n == 0 {
		say("No label is a result too: on these texts no expert passes the corrected test, the bound on its lift and the support rule together.")
		return out
	}
	say("With the topics shuffled %d times, the same rule gives %.3g labels a time, %s of those found.", c.Shuffles, c.ShuffledLabels, percentOf(c.FalseLabelRate))
	say("%d labels (%s) do not survive among tokens of the same id: they may follow single words rather than the topic, and are marked lexical.", c.LexicalLabels, percentOf(float64(c.LexicalLabels)/float64(n)))
	if c.ShuffledWords > 0 {
		say("%s of the labels keep a lift above %g in texts whose words are shuffled: for these the words matter, not their order.", percentOf(c.ShuffleSurvival), a.Provenance.MinLift)
	}
	if c.CrossedLabels > 0 {
		say("Where a label's topic meets another (a recipe in Chinese), %d of the %d labels whose topic occurs in such texts keep a lift above %g.", c.CrossedHeld, c.CrossedLabels, a.Provenance.MinLift)
	}
	if s := a.Sealed; s != nil && len(s.Crossed) > 0 {
		texts, first, second := 0, 0, 0
		for _, x := range s.Crossed {
			texts, first, second = texts+x.Texts, first+x.First, second+x.Second
		}
		say("Of %d texts that are of two topics at once, naming them from expert shares gives %d their first topic, the field, and %d their second, the language or form.", texts, first, second)
	}
	if s := a.Sealed; s != nil {
		say("On %d sealed texts, which took no part in labelling, %d labels point the same way and %d have an interval above 1.", s.Texts, s.LabelsSigns, s.LabelsHeld)
		if words, shares := bestDecoding(s, false), bestDecoding(s, true); words != nil && shares != nil {
			verdict := "routing tells more about the topic than the words alone."
			if shares.Low <= words.High {
				verdict = "the intervals overlap: routing is not shown to tell more about the topic than the words alone."
			}
			say("By the better of two methods, the topic of a sealed text is named from expert shares in %s [%s, %s] of cases (chance %s), from its tokens without any expert in %s [%s, %s]; %s",
				percentOf(shares.Accuracy), percentOf(shares.Low), percentOf(shares.High), percentOf(s.Chance), percentOf(words.Accuracy), percentOf(words.Low), percentOf(words.High), verdict)
		}
	}
	tested, matters, less := 0, 0, 0
	for _, l := range a.Labels {
		if l.Causal != nil {
			tested++
			if l.Causal.Matters {
				matters++
			}
			if l.Causal.Low > 0 {
				less++
			}
		}
	}
	if tested == 0 {
		say("Nothing was removed: whether labelled experts are needed for their topic is not known.")
	} else {
		say("Of %d labelled experts that were removed one by one, %d are shown to matter more to their topic than experts of the same load; by chance about %.1f would. %d are shown to matter less.", tested, matters, 0.025*float64(tested), less)
	}
	if n := len(a.Groups); n > 0 {
		var matters, less []string
		for _, g := range a.Groups {
			switch {
			case g.Effect.Matters:
				matters = append(matters, a.Topics[g.Topic])
			case g.Effect.Low > 0:
				less = append(less, a.Topics[g.Topic])
			}
		}
		say("Removing all labelled experts of a topic together, against as many others of the same layers, is shown to matter more in %s and less in %s of %d topics; by chance about %.1f of each would. The others are those nearest in load; where the labelled experts are the busiest of their layers, they carry less of the topic.",
			named(matters), named(less), n, 0.025*float64(n))
	}
	return out
}

// named counts topics and names them: "2 (math, manuals)".
func named(topics []string) string {
	if len(topics) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", len(topics), strings.Join(topics, ", "))
}

// bestDecoding is the most accurate decoding from shares or from tokens; nil = none.
func bestDecoding(s *atlas.Sealed, shares bool) *atlas.Decoding {
	var best *atlas.Decoding
	for i := range s.Decoding {
		d := &s.Decoding[i]
		if (d.Features == "shares") != shares || !shares && d.Features != "tokens" {
			continue
		}
		if best == nil || d.Accuracy > best.Accuracy {
			best = d
		}
	}
	return best
}

// rerun is the command that measures the same again.
func rerun(a *atlas.Atlas) string {
	p := a.Provenance
	return command("covey atlas run", p) + fmt.Sprintf(" --seed %d --permutations %d --draws %d --shuffles %d", p.Seed, p.Permutations, p.Draws, p.Shuffles)
}

// command names the atlas's model and texts where they are not those that are built in.
func command(verb string, p atlas.Provenance) string {
	if p.ModelID != bundledID {
		verb += " --model DIR"
	}
	if p.ProbeSet != probes.BuiltinName {
		verb += " --probes FILE"
	}
	return verb
}

// remove is the command that removed what the atlas says was removed; "" = nothing was.
func remove(a *atlas.Atlas) string {
	tested, controls := 0, 0
	for _, l := range a.Labels {
		if l.Causal != nil {
			tested++
			controls = max(controls, l.Causal.Controls)
		}
	}
	for _, g := range a.Groups {
		controls = max(controls, g.Effect.Controls)
	}
	if controls == 0 {
		return ""
	}
	line := command("covey atlas ablate ATLAS", a.Provenance)
	if tested > 0 {
		line += fmt.Sprintf(" --labels %d", tested)
	} else {
		line += " --labels=-1"
	}
	line += fmt.Sprintf(" --controls %d", controls)
	if len(a.Groups) == 0 {
		line += " --no-groups"
	}
	return line
}

// method explains every number of the page.
func method(a *atlas.Atlas) []web.Term {
	if a.Kind == atlas.Imported {
		return []web.Term{{Word: "Affinity", Meaning: "the part of an expert's share that falls on a topic, as the imported file gives it; without intervals nothing is claimed"}}
	}
	p := a.Provenance
	return []web.Term{
		{Word: "Text", Meaning: "one observation, however long. The model reads it once; the routers' own choices are counted. Open texts are for labelling, sealed ones (other templates, sources and styles) for confirmation only."},
		{Word: "Share", Meaning: "how often a text's tokens chose the expert, over its tokens."},
		{Word: "Lift", Meaning: fmt.Sprintf("mean share in the topic's texts over the mean over topics: 1 = as often as anywhere, %d = only there. Half a selection is added to every topic.", len(a.Topics))},
		{Word: "Interval", Meaning: fmt.Sprintf("95 %%, bootstrap-t over %d draws of whole clusters (texts of one template or source stay together) within topics.", p.Draws)},
		{Word: "Corrected p", Meaning: fmt.Sprintf("topics are permuted among clusters %d times; p is how often the largest statistic over all experts and topics reaches this one's.", p.Permutations)},
		{Word: "Label", Meaning: fmt.Sprintf("corrected p at most %g, lower bound of the lift above %g, and at least %.0f %% of the topic's texts chose the expert. It does not mean that the expert holds the topic's facts.", p.Alpha, p.MinLift, 100*p.MinSupport)},
		{Word: "False label rate", Meaning: fmt.Sprintf("mean labels over %d shuffles of the topics by the same rule, over the labels found.", p.Shuffles)},
		{Word: "Lexical", Meaning: "the label does not survive when tokens of the same id are compared inside and outside the topic: single words may explain it."},
		{Word: "Bits about the topic", Meaning: "mutual information between the chosen expert and the topic in a layer, less its mean under shuffled topics; its interval is 1.96 standard errors over resampled clusters. The part tokens explain is an upper bound."},
		{Word: "Bits about the position", Meaning: "mutual information between the chosen expert and the quarter of the text in which the token stands: how far a layer's choice follows position instead."},
		{Word: "Specificity", Meaning: "1 less the normalised entropy of the expert's affinities, less its mean under shuffled topics: 0 = the same everywhere."},
		{Word: "Reliability", Meaning: "correlation of lifts between random halves of the clusters, corrected to full length (Spearman and Brown)."},
		{Word: "Naming a topic", Meaning: "nearest centroid or logistic regression fitted on open texts, tried on sealed ones: from expert shares, from what token identity leaves of them, and from token frequencies without any expert. Intervals are Wilson's."},
		{Word: "Removal", Meaning: "the expert is taken out of the router's choice, the next best takes its place, and the mean log-probability a token (in nats) of the topic's sealed texts is compared, less the same on the shortest sealed text of every other topic; and that less its mean over controls, experts of the same layer with about the same load on the topic. The interval is over texts; matters = all of it below 0."},
	}
}
