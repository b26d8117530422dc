package web

import (
	"net/url"
	"strconv"
	"time"
)

// Fact is a labelled value of a description list.
type Fact struct{ Label, Value string }

// AtlasItem is a line in the list of atlases.
type AtlasItem struct {
	ID, Name, Model              string
	Texts, Numerics              string // probe set with the start of its hash; numerics id; "" = imported
	Created                      time.Time
	Size                         int64
	Measured                     bool // false = imported, or a summary that cannot be read
	Experts, Specialists, Labels int
	FalseLabelRate               float64
	Decoding                     *Interval // of sealed texts
	DecodingTexts                int
	DecodingChance               float64
}

// short is what tells atlases of one name apart, beside their date.
func (a AtlasItem) short() string { return a.ID[:min(6, len(a.ID))] }

// Choice is the atlas in a list to choose from: by name, date and the start of its id.
func (a AtlasItem) Choice() Choice {
	return Choice{a.ID, a.Name + ", " + a.Created.Format("2 Jan 2006, 15:04") + " (" + a.short() + ")"}
}

// facts are what two atlases that look alike may differ in.
func (a AtlasItem) facts() []Fact {
	out := []Fact{{"Model", a.Model}, {"Made", a.Created.Format("2 January 2006, 15:04")}}
	if a.Measured {
		out = append(out, Fact{"Texts", a.Texts}, Fact{"Numerics", a.Numerics})
	}
	return append(out, Fact{"Id", a.ID})
}

// Atlas is what the page of one atlas shows.
type Atlas struct {
	Page       Page
	ID, Name   string
	Job        string // that made it; "" = none
	Imported   bool
	Provenance []Fact
	Warnings   []string
	Rule       string // when a pair is labelled
	Headline   []Fact // figures
	Topics     []TopicList
	TopicNames []string
	Controls   []Fact
	Layers     []AtlasLayer
	Decoding   []AtlasDecoding
	Confusion  *Confusion
	Figure     *MatrixFigure // nil = no label to draw
	Ladder     []LadderStep
	Survival   []TopicSurvival
	Removals   []Removal
	Crossed    []Crossed
	CanRemove  bool        // the texts are at hand: experts can be removed from here
	Others     []AtlasItem // atlases that it can be compared with

	Sort   string // topic that orders the table; "" = specificity
	All    bool   // experts without a label too
	Rows   int    // of the table, all pages
	Number int    // page, from 1
	Pages  int
	Matrix []MatrixRow
}

// TopicEstimate is what is known of one expert and topic. There is always an interval.
type TopicEstimate struct {
	Topic             string
	Index             int // in the atlas's topics
	Interval          Interval
	Share             float64 // mean share of the layer's selections over the topic's texts
	Tested            bool
	P, Q              float64
	Support           float64 // part of the topic's texts that chose the expert
	Labelled, Lexical bool
	Sealed            *Interval // lift on sealed texts; nil = not confirmed
	Causal            *Interval // nats a token
}

// TopicList is one topic with its strongest labelled experts.
type TopicList struct {
	Topic                 string
	Labels, Lexical, Held int
	Ranked                []Ranked
}

// count says how many labels a topic has.
func (t TopicList) count() string {
	if t.Lexical == 0 {
		return Counted(t.Labels, "label")
	}
	return Counted(t.Labels, "label") + ", " + Count(t.Lexical) + " lexical"
}

// Ranked is a labelled expert in a topic's list.
type Ranked struct {
	Layer, ID int
	Lexical   bool
	Interval  Interval
}

// MatrixRow is an expert of the topics-by-experts table.
type MatrixRow struct {
	Layer, ID   int
	State       string
	Specificity float64
	Cells       []*TopicEstimate // [topics]; nil = nothing known
	Affinity    []float64        // [topics] of an imported atlas
}

// AtlasLayer is one layer of the profile.
type AtlasLayer struct {
	Layer, Labels                                int
	Information, Lexical, Reliability, Position  float64
	InfoLow, InfoHigh                            float64 // 95 % interval of Information; equal = not known
	SpecificityLow, Specificity, SpecificityHigh float64 // quartiles over the layer's experts with enough data
}

// AtlasDecoding is one way of naming the topic of sealed texts.
type AtlasDecoding struct {
	Method, Features string
	Correct, N       int
	Accuracy         Interval
	Best             bool
}

// Confusion is the table of true against named topics.
type Confusion struct {
	Topics []string
	Counts [][]int // [true][named]
	Method string
	Chance float64
}

// AtlasExpert is the page of one expert.
type AtlasExpert struct {
	Page             Page
	Atlas, AtlasName string
	Layer, ID        int
	State            string
	Specificity      float64
	Selections       int64
	Prompts, Open    int // open texts that chose it, of all
	Topics           []TopicEstimate
	Affinity         []Fact // of an imported atlas
	Imported         bool
	MinLift, Alpha   float64
	Examples         []Example
	Together         []Together
	Removals         []Removal // of its labels
	Previous, Next   *Neighbour
}

// Neighbour is the expert before or after.
type Neighbour struct{ Layer, ID int }

