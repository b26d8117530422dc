package probes

// This file checks a set for what would weaken a measurement although the file is well formed.

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Rules of lint. The zero value of a field means its default.
type Rules struct {
	MinTokens    int     // of one text; 0 = 60
	MaxTokens    int     // 0 = 250
	MeanSpread   float64 // how far a topic's mean length may lie from the mean over topics; 0 = 0.10
	MinClusters  int     // clusters of a topic's open texts; 0 = 10
	MaxInCluster int     // open texts of one cluster; 0 = 6
	Open, Sealed int     // texts a topic; 0 = any number of open ones, at least 1 sealed
	Crossed      int     // texts of every pair of topics that is crossed at all; 0 = any number
}

// Finding is one thing to mend.
type Finding struct {
	Probe   string // id; "" = the finding is about a topic or the set
	Topic   string // "" = the set
	Message string
}

func (f Finding) String() string {
	switch {
	case f.Probe != "":
		return fmt.Sprintf("%s: %s", f.Probe, f.Message)
	case f.Topic != "":
		return fmt.Sprintf("topic %s: %s", f.Topic, f.Message)
	}
	return f.Message
}

// Lint checks a set. tokens gives a text's length by the tokenizer that matters.
func Lint(s *Set, tokens func(text string) (int, error), r Rules) ([]Finding, error) {
	r = r.withDefaults()
	var found []Finding
	texts := map[string]string{}
	type topic struct {
		sum, n, open, sealed int
		clusters             map[string]int
		sealedClusters       map[string]bool
	}
	topics, pairs := map[string]*topic{}, map[string]int{}
	for _, name := range s.Topics {
		topics[name] = &topic{clusters: map[string]int{}, sealedClusters: map[string]bool{}}
	}
	for _, p := range s.Probes {
		n, err := tokens(p.Text)
		if err != nil {
			return nil, fmt.Errorf("probes: lint: probe %q: %w", p.ID, err)
		}
		if n < r.MinTokens || n > r.MaxTokens {
			found = append(found, Finding{p.ID, p.Topic, fmt.Sprintf("%d tokens: a text has %d to %d", n, r.MinTokens, r.MaxTokens)})
		}
		key := strings.Join(strings.Fields(strings.ToLower(p.Text)), " ")
		if first, twice := texts[key]; twice {
			found = append(found, Finding{p.ID, p.Topic, fmt.Sprintf("the same text as %s", first)})
		} else {
			texts[key] = p.ID
		}
		t := topics[p.Topic]
		if t == nil {
			pairs[p.Topic]++
			continue // crossed: lengths and clusters of a topic do not count it
		}
		t.sum += n
		t.n++
		if p.Split == Sealed {
			t.sealed++
			t.sealedClusters[p.Cluster] = true
			continue
		}
		t.open++
		t.clusters[p.Cluster]++
	}
	mean := 0.0
	for _, name := range s.Topics {
		mean += float64(topics[name].sum) / float64(topics[name].n) / float64(len(s.Topics))
	}
	for _, name := range s.Topics {
		t := topics[name]
		say := func(format string, args ...any) {
			found = append(found, Finding{"", name, fmt.Sprintf(format, args...)})
		}
		if own := float64(t.sum) / float64(t.n); math.Abs(own/mean-1) > r.MeanSpread {
			say("mean length %.0f tokens, %.0f over topics: at most %.0f %% apart", own, mean, 100*r.MeanSpread)
		}
		if len(t.clusters) < r.MinClusters {
			say("%d clusters of open texts: at least %d", len(t.clusters), r.MinClusters)
		}
		for _, k := range slices.Sorted(maps.Keys(t.clusters)) {
			if t.clusters[k] > r.MaxInCluster {
				say("cluster %s has %d open texts: at most %d", k, t.clusters[k], r.MaxInCluster)
			}
			if t.sealedClusters[k] {
				say("cluster %s has open and sealed texts: sealed texts use other templates and sources", k)
			}
		}
		if r.Open > 0 && t.open != r.Open {
			say("%d open texts: %d are wanted", t.open, r.Open)
		}
		if t.sealed == 0 || r.Sealed > 0 && t.sealed != r.Sealed {
			say("%d sealed texts: %d are wanted", t.sealed, max(1, r.Sealed))
		}
	}
	for _, pair := range slices.Sorted(maps.Keys(pairs)) {
		if n := pairs[pair]; r.Crossed > 0 && n != r.Crossed {
			found = append(found, Finding{"", pair, fmt.Sprintf("%d texts: %d are wanted", n, r.Crossed)})
		}
	}
	return found, nil
}

func (r Rules) withDefaults() Rules {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&r.MinTokens, 60)
	def(&r.MaxTokens, 250)
	def(&r.MinClusters, 10)
	def(&r.MaxInCluster, 6)
	if r.MeanSpread == 0 {
		r.MeanSpread = 0.10
	}
	return r
}
