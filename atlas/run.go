package atlas

// This file runs a probe set: it decides what is to be read, keeps many texts in flight so that they share steps, stores
// each observation once, and hands the whole to measure.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"covey/atlas/probes"
	"covey/engine"
	"covey/store"

	"golang.org/x/sync/errgroup"
)

// Phase of a run, for progress.
type Phase string

// Phases, in order.
const (
	PhaseProbe   Phase = "probe"   // texts are read by the model, word-shuffled ones among them
	PhaseMeasure Phase = "measure" // statistics
	PhaseAblate  Phase = "ablate"  // experts removed, likelihoods compared
)

// Progress of a run. Left is an estimate from the speed so far, 0 when unknown.
type Progress struct {
	Phase       Phase
	Done, Total int
	Elapsed     time.Duration
	Left        time.Duration
}

// Options of a run. The zero value of a field means its default.
type Options struct {
	Name         string
	Seed         uint64  // 0 = 1
	Permutations int     // of labels, for the corrected test; 0 = 2000
	Draws        int     // of the bootstrap; 0 = 2000
	Shuffles     int     // of control 1; 0 = 200
	Alpha        float64 // of the corrected test; 0 = 0.05
	MinLift      float64 // that the lower bound of lift must exceed; 0 = 1.5
	MinSupport   float64 // part of the topic's texts that must select the expert; 0 = 0.5
	InFlight     int     // forwards at once; 0 = 16
	Threads      int     // goroutines of the statistics; 0 = GOMAXPROCS
	Shuffled     int     // open texts a topic that are also read with their words shuffled; 0 = 12, -1 = none

	// Store and Job keep every observation in a running probe job of the store, so that a stopped run goes on where it
	// was. Store nil: observations are kept in memory only.
	Store *store.Store
	Job   string
}

func (o Options) withDefaults() Options {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Permutations, 2000)
	def(&o.Draws, 2000)
	def(&o.Shuffles, 200)
	def(&o.InFlight, 16)
	def(&o.Shuffled, 12)
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Alpha == 0 {
		o.Alpha = 0.05
	}
	if o.MinLift == 0 {
		o.MinLift = 1.5
	}
	if o.MinSupport == 0 {
		o.MinSupport = 0.5
	}
	return o
}

func (o Options) check() error {
	switch {
	case o.Permutations < 100 || o.Draws < 100 || o.Shuffles < 20:
		return fmt.Errorf("atlas: %d permutations, %d draws, %d shuffles: at least 100, 100 and 20", o.Permutations, o.Draws, o.Shuffles)
	case o.Alpha <= 0 || o.Alpha >= 1:
		return fmt.Errorf("atlas: alpha %g: between 0 and 1", o.Alpha)
	case float64(o.Permutations+1)*o.Alpha < 1:
		return fmt.Errorf("atlas: %d permutations cannot reach alpha %g: at least %.0f", o.Permutations, o.Alpha, 1/o.Alpha)
	case o.MinLift < 1 || o.MinSupport < 0 || o.MinSupport > 1:
		return fmt.Errorf("atlas: lift above %g in %g of texts: at least 1, and a part of 1", o.MinLift, o.MinSupport)
	case o.InFlight < 1:
		return fmt.Errorf("atlas: %d forwards in flight: at least 1", o.InFlight)
	}
	return nil
}

// wordShuffled marks the key of the word-shuffled form of a text; no probe id can contain it.
const wordShuffled = "~words"

// reading is one text to read.
type reading struct {
	key   string // of its result in the store
	probe probes.Probe
}

// readings lists the texts of a run: all of the set, then the first open ones of each topic with their words shuffled.
func readings(set *probes.Set, o Options) []reading {
	o = o.withDefaults()
	var out []reading
	for _, p := range set.Probes {
		out = append(out, reading{p.ID, p})
	}
	for _, p := range loosened(set, o) {
		out = append(out, reading{p.ID + wordShuffled, probes.ShuffleWords(p, o.Seed)})
	}
	return out
}

// loosened is the texts that are also read with their words shuffled.
func loosened(set *probes.Set, o Options) []probes.Probe {
	var out []probes.Probe
	n := map[string]int{}
	for _, p := range set.Probes {
		if p.Split == probes.Open && !p.Crossed() && n[p.Topic] < o.Shuffled {
			n[p.Topic]++
			out = append(out, p)
		}
	}
	return out
}

// Forwards is how many texts a run of the set reads: the total of its job.
func Forwards(set *probes.Set, o Options) int { return len(readings(set, o)) }

// Run reads the set with the model and measures. progress may be nil; it is called from one goroutine at a time and
// must not block. Cancelling ctx ends the run with its error; with Options.Store the finished texts are kept and a later
// Run of the same job resumes.
func Run(ctx context.Context, m Model, set *probes.Set, o Options, progress func(Progress)) (*Atlas, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := suits(m.Info(), set); err != nil {
		return nil, err
	}
	start := time.Now()
	report := reporter(progress, start)
	observed, err := read(ctx, m, readings(set, o), o, report)
	if err != nil {
		return nil, err
	}
	a, err := measure(ctx, m.Info(), set, observed, o, report)
	if err != nil {
		return nil, err
	}
	a.Created = start.UTC().Truncate(time.Second)
	a.Summary.Seconds = round(time.Since(start).Seconds())
	return a, nil
}

