package main

// What several people at one daemon notice: how much all conversations get together, how long a short question waits while a
// long text is read, and how an answer halts meanwhile. Everything runs through the scheduler that the daemon uses.

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"covey/daemon"
	"covey/engine"
)

type benchServeCmd struct {
	daemon.EngineConfig `embed:""`
	Conversations       int  `help:"Most conversations at once; 1, 2, 4 ... up to it are measured." default:"8" placeholder:"N"`
	Runs                int  `help:"Measured runs, each of everything in turn; medians are over them. One run before them is not counted." default:"3" placeholder:"N"`
	Prompt              int  `help:"Prompt tokens of a conversation, and of the short question." default:"22" placeholder:"N"`
	Tokens              int  `help:"Tokens of a conversation's answer." default:"128" placeholder:"N"`
	Long                int  `help:"Tokens of the long text." default:"4000" placeholder:"N"`
	JSON                bool `name:"json" help:"Print one JSON object as the last line, and nothing else on standard output."`

	texts [][]int32 // of the built-in probe set
}

// serveTexts is how many probe texts are dealt to conversations: one of each topic in turn, then the next ones.
const serveTexts = 64

// serveReport is the last line. Figures are medians over the runs.
type serveReport struct {
	Together   []together  `json:"together"`
	Gain       float64     `json:"gain"` // of the most conversations over one, the median of each run's ratio
	Question   questioning `json:"question"`
	Beside     questioning `json:"question_beside_answer"` // the same while an answer is being written
	Gaps       gaps        `json:"answer_beside_reading"`
	Alone      gaps        `json:"answer_alone"`
	Runs       int         `json:"runs"`
	Prompt     int         `json:"prompt_tokens"`
	Tokens     int         `json:"tokens"`
	Long       int         `json:"long_tokens"`
	Model      string      `json:"model"`
	NumericsID string      `json:"numerics_id"`
	Device     string      `json:"device"`
	ISA        string      `json:"isa"`
	Threads    int         `json:"threads"`
	Version    string      `json:"version"`
}

// together is what conversations at once decode, all of them, while all of them do.
type together struct {
	Conversations int       `json:"conversations"`
	Decode        float64   `json:"decode_tok_s"`
	DecodeRuns    []float64 `json:"decode_runs"`
}

// questioning is the way to the first token of a short question that came while a long text was being read.
type questioning struct {
	Steps    []int     `json:"steps"` // of each run, from the one in hand when it came to the one that gave the token
	FirstMS  float64   `json:"first_ms"`
	StepMS   float64   `json:"step_ms"`  // median step that read the long text alone, beside the answer if there was one
	InSteps  float64   `json:"in_steps"` // first_ms / step_ms, the median of each run's ratio
	FirstRun []float64 `json:"first_runs_ms"`
}

// gaps are times between two tokens of one answer.
type gaps struct {
	Median float64 `json:"median_ms"`
	P99    float64 `json:"p99_ms"`
	Most   float64 `json:"most_ms"`
}

// Run measures everything in turn, so that a machine that slows down slows all of it.
func (c *benchServeCmd) Run(con *console) error {
	if c.Runs < 1 || c.Runs > 100 || c.Conversations < 1 || c.Conversations > 1<<10 || c.Prompt < 1 || c.Tokens < 16 || c.Long < 4*c.BatchRows {
		return &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: "bench serve: --runs is 1 to 100, --conversations 1 to 1024, --prompt at least 1, --tokens at least 16, --long at least four times --batch-rows"}
	}
	ctx := con.untilInterrupted()
	c.Sequences = max(c.Sequences, c.Conversations+1)
	var err error
	if c.texts, err = probePrompts(c.Model, serveTexts); err != nil {
		return err
	}
	eng, err := openEngine(ctx, con, c.EngineConfig)
	if err != nil {
		return err
	}
	defer eng.Close()
	info := eng.Model()
	r := serveReport{Runs: c.Runs, Prompt: c.Prompt, Tokens: c.Tokens, Long: c.Long, Model: info.ID, NumericsID: info.NumericsID, Device: c.Device, ISA: info.ISA, Threads: info.Threads, Version: version}
	if err := c.measure(ctx, con, eng, &r); err != nil {
		return err
	}
	return c.print(con, r)
}

