package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
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
	Started   time.Time // of the last start; zero = never
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

// JobResult is what one prompt of a job gave. Data is the caller's encoding of counts and mass.
type JobResult struct {
	Prompt   string
	Numerics string
	Data     []byte
}

const (
	jobColumns = `id, kind, model, model_hash, numerics, probe_set, params, state, done, total, error, created, started, finished`

	sqlJob       = `SELECT ` + jobColumns + ` FROM job WHERE id = ?`
	sqlJobs      = `SELECT ` + jobColumns + ` FROM job ORDER BY seq DESC LIMIT ?`
	sqlAddProbes = `INSERT INTO probe_set (hash, text) VALUES (?, ?) ON CONFLICT (hash) DO NOTHING`
	sqlJobProbes = `SELECT p.text FROM job j JOIN probe_set p ON p.hash = j.probe_set WHERE j.id = ?`
	sqlAddJob    = `INSERT INTO job (id, kind, model, model_hash, numerics, probe_set, params, state, total, created)
		VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?)`
	sqlOldestQueued = `SELECT id FROM job WHERE state = 'queued' ORDER BY seq LIMIT 1`
	sqlStartJob     = `UPDATE job SET state = 'running', started = ?2, finished = 0, error = '' WHERE id = ?1 AND state = 'queued'`
	sqlFinishJob    = `UPDATE job SET state = ?2, error = ?3, finished = ?4 WHERE id = ?1 AND state = 'running'`
	sqlCancelJob    = `UPDATE job SET state = 'cancelled', finished = ?2 WHERE id = ?1 AND state IN ('queued', 'running')`
	sqlRequeueJob   = `UPDATE job SET state = 'queued', finished = 0, error = '' WHERE id = ?1
		AND state IN ('running', 'failed', 'cancelled')`
	sqlDeleteJob    = `DELETE FROM job WHERE id = ? AND state <> 'running'`
	sqlDeleteProbes = `DELETE FROM probe_set WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.probe_set = probe_set.hash)`
	sqlJobRow       = `SELECT seq, state FROM job WHERE id = ?`
	sqlPutResult    = `INSERT INTO job_result (job, prompt, numerics, data) VALUES (?, ?, ?, ?)
		ON CONFLICT (job, numerics, prompt) DO NOTHING`
	sqlCountResults = `UPDATE job SET done = done + ?2 WHERE seq = ?1`
	sqlResultPage   = `SELECT r.prompt, r.numerics, r.data FROM job_result r JOIN job j ON j.seq = r.job
		WHERE j.id = ?1 AND r.numerics = ?2 AND (r.prompt > ?3 OR ?4) ORDER BY r.prompt LIMIT ?5`
)

// resultPage is the number of results read at once: at some 40 KB each a page is a few MB.
const resultPage = 64

func scanJob(row interface{ Scan(...any) error }) (j Job, err error) {
	var params string
	var created, started, finished int64
	err = row.Scan(&j.ID, &j.Kind, &j.Model, &j.ModelHash, &j.Numerics, &j.ProbeHash, &params, &j.State, &j.Done, &j.Total,
		&j.Error, &created, &started, &finished)
	j.Params = json.RawMessage(params)
	j.Created, j.Started, j.Finished = moment(created), moment(started), moment(finished)
	return j, err
}

// CreateJob adds a queued job.
func (s *Store) CreateJob(ctx context.Context, j NewJob) (job Job, err error) {
	const doing = "creating job"
	params, err := object("params", j.Params)
	if err != nil {
		return Job{}, fail(doing, err)
	}
	if j.Kind == "" || j.ProbeHash == "" || j.Total < 0 {
		return Job{}, fail(doing, fmt.Errorf("%w: kind %q, probe hash %q, total %d: kind and hash must be given, total must not be negative",
			ErrInvalid, j.Kind, j.ProbeHash, j.Total))
	}
	probes := j.Probes
	if probes == nil {
		probes = []byte{}
	}
	id := newID()
	err = s.write(ctx, doing, func(tx *sql.Tx) error {
		if _, err := tx.Exec(sqlAddProbes, j.ProbeHash, probes); err != nil {
			return err
		}
		if _, err := tx.Exec(sqlAddJob, id, j.Kind, j.Model, j.ModelHash, j.Numerics, j.ProbeHash, params, j.Total, s.now().UnixMilli()); err != nil {
			return err
		}
		job, err = scanJob(tx.QueryRow(sqlJob, id))
		return err
	})
	return job, err
}

// Job reads one job.
func (s *Store) Job(ctx context.Context, id string) (Job, error) {
	job, err := scanJob(s.reader.QueryRowContext(ctx, sqlJob, id))
	return job, failRead(ctx, "reading job "+id, err)
}

// Jobs lists jobs, newest first.
func (s *Store) Jobs(ctx context.Context, limit int) ([]Job, error) {
	list, err := query(ctx, s.reader, func(rows *sql.Rows) (Job, error) { return scanJob(rows) }, sqlJobs, max(limit, 0))
	return list, failRead(ctx, "listing jobs", err)
}

