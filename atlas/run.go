package atlas

import (
	"context"
	"errors"
	"time"

	"covey/atlas/probes"
)

// Phase of a run, for progress.
type Phase string

// Phases, in order.
const (
	PhaseProbe    Phase = "probe"    // texts are read by the model
	PhaseShuffled Phase = "shuffled" // the same with their words shuffled
	PhaseMeasure  Phase = "measure"  // statistics
	PhaseAblate   Phase = "ablate"   // experts removed, likelihoods compared
)

// Progress of a run. Left is an estimate from the speed so far, 0 when unknown.
type Progress struct {
	Phase       Phase
	Done, Total int
	Elapsed     time.Duration
	Left        time.Duration
}

// Results keeps the observations of a run, so that a stopped run goes on where it was. A result is stored once for a
// key; storing it again changes nothing. The store's probe jobs implement it, and Memory does for runs that need no
// resuming. Methods may be called from many goroutines.
type Results interface {
	// Load returns the stored blob, or nil when there is none.
	Load(ctx context.Context, k Key) ([]byte, error)
	// Save stores a blob.
	Save(ctx context.Context, k Key, blob []byte) error
}

// Key names one observation within a job.
type Key struct {
	Prompt   string // probe id; "id~words" for its word-shuffled form
	Numerics string // numerics id
}

// Options of a run. The zero value of a field means its default.
type Options struct {
	Name         string
	Seed         uint64  // 0 = 1
	Permutations int     // of labels, for the corrected test; 0 = 2000
	Draws        int     // of the bootstrap; 0 = 2000
	Shuffles     int     // of control 1; 0 = 200
	Alpha        float64 // 0 = 0.05
	MinLift      float64 // 0 = 1.5
	MinSupport   float64 // part of the topic's texts that must select the expert; 0 = 0.5
	InFlight     int     // forwards at once; 0 = 16
	Threads      int     // goroutines of the statistics; 0 = GOMAXPROCS, 2 at most useful per memory channel
	SkipShuffled bool    // leave the word-shuffled texts out (half the forwards)
	Results      Results // nil = in memory
}

// Run reads the set with the model and measures. progress may be nil; it is called from one goroutine at a time and
// must not block. Cancelling ctx ends the run with its error; with Options.Results the finished texts are kept and a
// later Run of the same set on the same model resumes.
func Run(ctx context.Context, m Model, set *probes.Set, o Options, progress func(Progress)) (*Atlas, error) {
	return nil, errors.New("atlas: no runner yet")
}
