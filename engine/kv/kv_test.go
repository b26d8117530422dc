package kv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func ignore(int32) {}

// tokens gives n tokens first, first+1, ...
func tokens(first, n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(first + i)
	}
	return list
}

// write reserves and appends all of list.
func write(t *testing.T, s *Sequence, list []int32) {
	t.Helper()
	if err := s.Reserve(s.Len() + len(list)); err != nil {
		t.Fatal(err)
	}
	s.Append(list...)
}

func TestWholePagesAreReusedByTheSameOwner(t *testing.T) {
	c := New(8, 0, ignore)
	prompt := tokens(0, 200)
	first := c.Open("ann", prompt, len(prompt))
	if first.Len() != 0 {
		t.Fatalf("an empty cache gave %d tokens", first.Len())
	}
	write(t, first, prompt)
	pages := slices.Clone(first.Pages())
	first.Close()

	for _, test := range []struct {
		name   string
		prompt []int32
		reuse  int
		want   int
	}{
		{"the same prompt", prompt, 200, 192},
		{"a prompt that ends on a page still computes its last token", prompt[:128], 128, 64},
		{"one token more", prompt[:129], 129, 128},
		{"a different token in the second page", append(append(tokens(0, 100), 7), tokens(101, 99)...), 200, 64},
		{"a different first token", append([]int32{9}, prompt[1:]...), 200, 0},
		{"reuse limited by the caller", prompt, 100, 64},
		{"reuse forbidden by the caller", prompt, 0, 0},
		{"no prompt", nil, 100, 0},
	} {
		s := c.Open("ann", test.prompt, test.reuse)
		if s.Len() != test.want || !slices.Equal(s.Pages(), pages[:test.want/PageTokens]) {
			t.Errorf("%s: %d tokens in pages %v, want %d in %v", test.name, s.Len(), s.Pages(), test.want, pages[:test.want/PageTokens])
		}
		s.Close()
	}
	for _, owner := range []string{"bob", ""} {
		if s := c.Open(owner, prompt, len(prompt)); s.Len() != 0 {
			t.Errorf("owner %q was given %d tokens of ann's", owner, s.Len())
		}
	}
}

func TestRunningSequencesSharePages(t *testing.T) {
	c := New(4, 0, ignore)
	prompt := tokens(0, 130)
	a := c.Open("ann", prompt, 130)
	write(t, a, prompt)
	b := c.Open("ann", prompt, 130)
	if b.Len() != 128 {
		t.Fatalf("second sequence starts with %d tokens, want 128", b.Len())
	}
	write(t, b, prompt[128:])
	if got := c.Stats(); got != (Stats{Pages: 4, InUse: 4, Idle: 0}) {
		t.Errorf("two shared and two private pages: %+v", got)
	}
	a.Close()
	if got := c.Stats(); got.InUse != 3 || got.Idle != 0 {
		t.Errorf("after the first closed: %+v, want 3 in use", got)
	}
	b.Close()
	if got := c.Stats(); got != (Stats{Pages: 4, InUse: 0, Idle: 2}) {
		t.Errorf("after both closed: %+v, want two idle pages", got)
	}
}

func TestPagesAreClearedBeforeAnotherOwnerGetsThem(t *testing.T) {
	var cleared []int32
	c := New(2, 0, func(page int32) { cleared = append(cleared, page) })
	a := c.Open("ann", nil, 0)
	write(t, a, tokens(0, 128))
	a.Close()
	if len(cleared) != 0 {
		t.Fatalf("pages %v cleared without need", cleared)
	}
	again := c.Open("ann", nil, 0)
	write(t, again, tokens(500, 10))
	again.Close()
	if len(cleared) != 0 {
		t.Errorf("pages %v cleared for the owner whose content they held", cleared)
	}
	b := c.Open("bob", nil, 0)
	write(t, b, tokens(0, 128))
	slices.Sort(cleared)
	if !slices.Equal(cleared, []int32{0, 1}) {
		t.Errorf("pages cleared for bob: %v, want [0 1]", cleared)
	}
	b.Close()
	cleared = nil
	for range 2 { // nameless sequences are strangers to each other
		s := c.Open("", nil, 0)
		write(t, s, tokens(0, 1))
		s.Close()
	}
	if len(cleared) != 2 {
		t.Errorf("nameless sequences: pages %v cleared, want one each time", cleared)
	}
}

