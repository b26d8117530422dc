package atlas

// This file is the token-identity control: is an expert's share high in a topic because of the topic, or because the
// topic's texts contain tokens that wake it anywhere? Identity and topic can be told apart only where a token occurs in at
// least two topics; other positions take no part, and how many those are is reported.
//
// Labels. Within one token id, the topic's n_c occurrences and the n_r others' are compared: Mantel and Haenszel's sum over
// tokens of n_c n_r / N (rate_c - rate_r). It is a sum of one score for each text: over its tokens, n_r/N (in the topic)
// or -n_c/N (elsewhere) times (selections - occurrences x pooled rate), times sqrt(N/(N-occurrences)), which turns the
// squared scores of one token's texts into the hypergeometric variance. If selection depends on the token alone, scores
// have mean 0 whatever tokens the topic uses; texts are the units, and their signs are flipped to see how large the sum
// becomes by chance, largest over all labels. A label that does not exceed that is marked lexical. The reported Within is
// the Mantel-Haenszel rate ratio, topic against the rest.
//
// Layers and decoding. The expected selections of a text are the sum over its tokens of the rate at which that token
// selected the expert in all other texts of all topics (cross-fitted: the text itself is left out); the residual share is
// (observed - expected) / compared positions. A topic that holds most occurrences of a token sets that token's rate, so
// residuals understate what topics do: the part of the information that tokens explain is an upper bound.

import (
	"math"
	"runtime"
	"slices"
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
	scores, within := m.withinTokens(x)
	_, p, err := stats.SignFlips(scores, m.open.design.Cluster, m.options.Permutations, stream(m.options.Seed, seedLexical))
	if err != nil {
		return err
	}
	for i := range m.atlas.Labels {
		l := &m.atlas.Labels[i]
		l.WithinP, l.Within = round(p[i]), round(within[i])
		l.Lexical = p[i] > m.options.Alpha
		if l.Lexical {
			m.atlas.Controls.LexicalLabels++
		}
	}
	return nil
}

// withinTokens returns the score of every text [texts, labels] and the Mantel-Haenszel rate ratio of every label: sum of
// a n_r/N over sum of b n_c/N, where a of the topic's n_c and b of the rest's n_r occurrences of a token selected the
// expert; 0 when the rest never did.
func (m *measurement) withinTokens(x *tokenIndex) (scores stats.Matrix, ratios []float64) {
	topics, texts := m.open.design.Topics, len(m.open.seen)
	scores, ratios = stats.NewMatrix(texts, len(m.atlas.Labels)), make([]float64, len(m.atlas.Labels))
	byLayer := make([][]int, len(m.info.Shape.Layers))
	for i, l := range m.atlas.Labels {
		layer := m.index(l.Layer, l.ID) / m.info.Shape.Experts
		byLayer[layer] = append(byLayer[layer], i)
	}
	tallies := make([]tally, texts)
	count := make([]float64, len(x.count)*topics) // [tokens, topics]
	for r, ob := range m.open.seen {
		tallies[r] = x.tally(ob.Tokens)
		for _, t := range ob.Tokens {
			count[x.number[t]*topics+m.open.design.Topic[r]]++
		}
	}
	m.eachLayer(func(layer int) {
		for _, i := range byLayer[layer] {
			m.withinLabel(x, i, layer, tallies, count, scores, ratios)
		}
	})
	return scores, ratios
}

// withinLabel fills one column of scores and one ratio.
func (m *measurement) withinLabel(x *tokenIndex, i, layer int, tallies []tally, count []float64, scores stats.Matrix, ratios []float64) {
	topics, c, id := m.open.design.Topics, m.atlas.Labels[i].Topic, uint16(m.atlas.Labels[i].ID)
	selected := make([][]float64, len(tallies)) // [texts][distinct tokens] selections
	inside, all := make([]float64, len(x.count)), make([]float64, len(x.count))
	for r, ob := range m.open.seen {
		selected[r] = make([]float64, len(tallies[r].tokens))
		for j, token := range tallies[r].tokens {
			for _, p := range tallies[r].places[j] {
				if slices.Contains(m.chosen(layer, ob, p), id) {
					selected[r][j]++
				}
			}
			all[token] += selected[r][j]
			if m.open.design.Topic[r] == c {
				inside[token] += selected[r][j]
			}
		}
	}
	top, bottom := 0.0, 0.0
	for token, n := range x.count {
		if own := count[token*topics+c]; x.common(token) {
			top += inside[token] * (float64(n) - own) / float64(n)
			bottom += (all[token] - inside[token]) * own / float64(n)
		}
	}
	if bottom > 0 {
		ratios[i] = top / bottom
	}
	for r := range tallies {
		score := 0.0
		for j, token := range tallies[r].tokens {
			if !x.common(token) {
				continue
			}
			n, own := float64(x.count[token]), count[token*topics+c]
			weight := (n - own) / n
			if m.open.design.Topic[r] != c {
				weight = -own / n
			}
			occurrences := float64(len(tallies[r].places[j]))
			// A common token occurs in another text too, so n exceeds occurrences.
			score += weight * (selected[r][j] - occurrences*all[token]/n) * math.Sqrt(n/(n-occurrences))
		}
		scores.Row(r)[i] = score
	}
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
