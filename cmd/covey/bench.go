package main

import (
	"fmt"
	"slices"
	"time"

	"covey/cuda"
	"covey/daemon"
	"covey/engine"
)

type benchCmd struct {
	Decode    decodeCmd     `cmd:"" default:"withargs" help:"Tokens one after another."`
	Prefill   prefillCmd    `cmd:"" help:"A prompt at once."`
	Read      readCmd       `cmd:"" help:"Bytes from memory, no arithmetic."`
	Kernels   kernelsCmd    `cmd:"" help:"Products of each form."`
	Serve     benchServeCmd `cmd:"" help:"Conversations at once, and a question while a long text is read."`
	Peer      peerCmd       `cmd:"" help:"Covey and llama.cpp in turn on one model."`
	MakeModel makeModelCmd  `cmd:"" name:"make-model" help:"Write a checkpoint of random weights in the shape of a real model."`
}

type (
	decodeCmd  struct{ speed }
	prefillCmd struct{ speed }
	readCmd    struct{ speed }
	kernelsCmd struct{ speed }
)

// speed is what every measurement takes.
type speed struct {
	daemon.EngineConfig `embed:""`
	Runs                int  `help:"Measured runs; medians are over them. One run before them is not counted." default:"5" placeholder:"N"`
	Prompt              int  `help:"Prompt tokens." default:"512" placeholder:"N"`
	Tokens              int  `help:"Tokens to generate in a decode run." default:"128" placeholder:"N"`
	Batch               int  `help:"Answers at once in a run; speeds are of all together." default:"1" placeholder:"N"`
	JSON                bool `name:"json" help:"Print one JSON object as the last line, and nothing else on standard output."`
}

// benchReport is the last line. Speeds are medians over the runs.
type benchReport struct {
	Decode        float64   `json:"decode_tok_s"`
	Prefill       float64   `json:"prefill_tok_s"`
	BytesPerToken int64     `json:"bytes_per_token"`
	BytesPerStep  float64   `json:"bytes_per_step,omitempty"` // weights that a step of all answers read, each expert once
	Read          float64   `json:"read_gb_s"`                // what reading alone reaches, the widest loads on every thread
	Used          float64   `json:"used_gb_s"`                // bytes_per_step times steps a second
	Fraction      float64   `json:"fraction"`                 // used_gb_s of read_gb_s
	Batch         int       `json:"batch"`                    // answers at once
	Runs          int       `json:"runs"`
	DecodeRuns    []float64 `json:"decode_runs,omitempty"`
	PrefillRuns   []float64 `json:"prefill_runs,omitempty"`
	ReadRuns      []float64 `json:"read_runs,omitempty"`
	Experts       *reads    `json:"experts,omitempty"` // where experts came from in the measured runs; absent where all are in memory
	PromptTokens  int       `json:"prompt_tokens"`
	Tokens        int       `json:"tokens"`
	Model         string    `json:"model"`
	NumericsID    string    `json:"numerics_id"`
	Device        string    `json:"device"`
	ISA           string    `json:"isa"`
	Threads       int       `json:"threads"`
	Version       string    `json:"version"`
}

// reads counts the expert records that measured runs used.
type reads struct {
	Hits    uint64  `json:"hits"` // were in memory
	Misses  uint64  `json:"misses"`
	Bytes   uint64  `json:"bytes"` // read, all of them for misses
	Seconds float64 `json:"seconds"`
}

// readsSince counts from an earlier state on; nil if the model reads no experts.
func readsSince(info engine.ModelInfo, before, now engine.Stats) *reads {
	if info.ExpertSlots == 0 {
		return nil
	}
	return &reads{
		Hits: now.ExpertHits - before.ExpertHits, Misses: now.ExpertMisses - before.ExpertMisses,
		Bytes: now.ExpertBytes - before.ExpertBytes, Seconds: float64(now.ExpertNanos-before.ExpertNanos) / 1e9,
	}
}

// check refuses flags out of range.
func (c *speed) check() error {
	if c.Runs < 1 || c.Runs > 1000 || c.Prompt < 1 || c.Tokens < 2 || c.Batch < 1 || c.Batch > 1<<10 {
		return &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: "bench: --runs is 1 to 1000, --prompt at least 1, --tokens at least 2, --batch 1 to 1024"}
	}
	return nil
}

// Run measures the tokens that follow a prompt.
func (c *decodeCmd) Run(con *console) error { return c.model(con, c.Tokens) }

// Run measures prompts alone.
func (c *prefillCmd) Run(con *console) error { return c.model(con, 1) }

