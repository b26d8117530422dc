// Package atlas measures which experts serve which topics, how strongly and how surely.
//
// A probe set (package probes) is read by a model, one prefill forward a text; the routing is counted per text (file
// observe.go), and one text is one observation however many tokens it has. Statistics over the counts (package stats,
// file measure.go) give every (expert, topic) pair a lift with an interval and a corrected test; only a pair that passes
// all of them is labelled. Controls that must come out empty are computed with every atlas, and sealed texts, which take
// no part in labelling, confirm it. The result is an Atlas: a document with its provenance, its own file format
// (covey.atlas.json) and exports.
//
// Words: share = selections of an expert / tokens, in its layer, for one text; mean share of a topic = mean over its
// texts; affinity p(c|e) = mean share in c / sum over topics; lift = mean share in c / mean over topics = C * p(c|e).
package atlas

import "time"

// Kind tells where an atlas's numbers come from.
type Kind string

// Kinds of atlas.
const (
	Measured Kind = "measured" // by Run: intervals, tests, controls
	Imported Kind = "imported" // from another program's file: affinities only, no intervals, no tests
)

// Atlas is the result of a probe run over one model: a document that a reader can reject from its own contents.
// Immutable once made; safe for concurrent readers.
type Atlas struct {
	Format     string     `json:"format"`  // "covey.atlas"
	Version    int        `json:"version"` // of the file format
	ID         string     `json:"id"`      // hex SHA-256 over what was measured: equal runs have equal ids
	Name       string     `json:"name"`
	Kind       Kind       `json:"kind"`
	Created    time.Time  `json:"created"`
	Provenance Provenance `json:"provenance"`
	Shape      Shape      `json:"shape"`
	Topics     []string   `json:"topics"`  // [C], in the order of every per-topic array
	Experts    []Expert   `json:"experts"` // [layers*E], by layer then id; imported atlases may hold fewer
	Labels     []Label    `json:"labels"`  // by layer, id, topic
	Layers     []Layer    `json:"layers"`  // per MoE layer; nil when imported
	Controls   Controls   `json:"controls"`
	Groups     []Group    `json:"groups,omitempty"` // when ablated
	Sealed     *Sealed    `json:"sealed,omitempty"` // nil when the set has no sealed probes
	Summary    Summary    `json:"summary"`
}

// Shape is the routing geometry of the model, or of what an import holds.
type Shape struct {
	Layers  []int `json:"layers"`  // model layer index of each MoE layer, ascending
	Experts int   `json:"experts"` // routed experts a layer
	TopK    int   `json:"top_k"`   // experts chosen for each position; 0 when imported
}

// Provenance says what was measured with what, so that the run can be repeated.
type Provenance struct {
	ModelID      string   `json:"model_id"`
	ModelName    string   `json:"model_name"`
	Architecture string   `json:"architecture"`
	ModelHash    string   `json:"model_hash"`
	NumericsID   string   `json:"numerics_id"`
	Numerics     string   `json:"numerics"`
	ProbeSet     string   `json:"probe_set"`      // its name
	ProbeSetHash string   `json:"probe_set_hash"` // hex SHA-256 of its canonical form
	Open         int      `json:"open"`           // texts used for labelling
	SealedTexts  int      `json:"sealed"`         // texts used for confirmation only
	Crossed      int      `json:"crossed"`        // texts of two topics, outside the family of tests
	Tokens       int      `json:"tokens"`         // counted token positions in all
	Phase        string   `json:"phase"`          // "prefill"
	Seed         uint64   `json:"seed"`
	Permutations int      `json:"permutations"`
	Draws        int      `json:"draws"`    // bootstrap draws
	Shuffles     int      `json:"shuffles"` // of control 1
	Alpha        float64  `json:"alpha"`    // of the corrected test
	MinLift      float64  `json:"min_lift"` // that the interval's lower bound must exceed
	MinSupport   float64  `json:"min_support"`
	Source       string   `json:"source,omitempty"` // of an imported atlas: the kind of file
	Notes        []string `json:"notes,omitempty"`
}

// State is what may be said about one expert as a whole.
type State string

// States of an expert.
const (
	Specialist   State = "specialist"   // at least one label
	Generalist   State = "generalist"   // enough support, no label
	Insufficient State = "insufficient" // too little support to say anything
	Unmeasured   State = "unmeasured"   // imported: nothing is known about its uncertainty
)