// measure fills the figures of r.
func (c *benchServeCmd) measure(ctx context.Context, con *console, eng *engine.Engine, r *serveReport) error {
	defer con.clear()
	for n := 1; n < c.Conversations; n *= 2 {
		r.Together = append(r.Together, together{Conversations: n})
	}
	r.Together = append(r.Together, together{Conversations: c.Conversations})
	if _, err := c.decode(ctx, eng, c.Conversations); err != nil { // warms caches and pages
		return err
	}
	var gains []float64
	var silent, writing []observation
	for run := range c.Runs {
		con.progress("measuring", int64(run), int64(c.Runs))
		for i := range r.Together {
			speed, err := c.decode(ctx, eng, r.Together[i].Conversations)
			if err != nil {
				return err
			}
			r.Together[i].DecodeRuns = append(r.Together[i].DecodeRuns, speed)
		}
		gains = append(gains, r.Together[len(r.Together)-1].DecodeRuns[run]/r.Together[0].DecodeRuns[run])
		for _, list := range []*[]observation{&silent, &writing} {
			o, err := c.reading(ctx, eng, list == &writing)
			if err != nil {
				return err
			}
			*list = append(*list, o)
		}
	}
	for i := range r.Together {
		r.Together[i].Decode = median(r.Together[i].DecodeRuns)
	}
	r.Gain, r.Question, r.Beside = median(gains), questioned(silent), questioned(writing)
	var alone, beside []float64
	for _, o := range writing {
		alone, beside = append(alone, o.alone...), append(beside, o.beside...)
	}
	r.Alone, r.Gaps = spread(alone), spread(beside)
	return nil
}

// questioned sums up what was seen of the question.
func questioned(list []observation) questioning {
	var q questioning
	var steps, ratios []float64
	for _, o := range list {
		q.Steps, q.FirstRun = append(q.Steps, o.steps), append(q.FirstRun, o.first)
		steps, ratios = append(steps, o.reading...), append(ratios, o.first/median(o.reading))
	}
	q.FirstMS, q.StepMS, q.InSteps = median(q.FirstRun), median(steps), median(ratios)
	return q
}

func (c *benchServeCmd) print(con *console, r serveReport) error {
	if c.JSON {
		return con.json(r)
	}
	fmt.Fprintf(con.out, "%s, %s, %d threads, numerics %s\n", r.Model, r.ISA, r.Threads, r.NumericsID)
	for _, t := range r.Together {
		fmt.Fprintf(con.out, "%3d conversations  %7.1f tokens/s together (median of %d; %.1f to %.1f)\n", t.Conversations, t.Decode, r.Runs, slices.Min(t.DecodeRuns), slices.Max(t.DecodeRuns))
	}
	fmt.Fprintf(con.out, "%d conversations get %.2f times what one gets\n", r.Together[len(r.Together)-1].Conversations, r.Gain)
	for _, q := range []struct {
		name string
		questioning
	}{{"is read", r.Question}, {"is read and an answer written", r.Beside}} {
		fmt.Fprintf(con.out, "a question of %d tokens while a text of %d %s: first token in %.0f ms, %.1f of its steps of %.0f ms; steps %v\n", c.Prompt, c.Long, q.name, q.FirstMS, q.InSteps, q.StepMS, q.Steps)
	}
	_, err := fmt.Fprintf(con.out, "between two tokens of the answer: %.0f ms alone, %.0f ms while the text is read (99 %% below %.0f, most %.0f)\n", r.Alone.Median, r.Gaps.Median, r.Gaps.P99, r.Gaps.Most)
	return err
}

// conversation is one request as a person's would be: its own piece of the probe texts, from number at on, and tokens drawn as
// the model suggests, so that neighbours choose experts as differently as they do in use.
func (c *benchServeCmd) conversation(eng *engine.Engine, at, prompt, tokens int) engine.Request {
	r := engine.Request{MaxTokens: tokens, IgnoreEOS: true, Logprobs: -1, Sampling: eng.Defaults()}
	r.Sampling.Seed = uint64(at)
	for ; len(r.Prompt) < prompt; at++ {
		r.Prompt = append(r.Prompt, c.texts[at%len(c.texts)]...)
	}
	r.Prompt = r.Prompt[:prompt]
	return r
}

// decode runs n conversations at once and returns the tokens a second of all of them, from when the last has begun its answer
// to when the first has ended it.
func (c *benchServeCmd) decode(ctx context.Context, eng *engine.Engine, n int) (float64, error) {
	requests := make([]engine.Request, n)
	for i := range requests {
		requests[i] = c.conversation(eng, i, c.Prompt, c.Tokens)
	}
	times, err := answers(ctx, eng, requests)
	if err != nil {
		return 0, err
	}
	speed := joint(times)
	if speed == 0 {
		return 0, &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: fmt.Sprintf("bench serve: %d conversations were not answered at once: the last began when the first had ended", n), Hint: "raise --kv-tokens or --tokens, or lower --conversations"}
	}
	return speed, nil
}

