package store

// The crash test: this test program runs itself as a child that does turns as fast as it can, and kills it (SIGKILL on
// Unix) at random moments. What the child was told is stored must be there, whole; of the rest at most the one turn in
// hand may be there, as stopped; and the aggregates must agree with the turns that are there.

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const crashFolder = "COVEY_STORE_CRASH_FOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashFolder); dir != "" {
		crashChild(dir)
	}
	os.Exit(m.Run())
}

// The parts of a turn follow from its number, so that parent and child agree on what a whole turn is.
func crashAnswer(n int) string  { return strings.Repeat(fmt.Sprintf("answer %d ", n), 200+n%300) }
func crashTokens(n int) []Token { return slices.Repeat([]Token{{ID: int32(n), Text: "word "}}, 100) }
func crashRouting(n int) []byte { return bytes.Repeat([]byte{byte(n)}, 5000) }
func crashExpert(n int) int     { return n % 8 }
func crashUsage(n int) []UsageDelta {
	return []UsageDelta{{Layer: 0, Expert: crashExpert(n), Selections: 1, Mass: 0.5}, {Layer: 1, Expert: 0, Selections: 1, Mass: 0.5}}
}

// crashChild does turns until it is killed. After each step that the store accepted it says so in a line.
func crashChild(dir string) {
	s := must(Open(ctx, Options{Dir: dir}))
	first := must(s.CreateConversation(ctx, "Crash", "", nil))
	fmt.Println("open")
	parent := ""
	for n := 1; ; n++ {
		_, answer, err := s.BeginTurn(ctx, NewTurn{Conversation: first.ID, Parent: parent, Text: fmt.Sprintf("question %d", n), ModelHash: "m1"})
		ok(err)
		fmt.Println("begin", answer.ID, n)
		text := crashAnswer(n)
		for _, part := range []int{10, 100, 1000} {
			ok(s.CheckpointTurn(ctx, answer.ID, text[:part], ""))
			fmt.Println("checkpoint", answer.ID, part)
		}
		ok(s.FinishTurn(ctx, TurnResult{Answer: answer.ID, State: StateComplete, Content: text, Turn: Turn{Generated: n, Finish: "stop"},
			Tokens: crashTokens(n), Routing: crashRouting(n), Usage: crashUsage(n)}))
		fmt.Println("finish", answer.ID, n)
		parent = answer.ID
	}
}

func TestKilledProcessLosesAtMostTheTurnInHand(t *testing.T) {
	points := 20
	if os.Getenv("COVEY_LONG") != "" {
		points = 100
	}
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	numbers := map[string]int{} // of every answer that was begun
	var finished []string       // in order
	for point := range points {
		// After some lines, some microseconds: the moment falls into any statement, in the midst of a commit too.
		lines, delay := 1+random.IntN(25), time.Duration(random.IntN(8000))*time.Microsecond
		begun, checkpoint := crashOnce(t, dir, lines, delay, numbers, &finished)

		s, err := Open(ctx, Options{Dir: dir})
		if err != nil {
			t.Fatalf("point %d: %v", point, err)
		}
		var whole string
		ok(s.writer.QueryRow("PRAGMA integrity_check").Scan(&whole))
		if whole != "ok" {
			t.Fatalf("point %d: %s", point, whole)
		}
		stopped := 0
		for _, id := range begun {
			m := must(s.Message(ctx, id))
			switch {
			case m.State == StateComplete:
			case m.State == StateStopped && m.Note == "interrupted" && id == begun[len(begun)-1]:
				stopped++
				if len(m.Content) < checkpoint || !strings.HasPrefix(crashAnswer(numbers[id]), m.Content) {
					t.Errorf("point %d: %d bytes of text are left, %d were acknowledged", point, len(m.Content), checkpoint)
				}
			default:
				t.Errorf("point %d: message %s is %s (%s)", point, id, m.State, m.Note)
			}
		}
		for _, id := range finished {
			if err := crashWhole(s, id, numbers[id]); err != nil {
				t.Errorf("point %d: %v", point, err)
			}
		}
		var completed int64
		ok(s.reader.QueryRow("SELECT count(*) FROM message WHERE role = 'assistant' AND state = 'complete'").Scan(&completed))
		if lost := int64(len(finished)) - completed; lost > 0 {
			t.Errorf("point %d: %d acknowledged turns are missing", point, lost)
		}
		if u := must(s.Usage(ctx, "m1", []int{0, 1}, 8)); u.Total != 2*completed || u.Selections[8] != completed || u.Mass[8] != 0.5*float64(completed) {
			t.Errorf("point %d: usage %v of %d turns", point, u, completed)
		}
		if _, err := s.writer.Exec("INSERT INTO message_search (message_search, rank) VALUES ('integrity-check', 1)"); err != nil {
			t.Errorf("point %d: search index: %v", point, err)
		}
		ok(s.Close())
		if t.Failed() {
			return
		}
	}
	if len(finished) < points {
		t.Errorf("only %d turns were finished in %d runs: the kills come too early to show anything", len(finished), points)
	}
	t.Logf("%d kills, %d turns begun, %d acknowledged", points, len(numbers), len(finished))
}

// crashOnce runs a child, kills it some time after it wrote the given number of lines, and reads what it acknowledged:
// the answers begun and the length of the last checkpoint of the last one. What the child had written before it died is
// still in the pipe.
func crashOnce(t *testing.T, dir string, lines int, delay time.Duration, numbers map[string]int, finished *[]string) (begun []string, checkpoint int) {
	t.Helper()
	child := exec.Command(must(os.Executable()))
	child.Env = append(os.Environ(), crashFolder+"="+dir)
	var problems bytes.Buffer
	child.Stderr = &problems
	out := must(child.StdoutPipe())
	ok(child.Start())
	scanner := bufio.NewScanner(out)
	seen := 0
	for ; scanner.Scan(); seen++ {
		if seen == lines {
			time.Sleep(delay)
			ok(child.Process.Kill())
		}
		words := strings.Fields(scanner.Text())
		switch {
		case len(words) == 3 && words[0] == "begin":
			begun, checkpoint = append(begun, words[1]), 0
			numbers[words[1]] = must(strconv.Atoi(words[2]))
		case len(words) == 3 && words[0] == "checkpoint":
			checkpoint = must(strconv.Atoi(words[2]))
		case len(words) == 3 && words[0] == "finish":
			*finished = append(*finished, words[1])
		}
	}
	_ = child.Wait() // it was killed
	if seen <= lines {
		t.Fatalf("the child ended by itself: %s", problems.String())
	}
	return begun, checkpoint
}

// crashWhole says what of a finished turn is missing.
func crashWhole(s *Store, id string, n int) error {
	m, err := s.Message(ctx, id)
	if err != nil {
		return err
	}
	tokens, err := s.TurnTokens(ctx, id)
	if err != nil {
		return err
	}
	routing, err := s.TurnRouting(ctx, id)
	if err != nil {
		return err
	}
	same := func(a, b Token) bool { return a.ID == b.ID && a.Text == b.Text }
	switch {
	case m.State != StateComplete || m.Content != crashAnswer(n) || m.Turn.Generated != n || m.Turn.Finish != "stop":
		return fmt.Errorf("acknowledged message %s is %s with %d bytes", id, m.State, len(m.Content))
	case !slices.EqualFunc(tokens, crashTokens(n), same) || !bytes.Equal(routing, crashRouting(n)):
		return fmt.Errorf("tokens or routing of message %s differ", id)
	}
	return nil
}
