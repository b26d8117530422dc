package queue

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"covey/atlas"
	"covey/atlas/probes"
	"covey/engine"
	"covey/engine/route"
	"covey/store"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
)

// quick is a run small enough for a test.
var quick = atlas.Options{Permutations: 200, Draws: 200, Shuffles: 20, Shuffled: 2, InFlight: 8}

// This test program runs itself as a worker and as one that measures, and kills them.
const (
	childRole  = "COVEY_QUEUE_CHILD"
	childURL   = "COVEY_QUEUE_URL"
	childStore = "COVEY_QUEUE_STORE"
	childJob   = "COVEY_QUEUE_JOB"
)

func TestMain(m *testing.M) {
	lease = time.Second
	if role := os.Getenv(childRole); role != "" {
		if err := child(role); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child works, or measures, until it is killed; a line says that something was done.
func child(role string) error {
	ctx := context.Background()
	conn, err := Connect(ctx, os.Getenv(childURL), "")
	if err != nil {
		return err
	}
	defer conn.Close()
	p, set, err := few()
	if err != nil {
		return err
	}
	fmt.Println("open")
	if role == "work" {
		return conn.Work(ctx, slow{p}, 4, func() { fmt.Println("read") })
	}
	db, err := store.Open(ctx, store.Options{Dir: os.Getenv(childStore)})
	if err != nil {
		return err
	}
	if _, err := db.StartJob(ctx, os.Getenv(childJob)); err != nil {
		return err
	}
	m, err := conn.Open(ctx, p, os.Getenv(childJob))
	if err != nil {
		return err
	}
	o := quick
	o.Store, o.Job = db, os.Getenv(childJob)
	_, err = atlas.Run(ctx, m, set, o, func(atlas.Progress) { fmt.Println("read") })
	return err
}

// few is a planted model of one layer with 4 topics, 26 open and 12 sealed texts each.
func few() (*atlas.Planted, *probes.Set, error) {
	p, set, err := atlas.NewPlanted(1, 1)
	if err != nil {
		return nil, nil, err
	}
	var list []probes.Probe
	for _, x := range set.Probes {
		if x.Topic <= "t03" && x.ID[len(x.ID)-2:] >= "14" {
			list = append(list, x)
		}
	}
	set, err = probes.New("few", list)
	return p, set, err
}

// slow is a model that takes its time, so that it can be killed in the midst of work.
type slow struct{ atlas.Model }

func (s slow) Forward(ctx context.Context, tokens []int32, o atlas.ForwardOptions) (atlas.Forward, error) {
	time.Sleep(20 * time.Millisecond)
	return s.Model.Forward(ctx, tokens, o)
}

// outside starts a server that other processes can reach, and returns its URL.
func outside(t *testing.T) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not answer")
	}
	return s.ClientURL()
}

// process is a child with its lines.
type process struct {
	command *exec.Cmd
	lines   *bufio.Scanner
}

func start(t *testing.T, role string, env ...string) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program)
	c.Env = append(append(os.Environ(), childRole+"="+role), env...)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{c, bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	p.wait(t, "open", 1)
	return p
}

