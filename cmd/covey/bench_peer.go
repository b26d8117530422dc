package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"

	"covey/daemon"
	"covey/engine"
)

type peerCmd struct {
	speed
	Binary string `help:"The peer's llama-bench." required:"" placeholder:"FILE"`
	GGUF   string `name:"gguf" help:"The same model as the peer reads it." required:"" placeholder:"FILE"`
}

// peerReport is the last line: medians over the pairs, and every pair.
type peerReport struct {
	Decode      float64    `json:"decode_tok_s"`
	Prefill     float64    `json:"prefill_tok_s"`
	PeerDecode  float64    `json:"peer_decode_tok_s"`
	PeerPrefill float64    `json:"peer_prefill_tok_s"`
	Ratios      [2]float64 `json:"ratios"` // medians of the pairs' ratios, decode and prefill
	Pairs       []pair     `json:"pairs"`
	Bytes       int64      `json:"bytes_per_token"`
	Prompt      int        `json:"prompt_tokens"`
	Tokens      int        `json:"tokens"`
	Threads     int        `json:"threads"`
	ISA         string     `json:"isa"`
	NumericsID  string     `json:"numerics_id"`
	Version     string     `json:"version"`
}

// pair is one run of each, one right after the other, so that a machine that slows down slows both.
type pair struct {
	Decode      float64 `json:"decode_tok_s"`
	Prefill     float64 `json:"prefill_tok_s"`
	PeerDecode  float64 `json:"peer_decode_tok_s"`
	PeerPrefill float64 `json:"peer_prefill_tok_s"`
}

// Run measures both in turn; the first pair warms up and is not counted.
func (c *peerCmd) Run(con *console) error {
	if err := c.check(); err != nil {
		return err
	}
	ctx := con.untilInterrupted()
	eng, err := openEngine(ctx, con, c.EngineConfig)
	if err != nil {
		return err
	}
	defer eng.Close()
	info := eng.Model()
	report := peerReport{Bytes: info.BytesPerToken, Prompt: c.Prompt, Tokens: c.Tokens, Threads: info.Threads, ISA: info.ISA, NumericsID: info.NumericsID, Version: version}
	request := engine.Request{Prompt: benchPrompt(info, c.Prompt, 0), MaxTokens: c.Tokens, IgnoreEOS: true, Logprobs: -1}
	for i := range c.Runs + 1 {
		con.progress("measuring", int64(i), int64(c.Runs+1))
		var p pair
		if p.PeerPrefill, p.PeerDecode, err = c.peer(ctx, info.Threads); err != nil {
			con.clear()
			return err
		}
		result, err := answer(ctx, eng, request, func(engine.Output) {})
		if err != nil {
			con.clear()
			return err
		}
		p.Prefill, p.Decode = speeds(result)
		if i > 0 {
			report.Pairs = append(report.Pairs, p)
		}
	}
	con.clear()
	over := func(f func(pair) float64) float64 {
		var values []float64
		for _, p := range report.Pairs {
			values = append(values, f(p))
		}
		return median(values)
	}
	report.Decode, report.Prefill = over(func(p pair) float64 { return p.Decode }), over(func(p pair) float64 { return p.Prefill })
	report.PeerDecode, report.PeerPrefill = over(func(p pair) float64 { return p.PeerDecode }), over(func(p pair) float64 { return p.PeerPrefill })
	report.Ratios = [2]float64{over(func(p pair) float64 { return p.Decode / p.PeerDecode }), over(func(p pair) float64 { return p.Prefill / p.PeerPrefill })}
	if c.JSON {
		return con.json(report)
	}
	_, err = fmt.Fprintf(con.out, "decode  %8.1f tokens/s, the peer %8.1f: %.2f times (medians of %d pairs)\nprefill %8.1f tokens/s, the peer %8.1f: %.2f times\n",
		report.Decode, report.PeerDecode, report.Ratios[0], len(report.Pairs), report.Prefill, report.PeerPrefill, report.Ratios[1])
	return err
}

// peer runs the peer once and returns its tokens a second for the prompt and for decoding.
func (c *peerCmd) peer(ctx context.Context, threads int) (prefill, decode float64, err error) {
	out, err := exec.CommandContext(ctx, c.Binary, "-m", c.GGUF, "-t", strconv.Itoa(threads), "-p", strconv.Itoa(c.Prompt), "-n", strconv.Itoa(c.Tokens), "-r", "1", "-o", "json").Output()
	if err == nil {
		prefill, decode, err = peerSpeeds(out)
	}
	if err != nil {
		err = &daemon.Error{Kind: daemon.KindInput, Code: "peer", Message: "bench peer: " + c.Binary + " gave no result", Hint: "check that it is llama-bench and reads the file of --gguf", Err: err}
	}
	return prefill, decode, err
}

// peerSpeeds reads llama-bench's JSON: one object for the prompt (n_gen 0) and one for decoding (n_prompt 0).
func peerSpeeds(out []byte) (prefill, decode float64, err error) {
	var tests []struct {
		Prompt int     `json:"n_prompt"`
		Gen    int     `json:"n_gen"`
		Speed  float64 `json:"avg_ts"`
	}
	if at := bytes.IndexByte(out, '['); at > 0 { // some builds print notes before it
		out = out[at:]
	}
	if err := json.Unmarshal(out, &tests); err != nil {
		return 0, 0, err
	}
	for _, t := range tests {
		switch {
		case t.Prompt > 0 && t.Gen == 0:
			prefill = t.Speed
		case t.Gen > 0 && t.Prompt == 0:
			decode = t.Speed
		}
	}
	if prefill <= 0 || decode <= 0 {
		return 0, 0, fmt.Errorf("a speed is missing in its output")
	}
	return prefill, decode, nil
}
