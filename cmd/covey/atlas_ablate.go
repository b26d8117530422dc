package main

import (
	"cmp"

	"covey/atlas"
	"covey/daemon"
)

type atlasAblateCmd struct {
	daemon.EngineConfig `embed:""`
	natsFlags           `embed:""`
	File                string `arg:"" help:"An atlas of this model (covey.atlas.json)."`
	Probes              string `help:"Probe set (JSONL) of the atlas; the built-in one when not set." placeholder:"FILE"`
	Labels              int    `help:"Labels to test one by one, those of each topic in turn, the strongest and its layer first; 0 = one a topic, -1 = none." default:"0"`
	Groups              bool   `help:"Also remove all specialists of each topic together." default:"true" negatable:""`
	Controls            int    `help:"Experts of the same layer and load that each is compared with; 0 = 10."`
	Draws               int    `help:"Of the bootstrap over texts; 0 = 2000."`
	Out                 string `help:"Where to write the completed atlas; over FILE when not set." placeholder:"FILE"`
	JSON                bool   `name:"json" help:"Print the summary as one JSON object as the last line."`
}

// Run removes experts and writes the atlas with what that did.
func (c *atlasAblateCmd) Run(con *console) error {
	ctx := con.untilInterrupted()
	a, err := readAtlas(c.File)
	if err != nil {
		return err
	}
	set, err := readProbes(c.Probes)
	if err != nil {
		return err
	}
	out, err := create(cmp.Or(c.Out, c.File))
	if err != nil {
		return err
	}
	defer out.abandon()
	eng, err := openEngine(ctx, con, c.EngineConfig)
	if err != nil {
		return err
	}
	defer eng.Close()
	model, stop, err := c.spread(ctx, atlas.FromEngine(eng))
	if err != nil {
		return err
	}
	done, err := atlas.Ablate(ctx, model, set, a, atlas.AblateOptions{Labels: c.Labels, Groups: c.Groups, Controls: c.Controls, Draws: c.Draws, Seed: a.Provenance.Seed}, con.atlasProgress)
	con.clear()
	stop()
	if err != nil {
		return inputError("atlas", "name the probe set of the atlas with --probes", "removing experts", err)
	}
	document, err := done.Encode()
	if err != nil {
		return err
	}
	if err := out.commit(document); err != nil {
		return err
	}
	if c.JSON {
		return con.json(done.Summary)
	}
	return atlas.Show(con.foreign(), done)
}
