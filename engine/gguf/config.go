package gguf

// Metadata to config.json, by the tables of families.go. A key under the architecture's prefix that nobody reads is refused by
// name: it may change the maths.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Description is a model in the words of a Hugging Face checkpoint.
type Description struct {
	Architecture string // llama.cpp's name of it
	Config       []byte // config.json
	family       *family
	heads        [2]int64 // query and key/value heads
	dim          int64    // width of a head
}

// latent gives the widths of latent attention. Newer files name heads as they are after expansion (key_length_mla), older
// ones as their only widths.
func (r *reader) latent(c map[string]any) {
	rotary, _ := r.integer("rope.dimension_count")
	key, ok := r.integer("attention.key_length_mla")
	value, _ := r.integer("attention.value_length_mla")
	if !ok {
		key, _ = r.integer("attention.key_length")
		value, _ = r.integer("attention.value_length")
	}
	r.take(field{"kv_lora_rank", "attention.kv_lora_rank", whole, must}, c)
	r.take(field{"q_lora_rank", "attention.q_lora_rank", whole, nil}, c)
	if rotary < 1 || key <= rotary {
		r.refuse("rope.dimension_count", "%d channels of a head of %d", rotary, key)
	}
	c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"] = rotary, key-rotary, value
	c["attention_bias"] = r.hasTensor("attn_kv_a_mqa.bias")
	if yarn, ok := c["rope_scaling"].(map[string]any); ok {
		// A tenth of mscale_all_dim is what files hold; mscale is taken to be the same, as in all published models.
		if x, ok := r.number("rope.scaling.yarn_log_multiplier"); ok {
			yarn["mscale"], yarn["mscale_all_dim"] = shortest(float32(x*10)), shortest(float32(x*10))
		}
	}
}

func with(names map[string]string, key, value string) map[string]string {
	out := maps.Clone(names)
	out[key] = value
	return out
}

// Architectures lists the names of architectures that are understood, in lexical order.
func Architectures() []string { return slices.Sorted(maps.Keys(families)) }

// reader collects a configuration from metadata, with the first problem.
type reader struct {
	file    *File
	prefix  string
	used    map[string]bool
	tensors map[string]*Tensor
	err     error
}

func (r *reader) refuse(key, format string, args ...any) {
	if r.err == nil {
		r.err = &Error{Key: r.prefix + key, Offset: -1, Problem: fmt.Sprintf(format, args...)}
	}
}

