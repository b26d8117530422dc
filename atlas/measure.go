package atlas

// This file turns observations into an Atlas: estimates, intervals, tests, labels and the controls that go with them.
// The token-identity control is in lexical.go, the confirmation on sealed texts in sealed.go.

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"covey/atlas/probes"
	"covey/atlas/stats"
	"covey/engine"
	"covey/engine/route"
)

// Support below which nothing is said about an expert: fewer selections or fewer texts than these.
const (
	minSelections = 30
	minPrompts    = 10
)

// nullDraws is the number of permutations behind the means that are taken off specificity and information.
const nullDraws = 200

// bundledModel is the model that ships with Covey.
const bundledModel = "smollm2-moe-32x"

// early is the number of first positions left out by the position control.
const early = 32

// Streams of the seed: every use of chance has its own.
const (
	seedPermutation = iota
	seedBootstrap
	seedShuffles
	seedNull
	seedHalves
	seedLexical
	seedSealed
	seedAblation
	seedLayers
)

// normal95 is how many standard errors a normal 95 % interval reaches to either side.
const normal95 = 1.959964

// stream derives the seed of one use.
func stream(seed uint64, use int) uint64 { return seed*1_000_003 + uint64(use) }

// sample is the texts of one split with their observations, as rows.
type sample struct {
	probes []probes.Probe
	seen   []*Observation
	design stats.Design
	shares stats.Matrix // [texts, layers*experts] selections / tokens
}

// inSplit is the family texts of a split.
func inSplit(set *probes.Set, split string) []probes.Probe {
	var out []probes.Probe
	for _, p := range set.Probes {
		if p.Split == split && !p.Crossed() {
			out = append(out, p)
		}
	}
	return out
}

// newSample collects texts of the family; the result of each is stored under its id and suffix.
func newSample(set *probes.Set, texts []probes.Probe, s route.Shape, observed map[string]*Observation, suffix string) *sample {
	out := &sample{design: stats.Design{Topics: len(set.Topics)}}
	topics, clusters := map[string]int{}, map[string]int{}
	for i, t := range set.Topics {
		topics[t] = i
	}
	for _, p := range texts {
		if _, ok := clusters[p.Cluster]; !ok {
			clusters[p.Cluster] = len(clusters)
		}
		ob := observed[p.ID+suffix]
		out.probes = append(out.probes, p)
		out.seen = append(out.seen, ob)
		out.design.Topic = append(out.design.Topic, topics[p.Topic])
		out.design.Cluster = append(out.design.Cluster, clusters[p.Cluster])
		out.design.Length = append(out.design.Length, len(ob.Tokens))
	}
	out.shares = sharesOf(s, out.seen, 0)
	return out
}

// sharesOf is selections over tokens of each observation, positions below from left out (a text without others gets 0).
func sharesOf(s route.Shape, seen []*Observation, from int) stats.Matrix {
	x := stats.NewMatrix(len(seen), len(s.Layers)*s.Experts)
	for r, ob := range seen {
		n := len(ob.Tokens) - from
		if n <= 0 {
			continue
		}
		for e, k := range ob.selections(s, from) {
			x.Row(r)[e] = float64(k) / float64(n)
		}
	}
	return x
}

// measurement is the work in hand.
type measurement struct {
	info    engine.ModelInfo
	set     *probes.Set
	options Options
	open    *sample
	atlas   *Atlas
	tests   *stats.Tests
	lifts   *stats.Intervals
	support []float64 // [experts, topics]
	family  []bool    // [experts, topics]
	pseudo  float64   // half a selection a topic, as a share

	tokens   *tokenIndex  // of the open texts; set by lexical
	residual stats.Matrix // [open texts, experts] shares beyond token identity; set by lexical
}

// steps of measure, for progress.
const measureSteps = 8

