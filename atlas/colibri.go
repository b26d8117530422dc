package atlas

// This file speaks the atlas formats of colibri (schema v1, v2's list and the dashboard's form of v2), out and in. They
// know no uncertainty: what is imported is marked so, keeps its own label as a claim, and is never labelled here.

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"covey/atlas/stats"
	"covey/engine/jsonfault"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Thresholds of colibri's labels.
const (
	colibriAffinity    = 0.45 // v1: affinity at least, and
	colibriEntropy     = 2.2  // v1: entropy in bits below
	colibriSelections  = 8    // v1: experts with fewer are left out
	colibriMinCount    = 30   // v2: experts with fewer are left out
	colibriSpecificity = 0.5  // v2: at least
)

// colibriV1 is the file of the first generation; the dashboard's form of the second is the same without counts.
type colibriV1 struct {
	Categories []string                   `json:"categories"`
	NGen       *int                       `json:"ngen,omitzero"`
	Experts    map[string]colibriV1Expert `json:"experts"`
}

type colibriV1Expert struct {
	Counts   map[string]int64   `json:"counts,omitempty"`
	Affinity map[string]float64 `json:"affinity"`
	Entropy  float64            `json:"entropy"` // bits
	Top      string             `json:"top"`
	Label    string             `json:"label"`
}

// colibriV2 is the list of the second generation.
type colibriV2 struct {
	Categories []string          `json:"categories"`
	Experts    []colibriV2Expert `json:"experts"`
}

type colibriV2Expert struct {
	Layer       int                `json:"layer"`
	Expert      int                `json:"expert"`
	Total       int64              `json:"total"`
	Spec        float64            `json:"spec"` // 1 - H/ln C
	TopTopic    string             `json:"top_topic"`
	TopLift     float64            `json:"top_lift"`
	Reliability string             `json:"reliability"` // "fired/R" in the top topic
	P           map[string]float64 `json:"p"`
}

// WriteColibriV1 writes schema v1: affinities by raw counts, as its readers expect, and its own labelling rule.
func (a *Atlas) WriteColibriV1(w io.Writer) error {
	zero := 0 // nothing was generated
	out := colibriV1{Categories: a.Topics, NGen: &zero, Experts: map[string]colibriV1Expert{}}
	for i := range a.Experts {
		e := &a.Experts[i]
		total := e.Selections()
		if total < colibriSelections {
			continue
		}
		x := colibriV1Expert{Counts: map[string]int64{}, Affinity: map[string]float64{}, Label: "generalist"}
		top := 0
		for c, n := range e.Counts {
			if n == 0 {
				continue
			}
			p := float64(n) / float64(total)
			x.Counts[a.Topics[c]] = n
			x.Affinity[a.Topics[c]] = decimals(p, 3)
			x.Entropy -= p * math.Log2(p)
			if n > e.Counts[top] {
				top = c
			}
		}
		x.Top = a.Topics[top]
		if float64(e.Counts[top])/float64(total) >= colibriAffinity && x.Entropy < colibriEntropy {
			x.Label = "specialist: " + x.Top
		}
		x.Entropy = decimals(x.Entropy, 3)
		out.Experts[fmt.Sprintf("%d:%d", e.Layer, e.ID)] = x
	}
	return a.writeJSON(w, out)
}

// WriteColibriV2 writes the list of schema v2: affinities by mean share.
func (a *Atlas) WriteColibriV2(w io.Writer) error {
	out := colibriV2{Categories: a.Topics}
	for i := range a.Experts {
		e := &a.Experts[i]
		if e.Selections() < colibriMinCount && a.Kind == Measured {
			continue
		}
		top := e.Top()
		x := colibriV2Expert{
			Layer: e.Layer, Expert: e.ID, Total: e.Selections(), Spec: decimals(e.rawSpecificity(), 4), TopTopic: a.Topics[top],
			TopLift: decimals(e.Affinity(top)*float64(len(e.Share)), 3), P: map[string]float64{},
		}
		if len(e.Support) > 0 && a.Provenance.Open > 0 {
			texts := a.Provenance.Open / len(a.Topics)
			x.Reliability = fmt.Sprintf("%.0f/%d", e.Support[top]*float64(texts), texts)
		}
		for c := range a.Topics {
			x.P[a.Topics[c]] = decimals(e.Affinity(c), 4)
		}
		out.Experts = append(out.Experts, x)
	}
	return a.writeJSON(w, out)
}

