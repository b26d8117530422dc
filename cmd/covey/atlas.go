package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"covey/atlas"
	"covey/atlas/probes"
	"covey/daemon"
)

type atlasCmd struct {
	Run      atlasRunCmd      `cmd:"" help:"Read a probe set with a model and measure which experts serve which topics."`
	Work     atlasWorkCmd     `cmd:"" help:"Read texts for probe batches of other processes, over a NATS server."`
	Ablate   atlasAblateCmd   `cmd:"" help:"Remove labelled experts and measure what sealed texts lose."`
	Show     atlasShowCmd     `cmd:"" help:"Print a summary of an atlas."`
	Report   atlasReportCmd   `cmd:"" help:"Write a page with figures, method and findings of an atlas."`
	Mask     atlasMaskCmd     `cmd:"" help:"List the experts to keep for some topics, with what they are expected to cover."`
	Export   atlasExportCmd   `cmd:"" help:"Write an atlas as CSV or in colibri's JSON forms."`
	Import   atlasImportCmd   `cmd:"" help:"Read an atlas in one of colibri's JSON forms: affinities without intervals."`
	Probes   atlasProbesCmd   `cmd:"" help:"Probe sets."`
	Selftest atlasSelftestCmd `cmd:"" help:"Prove the method on a planted truth."`
}

// statisticsFlags steer the statistics; 0 means the default that the flag's help names.
type statisticsFlags struct {
	Seed         uint64 `help:"Of permutations and draws; 0 = 1." group:"Statistics"`
	Permutations int    `help:"Of topics, for the corrected test; 0 = 2000." group:"Statistics"`
	Draws        int    `help:"Of the bootstrap; 0 = 2000." group:"Statistics"`
	Shuffles     int    `help:"Of the shuffled-label control; 0 = 200." group:"Statistics"`
}

func (f statisticsFlags) options(threads int) atlas.Options {
	return atlas.Options{Seed: f.Seed, Permutations: f.Permutations, Draws: f.Draws, Shuffles: f.Shuffles, Threads: threads}
}

type atlasRunCmd struct {
	daemon.EngineConfig `embed:""`
	statisticsFlags     `embed:""`
	Probes              string `help:"Probe set (JSONL); the built-in one when not set." placeholder:"FILE"`
	Out                 string `help:"Where to write the atlas." default:"covey.atlas.json" placeholder:"FILE"`
	Name                string `help:"Of the atlas; the probe set's and the model's when not set." placeholder:"TEXT"`
	natsFlags           `embed:""`
	Shuffled            int  `help:"Texts a topic that are also read with their words shuffled; 0 = 12, -1 = none." group:"Statistics"`
	JSON                bool `name:"json" help:"Print the summary as one JSON object as the last line."`
}

// Run measures and writes the atlas.
func (c *atlasRunCmd) Run(con *console) error {
	ctx := con.untilInterrupted()
	set, err := readProbes(c.Probes)
	if err != nil {
		return err
	}
	out, err := create(c.Out) // before minutes of work
	if err != nil {
		return err
	}
	defer out.abandon()
	eng, err := openEngine(ctx, con, c.EngineConfig)
	if err != nil {
		return err
	}
	defer eng.Close()
	options := c.options(c.Threads)
	options.Name, options.Shuffled = c.Name, c.Shuffled
	if options.Name == "" {
		options.Name = set.Name + " on " + eng.Model().Name
	}
	model, stop, err := c.spread(ctx, atlas.FromEngine(eng))
	if err != nil {
		return err
	}
	a, err := atlas.Run(ctx, model, set, options, con.atlasProgress)
	con.clear()
	stop()
	if err != nil {
		return inputError("atlas", "covey atlas probes lint FILE names what is wrong with a probe set", "measuring", err)
	}
	document, err := a.Encode()
	if err != nil {
		return err
	}
	if err := out.commit(document); err != nil {
		return err
	}
	if c.JSON {
		return con.json(a.Summary)
	}
	return atlas.Show(con.foreign(), a)
}

// atlasProgress draws the phases of a run with the time left.
func (c *console) atlasProgress(p atlas.Progress) {
	what := map[atlas.Phase]string{atlas.PhaseProbe: "reading texts", atlas.PhaseMeasure: "measuring", atlas.PhaseAblate: "ablating"}[p.Phase]
	if p.Left > 0 {
		what += fmt.Sprintf(" (%s left)", p.Left.Round(time.Second))
	}
	c.progress(what, int64(p.Done), int64(p.Total))
}

func readProbes(path string) (*probes.Set, error) {
	read := func() (*probes.Set, error) { return probes.ReadFile(path) }
	if path == "" {
		read = probes.Builtin
	}
	set, err := read()
	if err != nil {
		return nil, inputError("probes", "one JSON object a line: id, topic, split, cluster, kind, text", "reading the probe set", err)
	}
	return set, nil
}

type atlasShowCmd struct {
	File string `arg:"" help:"An atlas (covey.atlas.json)."`
	JSON bool   `name:"json" help:"Print the summary as one JSON object."`
}

// Run prints the report.
func (c *atlasShowCmd) Run(con *console) error {
	a, err := readAtlas(c.File)
	if err != nil {
		return err
	}
	if c.JSON {
		return con.json(a.Summary)
	}
	return atlas.Show(con.foreign(), a)
}

