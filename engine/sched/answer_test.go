package sched

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

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
		{"banned experts share with nobody", Request{Owner: "ann", Banned: []Expert{{Layer: 1, ID: 2}}}, 0},
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
	banned := r.submit(t, Request{Prompt: prompt(2, 9), MaxTokens: 4, IgnoreEOS: true, Routing: true, Banned: []Expert{{Layer: 1, ID: 0}, {Layer: 1, ID: 1}}})
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