// WriteColibriWeb writes the form of schema v2 that colibri's dashboard reads.
func (a *Atlas) WriteColibriWeb(w io.Writer) error {
	out := colibriV1{Categories: a.Topics, Experts: map[string]colibriV1Expert{}}
	for i := range a.Experts {
		e := &a.Experts[i]
		if e.Selections() < colibriMinCount && a.Kind == Measured {
			continue
		}
		x := colibriV1Expert{Affinity: map[string]float64{}, Top: a.Topics[e.Top()], Label: "generalist"}
		for c := range a.Topics {
			if p := e.Affinity(c); p > 0 {
				x.Affinity[a.Topics[c]] = decimals(p, 3)
				x.Entropy -= p * math.Log2(p)
			}
		}
		x.Entropy = decimals(x.Entropy, 2)
		if e.rawSpecificity() >= colibriSpecificity {
			x.Label = "specialist: " + x.Top
		}
		out.Experts[fmt.Sprintf("%d:%d", e.Layer, e.ID)] = x
	}
	return a.writeJSON(w, out)
}

// rawSpecificity is colibri's: 1 - H/ln C with nothing taken off.
func (e *Expert) rawSpecificity() float64 { return stats.Specificity(e.Share) }

func (a *Atlas) writeJSON(w io.Writer, v any) error {
	if err := json.MarshalWrite(w, v, json.Deterministic(true)); err != nil {
		return fmt.Errorf("atlas: exporting: %w", err)
	}
	return nil
}

func decimals(v float64, n int) float64 {
	f := math.Pow10(n)
	return math.Round(v*f) / f
}

