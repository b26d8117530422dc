package daemon

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"covey/atlas"
	"covey/atlas/probes"
	"covey/store"
	"covey/web"
)

// atlasItem is an atlas's line in lists, from the summary that the store keeps beside the document.
func atlasItem(s store.Atlas) web.AtlasItem {
	item := web.AtlasItem{ID: s.ID, Name: s.Name, Model: s.Model, Created: s.Created, Size: s.Size}
	var summary atlas.Summary
	if json.Unmarshal(s.Summary, &summary) != nil || summary.Experts == 0 {
		return item
	}
	item.Texts, item.Numerics = textsName(s.ProbeHash), s.Numerics
	item.Measured, item.Experts, item.Specialists, item.Labels = true, summary.Experts, summary.Specialists, summary.Labels
	item.FalseLabelRate = summary.FalseLabelRate
	if d := summary.SealedDecoding; d != nil {
		item.Decoding, item.DecodingTexts, item.DecodingChance = &web.Interval{Value: d.Accuracy, Low: d.Low, High: d.High}, d.N, d.Chance
	}
	return item
}

// builtinHash is the hash of the built-in probe set.
var builtinHash = sync.OnceValue(func() string {
	set, err := probes.Builtin()
	if err != nil {
		return ""
	}
	return set.Hash
})

// textsName names a probe set by its hash: the store keeps no more of it beside an atlas, and another hash may be of somebody's
// own texts or of a part of the built-in ones.
func textsName(hash string) string {
	switch hash {
	case "":
		return "not named"
	case builtinHash():
		return probes.BuiltinName
	}
	return fmt.Sprintf("hash %.12s", hash)
}

// atlasView is what the page of an atlas shows, but for the table.
func atlasView(doc *opened) web.Atlas {
	p, c := doc.Provenance, doc.Controls
	v := web.Atlas{
		ID: doc.stored.ID, Name: doc.stored.Name, Job: doc.stored.Job, Imported: doc.Kind == atlas.Imported,
		Provenance: provenance(doc), Warnings: warnings(doc.Atlas), Topics: topicLists(doc.Atlas), TopicNames: doc.Topics,
	}
	if v.Imported {
		return v
	}
	v.Rule = fmt.Sprintf("A pair is labelled when its corrected p is at most %g, the lower bound of its lift is above %g and at least %.0f %% of the topic's texts chose the expert. Bars are 95 %% intervals of the lift; pale bars are labels that the tokens alone explain.", p.Alpha, p.MinLift, 100*p.MinSupport)
	v.Headline = []web.Fact{
		{Label: "Labels", Value: strconv.Itoa(len(doc.Labels))},
		{Label: "Experts labelled", Value: fmt.Sprintf("%d of %d", doc.Summary.Specialists, doc.Summary.Experts)},
		{Label: "False label rate", Value: percentOf(c.FalseLabelRate)},
	}
	if s := doc.Sealed; s != nil {
		v.Headline = append(v.Headline, web.Fact{Label: "Same sign on sealed texts", Value: fmt.Sprintf("%d of %d", s.LabelsSigns, len(doc.Labels))})
		for i, d := range s.Decoding {
			v.Decoding = append(v.Decoding, web.AtlasDecoding{Method: cmp.Or(methodNames[d.Method], d.Method), Features: cmp.Or(featureNames[d.Features], d.Features), Correct: d.Correct, N: d.N,
				Accuracy: web.Interval{Value: d.Accuracy, Low: d.Low, High: d.High}, Best: i == s.Best})
		}
		if s.Best >= 0 && s.Best < len(s.Decoding) {
			best := s.Decoding[s.Best]
			v.Confusion = &web.Confusion{Topics: doc.Topics, Counts: best.Confusion, Method: cmp.Or(methodNames[best.Method], best.Method) + " from " + cmp.Or(featureNames[best.Features], best.Features), Chance: s.Chance}
			v.Headline = append(v.Headline, web.Fact{Label: "Topic of sealed texts named",
				Value: fmt.Sprintf("%s [%s, %s]", percentOf(best.Accuracy), percentOf(best.Low), percentOf(best.High))})
		}
	}
	v.Controls = []web.Fact{
		{Label: "Topics shuffled", Value: fmt.Sprintf("%.3g labels a shuffle over %d shuffles, %s of those found; at most 5 %% is acceptable", c.ShuffledLabels, c.Shuffles, percentOf(c.FalseLabelRate))},
		{Label: "Token identity", Value: fmt.Sprintf("%d of %d labels do not survive among tokens of the same id; %s of positions hold a token of at least two topics", c.LexicalLabels, len(doc.Labels), percentOf(c.CommonTokens))},
		{Label: "Without the first 32 positions", Value: percentOf(c.PositionSurvival) + " of labels keep their lift"},
	}
	if c.ShuffledWords > 0 {
		v.Controls = append(v.Controls, web.Fact{Label: "Words shuffled", Value: fmt.Sprintf("%s of labels keep their lift in %d texts without word order", percentOf(c.ShuffleSurvival), c.ShuffledWords)})
	}
	if c.CrossedLabels > 0 {
		v.Controls = append(v.Controls, web.Fact{Label: "Crossed texts", Value: fmt.Sprintf("%d of %d labels keep their lift where their topic meets another", c.CrossedHeld, c.CrossedLabels)})
	}
	v.Layers = layerProfile(doc.Atlas)
	v.Figure = matrixFigure(doc)
	v.Ladder, v.Survival = ladder(doc.Atlas)
	v.Removals = removalsOf(doc.Atlas)
	if s := doc.Sealed; s != nil {
		for _, x := range s.Crossed {
			first, second, _ := strings.Cut(x.Topic, "+")
			v.Crossed = append(v.Crossed, web.Crossed{Pair: x.Topic, First: first, Second: second, Texts: x.Texts, AsFirst: x.First, AsSecond: x.Second})
		}
	}
	return v
}

