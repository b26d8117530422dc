package atlas

// This file is a model whose truth is known: a synthetic router with planted specialists, lexical confounds and nulls,
// and the texts that it reads. It runs through the whole instrument, texts to labels, and Selftest counts what came out.
//
// A position of a text selects exactly k experts of a layer, expert e with probability pi_e, by systematic sampling
// (Madow 1949), which meets every inclusion probability exactly while they sum to k. pi_e is the expert's rate times a
// factor of the text drawn from a gamma distribution with coefficient of variation 1 (an exponential one), capped at 1:
//   - a null has one rate everywhere, drawn from shares that experts of the bundled model have;
//   - a specialist has a higher rate in the texts of its topic, so that its lift is 2 or 4;
//   - a lexical confound has a higher rate at the tokens of one topic's vocabulary, in whatever text they stand;
//   - fillers share what is missing to k.
//
// A twentieth of every text is drawn from all topics' vocabularies, so that a confound's tokens occur elsewhere too.

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"covey/atlas/probes"
	"covey/engine"
	"covey/engine/route"
)

// role is what a planted expert is.
type role struct {
	kind  plantedKind
	topic int     // of a specialist or confound
	lift  float64 // planted, by the definition whose mean includes the topic itself
	rate  float64 // mean share over topics before the cap; of a confound: away from its tokens
}

type plantedKind int

const (
	filler plantedKind = iota
	null
	specialist
	confound
)

// Planted is the synthetic model. Safe for concurrent use.
type Planted struct {
	info  engine.ModelInfo
	seed  uint64
	roles [][]role       // [layers, experts]
	topic map[uint64]int // topic of every text as written, by its tokens' hash
}

// Geometry and texts of the planted model.
const (
	plantedTopics  = 14
	plantedExperts = 32
	plantedTopK    = 4
	plantedOpen    = 40
	plantedSealed  = 12
	commonWords    = 2000 // tokens of no topic
	topicWords     = 60   // tokens of each topic's vocabulary
	specialists    = 3    // a layer, of each lift
	confounds      = 2    // a layer
	nulls          = 12   // a layer
	confoundRate   = 0.5  // of a confound at its tokens
	causalCost     = 0.3  // nats a token that a specialist's topic loses without it
)

// nullShares are mean shares to draw nulls from: the 5th, 15th, ... 95th percentile of the mean share of the bundled
// model's experts over the built-in probe set.
var nullShares = [10]float64{0.03, 0.05, 0.07, 0.08, 0.10, 0.11, 0.13, 0.15, 0.18, 0.25}

// NewPlanted makes a planted model of the given number of layers and the probe set that goes with it.
func NewPlanted(layers int, seed uint64) (*Planted, *probes.Set, error) {
	p := &Planted{seed: seed, topic: map[uint64]int{}}
	p.info = engine.ModelInfo{
		ID: "planted", Name: "Planted truth", Architecture: "planted", Hash: fmt.Sprintf("planted-%d-%d", layers, seed), NumericsID: "planted",
		Numerics: "synthetic router", Layers: layers, Vocab: commonWords + plantedTopics*topicWords,
		Shape: route.Shape{Experts: plantedExperts, TopK: plantedTopK},
	}
	random := rand.New(rand.NewPCG(seed, 1))
	for layer := range layers {
		p.info.Shape.Layers = append(p.info.Shape.Layers, layer)
		var roles []role
		for _, lift := range []float64{2, 4} {
			for range specialists {
				roles = append(roles, role{kind: specialist, topic: random.IntN(plantedTopics), lift: lift, rate: 0.06})
			}
		}
		for range confounds {
			roles = append(roles, role{kind: confound, topic: random.IntN(plantedTopics), rate: 0.03})
		}
		for range nulls {
			roles = append(roles, role{kind: null, rate: nullShares[random.IntN(len(nullShares))]})
		}
		for len(roles) < plantedExperts {
			roles = append(roles, role{kind: filler})
		}
		random.Shuffle(len(roles), func(i, j int) { roles[i], roles[j] = roles[j], roles[i] })
		p.roles = append(p.roles, roles)
	}
	var list []probes.Probe
	for topic := range plantedTopics {
		for i := range plantedOpen + plantedSealed {
			split := probes.Open
			if i >= plantedOpen {
				split = probes.Sealed
			}
			tokens := p.write(topic, random)
			p.topic[hashTokens(tokens)] = topic
			id := fmt.Sprintf("t%02d-%02d", topic, i)
			list = append(list, probes.Probe{ID: id, Topic: fmt.Sprintf("t%02d", topic), Split: split, Cluster: id, Kind: probes.Raw, Text: spell(tokens)})
		}
	}
	set, err := probes.New("planted", list)
	return p, set, err
}

// write draws a text: 75 % common tokens with Zipf frequencies, 20 % of its topic's vocabulary, 5 % of any topic's. Nine
// tenths of the occurrences of a topic's words are then in its own texts.
func (p *Planted) write(topic int, random *rand.Rand) []int32 {
	out := make([]int32, 60+random.IntN(131))
	for i := range out {
		switch u := random.Float64(); {
		case u < 0.75:
			// Inverse transform of a density that falls as 1/(rank+3).
			out[i] = int32(3*math.Pow((commonWords+3)/3.0, random.Float64()) - 3)
		case u < 0.95:
			out[i] = int32(commonWords + topic*topicWords + random.IntN(topicWords))
		default:
			out[i] = int32(commonWords + random.IntN(plantedTopics*topicWords))
		}
	}
	return out
}

