package main

import (
	"fmt"
	"runtime"
	"strings"

	"covey/engine/canon"
)

type versionCmd struct {
	JSON bool `name:"json" help:"Print one JSON object."`
}

// versionInfo is what identifies a build and what it can compute on this machine.
type versionInfo struct {
	Version string   `json:"version"`
	Go      string   `json:"go"`
	System  string   `json:"system"`
	Rules   int      `json:"numerics_rules"` // version of the written arithmetic; enters every numerics id
	ISA     string   `json:"isa"`            // kernels used unless --isa says otherwise
	Kernels []string `json:"kernels"`        // all that this machine can run
}

// Run prints the version. The numerics id depends on the model too: covey doctor and covey bench print it.
func (c *versionCmd) Run(con *console) error {
	best, err := canon.Resolve("")
	if err != nil {
		return err
	}
	v := versionInfo{Version: version, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Rules: canon.RuleVersion, ISA: best.String()}
	for _, isa := range canon.Supported() {
		v.Kernels = append(v.Kernels, isa.String())
	}
	if c.JSON {
		return con.json(v)
	}
	_, err = fmt.Fprintf(con.out, "covey %s (%s, %s)\nnumerics rules %d\nkernels %s, of %s\n", v.Version, v.Go, v.System, v.Rules, v.ISA, strings.Join(v.Kernels, " "))
	return err
}
