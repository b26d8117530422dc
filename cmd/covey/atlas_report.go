package main

import (
	"os"
	"path/filepath"

	"covey/atlas"
	"covey/daemon"
)

type atlasReportCmd struct {
	File string `arg:"" help:"An atlas (covey.atlas.json)."`
	Out  string `help:"Folder to write index.html into; made when it is not there." default:"report" placeholder:"DIR"`
}

// Run writes the page.
func (c *atlasReportCmd) Run(con *console) error {
	a, err := readAtlas(c.File)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return &daemon.Error{Kind: daemon.KindEnvironment, Code: "output", Message: "cannot make the folder " + c.Out, Hint: "choose a folder that can be written", Err: err}
	}
	out, err := create(filepath.Join(c.Out, "index.html"))
	if err != nil {
		return err
	}
	defer out.abandon()
	if err := daemon.WriteReport(con.untilInterrupted(), out.file, a); err != nil {
		return inputError("atlas", "measure one with covey atlas run", "writing the report", err)
	}
	return out.commit(nil)
}

type atlasMaskCmd struct {
	File     string   `arg:"" help:"An atlas (covey.atlas.json)."`
	Topics   []string `help:"Topics whose texts count, equally; all when not given." placeholder:"TOPIC"`
	Coverage float64  `help:"Keep, in every layer, the fewest experts that take this part of the selections (0 to 1)." default:"0"`
	PerLayer int      `help:"Keep this many experts in every layer." default:"0"`
	Out      string   `help:"Where to write; standard output when not set." placeholder:"FILE"`
}

// Run writes a mask.
func (c *atlasMaskCmd) Run(con *console) error {
	a, err := readAtlas(c.File)
	if err != nil {
		return err
	}
	m, err := a.Mask(atlas.MaskRule{Topics: c.Topics, Coverage: c.Coverage, PerLayer: c.PerLayer})
	if err != nil {
		return inputError("atlas", "give --coverage 0.9 or --per-layer 16, and topics of the atlas", "choosing experts", err)
	}
	if c.Out == "" {
		return con.json(m.File(a))
	}
	document, err := m.File(a).Encode()
	if err != nil {
		return err
	}
	out, err := create(c.Out)
	if err != nil {
		return err
	}
	defer out.abandon()
	return out.commit(document)
}
