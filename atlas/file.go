package atlas

// This file is the atlas's own file, covey.atlas.json: one JSON document, read strictly. The id is a hash over what was
// measured, so that a changed file is noticed and two equal runs are seen to be equal.

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"covey/atlas/probes"
	"covey/engine/jsonfault"

	"github.com/go-json-experiment/json"
)

// Format and Version name the file format.
const (
	Format  = "covey.atlas"
	Version = 1
)

// maxFile bounds a file: 20,000 experts of 14 topics need about 25 MB.
const maxFile = 512 << 20

// Limits of what a file may name, those of probe sets.
const (
	maxTopics = probes.MaxTopics
	maxName   = probes.MaxName
)

// Limits of what a file may say in words and in numbers of parts: pages show all of it.
const (
	maxWords     = 500 // bytes of a name and of each text of the provenance
	maxNotes     = 64
	maxDecodings = 64
	maxLayer     = 1 << 16
)

// ErrFormat is wrapped by errors about files that are not an atlas of a known version.
var ErrFormat = errors.New("not an atlas of this format")

// Encode returns the document as JSON.
func (a *Atlas) Encode() ([]byte, error) {
	out, err := json.Marshal(a, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("atlas: writing: %w", err)
	}
	return append(out, '\n'), nil
}

// digest is the id: SHA-256 over the document without id, name, creation time, causal effects and seconds, which do not
// tell what was measured.
func (a *Atlas) digest() string {
	bare := *a
	bare.ID, bare.Name, bare.Created = "", "", time.Time{}
	bare.Summary.Seconds, bare.Groups = 0, nil
	bare.Labels = slices.Clone(a.Labels)
	for i := range bare.Labels {
		bare.Labels[i].Causal = nil
	}
	out, err := bare.Encode()
	if err != nil {
		panic("atlas: a document made here cannot be written: " + err.Error())
	}
	sum := sha256.Sum256(out)
	return hex.EncodeToString(sum[:])
}

// Decode reads a document that Encode wrote. Unknown and repeated fields, numbers that are not finite, lengths and
// indices that do not fit each other, and an id that is not the document's are refused.
func Decode(r io.Reader) (*Atlas, error) {
	data, err := readAll(r)
	if err != nil {
		return nil, err
	}
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("atlas: reading: %w: %w", ErrFormat, jsonfault.Plain(err))
	}
	if head.Format != Format || head.Version != Version {
		return nil, fmt.Errorf("atlas: reading: %w: format %.40q version %d, expected %q version %d", ErrFormat, head.Format, head.Version, Format, Version)
	}
	a := &Atlas{}
	if err := json.Unmarshal(data, a, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("atlas: reading: %w", jsonfault.Plain(err))
	}
	if err := a.check(); err != nil {
		return nil, fmt.Errorf("atlas: reading: %w", err)
	}
	if id := a.digest(); id != a.ID {
		return nil, fmt.Errorf("atlas: reading: the document's id is %.12s, its contents say %.12s: it was changed after it was made", a.ID, id)
	}
	return a, nil
}

func readAll(r io.Reader) ([]byte, error) {
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("atlas: reading: %w", err)
	}
	if n > maxFile {
		return nil, fmt.Errorf("atlas: reading: more than %d bytes", maxFile)
	}
	return b.Bytes(), nil
}

