package gguf

// Metadata to config.json. Each architecture of llama.cpp is a table: which key of config.json comes from which key of the
// metadata, what is always so, and what is seen from the tensors (biases and norms are nowhere written down). A key under
// the architecture's prefix that nobody reads is refused by name: it may change the maths.

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
}

// family is an architecture as data.
type family struct {
	model     string         // config.json's model_type
	fields    []field        // beyond the common ones
	constants map[string]any // of config.json
	ignored   []string       // keys of the metadata that do not change the maths
	gating    int64          // expert_gating_func that the family means; 0 = the key is not read
	ungated   bool           // a missing expert_gating_func means that one too
	ownGate   bool           // derive reads expert_gating_func
	derive    func(d *reader, config map[string]any)
	names     map[string]string // tensor names that differ from the common ones
	permuted  bool              // rows of attn_q and attn_k are interleaved within heads
}

// Values of expert_gating_func.
const (
	gateSoftmax = 1
	gateSigmoid = 2
)

// field takes one value of config.json from the metadata.
type field struct {
	name   string // in config.json
	key    string // in the metadata, without the architecture's prefix
	kind   fieldKind
	absent any // for an absent key; nil = left out, must = refused
}

type fieldKind uint8

const (
	whole fieldKind = iota // a whole number, or an array of equal ones
	real
	truth
)

type mandatory struct{}

var must = mandatory{}

// common are the fields that every architecture has.
var common = []field{
	{"hidden_size", "embedding_length", whole, must},
	{"max_position_embeddings", "context_length", whole, must},
	{"num_attention_heads", "attention.head_count", whole, must},
	{"num_experts_per_tok", "expert_used_count", whole, must},
	{"rms_norm_eps", "attention.layer_norm_rms_epsilon", real, must},
	{"rope_theta", "rope.freq_base", real, 10000},
}

// groupedHeads are the fields of grouped-query attention with equal key and value heads.
var groupedHeads = []field{
	{"num_key_value_heads", "attention.head_count_kv", whole, nil},
	{"head_dim", "attention.key_length", whole, nil},
}

// bookkeeping are keys of any architecture that say nothing about the maths.
var bookkeeping = []string{"block_count", "vocab_size", "nextn_predict_layers", "attention.value_length", "attention.causal"}

// sigmoidGroups are the fields of a sigmoid router over groups with shared experts.
var sigmoidGroups = []field{
	{"intermediate_size", "feed_forward_length", whole, must},
	{"moe_intermediate_size", "expert_feed_forward_length", whole, must},
	{"n_routed_experts", "expert_count", whole, must},
	{"n_shared_experts", "expert_shared_count", whole, 0},
	{"n_group", "expert_group_count", whole, 1},
	{"topk_group", "expert_group_used_count", whole, 1},
	{"norm_topk_prob", "expert_weights_norm", truth, false},
	{"routed_scaling_factor", "expert_weights_scale", real, 1},
	{"first_k_dense_replace", "leading_dense_block_count", whole, 0},
}

// blockSparse are the tensor names of Mixtral and its kin.
var blockSparse = map[string]string{
	"ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate_exps": "block_sparse_moe.experts.%d.w1",
	"ffn_up_exps": "block_sparse_moe.experts.%d.w3", "ffn_down_exps": "block_sparse_moe.experts.%d.w2",
}

