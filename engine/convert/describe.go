package convert

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"covey/engine/model"
	"covey/engine/weights"
)

// Description is what can be said of a checkpoint without loading it.
type Description struct {
	Architecture string            `json:"architecture"`
	Format       string            `json:"format"` // container, gguf or safetensors
	Layers       int               `json:"layers"`
	MoELayers    int               `json:"moe_layers"`
	Hidden       int               `json:"hidden"`
	Vocab        int               `json:"vocab"`
	Context      int               `json:"context"`
	Experts      int               `json:"experts"`
	TopK         int               `json:"top_k"`
	Inner        int               `json:"inner"`
	Parameters   int64             `json:"parameters"`
	Active       int64             `json:"active"` // read for one token
	Bytes        int64             `json:"bytes"`  // stored
	Forms        []FormCount       `json:"forms"`
	Tokenizer    bool              `json:"tokenizer"`
	Template     bool              `json:"template"`
	Unused       []string          `json:"unused"` // tensors that the forward pass does not read
	Hash         string            `json:"hash"`
	Container    map[string]string `json:"container,omitempty"` // metadata
}

// FormCount counts weights of one form and role.
type FormCount struct {
	Role    string `json:"role"` // experts, dense or vectors
	Form    string `json:"form"`
	Tensors int    `json:"tensors"`
}

// Describe reads the configuration, the tensor table and one weight of each kind.
func Describe(checkpoint *weights.Checkpoint) (*Description, error) {
	spec, items, unused, err := model.Items(checkpoint)
	if err != nil {
		return nil, err
	}
	d := &Description{Architecture: spec.Architecture, Format: "safetensors", Layers: spec.Layers, MoELayers: len(spec.MoELayers()), Hidden: spec.Hidden, Vocab: spec.Vocab, Context: spec.Context,
		Experts: spec.MoE.Experts, TopK: spec.MoE.TopK, Inner: spec.MoE.Inner, Bytes: checkpoint.Bytes(), Unused: unused, Hash: checkpoint.Hash(), Container: checkpoint.Container()}
	switch names := checkpoint.Files(); {
	case d.Container != nil:
		d.Format = "container"
	case strings.HasSuffix(names[0], ".gguf"):
		d.Format = "gguf"
	}
	counts := map[FormCount]int{}
	known := map[string]string{} // form by what the name says without its numbers
	var scratch weights.Scratch
	for _, item := range items {
		role := "dense"
		switch {
		case item.Kind == model.VectorItem:
			role = "vectors"
		case item.Expert >= 0:
			role = "experts"
		}
		n := elements(item)
		d.Parameters += n
		if item.Expert >= 0 {
			n = n * int64(spec.MoE.TopK) / int64(spec.MoE.Experts)
		}
		d.Active += n
		if item.Kind == model.VectorItem {
			counts[FormCount{Role: role, Form: "f32, f16 or bf16"}]++
			continue
		}
		kind := pattern(item.Names[0])
		if _, ok := known[kind]; !ok {
			scratch.Reset()
			sources, err := item.Sources(&scratch)
			if err != nil {
				return nil, err
			}
			known[kind] = sources[0].Kind()
		}
		counts[FormCount{Role: role, Form: known[kind]}] += len(item.Names)
	}
	for f, n := range counts {
		f.Tensors = n
		d.Forms = append(d.Forms, f)
	}
	slices.SortFunc(d.Forms, func(a, b FormCount) int {
		return strings.Compare(a.Role+a.Form, b.Role+b.Form)
	})
	has := func(name string) bool {
		_, err := checkpoint.File(name, maxSideFile)
		return !errors.Is(err, fs.ErrNotExist)
	}
	d.Tokenizer = has("tokenizer.json")
	if text, err := checkpoint.File("tokenizer_config.json", maxSideFile); err == nil {
		d.Template = strings.Contains(string(text), `"chat_template"`)
	}
	d.Template = d.Template || has("chat_template.jinja")
	return d, nil
}

// pattern is a name with every number replaced by one sign.
func pattern(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		if p != "" && strings.Trim(p, "0123456789") == "" {
			parts[i] = "#"
		}
	}
	return strings.Join(parts, ".")
}
