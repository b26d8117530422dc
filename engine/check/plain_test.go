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
	case "qwen3_moe":
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
	experts = p.integer("n_routed_experts", p.integer("num_experts", 0))
	inner = p.integer("moe_intermediate_size", p.integer("intermediate_size", 0))
	return hidden, heads, kv, dim, experts, p.integer("num_experts_per_tok", 0), inner
}

// newPlain makes the checkpoint of a configuration.
func newPlain(text string) *plain {
	p := &plain{weights: map[string][]float32{}, shapes: map[string][]int{}, random: rand.New(rand.NewPCG(5, 6))}
	if err := json.Unmarshal([]byte(text), &p.config); err != nil {
		panic(err)
	}
	arch := p.config["model_type"]
	hidden, heads, kv, dim, experts, _, inner := p.dims()
	vocab := p.integer("vocab_size", 0)
	p.tensor("model.embed_tokens.weight", 0, 1, vocab, hidden)
	p.tensor("model.norm.weight", 1, 0.1, hidden)
	if !p.flag("tie_word_embeddings", false) {
		p.linear("lm_head", vocab, hidden, false)
	}
	mlp := func(prefix string, width int) {
		p.linear(prefix+"gate_proj", width, hidden, false)
		p.linear(prefix+"up_proj", width, hidden, false)
		p.linear(prefix+"down_proj", hidden, width, false)
	}
	for l := range p.integer("num_hidden_layers", 0) {
		at := fmt.Sprintf("model.layers.%d.", l)
		bias := p.flag("attention_bias", false)
		p.tensor(at+"input_layernorm.weight", 1, 0.1, hidden)
		p.tensor(at+"post_attention_layernorm.weight", 1, 0.1, hidden)
		p.linear(at+"self_attn.q_proj", heads*dim, hidden, bias)
		p.linear(at+"self_attn.k_proj", kv*dim, hidden, bias)
		p.linear(at+"self_attn.v_proj", kv*dim, hidden, bias)
		p.linear(at+"self_attn.o_proj", hidden, heads*dim, bias && arch != "glm4_moe")
		switch {
		case arch == "olmoe":
			p.tensor(at+"self_attn.q_norm.weight", 1, 0.1, heads*dim)
			p.tensor(at+"self_attn.k_norm.weight", 1, 0.1, kv*dim)
		case arch == "qwen3_moe" || p.flag("use_qk_norm", false):
			p.tensor(at+"self_attn.q_norm.weight", 1, 0.1, dim)
			p.tensor(at+"self_attn.k_norm.weight", 1, 0.1, dim)
		}
		if p.dense(l) {
			mlp(at+"mlp.", p.integer("intermediate_size", 0))
			continue
		}
		p.linear(at+"mlp.gate", experts, hidden, false)
		for e := range experts {
			mlp(fmt.Sprintf("%smlp.experts.%d.", at, e), inner)
		}
		if arch == "glm4_moe" {
			p.tensor(at+"mlp.gate.e_score_correction_bias", -0.3, 0.3, experts)
			if shared := p.integer("n_shared_experts", 1); shared > 0 {
				mlp(at+"mlp.shared_experts.", inner*shared)
			}
		}
	}
	return p
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

func (p *plain) times(x []float64, module string) []float64 {
	w := p.weights[module+".weight"]
	out := make([]float64, p.shapes[module+".weight"][0])
	for r := range out {
		for c, v := range x {
			out[r] += v * float64(w[r*len(x)+c])
		}
		if b := p.weights[module+".bias"]; b != nil {
			out[r] += float64(b[r])
		}
	}
	return out
}

func (p *plain) rms(x []float64, name string, eps float64) []float64 {
	w, sum := p.weights[name], 0.0
	for _, v := range x {
		sum += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(sum/float64(len(x))+eps) * float64(w[i])
	}
	return out
}

func (p *plain) mlp(x []float64, prefix string) []float64 {
	gate, up := p.times(x, prefix+"gate_proj"), p.times(x, prefix+"up_proj")
	for i, g := range gate {
		gate[i] = g / (1 + math.Exp(-g)) * up[i]
	}
	return p.times(gate, prefix+"down_proj")
}

// rope gives the inverse frequencies and the factor on cosines and sines.
func (p *plain) rope(dim int) ([]float64, float64) {
	r, _ := p.config["rope_parameters"].(map[string]any)
	get := func(key string, absent float64) float64 {
		if v, ok := r[key].(float64); ok {
			return v
		}
		return absent
	}
	partial := 1.0
	if p.config["model_type"] == "glm4_moe" {
		partial = get("partial_rotary_factor", p.number("partial_rotary_factor", 0.5))
	}
	rot, theta, factor := int(float64(dim)*partial), get("rope_theta", p.number("rope_theta", 1e4)), get("factor", 1)
	orig := get("original_max_position_embeddings", p.number("max_position_embeddings", 0))
	inv := make([]float64, rot/2)
	kind, _ := r["rope_type"].(string)
	attention := 1.0
	cut := func(rotations float64) float64 {
		return float64(rot) * math.Log(orig/(2*math.Pi*rotations)) / (2 * math.Log(theta))
	}
	for j := range inv {
		base := math.Pow(theta, 2*float64(j)/float64(rot))
		inv[j] = 1 / base
		switch kind {
		case "linear":
			inv[j] /= factor
		case "llama3":
			low, high := get("low_freq_factor", 1), get("high_freq_factor", 4)
			switch wave := 2 * math.Pi * base; {
			case wave > orig/low:
				inv[j] /= factor
			case wave >= orig/high:
				m := (orig/wave - low) / (high - low)
				inv[j] = (1-m)*inv[j]/factor + m*inv[j]
			}
		case "yarn":
			lo, hi := math.Floor(cut(32)), math.Ceil(cut(1))
			lo, hi = math.Max(lo, 0), math.Min(hi, float64(rot-1))
			if lo == hi {
				hi += 0.001
			}
			ramp := math.Min(math.Max((float64(j)-lo)/(hi-lo), 0), 1)
			inv[j] = ramp/(factor*base) + (1-ramp)/base
			attention = 0.1*math.Log(factor) + 1
		}
	}
	return inv, attention
}

// rotate turns each head of x by the angles of position at.
func rotate(x []float64, dim, at int, inv []float64, factor float64) {
	n := len(inv)
	for h := 0; h < len(x); h += dim {
		for j, f := range inv {
			c, s := factor*math.Cos(float64(at)*f), factor*math.Sin(float64(at)*f)
			a, b := x[h+j], x[h+j+n]
			x[h+j], x[h+j+n] = a*c-b*s, b*c+a*s
		}
	}
}

// forward computes the logits of every row and, for every row and MoE layer, the set of experts.
func (p *plain) forward(tokens []int32) (logits [][]float64, chosen [][][]int) {
	arch := p.config["model_type"]
	hidden, heads, kv, dim, _, _, _ := p.dims()
	eps := p.number("rms_norm_eps", map[any]float64{"qwen3_moe": 1e-6}[arch])
	if eps == 0 {
		eps = 1e-5
	}
	inv, factor := p.rope(dim)
	window := 1 << 30
	if p.flag("use_sliding_window", false) {
		window = p.integer("sliding_window", 0)
	}
	clip := p.number("clip_qkv", math.Inf(1))
	x := make([][]float64, len(tokens))
	for t, token := range tokens {
		for i := range hidden {
			x[t] = append(x[t], float64(p.weights["model.embed_tokens.weight"][int(token)*hidden+i]))
		}
	}
	chosen = make([][][]int, len(tokens))
	for l := range p.integer("num_hidden_layers", 0) {
		at := fmt.Sprintf("model.layers.%d.", l)
		keys, values := make([][]float64, len(tokens)), make([][]float64, len(tokens))
		for t := range tokens {
			h := p.rms(x[t], at+"input_layernorm.weight", eps)
			q, k, v := p.times(h, at+"self_attn.q_proj"), p.times(h, at+"self_attn.k_proj"), p.times(h, at+"self_attn.v_proj")
			switch w := p.weights[at+"self_attn.q_norm.weight"]; {
			case w == nil:
			case len(w) == dim:
				for i := 0; i < len(q); i += dim {
					copy(q[i:], p.rms(q[i:i+dim], at+"self_attn.q_norm.weight", eps))
				}
				for i := 0; i < len(k); i += dim {
					copy(k[i:], p.rms(k[i:i+dim], at+"self_attn.k_norm.weight", eps))
				}
			default:
				q, k = p.rms(q, at+"self_attn.q_norm.weight", eps), p.rms(k, at+"self_attn.k_norm.weight", eps)
			}
			for _, part := range [][]float64{q, k, v} {
				for i := range part {
					part[i] = math.Min(math.Max(part[i], -clip), clip)
				}
			}
			rotate(q, dim, t, inv, factor)
			rotate(k, dim, t, inv, factor)
			keys[t], values[t] = k, v
			o := make([]float64, heads*dim)
			for head := range heads {
				from := head / (heads / kv) * dim
				scores, total := make([]float64, t+1), 0.0
				for u := max(0, t-window+1); u <= t; u++ {
					for i := range dim {
						scores[u] += q[head*dim+i] * keys[u][from+i]
					}
					scores[u] = math.Exp(scores[u] / math.Sqrt(float64(dim)))
					total += scores[u]
				}
				for u, s := range scores {
					for i := range dim {
						o[head*dim+i] += s / total * values[u][from+i]
					}
				}
			}
			for i, v := range p.times(o, at+"self_attn.o_proj") {
				x[t][i] += v
			}
			h = p.rms(x[t], at+"post_attention_layernorm.weight", eps)
			var y []float64
			if p.dense(l) {
				y = p.mlp(h, at+"mlp.")
			} else {
				var ids []int
				y, ids = p.moe(h, at+"mlp.")
				chosen[t] = append(chosen[t], ids)
			}
			for i, v := range y {
				x[t][i] += v
			}
		}
	}
	head := "lm_head"
	if p.flag("tie_word_embeddings", false) {
		head = "model.embed_tokens"
	}
	for t := range tokens {
		logits = append(logits, p.times(p.rms(x[t], "model.norm.weight", eps), head))
	}
	return logits, chosen
}

func (p *plain) moe(h []float64, at string) ([]float64, []int) {
	hidden, _, _, _, experts, k, _ := p.dims()
	scores := p.times(h, at+"gate")
	choice := make([]float64, experts)
	if p.config["model_type"] == "glm4_moe" {
		for e, z := range scores {
			scores[e] = 1 / (1 + math.Exp(-z))
			choice[e] = scores[e] + float64(p.weights[at+"gate.e_score_correction_bias"][e])
		}
		groups := p.integer("n_group", 1)
		size := experts / groups
		best := make([]float64, groups)
		for g := range groups {
			sorted := slices.Clone(choice[g*size : (g+1)*size])
			slices.Sort(sorted)
			slices.Reverse(sorted)
			for _, v := range sorted[:min(2, size)] {
				best[g] += v
			}
		}
		order := descending(best)
		for _, g := range order[p.integer("topk_group", 1):] {
			for e := g * size; e < (g+1)*size; e++ {
				choice[e] = math.Inf(-1)
			}
		}
	} else {
		total := 0.0
		for _, z := range scores {
			total += math.Exp(z)
		}
		for e, z := range scores {
			scores[e] = math.Exp(z) / total
		}
		copy(choice, scores)
	}
	ids := descending(choice)[:k]
	sum, y := 0.0, make([]float64, hidden)
	for _, e := range ids {
		sum += scores[e]
	}
	if !p.flag("norm_topk_prob", p.config["model_type"] == "glm4_moe") {
		sum = 1
	}
	for _, e := range ids {
		for i, v := range p.mlp(h, fmt.Sprintf("%sexperts.%d.", at, e)) {
			y[i] += scores[e] / sum * p.number("routed_scaling_factor", 1) * v
		}
	}
	if p.weights[at+"shared_experts.up_proj.weight"] != nil {
		for i, v := range p.mlp(h, at+"shared_experts.") {
			y[i] += v
		}
	}
	return y, ids
}

// descending orders indices by value, largest first.
func descending(v []float64) []int {
	order := make([]int, len(v))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case v[a] > v[b]:
			return -1
		case v[a] < v[b]:
			return 1
		}
		return 0
	})
	return order
}

