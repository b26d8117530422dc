package store

import (
	"database/sql"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// used adds to a model's usage as the end of a turn does.
func used(s *Store, modelHash string, deltas []UsageDelta) error {
	const doing = "adding usage"
	if err := checkUsage(deltas); err != nil {
		return fail(doing, err)
	}
	return s.write(ctx, doing, func(tx *sql.Tx) error { return addUsage(tx, modelHash, deltas, s.now().UnixMilli()) })
}

func TestUsageAddsUpPerModelAndReadsAsArrays(t *testing.T) {
	s := openNew(t)
	ok(used(s, "m1", []UsageDelta{{3, 0, 5, 1.25}, {7, 1, 1, 0.5}}))
	ok(used(s, "m2", []UsageDelta{{3, 0, 100, 100}}))
	ok(used(s, "m1", []UsageDelta{{3, 0, 2, 0.5}}))
	got := must(s.Usage(ctx, "m1", []int{3, 7}, 2))
	first, second := int64(1735689601000), int64(1735689603000)
	want := Usage{Layers: []int{3, 7}, Experts: 2, Selections: []int64{7, 0, 0, 1}, Mass: []float64{1.75, 0, 0, 0.5},
		LastUsed: []int64{second, 0, 0, first}, Total: 8}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A history of another geometry under the same hash can only lose its effect.
func TestUsageOutsideTheGeometryIsLeftOut(t *testing.T) {
	s := openNew(t)
	ok(used(s, "m1", []UsageDelta{{3, 1, 5, 1}, {3, 2, 5, 1}, {4, 0, 5, 1}}))
	if got := must(s.Usage(ctx, "m1", []int{3}, 2)); got.Total != 5 || got.Selections[1] != 5 {
		t.Errorf("usage is %+v", got)
	}
	if got := must(s.Usage(ctx, "unknown", []int{3}, 2)); got.Total != 0 || len(got.Selections) != 2 {
		t.Errorf("usage of an unknown model is %+v", got)
	}
}

func TestSenselessUsageIsRefused(t *testing.T) {
	s := openNew(t)
	for _, d := range []UsageDelta{{-1, 0, 1, 1}, {0, -1, 1, 1}, {65536, 0, 1, 1}, {0, 65536, 1, 1}, {0, 0, -1, 1},
		{0, 0, 1, math.NaN()}, {0, 0, 1, math.Inf(1)}} {
		wantErr(t, used(s, "m1", []UsageDelta{d}), ErrInvalid)
	}
	wantErr(t, used(s, "", []UsageDelta{{0, 0, 1, 1}}), ErrInvalid, "model hash")
	for _, experts := range []int{0, -1, 65537} {
		_, err := s.Usage(ctx, "m1", []int{0}, experts)
		wantErr(t, err, ErrInvalid)
	}
}

// 76 layers of 8 experts a turn is the largest model of the design; the figure is the time the writer is held.
func BenchmarkFinishTurn(b *testing.B) {
	s := must(Open(ctx, Options{Dir: b.TempDir()}))
	defer func() { ok(s.Close()) }()
	c := must(s.CreateConversation(ctx, "", "", nil))
	var usage []UsageDelta
	for layer := range 76 {
		for expert := range 53 {
			usage = append(usage, UsageDelta{layer, expert, 8, 1})
		}
	}
	routing := make([]byte, 78_000)
	tokens := make([]Token, 256)
	for i := range tokens {
		tokens[i] = Token{ID: int32(i), Text: "token", Top: make([]Alternative, 5)}
	}
	for b.Loop() {
		_, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: "question", ModelHash: "m1"})
		ok(err)
		ok(s.CheckpointTurn(ctx, answer.ID, "partial text", ""))
		ok(s.FinishTurn(ctx, TurnResult{Answer: answer.ID, State: StateComplete, Content: "text", Tokens: tokens, Routing: routing, Usage: usage}))
	}
}
