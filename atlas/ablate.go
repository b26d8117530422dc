package atlas

// This file asks whether a label matters for the output: the expert (or all specialists of a topic together) is taken out
// of the router's choice, which then chooses among the rest, and the log-likelihood of sealed texts is compared.
//
// For a text, the change is the mean log-probability a token without the expert minus that of the model as it is. The
// effect of a label is the mean change on sealed texts of its topic minus that on texts of other topics, less the same for
// controls: experts of the same layer whose share on the topic is nearest, and which are not labelled for it. A control
// loses the topic as many selections, so what is left is not the mere loss of load. The interval is over texts.

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"covey/atlas/probes"
	"covey/atlas/stats"
	"covey/engine"
	"covey/store"

	"golang.org/x/sync/errgroup"
)

// AblateOptions of an ablation. The zero value of a field means its default.
type AblateOptions struct {
	Labels   int    // labels to test one by one, those of each topic in turn, in the order of Atlas.strongest; 0 = one a topic, -1 = none
	Groups   bool   // also test all specialists of each topic together
	Controls int    // controls a label or group; 0 = 10
	Others   int    // sealed texts of every other topic, the shortest; 0 = 1
	Draws    int    // of the bootstrap over texts; 0 = 2000
	Seed     uint64 // 0 = 1
	InFlight int    // forwards at once; 0 = 16

	Store *store.Store // keeps every reading in a running job, so that a stopped ablation goes on; nil = in memory
	Job   string
}

func (o AblateOptions) withDefaults(topics int) AblateOptions {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Labels, topics)
	def(&o.Controls, 10)
	def(&o.Others, 1)
	def(&o.Draws, 2000)
	def(&o.InFlight, 16)
	if o.Seed == 0 {
		o.Seed = 1
	}
	return o
}

// trial is one label or group to test: removals[0] is what is asked about, the others are its controls.
type trial struct {
	topic    int
	label    int // index into Labels, -1 = group
	removals [][]engine.Expert
	on, off  []string // ids of texts
}

// Ablate measures causal effects on the set's sealed texts and returns a copy of the atlas that shows them. The atlas must
// be of the same model, numerics and set. progress counts readings.
func Ablate(ctx context.Context, m Model, set *probes.Set, a *Atlas, o AblateOptions, progress func(Progress)) (*Atlas, error) {
	o = o.withDefaults(len(a.Topics))
	info := m.Info()
	if a.Provenance.ModelHash != info.Hash || a.Provenance.NumericsID != info.NumericsID {
		return nil, fmt.Errorf("atlas: ablation: the atlas is of model %.12s, numerics %s; this is %.12s, %s",
			a.Provenance.ModelHash, a.Provenance.NumericsID, info.Hash, info.NumericsID)
	}
	if a.Provenance.ProbeSetHash != set.Hash {
		return nil, fmt.Errorf("atlas: ablation: the atlas is of probe set %.12s, this is %.12s", a.Provenance.ProbeSetHash, set.Hash)
	}
	trials, err := a.trials(set, o)
	if err != nil {
		return nil, err
	}
	r := &ablation{model: m, options: o, texts: map[string]Prompt{}, wanted: wanted(trials), values: map[string]float64{}}
	if err := r.encode(set); err != nil {
		return nil, err
	}
	if err := r.run(ctx, reporter(progress, time.Now())); err != nil {
		return nil, err
	}
	out := *a
	out.Labels = slices.Clone(a.Labels)
	out.Groups = nil
	for i, t := range trials {
		e := r.effect(t, stream(o.Seed, seedAblation)+uint64(i))
		if t.label >= 0 {
			out.Labels[t.label].Causal = &e
		} else {
			out.Groups = append(out.Groups, Group{Topic: t.topic, Experts: len(t.removals[0]), Effect: e})
		}
	}
	return &out, nil
}

