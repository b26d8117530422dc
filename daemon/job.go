package daemon

// Probe batches. The store holds the truth about a job; this file runs one at a time and tells watching pages how far it
// is. A job that was running when the daemon stopped is queued again at the next start and goes on from the texts it has.
// The texts travel through a queue (package queue): by default one inside the process, started with the first job and
// closed after the last; with Config.NATS other machines take texts from it too. This daemon's engine works on them in
// the background, behind people's requests.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"covey/atlas"
	"covey/atlas/probes"
	"covey/atlas/queue"
	"covey/store"
	"covey/web"
	"covey/web/wire"
)

const (
	jobKind       = "probe"
	ablationKind  = "ablate"
	jobsListed    = 200
	progressEvery = 250 * time.Millisecond
	stopEvery     = 100 * time.Millisecond // how soon a running job sees that the daemon stops
	jobForwards   = 8                      // texts that this engine reads at once: enough to fill steps, few enough for chat to get in
	jobAsked      = 32                     // texts asked for at once, of this engine and of others
	closeWithin   = 5 * time.Second        // for withdrawing work
)

// jobParams is what a job keeps of its form.
type jobParams struct {
	Name   string   `json:"name"`
	Set    string   `json:"set"`
	Topics []string `json:"topics"`
	Draws  int      `json:"draws"`
	Seed   uint64   `json:"seed"`

	Atlas  string `json:"atlas,omitempty"`  // of an ablation: the stored atlas that it completes
	Labels int    `json:"labels,omitempty"` // of an ablation: labels to test one by one
	Groups bool   `json:"groups,omitempty"` // of an ablation: also all specialists of each topic
}

func (p jobParams) ablation() atlas.AblateOptions {
	return atlas.AblateOptions{Labels: p.Labels, Groups: p.Groups, Draws: p.Draws, Seed: p.Seed, InFlight: jobAsked}
}

func (p jobParams) options() atlas.Options {
	return atlas.Options{Name: p.Name, Seed: p.Seed, Draws: p.Draws, Permutations: p.Draws, InFlight: jobAsked}
}

// jobs is the part of a daemon that runs probe batches. Safe for concurrent use.
type jobs struct {
	server  *Server
	atlases *atlases

	mu        sync.Mutex
	followers map[*Conn]bool
	working   bool
	current   string // running job; "" = none
	progress  atlas.Progress
	sent      time.Time          // of the last progress
	cancel    context.CancelFunc // of the running job
}

// mountJobs adds the page, its actions and the command.
func (s *Server) mountJobs(a *atlases) {
	j := &jobs{server: s, atlases: a, followers: map[*Conn]bool{}}
	a.jobs = j
	s.always("GET /jobs", j.servePage)
	s.route("POST /jobs", s.needModel(j.serveNew), jobBody)
	s.route("POST /atlas/{id}/ablate", s.needModel(j.serveAblate), jobBody)
	s.always("POST /jobs/{id}/cancel", j.serveCancel)
	s.always("POST /jobs/{id}/resume", j.serveResume)
	s.always("POST /jobs/{id}/delete", j.serveDelete)
	s.command(wire.FollowJobs, j.follow)
	s.onReady(j.resume)
}

// resume queues again what was running when the daemon last stopped, and starts to work.
func (j *jobs) resume() {
	ctx := j.server.work
	list, err := j.server.store.Jobs(ctx, jobsListed)
	if err != nil {
		j.server.log.Error("reading the probe batches", slog.Any("err", err))
		return
	}
	for _, job := range list {
		if job.State == store.JobRunning {
			if err := j.server.store.RequeueJob(ctx, job.ID); err != nil {
				j.server.log.Error("queueing a probe batch again", slog.String("job", job.ID), slog.Any("err", err))
			}
		}
	}
	j.work()
}

// work makes sure that queued jobs are being run.
func (j *jobs) work() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.working {
		j.working = j.server.Go(j.run)
	}
}

// run runs queued jobs until there is none.
func (j *jobs) run(ctx context.Context) {
	var conn *queue.Conn
	defer func() {
		if conn != nil {
			if err := conn.Close(); err != nil {
				j.server.log.Warn("closing the queue of probe batches", slog.Any("err", err))
			}
		}
	}()
	for {
		job, ok := j.claim(ctx)
		if !ok {
			return
		}
		j.runOne(ctx, job, func(ctx context.Context) (_ *queue.Conn, err error) {
			if conn == nil {
				if address := j.server.cfg.NATS; address != "" {
					conn, err = queue.Connect(ctx, address, j.server.cfg.NATSCreds)
				} else {
					conn, err = queue.Start(ctx)
				}
			}
			return conn, err
		})
	}
}

