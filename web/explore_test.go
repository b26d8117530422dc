package web

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a-h/templ"
)

var update = flag.Bool("update", false, "write the golden pages anew")

func sampleEstimates() []TopicEstimate {
	return []TopicEstimate{
		{Topic: "code", Index: 1, Interval: Interval{Value: 2.5, Low: 1.8, High: 3.4}, Share: 0.2, Tested: true, P: 0.01, Q: 0.0002, Support: 0.9, Labelled: true, Sealed: &Interval{Value: 2.1, Low: 1.2, High: 3}},
		{Topic: "law", Interval: Interval{Value: 0.4, Low: 0.2, High: 1.3}, Share: 0.01, Tested: true, P: 1, Q: 0.7, Support: 0.2},
	}
}

func samplePages() map[string]templ.Component {
	page := Page{Title: "A <title>", Token: "page-token", Model: "tiny", Loading: -1}
	estimates := sampleEstimates()
	item := AtlasItem{ID: "at1", Name: "Atlas <1>", Model: "tiny", Created: noon, Measured: true, Experts: 8, Specialists: 1, Labels: 1,
		Decoding: &Interval{Value: 0.75, Low: 0.5, High: 0.9}, DecodingTexts: 12, DecodingChance: 0.5}
	imported := AtlasItem{ID: "at2", Name: "Imported", Model: "tiny", Created: noon}
	return map[string]templ.Component{
		"map": MapPage(ExpertMap{Page: page, Layers: []int{1, 2}, Experts: 2, TopK: 1, Selections: []int64{0, 10, 5, 5}, Total: 20, Atlas: "at1", AtlasName: "Atlas <1>",
			Atlases: []Choice{{"at1", "Atlas <1>"}, {"at2", "Imported"}}, Rows: []MapRow{{Expert: 0, State: "insufficient"}, {Expert: 1, Selections: 10, State: "specialist", Measured: true, Specificity: 0.2, Top: &estimates[0]}},
			Turn: &MapTurn{Message: "m1", Conversation: "c1", Tokens: 7}}),
		"panel": MapPanel(MapExpert{Layer: 2, ID: 1, Experts: 2, TopK: 1, Selections: 5, LayerSelections: 10, LastUsed: noon, OnDisk: true,
			Recent: []RecentAnswer{{noon, 2, 10}, {noon, 0, 20}, {noon, 8, 20}}, Atlas: "at1", AtlasName: "Atlas <1>", State: "specialist", Specificity: 0.2, Topics: estimates}),
		"atlas": AtlasPage(Atlas{Page: page, ID: "at1", Name: "Atlas <1>", Provenance: []Fact{{"Model", "tiny"}}, Warnings: []string{"Thin <data>."}, Rule: "The rule.",
			Headline: []Fact{{"Labels", "1"}}, TopicNames: []string{"law", "code"}, Rows: 1, Number: 1, Pages: 1,
			Topics:    []TopicList{{Topic: "law"}, {Topic: "code", Labels: 1, Held: 1, Ranked: []Ranked{{Layer: 2, ID: 1, Interval: estimates[0].Interval}}}},
			Matrix:    []MatrixRow{{Layer: 2, ID: 1, State: "specialist", Specificity: 0.2, Cells: []*TopicEstimate{nil, &estimates[0]}}},
			Layers:    []AtlasLayer{{Layer: 1, Information: 0.02, Lexical: 0.5, Reliability: 0.9}, {Layer: 2, Labels: 1, Information: 0.05, Lexical: 0.1, Reliability: 0.8}},
			Confusion: &Confusion{Topics: []string{"law", "code"}, Counts: [][]int{{5, 1}, {0, 6}}, Method: "logistic from shares", Chance: 0.5},
			Decoding:  []AtlasDecoding{{Method: "logistic", Features: "shares", Correct: 11, N: 12, Accuracy: Interval{0.92, 0.65, 0.99}, Best: true}}, Controls: []Fact{{"Topics shuffled", "0.1 labels"}}}),
		"expert": AtlasExpertPage(AtlasExpert{Page: page, Atlas: "at1", AtlasName: "Atlas <1>", Layer: 2, ID: 1, State: "specialist", Specificity: 0.2, Selections: 15, Prompts: 9, Open: 24, Topics: estimates, MinLift: 1.5, Alpha: 0.05, Previous: &Neighbour{2, 0}, Examples: []Example{{Topic: "code", Split: "open", Text: "<text> of code", Share: 0.5, Selections: 6, Tokens: 12}}}),
		"usage": UsagePage(Usage{Page: page, Name: "<data>", Total: 100, Experts: 2, Layers: 1, Atlas: "at1", AtlasName: "Atlas <1>", More: 3,
			Rows: []UsageRow{{Layer: 7, ID: 3, Count: 90, Share: 0.9, Load: 1.8, Top: &estimates[0]}, {Layer: 7, ID: 4, Count: 10, Share: 0.1, Load: 0.2}}}),
		"atlases": AtlasListPage(page, []AtlasItem{item, imported}),
		"compare": AtlasComparePage(AtlasComparison{Page: page, Atlases: []AtlasItem{item, imported}, A: "at1", B: "at2", Topics: []string{"code"}, Topic: "code", Compared: 2, Apart: 1,
			Rows: []ComparedExpert{{Layer: 2, ID: 1, A: Interval{3, 2, 4}, B: Interval{1, 0.5, 1.5}, Gap: 0.5}}}),
		"jobs": JobsPage(JobsView{Page: page, Ready: true, Builtin: BuiltinSet{Topics: []string{"law", "code"}, Open: 80, Sealed: 24},
			Form: JobForm{Set: "own", Text: "<text>", Draws: 2000, Seed: 1, Problem: "Line 1 is <bad>.", Findings: []string{"law-1: 13 tokens"}},
			Jobs: []Job{{ID: "j3", Name: "Waiting", State: "queued", Ahead: 1, Created: noon}, {ID: "j2", Name: "At <work>", State: "running", Phase: "probe", Done: 12, Total: 104, Left: 95 * time.Second, Created: noon},
				{ID: "j1", Name: "Done", State: "done", Done: 104, Total: 104, Took: 3 * time.Minute, Atlas: "at1", Created: noon}, {ID: "j0", Name: "Failed", State: "failed", Error: "No <memory>.", Created: noon}}}),
		"system": SystemPage(System{Page: page, Model: []Fact{{"Name", "tiny"}}, Memory: []MemoryPart{{"Weights", 1 << 20, "all in RAM"}, {"KV cache", -1, "unknown"}},
			Findings: []Finding{{"memory", "warn", "little left", "close something"}}}),
		"loading": SystemPage(System{Page: page, Loading: &LoadState{Done: 1 << 20, Total: 4 << 20}}),
	}
}