// Example is a text of the probe set that chose the expert often.
type Example struct {
	Topic, Split, Text string
	Share              float64 // part of the text's tokens that chose the expert
	Selections, Tokens int
	Runs               []Run // the text in runs of tokens; nil = the tokenizer is not at hand
}

// Run is a piece of a text whose tokens all chose the expert, or all did not.
type Run struct {
	Text   string
	Chosen bool
}

// Together is an expert that tokens choose together with the page's.
type Together struct {
	Layer, ID int
	Part      float64 // of the tokens that chose the page's expert
	Base      float64 // of all tokens
	Tokens    int     // that chose both
	Texts     int     // that they come from
}

// Times is how much more often than anywhere the two come together.
func (t Together) Times() float64 { return t.Part / t.Base }

// AtlasComparison is the page of two atlases side by side.
type AtlasComparison struct {
	Page            Page
	Atlases         []AtlasItem
	A, B            string     // ids; "" = not chosen
	First, Second   *AtlasItem // the chosen ones
	Topics          []string   // of the first
	TopicsB         []string   // of the second
	Topic, TopicB   string
	Rows            []ComparedExpert
	Compared, Apart int
	Agreement       []Fact        // over all topics; nil = of one atlas, or not comparable
	Notes           []string      // what the reader must know of the two
	Grid            *ComparedGrid // nil = too many cells to draw
}

// ComparedGrid is every expert of both atlases as a picture: layers by experts.
type ComparedGrid struct {
	Layers  []int
	Experts int
	Cells   []*ComparedExpert // [layers, experts]; nil = not in both
}

// ComparedExpert is an expert in two atlases. Gap is the distance between the intervals; negative when they overlap.
type ComparedExpert struct {
	Layer, ID int
	A, B      Interval
	Gap       float64
}

// Usage is a usage history of another program beside an atlas.
type Usage struct {
	Page             Page
	Name             string // of the file
	Total            int64
	Experts, Layers  int    // that the file names
	Atlas, AtlasName string // whose labels stand beside; "" = none fits
	Rows             []UsageRow
	More             int // experts that are not shown
}

// UsageRow is an expert of a usage history.
type UsageRow struct {
	Layer, ID int
	Count     int64
	Share     float64        // of its layer's selections
	Load      float64        // over an even load on the experts that the file names
	Top       *TopicEstimate // strongest label in the atlas; nil = none
}

func atlasURL(id string) string { return "/atlas/" + url.PathEscape(id) }

func expertURL(atlas string, layer, id int) string {
	return atlasURL(atlas) + "/expert/" + strconv.Itoa(layer) + "/" + strconv.Itoa(id)
}

// tableURL is the address of the table with one parameter changed.
func (a Atlas) tableURL(sort string, all bool, page int) string {
	q := url.Values{}
	if sort != "" {
		q.Set("sort", sort)
	}
	if all {
		q.Set("all", "1")
	}
	if page > 1 {
		q.Set("page", strconv.Itoa(page))
	}
	out := atlasURL(a.ID)
	if len(q) > 0 {
		out += "?" + q.Encode()
	}
	return out + "#table"
}

// rankedAxis is the axis that all topic lists share, so that bars can be compared.
func (a Atlas) rankedAxis() axis {
	var all []Interval
	for _, t := range a.Topics {
		for _, r := range t.Ranked {
			all = append(all, r.Interval)
		}
	}
	return newAxis(all...)
}

func (e AtlasExpert) axis() axis {
	var all []Interval
	for _, t := range e.Topics {
		all = append(all, t.Interval)
		if t.Sealed != nil {
			all = append(all, *t.Sealed)
		}
	}
	return newAxis(all...)
}

// mostInformation is the top of the layer profile.
func (a Atlas) mostInformation() float64 {
	most := 0.0
	for _, l := range a.Layers {
		most = max(most, l.Information, l.InfoHigh)
	}
	return most
}

// confusionClass is the step of a cell's shade: its part of the true topic's texts.
func (c Confusion) class(truth, named int) string {
	total := 0
	for _, n := range c.Counts[truth] {
		total += n
	}
	if total == 0 || c.Counts[truth][named] == 0 {
		return "heat-0"
	}
	return "heat-" + strconv.Itoa(1+min(6, 7*c.Counts[truth][named]/(total+1)))
}

var stateWords = map[string]string{
	"specialist": "specialist", "generalist": "no label", "insufficient": "insufficient data", "unmeasured": "imported, not measured",
}

func lexicalClass(quiet bool) string {
	if quiet {
		return "interval-quiet"
	}
	return ""
}

// scaled is v over most, between 0 and 1.
func scaled(v, most float64) float64 {
	if most <= 0 {
		return 0
	}
	return min(1, max(0, v/most))
}

// tableLine says what the table holds and how it is ordered.
func (a Atlas) tableLine() string {
	order := a.Sort
	if order == "" {
		order = "specificity"
	}
	what := Counted(a.Rows, "expert") + " with a label"
	switch {
	case a.Imported:
		what = Counted(a.Rows, "expert") + ", affinity in per cent"
	case a.All:
		what = "All " + Counted(a.Rows, "expert")
	}
	return what + ", ordered by " + order
}
