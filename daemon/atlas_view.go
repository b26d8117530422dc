package daemon

import (
	"encoding/json"
	"fmt"
	"strconv"

	"covey/atlas"
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
	item.Measured, item.Experts, item.Specialists, item.Labels = true, summary.Experts, summary.Specialists, summary.Labels
	item.FalseLabelRate = summary.FalseLabelRate
	if d := summary.SealedDecoding; d != nil {
		item.Decoding, item.DecodingTexts, item.DecodingChance = &web.Interval{Value: d.Accuracy, Low: d.Low, High: d.High}, d.N, d.Chance
	}
	return item
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
			v.Decoding = append(v.Decoding, web.AtlasDecoding{Method: d.Method, Features: d.Features, Correct: d.Correct, N: d.N,
				Accuracy: web.Interval{Value: d.Accuracy, Low: d.Low, High: d.High}, Best: i == s.Best})
		}
		if s.Best >= 0 && s.Best < len(s.Decoding) {
			best := s.Decoding[s.Best]
			v.Confusion = &web.Confusion{Topics: doc.Topics, Counts: best.Confusion, Method: best.Method + " from " + best.Features, Chance: s.Chance}
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
	labels := map[int]int{}
	for _, l := range doc.Labels {
		labels[l.Layer]++
	}
	for _, l := range doc.Layers {
		v.Layers = append(v.Layers, web.AtlasLayer{Layer: l.Layer, Labels: labels[l.Layer], Information: l.Information, Lexical: l.Lexical,
			Reliability: l.Reliability, Position: l.PositionPart})
	}
	return v
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
	if v := 100 * part; v != 0 && v < 10 {
		return fmt.Sprintf("%.1f %%", v)
	}
	return fmt.Sprintf("%.0f %%", 100*part)
}