// claim takes the oldest queued job. Without one it notes, under the lock that work holds, that nobody works any more.
func (j *jobs) claim(ctx context.Context) (store.Job, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.server.draining.Load() {
		job, err := j.server.store.ClaimJob(ctx)
		if err == nil {
			return job, true
		}
		if !errors.Is(err, store.ErrNotFound) {
			j.server.log.Error("taking a probe batch", slog.Any("err", err))
		}
	}
	j.working = false
	return store.Job{}, false
}

// runOne runs a job to its end. A job that the stopping daemon cuts off stays running in the store.
func (j *jobs) runOne(work context.Context, job store.Job, connect func(context.Context) (*queue.Conn, error)) {
	ctx, cancel := context.WithCancel(work)
	defer cancel()
	j.mu.Lock()
	j.current, j.cancel, j.progress = job.ID, cancel, atlas.Progress{}
	j.mu.Unlock()
	stopWatching := j.watchDrain(ctx, cancel)
	j.tell(job.ID, true)
	started := time.Now()
	err := j.measure(ctx, job, connect)
	stopWatching()
	j.mu.Lock()
	j.current, j.cancel = "", nil
	j.mu.Unlock()
	if j.server.draining.Load() && err != nil {
		return
	}
	switch state, readErr := j.server.store.Job(work, job.ID); {
	case readErr != nil:
		j.server.log.Error("reading a probe batch", slog.String("job", job.ID), slog.Any("err", readErr))
	case state.State != store.JobRunning: // cancelled meanwhile
		err = nil
	default:
		if finishErr := j.server.store.FinishJob(work, job.ID, err); finishErr != nil {
			j.server.log.Error("ending a probe batch", slog.String("job", job.ID), slog.Any("err", finishErr))
		}
	}
	if err != nil {
		j.server.log.Warn("probe batch failed", slog.String("job", job.ID), slog.Any("err", err))
	} else {
		j.server.log.Info("probe batch ended", slog.String("job", job.ID), slog.Duration("dur", time.Since(started)))
	}
	j.tell(job.ID, true)
}

