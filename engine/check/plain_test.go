package check

// A second forward pass, written plainly in float64 from the formulas and reading config.json by itself, holds the engine
// to options that no stored oracle exercises: windows, clipping, biases, dense layers, expert groups, tied heads, rotary
// scaling, packed weights.

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"covey/engine/model"
)

// plain is a random checkpoint and its forward pass.
type plain struct {
	config  map[string]any
	weights map[string][]float32
	shapes  map[string][]int
	random  *rand.Rand
}

func (p *plain) number(key string, absent float64) float64 {
	if v, ok := p.config[key].(float64); ok {
		return v
	}
	return absent
}

func (p *plain) integer(key string, absent int) int { return int(p.number(key, float64(absent))) }

func (p *plain) flag(key string, absent bool) bool {
	if v, ok := p.config[key].(bool); ok {
		return v
	}
	return absent
}

// tensor makes a random tensor with the given spread around a centre.
func (p *plain) tensor(name string, centre, spread float64, shape ...int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(centre + spread*p.random.NormFloat64())
	}
	p.weights[name], p.shapes[name] = values, shape
}

func (p *plain) linear(module string, rows, cols int, bias bool) {
	p.tensor(module+".weight", 0, 1.5/math.Sqrt(float64(cols)), rows, cols)
	if bias {
		p.tensor(module+".bias", 0, 0.5, rows)
	}
}

// dense says whether a layer has no experts.
func (p *plain) dense(l int) bool {
	switch p.config["model_type"] {
	case "glm4_moe":
		return l < p.integer("first_k_dense_replace", 1)
	case "dots1":
		return l < p.integer("first_k_dense_replace", 0)
	case "ernie4_5_moe":
		last := p.integer("moe_layer_end_index", -1)
		return l < p.integer("moe_layer_start_index", 1) || last >= 0 && l > last || (l+1)%p.integer("moe_layer_interval", 1) != 0
	case "qwen2_moe", "qwen3_moe":
		only, _ := p.config["mlp_only_layers"].([]any)
		return slices.Contains(only, any(float64(l))) || (l+1)%p.integer("decoder_sparse_step", 1) != 0
	}
	return false
}

// dims are the sizes that names speak of.
func (p *plain) dims() (hidden, heads, kv, dim, experts, k, inner int) {
	hidden, heads = p.integer("hidden_size", 0), p.integer("num_attention_heads", 0)
	kv = p.integer("num_key_value_heads", heads)
	dim = p.integer("head_dim", hidden/heads)
	experts = p.integer("n_routed_experts", p.integer("num_experts", p.integer("num_local_experts", p.integer("moe_num_experts", 0))))
	inner = p.integer("moe_intermediate_size", p.integer("intermediate_size", 0))
	return hidden, heads, kv, dim, experts, p.integer("num_experts_per_tok", p.integer("moe_k", 0)), inner
}

// family is what the plain pass knows of an architecture beside its options.
type family struct {
	qkv, out   string // configuration keys of the biases of attention
	always     bool   // of which the first is on without the key
	norm       int    // query and key norms: 0 none, 1 per head, 2 whole
	sparse     bool   // tensors are named as Mixtral's
	correction string // tensor of the correction bias
	shared     string // module of the shared expert
	layerNorm  bool
	pairs      bool
	theta, eps float64
}

var plainFamilies = map[any]family{
	"glm4_moe":     {qkv: "attention_bias", correction: "mlp.gate.e_score_correction_bias", shared: "mlp.shared_experts.", eps: 1e-5},
	"dots1":        {qkv: "attention_bias", out: "attention_bias", norm: 1, correction: "mlp.gate.e_score_correction_bias", shared: "mlp.shared_experts.", eps: 1e-6},
	"qwen3_moe":    {qkv: "attention_bias", out: "attention_bias", norm: 1, eps: 1e-6},
	"qwen2_moe":    {qkv: "qkv_bias", always: true, shared: "mlp.shared_expert.", eps: 1e-6},
	"olmoe":        {qkv: "attention_bias", out: "attention_bias", norm: 2, eps: 1e-5},
	"mixtral":      {sparse: true, theta: 1e6, eps: 1e-5},
	"minimax_m2":   {norm: 2, sparse: true, correction: "block_sparse_moe.e_score_correction_bias", theta: 5e6, eps: 1e-6},
	"ernie4_5_moe": {qkv: "use_bias", out: "use_bias", correction: "mlp.moe_statics.e_score_correction_bias", shared: "mlp.shared_experts.", pairs: true, theta: 5e5, eps: 1e-5},
	"phimoe":       {qkv: "attention_bias", out: "attention_bias", sparse: true, layerNorm: true, theta: 1e6, eps: 1e-5},
}