// wait reads lines until n of them are the wanted one.
func (p *process) wait(t *testing.T, line string, n int) {
	t.Helper()
	for p.lines.Scan() {
		if strings.HasPrefix(p.lines.Text(), "error:") {
			t.Fatal(p.lines.Text())
		}
		if p.lines.Text() == line {
			if n--; n == 0 {
				return
			}
		}
	}
	t.Fatalf("the child ended before it said %q %d more times", line, n)
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

// newJob opens a store with a running job for the set.
func newJob(t *testing.T, dir string, info engine.ModelInfo, set *probes.Set) (*store.Store, store.Job) {
	t.Helper()
	ctx := context.Background()
	db, err := store.Open(ctx, store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	job, err := db.CreateJob(ctx, store.NewJob{Kind: "probe", Model: info.Name, ModelHash: info.Hash, Numerics: info.NumericsID, ProbeHash: set.Hash,
		Probes: set.Text(), Params: json.RawMessage(`{}`), Total: atlas.Forwards(set, quick)})
	if err != nil {
		t.Fatal(err)
	}
	if job, err = db.StartJob(ctx, job.ID); err != nil {
		t.Fatal(err)
	}
	return db, job
}

// killTest is what the tests that kill a process share: a planted model with its texts, the atlas that one process makes of
// them, and a server that others reach.
type killTest struct {
	t       *testing.T
	ctx     context.Context
	model   *atlas.Planted
	set     *probes.Set
	whole   *atlas.Atlas
	address string
}

func newKillTest(t *testing.T) *killTest {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	p, set, err := few()
	if err != nil {
		t.Fatal(err)
	}
	whole, err := atlas.Run(ctx, p, set, quick, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &killTest{t, ctx, p, set, whole, outside(t)}
}

// finish measures as the job in this process, and fails the test unless every text counts once and the atlas is that of one
// process alone.
func (k *killTest) finish(db *store.Store, job store.Job) *Model {
	k.t.Helper()
	conn, err := Connect(k.ctx, k.address, "")
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { conn.Close() })
	m, err := conn.Open(k.ctx, k.model, job.ID)
	if err != nil {
		k.t.Fatal(err)
	}
	o := quick
	o.Store, o.Job = db, job.ID
	a, err := atlas.Run(k.ctx, m, k.set, o, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	if a.ID != k.whole.ID {
		k.t.Errorf("with a process killed the atlas is %.12s, from one alone %.12s", a.ID, k.whole.ID)
	}
	if job, err = db.Job(k.ctx, job.ID); err != nil || job.Done != job.Total {
		k.t.Errorf("%d results of %d are stored (%v)", job.Done, job.Total, err)
	}
	return m
}

func TestAWorkerKilledInTheMidstLosesNothingAndCountsNothingTwice(t *testing.T) {
	k := newKillTest(t)
	db, job := newJob(t, t.TempDir(), k.model.Info(), k.set)
	defer db.Close()
	first := start(t, "work", childURL+"="+k.address)
	second := start(t, "work", childURL+"="+k.address)
	go func() {
		first.wait(t, "read", 20)
		first.kill()
	}()
	m := k.finish(db, job)
	second.kill()
	if err := m.Close(k.ctx, true); err != nil {
		t.Fatal(err)
	}
}

func TestARunKilledInTheMidstGoesOnFromWhatItHas(t *testing.T) {
	k := newKillTest(t)
	dir := t.TempDir()
	db, job := newJob(t, dir, k.model.Info(), k.set)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	worker := start(t, "work", childURL+"="+k.address)
	defer worker.kill()
	run := start(t, "measure", childURL+"="+k.address, childStore+"="+dir, childJob+"="+job.ID)
	run.wait(t, "read", 30)
	run.kill()

	db, err := store.Open(k.ctx, store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	job, err = db.StartJob(k.ctx, job.ID) // opening has queued it again
	if err != nil {
		t.Fatal(err)
	}
	if job.Done < 25 || job.Done == job.Total {
		t.Fatalf("%d of %d results were stored before the kill", job.Done, job.Total)
	}
	k.finish(db, job)
}

// failing refuses every forward.
type failing struct{ atlas.Model }

func (failing) Forward(context.Context, []int32, atlas.ForwardOptions) (atlas.Forward, error) {
	return atlas.Forward{}, errors.New("out of memory")
}

// counted counts forwards.
type counted struct {
	atlas.Model
	n atomic.Int64
}

func (c *counted) Forward(ctx context.Context, tokens []int32, o atlas.ForwardOptions) (atlas.Forward, error) {
	c.n.Add(1)
	return c.Model.Forward(ctx, tokens, o)
}

func TestTheServerInsideCarriesARunAndLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p, set, err := few()
	if err != nil {
		t.Fatal(err)
	}
	whole, err := atlas.Run(ctx, p, set, quick, nil)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	conn, err := Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("server started in %v", time.Since(began))
	m, err := conn.Open(ctx, p, "run")
	if err != nil {
		t.Fatal(err)
	}
	worker := &counted{Model: p}
	stop, stopped := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- conn.Work(stop, worker, 8, nil) }()
	a, err := atlas.Run(ctx, m, set, quick, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.ID != whole.ID {
		t.Errorf("through the queue %.12s, directly %.12s", a.ID, whole.ID)
	}
	if got, want := int(worker.n.Load()), atlas.Forwards(set, quick); got != want {
		t.Errorf("%d forwards were done of %d", got, want)
	}
	if err := m.Close(ctx, true); err != nil {
		t.Fatal(err)
	}
	if info, err := conn.results.Info(ctx); err != nil || info.State.Msgs != 0 {
		t.Errorf("%d answers are left (%v)", info.State.Msgs, err)
	}
	stopped()
	if err := <-ended; err != nil {
		t.Errorf("the worker ended with %v", err)
	}
	folder := conn.folder
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's folder is left: %v", err)
	}
}

func TestWhatAWorkerCannotDoFailsTheForwardWithTheReason(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	conn, err := Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p, set, err := few()
	if err != nil {
		t.Fatal(err)
	}
	m, err := conn.Open(ctx, p, "run")
	if err != nil {
		t.Fatal(err)
	}
	go conn.Work(ctx, failing{p}, 1, nil) // ends with ctx
	if _, err := atlas.Run(ctx, m, set, quick, nil); err == nil || !strings.Contains(err.Error(), "a worker: out of memory") {
		t.Errorf("error %v", err)
	}
}

func TestCancellingWithdrawsTheWork(t *testing.T) {
	ctx := context.Background()
	conn, err := Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p, set, err := few()
	if err != nil {
		t.Fatal(err)
	}
	m, err := conn.Open(ctx, p, "run")
	if err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := atlas.Run(cancelled, m, set, quick, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("nobody worked, and the run ended with %v", err)
	}
	if info, err := conn.work.Info(ctx); err != nil || info.State.Msgs == 0 {
		t.Fatalf("no work was asked for (%v)", err)
	}
	if err := m.Close(ctx, true); err != nil {
		t.Fatal(err)
	}
	if info, err := conn.work.Info(ctx); err != nil || info.State.Msgs != 0 {
		t.Errorf("%d pieces of work are left (%v)", info.State.Msgs, err)
	}
}

func TestMessagesReadBackAsTheyWereWritten(t *testing.T) {
	s := route.Shape{Layers: []int{1, 3}, Experts: 4, TopK: 1}
	q := question{[]int32{7, 0, 151935}, atlas.ForwardOptions{
		Routing: true, Score: &atlas.Score{From: 1, To: 3, Without: [][]engine.Expert{{{Layer: 3, ID: 2}, {Layer: 5, ID: 0}}, {{Layer: 4, ID: 1}}}},
	}}
	back, err := decodeQuestion(q.encode())
	if err != nil || !slices.Equal(back.tokens, q.tokens) || !cmp.Equal(back.options, q.options) {
		t.Errorf("%+v became %+v (%v)", q, back, err)
	}
	f := atlas.Forward{
		Events: []*route.Event{{Tokens: []int32{7, 0}, IDs: []uint16{0, 1, 2, 3}, Weights: []float32{0.1, 0.2, 0.3, 0.4}}},
		Scores: []float64{-1.25, -3, -2.5},
	}
	b, err := encodeAnswer(s, f)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeAnswer(s, b)
	if err != nil || !cmp.Equal(got, f) {
		t.Errorf("%s (%v)", cmp.Diff(f, got), err)
	}
	if _, err := decodeAnswer(route.Shape{Layers: []int{1, 2}, Experts: 4, TopK: 1}, b); err == nil || !strings.Contains(err.Error(), "another shape") {
		t.Errorf("an answer about another model: %v", err)
	}
	if _, err := decodeAnswer(s, encodeFailure(errors.New("no"))); err == nil || err.Error() != "queue: a worker: no" {
		t.Errorf("a failure: %v", err)
	}
}

func TestAddressesThatCannotBeServersAreRefusedWithoutTheirPassword(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:4222", "http://h:1", "nats://u:secret@h:1", "nats://"} {
		if err := CheckURL(bad); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(question{[]int32{1, 2}, atlas.ForwardOptions{Score: &atlas.Score{To: 2, Without: [][]engine.Expert{{{Layer: 1, ID: 1}}}}}}.encode())
	f.Add([]byte{2, 0, 0, 0})
	f.Add([]byte{2, 1, 'n', 'o'})
	s := route.Shape{Layers: []int{1, 3}, Experts: 4, TopK: 1}
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := decodeQuestion(b); err == nil {
			again, err := decodeQuestion(q.encode())
			if err != nil || !slices.Equal(again.tokens, q.tokens) {
				t.Fatalf("%v became %v (%v)", q, again, err)
			}
		}
		if a, err := decodeAnswer(s, b); err == nil {
			if _, err := encodeAnswer(s, a); err != nil && len(a.Events) == 0 {
				t.Fatal(err)
			}
		}
	})
}