func measure(ctx context.Context, info engine.ModelInfo, set *probes.Set, observed map[string]*Observation, o Options, report func(Phase, int, int, time.Duration)) (*Atlas, error) {
	m := &measurement{info: info, set: set, options: o, open: newSample(set, inSplit(set, probes.Open), info.Shape, observed, "")}
	m.start(observed)
	work := []func() error{
		m.estimate,
		m.test,
		m.intervals,
		m.nulls,
		func() error { m.label(); return nil },
		m.shuffled,
		m.lexical,
		func() error { m.context(observed); m.crossed(observed); return m.sealed(observed) },
	}
	for i, step := range work {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		report(PhaseMeasure, i, measureSteps, 0)
		if err := step(); err != nil {
			return nil, fmt.Errorf("atlas: measuring: %w", err)
		}
	}
	report(PhaseMeasure, measureSteps, measureSteps, 0)
	m.finish()
	return m.atlas, nil
}

// start lays out the document.
func (m *measurement) start(observed map[string]*Observation) {
	o, info := m.options, m.info
	name := o.Name
	if name == "" {
		name = info.Name + ", " + m.set.Name
	}
	a := &Atlas{
		Format: Format, Version: Version, Name: name, Kind: Measured, Shape: Shape(info.Shape), Topics: m.set.Topics,
		Provenance: Provenance{
			ModelID: info.ID, ModelName: info.Name, Architecture: info.Architecture, ModelHash: info.Hash,
			NumericsID: info.NumericsID, Numerics: info.Numerics, ProbeSet: m.set.Name, ProbeSetHash: m.set.Hash,
			Open: m.set.Count(probes.Open), SealedTexts: m.set.Count(probes.Sealed), Phase: "prefill",
			Seed: o.Seed, Permutations: o.Permutations, Draws: o.Draws, Shuffles: o.Shuffles, Alpha: o.Alpha, MinLift: o.MinLift, MinSupport: o.MinSupport,
		},
	}
	if info.ID == bundledModel && m.set.Name == probes.BuiltinName {
		a.Provenance.Notes = append(a.Provenance.Notes, "this model was trained on corpora of the same 14 topics: its atlas partly shows what it was taught")
	}
	for _, p := range m.set.Probes {
		a.Provenance.Tokens += len(observed[p.ID].Tokens)
		if p.Crossed() {
			a.Provenance.Crossed++
		}
	}
	for _, layer := range info.Shape.Layers {
		a.Layers = append(a.Layers, Layer{Layer: layer})
		for id := range info.Shape.Experts {
			a.Experts = append(a.Experts, Expert{Layer: layer, ID: id})
		}
	}
	m.atlas = a
}

// estimate fills counts, shares and mass, and decides which experts have enough support to be in the family.
func (m *measurement) estimate() error {
	topics, experts := m.open.design.Topics, m.open.shares.Cols
	share := stats.Means(m.open.shares, m.open.design)
	m.support = stats.Support(m.open.shares, m.open.design)
	counts := make([]int64, experts*topics)
	mass := stats.NewMatrix(len(m.open.seen), experts)
	prompts := make([]int, experts)
	tokens := 0
	for r, ob := range m.open.seen {
		tokens += len(ob.Tokens)
		for e, k := range ob.selections(m.info.Shape, 0) {
			counts[e*topics+m.open.design.Topic[r]] += k
			if k > 0 {
				prompts[e]++
			}
			mass.Row(r)[e] = float64(ob.Mass[e]) / float64(len(ob.Tokens))
		}
	}
	weight := stats.Means(mass, m.open.design)
	m.pseudo = 0.5 * float64(topics) / float64(tokens)
	m.family = make([]bool, experts*topics)
	for i := range m.atlas.Experts {
		e := &m.atlas.Experts[i]
		at := i * topics
		e.Counts, e.Prompts = counts[at:at+topics], prompts[i]
		e.Share, e.Mass, e.Support = rounded(share[at:at+topics]), rounded(weight[at:at+topics]), rounded(m.support[at:at+topics])
		e.State = Generalist
		if e.Selections() < minSelections || e.Prompts < minPrompts {
			e.State = Insufficient
			continue
		}
		for c := range topics {
			m.family[at+c] = true
		}
	}
	return nil
}

func (m *measurement) test() (err error) {
	m.tests, err = stats.Permutation(m.open.shares, m.open.design, stats.TestOptions{
		Statistic: stats.LogRatio, Permutations: m.options.Permutations, Seed: stream(m.options.Seed, seedPermutation),
		Threads: m.options.Threads, Family: m.family, Group: m.layerOf(),
	})
	return err
}

