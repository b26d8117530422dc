package check

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

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

// norm is RMS, or a layer norm where the weight has a bias beside it.
func (p *plain) norm(x []float64, name string, eps float64) []float64 {
	w, bias, mean, sum := p.weights[name], p.weights[strings.TrimSuffix(name, ".weight")+".bias"], 0.0, 0.0
	if bias != nil {
		for _, v := range x {
			mean += v / float64(len(x))
		}
	}
	for _, v := range x {
		sum += (v - mean) * (v - mean)
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = (v - mean) / math.Sqrt(sum/float64(len(x))+eps) * float64(w[i])
		if bias != nil {
			out[i] += float64(bias[i])
		}
	}
	return out
}

func (p *plain) mlp(x []float64, prefix string) []float64 {
	f := plainFamilies[p.config["model_type"]]
	gate, up := p.times(x, prefix+f.part("gate_proj")), p.times(x, prefix+f.part("up_proj"))
	for i, g := range gate {
		gate[i] = g / (1 + math.Exp(-g)) * up[i]
	}
	return p.times(gate, prefix+f.part("down_proj"))
}

// rope gives the inverse frequencies and the factor on cosines and sines for a sequence of so many tokens.
func (p *plain) rope(dim, tokens int) ([]float64, float64) {
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
	if p.config["model_type"] == "minimax_m2" {
		partial = p.number("rotary_dim", float64(dim)) / float64(dim)
	}
	usual := plainFamilies[p.config["model_type"]].theta
	if usual == 0 {
		usual = 1e4
	}
	rot, theta, factor := int(float64(dim)*partial), get("rope_theta", p.number("rope_theta", usual)), get("factor", 1)
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
		case "longrope":
			name := "short_"
			if float64(tokens) > orig {
				name = "long_"
			}
			inv[j] /= r[name+"factor"].([]any)[j].(float64)
			attention = get(name+"mscale", math.Sqrt(1+math.Log(p.number("max_position_embeddings", 0)/orig)/math.Log(orig)))
		}
	}
	return inv, attention
}

// rotate turns each head of x by the angles of position at, channels j and j+n or neighbours together.
func rotate(x []float64, dim, at int, inv []float64, factor float64, pairs bool) {
	n := len(inv)
	for h := 0; h < len(x); h += dim {
		for j, f := range inv {
			c, s := factor*math.Cos(float64(at)*f), factor*math.Sin(float64(at)*f)
			first, second := h+j, h+j+n
			if pairs {
				first, second = h+2*j, h+2*j+1
			}
			a, b := x[first], x[second]
			x[first], x[second] = a*c-b*s, b*c+a*s
		}
	}
}

// forward computes the logits of every row and, for every row and MoE layer, the set of experts.
func (p *plain) forward(tokens []int32) (logits [][]float64, chosen [][][]int) {
	f := plainFamilies[p.config["model_type"]]
	hidden, heads, kv, dim, _, _, _ := p.dims()
	eps := p.number("rms_norm_eps", f.eps)
	inv, factor := p.rope(dim, len(tokens))
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
			h := p.norm(x[t], at+"input_layernorm.weight", eps)
			q, k, v := p.times(h, at+"self_attn.q_proj"), p.times(h, at+"self_attn.k_proj"), p.times(h, at+"self_attn.v_proj")
			switch w := p.weights[at+"self_attn.q_norm.weight"]; {
			case w == nil:
			case len(w) == dim:
				for i := 0; i < len(q); i += dim {
					copy(q[i:], p.norm(q[i:i+dim], at+"self_attn.q_norm.weight", eps))
				}
				for i := 0; i < len(k); i += dim {
					copy(k[i:], p.norm(k[i:i+dim], at+"self_attn.k_norm.weight", eps))
				}
			default:
				q, k = p.norm(q, at+"self_attn.q_norm.weight", eps), p.norm(k, at+"self_attn.k_norm.weight", eps)
			}
			for _, part := range [][]float64{q, k, v} {
				for i := range part {
					part[i] = math.Min(math.Max(part[i], -clip), clip)
				}
			}
			rotate(q, dim, t, inv, factor, f.pairs)
			rotate(k, dim, t, inv, factor, f.pairs)
			keys[t], values[t] = k, v
			o := make([]float64, heads*dim)
			for head := range heads {
				from := head / (heads / kv) * dim
				scores, total := make([]float64, t+1), 0.0
				for u := max(0, t-p.window(l)+1); u <= t; u++ {
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
			h = p.norm(x[t], at+"post_attention_layernorm.weight", eps)
			var y []float64
			if p.dense(l) {
				y = p.mlp(h, at+"mlp.")
			} else {
				var ids []int
				y, ids = p.moe(h, at)
				chosen[t] = append(chosen[t], ids)
			}
			for i, v := range y {
				x[t][i] += v
			}
		}
	}
	head := "lm_head"
	if p.weights["lm_head.weight"] == nil {
		head = "model.embed_tokens"
	}
	for t := range tokens {
		row := p.times(p.norm(x[t], "model.norm.weight", eps), head)
		if bias := p.weights["lm_head.bias"]; bias != nil && head != "lm_head" {
			for i := range row {
				row[i] += float64(bias[i])
			}
		}
		logits = append(logits, row)
	}
	return logits, chosen
}