// model measures on a model that does nothing else; it generates tokens a run.
func (c *speed) model(con *console, tokens int) error {
	if err := c.check(); err != nil {
		return err
	}
	ctx := con.untilInterrupted()
	c.Sequences = max(c.Sequences, c.Batch)
	eng, err := openEngine(ctx, con, c.EngineConfig)
	if err != nil {
		return err
	}
	defer eng.Close()
	info := eng.Model()
	report := benchReport{Device: c.Device, Batch: c.Batch, Runs: c.Runs, PromptTokens: c.Prompt, Tokens: tokens, BytesPerToken: info.BytesPerToken, Model: info.ID, NumericsID: info.NumericsID, ISA: info.ISA, Threads: info.Threads, Version: version}
	requests := make([]engine.Request, c.Batch)
	for i := range requests {
		requests[i] = engine.Request{Prompt: benchPrompt(info, c.Prompt, i), MaxTokens: tokens, IgnoreEOS: true, Logprobs: -1}
	}
	var warm engine.Stats
	var stop func() float64
	for i := range c.Runs + 1 {
		con.progress("measuring", int64(i), int64(c.Runs+1))
		start := time.Now()
		times, err := answers(ctx, eng, requests)
		if err != nil {
			con.clear()
			return err
		}
		if i == 0 { // warms caches and pages
			warm, stop = eng.Stats(), stepReads(eng, c.Batch)
			continue
		}
		report.PrefillRuns = append(report.PrefillRuns, rate(c.Batch*c.Prompt, begun(times).Sub(start).Nanoseconds()))
		if tokens > 1 {
			decode := joint(times)
			if decode == 0 {
				con.clear()
				return &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: fmt.Sprintf("bench: %d answers were not written at once: the last began when the first had ended", c.Batch), Hint: "raise --kv-tokens or --tokens, or lower --batch or --prompt"}
			}
			report.DecodeRuns = append(report.DecodeRuns, decode)
		}
	}
	con.clear()
	report.Experts = readsSince(info, warm, eng.Stats())
	report.Prefill, report.Decode = median(report.PrefillRuns), median(report.DecodeRuns)
	if bytes := stop(); tokens > 1 {
		report.BytesPerStep = bytes
		report.Used = bytes * report.Decode / float64(c.Batch) / 1e9
	}
	if report.ReadRuns, err = c.read(info.ISA, info.Threads); err != nil {
		return err
	}
	report.Read = median(report.ReadRuns)
	report.Fraction = report.Used / report.Read
	return c.print(con, report)
}

// read is what reading alone reaches where the model ran.
func (c *speed) read(isa string, threads int) ([]float64, error) {
	if c.Device == "" || c.Device == "cpu" {
		return readSpeed(isa, threads, c.Runs)
	}
	return deviceSpeed(c.Device)
}

// Run needs no model.
func (c *readCmd) Run(con *console) error {
	if err := c.check(); err != nil {
		return err
	}
	runs, err := c.read(c.ISA, c.Threads)
	if err != nil {
		return inputError("bench", "choose another --isa, --threads or --device", "measuring memory", err)
	}
	if c.JSON {
		return con.json(benchReport{Device: c.Device, Read: median(runs), ReadRuns: runs, Runs: c.Runs, ISA: c.ISA, Threads: c.Threads, Version: version})
	}
	_, err = fmt.Fprintf(con.out, "read %.1f GB/s (median of %d; %.1f to %.1f)\n", median(runs), len(runs), slices.Min(runs), slices.Max(runs))
	return err
}

// Run needs no model.
func (c *kernelsCmd) Run(con *console) error {
	if err := c.check(); err != nil {
		return err
	}
	backend, err := openDeviceWith(c.Device, cuda.Options{Distinct: true})
	if err != nil {
		return err
	}
	defer closeDevice(backend)
	read, err := c.read(c.ISA, c.Threads)
	var rates []kernelRate
	if err == nil {
		rates, err = kernelSpeeds(backend, c.ISA, c.Threads, c.Runs, median(read))
	}
	if err != nil {
		return inputError("bench", "choose another --isa or --device", "measuring kernels", err)
	}
	if c.JSON {
		return con.json(map[string]any{"kernels": rates, "read_gb_s": median(read), "device": backend.Name(), "runs": c.Runs, "version": version})
	}
	for _, r := range rates {
		fmt.Fprintf(con.out, "%-5s %-4s [%d, %d] x %3d rows  %7.1f GB/s of weights (%.1f to %.1f), %3.0f %% of reading alone  %8.1f Gop/s\n",
			r.Form, r.group(), r.Out, r.In, r.Rows, r.GBs, slices.Min(r.RunsGBs), slices.Max(r.RunsGBs), 100*r.Fraction, r.Gops)
	}
	return nil
}

func (c *speed) print(con *console, r benchReport) error {
	if c.JSON {
		return con.json(r)
	}
	fmt.Fprintf(con.out, "%s, %s, %d threads, numerics %s\n", r.Model, r.ISA, r.Threads, r.NumericsID)
	line := func(name string, runs []float64, unit string) {
		if len(runs) > 0 {
			fmt.Fprintf(con.out, "%-8s %8.1f %s (median of %d; %.1f to %.1f)\n", name, median(runs), unit, len(runs), slices.Min(runs), slices.Max(runs))
		}
	}
	line("prefill", r.PrefillRuns, "tokens/s")
	line("decode", r.DecodeRuns, "tokens/s")
	line("read", r.ReadRuns, "GB/s")
	if r.Used > 0 {
		if e := r.Experts; e != nil {
			fmt.Fprintf(con.out, "experts  %d found, %d read: %.1f MB in %.2f s\n", e.Hits, e.Misses, float64(e.Bytes)/1e6, e.Seconds)
		}
		fmt.Fprintf(con.out, "decode reads %.1f MB of weights a step of %d: %.1f GB/s, %.0f %% of reading alone\n", r.BytesPerStep/1e6, r.Batch, r.Used, 100*r.Fraction)
	}
	return nil
}

// benchPrompt is n tokens that wander through the vocabulary, so that routing is spread as real text spreads it; each number
// gives others.
func benchPrompt(info engine.ModelInfo, n, number int) []int32 {
	prompt := make([]int32, n)
	for i := range prompt {
		prompt[i] = int32((1000 + 7919*i + 613*number) % info.Vocab)
	}
	return prompt
}

// median of runs; 0 when there are none.
func median(runs []float64) float64 {
	if len(runs) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(runs))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
