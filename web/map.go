package web

import (
	"math"
	"strconv"
	"time"
)

// Choice is an entry of a select.
type Choice struct{ ID, Name string }

// ExpertMap is what the expert map shows before the client runs: the history of every expert, and one layer as a table.
type ExpertMap struct {
	Page             Page
	Layers           []int // model layer index of each MoE layer
	Experts, TopK    int
	Selections       []int64 // [layers, experts]
	Total            int64
	Atlas, AtlasName string
	Atlases          []Choice
	Talks            []Choice  // conversations that have routing to compare
	Compared         [2]string // those of them that are compared at first; "" = none
	Row              int       // of the table: index into Layers
	Rows             []MapRow
	ShowTable        bool
	Turn             *MapTurn
}

// MapRow is one expert in the table.
type MapRow struct {
	Expert      int
	Selections  int64
	State       string // in the atlas; "" = no atlas
	Measured    bool
	Specificity float64
	Top         *TopicEstimate // strongest label; nil = none
}

// MapTurn is the answer whose tokens the map steps through.
type MapTurn struct {
	Message, Conversation string
	Tokens                int
}

// MapExpert is the panel about one expert.
type MapExpert struct {
	Layer, ID, Experts, TopK    int
	Selections, LayerSelections int64
	Rank                        int // experts of the layer with more selections
	LastUsed                    time.Time
	OnDisk                      bool           // its weights are not in memory at this moment
	Recent                      []RecentAnswer // the latest answers with stored routing, oldest first
	Atlas, AtlasName            string
	State                       string
	Specificity                 float64
	Topics                      []TopicEstimate
	Together                    []Together
	Examples                    []Example
}

// load is the expert's load with its place in the layer.
func (e MapExpert) load() string {
	if e.LayerSelections == 0 {
		return "-"
	}
	return evenness(e.Selections, e.LayerSelections, e.Experts) + ", place " + itoa(e.Rank+1) + " of " + itoa(e.Experts)
}

// RecentAnswer is one expert in one stored answer.
type RecentAnswer struct {
	Started            time.Time
	Selections, Tokens int
}

// recentHeight is the height of an answer's bar, of 32: its share of tokens over the largest one.
func (e MapExpert) recentHeight(r RecentAnswer) float64 {
	most := 0.0
	for _, x := range e.Recent {
		most = max(most, float64(x.Selections)/float64(max(1, x.Tokens)))
	}
	if most == 0 {
		return 0
	}
	return 32 * float64(r.Selections) / float64(max(1, r.Tokens)) / most
}

// recentWords says what the bars show.
func recentWords(e MapExpert) string {
	selections, tokens := e.recentSum()
	return "Share of tokens in the latest " + itoa(len(e.Recent)) + " answers, oldest first: " + Count(selections) + " of " + Count(tokens) + " in all"
}

// recentSum is the selections and tokens of the answers shown.
func (e MapExpert) recentSum() (selections, tokens int) {
	for _, r := range e.Recent {
		selections, tokens = selections+r.Selections, tokens+r.Tokens
	}
	return selections, tokens
}

func (e MapExpert) axis() axis {
	var all []Interval
	for _, t := range e.Topics {
		all = append(all, t.Interval)
	}
	return newAxis(all...)
}

// overview is how many cells are drawn as a figure; a larger model has its layers' table alone.
const overview = 4096

// heatClass is the step of the logarithmic heat scale: 0 = never, 1..7.
func heatClass(n, most int64) string {
	if n <= 0 || most <= 0 {
		return "heat-0"
	}
	step := 1 + int(6*math.Log1p(float64(n))/math.Log1p(float64(most))+0.5)
	return "heat-" + strconv.Itoa(min(7, step))
}

func (m ExpertMap) most() int64 {
	most := int64(0)
	for _, n := range m.Selections {
		most = max(most, n)
	}
	return most
}

// layerSum is the selections of MoE layer row, its busiest expert, and how many experts were chosen at all.
func (m ExpertMap) layerSum(row int) (sum, most int64, busiest, used int) {
	for id, n := range m.Selections[row*m.Experts : (row+1)*m.Experts] {
		sum += n
		if n > 0 {
			used++
		}
		if n > most {
			most, busiest = n, id
		}
	}
	return sum, most, busiest, used
}

// evenness is an expert's share of its layer over that of an even load; 1 = even.
func evenness(n, sum int64, experts int) string {
	if sum == 0 {
		return "-"
	}
	return figure(float64(n) * float64(experts) / float64(sum))
}