func spell(tokens []int32) string {
	parts := make([]string, len(tokens))
	for i, t := range tokens {
		parts[i] = "w" + strconv.Itoa(int(t))
	}
	return strings.Join(parts, " ")
}

func hashTokens(tokens []int32) uint64 {
	h := fnv.New64a()
	for _, t := range tokens {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(t)))
	}
	return h.Sum64()
}

// Info describes the planted model.
func (p *Planted) Info() engine.ModelInfo { return p.info }

// Encode reads a text of words w0, w1, ...
func (p *Planted) Encode(probe probes.Probe) (Prompt, error) {
	var out []int32
	for _, word := range strings.Fields(probe.Text) {
		n, err := strconv.Atoi(strings.TrimPrefix(word, "w"))
		if err != nil || n < 0 || n >= p.info.Vocab {
			return Prompt{}, fmt.Errorf("%.20q is not a word of the planted model", word)
		}
		out = append(out, int32(n))
	}
	return Prompt{Tokens: out, To: len(out)}, nil
}

// Forward routes the tokens. A text that the model's set does not contain as written (its words shuffled, say) has no
// topic: specialists then keep their mean rate, confounds follow their tokens as always.
func (p *Planted) Forward(ctx context.Context, tokens []int32, o ForwardOptions) (Forward, error) {
	if err := ctx.Err(); err != nil {
		return Forward{}, err
	}
	hash := hashTokens(tokens)
	topic, known := p.topic[hash]
	if !known {
		topic = -1
	}
	var out Forward
	if o.Routing {
		out.Events = []*route.Event{p.route(tokens, topic, hash)}
	}
	if o.Score == nil {
		return out, nil
	}
	if err := o.Score.check(len(tokens)); err != nil {
		return Forward{}, err
	}
	random := rand.New(rand.NewPCG(p.seed^hash, 3))
	logprobs := make([]float32, len(tokens)-1)
	for i := range logprobs {
		logprobs[i] = float32(-2 - random.ExpFloat64())
	}
	plain := o.Score.mean(logprobs)
	out.Scores = append(out.Scores, plain)
	for _, experts := range o.Score.Without {
		cost := 0.0
		for _, x := range experts {
			if r := p.roles[x.Layer][x.ID]; r.kind == specialist && r.topic == topic && causes(x) {
				cost += causalCost
			}
		}
		out.Scores = append(out.Scores, plain-cost)
	}
	return out, nil
}

// causes tells whether removing a planted specialist costs its topic anything: those with even ids do, so that both
// outcomes occur.
func causes(e engine.Expert) bool { return e.ID%2 == 0 }

func (p *Planted) route(tokens []int32, topic int, hash uint64) *route.Event {
	layers, k := len(p.roles), plantedTopK
	e := &route.Event{Tokens: tokens, IDs: make([]uint16, len(tokens)*layers*k), Weights: make([]float32, len(tokens)*layers*k)}
	for i := range e.Weights {
		e.Weights[i] = 1 / float32(k)
	}
	random := rand.New(rand.NewPCG(p.seed^hash, 2))
	pi := make([]float64, plantedExperts)
	factor := make([]float64, plantedExperts)
	for layer, roles := range p.roles {
		for id := range factor {
			factor[id] = random.ExpFloat64()
		}
		for t, token := range tokens {
			sum, fillers := 0.0, 0
			for id, r := range roles {
				pi[id] = 0
				if r.kind == filler {
					fillers++
					continue
				}
				pi[id] = math.Min(1, r.at(topic, token)*factor[id])
				sum += pi[id]
			}
			if sum > float64(k) { // a text on which nearly every planted expert is strong: about one in 10^5
				for id := range pi {
					pi[id] *= float64(k) / sum
				}
				sum = float64(k)
			}
			for id, r := range roles {
				if r.kind == filler {
					pi[id] = (float64(k) - sum) / float64(fillers)
				}
			}
			systematic(pi, random.Float64(), e.IDs[(t*layers+layer)*k:][:k])
		}
	}
	return e
}

// at is the rate of an expert at a token of a text of a topic (-1 = none), before the text's factor.
func (r role) at(topic int, token int32) float64 {
	switch r.kind {
	case specialist:
		switch topic {
		case -1:
			return r.rate
		case r.topic:
			return r.rate * r.lift
		}
		return r.rate * (plantedTopics - r.lift) / (plantedTopics - 1)
	case confound:
		if first := int32(commonWords + r.topic*topicWords); token >= first && token < first+topicWords {
			return confoundRate
		}
	}
	return r.rate
}

// truth is the lift of the expert in topic c after the cap: a rate l times an exponential factor, capped at 1, has the
// mean l (1 - exp(-1/l)). Not defined for confounds and fillers.
func (r role) truth(c int) float64 {
	mean := func(topic int) float64 {
		l := r.at(topic, 0)
		return l * (1 - math.Exp(-1/l))
	}
	sum := 0.0
	for topic := range plantedTopics {
		sum += mean(topic)
	}
	return mean(c) / sum * plantedTopics
}

// systematic selects len(out) ids with inclusion probabilities pi, which sum to len(out): those whose interval of the
// running sum contains start, start+1, ...
func systematic(pi []float64, start float64, out []uint16) {
	n, sum, next := 0, 0.0, start
	for id, v := range pi {
		sum += v
		if n < len(out) && sum > next {
			out[n] = uint16(id)
			n++
			next++
		}
	}
	// Rounding may leave the last place open: it falls to the last expert that could have taken it.
	for id := len(pi) - 1; n < len(out) && id >= 0; id-- {
		if pi[id] > 0 && !slices.Contains(out[:n], uint16(id)) {
			out[n] = uint16(id)
			n++
		}
	}
}