// Keys and values without the state behind them are no use: a cache with recurrent state reuses nothing, even for equal
// prompts of one owner, and every open sequence has a slot of its own.
func TestRecurrentSequencesHaveASlotAndReuseNoPages(t *testing.T) {
	c := New(8, 2, ignore)
	prompt := make([]int32, 2*PageTokens+1)
	a := c.Open("ann", prompt, len(prompt))
	if a.State() != -1 {
		t.Errorf("slot %d before anything is reserved", a.State())
	}
	if err := a.Reserve(len(prompt)); err != nil {
		t.Fatal(err)
	}
	a.Append(prompt...)
	b := c.Open("ann", prompt, len(prompt))
	if err := b.Reserve(1); err != nil || b.Len() != 0 || a.State() != 0 || b.State() != 1 {
		t.Errorf("%d tokens reused, slots %d and %d, %v; want 0 tokens and slots 0 and 1", b.Len(), a.State(), b.State(), err)
	}
	full := c.Open("", nil, 0)
	if err := full.Reserve(1); !errors.Is(err, ErrFull) {
		t.Errorf("a third of two slots: %v", err)
	}
	a.Close()
	if err := full.Reserve(1); err != nil || full.State() != 0 {
		t.Errorf("slot %d, %v, want the one that was given back", full.State(), err)
	}
	if s := c.Stats(); s.Idle != 0 {
		t.Errorf("%d pages kept for reuse", s.Idle)
	}
}

func TestReserveFailsWholeWhenPagesRunOut(t *testing.T) {
	c := New(3, 0, ignore)
	a, b := c.Open("", nil, 0), c.Open("", nil, 0)
	write(t, a, tokens(0, 65))
	if err := b.Reserve(65); !errors.Is(err, ErrFull) {
		t.Fatalf("reserving 2 pages of 1: %v", err)
	}
	if len(b.Pages()) != 0 || c.Available() != 1 {
		t.Errorf("a failed Reserve left %d pages with the sequence and %d available", len(b.Pages()), c.Available())
	}
	a.Close()
	if err := b.Reserve(3 * PageTokens); err != nil {
		t.Errorf("after pages came back: %v", err)
	}
}

func TestLeastRecentlyUsedLeafIsEvictedFirst(t *testing.T) {
	c := New(4, 0, ignore)
	old, young := tokens(0, 128), tokens(1000, 128)
	for _, list := range [][]int32{old, young} {
		s := c.Open("ann", nil, 0)
		write(t, s, list)
		s.Close()
	}
	s := c.Open("ann", nil, 0)
	write(t, s, tokens(5000, 1)) // needs one page: the last page of old goes
	count := func(list []int32) int {
		probe := c.Open("ann", append(slices.Clone(list), 1), 1<<20)
		defer probe.Close()
		return probe.Len()
	}
	if got := count(old); got != 64 {
		t.Errorf("%d tokens of the old sequence left, want its first page", got)
	}
	if got := count(young); got != 128 {
		t.Errorf("%d tokens of the young sequence left, want all", got)
	}
}

// A random life of many sequences against a plain record of what each page holds: no page is ever in two hands unless
// it is shared with equal content, and at the end nothing is lost.
func TestRandomUseKeepsContentApart(t *testing.T) {
	const pages = 24
	random := rand.New(rand.NewPCG(1, 2))
	content := make([][]string, pages) // [page][position] owner and token as last written
	for p := range content {
		content[p] = make([]string, PageTokens)
	}
	c := New(pages, 0, func(page int32) { clear(content[page]) })
	type live struct {
		*Sequence
		owner string
		want  []int32
	}
	mark := func(owner string, token int32) string { return fmt.Sprintf("%s %d", owner, token) }
	check := func(s live) {
		t.Helper()
		for i, token := range s.want[:s.Len()] {
			if got := content[s.Pages()[i/PageTokens]][i%PageTokens]; got != mark(s.owner, token) {
				t.Fatalf("position %d of a sequence of %s: page holds %q, want token %d", i, s.owner, got, token)
			}
		}
	}
	var open []live
	for range 4000 {
		switch random.IntN(5) {
		case 0, 1:
			owner := []string{"ann", "bob", "cy"}[random.IntN(3)]
			prompt := tokens(random.IntN(2)*1000, 1+random.IntN(400))
			if random.IntN(2) == 0 {
				prompt[random.IntN(len(prompt))] = 77
			}
			s := live{c.Open(owner, prompt, len(prompt)), owner, prompt}
			check(s)
			open = append(open, s)
		case 2, 3:
			if len(open) == 0 {
				continue
			}
			s := open[random.IntN(len(open))]
			n := min(len(s.want)-s.Len(), 1+random.IntN(100))
			if n == 0 {
				continue
			}
			before := slices.Clone(s.Pages())
			if err := s.Reserve(s.Len() + n); err != nil {
				if !errors.Is(err, ErrFull) || !slices.Equal(before, s.Pages()) {
					t.Fatalf("Reserve: %v, pages %v then %v", err, before, s.Pages())
				}
				continue
			}
			for i := s.Len(); i < s.Len()+n; i++ {
				content[s.Pages()[i/PageTokens]][i%PageTokens] = mark(s.owner, s.want[i])
			}
			s.Append(s.want[s.Len() : s.Len()+n]...)
		case 4:
			if len(open) == 0 {
				continue
			}
			i := random.IntN(len(open))
			check(open[i])
			open[i].Close()
			open = slices.Delete(open, i, i+1)
		}
	}
	for _, s := range open {
		check(s)
		s.Close()
		s.Close()
	}
	if got := c.Stats(); got.InUse != 0 || c.Available() != pages {
		t.Errorf("after all closed: %+v, %d available of %d", got, c.Available(), pages)
	}
}