func TestOptionsAgreeWithAPlainForwardPass(t *testing.T) {
	const (
		sizes = `"vocab_size":96,"hidden_size":48,"num_hidden_layers":3,"max_position_embeddings":256,"num_attention_heads":6,"num_key_value_heads":2,"num_experts_per_tok":3,`
		glm   = `{"model_type":"glm4_moe",` + sizes + `"head_dim":16,"intermediate_size":80,"moe_intermediate_size":24,"n_routed_experts":12`
		qwen  = `{"model_type":"qwen3_moe",` + sizes + `"head_dim":16,"intermediate_size":80,"moe_intermediate_size":24,"num_experts":12`
		olmo  = `{"model_type":"olmoe",` + sizes + `"intermediate_size":24,"num_experts":12`
	)
	for _, test := range []struct {
		config      string
		bits, group int
	}{
		{glm + `}`, 0, 0},
		{glm + `,"attention_bias":true,"use_qk_norm":true,"n_shared_experts":2,"routed_scaling_factor":2.5}`, 0, 0},
		{glm + `,"n_group":4,"topk_group":2,"norm_topk_prob":false,"routed_scaling_factor":1.25}`, 0, 0},
		{glm + `,"n_group":6,"topk_group":3,"first_k_dense_replace":0,"n_shared_experts":0}`, 0, 0},
		{glm + `,"tie_word_embeddings":true,"partial_rotary_factor":1.0,"rms_norm_eps":0.001}`, 0, 0},
		{glm + `,"rope_parameters":{"rope_type":"linear","factor":4.0,"rope_theta":5000,"partial_rotary_factor":0.75}}`, 0, 0},
		{glm + `,"first_k_dense_replace":2}`, 4, 32},
		{glm + `,"attention_bias":true}`, 8, 64},
		{qwen + `}`, 0, 0},
		{qwen + `,"norm_topk_prob":true,"attention_bias":true,"tie_word_embeddings":true}`, 0, 0},
		{qwen + `,"use_sliding_window":true,"sliding_window":5}`, 0, 0},
		{qwen + `,"decoder_sparse_step":2}`, 0, 0},
		{qwen + `,"mlp_only_layers":[1],"rope_theta":1000000.0}`, 0, 0},
		{qwen + `,"rope_parameters":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":64}}`, 0, 0},
		{qwen + `,"rope_parameters":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":32,"rope_theta":500.0}}`, 0, 0},
		{qwen + `}`, 4, 128},
		{olmo + `}`, 0, 0},
		{olmo + `,"clip_qkv":0.7}`, 0, 0},
		{olmo + `,"clip_qkv":1.5,"attention_bias":true,"norm_topk_prob":true,"rms_norm_eps":0.01}`, 0, 0},
		{olmo + `}`, 8, 32},
	} {
		p := newPlain(test.config)
		dir := p.save(t, test.bits, test.group)
		var tokens []int32
		for range 40 {
			tokens = append(tokens, int32(p.random.IntN(96)))
		}
		want, experts := p.forward(tokens)
		largest, diff := 0.0, 0.0
		k := p.integer("num_experts_per_tok", 0)
		m := load(t, dir, model.Options{KV: "f32", Activations: "f32", MaxRows: 7})
		d := newDriver(m, 7, true, func(got row) error {
			for i, z := range want[got.position] {
				largest, diff = max(largest, math.Abs(z)), max(diff, math.Abs(z-float64(got.logits[i])))
			}
			for l, ids := range experts[got.position] {
				for _, id := range ids {
					if !slices.Contains(got.ids[l*k:(l+1)*k], uint16(id)) {
						t.Errorf("%s: row %d, MoE layer %d: experts %v, want %v", test.config, got.position, l, got.ids[l*k:(l+1)*k], ids)
					}
				}
			}
			return nil
		})
		if _, err := d.run(t.Context(), [][]int32{tokens}, 0); err != nil {
			t.Fatalf("%s: %v", test.config, err)
		}
		t.Logf("%.1e of %.1f, %d bits: %s", diff, largest, test.bits, strings.Replace(test.config, sizes, "", 1))
		if !(diff <= relative*largest) {
			t.Errorf("%s: logits differ by %v, the largest is %v", test.config, diff, largest)
		}
	}
}
