// Command assemble makes atlas/probes/builtin.jsonl from atlas/probes/src and lints it: run it from the root of the
// repository with `go run ./atlas/probes/assemble` after changing a source. It writes the set only if lint finds nothing,
// or with -force; it exits 1 when it found something.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"covey/atlas/probes"
	"covey/engine/tokenizer"
)

// topics fixes their order in the set, hence in every table and picture.
var topics = []string{
	"code", "math", "science", "medicine", "law", "history", "fiction", "poetry",
	"chinese", "translation", "structured", "casual", "cooking", "manuals",
}

func main() {
	src := flag.String("src", "atlas/probes/src", "folder with one file of JSON Lines a topic, and crossed.jsonl")
	out := flag.String("out", "atlas/probes/builtin.jsonl", "file to write")
	model := flag.String("model", "models/smollm2-moe-32x", "folder whose tokenizer measures lengths")
	open := flag.Int("open", 40, "open texts a topic; 0 = any number")
	sealed := flag.Int("sealed", 12, "sealed texts a topic; 0 = at least one")
	crossed := flag.Int("crossed", 3, "texts of each pair of topics that crossed.jsonl crosses; 0 = any number")
	force := flag.Bool("force", false, "write although lint found something")
	flag.Parse()
	findings, err := assemble(*src, *out, *model, probes.Rules{Open: *open, Sealed: *sealed, Crossed: *crossed}, *force)
	for _, f := range findings {
		fmt.Println(f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "assemble:", err)
		os.Exit(1)
	}
}

func assemble(src, out, model string, rules probes.Rules, force bool) ([]probes.Finding, error) {
	tok, err := tokenizer.Load(model)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(src, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	var findings []probes.Finding
	names := append(slices.Clone(topics), "crossed")
	for _, file := range files {
		if name := filepath.Base(file); !slices.Contains(names, name[:len(name)-len(".jsonl")]) {
			findings = append(findings, probes.Finding{Message: file + " is no topic of the set"})
		}
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(src, name+".jsonl"))
		if errors.Is(err, os.ErrNotExist) {
			findings = append(findings, probes.Finding{Topic: name, Message: "no file " + name + ".jsonl"})
			continue
		} else if err != nil {
			return nil, err
		}
		text.Write(data)
		text.WriteByte('\n')
	}
	set, err := probes.Read(probes.BuiltinName, &text)
	if err != nil {
		return findings, err
	}
	lint, err := probes.Lint(set, func(text string) (int, error) {
		ids, err := tok.Encode(text, false)
		return len(ids), err
	}, rules)
	if err != nil {
		return findings, err
	}
	findings = append(findings, lint...)
	if len(findings) > 0 && !force {
		return findings, fmt.Errorf("%d findings: nothing written", len(findings))
	}
	if err := os.WriteFile(out, set.Text(), 0o644); err != nil {
		return findings, err
	}
	fmt.Printf("%s: %d texts, %d topics, %d open, %d sealed, hash %s\n", out, len(set.Probes), len(set.Topics), set.Count(probes.Open), set.Count(probes.Sealed), set.Hash)
	return findings, nil
}
