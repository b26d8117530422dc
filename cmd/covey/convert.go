package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"covey/atlas/probes"
	"covey/daemon"
	"covey/engine/check"
	"covey/engine/convert"
	"covey/engine/weights"
)

type convertCmd struct {
	Source    string `arg:"" help:"Checkpoint: a folder or a GGUF file."`
	Dest      string `arg:"" help:"New folder for the container. One that holds the beginning of the same conversion is gone on with; nothing is overwritten."`
	Experts   string `help:"Form of the routed experts." enum:"keep,bf16,int8,int4" default:"int4"`
	Dense     string `help:"Form of all other matrices; routers are kept as they are." enum:"keep,bf16,int8,int4" default:"int8"`
	Group     int    `help:"Inputs a scale of int8 and int4: 32, 64 or 128." enum:"32,64,128" default:"64" placeholder:"N"`
	Zeros     bool   `help:"int4 with a zero point beside each scale (asymmetric)."`
	SplitSize int64  `name:"split-size" help:"Megabytes after which a data file is full." default:"8192" placeholder:"MB"`
	WorkSize  int64  `name:"work-size" help:"Megabytes of weights in work at once." default:"512" placeholder:"MB"`
	Calibrate int    `help:"Read so many texts of the built-in probe set with the source and let errors of inputs that are large there count more; 0 = all inputs count alike. The source must fit in memory." default:"0" placeholder:"N"`
	Measure   int    `help:"Afterwards read so many texts of the built-in probe set with both models and report the KL divergence; 0 = none. Both must fit in memory." default:"0" placeholder:"N"`
	JSON      bool   `name:"json" help:"Print one JSON object as the last line, and nothing else on standard output."`
}

// convertReport is what convert --json prints.
type convertReport struct {
	Dest       string            `json:"dest"`
	Bytes      int64             `json:"bytes"`
	ExpertRMS  float64           `json:"expert_rms"`
	DenseRMS   float64           `json:"dense_rms"`
	WorstRMS   float64           `json:"worst_rms"`
	Worst      string            `json:"worst"`
	LeftOut    int               `json:"left_out"`
	NumericsID string            `json:"numerics_id"`
	Peak       int64             `json:"peak_memory"` // bytes; 0 = not known
	Measured   *check.Comparison `json:"measured,omitempty"`
}

// Run converts a checkpoint.
func (c *convertCmd) Run(con *console) error {
	if c.SplitSize < 1 || c.WorkSize < 1 || c.Measure < 0 || c.Calibrate < 0 {
		return &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: "convert: --split-size and --work-size are 1 or more, --calibrate and --measure 0 or more"}
	}
	ctx := con.untilInterrupted()
	source, err := weights.Open(c.Source)
	if err != nil {
		return inputError("model", "covey info "+c.Source+" says what it is", "opening "+c.Source, err)
	}
	defer source.Close()
	o := convert.Options{Experts: convert.Target(c.Experts), Dense: convert.Target(c.Dense), Group: c.Group, Zeros: c.Zeros, Split: c.SplitSize << 20, Memory: c.WorkSize << 20}
	if c.Calibrate > 0 {
		prompts, err := probePrompts(c.Source, c.Calibrate)
		if err != nil {
			return err
		}
		if o.Importance, err = convert.Calibrate(ctx, source, prompts, func(done, total int64) { con.progress("calibrating", done, total) }); err != nil {
			return inputError("convert", "leave --calibrate out", "calibrating", err)
		}
		o.ImportanceID = fmt.Sprintf("%s, %d texts", probes.BuiltinName, c.Calibrate)
		con.clear()
	}
	var speed convert.Speed
	report, err := convert.Run(ctx, source, c.Dest, o, func(done, total int64) { con.progressLine("converting", done, total, speed.Line(done, total)) })
	con.clear()
	if err != nil {
		return inputError("convert", "once it has begun, the same command goes on where it stopped; another one needs an empty folder", "converting "+c.Source, err)
	}
	out := convertReport{Dest: c.Dest, Bytes: report.Bytes, ExpertRMS: report.ExpertRMS, DenseRMS: report.DenseRMS, WorstRMS: report.WorstRMS, Worst: report.Worst,
		LeftOut: len(report.LeftOut), NumericsID: report.NumericsID, Peak: peakMemory()}
	if c.Measure > 0 {
		prompts, err := probePrompts(c.Source, c.Measure)
		if err != nil {
			return err
		}
		measured, err := check.Compare(ctx, c.Source, c.Dest, prompts, func(done, total int64) { con.progress("measuring", done, total) })
		con.clear()
		if err != nil {
			return inputError("convert", "the container itself is complete", "measuring", err)
		}
		out.Measured = &measured
	}
	if c.JSON {
		return con.json(out)
	}
	fmt.Fprintf(con.out, "%s: %.2f GB, relative error of experts %.4f, of other matrices %.4f, worst %.4f (%s)\n", c.Dest, float64(out.Bytes)/1e9, out.ExpertRMS, out.DenseRMS, out.WorstRMS, visible(out.Worst))
	if out.LeftOut > 0 {
		fmt.Fprintf(con.out, "left out: %d tensors that the forward pass does not read (%s lists them)\n", out.LeftOut, convert.ReportName)
	}
	if m := out.Measured; m != nil {
		fmt.Fprintf(con.out, "over %d rows: mean KL %.4g nats, 99 %% of rows at most %.4g, same most likely token in %.4f\n", m.Rows, m.KLMean, m.KL99, m.ArgmaxAgree)
	}
	return nil
}