// What pages call the ways of naming a topic.
var (
	methodNames  = map[string]string{"nearest centroid": "nearest centroid", "logistic": "logistic regression"}
	featureNames = map[string]string{"shares": "expert shares", "shares beyond tokens": "expert shares beyond tokens", "tokens": "tokens alone"}
)

// layerProfile is what is said of every layer, with the quartiles of its experts' specificity.
func layerProfile(a *atlas.Atlas) []web.AtlasLayer {
	labels := map[int]int{}
	for _, l := range a.Labels {
		labels[l.Layer]++
	}
	specificity := map[int][]float64{}
	for i := range a.Experts {
		if e := &a.Experts[i]; e.State != atlas.Insufficient {
			specificity[e.Layer] = append(specificity[e.Layer], e.Specificity)
		}
	}
	var out []web.AtlasLayer
	for _, l := range a.Layers {
		row := web.AtlasLayer{Layer: l.Layer, Labels: labels[l.Layer], Information: l.Information, InfoLow: l.InfoLow, InfoHigh: l.InfoHigh,
			Lexical: l.Lexical, Reliability: l.Reliability, Position: l.PositionPart}
		if v := specificity[l.Layer]; len(v) > 0 {
			slices.Sort(v)
			row.SpecificityLow, row.Specificity, row.SpecificityHigh = v[(len(v)-1)/4], v[(len(v)-1)/2], v[3*(len(v)-1)/4]
		}
		out = append(out, row)
	}
	return out
}

// figureExperts is how many experts of a topic the matrix figure draws.
const figureExperts = 5

// matrixFigure draws the strongest labelled experts of every topic against all topics, lexical ones last; nil without a label.
func matrixFigure(doc *opened) *web.MatrixFigure {
	out := &web.MatrixFigure{Atlas: doc.stored.ID, Topics: doc.Topics}
	drawn := map[[2]int]bool{}
	for c := range doc.Topics {
		var own []atlas.Label
		for _, l := range doc.Labels {
			if l.Topic == c {
				own = append(own, l)
			}
		}
		slices.SortStableFunc(own, func(x, y atlas.Label) int {
			if x.Lexical != y.Lexical {
				return map[bool]int{false: -1, true: 1}[x.Lexical]
			}
			return cmp.Compare(y.Low, x.Low)
		})
		for _, l := range own[:min(figureExperts, len(own))] {
			if at := [2]int{l.Layer, l.ID}; !drawn[at] {
				drawn[at] = true
				out.Left = append(out.Left, matrixRow(doc.Atlas, doc.Expert(l.Layer, l.ID)))
			}
		}
	}
	if len(out.Left) == 0 {
		return nil
	}
	return out
}

