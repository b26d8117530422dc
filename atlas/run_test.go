package atlas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"covey/atlas/probes"
	"covey/store"
)

// quick is a run small enough for a test.
var quick = Options{Permutations: 200, Draws: 200, Shuffles: 20}

// counted counts the forwards of a model, and the readings that their scores are of, and cancels after some of them.
type counted struct {
	Model
	forwards atomic.Int64
	readings atomic.Int64
	after    int64
	cancel   func()
}

func (c *counted) Forward(ctx context.Context, tokens []int32, o ForwardOptions) (Forward, error) {
	if n := c.forwards.Add(1); c.cancel != nil && n > c.after {
		c.cancel()
		return Forward{}, ctx.Err()
	}
	f, err := c.Model.Forward(ctx, tokens, o)
	c.readings.Add(int64(len(f.Scores)))
	return f, err
}

// planted is a planted model with a fifth of its texts: 4 topics, 26 open and 12 sealed ones each.
func planted(t *testing.T, layers int) (*Planted, *probes.Set) {
	t.Helper()
	p, set, err := NewPlanted(layers, 1)
	if err != nil {
		t.Fatal(err)
	}
	var few []probes.Probe
	for _, x := range set.Probes {
		if x.Topic <= "t03" && x.ID[len(x.ID)-2:] >= "14" {
			few = append(few, x)
		}
	}
	set, err = probes.New("few", few)
	if err != nil {
		t.Fatal(err)
	}
	return p, set
}