// Expert holds the estimates of one routed expert. Per-topic slices are [C] in the order of Atlas.Topics; the interval
// and test slices are nil where there is nothing honest to put there (imported atlas, insufficient data).
type Expert struct {
	Layer       int       `json:"layer"` // model layer index
	ID          int       `json:"id"`
	State       State     `json:"state"`
	Counts      []int64   `json:"counts,omitempty"`    // selections over the open texts of each topic; nil where an import has none
	Prompts     int       `json:"prompts"`             // open texts that selected it at least once
	Share       []float64 `json:"share"`               // mean share of each topic; affinities when imported
	Mass        []float64 `json:"mass,omitempty"`      // mean router weight per token of each topic; nil when imported
	Estimate    []float64 `json:"lift,omitempty"`      // lift with half a selection added to every topic: what the interval is of
	Low         []float64 `json:"lift_low,omitempty"`  // lower 95 % bound of Estimate (bootstrap-t)
	High        []float64 `json:"lift_high,omitempty"` // upper bound
	P           []float64 `json:"p,omitempty"`         // corrected over the family (max-T)
	Q           []float64 `json:"q,omitempty"`         // Benjamini-Hochberg over the family
	Support     []float64 `json:"support,omitempty"`   // part of the topic's texts that selected it
	Specificity float64   `json:"specificity"`         // 1 - H/ln C minus its mean under permuted labels; 0..1 or slightly below 0
	Claim       string    `json:"claim,omitempty"`     // an imported file's own label
}

// Selections is the sum of Counts.
func (e *Expert) Selections() int64 {
	n := int64(0)
	for _, k := range e.Counts {
		n += k
	}
	return n
}

// Affinity returns p(c|e): share over the sum of shares. Zero when the expert was never selected.
func (e *Expert) Affinity(c int) float64 {
	sum := 0.0
	for _, s := range e.Share {
		sum += s
	}
	if sum == 0 {
		return 0
	}
	return e.Share[c] / sum
}

// Lift returns the expert's mean share in topic c over its mean over topics; 1 means as often as anywhere. Where there
// is an interval it is the estimate that the interval belongs to, which differs from the plain ratio by half a selection
// a topic: a topic without any selection has a small lift, not 0.
func (e *Expert) Lift(c int) float64 {
	if len(e.Estimate) > 0 {
		return e.Estimate[c]
	}
	return e.Affinity(c) * float64(len(e.Share))
}

// Top returns the topic with the highest share (the first of equals).
func (e *Expert) Top() int {
	top := 0
	for c, s := range e.Share {
		if s > e.Share[top] {
			top = c
		}
	}
	return top
}

// Label is an (expert, topic) pair that passed the corrected test, the bound on its lift and the support rule.
type Label struct {
	Layer   int     `json:"layer"`
	ID      int     `json:"id"`
	Topic   int     `json:"topic"` // index into Atlas.Topics
	Lift    float64 `json:"lift"`
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
	P       float64 `json:"p"`
	Q       float64 `json:"q"`
	Support float64 `json:"support"`

	Lexical   bool          `json:"lexical"`             // does not survive the token-identity control
	Within    float64       `json:"within"`              // lift among tokens of the same id (Mantel-Haenszel rate ratio); 0 = not computed
	WithinP   float64       `json:"within_p"`            // corrected over the labels
	Shuffled  float64       `json:"shuffled"`            // lift when the words of the texts are shuffled; 0 = not run
	Crossed   float64       `json:"crossed,omitzero"`    // lift in the texts that cross the topic with another; 0 = there are none
	Confirmed *Confirmation `json:"confirmed,omitempty"` // on sealed texts
	Causal    *Effect       `json:"causal,omitempty"`    // when ablated
}