// layerOf is the place of each expert's layer in the shape.
func (m *measurement) layerOf() []int {
	out := make([]int, m.open.shares.Cols)
	for e := range out {
		out[e] = e / m.info.Shape.Experts
	}
	return out
}

func (m *measurement) bootstrap() stats.BootstrapOptions {
	return stats.BootstrapOptions{
		Draws: m.options.Draws, Seed: stream(m.options.Seed, seedBootstrap), Threads: m.options.Threads, Pseudo: m.pseudo,
	}
}

func (m *measurement) intervals() (err error) {
	if m.lifts, err = stats.Bootstrap(m.open.shares, m.open.design, m.bootstrap()); err != nil {
		return err
	}
	topics := m.open.design.Topics
	for i := range m.atlas.Experts {
		e := &m.atlas.Experts[i]
		if e.State == Insufficient {
			continue
		}
		at := i * topics
		e.Estimate = rounded(m.lifts.Lift[at : at+topics])
		e.Low, e.High = rounded(m.lifts.Low[at:at+topics]), rounded(m.lifts.High[at:at+topics])
		e.P, e.Q = rounded(m.tests.P[at:at+topics]), rounded(m.tests.Q[at:at+topics])
	}
	return nil
}

// nulls fills specificity and information, less what they show under permuted labels.
func (m *measurement) nulls() error {
	k := float64(m.info.Shape.TopK)
	functionals := []stats.Functional{
		func(_ int, means []float64) float64 { return stats.Specificity(means) },
		func(_ int, means []float64) float64 { return stats.Information(means, k) },
	}
	null, err := stats.PermutedMean(m.open.shares, m.open.design, nullDraws, stream(m.options.Seed, seedNull), m.options.Threads, functionals...)
	if err != nil {
		return err
	}
	topics := m.open.design.Topics
	means := stats.Means(m.open.shares, m.open.design)
	for i := range m.atlas.Experts {
		e, own := &m.atlas.Experts[i], means[i*topics:(i+1)*topics]
		if e.State != Insufficient {
			e.Specificity = round(functionals[0](i, own) - null[0][i])
		}
		m.atlas.Layers[i/m.info.Shape.Experts].Information += functionals[1](i, own) - null[1][i]
	}
	errs, err := stats.Deviations(m.open.shares, m.open.design, nullDraws, stream(m.options.Seed, seedLayers), m.options.Threads, m.layerOf(), functionals[1])
	if err != nil {
		return err
	}
	for j := range m.atlas.Layers {
		l := &m.atlas.Layers[j]
		l.InfoLow, l.InfoHigh = round(l.Information-normal95*errs[0][j]), round(l.Information+normal95*errs[0][j])
	}
	return nil
}

// label applies the rule: corrected test, lower bound of lift, support.
func (m *measurement) label() {
	topics := m.open.design.Topics
	for i := range m.atlas.Experts {
		e := &m.atlas.Experts[i]
		for c := range topics {
			at := i*topics + c
			if !m.family[at] || m.tests.P[at] > m.options.Alpha || m.lifts.Low[at] <= m.options.MinLift || m.support[at] < m.options.MinSupport {
				continue
			}
			e.State = Specialist
			m.atlas.Labels = append(m.atlas.Labels, Label{
				Layer: e.Layer, ID: e.ID, Topic: c, Lift: round(m.lifts.Lift[at]), Low: round(m.lifts.Low[at]), High: round(m.lifts.High[at]),
				P: round(m.tests.P[at]), Q: round(m.tests.Q[at]), Support: round(m.support[at]),
			})
		}
	}
}

// shuffled is control 1: what the rule labels when there is nothing to label.
func (m *measurement) shuffled() error {
	labels, err := stats.ShuffledLabels(m.open.shares, m.open.design, m.options.Shuffles, stream(m.options.Seed, seedShuffles), m.options.Threads, m.family, stats.Rule{
		Critical: m.tests.Critical(m.options.Alpha), MinLift: m.options.MinLift, MinSupport: m.options.MinSupport, Bootstrap: m.bootstrap(),
	})
	if err != nil {
		return err
	}
	sum := 0
	for _, n := range labels {
		sum += n
	}
	c := &m.atlas.Controls
	c.Shuffles = m.options.Shuffles
	c.ShuffledLabels = round(float64(sum) / float64(len(labels)))
	switch found := len(m.atlas.Labels); {
	case found > 0:
		c.FalseLabelRate = round(math.Min(1, c.ShuffledLabels/float64(found)))
	case sum > 0:
		c.FalseLabelRate = 1
	}
	return nil
}