// newPlain makes the checkpoint of a configuration.
func newPlain(text string) *plain {
	p := &plain{weights: map[string][]float32{}, shapes: map[string][]int{}, random: rand.New(rand.NewPCG(5, 6))}
	if err := json.Unmarshal([]byte(text), &p.config); err != nil {
		panic(err)
	}
	f := plainFamilies[p.config["model_type"]]
	hidden, heads, kv, dim, experts, _, inner := p.dims()
	vocab := p.integer("vocab_size", 0)
	norm := func(name string, n int) {
		p.tensor(name+".weight", 1, 0.1, n)
		if f.layerNorm {
			p.tensor(name+".bias", 0, 0.3, n)
		}
	}
	p.tensor("model.embed_tokens.weight", 0, 1, vocab, hidden)
	norm("model.norm", hidden)
	if !p.flag("tie_word_embeddings", p.config["model_type"] == "ernie4_5_moe") {
		p.linear("lm_head", vocab, hidden, false)
	}
	if p.flag("lm_head_bias", false) || p.flag("use_bias", false) {
		p.tensor("lm_head.bias", 0, 0.5, vocab)
	}
	mlp := func(prefix string, width int, bias bool) {
		p.linear(prefix+f.part("gate_proj"), width, hidden, bias)
		p.linear(prefix+f.part("up_proj"), width, hidden, bias)
		p.linear(prefix+f.part("down_proj"), hidden, width, bias)
	}
	for l := range p.integer("num_hidden_layers", 0) {
		at := fmt.Sprintf("model.layers.%d.", l)
		biased := p.flag("use_bias", false)
		qkv, out := f.qkv != "" && p.flag(f.qkv, f.always), f.out != "" && p.flag(f.out, false)
		norm(at+"input_layernorm", hidden)
		norm(at+"post_attention_layernorm", hidden)
		p.linear(at+"self_attn.q_proj", heads*dim, hidden, qkv)
		p.linear(at+"self_attn.k_proj", kv*dim, hidden, qkv)
		p.linear(at+"self_attn.v_proj", kv*dim, hidden, qkv)
		p.linear(at+"self_attn.o_proj", hidden, heads*dim, out)
		switch {
		case f.norm == 2:
			p.tensor(at+"self_attn.q_norm.weight", 1, 0.1, heads*dim)
			p.tensor(at+"self_attn.k_norm.weight", 1, 0.1, kv*dim)
		case f.norm == 1 || p.flag("use_qk_norm", false):
			p.tensor(at+"self_attn.q_norm.weight", 1, 0.1, dim)
			p.tensor(at+"self_attn.k_norm.weight", 1, 0.1, dim)
		}
		if p.dense(l) {
			mlp(at+"mlp.", p.integer("intermediate_size", 0), biased)
			continue
		}
		block := at + f.block()
		p.linear(block+"gate", experts, hidden, false)
		for e := range experts {
			mlp(fmt.Sprintf("%sexperts.%d.", block, e), inner, false)
		}
		if f.correction != "" {
			p.tensor(at+f.correction, -0.1, 0.1, experts)
		}
		if width := p.sharedWidth(inner); width > 0 {
			mlp(at+f.shared, width, biased)
		}
		if p.config["model_type"] == "qwen2_moe" {
			p.linear(at+"mlp.shared_expert_gate", 1, hidden, false)
		}
	}
	return p
}