// main cuts the frame off, which has golden pages of no use here, and breaks the line at every element.
func mainPart(html string) string {
	if i := strings.Index(html, "<main"); i >= 0 {
		html = html[i:]
	}
	if i := strings.Index(html, "</main>"); i >= 0 {
		html = html[:i+len("</main>")]
	}
	return regexp.MustCompile(`>\s*<`).ReplaceAllString(html, ">\n<") + "\n"
}

func TestPagesAboutExpertsAreWhatTheyWere(t *testing.T) {
	for name, page := range samplePages() {
		got := mainPart(render(t, page))
		path := filepath.Join("testdata", name+".html")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs; -update writes it anew, then look at the difference", path)
		}
	}
}

func TestPagesAboutExpertsHoldNothingThatThePolicyBlocks(t *testing.T) {
	for name, page := range samplePages() {
		html := render(t, page)
		for _, pattern := range []string{`<script(?:[^>]*[^>/])?>\s*[^<\s]`, `\son[a-z]+=`, `\sstyle=`, `<style`, `javascript:`, `<1>`, `<data>`, `<bad>`, `<work>`, `<memory>`, `<text>`} {
			if found := regexp.MustCompile(pattern).FindString(html); found != "" {
				t.Errorf("%s: found %q", name, found)
			}
		}
	}
}

