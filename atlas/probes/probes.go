// Package probes holds probe sets: short texts of known topic that a model reads so that its routing can be counted.
//
// A set is JSON Lines, one probe a line, with the fields id, topic, split, cluster, kind and text. Open texts are used
// for labelling, sealed ones for confirmation only. A cluster names the template or source of a text: texts of one
// cluster are resampled and permuted together. A topic written "a+b" crosses two topics (a recipe in Chinese): such
// texts stay outside the family of tests. The package reads, checks, hashes and lints; it knows no model.
package probes

import (
	"crypto/sha256"
	_ "embed" // the built-in set
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

// Splits of a set.
const (
	Open   = "open"
	Sealed = "sealed"
)

// Kinds of text.
const (
	Raw  = "raw"  // read as it stands
	Chat = "chat" // the user's message of a conversation in the model's own template, whose tokens are not counted
)

// Probe is one text.
type Probe struct {
	ID      string `json:"id"`
	Topic   string `json:"topic"`
	Split   string `json:"split"`
	Cluster string `json:"cluster"`
	Kind    string `json:"kind"`
	Text    string `json:"text"`
}

// Crossed tells whether the probe crosses two topics.
func (p Probe) Crossed() bool { return strings.Contains(p.Topic, "+") }

// Parts returns the two topics of a crossed probe; second is empty for any other.
func (p Probe) Parts() (first, second string) {
	first, second, _ = strings.Cut(p.Topic, "+")
	return first, second
}

// Set is a checked list of probes. Immutable.
type Set struct {
	Name   string
	Probes []Probe  // in file order
	Topics []string // topics of the family (crossed ones excluded), in order of first appearance
	Hash   string   // hex SHA-256 of the canonical form (Text)
}

// New checks probes and makes a set of them.
func New(name string, probes []Probe) (*Set, error) {
	s := &Set{Name: name}
	ids := map[string]bool{}
	for _, p := range probes {
		if err := s.add(p, ids); err != nil {
			return nil, fmt.Errorf("probes: %s: probe %q: %w", name, p.ID, err)
		}
	}
	return s, s.finish()
}

// finish checks the set as a whole and computes what follows from its probes.
func (s *Set) finish() error {
	if len(s.Topics) < 2 {
		return fmt.Errorf("probes: %s: %d topics: a lift compares at least 2", s.Name, len(s.Topics))
	}
	if len(s.Topics) > MaxTopics {
		return fmt.Errorf("probes: %s: %d topics: at most %d", s.Name, len(s.Topics), MaxTopics)
	}
	for _, p := range s.Probes {
		if !p.Crossed() {
			continue
		}
		for part := range strings.SplitSeq(p.Topic, "+") {
			if !slices.Contains(s.Topics, part) {
				return fmt.Errorf("probes: %s: probe %q: topic %q crosses %q, of which the set has no text", s.Name, p.ID, p.Topic, part)
			}
		}
	}
	sum := sha256.Sum256(s.Text())
	s.Hash = hex.EncodeToString(sum[:])
	return nil
}

// Text is the canonical form: one line of JSON a probe, fields in the order of Probe, all present. Read gives the set
// back.
func (s *Set) Text() []byte {
	var out []byte
	for _, p := range s.Probes {
		line, err := json.Marshal(p)
		if err != nil {
			panic("probes: a checked probe cannot be written: " + err.Error()) // only invalid UTF-8 could, and add refuses it
		}
		out = append(append(out, line...), '\n')
	}
	return out
}

// Count is how many texts of the family a split has.
func (s *Set) Count(split string) int {
	n := 0
	for _, p := range s.Probes {
		if p.Split == split && !p.Crossed() {
			n++
		}
	}
	return n
}

// builtin is written by atlas/probes/assemble from the folder src.
//
//go:embed builtin.jsonl
var builtin string

// BuiltinName is the name of the built-in set.
const BuiltinName = "builtin"

// Builtin is the set that ships with Covey: 14 topics, texts written for it.
func Builtin() (*Set, error) { return Read(BuiltinName, strings.NewReader(builtin)) }