// trials chooses what to test, with its controls and texts.
func (a *Atlas) trials(set *probes.Set, o AblateOptions) ([]trial, error) {
	byTopic := a.strongest()
	sealed := make([][]probes.Probe, len(a.Topics))
	for _, p := range inSplit(set, probes.Sealed) {
		c := slices.Index(a.Topics, p.Topic)
		sealed[c] = append(sealed[c], p)
	}
	texts := func(c int) (on, off []string) {
		for t, list := range sealed {
			if t != c { // the shortest: they stand for texts that the label is not about, whatever they are
				list = slices.SortedStableFunc(slices.Values(list), func(x, y probes.Probe) int { return cmp.Compare(len(x.Text), len(y.Text)) })
				list = list[:min(o.Others, len(list))]
			}
			for _, p := range list {
				if t == c {
					on = append(on, p.ID)
				} else {
					off = append(off, p.ID)
				}
			}
		}
		return on, off
	}
	var out []trial
	add := func(c, label int, experts []engine.Expert) error {
		on, off := texts(c)
		if len(on) < 2 || len(off) < 2 {
			return fmt.Errorf("atlas: ablation: topic %q has %d sealed texts against %d of others: at least 2 and 2", a.Topics[c], len(on), len(off))
		}
		t := trial{topic: c, label: label, on: on, off: off, removals: [][]engine.Expert{experts}}
		t.removals = append(t.removals, a.controls(c, experts, o)...)
		if len(t.removals) == 1 {
			return fmt.Errorf("atlas: ablation: no control for layer %d", experts[0].Layer)
		}
		out = append(out, t)
		return nil
	}
	chosen := 0
	for rank := 0; chosen < o.Labels; rank++ {
		any := false
		for c, list := range byTopic {
			if rank >= len(list) || chosen >= o.Labels {
				continue
			}
			any = true
			chosen++
			l := a.Labels[list[rank]]
			if err := add(c, list[rank], []engine.Expert{{Layer: l.Layer, ID: l.ID}}); err != nil {
				return nil, err
			}
		}
		if !any {
			break
		}
	}
	if o.Groups {
		for c, list := range byTopic {
			var experts []engine.Expert
			for _, i := range list {
				experts = append(experts, engine.Expert{Layer: a.Labels[i].Layer, ID: a.Labels[i].ID})
			}
			if len(experts) == 0 {
				continue
			}
			if err := add(c, -1, experts); err != nil {
				return nil, err
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("atlas: ablation: the atlas has no label to test")
	}
	return out, nil
}

// strongest lists the labels of each topic in the order in which they are tested: those that are more than lexical first,
// then by the lower bound of the lift, but the strongest of a layer takes the layer's others along, because labels of one
// layer share most of their controls.
func (a *Atlas) strongest() [][]int {
	out := make([][]int, len(a.Topics))
	for i, l := range a.Labels {
		out[l.Topic] = append(out[l.Topic], i)
	}
	for c, list := range out {
		slices.SortStableFunc(list, func(x, y int) int {
			p, q := &a.Labels[x], &a.Labels[y]
			if p.Lexical != q.Lexical {
				return map[bool]int{false: -1, true: 1}[p.Lexical]
			}
			return cmp.Compare(q.Low, p.Low)
		})
		out[c] = nil
		for len(list) > 0 {
			first := a.Labels[list[0]]
			var rest []int
			for _, i := range list {
				if l := &a.Labels[i]; l.Layer == first.Layer && l.Lexical == first.Lexical {
					out[c] = append(out[c], i)
				} else {
					rest = append(rest, i)
				}
			}
			list = rest
		}
	}
	return out
}

// controls returns sets of experts like the given ones: same layers, share on topic c as near as possible, none labelled
// for c. One expert gets its nearest neighbours; several get a neighbour each, drawn among the nearest.
func (a *Atlas) controls(c int, experts []engine.Expert, o AblateOptions) [][]engine.Expert {
	labelled := map[engine.Expert]bool{}
	for _, l := range a.Labels {
		if l.Topic == c {
			labelled[engine.Expert{Layer: l.Layer, ID: l.ID}] = true
		}
	}
	neighbours := func(x engine.Expert) []engine.Expert {
		load := a.Expert(x.Layer, x.ID).Share[c]
		var list []engine.Expert
		for id := range a.Shape.Experts {
			if y := (engine.Expert{Layer: x.Layer, ID: id}); y != x && !labelled[y] {
				list = append(list, y)
			}
		}
		slices.SortStableFunc(list, func(p, q engine.Expert) int {
			return cmp.Compare(math.Abs(a.Expert(p.Layer, p.ID).Share[c]-load), math.Abs(a.Expert(q.Layer, q.ID).Share[c]-load))
		})
		return list[:min(o.Controls, len(list))]
	}
	var out [][]engine.Expert
	if len(experts) == 1 {
		for _, y := range neighbours(experts[0]) {
			out = append(out, []engine.Expert{y})
		}
		return out
	}
	random := rand.New(rand.NewPCG(stream(o.Seed, seedAblation), uint64(c)))
	for range o.Controls {
		var set []engine.Expert
		for _, x := range experts {
			list := slices.DeleteFunc(neighbours(x), func(y engine.Expert) bool { return slices.Contains(set, y) })
			if len(list) > 0 {
				set = append(set, list[random.IntN(len(list))])
			}
		}
		if len(set) > 0 {
			out = append(out, set)
		}
	}
	return out
}

// ablation reads texts under removals and keeps their mean log-probabilities.
type ablation struct {
	model   Model
	options AblateOptions
	texts   map[string]Prompt
	wanted  []ablated
	values  map[string]float64 // by key
}

// ablated is one reading: a text without some experts.
type ablated struct {
	key    string
	text   string
	banned []engine.Expert
}

// ablatedKey names a reading: the text's id and a hash of the removed experts. No probe id contains "!".
func ablatedKey(text string, banned []engine.Expert) string {
	h := fnv.New64a()
	for _, x := range banned {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(x.Layer)<<32|uint64(x.ID)))
	}
	return fmt.Sprintf("%s!%016x", text, h.Sum64())
}