// sharedWidth is the width of the shared expert; 0 = none.
func (p *plain) sharedWidth(inner int) int {
	switch p.config["model_type"] {
	case "glm4_moe":
		return inner * p.integer("n_shared_experts", 1)
	case "dots1":
		return inner * p.integer("n_shared_experts", 0)
	case "ernie4_5_moe":
		return inner * p.integer("moe_num_shared_experts", 2)
	case "qwen2_moe":
		return p.integer("shared_expert_intermediate_size", 0)
	}
	return 0
}

// block is the module of a layer's experts.
func (f family) block() string {
	if f.sparse {
		return "block_sparse_moe."
	}
	return "mlp."
}

// part is a matrix of a feed-forward block in the family's spelling.
func (f family) part(name string) string {
	if f.sparse {
		return map[string]string{"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}[name]
	}
	return name
}

// save writes the checkpoint. Matrices that packed picks are rounded to bits and stored in groups of the given size.
func (p *plain) save(t *testing.T, bits, group int) string {
	t.Helper()
	config := maps.Clone(p.config)
	if bits > 0 {
		config["quantization_config"] = json.RawMessage(fmt.Sprintf(`{"quant_method":"compressed-tensors","format":"pack-quantized","ignore":["re:.*mlp\\.gate$","lm_head"],
			"config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":%d,"type":"int","symmetric":true,"strategy":"group","group_size":%d}}}}`, bits, group))
	}
	header, data := map[string]any{}, []byte(nil)
	add := func(name, kind string, shape []int, bytes []byte) {
		header[name] = map[string]any{"dtype": kind, "shape": shape, "data_offsets": []int{len(data), len(data) + len(bytes)}}
		data = append(data, bytes...)
	}
	for _, name := range slices.Sorted(maps.Keys(p.weights)) {
		values, shape := p.weights[name], p.shapes[name]
		module, isMatrix := name[:max(0, len(name)-len(".weight"))], len(shape) == 2
		if bits > 0 && isMatrix && filepath.Ext(module) != ".gate" && module != "lm_head" && module != "model.embed_tokens" {
			codes, scales := quantise(values, shape[1], bits, group)
			add(module+".weight_packed", "I32", []int{shape[0], (shape[1]*bits + 31) / 32}, codes)
			add(module+".weight_scale", "F32", []int{shape[0], (shape[1] + group - 1) / group}, scales)
			add(module+".weight_shape", "I32", []int{2}, binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(shape[0])), uint32(shape[1])))
			continue
		}
		var raw []byte
		for _, v := range values {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		}
		add(name, "F32", shape, raw)
	}
	dir := t.TempDir()
	head, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), data...)
	for name, content := range map[string][]byte{"config.json": text, "model.safetensors": file} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// quantise rounds values in place to codes times scales, and returns both as stored: rows padded to whole words.
func quantise(values []float32, cols, bits, group int) (codes, scales []byte) {
	half := 1 << (bits - 1)
	for row := 0; row < len(values); row += cols {
		var word uint32
		for g := 0; g < cols; g += group {
			part := values[row+g : row+min(g+group, cols)]
			peak := float32(0)
			for _, v := range part {
				peak = max(peak, float32(math.Abs(float64(v))))
			}
			scale := peak / float32(half-1)
			scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(scale))
			for i, v := range part {
				q := int(math.RoundToEven(float64(v / scale)))
				part[i] = float32(q) * scale
				at := (g + i) * bits % 32
				word |= uint32(q+half) << at
				if at+bits == 32 || g+i == cols-1 {
					codes = binary.LittleEndian.AppendUint32(codes, word)
					word = 0
				}
			}
		}
	}
	return codes, scales
}

// fuse moves the experts of each layer into one tensor of gate and up rows and one of down rows.
func (p *plain) fuse() {
	f := plainFamilies[p.config["model_type"]]
	hidden, _, _, _, experts, _, inner := p.dims()
	for l := range p.integer("num_hidden_layers", 0) {
		at := fmt.Sprintf("model.layers.%d.%sexperts.", l, f.block())
		var both, down []float32
		for e := range experts {
			take := func(name string) []float32 {
				key := fmt.Sprintf("%s%d.%s.weight", at, e, f.part(name))
				values := p.weights[key]
				delete(p.weights, key)
				return values
			}
			both = append(append(both, take("gate_proj")...), take("up_proj")...)
			down = append(down, take("down_proj")...)
		}
		if both != nil {
			p.weights[at+"gate_up_proj"], p.shapes[at+"gate_up_proj"] = both, []int{experts, 2 * inner, hidden}
			p.weights[at+"down_proj"], p.shapes[at+"down_proj"] = down, []int{experts, hidden, inner}
		}
	}
}

