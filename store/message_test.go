package store

import (
	"fmt"
	"strings"
	"testing"
)

// contents is the branch shown, as "question|answer|...".
func contents(s *Store, conversation string) string {
	_, path, err := s.Thread(ctx, conversation)
	ok(err)
	var list []string
	for _, m := range path {
		list = append(list, m.Content)
	}
	return strings.Join(list, "|")
}

func arrows(m Message) string { return fmt.Sprintf("%d/%d", m.Sibling, m.Siblings) }

func TestRegeneratingAndEditingMakeBranches(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "", "", nil))
	q1, a1 := ask(s, c.ID, "", "q1", "a1")
	_, a2 := ask(s, c.ID, a1.ID, "q2", "a2")
	if got := contents(s, c.ID); got != "q1|a1|q2|a2" {
		t.Errorf("path is %s", got)
	}

	// Regenerate the first answer: a second answer beside it.
	user, b1, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Parent: q1.ID})
	ok(err)
	if user.ID != q1.ID || b1.Parent != q1.ID || arrows(b1) != "2/2" || b1.Previous != a1.ID || b1.Next != "" {
		t.Errorf("regenerated below %s: %+v", user.ID, b1)
	}
	ok(s.FinishTurn(ctx, TurnResult{Answer: b1.ID, State: StateComplete, Content: "b1"}))
	if got := contents(s, c.ID); got != "q1|b1" {
		t.Errorf("path is %s", got)
	}

	// Edit the first question: a second question at the root.
	e1, _ := ask(s, c.ID, "", "e1", "f1")
	if got := contents(s, c.ID); got != "e1|f1" || arrows(e1) != "2/2" || e1.Previous != q1.ID {
		t.Errorf("path is %s, arrows %s", got, arrows(e1))
	}

	// The arrows lead back, to the newest message below.
	if leaf := must(s.SelectBranch(ctx, q1.ID)); leaf != b1.ID {
		t.Errorf("leaf is %s", leaf)
	}
	if leaf := must(s.SelectBranch(ctx, a1.ID)); leaf != a2.ID {
		t.Errorf("leaf is %s", leaf)
	}
	if got := contents(s, c.ID); got != "q1|a1|q2|a2" {
		t.Errorf("path is %s", got)
	}
	path := must(s.Path(ctx, a2.ID))
	if arrows(path[0]) != "1/2" || path[0].Next != e1.ID || arrows(path[1]) != "1/2" || path[1].Next != b1.ID || arrows(path[2]) != "1/1" {
		t.Errorf("arrows are %s %s %s", arrows(path[0]), arrows(path[1]), arrows(path[2]))
	}
}

func TestDeletingAMessageTakesWhatIsBelowAndMovesTheLeaf(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "", "", nil))
	q1, a1 := ask(s, c.ID, "", "q1", "a1")
	q2, _ := ask(s, c.ID, a1.ID, "q2", "a2")
	ask(s, c.ID, a1.ID, "q3", "a3")

	if must(s.DeleteMessage(ctx, q2.ID)); contents(s, c.ID) != "q1|a1|q3|a3" {
		t.Errorf("deleting a branch not shown: %s", contents(s, c.ID))
	}
	_, b1, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Parent: q1.ID})
	ok(err)
	_, err = s.DeleteMessage(ctx, q1.ID)
	wantErr(t, err, ErrState, "running")
	ok(s.FinishTurn(ctx, TurnResult{Answer: b1.ID, State: StateComplete, Content: "b1"}))

	if must(s.DeleteMessage(ctx, b1.ID)); contents(s, c.ID) != "q1|a1|q3|a3" {
		t.Errorf("deleting the leaf shows %s", contents(s, c.ID))
	}
	if leaf := must(s.DeleteMessage(ctx, q1.ID)); leaf != "" || contents(s, c.ID) != "" {
		t.Errorf("deleting all leaves %q, %s", leaf, contents(s, c.ID))
	}
	_, err = s.DeleteMessage(ctx, q1.ID)
	wantErr(t, err, ErrNotFound, q1.ID)
	if hits := must(s.Search(ctx, "q3", 10)); len(hits) != 0 {
		t.Errorf("search finds %v", hits)
	}
}

func TestMessagesGoOnlyWhereTheyBelong(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "", "", nil))
	other := must(s.CreateConversation(ctx, "", "", nil))
	_, answer := ask(s, c.ID, "", "q", "a")
	_, err := s.AddMessage(ctx, other.ID, answer.ID, RoleUser, "x")
	wantErr(t, err, ErrInvalid, answer.ID, other.ID)
	_, err = s.AddMessage(ctx, c.ID, "nothing", RoleUser, "x")
	wantErr(t, err, ErrNotFound, "nothing")
	_, err = s.AddMessage(ctx, c.ID, "", "wizard", "x")
	wantErr(t, err, ErrInvalid, "wizard")
	_, _, err = s.BeginTurn(ctx, NewTurn{Conversation: "nowhere", Text: "x"})
	wantErr(t, err, ErrNotFound, "nowhere")
	for _, parent := range []string{"", answer.ID} {
		_, _, err = s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Parent: parent})
		wantErr(t, err, ErrInvalid, "no message to answer")
	}
	_, running, err := s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Text: "q"})
	ok(err)
	_, _, err = s.BeginTurn(ctx, NewTurn{Conversation: c.ID, Parent: running.ID, Text: "too early"})
	wantErr(t, err, ErrState, "still running")
	_, err = s.Path(ctx, "nothing")
	wantErr(t, err, ErrNotFound)
	_, err = s.SelectBranch(ctx, "nothing")
	wantErr(t, err, ErrNotFound)
}

func TestAddedMessageIsTheLeaf(t *testing.T) {
	s := openNew(t)
	c := must(s.CreateConversation(ctx, "", "", nil))
	question, _ := ask(s, c.ID, "", "q", "a")
	edited := must(s.AddMessage(ctx, c.ID, question.ID, RoleAssistant, "a, edited"))
	if edited.Turn != nil || edited.State != StateComplete || arrows(edited) != "2/2" || contents(s, c.ID) != "q|a, edited" {
		t.Errorf("added %+v, path %s", edited, contents(s, c.ID))
	}
}

// The arrows must not read the whole conversation for each message.
func TestSiblingsAreFoundByIndex(t *testing.T) {
	s := openNew(t)
	rows := must(s.reader.Query("EXPLAIN QUERY PLAN "+sqlPath, "x"))
	defer func() { ok(rows.Close()) }()
	plan := ""
	for rows.Next() {
		var id, parent, unused int
		var detail string
		ok(rows.Scan(&id, &parent, &unused, &detail))
		plan += detail + "\n"
	}
	if n := strings.Count(plan, "SEARCH x USING COVERING INDEX message_siblings (conversation=? AND parent=?"); n < 2 || strings.Contains(plan, "SCAN x") {
		t.Errorf("plan:\n%s", plan)
	}
}
