package store

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFinishedTurnIsKeptWhole(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "", "", nil))
	user, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: "Why?", Model: "tiny", ModelHash: "m1", Numerics: "n1",
		Params: json.RawMessage(`{"seed": 7}`)})
	ok(err)
	if user.Role != RoleUser || user.State != StateComplete || user.Content != "Why?" || user.Turn != nil {
		t.Errorf("user's message is %+v", user)
	}
	if answer.State != StateRunning || answer.Parent != user.ID || answer.Turn == nil || answer.Turn.Finish != "" || !answer.Turn.Finished.IsZero() {
		t.Errorf("answer is %+v", answer)
	}
	if c := must(s.Conversation(ctx, c.ID)); c.Leaf != answer.ID || !c.Running {
		t.Errorf("conversation is %+v", c)
	}
	ok(s.CheckpointTurn(ctx, answer.ID, "Bec", "Hm"))
	if got := must(s.Message(ctx, answer.ID)); got.Content != "Bec" || got.Reasoning != "Hm" || got.State != StateRunning {
		t.Errorf("checkpoint is %+v", got)
	}
	tokens := []Token{{ID: 5, Text: "Because", Logprob: -0.25, Top: []Alternative{{5, "Because", -0.25}, {9, "No", -2}}}, {ID: 2}}
	result := TurnResult{Answer: answer.ID, State: StateComplete, Content: "Because.", Reasoning: "Hm, hm.",
		Turn: Turn{Prompt: 12, Cached: 4, Generated: 2, Queue: 1, Prefill: 2 * time.Millisecond, Decode: 3 * time.Second, Bytes: 1 << 40,
			Finish: "stop", Hash: "abc"},
		Tokens: tokens, Routing: []byte{1, 0, 255}, Usage: []UsageDelta{{2, 3, 10, 1.5}}}
	ok(s.FinishTurn(ctx, result))

	got := must(s.Message(ctx, answer.ID))
	want := Message{ID: answer.ID, Conversation: c.ID, Parent: user.ID, Role: RoleAssistant, Content: "Because.", Reasoning: "Hm, hm.",
		State: StateComplete, Created: answer.Created, Updated: got.Updated, Sibling: 1, Siblings: 1,
		Turn: &Turn{Model: "tiny", ModelHash: "m1", Numerics: "n1", Params: json.RawMessage(`{"seed":7}`),
			Prompt: 12, Cached: 4, Generated: 2, Queue: 1, Prefill: 2 * time.Millisecond, Decode: 3 * time.Second, Bytes: 1 << 40,
			Finish: "stop", Hash: "abc", Started: answer.Created, Finished: got.Updated}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(tokens, must(s.TurnTokens(ctx, answer.ID))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(result.Routing, must(s.TurnRouting(ctx, answer.ID))); diff != "" {
		t.Error(diff)
	}
	if u := must(s.Usage(ctx, "m1", []int{2}, 4)); u.Selections[3] != 10 || u.Mass[3] != 1.5 || u.LastUsed[3] != got.Updated.UnixMilli() {
		t.Errorf("usage is %+v", u)
	}
	if c := must(s.Conversation(ctx, c.ID)); c.Running || !c.Updated.Equal(got.Updated) {
		t.Errorf("conversation is %+v", c)
	}

	// What is finished stays as it is.
	wantErr(t, s.FinishTurn(ctx, result), ErrState, "complete, not running")
	wantErr(t, s.CheckpointTurn(ctx, answer.ID, "x", ""), ErrState)
	wantErr(t, s.CheckpointTurn(ctx, user.ID, "x", ""), ErrState)
	wantErr(t, s.CheckpointTurn(ctx, "nothing", "x", ""), ErrNotFound)
}

func TestTurnWithoutBlobs(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "", "", nil))
	user, answer := ask(s, c.ID, "", "q", "a")
	for _, id := range []string{user.ID, answer.ID} {
		if tokens, err := s.TurnTokens(ctx, id); tokens != nil || err != nil {
			t.Errorf("tokens are %v, %v", tokens, err)
		}
		if routing, err := s.TurnRouting(ctx, id); routing != nil || err != nil {
			t.Errorf("routing is %v, %v", routing, err)
		}
	}
	_, err := s.TurnTokens(ctx, "nothing")
	wantErr(t, err, ErrNotFound)
	_, err = s.TurnRouting(ctx, "nothing")
	wantErr(t, err, ErrNotFound)
}