func (r *reader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

// integer reads a whole number; an array of them must be of equal ones.
func (r *reader) integer(key string) (int64, bool) {
	r.used[r.prefix+key] = true
	if !r.file.IsArray(r.prefix + key) {
		n, ok, err := r.file.Integer(r.prefix + key)
		r.keep(err)
		return n, ok
	}
	list, err := r.file.Integers(r.prefix + key)
	r.keep(err)
	if len(list) == 0 {
		return 0, false
	}
	for l, n := range list {
		if n != list[0] {
			r.refuse(key, "is %d for layer 0 and %d for layer %d; layers that differ are not supported", list[0], n, l)
		}
	}
	return list[0], true
}

func (r *reader) number(key string) (float64, bool) {
	r.used[r.prefix+key] = true
	x, ok, err := r.file.Number(r.prefix + key)
	r.keep(err)
	return x, ok
}

func (r *reader) text(key string) string {
	r.used[r.prefix+key] = true
	text, _, err := r.file.Text(r.prefix + key)
	r.keep(err)
	return text
}

// take puts a field into config.
func (r *reader) take(f field, config map[string]any) {
	var v any
	var ok bool
	switch f.kind {
	case whole:
		v, ok = r.integer(f.key)
	case real:
		v, ok = r.number(f.key)
	case truth:
		r.used[r.prefix+f.key] = true
		var err error
		v, ok, err = r.file.Bool(r.prefix + f.key)
		r.keep(err)
	}
	switch {
	case ok:
		config[f.name] = v
	case f.absent == must:
		r.refuse(f.key, "missing")
	case f.absent != nil:
		config[f.name] = f.absent
	}
}

// hasTensor says whether some layer has a tensor of that name.
func (r *reader) hasTensor(name string) bool {
	for layer := range 8 { // the first layers may be of another kind
		if _, ok := r.tensors[fmt.Sprintf("blk.%d.%s", layer, name)]; ok {
			return true
		}
	}
	return false
}

// projections says whether queries, keys and values, and outputs, have biases.
func (r *reader) projections() (in, out bool) {
	q, k, v := r.hasTensor("attn_q.bias"), r.hasTensor("attn_k.bias"), r.hasTensor("attn_v.bias")
	if all := q && k && v; all != (q || k || v) {
		r.keep(&Error{Tensor: "blk.0.attn_q.bias", Offset: -1, Problem: "queries, keys and values do not all have a bias"})
	}
	return q || r.hasTensor("attn_qkv.bias"), r.hasTensor("attn_output.bias")
}

// plainProjections refuses biases of an architecture that has none.
func (r *reader) plainProjections() {
	if in, out := r.projections(); in || out {
		r.keep(&Error{Tensor: "blk.0.attn_q.bias", Offset: -1, Problem: "this architecture has no biases of attention"})
	}
}

// biases reads those of an architecture that has them on all projections or on none.
func (r *reader) biases(c map[string]any) {
	in, out := r.projections()
	if in != out {
		r.keep(&Error{Tensor: "blk.0.attn_output.bias", Offset: -1, Problem: "in this architecture all projections of attention have biases, or none"})
	}
	c["attention_bias"] = in
}

// headDim is the width of a head.
func headDim(c map[string]any) int64 {
	if dim, ok := c["head_dim"].(int64); ok {
		return dim
	}
	hidden, _ := c["hidden_size"].(int64)
	heads, _ := c["num_attention_heads"].(int64)
	if heads < 1 {
		return 0
	}
	return hidden / heads
}

// partialRotation gives the share of a head that is rotated.
func (r *reader) partialRotation(c map[string]any) {
	dim := headDim(c)
	rotated, ok := r.integer("rope.dimension_count")
	if !ok {
		rotated = dim
	}
	if rotated < 0 || rotated > dim || dim == 0 {
		r.refuse("rope.dimension_count", "%d channels of a head of %d", rotated, dim)
		return
	}
	c["partial_rotary_factor"] = float64(rotated) / float64(dim)
}

// wholeRotation refuses a rotation of a part of a head.
func (r *reader) wholeRotation(c map[string]any) {
	if rotated, ok := r.integer("rope.dimension_count"); ok && rotated != headDim(c) {
		r.refuse("rope.dimension_count", "%d channels of a head of %d, but this architecture rotates whole heads", rotated, headDim(c))
	}
}

// scaling reads what stretches the context beyond what the model was first trained for.
func (r *reader) scaling(config map[string]any) {
	factor, hasFactor := r.number("rope.scaling.factor")
	original, hasOriginal := r.integer("rope.scaling.original_context_length")
	fast, hasFast := r.number("rope.scaling.yarn_beta_fast")
	slow, hasSlow := r.number("rope.scaling.yarn_beta_slow")
	r.used[r.prefix+"rope.scaling.finetuned"] = true
	for _, key := range []string{"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"} {
		if x, ok := r.number(key); ok && x != 1 {
			r.refuse(key, "%v is not supported; 1 is", x)
		}
	}
	if x, ok := r.number("rope.scaling.yarn_ext_factor"); ok && x != 1 && x != -1 {
		r.refuse("rope.scaling.yarn_ext_factor", "%v is not supported; 1 is", x)
	}
	for _, name := range []string{"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"} {
		if _, ok := r.tensors[name]; ok || r.hasTensor(name) {
			r.keep(&Error{Tensor: name, Offset: -1, Problem: "factors on rotary frequencies are not supported in this architecture"})
		}
	}
	switch kind := r.text("rope.scaling.type"); kind {
	case "", "none":
	case "linear":
		if !hasFactor {
			r.refuse("rope.scaling.factor", "missing, but the scaling is linear")
		}
		config["rope_scaling"] = map[string]any{"rope_type": "linear", "factor": factor}
	case "yarn":
		if !hasFactor || !hasOriginal {
			r.refuse("rope.scaling.factor", "the scaling is yarn, which needs a factor and an original context length")
		}
		yarn := map[string]any{"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
		if hasFast {
			yarn["beta_fast"] = fast
		}
		if hasSlow {
			yarn["beta_slow"] = slow
		}
		config["rope_scaling"] = yarn
	default:
		r.refuse("rope.scaling.type", "%q is not supported; none, linear and yarn are", kind)
	}
}

// Describe finds out what model a file holds. tensors is the table of all files of a split model.
func Describe(f *File, tensors []Tensor) (*Description, error) {
	const architecture, kind = "general.architecture", "general.type"
	name, ok, err := f.Text(architecture)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &Error{Key: architecture, Offset: -1, Problem: "missing"}
	}
	if is, ok, err := f.Text(kind); err != nil {
		return nil, err
	} else if ok && is != "model" {
		return nil, &Error{Key: kind, Offset: -1, Problem: fmt.Sprintf("%q; only \"model\" is a whole model", is)}
	}
	family, ok := families[name]
	if reason, known := refused[name]; known {
		return nil, &Error{Key: architecture, Offset: -1, Problem: fmt.Sprintf("%q is not supported: %s", name, reason)}
	}
	if !ok {
		return nil, &Error{Key: architecture, Offset: -1, Problem: fmt.Sprintf("%q is not supported; supported: %s", name, strings.Join(Architectures(), ", "))}
	}
	r := &reader{file: f, prefix: name + ".", used: map[string]bool{}, tensors: make(map[string]*Tensor, len(tensors))}
	for i := range tensors {
		r.tensors[tensors[i].Name] = &tensors[i]
	}
	config := map[string]any{"model_type": family.model}
	for _, f := range slices.Concat(common, family.fields) {
		r.take(f, config)
	}
	maps.Copy(config, family.constants)
	r.scaling(config)
	r.layers(config)
	r.gate(family)
	r.vocabulary(config)
	if slices.ContainsFunc(family.fields, func(f field) bool { return f.key == "attention.key_length" }) {
		r.agree("attention.value_length", "attention.key_length")
	}
	if family.derive != nil {
		family.derive(r, config)
	}
	for _, key := range slices.Concat(bookkeeping, family.ignored) {
		r.used[r.prefix+key] = true
	}
	r.unread()
	if r.err != nil {
		return nil, r.err
	}
	text, err := json.Marshal(config, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return nil, fmt.Errorf("gguf: writing config.json: %w", err)
	}
	d := &Description{Architecture: name, Config: text, family: family, dim: headDim(config)}
	d.heads[0], _ = config["num_attention_heads"].(int64)
	d.heads[1] = d.heads[0]
	if n, ok := config["num_key_value_heads"].(int64); ok {
		d.heads[1] = n
	}
	return d, nil
}

// layers tells layers from the ones behind them that only draft.
func (r *reader) layers(config map[string]any) {
	all, ok := r.integer("block_count")
	if !ok {
		r.refuse("block_count", "missing")
	}
	if all < 0 {
		r.refuse("block_count", "%d layers", all)
	}
	drafting, _ := r.integer("nextn_predict_layers")
	if drafting < 0 || drafting >= max(all, 1) {
		r.refuse("nextn_predict_layers", "%d of %d layers", drafting, all)
	}
	config["num_hidden_layers"] = max(all-drafting, 0) // the rest of a refused file is read all the same
	if drafting > 0 {
		config["num_nextn_predict_layers"] = drafting
	}
}

// gate checks the function of the router.
func (r *reader) gate(family *family) {
	const key = "expert_gating_func"
	if family.ownGate {
		return
	}
	got, ok := r.integer(key)
	if family.gating == 0 || ok && got == family.gating || !ok && family.ungated {
		if family.gating == 0 && ok && got != gateSoftmax {
			r.refuse(key, "%d is not supported in this architecture", got)
		}
		return
	}
	r.refuse(key, "%d is not supported in this architecture; %d is", got, family.gating)
}

// vocabulary takes the size of the vocabulary from the embedding, and what ends an answer.
func (r *reader) vocabulary(config map[string]any) {
	embedding, ok := r.tensors["token_embd.weight"]
	if !ok || len(embedding.Shape) != 2 {
		r.keep(&Error{Tensor: "token_embd.weight", Offset: -1, Problem: "missing or not a matrix"})
		return
	}
	config["vocab_size"] = embedding.Shape[0]
	_, head := r.tensors["output.weight"]
	config["tie_word_embeddings"] = !head
	for key, name := range map[string]string{"bos": "bos_token_id", "padding": "pad_token_id"} {
		if id, ok, err := r.file.Integer("tokenizer.ggml." + key + "_token_id"); err == nil && ok && id >= 0 && id < embedding.Shape[0] {
			config[name] = id
		}
	}
	if ends, err := r.file.ends(); err != nil {
		r.keep(err)
	} else if len(ends) > 0 {
		ends = slices.DeleteFunc(ends, func(id int64) bool { return id >= embedding.Shape[0] })
		config["eos_token_id"] = ends
	}
}

// agree refuses values of two keys that differ.
func (r *reader) agree(a, b string) {
	x, okX := r.integer(a)
	y, okY := r.integer(b)
	if okX && okY && x != y {
		r.refuse(a, "%d, but %s is %d; heads of keys and values that differ are not supported in this architecture", x, b, y)
	}
}

// unread refuses keys that nobody asked for, unless they switch something off.
func (r *reader) unread() {
	for _, key := range slices.Sorted(slices.Values(r.file.Keys())) {
		v := r.file.values[key]
		if !strings.HasPrefix(key, r.prefix) || r.used[key] || v.kind != kindString && v.kind != kindArray && v.bits == 0 {
			continue
		}
		r.keep(&Error{Key: key, Offset: -1, Problem: "is not known to this architecture and may change the maths"})
	}
}
