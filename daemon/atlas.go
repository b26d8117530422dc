package daemon

// Atlases: reading them from the store and turning them into views. Documents are read whole and kept for a few
// minutes of looking around: a document of 20,000 experts takes half a second to decode.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"covey/atlas"
	"covey/store"
	"covey/web"
)

// keptAtlases is how many decoded documents stay in memory.
const keptAtlases = 4

// opened is a decoded document with what the store knows of it. Immutable.
type opened struct {
	*atlas.Atlas
	stored store.Atlas
}

// atlases reads documents. Safe for concurrent use.
type atlases struct {
	server *Server
	jobs   *jobs // knows the texts that atlases were made with

	mu   sync.Mutex
	kept []*opened // most recently used last; names may be out of date
}

// open reads an atlas; a missing or unreadable one is an *Error.
func (a *atlases) open(ctx context.Context, id string) (*opened, error) {
	description, err := a.server.store.Atlas(ctx, id)
	if err != nil {
		return nil, stored(err, "this atlas")
	}
	a.mu.Lock()
	for i, o := range a.kept {
		if o.stored.ID == id {
			a.kept = append(slices.Delete(a.kept, i, i+1), o)
			a.mu.Unlock()
			return &opened{o.Atlas, description}, nil
		}
	}
	a.mu.Unlock()
	document, err := a.server.store.AtlasDocument(ctx, id)
	if err != nil {
		return nil, stored(err, "the document of this atlas")
	}
	doc, err := atlas.Decode(bytes.NewReader(document))
	if err != nil {
		return nil, problem(KindInput, "invalid", "delete it and measure or import it again", err, "this atlas cannot be read")
	}
	o := &opened{doc, description}
	a.mu.Lock()
	a.kept = append(a.kept, o)
	if len(a.kept) > keptAtlases {
		a.kept = slices.Delete(a.kept, 0, 1)
	}
	a.mu.Unlock()
	return o, nil
}

// save stores a document under the name it has.
func (a *atlases) save(ctx context.Context, doc *atlas.Atlas, job string) (store.Atlas, error) {
	document, err := doc.Encode()
	if err != nil {
		return store.Atlas{}, err
	}
	summary, err := json.Marshal(doc.Summary)
	if err != nil {
		return store.Atlas{}, fmt.Errorf("daemon: writing the summary of an atlas: %w", err)
	}
	p := doc.Provenance
	return a.server.store.SaveAtlas(ctx, store.Atlas{Name: doc.Name, Job: job, Model: p.ModelName, ModelHash: p.ModelHash,
		Numerics: p.NumericsID, ProbeHash: p.ProbeSetHash, Summary: summary}, document)
}

// replace writes a document that was completed (its measurement is the same) over the stored one.
func (a *atlases) replace(ctx context.Context, id string, doc *atlas.Atlas) error {
	document, err := doc.Encode()
	if err != nil {
		return err
	}
	if err := a.server.store.ReplaceAtlasDocument(ctx, id, document); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = slices.DeleteFunc(a.kept, func(o *opened) bool { return o.stored.ID == id })
	return nil
}

// read takes a file: Covey's own form, or one of colibri's.
func (a *atlases) read(name string, file []byte) (*atlas.Atlas, error) {
	doc, err := atlas.Decode(bytes.NewReader(file))
	if err == nil {
		return doc, nil
	}
	if !errors.Is(err, atlas.ErrFormat) {
		return nil, err
	}
	return atlas.Import(name, bytes.NewReader(file))
}