// check holds the parts of a document against each other.
func (a *Atlas) check() error {
	if a.Kind != Measured && a.Kind != Imported {
		return fmt.Errorf("kind %q is neither %q nor %q", a.Kind, Measured, Imported)
	}
	if err := a.checkTopics(); err != nil {
		return err
	}
	if err := a.checkWords(); err != nil {
		return err
	}
	topics := len(a.Topics)
	for i, l := range a.Shape.Layers {
		if l < 0 || l > maxLayer || i > 0 && l <= a.Shape.Layers[i-1] {
			return fmt.Errorf("shape: layer %d is out of range or out of order", l)
		}
	}
	if a.Shape.TopK < 0 || a.Shape.TopK > a.Shape.Experts {
		return fmt.Errorf("shape: top %d of %d experts", a.Shape.TopK, a.Shape.Experts)
	}
	if a.Shape.Experts < 1 || a.Shape.Experts > math.MaxUint16 || len(a.Shape.Layers)*a.Shape.Experts > maxExperts {
		return fmt.Errorf("shape of %d layers with %d experts", len(a.Shape.Layers), a.Shape.Experts)
	}
	if a.Kind == Measured && len(a.Experts) != len(a.Shape.Layers)*a.Shape.Experts {
		return fmt.Errorf("%d experts for a shape of %d layers with %d", len(a.Experts), len(a.Shape.Layers), a.Shape.Experts)
	}
	if a.Kind == Measured && len(a.Layers) != len(a.Shape.Layers) {
		return fmt.Errorf("%d layers for a shape of %d", len(a.Layers), len(a.Shape.Layers))
	}
	for i, l := range a.Layers {
		if i >= len(a.Shape.Layers) || l.Layer != a.Shape.Layers[i] {
			return fmt.Errorf("layer entry %d is of layer %d, which the shape has not in this place", i, l.Layer)
		}
	}
	last := [2]int{math.MinInt, 0}
	for i := range a.Experts {
		e := &a.Experts[i]
		at := [2]int{e.Layer, e.ID}
		_, known := slices.BinarySearch(a.Shape.Layers, e.Layer)
		if !known || e.ID < 0 || e.ID >= a.Shape.Experts || slices.Compare(last[:], at[:]) >= 0 {
			return fmt.Errorf("expert %d: layer %d id %d is outside the shape or out of order", i, e.Layer, e.ID)
		}
		last = at
		if err := e.check(topics, a.Kind); err != nil {
			return fmt.Errorf("layer %d expert %d: %w", e.Layer, e.ID, err)
		}
	}
	labelled := make(map[[3]int]bool, min(len(a.Labels), len(a.Experts)))
	for i, l := range a.Labels {
		at := [3]int{l.Layer, l.ID, l.Topic}
		if labelled[at] {
			return fmt.Errorf("label %d: layer %d expert %d topic %d has one already", i, l.Layer, l.ID, l.Topic)
		}
		labelled[at] = true
		if l.Topic < 0 || l.Topic >= topics || a.Expert(l.Layer, l.ID) == nil {
			return fmt.Errorf("label %d: layer %d expert %d topic %d does not exist", i, l.Layer, l.ID, l.Topic)
		}
		if a.Kind == Imported {
			return errors.New("an imported atlas has labels: there is no label without an interval")
		}
	}
	if len(a.Groups) > topics {
		return fmt.Errorf("%d groups of %d topics", len(a.Groups), topics)
	}
	for i, g := range a.Groups {
		if g.Topic < 0 || g.Topic >= topics {
			return fmt.Errorf("group %d is of topic %d, which does not exist", i, g.Topic)
		}
	}
	if s := a.Sealed; s != nil {
		if len(s.Decoding) > maxDecodings || len(s.Crossed) > topics*topics {
			return fmt.Errorf("%d decodings and %d crossings of %d topics", len(s.Decoding), len(s.Crossed), topics)
		}
		if len(s.Decoding) > 0 && (s.Best < 0 || s.Best >= len(s.Decoding)) {
			return fmt.Errorf("best decoding %d of %d", s.Best, len(s.Decoding))
		}
		for i, d := range s.Decoding {
			if len(d.Confusion) != topics || slices.ContainsFunc(d.Confusion, func(r []int) bool { return len(r) != topics }) {
				return fmt.Errorf("decoding %d: the confusion matrix is not %d by %d", i, topics, topics)
			}
		}
	}
	return nil
}

