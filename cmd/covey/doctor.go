package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"covey/cuda"
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
	devices, err := parseDevice(c.Device)
	if err != nil {
		return err
	}
	dir, err := modelFolder(c.Model)
	if err != nil {
		dir = c.Model
	}
	findings := doctor.Examine(con.untilInterrupted(), doctor.Options{Addr: c.Addr, Data: c.Data, Model: dir, ISA: c.ISA, Threads: c.Threads})
	findings = append(findings, examineCUDA(devices)...)
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

// examineCUDA looks at the driver and at every CUDA device. Only those that the settings name must be there and work.
func examineCUDA(wanted []int) []doctor.Finding {
	f := doctor.Finding{Name: "cuda", Status: doctor.OK}
	driver, err := cuda.Driver()
	infos, err2 := cuda.Devices()
	switch err = errors.Join(err, err2); {
	case errors.Is(err, cuda.ErrNotBuilt):
		f.Detail = "built without CUDA"
		f.Hint = "make cuda-toolchain, then make"
	case err != nil:
		f.Detail, f.Status = err.Error(), doctor.Warn
	case driver == 0:
		f.Detail = "no driver"
	default:
		f.Detail = fmt.Sprintf("driver for CUDA %d.%d, %d devices", driver/1000, driver%1000/10, len(infos))
	}
	for _, n := range wanted {
		if _, err := numbered(infos, n); err != nil {
			f.Status, f.Detail = doctor.Fail, f.Detail+", "+err.Error()
			f.Hint = cmp.Or(f.Hint, "--device cpu runs without one")
		}
	}
	findings := []doctor.Finding{f}
	for _, i := range infos {
		findings = append(findings, examineDevice(i, slices.Contains(wanted, i.Ordinal)))
	}
	return findings
}

// examineDevice opens a device and measures its links.
func examineDevice(i cuda.Info, wanted bool) doctor.Finding {
	f := doctor.Finding{Name: fmt.Sprintf("cuda:%d", i.Ordinal), Status: doctor.OK}
	f.Detail = fmt.Sprintf("%s, capability %d.%d, %d multiprocessors, %d MB, PCI %s", i.Name, i.Major, i.Minor, i.Multiprocessors, i.Memory>>20, i.PCI)
	if len(i.Peers) > 0 {
		f.Detail += fmt.Sprintf(", reads devices %v", i.Peers)
	}
	b, err := cuda.Open(i.Ordinal, cuda.Options{})
	if err == nil {
		var w cuda.Bandwidth
		if w, err = b.Measure(); err == nil {
			f.Detail += fmt.Sprintf(", %.1f GB/s to it, %.1f from it, %.0f on it", w.Upload/1e9, w.Download/1e9, w.Copy/1e9)
		}
		err = errors.Join(err, b.Close())
	}
	if err != nil {
		f.Status, f.Hint = doctor.Warn, err.Error()
		if wanted {
			f.Status = doctor.Fail
		}
	}
	return f
}