// readAtlas opens an atlas of our own format, or one of colibri's as imported.
func readAtlas(path string) (*atlas.Atlas, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, inputError("atlas", "", "opening the atlas", err)
	}
	defer file.Close()
	a, err := atlas.Decode(file)
	if errors.Is(err, atlas.ErrFormat) {
		if _, seek := file.Seek(0, io.SeekStart); seek == nil {
			if imported, foreign := atlas.Import(filepath.Base(path), file); foreign == nil {
				return imported, nil
			}
		}
	}
	if err != nil {
		return nil, inputError("atlas", "make one with covey atlas run", "reading "+path, err)
	}
	return a, nil
}

type atlasExportCmd struct {
	File   string `arg:"" help:"An atlas (covey.atlas.json)."`
	Format string `help:"csv, or colibri's forms v1, v2 (list) and web (dashboard)." enum:"csv,v1,v2,web" default:"csv"`
	Out    string `help:"Where to write; standard output when not set." placeholder:"FILE"`
}

// Run converts.
func (c *atlasExportCmd) Run(con *console) error {
	a, err := readAtlas(c.File)
	if err != nil {
		return err
	}
	write := map[string]func(io.Writer) error{"csv": a.WriteCSV, "v1": a.WriteColibriV1, "v2": a.WriteColibriV2, "web": a.WriteColibriWeb}[c.Format]
	if c.Out == "" {
		return write(con.foreign())
	}
	out, err := create(c.Out)
	if err != nil {
		return err
	}
	defer out.abandon()
	if err := write(out.file); err != nil {
		return err
	}
	return out.commit(nil)
}

type atlasImportCmd struct {
	File string `arg:"" help:"colibri's atlas (JSON)."`
	Out  string `help:"Where to write the atlas." default:"covey.atlas.json" placeholder:"FILE"`
	Name string `help:"Of the atlas; the file's when not set." placeholder:"TEXT"`
}

// Run converts.
func (c *atlasImportCmd) Run(con *console) error {
	file, err := os.Open(c.File)
	if err != nil {
		return inputError("atlas", "", "opening the atlas", err)
	}
	defer file.Close()
	if c.Name == "" {
		c.Name = filepath.Base(c.File)
	}
	a, err := atlas.Import(c.Name, file)
	if err != nil {
		return inputError("atlas", "", "reading "+c.File, err)
	}
	document, err := a.Encode()
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

type atlasProbesCmd struct {
	Lint atlasLintCmd `cmd:"" help:"Say what would weaken a measurement with a probe set."`
}

type atlasLintCmd struct {
	File  string `arg:"" optional:"" help:"Probe set (JSONL); the built-in one when not given."`
	Model string `help:"Model whose tokenizer counts; the bundled one when not set." placeholder:"DIR"`
}

// Run prints findings; any makes it fail.
func (c *atlasLintCmd) Run(con *console) error {
	set, err := readProbes(c.File)
	if err != nil {
		return err
	}
	tok, err := openTokenizer(c.Model)
	if err != nil {
		return err
	}
	findings, err := probes.Lint(set, func(text string) (int, error) {
		ids, err := tok.Encode(text, false)
		return len(ids), err
	}, probes.Rules{})
	if err != nil {
		return inputError("probes", "", "checking the probe set", err)
	}
	for _, f := range findings {
		fmt.Fprintln(con.foreign(), f)
	}
	fmt.Fprintf(con.out, "%s: %d texts of %d topics, %d findings, hash %.16s\n", set.Name, len(set.Probes), len(set.Topics), len(findings), set.Hash)
	return verdict(nil, len(findings) == 0, "the probe set has %d findings", len(findings))
}

type atlasSelftestCmd struct {
	statisticsFlags `embed:""`
	Layers          int  `help:"MoE layers of the planted model." default:"29"`
	Threads         int  `help:"Threads of the statistics; 0 = all." local:"" default:"0"`
	JSON            bool `name:"json" help:"Print one JSON object."`
}

// Run plants specialists, confounds and nulls, and prints how many the method finds and how often it is wrong.
func (c *atlasSelftestCmd) Run(con *console) error {
	ctx := con.untilInterrupted()
	if c.Layers < 1 || c.Layers > 1000 {
		return &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: "--layers: choose 1 to 1000"}
	}
	t, err := atlas.RunSelftest(ctx, c.Layers, c.options(c.Threads), con.atlasProgress)
	con.clear()
	if errors.Is(err, context.Canceled) {
		return err
	}
	if err != nil {
		return inputError("atlas", "", "the self-test could not run", err)
	}
	if c.JSON {
		err = con.json(t)
	} else {
		_, err = fmt.Fprintf(con.out, "%d experts, %d labels in %.0f s\nrecall            %.3f (lift 2: %.3f, lift 4: %.3f)\nfalse labels      %.3f\ncoverage          %.3f of 95 %% intervals\nlexical confounds %.3f of %d recognised; %.3f of real specialists mistaken for lexical\n",
			t.Experts, t.Labels, t.Seconds, t.Recall, t.RecallLift2, t.RecallLift4, t.FalseLabelRate, t.Coverage, t.ConfoundRecovery, t.Confounds, t.LexicalMistakes)
	}
	return verdict(err, t.Pass, "the method did not meet its criteria on the planted truth")
}
