package sched

import (
	"context"
	"errors"
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
		"keeps residuals only reads":                {Prompt: []int32{1}, Keep: []int{1}, MaxTokens: 1}, // its rows would lie beyond those kept
		"only reads its prompt, from the beginning": {Prompt: []int32{1}, Keep: []int{1}, From: new(model.Residuals)},
		"begins at a router bans experts":           {Prompt: []int32{1}, From: new(model.Residuals)},
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
	for range 10000 {
		if unread.Result() != nil {
			break
		}
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
