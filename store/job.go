package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// JobState is where a job stands.
type JobState string

// States of a job. queued -> running -> done | failed | cancelled; RequeueJob leads back to queued.
const (
	JobQueued    JobState = "queued"
	JobRunning   JobState = "running"
	JobDone      JobState = "done"
	JobFailed    JobState = "failed"
	JobCancelled JobState = "cancelled"
)

// Job is a batch of prompts to run through a model. The store holds its truth: what is done is what has a result.
type Job struct {
	ID        string
	Kind      string
	Model     string
	ModelHash string
	Numerics  string
	ProbeHash string
	Params    json.RawMessage // JSON object
	State     JobState
	Done      int // results stored
	Total     int // results wanted
	Error     string
	Created   time.Time
	Started   time.Time // zero = never
	Finished  time.Time // zero = not yet
}

// NewJob is what CreateJob needs.
type NewJob struct {
	Kind      string
	Model     string
	ModelHash string
	Numerics  string
	ProbeHash string          // hash of Probes, the caller's; equal hashes share one copy
	Probes    []byte          // the probe set's text
	Params    json.RawMessage // nil = {}
	Total     int
}

// CreateJob adds a queued job.
func (s *Store) CreateJob(ctx context.Context, j NewJob) (Job, error) {
	return Job{}, errors.ErrUnsupported
}

// Job reads one job.
func (s *Store) Job(ctx context.Context, id string) (Job, error) { return Job{}, errors.ErrUnsupported }

// Jobs lists jobs, newest first.
func (s *Store) Jobs(ctx context.Context, limit int) ([]Job, error) {
	return nil, errors.ErrUnsupported
}

// JobProbes reads the probe set's text of a job.
func (s *Store) JobProbes(ctx context.Context, id string) ([]byte, error) {
	return nil, errors.ErrUnsupported
}

// ClaimJob makes the oldest queued job running and returns it; ErrNotFound if none is queued.
func (s *Store) ClaimJob(ctx context.Context) (Job, error) { return Job{}, errors.ErrUnsupported }

// StartJob makes one queued job running.
func (s *Store) StartJob(ctx context.Context, id string) (Job, error) {
	return Job{}, errors.ErrUnsupported
}

// FinishJob ends a running job: cause nil = done, otherwise failed with its text.
func (s *Store) FinishJob(ctx context.Context, id string, cause error) error {
	return errors.ErrUnsupported
}

// CancelJob ends a queued or running job. Its results stay.
func (s *Store) CancelJob(ctx context.Context, id string) error { return errors.ErrUnsupported }

// RequeueJob makes a running, failed or cancelled job queued again; its results stay, so that it resumes.
func (s *Store) RequeueJob(ctx context.Context, id string) error { return errors.ErrUnsupported }

// DeleteJob removes a job that does not run, with its results.
func (s *Store) DeleteJob(ctx context.Context, id string) error { return errors.ErrUnsupported }

// JobResult is what one prompt of a job gave. Data is the caller's encoding of counts and mass.
type JobResult struct {
	Prompt   string
	Numerics string
	Data     []byte
}

// PutResults stores results of a running job and counts those that are new into Done; a result that is there already
// (same job, prompt, numerics) is left as it is. Returns the job. ErrState if the job does not run (cancelled meanwhile).
func (s *Store) PutResults(ctx context.Context, job string, results ...JobResult) (Job, error) {
	return Job{}, errors.ErrUnsupported
}

// ResultPrompts lists the prompts of a job that have a result under numerics, sorted: what a resumed job can skip.
func (s *Store) ResultPrompts(ctx context.Context, job, numerics string) ([]string, error) {
	return nil, errors.ErrUnsupported
}

// Results calls fn with each result of a job under numerics, in order of prompt, until fn returns an error. fn may use
// the store: no transaction is open while it runs.
func (s *Store) Results(ctx context.Context, job, numerics string, fn func(JobResult) error) error {
	return errors.ErrUnsupported
}