// expertTopics lists what is known of an expert by topic: labelled pairs first, then by the lower bound of the lift.
// Without intervals the list is empty: there is nothing to claim.
func expertTopics(doc *atlas.Atlas, e *atlas.Expert) []web.TopicEstimate {
	if len(e.Low) == 0 {
		return nil
	}
	labels := map[int]atlas.Label{}
	for _, l := range doc.Labels {
		if l.Layer == e.Layer && l.ID == e.ID {
			labels[l.Topic] = l
		}
	}
	out := make([]web.TopicEstimate, len(doc.Topics))
	for c, topic := range doc.Topics {
		t := web.TopicEstimate{Topic: topic, Index: c, Interval: web.Interval{Value: e.Lift(c), Low: e.Low[c], High: e.High[c]}, Share: e.Share[c]}
		if len(e.P) > 0 {
			t.P, t.Q, t.Tested = e.P[c], e.Q[c], true
		}
		if len(e.Support) > 0 {
			t.Support = e.Support[c]
		}
		if l, ok := labels[c]; ok {
			t.Labelled, t.Lexical = true, l.Lexical
			if l.Confirmed != nil {
				t.Sealed = &web.Interval{Value: l.Confirmed.Lift, Low: l.Confirmed.Low, High: l.Confirmed.High}
			}
			if l.Causal != nil {
				t.Causal = &web.Interval{Value: l.Causal.Change, Low: l.Causal.Low, High: l.Causal.High}
			}
		}
		out[c] = t
	}
	slices.SortStableFunc(out, func(x, y web.TopicEstimate) int {
		if x.Labelled != y.Labelled {
			if x.Labelled {
				return -1
			}
			return 1
		}
		return cmp.Compare(y.Interval.Low, x.Interval.Low)
	})
	return out
}

// bundledID is the model of this repository, which was trained on corpora of the built-in topics.
const bundledID = "smollm2-moe-32x"

// Below these an atlas says that it is thin.
const (
	fewTexts     = 20   // open texts a topic
	fewReliable  = 0.5  // mean half-split reliability
	falseLabels  = 0.05 // labels under shuffled topics over those found
	muchLexical  = 0.5  // part of the labels that the words alone explain
	fewMeasured  = 0.8  // part of the experts with enough data
	fewConfirmed = 0.8  // part of the labels whose sign holds on sealed texts
)

// warnings says in plain words where an atlas must not be trusted far.
func warnings(a *atlas.Atlas) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	p := a.Provenance
	if a.Kind == atlas.Imported {
		say("Imported from %s: affinities only. It has no intervals and no tests, so nothing in it is labelled.", p.Source)
		return append(out, p.Notes...)
	}
	if n := len(a.Topics); n > 0 && p.Open/n < fewTexts {
		say("Thin data: about %d open texts a topic. Intervals are wide, and a missing label says little; 40 texts a topic are better.", p.Open/n)
	}
	if n := len(a.Experts); n > 0 && float64(a.Summary.Experts) < fewMeasured*float64(n) {
		say("%d of %d experts were chosen too seldom to say anything about them.", n-a.Summary.Experts, n)
	}
	if a.Controls.FalseLabelRate > falseLabels {
		say("With the topics shuffled, %.0f %% as many labels appear as were found; at most 5 %% is acceptable. Do not rely on these labels.", 100*a.Controls.FalseLabelRate)
	}
	if n := len(a.Labels); n > 0 && float64(a.Controls.LexicalLabels) > muchLexical*float64(n) {
		say("%d of %d labels do not survive among tokens of the same id: they may follow single words rather than the topic.", a.Controls.LexicalLabels, n)
	}
	reliability := 0.0
	for _, l := range a.Layers {
		reliability += l.Reliability / float64(len(a.Layers))
	}
	if len(a.Layers) > 0 && reliability < fewReliable {
		say("The two halves of the texts agree little (mean reliability %.2f): another set of texts would give other numbers.", reliability)
	}
	switch {
	case a.Sealed == nil:
		say("There are no sealed texts: nothing here has been confirmed on texts that took no part in labelling.")
	case len(a.Labels) > 0 && float64(a.Sealed.LabelsSigns) < fewConfirmed*float64(len(a.Labels)):
		say("On sealed texts only %d of %d labels point the same way.", a.Sealed.LabelsSigns, len(a.Labels))
	}
	for _, note := range p.Notes {
		out = append(out, sentence(note))
	}
	return out
}