// families are the architectures by llama.cpp's name.
var families = map[string]*family{
	"glm4moe": {
		model: "glm4_moe", fields: slices.Concat(groupedHeads, sigmoidGroups), gating: gateSigmoid, ungated: true,
		derive: func(d *reader, c map[string]any) {
			d.partialRotation(c)
			c["use_qk_norm"] = d.hasTensor("attn_q_norm.weight")
			c["attention_bias"] = d.hasTensor("attn_q.bias")
		},
	},
	"dots1": {
		model: "dots1", fields: slices.Concat(groupedHeads, sigmoidGroups), gating: gateSigmoid,
		derive: func(d *reader, c map[string]any) { d.wholeRotation(c); d.plainProjections() },
	},
	"qwen3moe": {
		model: "qwen3_moe",
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "feed_forward_length", whole, nil},
			{"moe_intermediate_size", "expert_feed_forward_length", whole, must},
			{"num_experts", "expert_count", whole, must},
			{"norm_topk_prob", "expert_weights_norm", truth, true}, // llama.cpp always normalises
		}),
		derive: func(d *reader, c map[string]any) { d.wholeRotation(c); d.plainProjections() },
	},
	"olmoe": {
		model: "olmoe",
		fields: slices.Concat(groupedHeads[:1], []field{
			{"intermediate_size", "feed_forward_length", whole, must},
			{"num_experts", "expert_count", whole, must},
			{"clip_qkv", "attention.clamp_kqv", real, nil},
		}),
		constants: map[string]any{"norm_topk_prob": false}, // llama.cpp never normalises
		ignored:   []string{"attention.key_length"},
		derive:    func(d *reader, c map[string]any) { d.wholeRotation(c); d.plainProjections() },
	},
	"llama": {
		model: "mixtral", permuted: true, names: blockSparse,
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "feed_forward_length", whole, must},
			{"num_local_experts", "expert_count", whole, must},
		}),
		derive: func(d *reader, c map[string]any) { d.wholeRotation(c); d.plainProjections() },
	},
	"minimax-m2": {
		model: "minimax_m2", gating: gateSigmoid,
		names: with(blockSparse, "exp_probs_b", "block_sparse_moe.e_score_correction_bias"),
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "expert_feed_forward_length", whole, must},
			{"num_local_experts", "expert_count", whole, must},
			{"rotary_dim", "rope.dimension_count", whole, must},
		}),
		ignored: []string{"feed_forward_length"},
		derive:  func(d *reader, c map[string]any) { d.plainProjections() },
	},
	"qwen2moe": {
		model: "qwen2_moe",
		names: map[string]string{
			"ffn_gate_inp_shexp": "mlp.shared_expert_gate", "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
			"ffn_up_shexp": "mlp.shared_expert.up_proj", "ffn_down_shexp": "mlp.shared_expert.down_proj",
		},
		fields: slices.Concat(groupedHeads[:1], []field{
			{"intermediate_size", "feed_forward_length", whole, nil},
			{"moe_intermediate_size", "expert_feed_forward_length", whole, must},
			{"shared_expert_intermediate_size", "expert_shared_feed_forward_length", whole, must},
			{"num_experts", "expert_count", whole, must},
		}),
		constants: map[string]any{"norm_topk_prob": false}, // llama.cpp never normalises
		ignored:   []string{"attention.key_length"},
		derive: func(d *reader, c map[string]any) {
			d.wholeRotation(c)
			c["qkv_bias"] = d.hasTensor("attn_q.bias")
		},
	},
	"ernie4_5-moe": {
		model: "ernie4_5_moe", names: map[string]string{"exp_probs_b": "mlp.moe_statics.e_score_correction_bias"},
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "feed_forward_length", whole, must},
			{"moe_intermediate_size", "expert_feed_forward_length", whole, must},
			{"moe_num_experts", "expert_count", whole, must},
			{"moe_k", "expert_used_count", whole, must},
			{"moe_num_shared_experts", "expert_shared_count", whole, 0},
			{"moe_layer_start_index", "leading_dense_block_count", whole, 0},
			{"moe_layer_interval", "interleave_moe_layer_step", whole, 1},
		}),
		constants: map[string]any{"num_experts_per_tok": nil}, // spelled moe_k
		ignored:   []string{"expert_shared_feed_forward_length"},
		derive:    func(d *reader, c map[string]any) { d.wholeRotation(c); d.plainProjections() },
	},
	"granitemoe": {
		model: "granitemoe", permuted: true, names: map[string]string{"ffn_gate_inp": "block_sparse_moe.router.layer"},
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "feed_forward_length", whole, must},
			{"num_local_experts", "expert_count", whole, must},
			{"logits_scaling", "logit_scale", real, must},
			{"residual_multiplier", "residual_scale", real, 1},
			{"embedding_multiplier", "embedding_scale", real, 1},
			{"attention_multiplier", "attention.scale", real, must},
		}),
		derive: func(d *reader, c map[string]any) { d.wholeRotation(c); d.plainProjections() },
	},
	"hunyuan-moe": {
		model: "hunyuan_v1_moe",
		names: map[string]string{
			"ffn_gate_inp": "mlp.gate.wg", "attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm",
			"ffn_gate_shexp": "mlp.shared_mlp.gate_proj", "ffn_up_shexp": "mlp.shared_mlp.up_proj", "ffn_down_shexp": "mlp.shared_mlp.down_proj",
		},
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "expert_shared_feed_forward_length", whole, must},
			{"moe_intermediate_size", "expert_feed_forward_length", whole, must},
			{"num_experts", "expert_count", whole, must},
			{"moe_topk", "expert_used_count", whole, must},
			{"num_shared_expert", "expert_shared_count", whole, 1},
		}),
		ignored: []string{"feed_forward_length"},
		derive:  func(d *reader, c map[string]any) { d.wholeRotation(c); d.plainProjections() },
	},
	"gpt-oss": {
		model: "gpt_oss",
		names: map[string]string{"ffn_gate_inp": "mlp.router", "attn_sinks": "self_attn.sinks"},
		fields: slices.Concat(groupedHeads, []field{
			{"intermediate_size", "expert_feed_forward_length", whole, must},
			{"num_local_experts", "expert_count", whole, must},
			{"sliding_window", "attention.sliding_window", whole, must},
		}),
		constants: map[string]any{"attention_bias": true},
		ignored:   []string{"feed_forward_length"},
		derive: func(d *reader, c map[string]any) {
			d.wholeRotation(c)
			if yarn, ok := c["rope_scaling"].(map[string]any); ok {
				yarn["truncate"] = false // the architecture's own; files do not say
			}
		},
	},
	"deepseek2": {fields: sigmoidGroups, names: latentNames, ignored: latentKeys, ownGate: true, derive: func(d *reader, c map[string]any) {
		d.latent(c)
		switch gating, _ := d.integer("expert_gating_func"); gating {
		case 0, gateSoftmax:
			c["model_type"], c["topk_method"] = "deepseek_v2", "greedy"
			if groups, ok := c["n_group"].(int64); ok && groups > 1 {
				c["topk_method"] = "group_limited_greedy"
			}
		case gateSigmoid:
			c["model_type"] = "deepseek_v3"
		default:
			d.refuse("expert_gating_func", "%d is not supported in this architecture", gating)
		}
	}},
	"deepseek32": {model: "deepseek_v32", fields: slices.Concat(sigmoidGroups, indexer), names: latentNames, ignored: latentKeys, gating: gateSigmoid, ungated: true,
		derive: func(d *reader, c map[string]any) { d.latent(c) }},
	"glm-dsa": {model: "glm_moe_dsa", fields: slices.Concat(sigmoidGroups, indexer), names: latentNames, ignored: latentKeys, gating: gateSigmoid, ungated: true,
		derive: func(d *reader, c map[string]any) {
			d.latent(c)
			const key = "attention.indexer.types"
			d.used[d.prefix+key] = true
			full, err := d.file.Integers(d.prefix + key)
			d.keep(err)
			var types []string
			for _, is := range full {
				types = append(types, map[bool]string{true: "full", false: "shared"}[is != 0])
			}
			if layers, ok := c["num_hidden_layers"].(int64); ok && int64(len(types)) > layers {
				types = types[:layers] // those behind belong to layers that draft
			}
			if types != nil {
				c["indexer_types"] = types
			}
		}},
}