func TestExpertsInStacksAreThoseOfTheirOwnTensors(t *testing.T) {
	const sizes = `"vocab_size":96,"hidden_size":48,"num_hidden_layers":3,"max_position_embeddings":256,"num_attention_heads":6,"num_key_value_heads":2,"num_experts_per_tok":3,"head_dim":16,`
	for _, config := range []string{
		`{"model_type":"qwen3_moe",` + sizes + `"mlp_only_layers":[0],"intermediate_size":80,"moe_intermediate_size":24,"num_experts":12}`,
		`{"model_type":"mixtral",` + sizes + `"intermediate_size":24,"num_local_experts":12}`,
		`{"model_type":"glm4_moe",` + sizes + `"intermediate_size":80,"moe_intermediate_size":24,"n_routed_experts":12}`,
	} {
		p := newPlain(config)
		var rows [2][][]float32
		for i := range rows {
			if i == 1 {
				p.fuse()
			}
			m := load(t, p.save(t, 0, 0), model.Options{KV: "f32", MaxRows: 7})
			d := newDriver(m, 7, true, func(got row) error {
				rows[i] = append(rows[i], slices.Clone(got.logits))
				return nil
			})
			if _, err := d.run(t.Context(), [][]int32{{5, 1, 90, 7, 7, 33, 2, 14, 60}}, 0); err != nil {
				t.Fatal(err)
			}
		}
		for i, row := range rows[0] {
			if !slices.Equal(row, rows[1][i]) {
				t.Errorf("%s: row %d differs", config, i)
			}
		}
	}
}

// longrope are rotary parameters for heads of 8 that are stretched from original tokens on.
func longrope(original, more string) string {
	return `,"rope_parameters":{"rope_type":"longrope","original_max_position_embeddings":` + original + `,"short_factor":[1,1.1,1.2,1.5],"long_factor":[1.5,2,3,4]` + more + `}`
}

// A sequence that outgrows original_max_position_embeddings while it is generated is computed again with the other
// frequencies: each token is the one that the whole text up to it gives.
func TestASequenceThatGrowsLongIsThatOfItsWholeText(t *testing.T) {
	p := newPlain(`{"model_type":"phimoe","vocab_size":96,"hidden_size":48,"num_hidden_layers":3,"max_position_embeddings":256,"num_attention_heads":6,"num_key_value_heads":2,"num_experts_per_tok":2,
		"intermediate_size":24,"num_local_experts":12` + longrope("32", `,"short_mscale":1.1,"long_mscale":1.3`) + `}`)
	const prompt, n = 27, 12
	m := load(t, p.save(t, 0, 0), model.Options{KV: "f32", Activations: "f32", MaxRows: 7})
	var tokens []int32
	for range prompt {
		tokens = append(tokens, int32(p.random.IntN(96)))
	}
	rows := map[int][]float32{}
	d := newDriver(m, 7, false, func(got row) error {
		if rows[got.position] != nil {
			t.Errorf("position %d was reported twice", got.position)
		}
		rows[got.position] = slices.Clone(got.logits)
		return nil
	})
	answers, err := d.run(t.Context(), [][]int32{tokens}, n)
	if err != nil {
		t.Fatal(err)
	}
	tokens = append(tokens, answers[0]...)
	for i := range n {
		all, _ := p.forward(tokens[:prompt+i])
		want := all[prompt+i-1]
		for j, z := range want {
			if got := float64(rows[prompt+i-1][j]); math.Abs(got-z) > relative*slices.Max(want) {
				t.Fatalf("after %d tokens logit %d is %v, want %v", prompt+i, j, got, z)
			}
		}
	}
}

