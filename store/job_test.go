package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newJob(s *Store, total int) Job {
	return must(s.CreateJob(ctx, NewJob{Kind: "atlas", Model: "tiny", ModelHash: "m1", Numerics: "n1", ProbeHash: "p1",
		Probes: []byte("{}\n"), Params: json.RawMessage(`{"tokens": 0}`), Total: total}))
}

func TestJobRunsFromQueuedToDone(t *testing.T) {
	s := openNew(t)
	job := newJob(s, 2)
	want := Job{ID: job.ID, Kind: "atlas", Model: "tiny", ModelHash: "m1", Numerics: "n1", ProbeHash: "p1",
		Params: json.RawMessage(`{"tokens":0}`), State: JobQueued, Total: 2, Created: job.Created}
	if diff := cmp.Diff(want, job); diff != "" {
		t.Error(diff)
	}
	if text := must(s.JobProbes(ctx, job.ID)); string(text) != "{}\n" {
		t.Errorf("probes are %q", text)
	}
	second := newJob(s, 1)
	if claimed := must(s.ClaimJob(ctx)); claimed.ID != job.ID || claimed.State != JobRunning || claimed.Started.IsZero() {
		t.Errorf("claimed %+v", claimed)
	}
	if claimed := must(s.ClaimJob(ctx)); claimed.ID != second.ID {
		t.Errorf("claimed %+v", claimed)
	}
	_, err := s.ClaimJob(ctx)
	wantErr(t, err, ErrNotFound)

	if got := must(s.PutResults(ctx, job.ID, JobResult{"a", "n1", []byte("1")}, JobResult{"b", "n1", nil})); got.Done != 2 {
		t.Errorf("done is %d", got.Done)
	}
	ok(s.FinishJob(ctx, job.ID, nil))
	if got := must(s.Job(ctx, job.ID)); got.State != JobDone || got.Error != "" || got.Finished.IsZero() {
		t.Errorf("job is %+v", got)
	}
	ok(s.FinishJob(ctx, second.ID, errors.New("model went away")))
	if got := must(s.Job(ctx, second.ID)); got.State != JobFailed || got.Error != "model went away" {
		t.Errorf("job is %+v", got)
	}
	if list := must(s.Jobs(ctx, 10)); len(list) != 2 || list[0].ID != second.ID {
		t.Errorf("list is %+v", list)
	}
}

func TestResultIsStoredOnce(t *testing.T) {
	s := openNew(t)
	job := newJob(s, 3)
	must(s.StartJob(ctx, job.ID))
	must(s.PutResults(ctx, job.ID, JobResult{"a", "n1", []byte("first")}))
	got := must(s.PutResults(ctx, job.ID, JobResult{"a", "n1", []byte("second")}, JobResult{"b", "n1", []byte("b")}, JobResult{"a", "n2", []byte("other")}))
	if got.Done != 3 {
		t.Errorf("done is %d", got.Done)
	}
	var list []string
	ok(s.Results(ctx, job.ID, "n1", func(r JobResult) error { list = append(list, r.Prompt+"="+string(r.Data)); return nil }))
	if !slices.Equal(list, []string{"a=first", "b=b"}) {
		t.Errorf("results are %v", list)
	}
}

func TestRunningJobIsQueuedAgainAtTheNextOpeningAndKeepsItsResults(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	job := newJob(s, 3)
	must(s.StartJob(ctx, job.ID))
	must(s.PutResults(ctx, job.ID, JobResult{"b", "n1", []byte("x")}, JobResult{"a", "n1", []byte("x")}))
	ok(s.Close())

	s = openIn(t, dir)
	resumed := must(s.ClaimJob(ctx))
	if resumed.ID != job.ID || resumed.Done != 2 || resumed.State != JobRunning {
		t.Errorf("job is %+v", resumed)
	}
	for numerics, want := range map[string]string{"n1": "ab", "n2": ""} {
		prompts := ""
		ok(s.Results(ctx, job.ID, numerics, func(r JobResult) error { prompts += r.Prompt; return nil }))
		if prompts != want {
			t.Errorf("under numerics %s the results are of %q, want %q", numerics, prompts, want)
		}
	}
}