// probePrompts are texts of the built-in probe set as the model's tokens, dealt evenly over its order.
func probePrompts(model string, n int) ([][]int32, error) {
	set, err := probes.Builtin()
	if err != nil {
		return nil, err
	}
	tok, err := openTokenizer(model)
	if err != nil {
		return nil, err
	}
	n = min(n, len(set.Probes))
	var prompts [][]int32
	for i := range n {
		ids, err := tok.Encode(set.Probes[i*len(set.Probes)/n].Text, true)
		if err != nil {
			return nil, inputError("model", "choose a model with another tokenizer", "encoding probe texts", err)
		}
		prompts = append(prompts, ids)
	}
	return prompts, nil
}

type verifyCmd struct {
	Dir  string `arg:"" help:"Folder of a container."`
	Deep bool   `help:"Also take every weight apart and refuse values that are not finite."`
	JSON bool   `name:"json" help:"Print one JSON object."`
}

// Run compares all hashes of a container.
func (c *verifyCmd) Run(con *console) error {
	checkpoint, err := weights.Open(c.Dir)
	if err != nil {
		return inputError("model", "give the folder of a container", "opening "+c.Dir, err)
	}
	defer checkpoint.Close()
	var speed convert.Speed
	v, err := weights.Verify(con.untilInterrupted(), checkpoint, c.Deep, func(done, total int64) { con.progressLine("verifying", done, total, speed.Line(done, total)) })
	con.clear()
	if err != nil {
		return inputError("model", "replace what is damaged, or convert again", "verifying "+c.Dir, err)
	}
	if c.JSON {
		return con.json(map[string]any{"records": v.Records, "tensors": v.Tensors, "bytes": v.Bytes, "pass": true})
	}
	_, err = fmt.Fprintf(con.out, "%d records, %d tensors, %.2f GB: all hashes match\n", v.Records, v.Tensors, float64(v.Bytes)/1e9)
	return err
}

type infoCmd struct {
	Path string `arg:"" help:"Checkpoint: a folder or a GGUF file."`
	JSON bool   `name:"json" help:"Print one JSON object."`
}

// Run describes a checkpoint without loading it.
func (c *infoCmd) Run(con *console) error {
	if _, err := os.Stat(filepath.Clean(c.Path)); errors.Is(err, fs.ErrNotExist) {
		return inputError("model", "give a folder or a GGUF file", c.Path+" does not exist", nil)
	}
	checkpoint, err := weights.Open(c.Path)
	if err != nil {
		return inputError("model", "", "opening "+c.Path, err)
	}
	defer checkpoint.Close()
	info, err := convert.Describe(checkpoint)
	if err != nil {
		return inputError("model", "", "reading "+c.Path, err)
	}
	if c.JSON {
		return con.json(info)
	}
	fmt.Fprintf(con.out, "%s, %s: %d layers (%d with experts), width %d, vocabulary %d, context %d\n", visible(info.Architecture), info.Format, info.Layers, info.MoELayers, info.Hidden, info.Vocab, info.Context)
	fmt.Fprintf(con.out, "experts: %d a layer, %d a token, width %d\n", info.Experts, info.TopK, info.Inner)
	fmt.Fprintf(con.out, "weights: %.2f billion, %.2f billion of them for one token, %.2f GB stored\n", float64(info.Parameters)/1e9, float64(info.Active)/1e9, float64(info.Bytes)/1e9)
	for _, f := range info.Forms {
		fmt.Fprintf(con.out, "  %-9s %-22s %6d tensors\n", f.Role, visible(f.Form), f.Tensors)
	}
	fmt.Fprintf(con.out, "tokenizer: %t, chat template: %t, identity %s\n", info.Tokenizer, info.Template, info.Hash)
	if len(info.Unused) > 0 {
		fmt.Fprintf(con.out, "not read by the forward pass: %d tensors, %s first\n", len(info.Unused), visible(info.Unused[0]))
	}
	for key, value := range info.Container {
		fmt.Fprintf(con.out, "  %s: %s\n", visible(key), visible(value))
	}
	return nil
}