// Confirmation is a label looked at again on sealed texts.
type Confirmation struct {
	Lift float64 `json:"lift"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	Sign bool    `json:"sign"` // lift > 1, as on the open texts
	Held bool    `json:"held"` // lower bound above 1
}

// Effect is the causal weight of a label: what removing the expert does to the log-likelihood of sealed texts, in nats
// a token, on its topic minus on the others. Negative = the topic suffers more.
type Effect struct {
	Change   float64 `json:"change"`   // of the expert
	Control  float64 `json:"control"`  // mean of the same over controls: experts of its layer with about its load on the topic
	Controls int     `json:"controls"` // their number
	Net      float64 `json:"net"`      // change minus control
	Low      float64 `json:"low"`      // 95 % interval of net, over texts
	High     float64 `json:"high"`
	Matters  bool    `json:"matters"` // the interval lies below 0
}

// Group is the causal weight of all specialists of a topic together.
type Group struct {
	Topic   int    `json:"topic"`
	Experts int    `json:"experts"` // removed at once
	Effect  Effect `json:"effect"`
}

// Layer holds what is said about a whole MoE layer.
type Layer struct {
	Layer        int     `json:"layer"`
	Information  float64 `json:"information"`               // I(expert; topic) in bits, minus its mean under permuted labels
	InfoLow      float64 `json:"information_low,omitzero"`  // 95 % interval of Information: +- 1.96 standard errors over resampled clusters
	InfoHigh     float64 `json:"information_high,omitzero"` // both 0 in files of before
	Lexical      float64 `json:"lexical_part"`              // part of it that token identity explains, 0..1; 0 when not computed
	Reliability  float64 `json:"reliability"`               // half-split correlation of lifts, Spearman-Brown
	LengthPart   float64 `json:"length_part"`               // part of the variance of shares that text length explains
	PositionPart float64 `json:"position_part"`             // I(expert; quarter of the text) in bits
}

// Controls are the checks that a build of an atlas must pass, or whose result a reader must see.
type Controls struct {
	Shuffles         int     `json:"shuffles"`
	ShuffledLabels   float64 `json:"shuffled_labels"`         // mean labels a shuffle
	FalseLabelRate   float64 `json:"false_label_rate"`        // ShuffledLabels / labels observed; 0 when both are 0, 1 at most
	CommonTokens     float64 `json:"common_tokens"`           // part of token positions whose id occurs in at least two topics
	LexicalLabels    int     `json:"lexical_labels"`          // labels that do not survive the token-identity control
	ShuffledWords    int     `json:"shuffled_words"`          // open texts that were also read with their words shuffled
	ShuffleSurvival  float64 `json:"shuffle_survival"`        // part of labels whose lift stays above MinLift without word order
	PositionSurvival float64 `json:"position_survival"`       // part of labels whose lift stays above MinLift without the first 32 positions
	CrossedLabels    int     `json:"crossed_labels,omitzero"` // labels of topics that crossed texts hold
	CrossedHeld      int     `json:"crossed_held,omitzero"`   // of these, labels whose lift stays above MinLift there
}

// Sealed is the confirmation on texts that took no part in labelling.
type Sealed struct {
	Texts       int        `json:"texts"`
	Chance      float64    `json:"chance"`
	Decoding    []Decoding `json:"decoding"`
	Best        int        `json:"best"`         // index of the decoding that the summary quotes: logistic on shares
	LabelsSigns int        `json:"labels_signs"` // labels whose sealed lift is above 1
	LabelsHeld  int        `json:"labels_held"`  // labels whose sealed interval lies above 1
	Crossed     []Crossing `json:"crossed,omitempty"`
}

// Crossing is what texts of two topics are named after by the quoted decoding: does routing follow the task or the
// language, the register or the field?
type Crossing struct {
	Topic  string `json:"topic"` // "a+b"
	Texts  int    `json:"texts"`
	First  int    `json:"first"`  // named a
	Second int    `json:"second"` // named b
}

// Decoding is one way of naming the topic of a sealed text from open ones.
type Decoding struct {
	Method    string  `json:"method"`   // "nearest centroid", "logistic"
	Features  string  `json:"features"` // "shares", "shares beyond tokens", "tokens"
	Correct   int     `json:"correct"`
	N         int     `json:"n"`
	Accuracy  float64 `json:"accuracy"`
	Low       float64 `json:"low"` // Wilson 95 %
	High      float64 `json:"high"`
	Confusion [][]int `json:"confusion"` // [true topic, named topic]
}

// Summary is the last line of `covey atlas run --json`.
type Summary struct {
	Experts        int             `json:"experts"`     // with enough support
	Specialists    int             `json:"specialists"` // experts with at least one label
	Labels         int             `json:"labels"`
	SealedDecoding *SealedDecoding `json:"sealed_decoding"`
	FalseLabelRate float64         `json:"false_label_rate"`
	Seconds        float64         `json:"seconds"`
}

// SealedDecoding is how often the topic of a sealed text is named from expert shares, with its Wilson interval.
type SealedDecoding struct {
	Accuracy float64 `json:"accuracy"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	N        int     `json:"n"`
	Chance   float64 `json:"chance"`
}