// wanted lists every reading of the trials once.
func wanted(trials []trial) []ablated {
	var out []ablated
	seen := map[string]bool{}
	for _, t := range trials {
		for _, id := range slices.Concat(t.on, t.off) {
			for _, banned := range append([][]engine.Expert{nil}, t.removals...) {
				if key := ablatedKey(id, banned); !seen[key] {
					seen[key] = true
					out = append(out, ablated{key, id, banned})
				}
			}
		}
	}
	return out
}

// AblationReadings is how many readings Ablate makes, each a text without some experts or as it is: the total of its job.
func AblationReadings(set *probes.Set, a *Atlas, o AblateOptions) (int, error) {
	trials, err := a.trials(set, o.withDefaults(len(a.Topics)))
	if err != nil {
		return 0, err
	}
	return len(wanted(trials)), nil
}

// encode tokenises the texts that are read.
func (r *ablation) encode(set *probes.Set) error {
	byID := map[string]probes.Probe{}
	for _, p := range set.Probes {
		byID[p.ID] = p
	}
	for _, w := range r.wanted {
		if _, ok := r.texts[w.text]; ok {
			continue
		}
		p, err := r.model.Encode(byID[w.text])
		if err != nil {
			return fmt.Errorf("atlas: encoding probe %q: %w", w.text, err)
		}
		if err := (&Score{From: p.From, To: p.To}).check(len(p.Tokens)); err != nil {
			return fmt.Errorf("probe %q: %w", w.text, err)
		}
		r.texts[w.text] = p
	}
	return nil
}

// atOnce is how many removals of a text make one forward: what the reading of the text as it is costs is small beside them,
// and what a stop loses is small too.
const atOnce = 48

// tasks cuts what is missing into forwards: removals of one text together, in order of their layers, so that they can begin
// there side by side.
func tasks(missing []ablated) [][]ablated {
	byText := map[string][]ablated{}
	var order []string
	for _, w := range missing {
		if byText[w.text] == nil {
			order = append(order, w.text)
		}
		byText[w.text] = append(byText[w.text], w)
	}
	var out [][]ablated
	for _, text := range order {
		list := byText[text]
		slices.SortStableFunc(list, func(x, y ablated) int { return cmp.Compare(firstLayer(x.banned), firstLayer(y.banned)) })
		for part := range slices.Chunk(list, atOnce) {
			out = append(out, part)
		}
	}
	return out
}

