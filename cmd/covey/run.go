package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"covey/daemon"
	"covey/engine"
)

type runCmd struct {
	daemon.EngineConfig `embed:""`
	samplingFlags       `embed:""`
	Prompt              string   `help:"The prompt; - reads standard input." required:"" placeholder:"TEXT"`
	System              string   `help:"System message." placeholder:"TEXT"`
	Raw                 bool     `help:"Send the prompt as it is, without the model's chat template."`
	MaxTokens           int      `help:"Most tokens of the answer." default:"512" placeholder:"N"`
	Stop                []string `help:"Text that ends the answer." placeholder:"TEXT" sep:"none"`
	IgnoreEOS           bool     `name:"ignore-eos" help:"Go on after the end-of-answer token."`
	Stats               bool     `help:"Print where experts came from and the peak memory."`
	JSON                bool     `name:"json" help:"Print one JSON object instead of the text."`
}

// maxPrompt bounds a prompt from standard input, in bytes.
const maxPrompt = 16 << 20

// runReport is what run --json prints.
type runReport struct {
	Text         string  `json:"text"`
	Tokens       int     `json:"tokens"`
	PromptTokens int     `json:"prompt_tokens"`
	Prefill      float64 `json:"prefill_tok_s"`
	Decode       float64 `json:"decode_tok_s"` // after the first token
	FirstToken   float64 `json:"ttft_ms"`
	Hash         string  `json:"hash"` // over the logits' bits of the last prompt row and of every token
	IDs          []int32 `json:"ids"`
	Finish       string  `json:"finish"`
	Seed         uint64  `json:"seed"`
	Model        string  `json:"model"`
	NumericsID   string  `json:"numerics_id"`
	ISA          string  `json:"isa"`
	Threads      int     `json:"threads"`
	Hits         uint64  `json:"expert_hits"` // in the whole run; all four 0 where all experts are in memory
	Misses       uint64  `json:"expert_misses"`
	Read         uint64  `json:"expert_read_bytes"`
	Waited       float64 `json:"expert_wait_s"`
	Peak         int64   `json:"peak_memory"` // bytes; 0 = not known
}

// Run answers one prompt and prints the answer as it comes, or a report.
func (c *runCmd) Run(con *console) error {
	ctx := con.untilInterrupted()
	if c.Prompt == "-" {
		raw, err := io.ReadAll(io.LimitReader(con.in, maxPrompt+1))
		if err != nil {
			return inputError("prompt", "", "reading the prompt from standard input", err)
		}
		if len(raw) > maxPrompt {
			return inputError("prompt", "give a shorter text", fmt.Sprintf("the prompt on standard input has more than %d bytes", maxPrompt), nil)
		}
		c.Prompt = string(raw)
	}
	eng, err := openEngine(ctx, con, c.EngineConfig)
	if err != nil {
		return err
	}
	defer eng.Close()
	var prompt []int32
	if c.Raw {
		prompt, err = eng.Tokenizer().Encode(c.Prompt, true)
	} else {
		prompt, err = encodeChat(ctx, eng, c.System, []turn{{"user", c.Prompt}})
	}
	if err != nil {
		return inputError("prompt", "try --raw", "turning the prompt into tokens", err)
	}
	if len(prompt) == 0 {
		return inputError("prompt", "give a text; if there is one, the model's chat template leaves it out: try --raw", "the prompt has no token", nil)
	}
	if c.MaxTokens < 1 {
		return &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: "--max-tokens: choose 1 or more"}
	}
	r := engine.Request{
		Prompt: prompt, MaxTokens: min(c.MaxTokens, max(1, eng.Model().Context-len(prompt))), Sampling: c.params(eng.Defaults()),
		Stops: c.Stop, IgnoreEOS: c.IgnoreEOS, Logprobs: -1, Hash: true,
	}
	var text strings.Builder
	result, err := answer(ctx, eng, r, func(out engine.Output) {
		switch out.Kind {
		case engine.KindPrefill:
			con.progress("reading", int64(out.Done), int64(out.Total))
		case engine.KindToken:
			con.clear()
			text.WriteString(out.Text)
			if !c.JSON {
				io.WriteString(con.foreign(), out.Text)
			}
		}
	})
	if err != nil {
		return err
	}
	if !c.JSON {
		fmt.Fprintln(con.out)
		fmt.Fprintln(con.err, con.dim(summary(result)))
		if c.Stats {
			fmt.Fprintln(con.err, con.dim(fetched(eng)))
		}
		return nil
	}
	info, stats := eng.Model(), eng.Stats()
	prefill, decode := speeds(result)
	return con.json(runReport{
		Text: text.String(), Tokens: len(result.Tokens), PromptTokens: result.PromptTokens, Prefill: prefill,
		Decode: decode, FirstToken: float64(result.QueueNanos+result.PrefillNanos) / 1e6, Hash: result.Hash,
		IDs: result.Tokens, Finish: result.Finish, Seed: r.Sampling.Seed, Model: info.ID, NumericsID: info.NumericsID, ISA: info.ISA, Threads: info.Threads,
		Hits: stats.ExpertHits, Misses: stats.ExpertMisses, Read: stats.ExpertBytes, Waited: float64(stats.ExpertNanos) / 1e9, Peak: peakMemory(),
	})
}

