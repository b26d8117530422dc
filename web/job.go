package web

import (
	"strconv"
	"time"
)

// Job is a probe batch in the list.
type Job struct {
	ID, Name, State, Phase string // State: queued, running, done, failed, cancelled; Phase: probe, measure, ablate
	Removal                bool   // experts are removed, rather than texts read for an atlas
	Set                    string
	Topics                 int
	Model                  string
	Done, Total            int           // of the phase
	Left                   time.Duration // 0 = not known
	Ahead                  int           // queued jobs before this one
	Error                  string
	Created                time.Time
	Took                   time.Duration
	Atlas                  string // that it made; "" = none
}

// JobsView is the page of probe batches.
type JobsView struct {
	Page    Page
	Jobs    []Job
	Form    JobForm
	Builtin BuiltinSet
	Ready   bool // the model is open
}

// BuiltinSet describes the probe set that comes with Covey.
type BuiltinSet struct {
	Topics       []string
	Open, Sealed int
}

// JobForm is what the form for a new batch holds, and what was found in it.
type JobForm struct {
	Name, Set, Text string // Set: builtin or own
	Topics          map[string]bool
	Draws, Seed     int
	Problem         string   // why it was not started
	Findings        []string // of lint
	Checked         string   // what the check found, when all is well
}

var jobStates = map[string]string{"queued": "waiting", "running": "running", "done": "done", "failed": "failed", "cancelled": "cancelled"}

var jobPhases = map[string]string{"": "starting", "probe": "reading texts", "measure": "computing statistics", "ablate": "removing experts"}

// progress is the line about a running job.
func (j Job) progress() string {
	text := jobPhases[j.Phase]
	if j.Total > 0 {
		text += ", " + Count(j.Done) + " of " + Count(j.Total)
	}
	if j.Left > 0 {
		text += ", about " + span(j.Left) + " left in this phase"
	}
	return text
}

// span writes a duration for people: "40 s", "3 min", "2 h 10 min".
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return strconv.Itoa(max(1, int(d.Round(time.Second).Seconds()))) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Round(time.Minute).Minutes())) + " min"
	}
	d = d.Round(time.Minute)
	return strconv.Itoa(int(d.Hours())) + " h " + strconv.Itoa(int(d.Minutes())%60) + " min"
}