// run reads what is wanted and not stored.
func (r *ablation) run(ctx context.Context, report func(Phase, int, int, time.Duration)) error {
	o, numerics := r.options, r.model.Info().NumericsID
	if o.Store != nil {
		err := o.Store.Results(ctx, o.Job, numerics, func(s store.JobResult) error {
			if len(s.Data) == 8 {
				r.values[s.Prompt] = math.Float64frombits(binary.LittleEndian.Uint64(s.Data))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("atlas: resuming job %s: %w", o.Job, err)
		}
	}
	var missing []ablated
	for _, w := range r.wanted {
		if _, ok := r.values[w.key]; !ok {
			missing = append(missing, w)
		}
	}
	stored := len(r.wanted) - len(missing)
	report(PhaseAblate, stored, len(r.wanted), 0)
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(o.InFlight)
	var mu sync.Mutex
	start, done := time.Now(), 0
	for _, part := range tasks(missing) {
		if running.Err() != nil {
			break
		}
		group.Go(func() error {
			values, err := r.read(running, part)
			if err != nil {
				return fmt.Errorf("atlas: reading probe %q without experts: %w", part[0].text, err)
			}
			if o.Store != nil {
				results := make([]store.JobResult, len(part))
				for i, w := range part {
					results[i] = store.JobResult{Prompt: w.key, Numerics: numerics, Data: binary.LittleEndian.AppendUint64(nil, math.Float64bits(values[i]))}
				}
				if _, err := o.Store.PutResults(running, o.Job, results...); err != nil {
					return fmt.Errorf("atlas: storing probe %q: %w", part[0].text, err)
				}
			}
			mu.Lock()
			for i, w := range part {
				r.values[w.key] = values[i]
			}
			done += len(part)
			n := done
			mu.Unlock()
			left := time.Since(start) / time.Duration(n) * time.Duration(len(missing)-n)
			report(PhaseAblate, stored+n, len(r.wanted), left)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if len(r.values) < len(r.wanted) {
		return ctx.Err()
	}
	return nil
}

// read is the mean log-probability of a text's counted tokens in each reading of one text.
func (r *ablation) read(ctx context.Context, part []ablated) ([]float64, error) {
	p := r.texts[part[0].text]
	score := &Score{From: p.From, To: p.To}
	for _, w := range part {
		if w.banned != nil {
			score.Without = append(score.Without, w.banned)
		}
	}
	f, err := r.model.Forward(ctx, p.Tokens, ForwardOptions{Score: score})
	if err != nil {
		return nil, err
	}
	if len(f.Scores) != 1+len(score.Without) {
		return nil, fmt.Errorf("%d scores for %d readings", len(f.Scores), 1+len(score.Without))
	}
	values, next := make([]float64, len(part)), 1
	for i, w := range part {
		if w.banned == nil {
			values[i] = f.Scores[0]
			continue
		}
		values[i] = f.Scores[next]
		next++
	}
	return values, nil
}

// effect compares the removal with its controls.
func (r *ablation) effect(t trial, seed uint64) Effect {
	change := func(text string, banned []engine.Expert) float64 {
		return r.values[ablatedKey(text, banned)] - r.values[ablatedKey(text, nil)]
	}
	mean := func(texts []string, banned []engine.Expert) float64 {
		sum := 0.0
		for _, id := range texts {
			sum += change(id, banned)
		}
		return sum / float64(len(texts))
	}
	e := Effect{Controls: len(t.removals) - 1}
	e.Change = mean(t.on, t.removals[0]) - mean(t.off, t.removals[0])
	for _, c := range t.removals[1:] {
		e.Control += (mean(t.on, c) - mean(t.off, c)) / float64(e.Controls)
	}
	// Beyond controls, text by text: the same texts on both sides, so that what is common to them falls out.
	beyond := func(texts []string) []float64 {
		var out []float64
		for _, id := range texts {
			v := change(id, t.removals[0])
			for _, c := range t.removals[1:] {
				v -= change(id, c) / float64(e.Controls)
			}
			out = append(out, v)
		}
		return out
	}
	net, low, high := stats.Contrast(beyond(t.on), beyond(t.off), r.options.Draws, seed)
	e.Change, e.Control, e.Net, e.Low, e.High = round(e.Change), round(e.Control), round(net), round(low), round(high)
	e.Matters = e.High < 0
	return e
}