func TestEveryFormCarriesThePageToken(t *testing.T) {
	for name, page := range samplePages() {
		html := mainPart(render(t, page))
		forms, tokens := strings.Count(html, `method="post"`), strings.Count(html, `name="page_token" value="page-token"`)
		if forms != tokens {
			t.Errorf("%s: %d forms, %d tokens", name, forms, tokens)
		}
	}
}

// A topic's name beside an expert is a claim: it stands with its interval.
func TestALabelNeverStandsWithoutItsInterval(t *testing.T) {
	interval := regexp.MustCompile(`\[[0-9.]+, [0-9.]+\]`)
	pages := samplePages()
	for name, rows := range map[string]string{"map": `(?s)<tr>\s*<th scope="row" class="num">.*?</tr>`, "panel": `(?s)<li data-label>.*?</li>`, "expert": `(?s)<tr data-label>.*?</tr>`, "atlas": `(?s)<td class="num[^>]*data-label>.*?</td>`} {
		found := 0
		for _, row := range regexp.MustCompile(rows).FindAllString(render(t, pages[name]), -1) {
			if !strings.Contains(row, "code") && name != "atlas" {
				continue
			}
			found++
			if !interval.MatchString(row) {
				t.Errorf("%s: a label without an interval: %s", name, row)
			}
		}
		if found == 0 {
			t.Errorf("%s shows no label", name)
		}
	}
}

func TestAxesReachFromTheLowestToTheHighestBoundAndHoldOne(t *testing.T) {
	a := newAxis(Interval{2, 1.1, 5}, Interval{0.3, 0.1, 0.9})
	if a.low != 0.0625 || a.high != 8 {
		t.Errorf("axis %v to %v", a.low, a.high)
	}
	if !slices.Contains(a.ticks(), 1) || len(a.ticks()) > 5 {
		t.Errorf("ticks %v", a.ticks())
	}
	if x := a.at(1); math.Abs(x-axisWidth*4/7) > 1e-9 {
		t.Errorf("1 is at %v of %v", x, axisWidth)
	}
	if a.at(0) != 0 || a.at(1e9) != axisWidth {
		t.Error("what lies beyond the axis is not drawn to its edge")
	}
	if wide := newAxis(Interval{1, 1e-9, 1e9}); len(wide.ticks()) > 5 || wide.low != 1/axisEnd {
		t.Errorf("axis %+v with ticks %v", wide, wide.ticks())
	}
}

func TestAColourNeedsAnIntervalThatExcludesOne(t *testing.T) {
	for _, c := range []struct {
		i    Interval
		want string
	}{
		{Interval{3, 0.9, 9}, "lift-even"}, {Interval{1.5, 1.1, 2}, "lift-p1"}, {Interval{3, 2, 4}, "lift-p2"}, {Interval{9, 5, 12}, "lift-p3"},
		{Interval{0.6, 0.4, 0.9}, "lift-n1"}, {Interval{0.3, 0.2, 0.4}, "lift-n2"}, {Interval{0.1, 0.05, 0.2}, "lift-n3"}, {Interval{0, 0, 0.5}, "lift-n3"},
	} {
		if got := liftClass(c.i); got != c.want {
			t.Errorf("%s: %s, want %s", c.i, got, c.want)
		}
	}
}

func TestFiguresForPeople(t *testing.T) {
	for _, c := range [][2]string{
		{figure(2.456), "2.46"}, {figure(12.34), "12.3"}, {figure(123.4), "123"}, {figure(0.0012), "0.0012"}, {figure(0), "0.00"}, {figure(math.NaN()), "-"},
		{chance(0.0004), "< 0.001"}, {chance(0.0471), "0.047"}, {share(1, 0), "-"}, {share(1, 8), "12 %"}, {share(1, 80), "1.2 %"}, {tick(0.25), "1/4"}, {tick(8), "8"},
		{span(400 * time.Millisecond), "1 s"}, {span(95 * time.Second), "2 min"}, {span(130 * time.Minute), "2 h 10 min"}, {evenness(3, 12, 8), "2.00"}, {evenness(0, 0, 8), "-"},
	} {
		if c[0] != c[1] {
			t.Errorf("got %q, want %q", c[0], c[1])
		}
	}
}
