// Package probes holds probe sets: short texts of known topic that a model reads so that its routing can be counted.
//
// A set is JSON Lines, one probe a line, with the fields id, topic, split, cluster, kind and text. Open texts are used
// for labelling, sealed ones for confirmation only. A cluster names the template or source of a text: texts of one
// cluster are resampled and permuted together. A topic written "a+b" crosses two topics (a recipe in Chinese): such
// texts stay outside the family of tests. The package reads, checks, hashes and lints; it knows no model.
package probes

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

// Set is a checked list of probes. Immutable.
type Set struct {
	Name   string
	Probes []Probe  // in file order
	Topics []string // topics of the family (crossed ones excluded), in order of first appearance
	Hash   string   // hex SHA-256 of the canonical form: one line of JSON a probe, fields in the order above
}
