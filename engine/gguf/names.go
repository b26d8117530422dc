package gguf

import (
	"fmt"
	"strconv"
	"strings"
)

// Place says what a tensor of the file is in a Hugging Face checkpoint.
type Place struct {
	Name  string // "model.layers.3.mlp.experts.17.up_proj.weight"
	Shape []int64
	// Offset and Size are the part of the tensor's bytes, from the beginning of the file.
	Offset, Size int64
	// Heads is not zero where rows are interleaved within so many heads: of a head of D rows, row 2i is row i of the
	// checkpoint and row 2i+1 is row D/2+i. llama.cpp stores queries and keys of some architectures so, because it rotates
	// neighbouring channels.
	Heads int64
}

// Names of the two halves of kv_b_proj, which llama.cpp stores apart: keys as [heads, latent, channels], values as
// [heads, channels, latent]. A reader joins them.
const KeyExpansion, ValueExpansion = "k_b_proj", "v_b_proj"

// global are the names of tensors outside layers.
var global = map[string]string{
	"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
}

// layered are the names of tensors of a layer, without "blk.N." and ".weight"; %d is an expert.
var layered = map[string]string{
	"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "post_attention_norm": "post_attention_layernorm",
	"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
	"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
	"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
	"ffn_gate_inp": "mlp.gate", "exp_probs_b": "mlp.gate.e_score_correction_bias",
	"ffn_gate_exps": "mlp.experts.%d.gate_proj", "ffn_up_exps": "mlp.experts.%d.up_proj", "ffn_down_exps": "mlp.experts.%d.down_proj",
	"ffn_gate_shexp": "mlp.shared_experts.gate_proj", "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj",
}

// Places translates a tensor: a stack of experts becomes one place for each. A name that is not known stays as it is; a
// model does not read it, and says so where it lists what it left unread. More than most places are refused.
func (d *Description) Places(t Tensor, most int) ([]Place, error) {
	whole := Place{Name: t.Name, Shape: t.Shape, Offset: t.Offset, Size: t.Size}
	base, suffix := t.Name, ""
	for _, s := range []string{".weight", ".bias"} {
		if b, ok := strings.CutSuffix(t.Name, s); ok {
			base, suffix = b, s
		}
	}
	if name, ok := global[base]; ok {
		whole.Name = name + suffix
		return []Place{whole}, nil
	}
	number, rest, ok := strings.Cut(strings.TrimPrefix(base, "blk."), ".")
	layer, err := strconv.Atoi(number)
	if !ok || err != nil || layer < 0 || !strings.HasPrefix(base, "blk.") {
		return []Place{whole}, nil
	}
	if parts := d.fused(rest); parts != nil {
		return d.split(t, layer, rest, parts, suffix, most)
	}
	name, ok := d.family.names[rest]
	if !ok {
		name, ok = layered[rest]
	}
	prefix := fmt.Sprintf("model.layers.%d.", layer)
	switch {
	case !ok:
		whole.Name = prefix + rest + suffix
		return []Place{whole}, nil
	case strings.HasSuffix(name, "e_score_correction_bias"), strings.HasSuffix(name, "sinks"): // whole names in checkpoints
		suffix = ""
	case strings.HasSuffix(name, "shared_expert_gate") && len(t.Shape) == 1:
		whole.Shape = []int64{1, t.Shape[0]}
	case d.family.permuted && rest == "attn_q":
		whole.Heads = d.heads[0]
	case d.family.permuted && rest == "attn_k":
		whole.Heads = d.heads[1]
	}
	if !strings.Contains(name, "%d") {
		whole.Name = prefix + name + suffix
		return []Place{whole}, nil
	}
	if len(t.Shape) < 2 || t.Shape[0] < 1 || t.Shape[0] > int64(most) {
		return nil, &Error{Tensor: t.Name, Offset: t.Offset, Problem: fmt.Sprintf("shape %v is not a stack of experts", t.Shape)}
	}
	places := make([]Place, t.Shape[0])
	size := t.Size / t.Shape[0]
	for e := range places {
		places[e] = Place{Name: prefix + fmt.Sprintf(name, e) + suffix, Shape: t.Shape[1:], Offset: t.Offset + int64(e)*size, Size: size}
	}
	return places, nil
}

// fusedPart is a part of a tensor that holds several of the usual ones, one behind the other along the rows.
type fusedPart struct {
	name string
	rows int64 // share of the rows
}

// fused are the parts of a tensor of a layer; nil if it is a usual one.
func (d *Description) fused(name string) []fusedPart {
	switch name {
	case "attn_qkv":
		return []fusedPart{{"attn_q", d.heads[0] * d.dim}, {"attn_k", d.heads[1] * d.dim}, {"attn_v", d.heads[1] * d.dim}}
	case "ffn_gate_up_exps":
		return []fusedPart{{"ffn_gate_exps", 1}, {"ffn_up_exps", 1}}
	}
	return nil
}

// split translates a tensor that holds several usual ones: each of its matrices, or it as a vector, falls into the parts.
func (d *Description) split(t Tensor, layer int, name string, parts []fusedPart, suffix string, most int) ([]Place, error) {
	refuse := func() ([]Place, error) {
		return nil, &Error{Tensor: t.Name, Offset: t.Offset, Problem: fmt.Sprintf("shape %v does not fall into its parts", t.Shape)}
	}
	stack := name == "ffn_gate_up_exps"
	at, matrices := 0, int64(1) // dimension of the rows
	if stack && len(t.Shape) > 0 {
		at, matrices = 1, t.Shape[0]
	}
	if len(t.Shape) < at+1 || len(t.Shape) > at+2 || matrices < 1 || matrices > int64(most) {
		return refuse()
	}
	rows, total := t.Shape[at], int64(0)
	for _, p := range parts {
		if p.rows < 1 || p.rows > rows { // as the metadata says, which may say anything
			return refuse()
		}
		total += p.rows
	}
	if rows%total != 0 || !stack && rows != total || t.Size%(matrices*rows) != 0 {
		return refuse()
	}
	row, unit := t.Size/(matrices*rows), rows/total
	var places []Place
	for m := range matrices {
		offset := t.Offset + m*row*rows
		for _, p := range parts {
			part := Tensor{Name: fmt.Sprintf("blk.%d.%s%s", layer, p.name, suffix), Type: t.Type, Shape: append([]int64{p.rows * unit}, t.Shape[at+1:]...), Offset: offset, Size: p.rows * unit * row}
			if stack {
				part.Shape = append([]int64{1}, part.Shape...)
			}
			list, err := d.Places(part, most)
			if err != nil {
				return nil, err
			}
			if stack {
				list[0].Name = strings.Replace(list[0].Name, ".experts.0.", fmt.Sprintf(".experts.%d.", m), 1)
			}
			places = append(places, list...)
			offset += part.Size
		}
	}
	return places, nil
}
