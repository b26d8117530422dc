package sched

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"covey/engine/model"
	"covey/engine/sample"
)

func TestAnswerIsThatOfTheSequenceAlone(t *testing.T) {
	for _, c := range []struct {
		name                    string
		batch, chunk, sequences int
	}{
		{"one row a step", 1, 1, 4},
		{"chunks of 17", 32, 17, 4},
		{"one sequence at a time", 256, 256, 1},
		{"all together", 256, 256, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, func(o *Options, _ *toy) { o.BatchRows, o.PrefillRows, o.Sequences = c.batch, c.chunk, c.sequences })
			var streams []*Stream
			for i, n := range []int{1, 5, 64, 65, 200} {
				streams = append(streams, r.submit(t, Request{Prompt: prompt(i, n), MaxTokens: 20, IgnoreEOS: true, Hash: true}))
			}
			for i, n := range []int{1, 5, 64, 65, 200} {
				_, text, result := read(t, streams[i])
				want := greedy(prompt(i, n), 20, false)
				if !slices.Equal(result.Tokens, want) {
					t.Errorf("prompt of %d: got %v, want %v", n, result.Tokens, want)
				}
				d := &letters{}
				var b strings.Builder
				for _, tok := range want {
					b.WriteString(d.Push(tok))
				}
				b.WriteString(d.Flush())
				if text != b.String() {
					t.Errorf("prompt of %d: text %q, want %q", n, text, b.String())
				}
				if result.Finish != FinishLength || result.PromptTokens != n || len(result.Hash) != 64 {
					t.Errorf("prompt of %d: result %+v", n, result)
				}
			}
		})
	}
}

func TestHashDoesNotDependOnBatchChunkOrPreemption(t *testing.T) {
	hashes := map[string]string{}
	for _, change := range []func(*Options, *toy){
		nil,
		func(o *Options, _ *toy) { o.BatchRows = 1 },
		func(o *Options, _ *toy) { o.BatchRows, o.PrefillRows = 32, 7 },
		func(o *Options, _ *toy) { o.Context, o.KV = 256, smallCache(5) },
	} {
		r := start(t, change)
		var streams []*Stream
		for i := range 4 {
			streams = append(streams, r.submit(t, Request{Prompt: prompt(i, 60), MaxTokens: 100, IgnoreEOS: true, Hash: true, Sampling: sample.Params{Temperature: 1, Seed: 5}}))
		}
		for i, s := range streams {
			_, _, result := read(t, s)
			key := fmt.Sprint(i)
			if hashes[key] == "" {
				hashes[key] = result.Hash
			}
			if result.Hash != hashes[key] || result.Err != nil {
				t.Errorf("request %d: hash %.8s, want %.8s (error %v)", i, result.Hash, hashes[key], result.Err)
			}
		}
	}
	if hashes["0"] == hashes["1"] {
		t.Error("different prompts have equal hashes")
	}
}

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

// checkRouting compares the collected events with the routing of tokens from position from on.
func checkRouting(t *testing.T, s *Stream, tokens []int32, from int) {
	t.Helper()
	next := from
	for _, e := range s.Routing() {
		if e.Position != next || e.Sequence != s.ID() {
			t.Fatalf("event of sequence %d at position %d, want %d at %d", e.Sequence, e.Position, s.ID(), next)
		}
		for r := range e.Rows() {
			ids, weights := e.Row(toyShape, r)
			wantIDs, wantWeights := toyRouting(toyState(tokens[:next+1]), nil)
			if e.Tokens[r] != tokens[next] || !slices.Equal(ids, wantIDs) || !slices.Equal(weights, wantWeights) {
				t.Fatalf("position %d: token %d experts %v, want %d %v", next, e.Tokens[r], ids, tokens[next], wantIDs)
			}
			next++
		}
	}
	if next != len(tokens) {
		t.Errorf("routing ends at position %d, want %d", next, len(tokens))
	}
}

