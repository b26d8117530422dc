package main

import (
	"fmt"
	"strings"

	"covey/daemon"
	"covey/engine/synthetic"
)

type makeModelCmd struct {
	Dir     string `arg:"" help:"New folder for the checkpoint."`
	Shape   string `help:"Shape to start from: glm-4.5-air, qwen3-30b-a3b, olmoe or tiny." default:"olmoe" placeholder:"NAME"`
	Form    string `help:"Form of the matrices: bf16, int8, int4 (groups of 32) or int4-g64." default:"int4" enum:"bf16,int8,int4,int4-g64"`
	Layers  int    `help:"Layers instead of the shape's." placeholder:"N"`
	Dense   int    `help:"Plain layers at the front instead of the shape's; -1 keeps the shape's." default:"-1" placeholder:"N"`
	Experts int    `help:"Experts a layer instead of the shape's." placeholder:"N"`
	TopK    int    `name:"top-k" help:"Experts a token instead of the shape's." placeholder:"N"`
	Hidden  int    `help:"Hidden width instead of the shape's." placeholder:"N"`
	Inner   int    `help:"Width of an expert instead of the shape's." placeholder:"N"`
	Vocab   int    `help:"Vocabulary instead of the shape's." placeholder:"N"`
	Seed    uint64 `help:"Equal seeds give equal bytes." default:"1" placeholder:"N"`
	JSON    bool   `name:"json" help:"Print one JSON object as the last line, and nothing else on standard output."`
}

// Run writes the checkpoint.
func (c *makeModelCmd) Run(con *console) error {
	s, err := synthetic.Preset(c.Shape)
	if err != nil {
		return &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: "bench make-model: unknown --shape " + c.Shape, Hint: "shapes: " + strings.Join(synthetic.Presets(), ", ")}
	}
	for _, d := range []struct {
		to   *int
		want int
	}{{&s.Layers, c.Layers}, {&s.Experts, c.Experts}, {&s.TopK, c.TopK}, {&s.Hidden, c.Hidden}, {&s.Inner, c.Inner}, {&s.Vocab, c.Vocab}} {
		if d.want != 0 {
			*d.to = d.want
		}
	}
	if c.Dense >= 0 {
		s.Dense = c.Dense
	}
	s.Form, s.Seed = synthetic.Form(c.Form), c.Seed
	err = synthetic.Write(con.untilInterrupted(), c.Dir, s, func(done, total int64) { con.progress("writing", done, total) })
	con.clear()
	if err != nil {
		return inputError("bench", "name a new folder with enough space, and dimensions that fit each other", "making the model", err)
	}
	if c.JSON {
		return con.json(map[string]any{"dir": c.Dir, "bytes": s.Bytes(), "architecture": s.Architecture, "form": s.Form, "layers": s.Layers, "experts": s.Experts, "seed": s.Seed})
	}
	_, err = fmt.Fprintf(con.out, "%s: %s, %d layers, %d experts of width %d, %s, %.2f GB\n", c.Dir, s.Architecture, s.Layers, s.Experts, s.Inner, s.Form, float64(s.Bytes())/1e9)
	return err
}
