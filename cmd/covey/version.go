package main

import (
	"fmt"
	"runtime"
	"strings"

	"covey/daemon"
	"covey/engine/canon"
)

type versionCmd struct {
	daemon.EngineConfig `embed:""`
	JSON                bool `name:"json" help:"Print one JSON object."`
}

// versionInfo is what identifies a build, what it can compute on this machine, and what results depend on.
type versionInfo struct {
	Version    string   `json:"version"`
	Go         string   `json:"go"`
	System     string   `json:"system"`
	Rules      int      `json:"numerics_rules"` // version of the written arithmetic
	ISA        string   `json:"isa"`            // kernels in use; they change no result
	Kernels    []string `json:"kernels"`        // all that this machine can run
	Model      string   `json:"model,omitempty"`
	Hash       string   `json:"model_hash,omitempty"`
	NumericsID string   `json:"numerics_id,omitempty"` // of the model with these settings; needs the model
	Numerics   string   `json:"numerics,omitempty"`
}

// Run prints the version. The numerics id depends on the forms of a model's weights, so the model is opened for it:
// the one that is named, or the bundled one if it is there.
func (c *versionCmd) Run(con *console) error {
	isa, err := canon.Resolve(c.ISA)
	if err != nil {
		return &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: err.Error(), Hint: "leave --isa out to use the best family"}
	}
	v := versionInfo{Version: version, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Rules: canon.RuleVersion, ISA: isa.String()}
	for _, isa := range canon.Supported() {
		v.Kernels = append(v.Kernels, isa.String())
	}
	if _, err := modelFolder(c.Model); err == nil || c.Model != "" {
		c.Context, c.KVTokens, c.Sequences, c.BatchRows, c.PrefillRows = 64, 64, 1, 1, 1 // nothing will run
		eng, err := openEngine(con.untilInterrupted(), con, c.EngineConfig)
		if err != nil {
			return err
		}
		info := eng.Model()
		v.Model, v.Hash, v.NumericsID, v.Numerics = info.ID, info.Hash, info.NumericsID, info.Numerics
		if err := eng.Close(); err != nil {
			return err
		}
	}
	if c.JSON {
		return con.json(v)
	}
	fmt.Fprintf(con.out, "covey %s (%s, %s)\nkernels   %s, of %s\nnumerics  rules %d\n", v.Version, v.Go, v.System, v.ISA, strings.Join(v.Kernels, " "), v.Rules)
	if v.Model != "" {
		_, err = fmt.Fprintf(con.out, "model     %s, hash %.16s\n          numerics id %s: %s\n", v.Model, v.Hash, v.NumericsID, v.Numerics)
	}
	return err
}
