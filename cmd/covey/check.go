package main

import (
	"fmt"

	"covey/engine/check"
	"covey/engine/tokenizer"
)

type checkCmd struct {
	Oracle    checkOracleCmd    `cmd:"" help:"Hold the forward pass to a reference: a folder with a model and oracle.safetensors."`
	Reference checkReferenceCmd `cmd:"" help:"Hold a model to recorded logits and routing of an independent forward."`
	Tokenizer checkTokenizerCmd `cmd:"" help:"Hold a tokenizer to recorded ids: a folder with tokenizer.json and cases.jsonl."`
}

type checkOracleCmd struct {
	Dir         string `arg:"" help:"Folder with config.json, model.safetensors and oracle.safetensors."`
	Activations string `local:"" help:"f32 (weights dequantised) or int8." enum:"f32,int8" default:"f32"`
	Device      string `local:"" help:"cpu, cuda (the first CUDA device), cuda:N or several (cuda:0,cuda:1)." default:"cpu" placeholder:"NAME"`
	JSON        bool   `name:"json" help:"Print one JSON object."`
}

// Run compares every logit, choice of experts and greedy token.
func (c *checkOracleCmd) Run(con *console) error {
	backend, err := openDevice(c.Device)
	if err != nil {
		return err
	}
	defer closeDevice(backend)
	report, err := check.OracleOn(con.untilInterrupted(), backend, c.Dir, c.Activations)
	if err != nil {
		return inputError("check", "give a folder with config.json, model.safetensors and oracle.safetensors", "checking "+c.Dir, err)
	}
	if c.JSON {
		err = con.json(report)
	} else {
		_, err = fmt.Fprintf(con.out, "largest difference  %.3g of %.3g\nsame most likely    %.4f of rows\ngreedy              %d of %d\nsame experts        %.4f of rows and layers\nmean KL             %.3g nats\n",
			report.MaxAbsDiff, report.MaxAbsLogit, report.ArgmaxAgree, report.Greedy, report.GreedyTotal, report.ExpertsAgree, report.KLMean)
	}
	return verdict(err, report.Pass, "the forward pass in %s does not match its oracle", c.Dir)
}

type checkReferenceCmd struct {
	Model       string `help:"Model folder or GGUF file; the bundled model when not set." placeholder:"PATH"`
	File        string `help:"Recorded reference; reference.safetensors in the model folder when not set." placeholder:"FILE"`
	Activations string `local:"" help:"f32 (weights dequantised) or int8." enum:"f32,int8" default:"f32"`
	JSON        bool   `name:"json" help:"Print one JSON object."`
}

// Run compares logits, routing and greedy answers on the recorded texts.
func (c *checkReferenceCmd) Run(con *console) error {
	dir, err := modelFolder(c.Model)
	if err != nil {
		return err
	}
	if c.File == "" {
		c.File = dir + "/reference.safetensors"
	}
	report, err := check.Reference(con.untilInterrupted(), dir, c.File, c.Activations)
	if err != nil {
		return inputError("check", "give a model with its reference.safetensors", "checking "+dir, err)
	}
	if c.JSON {
		err = con.json(report)
	} else {
		for _, t := range report.Texts {
			mark := "ok  "
			if !t.Pass {
				mark = "FAIL"
			}
			if _, err = fmt.Fprintf(con.out, "%s %-12s %4d rows, logits within %.2g, experts %.4f, most likely %.4f, greedy %d of %d, mean KL %.2g\n",
				mark, t.Name, t.Rows, t.LogitDiff, t.ExpertsAgree, t.ArgmaxAgree, t.Greedy, t.GreedyTotal, t.KLMean); err != nil {
				return err
			}
		}
	}
	return verdict(err, report.Pass, "the forward pass in %s does not match its reference", dir)
}

type checkTokenizerCmd struct {
	Dir  string `arg:"" help:"Folder with tokenizer.json and cases.jsonl."`
	JSON bool   `name:"json" help:"Print one JSON object."`
}

// Run compares ids and decoded texts of every case.
func (c *checkTokenizerCmd) Run(con *console) error {
	report, err := tokenizer.Check(c.Dir)
	if err != nil {
		return inputError("check", "give a folder with tokenizer.json and cases.jsonl", "checking "+c.Dir, err)
	}
	if c.JSON {
		err = con.json(report)
	} else {
		_, err = fmt.Fprintf(con.out, "ids equal      %d of %d\ndecoded equal  %d of %d\n%s", report.IDsEqual, report.Cases, report.DecodedEqual, report.Cases, report.FirstFailure)
	}
	return verdict(err, report.Pass, "the tokenizer in %s does not match its cases", c.Dir)
}

// verdict is the end of a check whose report has been printed.
func verdict(printing error, pass bool, format string, args ...any) error {
	if printing != nil || pass {
		return printing
	}
	return failedCheck(format, args...)
}
