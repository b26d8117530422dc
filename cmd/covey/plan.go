package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"covey/cuda"
	"covey/daemon"
	"covey/engine"
	"covey/engine/model"
)

type planCmd struct {
	daemon.EngineConfig `embed:""`
	Path                string `arg:"" optional:"" help:"Checkpoint: a folder or a GGUF file; --model or the bundled model when not given."`
	Memory              int64  `help:"Megabytes that the model may use; 0 = nearly all that this machine has available now." default:"0" placeholder:"MB"`
	JSON                bool   `name:"json" help:"Print one JSON object."`
}

// planReport is what plan --json prints. Sizes are bytes.
type planReport struct {
	Model      string  `json:"model"`
	Fits       bool    `json:"fits"`
	Reason     string  `json:"reason,omitempty"` // why not, with the remedy
	Memory     int64   `json:"memory"`           // that may be used; 0 = not known
	Weights    int64   `json:"weights"`          // as stored
	Experts    int64   `json:"experts"`          // of the weights, in records that can stay on disk; 0 = none can
	Records    int     `json:"records"`          // routed experts of all layers
	Record     int64   `json:"record"`           // the largest of the records that can stay on disk
	KVTokens   int     `json:"kv_tokens"`
	TokenBytes int64   `json:"kv_bytes_per_token"`
	Cache      int64   `json:"kv_cache"`
	OnDemand   bool    `json:"experts_on_demand"`
	Slots      int64   `json:"expert_slots,omitempty"`    // records in memory at most, where experts are read on demand
	EvenReads  float64 `json:"even_read_bytes,omitempty"` // read from disk for a token if experts were chosen evenly
	Resident   int64   `json:"resident"`                  // weights, records in memory and cache; buffers come to it
	Device     string  `json:"device"`
	DeviceHas  int64   `json:"device_memory,omitempty"`
}

// Run plans by the rules that loading follows. A model that cannot run as asked is a check that does not pass.
func (c *planCmd) Run(con *console) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.Memory < 0 || c.Memory > 1<<30 {
		return &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: "plan: --memory is 0 to 2^30 megabytes"}
	}
	devices, err := parseDevice(c.Device)
	if err != nil {
		return err
	}
	if c.Path != "" {
		c.Model = c.Path
	}
	dir, err := modelFolder(c.Model)
	if err != nil {
		return err
	}
	c.Model = dir
	p, refusal := engine.Plan(c.Engine(), c.Memory<<20)
	if p == nil {
		return inputError("model", "covey info "+dir+" says what it is", "planning", refusal)
	}
	r := planReport{Model: filepath.Base(dir), Memory: p.Memory, Weights: p.Weights, Experts: p.Experts, Records: p.Records, Record: p.Record, KVTokens: p.KVTokens, TokenBytes: p.TokenBytes,
		Cache: p.Cache, OnDemand: p.OnDemand, Slots: p.Slots, Resident: p.Resident(), Device: c.Device}
	if p.OnDemand {
		r.EvenReads = float64(p.Chosen) * float64(p.Record) * (1 - float64(p.Slots)/float64(p.Records))
	}
	if refusal == nil && devices != nil {
		r.DeviceHas, refusal = onDevices(p, devices)
	}
	if r.Fits = refusal == nil; !r.Fits {
		r.Reason = refusal.Error()
	}
	if c.JSON {
		err = con.json(r)
	} else {
		err = r.print(con)
	}
	return verdict(err, r.Fits, "the model cannot run so")
}

// onDevices says how much memory CUDA devices have together, and why the model does not fit in it.
func onDevices(p *model.Placement, ordinals []int) (int64, error) {
	known, err := cuda.Devices()
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for _, n := range ordinals {
		d, err := numbered(known, n)
		if err != nil {
			return total, fmt.Errorf("%w: covey doctor lists the devices; --device cpu runs without one", err)
		}
		total += d.Memory
	}
	switch {
	case p.OnDemand:
		return total, errors.New("the experts do not fit in memory, and only the cpu reads them on demand: raise --memory, or use --device cpu")
	case p.Resident() > total:
		return total, fmt.Errorf("the model takes %.2f GB, the devices have %.2f: lower --kv-tokens or --context, name more devices, or use --device cpu", gigabytes(p.Resident()), gigabytes(total))
	}
	return total, nil
}

func gigabytes(n int64) float64 { return float64(n) / 1e9 }

func (r *planReport) print(con *console) error {
	line := func(what, format string, args ...any) {
		fmt.Fprintf(con.out, "%-9s "+format+"\n", append([]any{what}, args...)...)
	}
	if r.Memory > 0 {
		line("memory", "%8.2f GB may be used", gigabytes(r.Memory))
	} else {
		line("memory", "not known")
	}
	line("weights", "%8.2f GB as stored", gigabytes(r.Weights))
	if r.Record > 0 {
		line("experts", "%8.2f GB of these in %d records of up to %.2f MB, which can stay on disk", gigabytes(r.Experts), r.Records, float64(r.Record)/1e6)
	} else {
		line("experts", "%8d  that cannot stay on disk (covey convert makes a container, whose experts can)", r.Records)
	}
	line("KV cache", "%8.2f GB: %d tokens of %d bytes", gigabytes(r.Cache), r.KVTokens, r.TokenBytes)
	if r.OnDemand {
		line("on demand", "%8d  of %d experts at most fit in memory; chosen evenly, the others would cost %.1f MB of reads a token", r.Slots, r.Records, r.EvenReads/1e6)
	}
	line("resident", "%8.2f GB, and the buffers of a step", gigabytes(r.Resident))
	if r.DeviceHas > 0 {
		line(r.Device, "%8.2f GB", gigabytes(r.DeviceHas))
	}
	answer := "it runs"
	if !r.Fits {
		answer = "it does not run: " + r.Reason
	}
	_, err := fmt.Fprintln(con.out, answer)
	return err
}