// Import reads an atlas of colibri: schema v1, the list of v2 or the dashboard's form of v2. Fields that it does not know
// are left alone, since other versions add some; what it uses is checked. name becomes the atlas's name.
func Import(name string, r io.Reader) (*Atlas, error) {
	data, err := readAll(r)
	if err != nil {
		return nil, err
	}
	var head struct {
		Format     string         `json:"format"`
		Canonical  jsontext.Value `json:"canonical_specialists"`
		Categories []string       `json:"categories"`
		Experts    jsontext.Value `json:"experts"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("atlas: importing: %w: %w", ErrFormat, jsonfault.Plain(err))
	}
	switch {
	case head.Format == Format:
		return nil, errors.New("atlas: importing: this is an atlas of Covey's own format: open it, it needs no import")
	case head.Canonical != nil:
		return nil, fmt.Errorf("atlas: importing: %w: the list of canonical specialists holds no affinities: import the atlas that it was made from", ErrFormat)
	case head.Experts == nil || head.Categories == nil:
		return nil, fmt.Errorf("atlas: importing: %w: no \"categories\" or no \"experts\"", ErrFormat)
	}
	a := &Atlas{
		Format: Format, Version: Version, Name: name, Kind: Imported, Created: time.Now().UTC().Truncate(time.Second), Topics: head.Categories,
		Labels: []Label{}, Provenance: Provenance{Notes: []string{"imported: no intervals, no tests, no controls"}},
	}
	if err := a.checkTopics(); err != nil {
		return nil, fmt.Errorf("atlas: importing: %w", err)
	}
	if head.Experts.Kind() == '[' {
		err = a.importV2(head.Experts)
	} else {
		err = a.importV1(head.Experts)
	}
	if err != nil {
		return nil, fmt.Errorf("atlas: importing: %w", err)
	}
	slices.SortFunc(a.Experts, func(x, y Expert) int { return cmp.Or(cmp.Compare(x.Layer, y.Layer), cmp.Compare(x.ID, y.ID)) })
	for i := range a.Experts {
		e := &a.Experts[i]
		if n := len(a.Shape.Layers); n == 0 || a.Shape.Layers[n-1] != e.Layer {
			a.Shape.Layers = append(a.Shape.Layers, e.Layer)
		}
		a.Shape.Experts = max(a.Shape.Experts, e.ID+1)
	}
	a.Summary.Experts = len(a.Experts)
	if err := a.check(); err != nil {
		return nil, fmt.Errorf("atlas: importing: %w", err)
	}
	a.ID = a.digest()
	return a, nil
}

// inExperts is a fault of the part under "experts", which is decoded by itself: its offset is not the file's.
func inExperts(err error) error {
	f := jsonfault.Of(err)
	if f == nil {
		return err
	}
	f.Field, f.Offset = strings.TrimSuffix("experts."+f.Field, "."), 0
	return f
}

func (a *Atlas) importV1(experts jsontext.Value) error {
	var list map[string]colibriV1Expert
	if err := json.Unmarshal(experts, &list); err != nil {
		return inExperts(err)
	}
	a.Provenance.Source = "colibri v2 (dashboard)"
	for key, x := range list {
		l, e, ok := strings.Cut(key, ":")
		layer, err1 := strconv.Atoi(l)
		id, err2 := strconv.Atoi(e)
		if !ok || err1 != nil || err2 != nil {
			return fmt.Errorf("expert %.40q is not layer:id", key)
		}
		counts := make([]int64, len(a.Topics))
		for topic, n := range x.Counts {
			c := slices.Index(a.Topics, topic)
			if c < 0 || n < 0 {
				return fmt.Errorf("expert %s: %d selections in topic %.40q", key, n, topic)
			}
			counts[c] = n
		}
		if x.Counts == nil {
			counts = nil
		} else {
			a.Provenance.Source = "colibri v1"
		}
		if err := a.importExpert(layer, id, x.Affinity, counts, x.Label); err != nil {
			return err
		}
	}
	return nil
}

func (a *Atlas) importV2(experts jsontext.Value) error {
	var list []colibriV2Expert
	if err := json.Unmarshal(experts, &list); err != nil {
		return inExperts(err)
	}
	a.Provenance.Source = "colibri v2 (list)"
	for _, x := range list {
		claim := "generalist"
		if x.Spec >= colibriSpecificity {
			claim = "specialist: " + x.TopTopic
		}
		if err := a.importExpert(x.Layer, x.Expert, x.P, nil, claim); err != nil {
			return err
		}
		a.Experts[len(a.Experts)-1].Specificity = round(x.Spec)
	}
	return nil
}

func (a *Atlas) importExpert(layer, id int, affinity map[string]float64, counts []int64, claim string) error {
	if layer < 0 || id < 0 || id >= math.MaxUint16 || len(a.Experts) >= maxExperts {
		return fmt.Errorf("layer %d expert %d is out of bounds", layer, id)
	}
	if len(claim) > maxName {
		return fmt.Errorf("layer %d expert %d: a label of %d bytes", layer, id, len(claim))
	}
	share := make([]float64, len(a.Topics))
	for topic, p := range affinity {
		c := slices.Index(a.Topics, topic)
		if c < 0 || !(p >= 0 && p <= 1) {
			return fmt.Errorf("layer %d expert %d: affinity %g for topic %.40q", layer, id, p, topic)
		}
		share[c] = round(p)
	}
	a.Experts = append(a.Experts, Expert{Layer: layer, ID: id, State: Unmeasured, Share: share, Counts: counts, Claim: claim})
	return nil
}