// fetched is a line about where experts came from.
func fetched(eng *engine.Engine) string {
	peak := float64(peakMemory()) / 1e6
	if eng.Model().ExpertSlots == 0 {
		return fmt.Sprintf("all experts in memory, peak memory %.0f MB", peak)
	}
	s := eng.Stats()
	return fmt.Sprintf("experts: %d found in memory, %d read (%.1f MB, waited %.2f s), room for %d, peak memory %.0f MB", s.ExpertHits, s.ExpertMisses, float64(s.ExpertBytes)/1e6, float64(s.ExpertNanos)/1e9, eng.Model().ExpertSlots, peak)
}

// peakMemory is the most memory that this process has had resident, in bytes; 0 = not known.
func peakMemory() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			kilobytes, _ := strconv.ParseInt(fields[1], 10, 64)
			return kilobytes << 10
		}
	}
	return 0
}

// answer runs a request to its end, handing its outputs to show. An interrupted request is an error.
func answer(ctx context.Context, eng *engine.Engine, r engine.Request, show func(engine.Output)) (*engine.Result, error) {
	stream, err := eng.Submit(ctx, r)
	if errors.Is(err, engine.ErrInvalid) {
		return nil, &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: "the engine does not accept the request", Hint: "correct the flag, or leave it out to use the model's own", Err: err}
	}
	if err != nil {
		return nil, inputError("prompt", "shorten the prompt", "the engine does not accept the request", err)
	}
	for {
		out, err := stream.Next(context.WithoutCancel(ctx)) // the request itself ends with ctx
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		show(out)
	}
	result := stream.Result()
	switch result.Finish {
	case engine.FinishCancel:
		return result, context.Canceled
	case engine.FinishError:
		return result, inputError("generation", "", "the answer failed", result.Err)
	}
	return result, nil
}

// rate is n things over a time, each second.
func rate(n int, nanos int64) float64 {
	if n <= 0 || nanos <= 0 {
		return 0
	}
	return float64(n) / (float64(nanos) / 1e9)
}

// speeds of an answer, in tokens a second: of the prompt, as far as it was not found in the cache, and of the tokens after the
// first.
func speeds(r *engine.Result) (prefill, decode float64) {
	return rate(r.PromptTokens-r.CachedTokens, r.PrefillNanos), rate(len(r.Tokens)-1, r.DecodeNanos)
}

// summary is a line of figures about an answer.
func summary(r *engine.Result) string {
	prefill, decode := speeds(r)
	return fmt.Sprintf("%d prompt tokens at %.0f/s, first token after %.0f ms, %d tokens at %.1f/s, finish: %s",
		r.PromptTokens, prefill, float64(r.QueueNanos+r.PrefillNanos)/1e6, len(r.Tokens), decode, r.Finish)
}
