package atlas

// This file is the token-identity control: is an expert's share high in a topic because of the topic, or because the
// topic's texts contain tokens that wake it anywhere?
//
// For a text, the expected selections of an expert are the sum over its tokens of the rate at which that token selected
// the expert in all other texts of all topics (cross-fitted: the text itself is left out). Only positions whose token
// occurs in at least two topics, and in another text, are compared; elsewhere identity and topic cannot be told apart.
// The residual share is (observed - expected) / compared positions. If selection depends on the token alone, its mean is
// 0 in every topic whatever tokens the topic uses, because each rate is an unbiased estimate from other texts; and the
// sum of residuals over a topic is the Mantel-Haenszel numerator, sum over tokens of n_c n_r / N (rate_c - rate_r). A
// label survives if its residual exceeds the other topics' in a permutation test (prompts as units, largest statistic
// over the labels); the others are marked lexical. The reported Within is the Mantel-Haenszel rate ratio, topic against
// the rest, over the compared tokens.

import (
	"runtime"
	"sync"

	"covey/atlas/stats"
)

// tokenIndex numbers the tokens of the open texts and knows which occur in several topics.
type tokenIndex struct {
	number map[int32]int
	count  []int // occurrences
	topics []int // number of topics it occurs in
}

func newTokenIndex(s *sample) *tokenIndex {
	x := &tokenIndex{number: map[int32]int{}}
	var in []map[int]bool
	for r, ob := range s.seen {
		for _, t := range ob.Tokens {
			i, ok := x.number[t]
			if !ok {
				i = len(x.count)
				x.number[t] = i
				x.count = append(x.count, 0)
				in = append(in, map[int]bool{})
			}
			x.count[i]++
			in[i][s.design.Topic[r]] = true
		}
	}
	for _, topics := range in {
		x.topics = append(x.topics, len(topics))
	}
	return x
}

// common tells whether token number i occurs in at least two topics.
func (x *tokenIndex) common(i int) bool { return x.topics[i] >= 2 }

// tally is the tokens of one text: distinct token numbers with the positions where each stands.
type tally struct {
	tokens []int
	places [][]int
}

func (x *tokenIndex) tally(tokens []int32) tally {
	var out tally
	at := map[int]int{}
	for p, t := range tokens {
		i, ok := x.number[t]
		if !ok {
			continue // seen in no open text
		}
		j, ok := at[i]
		if !ok {
			j = len(out.tokens)
			at[i] = j
			out.tokens = append(out.tokens, i)
			out.places = append(out.places, nil)
		}
		out.places[j] = append(out.places[j], p)
	}
	return out
}

// residuals returns the residual shares [texts, experts] of the texts in seen, whose rates come from the open texts.
// inside says that seen is the open texts themselves, each of which is then left out of its own rates.
func (m *measurement) residuals(x *tokenIndex, seen []*Observation, inside bool) stats.Matrix {
	s := m.info.Shape
	out := stats.NewMatrix(len(seen), len(s.Layers)*s.Experts)
	open := make([]tally, len(m.open.seen))
	for r, ob := range m.open.seen {
		open[r] = x.tally(ob.Tokens)
	}
	texts := open
	if !inside {
		texts = make([]tally, len(seen))
		for r, ob := range seen {
			texts[r] = x.tally(ob.Tokens)
		}
	}
	m.eachLayer(func(layer int) {
		// selected [tokens, experts] counts selections in the open texts.
		selected := make([]int32, len(x.count)*s.Experts)
		for r, ob := range m.open.seen {
			m.add(selected, layer, ob, open[r])
		}
		own := make([]int32, s.Experts)
		for r, ob := range seen {
			row := out.Row(r)[layer*s.Experts : (layer+1)*s.Experts]
			compared := 0
			for j, token := range texts[r].tokens {
				if !x.common(token) {
					continue
				}
				places := texts[r].places[j]
				clear(own)
				for _, p := range places {
					for _, id := range m.chosen(layer, ob, p) {
						own[id]++
					}
				}
				others, n := x.count[token], float64(len(places))
				if inside {
					others -= len(places)
				}
				if others == 0 {
					continue
				}
				compared += len(places)
				all := selected[token*s.Experts : (token+1)*s.Experts]
				for e := range row {
					rest := all[e]
					if inside {
						rest -= own[e]
					}
					row[e] += float64(own[e]) - n*float64(rest)/float64(others)
				}
			}
			if compared > 0 {
				for e := range row {
					row[e] /= float64(compared)
				}
			}
		}
	})
	return out
}

// chosen is the experts of a position in a layer.
func (m *measurement) chosen(layer int, ob *Observation, position int) []uint16 {
	k := m.info.Shape.TopK
	at := (position*len(m.info.Shape.Layers) + layer) * k
	return ob.IDs[at : at+k]
}

// add counts a text's selections by token into selected [tokens, experts].
func (m *measurement) add(selected []int32, layer int, ob *Observation, t tally) {
	experts := m.info.Shape.Experts
	for j, token := range t.tokens {
		for _, p := range t.places[j] {
			for _, id := range m.chosen(layer, ob, p) {
				selected[token*experts+int(id)]++
			}
		}
	}
}

// eachLayer runs work for every layer on the goroutines of the statistics. Layers do not touch each other's columns.
func (m *measurement) eachLayer(work func(layer int)) {
	threads := m.options.Threads
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	next := make(chan int)
	var group sync.WaitGroup
	for range min(threads, len(m.info.Shape.Layers)) {
		group.Go(func() {
			for layer := range next {
				work(layer)
			}
		})
	}
	for layer := range m.info.Shape.Layers {
		next <- layer
	}
	close(next)
	group.Wait()
}