func TestEqualRunsHaveEqualIdsWhateverTheParallelism(t *testing.T) {
	p, set := planted(t, 2)
	var ids []string
	for _, inFlight := range []int{1, 16} {
		o := quick
		o.InFlight, o.Threads = inFlight, 1+inFlight/16
		a, err := Run(context.Background(), p, set, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, a.ID)
	}
	if ids[0] != ids[1] {
		t.Errorf("one forward at a time gave %.12s, sixteen gave %.12s", ids[0], ids[1])
	}
	o := quick
	o.Seed = 2
	other, err := Run(context.Background(), p, set, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	if other.ID == ids[0] {
		t.Error("another seed gave the same id")
	}
}

func TestAStoppedJobReadsOnlyWhatIsMissingWhenItResumes(t *testing.T) {
	p, set := planted(t, 1)
	ctx := context.Background()
	whole, err := Run(ctx, p, set, quick, nil)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(ctx, store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	o := quick
	job, err := db.CreateJob(ctx, store.NewJob{
		Kind: "atlas", Model: p.Info().ID, ModelHash: p.Info().Hash, Numerics: p.Info().NumericsID, ProbeHash: set.Hash, Probes: set.Text(),
		Params: json.RawMessage(`{}`), Total: Forwards(set, o),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.StartJob(ctx, job.ID); err != nil {
		t.Fatal(err)
	}
	o.Store, o.Job = db, job.ID
	stopped, cancel := context.WithCancel(ctx)
	defer cancel()
	first := &counted{Model: p, after: 50, cancel: cancel}
	if _, err := Run(stopped, first, set, o, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled run ended with %v", err)
	}
	job, err = db.Job(ctx, job.ID)
	if err != nil {
		t.Fatal(err)
	}
	if job.Done == 0 || job.Done > 50 {
		t.Fatalf("%d results were kept of 50 forwards", job.Done)
	}
	second := &counted{Model: p}
	var last Progress
	a, err := Run(ctx, second, set, o, func(p Progress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	if got, want := int(second.forwards.Load()), job.Total-job.Done; got != want {
		t.Errorf("the second run read %d texts, %d were missing", got, want)
	}
	if a.ID != whole.ID {
		t.Errorf("the resumed run gave %.12s, one in a piece %.12s", a.ID, whole.ID)
	}
	if last.Phase != PhaseMeasure || last.Done != last.Total {
		t.Errorf("the last progress was %+v", last)
	}
}

func TestAJobOfAnotherTextIsNotResumed(t *testing.T) {
	p, set := planted(t, 1)
	ctx := context.Background()
	db, err := store.Open(ctx, store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	job, err := db.CreateJob(ctx, store.NewJob{Kind: "atlas", Model: "m", ModelHash: "h", Numerics: p.Info().NumericsID, ProbeHash: set.Hash, Probes: set.Text(), Total: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.StartJob(ctx, job.ID); err != nil {
		t.Fatal(err)
	}
	other := Prompt{Tokens: []int32{1, 2, 3}, To: 3}
	f, err := p.Forward(ctx, other.Tokens, ForwardOptions{Routing: true})
	if err != nil {
		t.Fatal(err)
	}
	ob, err := observe(p.Info().Shape, other, f.Events)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.PutResults(ctx, job.ID, store.JobResult{Prompt: set.Probes[0].ID, Numerics: p.Info().NumericsID, Data: ob.encode(p.Info().Shape)}); err != nil {
		t.Fatal(err)
	}
	o := quick
	o.Store, o.Job = db, job.ID
	if _, err := Run(ctx, p, set, o, nil); err == nil || !strings.Contains(err.Error(), "is of another text") {
		t.Errorf("error %v", err)
	}
}

func TestTopicsWithoutACommonTokenAreMeasuredWithoutSharesBeyondTokens(t *testing.T) {
	p, _, err := NewPlanted(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	var texts []probes.Probe
	for i := range 24 {
		split := probes.Open
		if i%3 == 2 {
			split = probes.Sealed
		}
		code, law := strings.Builder{}, strings.Builder{}
		for w := range 60 {
			fmt.Fprintf(&code, "w%d ", (7*i+w)%40)
			fmt.Fprintf(&law, "w%d ", 100+(7*i+w)%40)
		}
		texts = append(texts, probes.Probe{ID: fmt.Sprintf("code-%d", i), Topic: "code", Split: split, Text: code.String()},
			probes.Probe{ID: fmt.Sprintf("law-%d", i), Topic: "law", Split: split, Text: law.String()})
	}
	set, err := probes.New("apart", texts)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Run(t.Context(), p, set, quick, nil)
	if err != nil {
		t.Fatal(err)
	}
	var from []string
	for _, d := range a.Sealed.Decoding {
		from = append(from, d.Features)
	}
	if want := []string{"shares", "shares", "tokens", "tokens"}; !slices.Equal(from, want) {
		t.Errorf("topics are named from %q, want %q", from, want)
	}
	if want := "topics are not named from shares beyond tokens: they are the same in every open text"; !slices.Contains(a.Provenance.Notes, want) {
		t.Errorf("notes %q, want %q", a.Provenance.Notes, want)
	}
}

func TestRunsThatCannotMeasureAreRefusedBeforeReading(t *testing.T) {
	p, set := planted(t, 1)
	thin, err := probes.New("thin", []probes.Probe{
		{ID: "a", Topic: "code", Text: "w1 w2"}, {ID: "b", Topic: "code", Text: "w3"}, {ID: "c", Topic: "law", Text: "w4"},
	})
	if err != nil {
		t.Fatal(err)
	}
	strange, err := probes.New("strange", []probes.Probe{
		{ID: "a", Topic: "code", Text: "w1"}, {ID: "b", Topic: "code", Text: "w3"}, {ID: "c", Topic: "law", Text: "w4"}, {ID: "d", Topic: "law", Text: "x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name string
		set  *probes.Set
		o    Options
		want string
	}{
		{"one cluster of a topic", thin, quick, `topic "law" has open texts of 1 clusters`},
		{"a text the model cannot encode", strange, quick, `probe "d"`},
		{"too few permutations", set, Options{Permutations: 10}, "at least 100"},
		{"an alpha that permutations cannot reach", set, Options{Permutations: 100, Alpha: 0.001}, "cannot reach alpha 0.001"},
		{"a lift below 1", set, Options{MinLift: 0.5}, "at least 1"},
	}
	for _, c := range cases {
		m := &counted{Model: p}
		if _, err := Run(context.Background(), m, c.set, c.o, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
		if n := m.forwards.Load(); n != 0 {
			t.Errorf("%s: %d texts were read", c.name, n)
		}
	}
}

func TestOnlyTheTextsOwnTokensAreCounted(t *testing.T) {
	p, err := enclosed([]int32{1, 7, 8, 9, 2}, []int32{7, 8, 9})
	if err != nil || p.From != 1 || p.To != 4 {
		t.Errorf("positions %d to %d, error %v; want 1 to 4", p.From, p.To, err)
	}
	if _, err := enclosed([]int32{1, 7, 8, 2}, []int32{7, 9}); err == nil {
		t.Error("tokens that change when specials are added were accepted")
	}
}

func TestAForwardsRoutingMustCoverTheTextInOrder(t *testing.T) {
	p, _ := planted(t, 1)
	prompt := Prompt{Tokens: []int32{1, 2, 3, 4}, From: 1, To: 3}
	f, err := p.Forward(context.Background(), prompt.Tokens, ForwardOptions{Routing: true})
	if err != nil {
		t.Fatal(err)
	}
	ob, err := observe(p.Info().Shape, prompt, f.Events)
	if err != nil {
		t.Fatal(err)
	}
	if len(ob.Tokens) != 2 || ob.Tokens[0] != 2 || len(ob.IDs) != 2*4 {
		t.Errorf("tokens %v, %d ids; want the second and third of four", ob.Tokens, len(ob.IDs))
	}
	if _, err := observe(p.Info().Shape, Prompt{Tokens: []int32{1, 2, 3, 4, 5}, To: 5}, f.Events); err == nil {
		t.Error("routing of four positions was taken for five")
	}
	if _, err := observe(p.Info().Shape, Prompt{Tokens: []int32{9, 2, 3, 4}, To: 4}, f.Events); err == nil {
		t.Error("routing of other tokens was accepted")
	}
	f.Events[0].Position = 1
	if _, err := observe(p.Info().Shape, prompt, f.Events); err == nil {
		t.Error("routing that starts at position 1 was accepted")
	}
}
