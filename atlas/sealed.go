package atlas

// This file confirms on sealed texts: the labels one by one, and all shares together by naming the topic of a text that
// took no part in labelling, against chance and against what the bag of its tokens tells without any model.

import (
	"errors"
	"fmt"
	"slices"

	"covey/atlas/probes"
	"covey/atlas/stats"
)

// Features that topics are decoded from.
const (
	featureShares   = "shares"               // of every expert
	featureResidual = "shares beyond tokens" // what token identity leaves of them
	featureTokens   = "tokens"               // frequencies of token ids: no expert involved
)

func (m *measurement) sealed(observed map[string]*Observation) error {
	sealed := newSample(m.set, inSplit(m.set, probes.Sealed), m.info.Shape, observed, "")
	if len(sealed.seen) == 0 {
		return nil
	}
	topics := len(m.set.Topics)
	s := &Sealed{Texts: len(sealed.seen), Chance: round(1 / float64(topics))}
	crossed, err := m.decode(s, sealed, observed)
	if err != nil {
		return err
	}
	s.Crossed = crossed
	m.atlas.Sealed = s
	return m.confirm(s, sealed)
}

// decode names topics from each kind of feature, and the topics of crossed texts from shares. A feature that is the same in
// every open text is left out with a note: topics without a token in common, for one, leave no share beyond tokens.
func (m *measurement) decode(s *Sealed, sealed *sample, observed map[string]*Observation) ([]Crossing, error) {
	var crossed []probes.Probe
	var seen []*Observation
	for _, p := range m.set.Probes {
		if p.Crossed() {
			crossed = append(crossed, p)
			seen = append(seen, observed[p.ID])
		}
	}
	held := append(slices.Clone(sealed.seen), seen...)
	shape := m.info.Shape
	features := []struct {
		name        string
		train, test stats.Matrix
	}{
		{featureShares, m.open.shares, sharesOf(shape, held, 0)},
		{featureResidual, m.residual, m.residuals(m.tokens, held, false)},
		{featureTokens, m.tokens.bag(m.open.seen), m.tokens.bag(held)},
	}
	var crossings []Crossing
	for _, f := range features {
		named, err := stats.Decode(f.train, m.open.design.Topic, len(m.set.Topics), f.test)
		if errors.Is(err, stats.ErrAlike) {
			m.atlas.Provenance.Notes = append(m.atlas.Provenance.Notes, "topics are not named from "+f.name+": they are the same in every open text")
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("from %s: %w", f.name, err)
		}
		for _, method := range []struct {
			name  string
			named []int
		}{{"nearest centroid", named.Centroid}, {"logistic", named.Logistic}} {
			s.Decoding = append(s.Decoding, score(method.name, f.name, method.named[:len(sealed.seen)], sealed.design))
			if f.name == featureShares && method.name == "logistic" {
				s.Best = len(s.Decoding) - 1
				crossings = m.crossings(crossed, method.named[len(sealed.seen):])
			}
		}
	}
	return crossings, nil
}

// score counts what was named right.
func score(method, features string, named []int, d stats.Design) Decoding {
	out := Decoding{Method: method, Features: features, N: len(named), Confusion: make([][]int, d.Topics)}
	for c := range out.Confusion {
		out.Confusion[c] = make([]int, d.Topics)
	}
	for r, c := range named {
		out.Confusion[d.Topic[r]][c]++
		if c == d.Topic[r] {
			out.Correct++
		}
	}
	low, high := stats.Wilson(out.Correct, out.N)
	out.Accuracy, out.Low, out.High = round(float64(out.Correct)/float64(out.N)), round(low), round(high)
	return out
}

// crossings counts which of its two topics each crossed text was named after.
func (m *measurement) crossings(crossed []probes.Probe, named []int) []Crossing {
	var out []Crossing
	for i, p := range crossed {
		at := slices.IndexFunc(out, func(c Crossing) bool { return c.Topic == p.Topic })
		if at < 0 {
			at = len(out)
			out = append(out, Crossing{Topic: p.Topic})
		}
		c := &out[at]
		c.Texts++
		first, second := p.Parts()
		switch m.set.Topics[named[i]] {
		case first:
			c.First++
		case second:
			c.Second++
		}
	}
	return out
}