func TestRoutingCoversPromptAndAnswerRows(t *testing.T) {
	r := start(t, nil)
	s := r.submit(t, Request{Prompt: prompt(1, 50), MaxTokens: 5, IgnoreEOS: true, Routing: true})
	outputs, _, result := read(t, s)
	all := append(prompt(1, 50), result.Tokens...)
	checkRouting(t, s, all[:54], 0) // the last token is never an input
	for _, o := range outputs {
		if o.Kind != KindToken {
			continue
		}
		if want, _ := toyRouting(toyState(all[:o.Position]), nil); !slices.Equal(o.IDs, want) {
			t.Errorf("token at %d: experts %v, want those of the row before, %v", o.Position, o.IDs, want)
		}
	}
}

func TestExpertBytesCountEachRecordOnceAStep(t *testing.T) {
	r := start(t, func(o *Options, _ *toy) { o.BatchRows = 10 })
	p := prompt(2, 20) // two steps of ten rows
	_, _, result := read(t, r.submit(t, Request{Prompt: p}))
	var want int64
	for step := range 2 {
		seen := map[[2]int]bool{}
		for i := step * 10; i < step*10+10; i++ {
			ids, _ := toyRouting(toyState(p[:i+1]), nil)
			for slot, id := range ids {
				key := [2]int{slot / 2, int(id)}
				if !seen[key] {
					want += []int64{100, 1000}[key[0]]
				}
				seen[key] = true
			}
		}
	}
	if result.Bytes != want {
		t.Errorf("%d bytes, want %d", result.Bytes, want)
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
	var ends []uint64
	for _, s := range streams {
		read(t, s)
		events := s.Routing()
		ends = append(ends, events[len(events)-1].Step)
	}
	if slices.Max(ends)-slices.Min(ends) > 3 {
		t.Errorf("equal requests ended in steps %v", ends)
	}
}

func TestPrefillOnlyRequestChoosesNothing(t *testing.T) {
	r := start(t, nil)
	outputs, text, result := read(t, r.submit(t, Request{Prompt: prompt(1, 70)}))
	if result.Finish != FinishLength || len(result.Tokens) != 0 || text != "" || result.Hash != "" {
		t.Errorf("result %+v", result)
	}
	if last := outputs[len(outputs)-1]; last.Kind != KindPrefill || last.Total != 70 {
		t.Errorf("last output %+v", last)
	}
}

// answerUntil finds a prompt whose greedy answer satisfies ok.
func answerUntil(t *testing.T, ok func(answer []int32) bool) (p, answer []int32) {
	t.Helper()
	for seed := range 10000 {
		p = prompt(seed, 3)
		if answer = greedy(p, 12, true); ok(answer) {
			return p, answer
		}
	}
	t.Fatal("no such prompt")
	return nil, nil
}

func TestEndOfAnswerTokenIsNotPartOfTheAnswer(t *testing.T) {
	p, answer := answerUntil(t, func(a []int32) bool { return len(a) >= 2 && len(a) < 10 })
	r := start(t, nil)
	_, _, result := read(t, r.submit(t, Request{Prompt: p, MaxTokens: 12}))
	if result.Finish != FinishStop || result.Stop != "" || !slices.Equal(result.Tokens, answer) {
		t.Errorf("finish %q after %v, want %v", result.Finish, result.Tokens, answer)
	}
	_, _, result = read(t, r.submit(t, Request{Prompt: p, MaxTokens: 12, IgnoreEOS: true}))
	if result.Finish != FinishLength || len(result.Tokens) != 12 || result.Tokens[len(answer)] != toyEOS {
		t.Errorf("ignoring it: finish %q, tokens %v", result.Finish, result.Tokens)
	}
}

func TestStopTextAcrossTokensIsNotEmitted(t *testing.T) {
	p, answer := answerUntil(t, func(a []int32) bool {
		return len(a) == 12 && !slices.ContainsFunc(a, func(x int32) bool { return x >= 40 })
	})
	var all string
	for _, tok := range answer {
		all += letter(tok)
	}
	stop := all[4:7]
	at := strings.Index(all, stop)
	r := start(t, nil)
	_, text, result := read(t, r.submit(t, Request{Prompt: p, MaxTokens: 12, Stops: []string{"never this", stop}}))
	if text != all[:at] || result.Finish != FinishStop || result.Stop != stop || len(result.Tokens) != at+3 {
		t.Errorf("text %q, finish %q at %q after %d tokens; want %q", text, result.Finish, result.Stop, len(result.Tokens), all[:at])
	}
	_, text, result = read(t, r.submit(t, Request{Prompt: p, MaxTokens: 6, Stops: []string{all[4:6] + "!"}}))
	if text != all[:6] || result.Finish != FinishLength {
		t.Errorf("partial match at the end: text %q, want %q", text, all[:6])
	}
}

func TestTextHeldAtTheEndOfTheAnswerBelongsToTheLastToken(t *testing.T) {
	p, answer := answerUntil(t, func(a []int32) bool { return len(a) > 1 && len(a) < 12 && a[len(a)-1] == 40 })
	r := start(t, nil)
	outputs, text, _ := read(t, r.submit(t, Request{Prompt: p, MaxTokens: 12}))
	if !strings.HasSuffix(text, "\uFFFD") {
		t.Errorf("text %q", text)
	}
	if last := outputs[len(outputs)-1]; last.Token != 40 || last.Position != len(p)+len(answer)-1 || last.Text != "\uFFFD" {
		t.Errorf("last output %+v", last)
	}
}

func TestContextEndsTheAnswer(t *testing.T) {
	r := start(t, func(o *Options, _ *toy) { o.Context = 100 })
	_, _, result := read(t, r.submit(t, Request{Prompt: prompt(1, 95), MaxTokens: 50, IgnoreEOS: true}))
	if result.Finish != FinishLength || len(result.Tokens) != 5 {
		t.Errorf("finish %q after %d tokens", result.Finish, len(result.Tokens))
	}
	if _, _, result = read(t, r.submit(t, Request{Prompt: prompt(1, 100)})); result.Finish != FinishLength {
		t.Errorf("prefill of the whole context: %+v", result)
	}
	_, err := r.Submit(context.Background(), Request{Prompt: prompt(1, 100), MaxTokens: 1})
	if !errors.Is(err, ErrTooLong) || !strings.Contains(err.Error(), "100 tokens and at least 1 would follow, the context is 100") {
		t.Errorf("got %v", err)
	}
}

func TestLogprobsAreThoseOfTheUnmodifiedDistribution(t *testing.T) {
	r := start(t, nil)
	p := prompt(3, 10)
	outputs, _, result := read(t, r.submit(t, Request{Prompt: p, MaxTokens: 3, IgnoreEOS: true, Logprobs: 4, PromptLogprobs: true,
		Sampling: sample.Params{Temperature: 1.5, Seed: 3, RepetitionPenalty: 1.3}}))
	all := append(p, result.Tokens...)
	for _, o := range outputs {
		if o.Kind != KindToken {
			continue
		}
		lp, top, _ := sample.Logprobs(toyLogits(toyState(all[:o.Position])), o.Token, 4)
		if o.Logprob != lp || !slices.Equal(o.Top, top) || len(top) != 4 {
			t.Errorf("position %d: %v %v, want %v %v", o.Position, o.Logprob, o.Top, lp, top)
		}
	}
	checkPromptLogprobs(t, p, result.PromptLogprobs)
}

func checkPromptLogprobs(t *testing.T, p []int32, got []float32) {
	t.Helper()
	if len(got) != len(p)-1 {
		t.Fatalf("%d log-probabilities for a prompt of %d", len(got), len(p))
	}
	for i := range got {
		if want, _, _ := sample.Logprobs(toyLogits(toyState(p[:i+1])), p[i+1], 0); got[i] != want {
			t.Errorf("prompt token %d: %v, want %v", i+1, got[i], want)
		}
	}
}

func TestSamplingIsThatOfTheParametersAndTheAnswerSoFar(t *testing.T) {
	r := start(t, nil)
	p := prompt(4, 30)
	params := sample.Params{Temperature: 0.9, TopP: 0.95, RepetitionPenalty: 1.5, FrequencyPenalty: 1, Seed: 9, LogitBias: map[int32]float32{3: 4}}
	_, _, result := read(t, r.submit(t, Request{Prompt: p, MaxTokens: 40, IgnoreEOS: true, Sampling: params, Choice: 2}))
	state := sample.NewState(params, 2, p)
	all := slices.Clone(p)
	for i, got := range result.Tokens {
		want, err := state.Choose(toyLogits(toyState(all)), len(all))
		if err != nil || got != want {
			t.Fatalf("token %d: %d, want %d (%v)", i, got, want, err)
		}
		state.Add(want)
		all = append(all, want)
	}
}

func TestPromptLogprobsKeepWithinTheModelsLogitRows(t *testing.T) {
	r := start(t, func(o *Options, _ *toy) { o.LogitRows = 5 })
	var streams []*Stream
	for i := range 6 {
		streams = append(streams, r.submit(t, Request{Prompt: prompt(i, 40), MaxTokens: 4, IgnoreEOS: true, PromptLogprobs: i%2 == 0, Owner: "a"}))
	}
	for i, s := range streams {
		_, _, result := read(t, s)
		if want := (1 - i%2) * 39; len(result.PromptLogprobs) != want || len(result.Tokens) != 4 {
			t.Errorf("request %d: %d prompt log-probabilities, want %d; %d tokens", i, len(result.PromptLogprobs), want, len(result.Tokens))
		}
	}
}

func TestPrefixIsReusedInsideOneOwnerOnly(t *testing.T) {
	r := start(t, nil)
	p := prompt(1, 200)
	for _, c := range []struct {
		name   string
		req    Request
		cached int
	}{
		{"first", Request{Owner: "ann"}, 0},
		{"again", Request{Owner: "ann"}, 192},
		{"other owner", Request{Owner: "bob"}, 0},
		{"no owner", Request{}, 0},
		{"no owner again", Request{}, 0},
		{"prompt log-probabilities need every row", Request{Owner: "ann", PromptLogprobs: true}, 0},
		{"banned experts share with nobody", Request{Owner: "ann", Banned: []Expert{{1, 2}}}, 0},
		{"and leave nothing behind", Request{Owner: "ann"}, 192},
	} {
		c.req.Prompt, c.req.MaxTokens, c.req.IgnoreEOS, c.req.Routing = p, 8, true, true
		s := r.submit(t, c.req)
		_, _, result := read(t, s)
		if result.CachedTokens != c.cached {
			t.Errorf("%s: %d cached tokens, want %d", c.name, result.CachedTokens, c.cached)
		}
		if want := greedy(p, 8, false); !slices.Equal(result.Tokens, want) {
			t.Errorf("%s: %v, want %v", c.name, result.Tokens, want)
		}
		if c.req.Banned == nil {
			checkRouting(t, s, append(slices.Clone(p), result.Tokens[:7]...), c.cached)
		}
	}
}

func TestBannedExpertsReachOnlyTheirRows(t *testing.T) {
	r := start(t, nil)
	gate := hold(r.model)
	plain := r.submit(t, Request{Prompt: prompt(1, 9), MaxTokens: 4, IgnoreEOS: true, Routing: true})
	banned := r.submit(t, Request{Prompt: prompt(2, 9), MaxTokens: 4, IgnoreEOS: true, Routing: true, Banned: []Expert{{1, 0}, {1, 1}}})
	close(gate)
	_, _, result := read(t, plain)
	checkRouting(t, plain, append(prompt(1, 9), result.Tokens[:3]...), 0)
	read(t, banned)
	for _, e := range banned.Routing() {
		for i, id := range e.IDs {
			if int(id) != 6+i%2 {
				t.Fatalf("expert %d served a row that bans it", id)
			}
		}
	}
	_, err := r.Submit(context.Background(), Request{Prompt: prompt(1, 9), Banned: make([]Expert, 7)})
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("too many bans: %v", err)
	}
}