func TestCancelledJobTakesNoResultsUntilQueuedAgain(t *testing.T) {
	s := openNew(t)
	job := newJob(s, 2)
	must(s.StartJob(ctx, job.ID))
	must(s.PutResults(ctx, job.ID, JobResult{"a", "n1", nil}))
	ok(s.CancelJob(ctx, job.ID))
	_, err := s.PutResults(ctx, job.ID, JobResult{"b", "n1", nil})
	wantErr(t, err, ErrState, "cancelled")
	wantErr(t, s.FinishJob(ctx, job.ID, nil), ErrState)
	wantErr(t, s.CancelJob(ctx, job.ID), ErrState)
	ok(s.RequeueJob(ctx, job.ID))
	wantErr(t, s.RequeueJob(ctx, job.ID), ErrState, "queued")
	must(s.StartJob(ctx, job.ID))
	_, err = s.StartJob(ctx, job.ID)
	wantErr(t, err, ErrState, "running")
	if got := must(s.PutResults(ctx, job.ID, JobResult{"b", "n1", nil})); got.Done != 2 || !got.Finished.IsZero() {
		t.Errorf("job is %+v", got)
	}
}

func TestDeletingJobsTakesResultsAndTheLastProbeSet(t *testing.T) {
	s := openNew(t)
	first, second := newJob(s, 1), newJob(s, 1)
	must(s.StartJob(ctx, first.ID))
	must(s.PutResults(ctx, first.ID, JobResult{"a", "n1", nil}))
	wantErr(t, s.DeleteJob(ctx, first.ID), ErrState, "running")
	ok(s.FinishJob(ctx, first.ID, nil))
	ok(s.DeleteJob(ctx, first.ID))
	if text := must(s.JobProbes(ctx, second.ID)); string(text) != "{}\n" {
		t.Errorf("probes of the other job are %q", text)
	}
	ok(s.DeleteJob(ctx, second.ID))
	wantErr(t, s.DeleteJob(ctx, second.ID), ErrNotFound)
	for _, table := range []string{"job", "job_result", "probe_set"} {
		var rows int
		ok(s.reader.QueryRow("SELECT count(*) FROM " + table).Scan(&rows))
		if rows != 0 {
			t.Errorf("%d rows are left in %s", rows, table)
		}
	}
}

func TestResultsAreReadInPagesWithTheStoreFree(t *testing.T) {
	s := openNew(t)
	const count = 2*resultPage + 1
	job := newJob(s, count)
	must(s.StartJob(ctx, job.ID))
	var results []JobResult
	for i := range count {
		results = append(results, JobResult{fmt.Sprintf("%04d", i), "n1", []byte{byte(i)}})
	}
	results[0].Prompt = "" // the first in order, and the value that paging starts from
	must(s.PutResults(ctx, job.ID, results...))
	var got []JobResult
	ok(s.Results(ctx, job.ID, "n1", func(r JobResult) error {
		got = append(got, r)
		return s.SetSetting(ctx, "last", r.Prompt)
	}))
	if diff := cmp.Diff(results, got); diff != "" {
		t.Error(diff)
	}
	enough := errors.New("enough")
	if err := s.Results(ctx, job.ID, "n1", func(JobResult) error { return enough }); err != enough {
		t.Errorf("error is %v", err)
	}
}

func TestSenselessJobsAreRefused(t *testing.T) {
	s := openNew(t)
	for _, job := range []NewJob{{ProbeHash: "p"}, {Kind: "atlas"}, {Kind: "atlas", ProbeHash: "p", Total: -1},
		{Kind: "atlas", ProbeHash: "p", Params: json.RawMessage(`[]`)}} {
		_, err := s.CreateJob(ctx, job)
		wantErr(t, err, ErrInvalid)
	}
	_, err := s.Job(ctx, "nothing")
	wantErr(t, err, ErrNotFound)
	_, err = s.PutResults(ctx, "nothing")
	wantErr(t, err, ErrNotFound)
}