func TestOptionsAgreeWithAPlainForwardPass(t *testing.T) {
	const (
		sizes = `"vocab_size":96,"hidden_size":48,"num_hidden_layers":3,"max_position_embeddings":256,"num_attention_heads":6,"num_key_value_heads":2,"num_experts_per_tok":3,`
		glm   = `{"model_type":"glm4_moe",` + sizes + `"head_dim":16,"intermediate_size":80,"moe_intermediate_size":24,"n_routed_experts":12`
		qwen  = `{"model_type":"qwen3_moe",` + sizes + `"head_dim":16,"intermediate_size":80,"moe_intermediate_size":24,"num_experts":12`
		olmo  = `{"model_type":"olmoe",` + sizes + `"intermediate_size":24,"num_experts":12`
		qwen2 = `{"model_type":"qwen2_moe",` + sizes + `"intermediate_size":80,"moe_intermediate_size":24,"shared_expert_intermediate_size":40,"num_experts":12`
		mix   = `{"model_type":"mixtral",` + sizes + `"head_dim":16,"intermediate_size":24,"num_local_experts":12`
		mini  = `{"model_type":"minimax_m2",` + sizes + `"head_dim":16,"intermediate_size":24,"num_local_experts":12`
		dots  = `{"model_type":"dots1",` + sizes + `"head_dim":16,"intermediate_size":80,"moe_intermediate_size":24,"n_routed_experts":12`
	)
	ernie := `{"model_type":"ernie4_5_moe",` + strings.Replace(sizes, "num_experts_per_tok", "moe_k", 1) + `"intermediate_size":80,"moe_intermediate_size":24,"moe_num_experts":12`
	phi := `{"model_type":"phimoe",` + strings.Replace(sizes, `"num_experts_per_tok":3`, `"num_experts_per_tok":2`, 1) + `"intermediate_size":24,"num_local_experts":12`
	for _, test := range []struct {
		name        string
		config      string
		bits, group int
	}{
		{"glm4_moe defaults", glm + `}`, 0, 0},
		{"attention biases, query and key norms, two shared experts", glm + `,"attention_bias":true,"use_qk_norm":true,"n_shared_experts":2,"routed_scaling_factor":2.5}`, 0, 0},
		{"expert groups, weights as they are", glm + `,"n_group":4,"topk_group":2,"norm_topk_prob":false,"routed_scaling_factor":1.25}`, 0, 0},
		{"expert groups of two, no shared expert, no dense layer", glm + `,"n_group":6,"topk_group":3,"first_k_dense_replace":0,"n_shared_experts":0}`, 0, 0},
		{"tied head, whole heads rotated", glm + `,"tie_word_embeddings":true,"partial_rotary_factor":1.0,"rms_norm_eps":0.001}`, 0, 0},
		{"linear rotary scaling, three quarters of a head rotated", glm + `,"rope_parameters":{"rope_type":"linear","factor":4.0,"rope_theta":5000,"partial_rotary_factor":0.75}}`, 0, 0},
		{"dense first layers, int4", glm + `,"first_k_dense_replace":2}`, 4, 32},
		{"attention biases, int8", glm + `,"attention_bias":true}`, 8, 64},
		{"qwen3_moe defaults", qwen + `}`, 0, 0},
		{"normalised weights, attention biases, tied head", qwen + `,"norm_topk_prob":true,"attention_bias":true,"tie_word_embeddings":true}`, 0, 0},
		{"qwen3_moe window", qwen + `,"use_sliding_window":true,"sliding_window":5}`, 0, 0},
		{"dense layers at intervals", qwen + `,"decoder_sparse_step":2}`, 0, 0},
		{"dense layers by list", qwen + `,"mlp_only_layers":[1],"rope_theta":1000000.0}`, 0, 0},
		{"yarn rotary scaling", qwen + `,"rope_parameters":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":64}}`, 0, 0},
		{"llama3 rotary scaling", qwen + `,"rope_parameters":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":32,"rope_theta":500.0}}`, 0, 0},
		{"qwen3_moe int4", qwen + `}`, 4, 128},
		{"olmoe defaults", olmo + `}`, 0, 0},
		{"clipped queries, keys and values", olmo + `,"clip_qkv":0.7}`, 0, 0},
		{"clipping with attention biases", olmo + `,"clip_qkv":1.5,"attention_bias":true,"norm_topk_prob":true,"rms_norm_eps":0.01}`, 0, 0},
		{"olmoe int8", olmo + `}`, 8, 32},
		{"qwen2_moe defaults", qwen2 + `}`, 0, 0},
		{"qwen2_moe window on every second layer", qwen2 + `,"use_sliding_window":true,"sliding_window":5,"max_window_layers":2,"norm_topk_prob":true}`, 0, 0},
		{"qwen2_moe window by list, dense layer, no biases", qwen2 + `,"sliding_window":6,"layer_types":["full_attention","sliding_attention","sliding_attention"],"mlp_only_layers":[0],"qkv_bias":false}`, 0, 0},
		{"qwen2_moe linear rotary scaling, dense layers, tied head", qwen2 + `,"rope_parameters":{"rope_type":"linear","factor":4.0},"decoder_sparse_step":3,"tie_word_embeddings":true}`, 0, 0},
		{"mixtral window", mix + `,"sliding_window":7}`, 0, 0},
		{"mixtral tied head, int4", mix + `,"sliding_window":64,"tie_word_embeddings":true}`, 4, 32},
		{"minimax_m2 rotary_dim", mini + `,"rotary_dim":8}`, 0, 0},
		{"minimax_m2 whole heads rotated", mini + `}`, 0, 0},
		{"dots1 window from a layer on, attention biases, plain weights", dots + `,"n_shared_experts":2,"sliding_window":5,"max_window_layers":1,"attention_bias":true}`, 0, 0},
		{"dots1 expert groups", dots + `,"n_shared_experts":1,"n_group":4,"topk_group":2,"norm_topk_prob":true,"first_k_dense_replace":1,"routed_scaling_factor":1.5}`, 0, 0},
		{"ernie4_5_moe tied head", ernie + `}`, 0, 0},
		{"ernie4_5_moe biases, experts at intervals", ernie + `,"use_bias":true,"moe_layer_interval":2,"moe_layer_start_index":0}`, 0, 0},
		{"ernie4_5_moe head bias, last dense layer, least sum of weights", ernie + `,"use_bias":true,"tie_word_embeddings":false,"moe_layer_end_index":1,"moe_num_shared_experts":0,"moe_norm_min":0.9}`, 0, 0},
		{"phimoe defaults", phi + `}`, 0, 0},
		{"longrope, a short sequence", phi + longrope("64", `,"short_mscale":1.1,"long_mscale":1.3`) + `}`, 0, 0},
		{"longrope, a long sequence", phi + longrope("32", ``) + `}`, 0, 0},
		{"phimoe attention and head biases, window, wide sparse mixer", phi + `,"attention_bias":true,"lm_head_bias":true,"sliding_window":6,"router_jitter_noise":0.2}`, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPlain(test.config)
			dir := p.save(t, test.bits, test.group)
			var tokens []int32
			for range 40 {
				tokens = append(tokens, int32(p.random.IntN(96)))
			}
			want, experts := p.forward(tokens)
			largest, diff := 0.0, 0.0
			_, _, _, _, _, k, _ := p.dims()
			m := load(t, dir, model.Options{KV: "f32", Activations: "f32", MaxRows: 7})
			d := newDriver(m, 7, true, func(got row) error {
				for i, z := range want[got.position] {
					largest, diff = max(largest, math.Abs(z)), max(diff, math.Abs(z-float64(got.logits[i])))
				}
				for l, ids := range experts[got.position] {
					for _, id := range ids {
						if !slices.Contains(got.ids[l*k:(l+1)*k], uint16(id)) {
							t.Errorf("row %d, MoE layer %d: experts %v, want %v", got.position, l, got.ids[l*k:(l+1)*k], ids)
						}
					}
				}
				return nil
			})
			if _, err := d.run(t.Context(), [][]int32{tokens}, 0); err != nil {
				t.Fatal(err)
			}
			t.Logf("%.1e of %.1f, %d bits: %s", diff, largest, test.bits, test.config)
			if !(diff <= relative*largest) {
				t.Errorf("logits differ by %v, the largest is %v", diff, largest)
			}
		})
	}
}