// hold makes the toy wait before each step until the returned channel yields or is closed.
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

// readBeside submits second while the first token of an answer of 400 is being computed, and returns the most rows that a
// step with rows of both had, and the number of such steps.
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

func TestCancelFreesRowsBeforeTheNextStep(t *testing.T) {
	r := start(t, nil)
	gate := hold(r.model)
	a := r.submit(t, Request{Prompt: prompt(1, 10), MaxTokens: 1000, IgnoreEOS: true})
	b := r.submit(t, Request{Prompt: prompt(2, 10), MaxTokens: 3, IgnoreEOS: true})
	gate <- struct{}{} // a's first step, begun before or after b came
	gate <- struct{}{}
	a.Cancel()
	tokens := make(chan int)
	go func() {
		_, _, result := read(t, a)
		if result.Finish != FinishCancel || result.Err != nil {
			t.Errorf("result %+v", result)
		}
		tokens <- len(result.Tokens)
	}()
	select {
	case n := <-tokens: // ended before any further step
		if n > 2 {
			t.Errorf("%d tokens after two steps", n)
		}
	case gate <- struct{}{}: // at most the step that was already put together
		<-tokens
	}
	close(gate)
	if _, _, result := read(t, b); result.Finish != FinishLength {
		t.Errorf("the neighbour: %+v", result)
	}
	a.Cancel() // harmless after the end
}

