package sched

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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

func TestSequencesThatGrowLongRunAgainAsLongOnes(t *testing.T) {
	const from = 70
	long := map[int]int{} // rows of long sequences by position
	r := start(t, func(o *Options, m *toy) {
		o.LongFrom = from
		m.before = func(b *model.Batch) {
			for row, slot := range b.Sequence {
				if position := int(b.Positions[row]); b.Long[slot] {
					long[position]++
				} else if position >= from {
					t.Errorf("position %d ran as part of a short sequence", position)
				}
			}
		}
	})
	for _, owner := range []string{"", "ann", "ann"} {
		_, _, result := read(t, r.submit(t, Request{Prompt: prompt(1, 66), MaxTokens: 20, IgnoreEOS: true, Owner: owner}))
		if want := greedy(prompt(1, 66), 20, false); !slices.Equal(result.Tokens, want) {
			t.Errorf("owner %q: %v, want %v", owner, result.Tokens, want)
		}
	}
	// The last one finds the page that the one before it left as a long sequence, and not the one it left as a short one.
	if long[0] != 2 || long[64] != 3 || long[84] != 3 {
		t.Errorf("positions 0, 64 and 84 ran %d, %d and %d times in long sequences, want 2, 3 and 3", long[0], long[64], long[84])
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

// timed runs a test in a bubble of made-up time, in which each row of a step takes as long as row says; steps gives the rows of
// each step that has begun.
func timed(t *testing.T, row time.Duration, change func(*Options), test func(t *testing.T, r *rig, steps func() []int)) {
	synctest.Test(t, func(t *testing.T) {
		var steps []int // rows of each
		r := start(t, func(o *Options, m *toy) {
			o.Context, o.BatchRows = 4096, 256
			if change != nil {
				change(o)
			}
			m.before = func(b *model.Batch) {
				steps = append(steps, len(b.Tokens))
				time.Sleep(time.Duration(len(b.Tokens)) * row)
			}
		})
		test(t, r, func() []int { synctest.Wait(); return steps })
	})
}

func TestShortPromptIsAnsweredInTheStepAfterTheOneThatItCameIn(t *testing.T) {
	for name, answering := range map[string]bool{"while a long one is read": false, "while a long one is read and an answer written": true} {
		t.Run(name, func(t *testing.T) {
			timed(t, time.Millisecond, nil, func(t *testing.T, r *rig, steps func() []int) {
				if answering {
					r.submit(t, Request{Prompt: prompt(3, 20), MaxTokens: 1000, IgnoreEOS: true})
					time.Sleep(100 * time.Millisecond)
				}
				r.submit(t, Request{Prompt: prompt(1, 2000)})
				time.Sleep(600 * time.Millisecond)
				inHand := len(steps())
				asked := time.Now()
				short := r.submit(t, Request{Prompt: prompt(2, 60), MaxTokens: 1, IgnoreEOS: true, Routing: true})
				_, _, result := read(t, short)
				if e := short.Routing(); len(e) != 1 || e[0].Step != uint64(inHand)+1 || e[0].Rows() != 60 || len(result.Tokens) != 1 {
					t.Errorf("came in step %d, read in %d steps from %d on", inHand, len(e), e[0].Step)
				}
				if rows := steps()[inHand]; rows > 100 {
					t.Errorf("its step had %d rows: it waited for those of the long prompt", rows)
				}
				if waited, most := time.Since(asked), 256*time.Millisecond+shortStep; waited > most {
					t.Errorf("answered after %v, want at most %v: the step in hand and a short one", waited, most)
				}
			})
		})
	}
}

func TestLonePromptIsReadInWholeSteps(t *testing.T) {
	timed(t, time.Second, nil, func(t *testing.T, r *rig, steps func() []int) {
		read(t, r.submit(t, Request{Prompt: prompt(1, 600)}))
		if want := []int{256, 256, 88}; !slices.Equal(steps(), want) {
			t.Errorf("steps of %v rows, want %v", steps(), want)
		}
	})
}

func TestAnswerWaitsATenthOfASecondOrAFewTokensTimeWhileAPromptIsRead(t *testing.T) {
	for _, c := range []struct {
		row  time.Duration
		rows int // of a step that reads and decodes
		says string
	}{
		{10 * time.Microsecond, 256, "rows cost nothing: the whole step"},
		{time.Millisecond, 1 + 99, "a tenth of a second"},
		{50 * time.Millisecond, 1 + 16, "rows are dear: as few as are worth their weights"},
	} {
		timed(t, c.row, nil, func(t *testing.T, r *rig, steps func() []int) {
			first := r.submit(t, Request{Prompt: prompt(1, 20), MaxTokens: 400, IgnoreEOS: true})
			time.Sleep(30 * c.row)
			before := len(steps())
			second := r.submit(t, Request{Prompt: prompt(2, 1000), MaxTokens: 1, IgnoreEOS: true})
			read(t, second)
			reading := steps()[before : len(steps())-1]
			for i, rows := range reading {
				if i == 0 && rows == 1 { // the step in hand when the prompt came
					continue
				}
				if last := i == len(reading)-1; rows != c.rows && !last {
					t.Errorf("%s: step %d of the prompt has %d rows, want %d", c.says, i, rows, c.rows)
				}
			}
			first.Cancel()
			if _, _, result := read(t, first); !slices.Equal(result.Tokens, greedy(prompt(1, 20), len(result.Tokens), false)) || len(result.Tokens) < len(reading) {
				t.Errorf("%s: %d tokens in %d steps, or wrong ones", c.says, len(result.Tokens), len(reading))
			}
		})
	}
}

func TestBackgroundRowsStayFewBesideOrdinaryRequests(t *testing.T) {
	timed(t, time.Millisecond, nil, func(t *testing.T, r *rig, steps func() []int) {
		first := r.submit(t, Request{Prompt: prompt(1, 20), MaxTokens: 400, IgnoreEOS: true})
		time.Sleep(30 * time.Millisecond)
		probe := r.submit(t, Request{Prompt: prompt(2, 640), Background: true, Routing: true})
		read(t, probe)
		first.Cancel()
		read(t, first)
		for i, e := range probe.Routing() {
			if e.Rows() > 99/4 {
				t.Errorf("step %d of the probe has %d rows, want at most a quarter of the 99 that an ordinary prompt would get", i, e.Rows())
			}
		}
	})
}

func TestOldestPromptGetsAQuarterOfTheRowsHoweverManyShortOnesCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // steps take no time, so all of them are whole
		r := start(t, nil)
		left := 40
		gate := make(chan struct{})
		r.model.before = func(*model.Batch) {
			<-gate
			for range min(left, 4) { // four new ones in every step
				left--
				r.submit(t, Request{Prompt: prompt(left, 30), MaxTokens: 1, IgnoreEOS: true})
			}
		}
		long := r.submit(t, Request{Prompt: prompt(99, 200), MaxTokens: 1, IgnoreEOS: true, Routing: true})
		r.submit(t, Request{Prompt: prompt(98, 30), MaxTokens: 1, IgnoreEOS: true})
		close(gate)
		if _, _, result := read(t, long); result.Err != nil {
			t.Fatal(result.Err)
		}
		events := long.Routing()
		for i, e := range events {
			if i > 0 && e.Step != events[i-1].Step+1 || e.Rows() < 8 && i < len(events)-1 {
				t.Errorf("step %d: %d of 32 rows, want 8 or more in every step", e.Step, e.Rows())
			}
		}
	})
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