// bag is the frequency of every known token [texts, tokens].
func (x *tokenIndex) bag(seen []*Observation) stats.Matrix {
	out := stats.NewMatrix(len(seen), len(x.count))
	for r, ob := range seen {
		for _, t := range ob.Tokens {
			if i, ok := x.number[t]; ok {
				out.Row(r)[i] += 1 / float64(len(ob.Tokens))
			}
		}
	}
	return out
}

// confirm looks at every label on the sealed texts. It needs two clusters a topic; with fewer, labels stay unconfirmed.
func (m *measurement) confirm(s *Sealed, sealed *sample) error {
	if len(m.atlas.Labels) == 0 {
		return nil
	}
	clusters := make([]map[int]bool, len(m.set.Topics))
	for r, c := range sealed.design.Topic {
		if clusters[c] == nil {
			clusters[c] = map[int]bool{}
		}
		clusters[c][sealed.design.Cluster[r]] = true
	}
	if slices.ContainsFunc(clusters, func(k map[int]bool) bool { return len(k) < 2 }) {
		m.atlas.Provenance.Notes = append(m.atlas.Provenance.Notes, "labels are not confirmed: some topic has sealed texts of fewer than two clusters")
		return nil
	}
	var columns []int
	for _, l := range m.atlas.Labels {
		columns = append(columns, m.index(l.Layer, l.ID))
	}
	o := m.bootstrap()
	o.Seed = stream(m.options.Seed, seedSealed)
	intervals, err := stats.Bootstrap(sealed.shares.Columns(columns), sealed.design, o)
	if err != nil {
		return err
	}
	for i := range m.atlas.Labels {
		l := &m.atlas.Labels[i]
		at := i*len(m.set.Topics) + l.Topic
		l.Confirmed = &Confirmation{Lift: round(intervals.Lift[at]), Low: round(intervals.Low[at]), High: round(intervals.High[at])}
		l.Confirmed.Sign = l.Confirmed.Lift > 1
		l.Confirmed.Held = l.Confirmed.Low > 1
		if l.Confirmed.Sign {
			s.LabelsSigns++
		}
		if l.Confirmed.Held {
			s.LabelsHeld++
		}
	}
	return nil
}

// crossed looks at every label in the texts that cross its topic with another (the recipe in Chinese for labels of cooking
// and of chinese): their mean share over the mean over topics of the open texts. A label that follows the language keeps
// its lift when the field changes; one that needs both loses it.
func (m *measurement) crossed(observed map[string]*Observation) {
	shape, topics := m.info.Shape, len(m.set.Topics)
	sums := make(map[string][]float64, topics) // by topic, [layers*experts] shares
	texts := map[string]int{}
	for _, p := range m.set.Probes {
		if !p.Crossed() {
			continue
		}
		shares := sharesOf(shape, []*Observation{observed[p.ID]}, 0).Row(0)
		first, second := p.Parts()
		for _, topic := range []string{first, second} {
			if sums[topic] == nil {
				sums[topic] = make([]float64, len(shares))
			}
			for e, v := range shares {
				sums[topic][e] += v
			}
			texts[topic]++
		}
	}
	means := stats.Means(m.open.shares, m.open.design)
	for i := range m.atlas.Labels {
		l := &m.atlas.Labels[i]
		topic, e := m.set.Topics[l.Topic], m.index(l.Layer, l.ID)
		if texts[topic] == 0 {
			continue
		}
		average := 0.0
		for _, v := range means[e*topics : (e+1)*topics] {
			average += v / float64(topics)
		}
		l.Crossed = round(sums[topic][e] / float64(texts[topic]) / average)
		m.atlas.Controls.CrossedLabels++
		if l.Crossed > m.options.MinLift {
			m.atlas.Controls.CrossedHeld++
		}
	}
}