// watchDrain cancels when the daemon begins to stop: a batch takes minutes, and nothing of it is lost.
func (j *jobs) watchDrain(ctx context.Context, cancel context.CancelFunc) (stop func()) {
	done := make(chan struct{})
	ticker := time.NewTicker(stopEvery)
	go func() {
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if j.server.draining.Load() {
					cancel()
					return
				}
			case <-ctx.Done():
				return
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// measure does a job: it reads the texts and stores the atlas, or removes experts and completes an atlas.
func (j *jobs) measure(ctx context.Context, job store.Job, connect func(context.Context) (*queue.Conn, error)) (err error) {
	eng, err := j.server.Engine()
	if err != nil {
		return err
	}
	if hash := eng.Model().Hash; job.ModelHash != hash {
		return fmt.Errorf("the batch was made for another model (%s): start Covey with that model and let it go on", job.Model)
	}
	var params jobParams
	if err := json.Unmarshal(job.Params, &params); err != nil {
		return fmt.Errorf("the settings of the batch cannot be read: %w", err)
	}
	text, err := j.server.store.JobProbes(ctx, job.ID)
	if err != nil {
		return err
	}
	set, err := probes.Read(params.Set, strings.NewReader(string(text)))
	if err != nil {
		return err
	}
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	local := atlas.FromEngine(eng)
	model, err := conn.Open(ctx, local, job.ID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		cancel(conn.Work(ctx, local, jobForwards, nil)) // without its own engine a batch could wait for ever
	}()
	defer func() {
		cancel(nil)
		<-worked
		closing, done := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer done()
		if closeErr := model.Close(closing, err == nil); closeErr != nil {
			j.server.log.Warn("withdrawing a probe batch", slog.String("job", job.ID), slog.Any("err", closeErr))
		}
	}()
	progress := func(p atlas.Progress) {
		j.mu.Lock()
		j.progress = p
		j.mu.Unlock()
		j.tell(job.ID, false)
	}
	if job.Kind == ablationKind {
		err = j.ablate(ctx, job, params, model, set, progress)
	} else {
		err = j.read(ctx, job, params, model, set, progress)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// read reads the texts of a set and stores the atlas.
func (j *jobs) read(ctx context.Context, job store.Job, params jobParams, model atlas.Model, set *probes.Set, progress func(atlas.Progress)) error {
	o := params.options()
	o.Store, o.Job = j.server.store, job.ID
	doc, err := atlas.Run(ctx, model, set, o, progress)
	if err != nil {
		return err
	}
	_, err = j.atlases.save(ctx, doc, job.ID)
	return err
}

// ablate removes the experts of an atlas's labels and writes the effects into the stored atlas.
func (j *jobs) ablate(ctx context.Context, job store.Job, params jobParams, model atlas.Model, set *probes.Set, progress func(atlas.Progress)) error {
	doc, err := j.atlases.open(ctx, params.Atlas)
	if err != nil {
		return err
	}
	o := params.ablation()
	o.Store, o.Job = j.server.store, job.ID
	done, err := atlas.Ablate(ctx, model, set, doc.Atlas, o, progress)
	if err != nil {
		return err
	}
	return j.atlases.replace(ctx, params.Atlas, done)
}

// follow answers FollowJobs.
func (j *jobs) follow(_ context.Context, conn *Conn, _ wire.Command) ([]string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.followers[conn] {
		j.followers[conn] = true
		context.AfterFunc(conn.Context(), func() {
			j.mu.Lock()
			delete(j.followers, conn)
			j.mu.Unlock()
		})
	}
	return nil, nil
}

// tell patches a job's row on every page that follows: always, or when the last time is long enough ago.
func (j *jobs) tell(id string, always bool) {
	j.mu.Lock()
	if len(j.followers) == 0 || !always && time.Since(j.sent) < progressEvery {
		j.mu.Unlock()
		return
	}
	j.sent = time.Now()
	conns := make([]*Conn, 0, len(j.followers))
	for c := range j.followers {
		conns = append(conns, c)
	}
	j.mu.Unlock()
	ctx := j.server.work
	job, err := j.server.store.Job(ctx, id)
	if err != nil {
		return // deleted meanwhile
	}
	view := j.view(job, j.atlasOf(ctx))
	for _, c := range conns {
		// The row holds forms, which need the page token of their own session.
		html, err := fragment(ctx, web.JobRow(view, c.identity.PageToken))
		if err != nil {
			j.server.log.Error("rendering a probe batch", slog.Any("err", err))
			return
		}
		class := Visual
		if always {
			class = Essential
		}
		c.Send(Frame{Class: class, Text: true, Key: "job/" + id, Data: wire.Patch{Op: wire.Replace, Target: "job-" + id, HTML: html}.Append(nil)})
	}
}

// atlasOf finds the atlas that each job made.
func (j *jobs) atlasOf(ctx context.Context) map[string]string {
	list, err := j.server.store.Atlases(ctx, "")
	if err != nil {
		return nil
	}
	out := map[string]string{}
	for _, a := range list {
		if a.Job != "" {
			out[a.Job] = a.ID
		}
	}
	return out
}

// view is a job as the page shows it.
func (j *jobs) view(job store.Job, atlasOf map[string]string) web.Job {
	var params jobParams
	if json.Unmarshal(job.Params, &params) != nil {
		params = jobParams{Name: job.ID}
	}
	if job.Kind == ablationKind {
		atlasOf = map[string]string{job.ID: params.Atlas}
	}
	v := web.Job{
		ID: job.ID, Name: params.Name, Removal: job.Kind == ablationKind, State: string(job.State), Set: params.Set, Topics: len(params.Topics), Model: job.Model,
		Done: job.Done, Total: job.Total, Error: sentence(job.Error), Created: job.Created, Atlas: atlasOf[job.ID],
	}
	if !job.Finished.IsZero() {
		v.Took = job.Finished.Sub(job.Started)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if job.ID == j.current && job.State == store.JobRunning && j.progress.Phase != "" {
		v.Phase, v.Done, v.Total, v.Left = string(j.progress.Phase), j.progress.Done, j.progress.Total, j.progress.Left
	}
	return v
}

// list is every job for the page, newest first.
func (j *jobs) list(ctx context.Context) ([]web.Job, error) {
	stored, err := j.server.store.Jobs(ctx, jobsListed)
	if err != nil {
		return nil, err
	}
	made := j.atlasOf(ctx)
	var out []web.Job
	for _, job := range stored {
		out = append(out, j.view(job, made))
	}
	// Jobs run oldest first.
	ahead := 0
	for i := range slices.Backward(out) {
		if out[i].State == string(store.JobQueued) {
			out[i].Ahead = ahead
			ahead++
		}
	}
	return out, nil
}

// subset is the built-in set with some of its topics. Crossed texts stay when both of their topics do.
func subset(set *probes.Set, topics []string) (*probes.Set, error) {
	if len(topics) == 0 || len(topics) == len(set.Topics) {
		return set, nil
	}
	keep := func(p probes.Probe) bool {
		first, second := p.Parts()
		return slices.Contains(topics, first) && (second == "" || slices.Contains(topics, second))
	}
	var list []probes.Probe
	for _, p := range set.Probes {
		if keep(p) {
			list = append(list, p)
		}
	}
	return probes.New(cmp.Or(set.Name, "set")+" (part)", list)
}