// ladder counts how many labels each control leaves, in all and by topic.
func ladder(a *atlas.Atlas) ([]web.LadderStep, []web.TopicSurvival) {
	if len(a.Labels) == 0 {
		return nil, nil
	}
	topics := make([]web.TopicSurvival, len(a.Topics))
	for c, name := range a.Topics {
		topics[c].Topic = name
	}
	var all web.TopicSurvival
	for _, l := range a.Labels {
		for _, t := range []*web.TopicSurvival{&all, &topics[l.Topic]} {
			count := func(n *int, yes bool) {
				if yes {
					*n++
				}
			}
			t.Labels++
			count(&t.Topical, !l.Lexical)
			count(&t.Order, l.Shuffled > a.Provenance.MinLift)
			count(&t.Crossed, l.Crossed > a.Provenance.MinLift)
			t.HasCrossed = t.HasCrossed || l.Crossed > 0
			count(&t.Sign, l.Confirmed != nil && l.Confirmed.Sign)
			count(&t.Held, l.Confirmed != nil && l.Confirmed.Held)
			count(&t.Tested, l.Causal != nil)
			count(&t.Matters, l.Causal != nil && l.Causal.Matters)
		}
	}
	c, n := a.Controls, all.Labels
	steps := []web.LadderStep{
		{Name: "Labels", Left: n, Of: n, Means: "the corrected test, the bound on the lift and the support hold on the open texts"},
		{Name: "Token identity", Left: all.Topical, Of: n, Means: "chosen more often in the topic at the same tokens"},
		{Name: "First positions left out", Left: int(math.Round(c.PositionSurvival * float64(n))), Of: n, Means: "the lift does not come from how texts begin"},
	}
	if c.ShuffledWords > 0 {
		steps = append(steps, web.LadderStep{Name: "Words shuffled", Left: all.Order, Of: n, Means: "the lift stays without word order: words alone can carry it"})
	}
	if c.CrossedLabels > 0 {
		steps = append(steps, web.LadderStep{Name: "Crossed texts", Left: c.CrossedHeld, Of: c.CrossedLabels, Means: "the lift stays where the topic meets another task, field or language"})
	}
	if a.Sealed != nil {
		steps = append(steps, web.LadderStep{Name: "Sealed texts, same sign", Left: all.Sign, Of: n, Means: "the same direction in texts that took no part"},
			web.LadderStep{Name: "Sealed texts, interval above 1", Left: all.Held, Of: n, Means: "confirmed by itself on few texts"})
	}
	if all.Tested > 0 {
		steps = append(steps, web.LadderStep{Name: "Removal", Left: all.Matters, Of: all.Tested, Means: "the topic loses more without it than without others of the same load"})
	}
	return steps, topics
}

// removalsOf lists what was removed: groups first, then single experts, the largest loss first.
func removalsOf(a *atlas.Atlas) []web.Removal {
	view := func(topic int, e atlas.Effect) web.Removal {
		return web.Removal{Topic: a.Topics[topic], Change: e.Change, Control: e.Control, Controls: e.Controls,
			Net: web.Interval{Value: e.Net, Low: e.Low, High: e.High}, Matters: e.Matters}
	}
	var out []web.Removal
	for _, g := range a.Groups {
		r := view(g.Topic, g.Effect)
		r.Experts = g.Experts
		out = append(out, r)
	}
	groups := len(out)
	for _, l := range a.Labels {
		if l.Causal != nil {
			r := view(l.Topic, *l.Causal)
			r.Layer, r.ID = l.Layer, l.ID
			out = append(out, r)
		}
	}
	for _, part := range [][]web.Removal{out[:groups], out[groups:]} {
		slices.SortStableFunc(part, func(x, y web.Removal) int { return cmp.Compare(x.Net.Value, y.Net.Value) })
	}
	return out
}

// provenance says what was measured with what.
func provenance(doc *opened) []web.Fact {
	p := doc.Provenance
	made := doc.Created.Format("2 January 2006, 15:04 MST")
	if doc.Kind == atlas.Imported {
		return []web.Fact{{Label: "Imported from", Value: p.Source}, {Label: "Model", Value: p.ModelName}, {Label: "Date", Value: made},
			{Label: "Experts", Value: fmt.Sprintf("%d of %d layers", len(doc.Experts), len(doc.Shape.Layers))}}
	}
	return []web.Fact{
		{Label: "Model", Value: fmt.Sprintf("%s (%s), hash %.12s", p.ModelName, p.Architecture, p.ModelHash)},
		{Label: "Numerics", Value: p.NumericsID},
		{Label: "Texts", Value: fmt.Sprintf("%s, hash %.12s: %d open, %d sealed, %d crossed; %d tokens", p.ProbeSet, p.ProbeSetHash, p.Open, p.SealedTexts, p.Crossed, p.Tokens)},
		{Label: "Statistics", Value: fmt.Sprintf("%d permutations, %d draws, %d shuffles, seed %d", p.Permutations, p.Draws, p.Shuffles, p.Seed)},
		{Label: "Made", Value: fmt.Sprintf("%s, in %.0f s", made, doc.Summary.Seconds)},
		{Label: "Identity", Value: fmt.Sprintf("%.16s", doc.ID)},
	}
}

func percentOf(part float64) string {
	if part > 0 && part < 0.0005 {
		return "< 0.1 %"
	}
	if v := 100 * part; v != 0 && v < 10 {
		return fmt.Sprintf("%.1f %%", v)
	}
	return fmt.Sprintf("%.0f %%", 100*part)
}