// window is the number of keys that a row of layer l sees.
func (p *plain) window(l int) int {
	const none = 1 << 30
	size := p.integer("sliding_window", none)
	if types, ok := p.config["layer_types"].([]any); ok {
		if types[l] == "sliding_attention" {
			return size
		}
		return none
	}
	switch p.config["model_type"] {
	case "qwen3_moe":
		if p.flag("use_sliding_window", false) {
			return size
		}
	case "qwen2_moe":
		if p.flag("use_sliding_window", false) && l%2 == 0 && l < p.integer("max_window_layers", 28) {
			return size
		}
	case "dots1":
		if l >= p.integer("max_window_layers", 62) {
			return size
		}
	case "mixtral", "phimoe":
		return size
	}
	return none
}

// moe is the block of experts of the layer whose names begin with at.
func (p *plain) moe(h []float64, at string) ([]float64, []int) {
	f := plainFamilies[p.config["model_type"]]
	hidden, _, _, _, experts, k, inner := p.dims()
	scores := p.times(h, at+f.block()+"gate")
	choice := make([]float64, experts)
	if p.config["model_type"] == "phimoe" {
		return p.mix(h, at+f.block(), scores)
	}
	sigmoid := p.config["model_type"] == "glm4_moe" || p.config["model_type"] == "dots1" || p.config["model_type"] == "minimax_m2"
	total := 0.0
	for _, z := range scores {
		total += math.Exp(z)
	}
	for e, z := range scores {
		scores[e] = math.Exp(z) / total
		if sigmoid {
			scores[e] = 1 / (1 + math.Exp(-z))
		}
		choice[e] = scores[e]
		if f.correction != "" {
			choice[e] += float64(p.weights[at+f.correction][e])
		}
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
	ids := descending(choice)[:k]
	sum, y := 0.0, make([]float64, hidden)
	for _, e := range ids {
		sum += scores[e]
	}
	if p.config["model_type"] == "ernie4_5_moe" {
		sum = math.Max(sum, p.number("moe_norm_min", 1e-12))
	}
	always := map[any]bool{"glm4_moe": true, "mixtral": true, "minimax_m2": true, "ernie4_5_moe": true}[p.config["model_type"]]
	if !p.flag("norm_topk_prob", always) {
		sum = 1
	}
	for _, e := range ids {
		for i, v := range p.mlp(h, fmt.Sprintf("%s%sexperts.%d.", at, f.block(), e)) {
			y[i] += scores[e] / sum * p.number("routed_scaling_factor", 1) * v
		}
	}
	if p.sharedWidth(inner) > 0 {
		factor := 1.0
		if p.config["model_type"] == "qwen2_moe" {
			factor = 1 / (1 + math.Exp(-p.times(h, at+"mlp.shared_expert_gate")[0]))
		}
		for i, v := range p.mlp(h, at+f.shared) {
			y[i] += factor * v
		}
	}
	return y, ids
}

// mix is the sparse mixer: twice the largest logit that is left, weighted by its share among those near it.
func (p *plain) mix(h []float64, at string, z []float64) ([]float64, []int) {
	y, left := make([]float64, len(h)), slices.Clone(z)
	var ids []int
	for range 2 {
		e := descending(left)[0]
		total := 0.0
		for i, v := range z {
			if (left[e]-v)/math.Max(math.Abs(v), left[e]) <= 2*p.number("router_jitter_noise", 0.01) {
				total += math.Exp(left[i] - left[e])
			}
		}
		for i, v := range p.mlp(h, fmt.Sprintf("%sexperts.%d.", at, e)) {
			y[i] += v / total
		}
		ids, left[e] = append(ids, e), math.Inf(-1)
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