// latentNames are the tensor names of latent attention and its indexer.
var latentNames = map[string]string{
	"attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
	"attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm", "attn_kv_b": "self_attn.kv_b_proj",
	"attn_k_b": "self_attn." + KeyExpansion, "attn_v_b": "self_attn." + ValueExpansion,
	"indexer.attn_q_b": "self_attn.indexer.wq_b", "indexer.attn_k": "self_attn.indexer.wk", "indexer.k_norm": "self_attn.indexer.k_norm",
	"indexer.proj": "self_attn.indexer.weights_proj",
}

// latentKeys are keys of latent attention that derive reads, or that say the same again.
var latentKeys = []string{"attention.head_count_kv", "attention.key_length", "attention.key_length_mla", "attention.value_length_mla", "rope.scaling.yarn_log_multiplier"}

// indexer are the fields of sparse attention.
var indexer = []field{
	{"index_n_heads", "attention.indexer.head_count", whole, must},
	{"index_head_dim", "attention.indexer.key_length", whole, must},
	{"index_topk", "attention.indexer.top_k", whole, must},
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

// plainProjections refuses biases of an architecture that has none.
func (r *reader) plainProjections() {
	for _, name := range []string{"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"} {
		if r.hasTensor(name) {
			r.keep(&Error{Tensor: "blk.0." + name, Offset: -1, Problem: "this architecture has no such bias"})
		}
	}
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
	d := &Description{Architecture: name, Config: text, family: family}
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
	drafting, _ := r.integer("nextn_predict_layers")
	if drafting < 0 || drafting >= max(all, 1) {
		r.refuse("nextn_predict_layers", "%d of %d layers", drafting, all)
	}
	config["num_hidden_layers"] = all - drafting
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
