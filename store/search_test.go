package store

import (
	"slices"
	"strings"
	"testing"
)

// marked is a snippet with its matches in brackets.
func marked(fragments []Fragment) string {
	var b strings.Builder
	for _, f := range fragments {
		if f.Match {
			b.WriteString("[" + f.Text + "]")
		} else {
			b.WriteString(f.Text)
		}
	}
	return b.String()
}

func TestSearchFindsWordsInTitlesAndMessages(t *testing.T) {
	s := openNew(t)
	recipe := must(s.CreateConversation(ctx, "Crème brûlée", "", nil))
	ask(s, recipe.ID, "", "How long in the oven?", "Forty minutes at 100 °C: the centre should wobble.")
	must(s.AddMessage(ctx, recipe.ID, "", RoleUser, "把这句话翻译成中文"))
	code := must(s.CreateConversation(ctx, "Sorting", "", nil))
	ask(s, code.ID, "", "Sort a slice in Go", "Use slices.Sort(list); see \"wobble\" sort: 100% stable_sort.")
	for _, test := range []struct {
		query string
		want  []string
	}{
		{"creme", []string{"[Crème] brûlée"}},
		{"BRÛLÉE crème", []string{"[Crème] [brûlée]"}},
		{"wobb", []string{`Use slices.Sort(list); see "[wobb]le" sort: 100% stable_sort.`, "Forty minutes at 100 °C: the centre should [wobb]le."}},
		{"wobble minutes", []string{"Forty [minutes] at 100 °C: the centre should [wobble]."}},
		{"sort", []string{"[Sort]ing", `Use slices.[Sort](list); see "wobble" [sort]: 100% stable_[sort].`, "[Sort] a slice in Go"}},
		{"Go", []string{"Sort a slice in [Go]"}},
		{"sort go", []string{"[Sort] a slice in [Go]"}},
		{"翻译", []string{"把这句话[翻译]成中文"}},
		{"这句话", []string{"把[这句话]翻译成中文"}},
		{"0%", []string{`Use slices.Sort(list); see "wobble" sort: 10[0%] stable_sort.`}},
		{"_s", []string{`Use slices.Sort(list); see "wobble" sort: 100% stable[_s]ort.`}},
		{`"wobble"`, []string{`Use slices.Sort(list); see ["wobble"] sort: 100% stable_sort.`}},
		{"nothing", nil},
		{"", nil},
		{" \t\x00", nil},
	} {
		var got []string
		for _, hit := range must(s.Search(ctx, test.query, 10)) {
			got = append(got, marked(hit.Snippet))
		}
		slices.Sort(got)
		slices.Sort(test.want)
		if !slices.Equal(got, test.want) {
			t.Errorf("%q finds %q, want %q", test.query, got, test.want)
		}
	}
}

func TestHitsSayWhereTheyAre(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "About walnuts", "", nil))
	question, answer := ask(s, c.ID, "", "walnuts?", "No walnuts.")
	hits := must(s.Search(ctx, "walnuts", 10))
	if len(hits) != 3 || hits[0].Message != "" || hits[0].Title != "About walnuts" || hits[0].Conversation != c.ID {
		t.Fatalf("hits are %+v", hits)
	}
	for _, hit := range hits[1:] {
		switch hit.Message {
		case question.ID:
			if hit.Role != RoleUser || !hit.Time.Equal(question.Created) || hit.Conversation != c.ID {
				t.Errorf("hit is %+v", hit)
			}
		case answer.ID:
			if hit.Role != RoleAssistant {
				t.Errorf("hit is %+v", hit)
			}
		default:
			t.Errorf("hit is %+v", hit)
		}
	}
	if hits := must(s.Search(ctx, "walnuts", 2)); len(hits) != 2 {
		t.Errorf("limit 2 gives %d", len(hits))
	}
}