// checkWords bounds the texts.
func (a *Atlas) checkWords() error {
	p := &a.Provenance
	if len(p.Notes) > maxNotes {
		return fmt.Errorf("%d notes, at most %d", len(p.Notes), maxNotes)
	}
	words := []string{a.ID, a.Name, p.ModelName, p.ModelID, p.Architecture, p.ModelHash, p.NumericsID, p.Numerics, p.ProbeSet, p.ProbeSetHash, p.Phase, p.Source}
	words = append(words, p.Notes...)
	for i := range a.Experts {
		words = append(words, a.Experts[i].Claim)
	}
	if s := a.Sealed; s != nil {
		for _, d := range s.Decoding {
			words = append(words, d.Method, d.Features)
		}
		for _, c := range s.Crossed {
			words = append(words, c.Topic)
		}
	}
	for _, w := range words {
		if len(w) > maxWords {
			return fmt.Errorf("a text of %d bytes (%.40q...), at most %d", len(w), w, maxWords)
		}
	}
	return nil
}

func (a *Atlas) checkTopics() error {
	if n := len(a.Topics); n < 2 || n > maxTopics {
		return fmt.Errorf("%d topics: 2 to %d", n, maxTopics)
	}
	for i, t := range a.Topics {
		if t == "" || len(t) > maxName || slices.Index(a.Topics, t) != i {
			return fmt.Errorf("topic %d, %.40q, is empty, too long or there already", i, t)
		}
	}
	return nil
}

func (e *Expert) check(topics int, kind Kind) error {
	if len(e.Share) != topics {
		return fmt.Errorf("%d shares for %d topics", len(e.Share), topics)
	}
	tested := e.State == Specialist || e.State == Generalist
	if !tested && e.State != Insufficient && e.State != Unmeasured || (e.State == Unmeasured) != (kind == Imported) {
		return fmt.Errorf("state %.20q in an atlas that is %s", e.State, kind)
	}
	for _, f := range []struct {
		name string
		n    int
		must bool
	}{
		{"counts", len(e.Counts), kind == Measured}, {"mass", len(e.Mass), kind == Measured}, {"support", len(e.Support), kind == Measured},
		{"lift", len(e.Estimate), false}, {"lift_low", len(e.Low), tested}, {"lift_high", len(e.High), tested}, {"p", len(e.P), tested}, {"q", len(e.Q), tested},
	} {
		if f.n != topics && (f.n != 0 || f.must) {
			return fmt.Errorf("%d values of %s for %d topics", f.n, f.name, topics)
		}
	}
	for _, f := range []struct {
		name   string
		values []float64
		most   float64
	}{
		// Shares are of tokens, or affinities; router weights may be scaled; a lift is at most the number of topics.
		{"share", e.Share, 1}, {"mass", e.Mass, 1e6}, {"support", e.Support, 1}, {"p", e.P, 1}, {"q", e.Q, 1},
		{"lift", e.Estimate, float64(topics)}, {"lift_low", e.Low, float64(topics)}, {"lift_high", e.High, float64(topics)}, {"specificity", []float64{max(e.Specificity, 0)}, 1},
	} {
		const slack = 1e-9 // of rounding
		for _, v := range f.values {
			if !(v >= 0 && v <= f.most+slack) {
				return fmt.Errorf("%s of %g, want 0 to %g", f.name, v, f.most)
			}
		}
	}
	for c := range e.Low {
		if c < len(e.High) && e.Low[c] > e.High[c] {
			return fmt.Errorf("lift from %g to %g", e.Low[c], e.High[c])
		}
		if len(e.Estimate) > 0 && c < len(e.High) && (e.Estimate[c] < e.Low[c] || e.Estimate[c] > e.High[c]) {
			return fmt.Errorf("lift %g outside its interval from %g to %g", e.Estimate[c], e.Low[c], e.High[c])
		}
	}
	if e.Prompts < 0 || slices.ContainsFunc(e.Counts, func(n int64) bool { return n < 0 || n > 1<<50 }) {
		return fmt.Errorf("counts %v in %d texts", e.Counts, e.Prompts)
	}
	return nil
}

// Expert returns one expert, or nil when the atlas does not hold it.
func (a *Atlas) Expert(layer, id int) *Expert {
	i, ok := slices.BinarySearchFunc(a.Experts, [2]int{layer, id}, func(e Expert, at [2]int) int {
		return slices.Compare([]int{e.Layer, e.ID}, at[:])
	})
	if !ok {
		return nil
	}
	return &a.Experts[i]
}