// JobProbes reads the probe set's text of a job.
func (s *Store) JobProbes(ctx context.Context, id string) (text []byte, err error) {
	err = s.reader.QueryRowContext(ctx, sqlJobProbes, id).Scan(&text)
	return text, failRead(ctx, "reading probes of job "+id, err)
}

// ClaimJob makes the oldest queued job running and returns it; ErrNotFound if none is queued.
func (s *Store) ClaimJob(ctx context.Context) (job Job, err error) {
	err = s.write(ctx, "claiming job", func(tx *sql.Tx) error {
		var id string
		if err := tx.QueryRow(sqlOldestQueued).Scan(&id); err != nil {
			return err
		}
		job, err = s.start(tx, id)
		return err
	})
	return job, err
}

// StartJob makes one queued job running.
func (s *Store) StartJob(ctx context.Context, id string) (job Job, err error) {
	err = s.write(ctx, "starting job "+id, func(tx *sql.Tx) error {
		job, err = s.start(tx, id)
		return err
	})
	return job, err
}

func (s *Store) start(tx *sql.Tx, id string) (Job, error) {
	if err := changeJob(tx, id, sqlStartJob, id, s.now().UnixMilli()); err != nil {
		return Job{}, err
	}
	return scanJob(tx.QueryRow(sqlJob, id))
}

// changeJob runs a statement that changes the job's row if its state allows it; ErrState if not.
func changeJob(tx *sql.Tx, id, statement string, args ...any) error {
	err := changeOne(tx, statement, args...)
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	_, state, err := jobRow(tx, id)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: the job is %s", ErrState, state)
}

func jobRow(tx *sql.Tx, id string) (seq int64, state JobState, err error) {
	err = tx.QueryRow(sqlJobRow, id).Scan(&seq, &state)
	return seq, state, err
}

// FinishJob ends a running job: cause nil = done, otherwise failed with its text.
func (s *Store) FinishJob(ctx context.Context, id string, cause error) error {
	state, text := JobDone, ""
	if cause != nil {
		state, text = JobFailed, clean(cause.Error())
	}
	return s.write(ctx, "finishing job "+id, func(tx *sql.Tx) error {
		return changeJob(tx, id, sqlFinishJob, id, state, text, s.now().UnixMilli())
	})
}

// CancelJob ends a queued or running job. Its results stay.
func (s *Store) CancelJob(ctx context.Context, id string) error {
	return s.write(ctx, "cancelling job "+id, func(tx *sql.Tx) error {
		return changeJob(tx, id, sqlCancelJob, id, s.now().UnixMilli())
	})
}

// RequeueJob makes a running, failed or cancelled job queued again; its results stay, so that it resumes.
func (s *Store) RequeueJob(ctx context.Context, id string) error {
	return s.write(ctx, "queueing job "+id, func(tx *sql.Tx) error { return changeJob(tx, id, sqlRequeueJob, id) })
}

// DeleteJob removes a job that does not run, with its results, and its probe set if no other job has it.
func (s *Store) DeleteJob(ctx context.Context, id string) error {
	return s.write(ctx, "deleting job "+id, func(tx *sql.Tx) error {
		if err := changeJob(tx, id, sqlDeleteJob, id); err != nil {
			return err
		}
		_, err := tx.Exec(sqlDeleteProbes)
		return err
	})
}

// PutResults stores results of a running job and counts those that are new into Done; a result that is there already
// (same job, prompt, numerics) is left as it is. Returns the job. ErrState if the job does not run (cancelled meanwhile).
func (s *Store) PutResults(ctx context.Context, job string, results ...JobResult) (j Job, err error) {
	err = s.write(ctx, "storing results of job "+job, func(tx *sql.Tx) error {
		seq, state, err := jobRow(tx, job)
		if err != nil {
			return err
		}
		if state != JobRunning {
			return fmt.Errorf("%w: the job is %s", ErrState, state)
		}
		added := int64(0)
		for _, r := range results {
			data := r.Data
			if data == nil {
				data = []byte{}
			}
			result, err := tx.Exec(sqlPutResult, seq, r.Prompt, r.Numerics, data)
			if err != nil {
				return err
			}
			rows, err := result.RowsAffected()
			if err != nil {
				return err
			}
			added += rows
		}
		if _, err := tx.Exec(sqlCountResults, seq, added); err != nil {
			return err
		}
		j, err = scanJob(tx.QueryRow(sqlJob, job))
		return err
	})
	return j, err
}

// Results calls fn with each result of a job under numerics, in order of prompt, until fn returns an error, which it
// returns. fn may use the store: no transaction is open while it runs.
func (s *Store) Results(ctx context.Context, job, numerics string, fn func(JobResult) error) error {
	last, first := "", true
	for {
		page, err := query(ctx, s.reader, func(rows *sql.Rows) (r JobResult, err error) {
			return r, rows.Scan(&r.Prompt, &r.Numerics, &r.Data)
		}, sqlResultPage, job, numerics, last, first, resultPage)
		if err != nil {
			return failRead(ctx, "reading results of job "+job, err)
		}
		for _, r := range page {
			if err := fn(r); err != nil {
				return err
			}
			last, first = r.Prompt, false
		}
		if len(page) < resultPage {
			return nil
		}
	}
}
