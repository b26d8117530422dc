package sched

import (
	"context"
	"errors"
	"slices"
	"testing"

	"covey/engine/model"
)

func TestSequencesThatOutgrowTheCacheTakeTurnsAndReportEachTokenOnce(t *testing.T) {
	r := start(t, func(o *Options, _ *toy) { o.Context, o.KV = 256, smallCache(5) })
	var streams []*Stream
	for i := range 4 {
		streams = append(streams, r.submit(t, Request{Prompt: prompt(i, 60), MaxTokens: 150, IgnoreEOS: true, Routing: true, PromptLogprobs: i == 3,
			Owner: []string{"", "", "", "ann"}[i]}))
	}
	for i, s := range streams {
		outputs, _, result := read(t, s)
		if want := greedy(prompt(i, 60), 150, false); !slices.Equal(result.Tokens, want) {
			t.Errorf("request %d: wrong tokens", i)
		}
		next := 60
		for _, o := range outputs {
			if o.Kind == KindToken {
				if o.Position != next || o.Token != result.Tokens[next-60] {
					t.Fatalf("request %d: token at position %d, want %d", i, o.Position, next)
				}
				next++
			}
		}
		if next != 210 {
			t.Errorf("request %d: %d tokens in the stream", i, next-60)
		}
		checkRouting(t, s, append(prompt(i, 60), result.Tokens[:149]...), 0)
	}
	checkPromptLogprobs(t, prompt(3, 60), streams[3].Result().PromptLogprobs)
	if n := streams[3].Result().CachedTokens; n != 0 {
		t.Errorf("%d cached tokens: its own pages, found again when it was put back, are no saving", n)
	}
	oldest := streams[0].Routing()
	for i, e := range oldest[1:] {
		if e.Step != oldest[i].Step+1 {
			t.Fatalf("the oldest request had no row in step %d: it must never be put back", oldest[i].Step+1)
		}
	}
	if st := r.Stats(); st.Rows <= 4*(60+149) {
		t.Errorf("%d rows ran: nothing was put back, so the test shows nothing", st.Rows)
	}
}

func TestAnswersTakeTurnsWhenAStepIsTooSmallForAll(t *testing.T) {
	r := start(t, func(o *Options, _ *toy) { o.BatchRows = 2 })
	gate := hold(r.model)
	var streams []*Stream
	for i := range 4 {
		streams = append(streams, r.submit(t, Request{Prompt: prompt(i, 1), MaxTokens: 50, IgnoreEOS: true, Routing: true}))
	}
	close(gate)
	for i, s := range streams {
		read(t, s)
		events := s.Routing()
		for j, e := range events[1:] { // two rows a step, four requests: everyone has every second step
			if gap := e.Step - events[j].Step; gap > 2 {
				t.Errorf("request %d had a row in step %d and the next one %d steps later", i, events[j].Step, gap)
			}
		}
	}
}