// context fills the controls of position, length, word order and reliability.
func (m *measurement) context(observed map[string]*Observation) {
	s, topics := m.info.Shape, m.open.design.Topics
	late := stats.Means(sharesOf(s, m.open.seen, early), m.open.design)
	var loose []float64
	if texts := loosened(m.set, m.options); len(texts) > 0 {
		shuffled := newSample(m.set, texts, s, observed, wordShuffled)
		loose = stats.Means(shuffled.shares, shuffled.design)
		m.atlas.Controls.ShuffledWords = len(texts)
	}
	survives := func(means []float64, l *Label) float64 {
		e := m.index(l.Layer, l.ID)
		return liftOf(means[e*topics:(e+1)*topics], l.Topic)
	}
	var lateHeld, looseHeld int
	for i := range m.atlas.Labels {
		l := &m.atlas.Labels[i]
		if survives(late, l) > m.options.MinLift {
			lateHeld++
		}
		if loose != nil {
			l.Shuffled = round(survives(loose, l))
			if l.Shuffled > m.options.MinLift {
				looseHeld++
			}
		}
	}
	if n := len(m.atlas.Labels); n > 0 {
		m.atlas.Controls.PositionSurvival = round(float64(lateHeld) / float64(n))
		m.atlas.Controls.ShuffleSurvival = round(float64(looseHeld) / float64(n))
	}
	reliability := m.reliability()
	length := m.lengthParts()
	position := m.positionParts()
	for j := range m.atlas.Layers {
		l := &m.atlas.Layers[j]
		l.Reliability, l.LengthPart, l.PositionPart = round(reliability[j]), round(length[j]), round(position[j])
	}
}

// liftOf is the lift of topic c in means [topics].
func liftOf(means []float64, c int) float64 {
	sum := 0.0
	for _, v := range means {
		sum += v
	}
	if sum == 0 {
		return 0
	}
	return means[c] / sum * float64(len(means))
}

// halves is the number of splits that reliability averages over.
const halves = 20

// reliability is the correlation of lifts between halves of the texts, by layer, corrected to full length. Halves are
// made of whole clusters within topics: rows of one text, or texts of one source, on both sides would inflate it.
func (m *measurement) reliability() []float64 {
	topics, experts := m.open.design.Topics, m.info.Shape.Experts
	out := make([]float64, len(m.info.Shape.Layers))
	var clusters [][]int // by topic
	for c := range topics {
		var own []int
		seen := map[int]bool{}
		for r, t := range m.open.design.Topic {
			if k := m.open.design.Cluster[r]; t == c && !seen[k] {
				seen[k] = true
				own = append(own, k)
			}
		}
		clusters = append(clusters, own)
	}
	for split := range halves {
		random := rand.New(rand.NewPCG(stream(m.options.Seed, seedHalves), uint64(split)))
		type place struct{ topic, cluster int }
		first := map[place]bool{}
		for c, own := range clusters {
			order := random.Perm(len(own))
			for _, i := range order[:len(order)/2] {
				first[place{c, own[i]}] = true
			}
		}
		var a, b []int
		for r, t := range m.open.design.Topic {
			if first[place{t, m.open.design.Cluster[r]}] {
				a = append(a, r)
			} else {
				b = append(b, r)
			}
		}
		lifts := func(rows []int) []float64 {
			means := stats.Means(m.open.shares.Select(rows), m.open.design.Select(rows))
			out := make([]float64, len(means))
			for i := range out {
				e := i / topics
				out[i] = liftOf(means[e*topics:(e+1)*topics], i%topics)
			}
			return out
		}
		x, y := lifts(a), lifts(b)
		for j := range out {
			var xs, ys []float64
			for e := j * experts; e < (j+1)*experts; e++ {
				if m.atlas.Experts[e].State != Insufficient {
					xs = append(xs, x[e*topics:(e+1)*topics]...)
					ys = append(ys, y[e*topics:(e+1)*topics]...)
				}
			}
			if len(xs) > 0 {
				out[j] += stats.SpearmanBrown(stats.Pearson(xs, ys)) / halves
			}
		}
	}
	return out
}