// suits refuses a model or set from which nothing could be measured, before anything is read.
func suits(info engine.ModelInfo, set *probes.Set) error {
	s := info.Shape
	if len(s.Layers) == 0 || s.Experts < 2 || s.TopK < 1 {
		return fmt.Errorf("atlas: model %s has no routed experts", info.ID)
	}
	if len(s.Layers)*s.Experts > maxExperts {
		return fmt.Errorf("atlas: model %s has %d experts: at most %d", info.ID, len(s.Layers)*s.Experts, maxExperts)
	}
	clusters := map[string]map[string]bool{}
	for _, t := range set.Topics {
		clusters[t] = map[string]bool{}
	}
	for _, p := range set.Probes {
		if p.Split == probes.Open && !p.Crossed() {
			clusters[p.Topic][p.Cluster] = true
		}
	}
	for _, t := range set.Topics {
		if n := len(clusters[t]); n < 2 {
			return fmt.Errorf("atlas: topic %q has open texts of %d clusters: intervals need at least 2, better 10", t, n)
		}
	}
	return nil
}

// reporter serialises progress.
func reporter(progress func(Progress), start time.Time) func(Phase, int, int, time.Duration) {
	if progress == nil {
		return func(Phase, int, int, time.Duration) {}
	}
	var mu sync.Mutex
	return func(phase Phase, done, total int, left time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		progress(Progress{Phase: phase, Done: done, Total: total, Elapsed: time.Since(start), Left: left})
	}
}

// read returns the observation of every reading by key.
func read(ctx context.Context, m Model, list []reading, o Options, report func(Phase, int, int, time.Duration)) (map[string]*Observation, error) {
	info := m.Info()
	out := make(map[string]*Observation, len(list))
	wanted := make(map[string]bool, len(list))
	for _, r := range list {
		wanted[r.key] = true
	}
	if o.Store != nil {
		err := o.Store.Results(ctx, o.Job, info.NumericsID, func(r store.JobResult) error {
			if !wanted[r.Prompt] {
				return nil
			}
			ob, err := decodeObservation(info.Shape, r.Data)
			if err != nil {
				return fmt.Errorf("result of %q: %w", r.Prompt, err)
			}
			out[r.Prompt] = ob
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("atlas: resuming job %s: %w", o.Job, err)
		}
	}
	// Encoding everything first finds a text that the model cannot take before an hour of reading.
	prompts := make([]Prompt, len(list))
	stored := map[string]bool{}
	total, left := 0, 0
	for i, r := range list {
		p, err := m.Encode(r.probe)
		if err != nil {
			return nil, fmt.Errorf("atlas: encoding probe %q: %w", r.key, err)
		}
		if p.To <= p.From {
			return nil, fmt.Errorf("atlas: probe %q has no tokens to count", r.key)
		}
		if info.Context > 0 && len(p.Tokens) > info.Context {
			return nil, fmt.Errorf("atlas: probe %q has %d tokens, the model's context %d", r.key, len(p.Tokens), info.Context)
		}
		prompts[i] = p
		total += len(p.Tokens)
		ob := out[r.key]
		if ob == nil {
			left += len(p.Tokens)
			continue
		}
		if !slices.Equal(ob.Tokens, p.Tokens[p.From:p.To]) {
			return nil, fmt.Errorf("atlas: resuming job %s: the stored result of %q is of another text: delete the job", o.Job, r.key)
		}
		stored[r.key] = true
	}
	resumed, start := total-left, time.Now()
	var mu sync.Mutex
	done := total - left
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(o.InFlight)
	finished := len(out)
	report(PhaseProbe, finished, len(list), 0)
	for i, r := range list {
		if stored[r.key] {
			continue
		}
		if running.Err() != nil {
			break
		}
		group.Go(func() error {
			f, err := m.Forward(running, prompts[i].Tokens, ForwardOptions{Routing: true})
			if err != nil {
				return fmt.Errorf("atlas: reading probe %q: %w", r.key, err)
			}
			ob, err := observe(info.Shape, prompts[i], f.Events)
			if err != nil {
				return fmt.Errorf("atlas: reading probe %q: %w", r.key, err)
			}
			if o.Store != nil {
				result := store.JobResult{Prompt: r.key, Numerics: info.NumericsID, Data: ob.encode(info.Shape)}
				if _, err := o.Store.PutResults(running, o.Job, result); err != nil {
					return fmt.Errorf("atlas: storing probe %q: %w", r.key, err)
				}
			}
			mu.Lock()
			out[r.key] = ob
			finished++
			done += len(prompts[i].Tokens)
			n := finished
			speed := float64(time.Since(start)) / float64(done-resumed)
			remaining := time.Duration(speed * float64(total-done))
			mu.Unlock()
			report(PhaseProbe, n, len(list), remaining)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if len(out) < len(list) {
		return nil, ctx.Err() // ended before the last text was handed out
	}
	return out, nil
}