func TestContextOfTheCallerCancelsTheRequest(t *testing.T) {
	r := start(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	s, err := r.Submit(ctx, Request{Prompt: prompt(1, 10), MaxTokens: 2000, IgnoreEOS: true})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, _, result := read(t, s); result.Finish != FinishCancel {
		t.Errorf("finish %q", result.Finish)
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

func TestNonFiniteLogitFailsThatRequestOnly(t *testing.T) {
	r := start(t, func(_ *Options, m *toy) { m.bad = func(token int32) bool { return token == 50 } })
	gate := hold(r.model)
	bad := r.submit(t, Request{Prompt: []int32{1, 50, 2}, MaxTokens: 5})
	good := r.submit(t, Request{Prompt: []int32{1, 2, 3}, MaxTokens: 1, IgnoreEOS: true})
	close(gate)
	if _, _, result := read(t, bad); result.Finish != FinishError || !errors.Is(result.Err, ErrNonFinite) || !strings.Contains(result.Err.Error(), "position 1") {
		t.Errorf("bad: %+v", result)
	}
	if _, _, result := read(t, good); result.Finish != FinishLength || result.Err != nil {
		t.Errorf("good: %+v", result)
	}
}

func TestFailedStepEndsItsRequestsAndTheSchedulerGoesOn(t *testing.T) {
	r := start(t, nil)
	broken := errors.New("device lost")
	r.model.fail = broken
	if _, _, result := read(t, r.submit(t, Request{Prompt: prompt(1, 5), MaxTokens: 5})); result.Finish != FinishError || !errors.Is(result.Err, broken) {
		t.Errorf("result %+v", result)
	}
	r.model.mu.Lock()
	r.model.fail = nil
	r.model.mu.Unlock()
	if _, _, result := read(t, r.submit(t, Request{Prompt: prompt(1, 5), MaxTokens: 5})); result.Err != nil {
		t.Errorf("afterwards: %+v", result)
	}
}

func TestInvalidRequestsAreNamed(t *testing.T) {
	r := start(t, nil)
	for want, q := range map[string]Request{
		"the prompt is empty": {},
		"prompt token 64 at position 1, the vocabulary has 64": {Prompt: []int32{1, 64}},
		"MaxTokens is -1":                           {Prompt: []int32{1}, MaxTokens: -1},
		"Logprobs is 21, want -1 to 20":             {Prompt: []int32{1}, Logprobs: 21},
		"stop text 0 has 0 bytes":                   {Prompt: []int32{1}, Stops: []string{""}},
		"17 stop texts, at most 16":                 {Prompt: []int32{1}, Stops: make([]string, 17)},
		"choice index -1":                           {Prompt: []int32{1}, Choice: -1},
		"temperature is 3, want 0 to 2":             {Prompt: []int32{1}, Sampling: sample.Params{Temperature: 3}},
		"logit_bias names token 64, the vocabulary": {Prompt: []int32{1}, Sampling: sample.Params{LogitBias: map[int32]float32{64: 1}}},
	} {
		if _, err := r.Submit(context.Background(), q); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestUnreadStreamDoesNotHoldUpOthersAndStaysSmall(t *testing.T) {
	r := start(t, nil)
	unread := r.submit(t, Request{Prompt: prompt(1, 300), MaxTokens: 50, IgnoreEOS: true})
	read(t, r.submit(t, Request{Prompt: prompt(2, 300), MaxTokens: 100, IgnoreEOS: true}))
	for unread.Result() == nil {
		time.Sleep(time.Millisecond)
	}
	outputs, _, _ := read(t, unread)
	if len(outputs) > 51 {
		t.Errorf("%d outputs for 50 tokens", len(outputs))
	}
}

func TestNextReturnsWhenItsContextEndsAndTheRequestGoesOn(t *testing.T) {
	r := start(t, nil)
	gate := hold(r.model)
	s := r.submit(t, Request{Prompt: prompt(1, 3), MaxTokens: 2, IgnoreEOS: true})
	ctx, cancel := context.WithCancel(context.Background())
	if o, err := s.Next(ctx); err != nil || o.Kind != KindQueued {
		t.Fatalf("%+v, %v", o, err)
	}
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(gate)
	if _, _, result := read(t, s); len(result.Tokens) != 2 {
		t.Errorf("result %+v", result)
	}
}

func TestSubscribersSeeAllSequencesAndSlowOnesLoseEvents(t *testing.T) {
	r := start(t, nil)
	events, cancel := r.Subscribe()
	slow, _ := r.Subscribe()
	counts := make(chan map[uint64]int)
	go func() {
		rows := map[uint64]int{}
		for e := range events {
			rows[e.Sequence] += e.Rows()
		}
		counts <- rows
	}()
	var streams []*Stream
	for i := range 2 {
		streams = append(streams, r.submit(t, Request{Prompt: prompt(i, 10), MaxTokens: 200, IgnoreEOS: true}))
	}
	for _, s := range streams {
		read(t, s)
	}
	cancel()
	cancel()
	rows := <-counts
	for _, s := range streams {
		if got := rows[s.ID()]; got > 209 || got == 0 {
			t.Errorf("sequence %d: %d rows, want at most 209", s.ID(), got)
		}
	}
	if len(slow) != busDepth || r.Stats().RoutingDropped == 0 {
		t.Errorf("slow reader has %d events, %d were dropped", len(slow), r.Stats().RoutingDropped)
	}
	r.Close()
	for range slow {
	}
	late, _ := r.Subscribe()
	if _, ok := <-late; ok {
		t.Error("a subscription after Close yields events")
	}
}

func TestCloseCancelsWhatRunsAndRefusesWhatFollows(t *testing.T) {
	r := start(t, func(o *Options, _ *toy) { o.Sequences = 1 })
	running := r.submit(t, Request{Prompt: prompt(1, 3), MaxTokens: 2000, IgnoreEOS: true})
	waiting := r.submit(t, Request{Prompt: prompt(2, 3), MaxTokens: 2000, IgnoreEOS: true})
	r.Close()
	for _, s := range []*Stream{running, waiting} {
		if _, _, result := read(t, s); result.Finish != FinishCancel {
			t.Errorf("finish %q", result.Finish)
		}
	}
	if _, err := r.Submit(context.Background(), Request{Prompt: prompt(1, 3)}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	r.Close()
}

func TestHundredRequestsWithRandomCancelsLeaveNothingBehind(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	func() {
		r := start(t, func(o *Options, _ *toy) { o.Context, o.KV = 512, smallCache(12) })
		defer r.Close()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				rng := rand.New(rand.NewPCG(uint64(i), 1))
				p := prompt(i%10, 1+rng.IntN(150))
				n := rng.IntN(60)
				s, err := r.Submit(context.Background(), Request{Prompt: p, MaxTokens: n, IgnoreEOS: true, Owner: []string{"", "ann", "bob"}[i%3],
					Routing: i%2 == 0, Background: i%5 == 0})
				if err != nil {
					t.Error(err)
					return
				}
				cancelAfter := -1
				if i%3 != 0 {
					cancelAfter = rng.IntN(20)
				}
				for k := 0; ; k++ {
					if k == cancelAfter {
						s.Cancel()
					}
					if _, err := s.Next(context.Background()); err == io.EOF {
						break
					}
				}
				result := s.Result()
				if want := greedy(p, n, false); !slices.Equal(result.Tokens, want[:len(result.Tokens)]) {
					t.Errorf("request %d: wrong tokens", i)
				}
				if result.Finish != FinishLength && result.Finish != FinishCancel || result.Err != nil {
					t.Errorf("request %d: finish %q, %v", i, result.Finish, result.Err)
				}
			}()
		}
		wg.Wait()
		r.Close()
		if st := r.Stats(); st.Running != 0 || st.Queued != 0 || st.KVTokensUsed != 0 {
			t.Errorf("left behind: %+v", st)
		}
		if st := r.cache.Stats(); st.InUse != 0 {
			t.Errorf("%d pages left in use", st.InUse)
		}
	}()
	for range 1000 {
		if runtime.NumGoroutine() <= goroutines {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
}