// Words of FTS5's own language and broken quotes are text like any other.
func TestSearchOperatorsAreText(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "", "", nil))
	must(s.AddMessage(ctx, c.ID, "", RoleUser, `this NOT that NEAR(a b) content:x "quoted`))
	for _, query := range []string{`NOT`, `NOT that`, `NEAR(a`, `content:x`, `"quoted`, `AND OR`, `***`, `"""`, `(`, `-x`, `^that`, `\`} {
		if _, err := s.Search(ctx, query, 10); err != nil {
			t.Errorf("%q: %v", query, err)
		}
	}
	if hits := must(s.Search(ctx, `content:x NEAR(a`, 10)); len(hits) != 1 {
		t.Errorf("found %d", len(hits))
	}
}

func TestChangedTextIsFoundByItsNewWordsOnly(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "first title", "", nil))
	ok(s.RenameConversation(ctx, c.ID, "second title"))
	_, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: "?"})
	ok(err)
	ok(s.CheckpointTurn(ctx, answer.ID, "draft words", ""))
	for query, want := range map[string]int{"first": 0, "second": 1, "draft": 0} {
		if hits := must(s.Search(ctx, query, 10)); len(hits) != want {
			t.Errorf("%q finds %d", query, len(hits))
		}
	}
	ok(s.FinishTurn(ctx, TurnResult{Answer: answer.ID, State: StateComplete, Content: "final words"}))
	for query, want := range map[string]int{"draft": 0, "final": 1} {
		if hits := must(s.Search(ctx, query, 10)); len(hits) != want {
			t.Errorf("%q finds %d", query, len(hits))
		}
	}
	if _, err := s.writer.Exec("INSERT INTO message_search (message_search, rank) VALUES ('integrity-check', 1)"); err != nil {
		t.Errorf("index and messages differ: %v", err)
	}
}

func TestDamagedSearchIndexIsMadeAnew(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "some title", "", nil))
	_, answer := ask(s, c.ID, "", "some question", "some answer")
	_, running, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Parent: answer.ID, Text: "another question"})
	ok(err)
	ok(s.CheckpointTurn(ctx, running.ID, "draft", ""))
	damage := func() {
		must(s.writer.Exec("UPDATE message_search_data SET block = unhex(replace(hex(zeroblob(length(block))), '00', 'FF'))"))
		must(s.writer.Exec("UPDATE conversation_search_data SET block = unhex(replace(hex(zeroblob(length(block))), '00', 'FF'))"))
	}

	damage()
	if hits := must(s.Search(ctx, "some", 10)); len(hits) != 3 {
		t.Errorf("search finds %+v", hits)
	}
	damage()
	ok(s.FinishTurn(ctx, TurnResult{Answer: running.ID, State: StateComplete, Content: "final"}))
	if got := must(s.Message(ctx, running.ID)); got.Content != "final" {
		t.Errorf("content is %q", got.Content)
	}
	for query, want := range map[string]int{"some": 3, "another": 1, "draft": 0, "final": 1} {
		if hits := must(s.Search(ctx, query, 10)); len(hits) != want {
			t.Errorf("%q finds %d", query, len(hits))
		}
	}
	if _, err := s.writer.Exec("INSERT INTO message_search (message_search, rank) VALUES ('integrity-check', 1)"); err != nil {
		t.Errorf("index and messages differ: %v", err)
	}
}

func TestSnippetShowsTheNeighbourhood(t *testing.T) {
	text := strings.Repeat("x", 1000) + " needle " + strings.Repeat("y", 1000)
	got := marked(snippet(text, []string{"NEEDLE"}))
	if want := "…" + strings.Repeat("x", 39) + " [needle] " + strings.Repeat("y", 113) + "…"; got != want {
		t.Errorf("snippet is %q, want %q", got, want)
	}
	if got := marked(snippet("needle", []string{"need", "needle"})); got != "[needle]" {
		t.Errorf("the longer term does not win: %q", got)
	}
	if got := marked(snippet(strings.Repeat("x", 200)+"needle", []string{"needle"})); got != "…"+strings.Repeat("x", 154)+"[needle]" {
		t.Errorf("snippet at the end is %q", got)
	}
}

func FuzzSearch(f *testing.F) {
	for _, seed := range []string{"word", `a"b`, "翻译", "NOT (", "%_\\", "\xff\x00"} {
		f.Add(seed, "text with a word")
	}
	s, err := Open(ctx, Options{Dir: f.TempDir()})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { ok(s.Close()) })
	c := must(s.CreateConversation(ctx, "a title", "", nil))
	must(s.AddMessage(ctx, c.ID, "", RoleUser, "some content"))
	f.Fuzz(func(t *testing.T, query, text string) {
		if _, err := s.Search(ctx, query, 3); err != nil {
			t.Errorf("%q: %v", query, err)
		}
		var whole strings.Builder
		for _, fragment := range snippet(clean(text), searchTerms(query)) {
			whole.WriteString(fragment.Text)
		}
		if part := strings.TrimSuffix(strings.TrimPrefix(whole.String(), "…"), "…"); !strings.Contains("…"+clean(text)+"…", part) {
			t.Errorf("snippet %q is no part of %q", part, text)
		}
	})
}