// observation is one reading of the long text with a question in its midst. Times are in ms.
type observation struct {
	steps         int
	first         float64
	reading       []float64 // steps that read the text before the question came
	alone, beside []float64 // between tokens of the answer: before the text came, and while it was read
}

// end is a sequence's part in a step, noted when the step ended.
type end struct {
	step, sequence uint64
	nanos          int64
	at             time.Time
}

// reading has a long text read, beside a running answer if answering, and asks a short question when a third is read.
func (c *benchServeCmd) reading(ctx context.Context, eng *engine.Engine, answering bool) (observation, error) {
	info := eng.Model()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ends []end
	events, stop := eng.Subscribe()
	noted := make(chan struct{})
	go func() {
		defer close(noted)
		for e := range events {
			ends = append(ends, end{e.Step, e.Sequence, e.StepNanos, time.Now()})
		}
	}()
	defer func() { stop(); <-noted }()
	submit := func(r engine.Request) (*engine.Stream, error) {
		stream, err := eng.Submit(ctx, r)
		if err != nil {
			return nil, inputError("bench", "lower --long or --tokens, or raise --context and --kv-tokens", "the engine does not accept the request", err)
		}
		return stream, nil
	}
	writing := uint64(0)
	if answering {
		stream, err := submit(c.conversation(eng, c.Conversations+1, c.Prompt, info.Context-c.Prompt))
		if err != nil {
			return observation{}, err
		}
		writing = stream.ID()
		if err := await(stream, func(o engine.Output) bool { return o.Kind == engine.KindToken && o.Position == c.Prompt+c.Tokens }); err != nil {
			return observation{}, err
		}
	}
	text, err := submit(c.conversation(eng, 0, c.Long, 1))
	if err != nil {
		return observation{}, err
	}
	if err := await(text, func(o engine.Output) bool { return o.Kind == engine.KindPrefill && 3*o.Done >= o.Total }); err != nil {
		return observation{}, err
	}
	asked := time.Now()
	question, err := submit(c.conversation(eng, c.Conversations, c.Prompt, 1))
	if err != nil {
		return observation{}, err
	}
	if err := await(question, func(o engine.Output) bool { return o.Kind == engine.KindToken }); err != nil {
		return observation{}, err
	}
	o := observation{first: float64(time.Since(asked)) / 1e6}
	if err := await(text, func(o engine.Output) bool { return o.Kind == engine.KindToken }); err != nil {
		return observation{}, err
	}
	stop()
	<-noted
	o.read(ends, asked, text.ID(), question.ID(), writing)
	return o, nil
}

// await reads a stream to the first output that is wanted.
func await(stream *engine.Stream, wanted func(engine.Output) bool) error {
	for {
		o, err := stream.Next(context.Background()) // the request itself ends with its context
		if err == io.EOF {
			if result := stream.Result(); result.Err != nil {
				return inputError("generation", "", "the answer failed", result.Err)
			}
			return context.Canceled
		}
		if err != nil || wanted(o) {
			return err
		}
	}
}

// read fills o from what was noted of the steps.
func (o *observation) read(ends []end, asked time.Time, text, question, writing uint64) {
	var before uint64 // the last step that had ended when the question came
	var from, to time.Time
	for _, e := range ends {
		if e.at.Before(asked) {
			before = max(before, e.step)
		}
		if e.sequence != text {
			continue
		}
		if from.IsZero() {
			from = e.at
		}
		to = e.at
		if e.at.Before(asked) {
			o.reading = append(o.reading, float64(e.nanos)/1e6)
		}
	}
	var token time.Time
	for _, e := range ends {
		switch e.sequence {
		case question:
			o.steps = int(e.step - before) // the last of them gave the token
		case writing:
			gap := float64(e.at.Sub(token)) / 1e6
			switch {
			case token.IsZero() || e.at.After(to):
			case e.at.Before(from):
				o.alone = append(o.alone, gap)
			default:
				o.beside = append(o.beside, gap)
			}
			token = e.at
		}
	}
}

// spread is what times between tokens were like.
func spread(list []float64) gaps {
	if len(list) == 0 {
		return gaps{}
	}
	sorted := slices.Sorted(slices.Values(list))
	return gaps{Median: median(sorted), P99: sorted[(len(sorted)-1)*99/100], Most: sorted[len(sorted)-1]}
}