// lengthParts is, by layer, the part of the variance of shares within topics that the logarithm of text length explains.
func (m *measurement) lengthParts() []float64 {
	d, experts := m.open.design, m.info.Shape.Experts
	length := stats.NewMatrix(len(d.Length), 1)
	for r, n := range d.Length {
		length.Data[r] = math.Log(float64(n))
	}
	centre(length, d)
	x := stats.NewMatrix(m.open.shares.Rows, m.open.shares.Cols)
	copy(x.Data, m.open.shares.Data)
	centre(x, d)
	variance, squares, products := 0.0, make([]float64, x.Cols), make([]float64, x.Cols)
	for r := range x.Rows {
		l := length.Data[r]
		variance += l * l
		for e, v := range x.Row(r) {
			squares[e] += v * v
			products[e] += l * v
		}
	}
	out := make([]float64, len(m.info.Shape.Layers))
	if variance == 0 {
		return out
	}
	for j := range out {
		explained, all := 0.0, 0.0
		for e := j * experts; e < (j+1)*experts; e++ {
			explained += products[e] * products[e] / variance
			all += squares[e]
		}
		if all > 0 {
			out[j] = explained / all
		}
	}
	return out
}

// centre takes each topic's mean off its rows.
func centre(x stats.Matrix, d stats.Design) {
	means := stats.Means(x, d)
	for r, c := range d.Topic {
		for e := range x.Cols {
			x.Row(r)[e] -= means[e*d.Topics+c]
		}
	}
}

// positionParts is I(expert; quarter of the text) in bits, by layer.
func (m *measurement) positionParts() []float64 {
	const quarters = 4
	s := m.info.Shape
	slots := s.Slots()
	share := stats.NewMatrix(len(s.Layers)*s.Experts, quarters)
	for _, ob := range m.open.seen {
		n := len(ob.Tokens)
		if n < quarters {
			continue
		}
		var in [quarters]float64
		for t := range n {
			in[t*quarters/n]++
		}
		for i, id := range ob.IDs {
			q := i / slots * quarters / n
			share.Row(i%slots/s.TopK*s.Experts + int(id))[q] += 1 / in[q] / float64(len(m.open.seen))
		}
	}
	out := make([]float64, len(s.Layers))
	for e := range share.Rows {
		out[e/s.Experts] += stats.Information(share.Row(e), float64(s.TopK))
	}
	return out
}

// index is the place of an expert in Atlas.Experts.
func (m *measurement) index(layer, id int) int {
	for j, l := range m.info.Shape.Layers {
		if l == layer {
			return j*m.info.Shape.Experts + id
		}
	}
	return -1
}

// finish sums up and seals the document with its id.
func (m *measurement) finish() {
	a := m.atlas
	for j := range a.Layers {
		a.Layers[j].Information = round(a.Layers[j].Information)
	}
	a.Summary = Summary{Labels: len(a.Labels), FalseLabelRate: a.Controls.FalseLabelRate}
	for i := range a.Experts {
		switch a.Experts[i].State {
		case Specialist:
			a.Summary.Specialists++
			a.Summary.Experts++
		case Generalist:
			a.Summary.Experts++
		}
	}
	if s := a.Sealed; s != nil && len(s.Decoding) > 0 {
		d := s.Decoding[s.Best]
		a.Summary.SealedDecoding = &SealedDecoding{Accuracy: d.Accuracy, Low: d.Low, High: d.High, N: d.N, Chance: s.Chance}
	}
	a.ID = a.digest()
}

// round keeps six significant digits: more would be noise in the file, and less would show in a picture.
func round(v float64) float64 {
	out, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	if err != nil {
		panic("atlas: a formatted number does not parse: " + err.Error())
	}
	return out
}

func rounded(v []float64) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = round(x)
	}
	return out
}