func hold(m *toy) chan struct{} {
	gate := make(chan struct{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = func(*model.Batch) { <-gate }
	return gate
}

func TestShortPromptAnswersWithinThreeStepsWhileALongOneIsRead(t *testing.T) {
	var long, short *Stream
	began, answered := 0, 0
	steps := 0
	r := start(t, func(o *Options, m *toy) { o.Context, o.BatchRows = 4096, 256 })
	submitted := make(chan struct{})
	r.model.before = func(b *model.Batch) {
		steps++
		switch steps {
		case 3:
			short = r.submit(t, Request{Prompt: prompt(2, 20), MaxTokens: 1, IgnoreEOS: true})
			began = steps
			close(submitted)
		}
		if short != nil && answered == 0 && short.Result() != nil {
			answered = steps - 1
		}
	}
	long = r.submit(t, Request{Prompt: prompt(1, 4000)})
	<-submitted
	_, _, result := read(t, long)
	if result.Finish != FinishLength {
		t.Fatal(result.Err)
	}
	if answered == 0 || answered-began > 3 {
		t.Errorf("submitted during step %d, answered in step %d of %d", began, answered, steps)
	}
}

func readBeside(t *testing.T, second Request) (most, mixed int) {
	var other *Stream
	steps := 0
	submitted := make(chan struct{})
	r := start(t, func(o *Options, _ *toy) { o.BatchRows, o.MixedRows, o.Context = 256, 64, 2048 })
	r.model.before = func(b *model.Batch) {
		if steps++; steps == 1 {
			other = r.submit(t, second)
			close(submitted)
		}
		if len(b.Pages) == 2 {
			mixed++
			most = max(most, len(b.Tokens))
			if b.Positions[0] < 10 || b.Sequence[1] == b.Sequence[0] {
				t.Errorf("a mixed step does not begin with one decode row: positions %d, %d", b.Positions[0], b.Positions[1])
			}
		}
	}
	first := r.submit(t, Request{Prompt: prompt(1, 10), MaxTokens: 400, IgnoreEOS: true})
	<-submitted
	read(t, other)
	read(t, first)
	return most, mixed
}

func TestDecodeRowsGoOnWhileAPromptIsRead(t *testing.T) {
	if most, mixed := readBeside(t, Request{Prompt: prompt(2, 640)}); most != 1+64 || mixed != 10 {
		t.Errorf("%d mixed steps of at most %d rows, want 10 of 65", mixed, most)
	}
}

func TestBackgroundRowsStayFewBesideOrdinaryRequests(t *testing.T) {
	if most, mixed := readBeside(t, Request{Prompt: prompt(2, 640), Background: true}); most != 1+16 || mixed != 40 {
		t.Errorf("%d mixed steps of at most %d rows, want 40 of 17", mixed, most)
	}
}

func TestQueueReportsPlacesAndRefusesBeyondItsLimit(t *testing.T) {
	r := start(t, func(o *Options, _ *toy) { o.Sequences, o.QueueLimit = 1, 2 })
	gate := hold(r.model)
	first := r.submit(t, Request{Prompt: prompt(1, 3), MaxTokens: 2, IgnoreEOS: true})
	gate <- struct{}{} // first is running now
	second := r.submit(t, Request{Prompt: prompt(2, 3), MaxTokens: 2, IgnoreEOS: true})
	third := r.submit(t, Request{Prompt: prompt(3, 3), MaxTokens: 2, IgnoreEOS: true})
	if _, err := r.Submit(context.Background(), Request{Prompt: prompt(4, 3)}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("beyond the limit: %v", err)
	}
	if o, _ := third.Next(context.Background()); o.Kind != KindQueued || o.Done != 1 {
		t.Errorf("third: %+v", o)
	}
	if st := r.Stats(); st.Queued != 2 || st.Running != 1 {
		t.Errorf("stats %+v", st)
	}
	second.Cancel()
	close(gate)
	if o, _ := third.Next(context.Background()); o.Kind != KindQueued || o.Done != 0 {
		t.Errorf("third after the second left: %+v", o)
	}
	read(t, first)
	read(t, second)
	read(t, third)
}

func TestBackgroundRequestsGiveWay(t *testing.T) {
	var probes []*Stream
	var chat *Stream
	steps, answered := 0, 0
	r := start(t, func(o *Options, _ *toy) { o.Sequences = 2 })
	ready, submitted := make(chan struct{}), make(chan struct{})
	r.model.before = func(b *model.Batch) {
		<-ready
		switch steps++; {
		case steps == 2:
			chat = r.submit(t, Request{Prompt: prompt(9, 5), MaxTokens: 3, IgnoreEOS: true})
			close(submitted)
		case chat != nil && answered == 0 && chat.Result() != nil:
			answered = steps - 1
			for i, p := range probes {
				if p.Result() != nil {
					t.Errorf("probe %d ended before the chat", i)
				}
			}
		}
	}
	for i := range 4 {
		probes = append(probes, r.submit(t, Request{Prompt: prompt(i, 100), MaxTokens: 40, IgnoreEOS: true, Background: true, Routing: true}))
	}
	close(ready)
	<-submitted
	read(t, chat)
	for i, p := range probes {
		if _, _, result := read(t, p); !slices.Equal(result.Tokens, greedy(prompt(i, 100), 40, false)) {
			t.Errorf("probe %d: wrong tokens", i)
		}
	}
	last := func(s *Stream) uint64 { events := s.Routing(); return events[len(events)-1].Step }
	if last(probes[1]) >= last(probes[2]) {
		t.Errorf("probe 1 was put back and ended in step %d, probe 2 had not begun and ended in step %d", last(probes[1]), last(probes[2]))
	}
	if answered != 5 {
		t.Errorf("the chat came during step 2 and was answered in step %d, want 5: both places were taken by probes", answered)
	}
}
