package web

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/a-h/templ"
)

func render(t *testing.T, c templ.Component) string {
	t.Helper()
	var b strings.Builder
	if err := c.Render(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

func samplePage(t *testing.T) string {
	t.Helper()
	return render(t, ChatPage(Chat{
		Page: Page{Title: "A <title>", Section: "chat", Token: "page-token", Model: "tiny"}, ID: "c1", Name: "A <title>", Context: 100, Used: 30,
		Settings: []Setting{{Name: "temperature", Label: "Temperature", Default: "0.6", Value: "0.9"}},
		Messages: []Message{
			{ID: "u1", User: true, Text: "<script>alert(1)</script>", State: Complete, Siblings: 1},
			{ID: "a1", Text: "x", HTML: "<p>x</p>", Reasoning: "<b>hm</b>", State: Complete, Sibling: 2, Siblings: 3, Previous: "a0", Next: "a2",
				Stats: &Stats{Prompt: 20, Generated: 11, Prefill: 500 * time.Millisecond, Decode: 2 * time.Second, Bytes: 1 << 30, Detail: true}},
			{ID: "a3", Text: "y", State: Failed, Note: "No <memory>."},
			{ID: "a4", Text: "one two", HTML: "<p>one</p>", Open: "two", State: Running, Tokens: 2, Blocks: 1, Bytes: 8},
		},
	}, []Item{{ID: "c1", Name: "A <title>", Current: true, Updated: noon}}, noon))
}

// The content policy blocks inline scripts, styles and handlers: a page must have none.
func TestPagesHoldNothingThatThePolicyBlocks(t *testing.T) {
	page := samplePage(t)
	for _, pattern := range []string{`<script(?:[^>]*[^>/])?>\s*[^<\s]`, `\son[a-z]+=`, `\sstyle=`, `<style`, `javascript:`} {
		if found := regexp.MustCompile(pattern).FindString(page); found != "" {
			t.Errorf("found %q by %s", found, pattern)
		}
	}
}

func TestTextOfPeopleAndModelsIsEscaped(t *testing.T) {
	page := samplePage(t)
	for _, bad := range []string{"<script>alert", "<b>hm", "<memory>", "A <title>"} {
		if strings.Contains(page, bad) {
			t.Errorf("%q stands in the page", bad)
		}
	}
}

func TestPageHasItsLandmarksAndState(t *testing.T) {
	page := samplePage(t)
	for _, want := range []string{
		`<html lang="en">`, `<meta name="covey-page" content="page-token">`, `href="#main"`, `<main id="main"`, `<nav class="sections" aria-label="Main">`,
		`<aside class="side"`, `aria-current`, `id="announcer"`, `2/3`, `data-message="a0"`, `data-message="a2"`, `No &lt;memory&gt;.`, `Retry`,
		`data-state="running" data-tokens="2" data-blocks="1" data-bytes="8"`, `data-changed`, `Default: 0.6`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in the page", want)
		}
	}
}

func TestStatisticsAreRatesOfWhatWasMeasured(t *testing.T) {
	line := render(t, StatsLine(Stats{Prompt: 30, Cached: 10, Generated: 11, Queue: 100 * time.Millisecond, Prefill: 400 * time.Millisecond, Decode: 2 * time.Second, Bytes: 1_500_000_000}))
	text := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(line, "")
	// 20 tokens were read in 0.4 s (10 came from the cache); the first of 11 tokens ends the reading, 10 took 2 s.
	for _, want := range []string{"30 prompt at 50.0 tok/s", "11 generated at 5.0 tok/s", "first token 500 ms", "experts read 1.5 GB"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	cut := Message{ID: "a", State: Stopped, Note: "interrupted", Text: "As the sun", Stats: &Stats{Finish: "interrupted"}}
	if text := render(t, Foot(cut)); strings.Contains(text, `class="stats"`) || !strings.Contains(text, "Stopped: interrupted") {
		t.Errorf("the foot of an answer that a kill cut off: %s", text)
	}
	if text := render(t, StatsLine(Stats{Prompt: 5})); !strings.Contains(text, "<b>-</b>") {
		t.Errorf("what was not measured is not a dash: %q", text)
	}
}

func TestConversationsAreGroupedByDay(t *testing.T) {
	at := func(d time.Duration) time.Time { return noon.Add(-d) }
	groups := Groups([]Item{
		{ID: "p", Pinned: true, Updated: at(90 * 24 * time.Hour)}, {ID: "a", Updated: at(time.Hour)}, {ID: "b", Updated: at(20 * time.Hour)},
		{ID: "c", Updated: at(5 * 24 * time.Hour)}, {ID: "d", Updated: at(20 * 24 * time.Hour)}, {ID: "e", Updated: at(60 * 24 * time.Hour)}, {ID: "f", Updated: at(90 * 24 * time.Hour)},
	}, noon)
	var got []string
	for _, g := range groups {
		line := g.Name + ":"
		for _, item := range g.Items {
			line += " " + item.ID
		}
		got = append(got, line)
	}
	want := "Pinned: p, Today: a, Yesterday: b, Last 7 days: c, Last 30 days: d, Older: e f"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("got %q, want %q", s, want)
	}
}

func TestFiguresReadWell(t *testing.T) {
	for got, want := range map[string]string{
		Bytes(0): "-", Bytes(999): "999 B", Bytes(1500): "1.5 kB", Bytes(370_000_000): "370 MB", Bytes(3_100_000_000): "3.1 GB",
		Seconds(0): "-", Seconds(240 * time.Millisecond): "240 ms", Seconds(1400 * time.Millisecond): "1.4 s", Seconds(125 * time.Second): "2 min 5 s",
		Count(8192): "8192", Count(1234567): "1\u202f234\u202f567", Rate(0, time.Second): "-", Rate(300, time.Second): "300", Rate(9, 2*time.Second): "4.5",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