func TestRefusedResultLeavesTheTurnRunning(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "", "", nil))
	_, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: "q"})
	ok(err)
	wantErr(t, s.FinishTurn(ctx, TurnResult{Answer: answer.ID, State: StateRunning}), ErrInvalid)
	wantErr(t, s.FinishTurn(ctx, TurnResult{Answer: answer.ID, State: StateComplete, Content: "x", Usage: []UsageDelta{{0, 70_000, 1, 1}}}), ErrInvalid)
	// This turn was begun without a model hash, which is found only inside the transaction.
	wantErr(t, s.FinishTurn(ctx, TurnResult{Answer: answer.ID, State: StateComplete, Content: "x", Usage: []UsageDelta{{0, 0, 1, 1}}}), ErrInvalid)
	if got := must(s.Message(ctx, answer.ID)); got.State != StateRunning || got.Content != "" {
		t.Errorf("message is %+v", got)
	}
}

func TestRunningAnswerIsStoppedWithItsTextAtTheNextOpening(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	c := must(s.CreateConversation(ctx, "", "", nil))
	_, done := ask(s, c.ID, "", "q1", "a1")
	_, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Parent: done.ID, Text: "q2"})
	ok(err)
	ok(s.CheckpointTurn(ctx, answer.ID, "interesting beg", ""))
	ok(s.Close())

	s = openIn(t, dir)
	got := must(s.Message(ctx, answer.ID))
	if got.State != StateStopped || got.Note != "interrupted" || got.Content != "interesting beg" || got.Turn.Finish != "interrupted" || got.Turn.Finished.IsZero() {
		t.Errorf("message is %+v, turn %+v", got, got.Turn)
	}
	if hits := must(s.Search(ctx, "interesting", 10)); len(hits) != 1 {
		t.Errorf("search finds %v", hits)
	}
	if got := must(s.Message(ctx, done.ID)); got.State != StateComplete || got.Note != "" {
		t.Errorf("the finished message is %+v", got)
	}
	// One that runs now is not touched by later writes.
	_, running, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Parent: answer.ID, Text: "q3"})
	ok(err)
	ok(s.PinConversation(ctx, c.ID, true))
	if got := must(s.Message(ctx, running.ID)); got.State != StateRunning {
		t.Errorf("state is %s", got.State)
	}
}

func TestTurnsWithRoutingAreListedByModelTimeAndConversation(t *testing.T) {
	s := openNew(t)
	one := must(s.CreateConversation(ctx, "", "", nil))
	two := must(s.CreateConversation(ctx, "", "", nil))
	var starts []time.Time
	add := func(c Conversation, model string, routing []byte) {
		_, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: "q", ModelHash: model})
		ok(err)
		ok(s.FinishTurn(ctx, TurnResult{Answer: answer.ID, State: StateComplete, Routing: routing, Turn: Turn{Finish: "length"}}))
		starts = append(starts, answer.Turn.Started)
	}
	add(one, "m1", make([]byte, 10))
	add(two, "m1", make([]byte, 20))
	add(one, "m2", make([]byte, 30))
	add(one, "m1", nil)
	add(one, "m1", make([]byte, 50))
	sizes := func(conversation string, from, to time.Time) (list []int) {
		for _, ref := range must(s.TurnsWithRouting(ctx, "m1", conversation, from, to)) {
			if ref.Finish != "length" {
				t.Errorf("finish %q", ref.Finish)
			}
			list = append(list, ref.RoutingBytes)
		}
		return list
	}
	end := starts[4].Add(time.Second)
	for _, test := range []struct {
		conversation string
		from, to     time.Time
		want         []int
	}{
		{"", time.Time{}, end, []int{10, 20, 50}},
		{one.ID, time.Time{}, end, []int{10, 50}},
		{"", starts[1], starts[4], []int{20}},
	} {
		if diff := cmp.Diff(test.want, sizes(test.conversation, test.from, test.to)); diff != "" {
			t.Errorf("%q [%v, %v): %s", test.conversation, test.from, test.to, diff)
		}
	}
	ok(s.DeleteConversation(ctx, two.ID))
	if got := sizes("", time.Time{}, end); len(got) != 2 {
		t.Errorf("a deleted conversation's turns are listed: %v", got)
	}
}