// lexical marks the labels that token identity explains, and says how much of each layer's information it explains.
func (m *measurement) lexical() error {
	x := newTokenIndex(m.open)
	common, all := 0, 0
	for i, n := range x.count {
		all += n
		if x.common(i) {
			common += n
		}
	}
	m.atlas.Controls.CommonTokens = round(float64(common) / float64(all))
	m.tokens = x
	m.residual = m.residuals(x, m.open.seen, true)
	if err := m.lexicalLabels(x); err != nil {
		return err
	}
	return m.lexicalParts()
}

func (m *measurement) lexicalLabels(x *tokenIndex) error {
	if len(m.atlas.Labels) == 0 {
		return nil
	}
	topics := m.open.design.Topics
	var columns []int // of labelled experts
	for _, l := range m.atlas.Labels {
		if e := m.index(l.Layer, l.ID); len(columns) == 0 || columns[len(columns)-1] != e {
			columns = append(columns, e)
		}
	}
	family := make([]bool, len(columns)*topics)
	pair := make([]int, len(m.atlas.Labels))
	column := -1
	for i, l := range m.atlas.Labels {
		if e := m.index(l.Layer, l.ID); column < 0 || columns[column] != e {
			column++
		}
		pair[i] = column*topics + l.Topic
		family[pair[i]] = true
	}
	tests, err := stats.Permutation(m.residual.Columns(columns), m.open.design, stats.TestOptions{
		Statistic: stats.Difference, Permutations: m.options.Permutations, Seed: stream(m.options.Seed, seedLexical),
		Threads: m.options.Threads, Family: family,
	})
	if err != nil {
		return err
	}
	within := m.within(x)
	for i := range m.atlas.Labels {
		l := &m.atlas.Labels[i]
		l.WithinP = round(tests.P[pair[i]])
		l.Within = round(within[i])
		l.Lexical = tests.P[pair[i]] > m.options.Alpha
		if l.Lexical {
			m.atlas.Controls.LexicalLabels++
		}
	}
	return nil
}

// within is the Mantel-Haenszel rate ratio of each label: sum a n_r/N over sum b n_c/N, where a of the topic's n_c and b
// of the rest's n_r occurrences of a token selected the expert. 0 when the rest never did.
func (m *measurement) within(x *tokenIndex) []float64 {
	type key struct{ layer, id int }
	at := map[key][]int{}
	for i, l := range m.atlas.Labels {
		k := key{m.index(l.Layer, l.ID) / m.info.Shape.Experts, l.ID}
		at[k] = append(at[k], i)
	}
	topics := m.open.design.Topics
	count := make([]int32, len(x.count)*topics) // [tokens, topics]
	for r, ob := range m.open.seen {
		for _, t := range ob.Tokens {
			count[x.number[t]*topics+m.open.design.Topic[r]]++
		}
	}
	out := make([]float64, len(m.atlas.Labels))
	m.eachLayer(func(layer int) {
		for id := range m.info.Shape.Experts {
			labels := at[key{layer, id}]
			if labels == nil {
				continue
			}
			selected := make([]int32, len(x.count)*topics)
			for r, ob := range m.open.seen {
				for p, t := range ob.Tokens {
					for _, e := range m.chosen(layer, ob, p) {
						if int(e) == id {
							selected[x.number[t]*topics+m.open.design.Topic[r]]++
						}
					}
				}
			}
			for _, i := range labels {
				c := m.atlas.Labels[i].Topic
				var top, bottom float64
				for token, n := range x.count {
					if !x.common(token) {
						continue
					}
					all := 0.0
					for _, k := range selected[token*topics : (token+1)*topics] {
						all += float64(k)
					}
					a, own := float64(selected[token*topics+c]), float64(count[token*topics+c])
					top += a * (float64(n) - own) / float64(n)
					bottom += (all - a) * own / float64(n)
				}
				if bottom > 0 {
					out[i] = top / bottom
				}
			}
		}
	})
	return out
}

// lexicalParts is 1 - (information of residual shares) / (information of shares), by layer: both less their mean under
// permuted labels. A residual becomes a share again on the expert's own level.
func (m *measurement) lexicalParts() error {
	topics, experts := m.open.design.Topics, m.open.shares.Cols
	level := make([]float64, experts)
	for r := range m.open.shares.Rows {
		for e, v := range m.open.shares.Row(r) {
			level[e] += v / float64(m.open.shares.Rows)
		}
	}
	scratch := func(e int, means []float64) float64 {
		shares := make([]float64, len(means))
		for c, v := range means {
			shares[c] = max(0, level[e]+v)
		}
		return stats.Information(shares, float64(m.info.Shape.TopK))
	}
	null, err := stats.PermutedMean(m.residual, m.open.design, nullDraws, stream(m.options.Seed, seedNull), m.options.Threads, scratch)
	if err != nil {
		return err
	}
	means := stats.Means(m.residual, m.open.design)
	survives := make([]float64, len(m.atlas.Layers))
	for e := range experts {
		survives[e/m.info.Shape.Experts] += scratch(e, means[e*topics:(e+1)*topics]) - null[0][e]
	}
	for j := range m.atlas.Layers {
		l := &m.atlas.Layers[j]
		if l.Information > 0 {
			l.Lexical = round(min(1, max(0, 1-survives[j]/l.Information)))
		}
	}
	return nil
}
