package main

import (
	"fmt"

	"covey/daemon"
	"covey/daemon/doctor"
)

type doctorCmd struct {
	daemon.Config `embed:""`
	JSON          bool `name:"json" help:"Print one JSON object."`
}

// Run examines the machine with the settings that serve would use. A finding that keeps the daemon from serving makes it
// fail.
func (c *doctorCmd) Run(con *console) error {
	if err := c.Validate(); err != nil {
		return err
	}
	dir, err := modelFolder(c.Model)
	if err != nil {
		dir = c.Model
	}
	findings := doctor.Examine(con.untilInterrupted(), doctor.Options{Addr: c.Addr, Data: c.Data, Model: dir, ISA: c.ISA, Threads: c.Threads})
	worst := doctor.Worst(findings)
	if c.JSON {
		err = con.json(map[string]any{"status": worst, "findings": findings})
	} else {
		for _, f := range findings {
			if _, err = fmt.Fprintf(con.out, "%-4s  %-12s %s\n", f.Status, f.Name, f.Detail); err != nil {
				return err
			}
			if f.Hint != "" {
				fmt.Fprintf(con.out, "                   %s\n", f.Hint)
			}
		}
	}
	return verdict(err, worst != doctor.Fail, "this machine is not ready")
}
