package check

// The plain forward pass of latent attention, expanded and in float64: it holds the absorbed one to options that no stored
// oracle exercises.

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"covey/engine/model"
)

// latentDims are the widths of latent attention.
func (p *plain) latentDims() (query, rank, plainDim, rotary, value int) {
	return p.integer("q_lora_rank", 0), p.integer("kv_lora_rank", 0), p.integer("qk_nope_head_dim", 0), p.integer("qk_rope_head_dim", 0), p.integer("v_head_dim", 0)
}

// newLatentPlain makes the checkpoint of a configuration with latent attention.
func newLatentPlain(text string) *plain {
	p := newPlain(text) // without a number of layers: embedding, norm and head
	p.config["num_hidden_layers"] = 3.0
	hidden, heads, _, _, experts, _, inner := p.dims()
	query, rank, plainDim, rotary, value := p.latentDims()
	biased, mlpBias := p.flag("attention_bias", false), p.flag("mlp_bias", false)
	mlp := func(prefix string, width int, bias bool) {
		p.linear(prefix+"gate_proj", width, hidden, bias)
		p.linear(prefix+"up_proj", width, hidden, bias)
		p.linear(prefix+"down_proj", hidden, width, bias)
	}
	for l := range 3 {
		at := fmt.Sprintf("model.layers.%d.", l)
		p.tensor(at+"input_layernorm.weight", 1, 0.1, hidden)
		p.tensor(at+"post_attention_layernorm.weight", 1, 0.1, hidden)
		if query > 0 {
			p.linear(at+"self_attn.q_a_proj", query, hidden, biased)
			p.tensor(at+"self_attn.q_a_layernorm.weight", 1, 0.1, query)
			p.linear(at+"self_attn.q_b_proj", heads*(plainDim+rotary), query, false)
		} else {
			p.linear(at+"self_attn.q_proj", heads*(plainDim+rotary), hidden, false)
		}
		p.linear(at+"self_attn.kv_a_proj_with_mqa", rank+rotary, hidden, biased)
		p.tensor(at+"self_attn.kv_a_layernorm.weight", 1, 0.1, rank)
		p.linear(at+"self_attn.kv_b_proj", heads*(plainDim+value), rank, false)
		p.linear(at+"self_attn.o_proj", hidden, heads*value, biased)
		if l == 0 {
			mlp(at+"mlp.", p.integer("intermediate_size", 0), mlpBias)
			continue
		}
		p.linear(at+"mlp.gate", experts, hidden, false)
		for e := range experts {
			mlp(fmt.Sprintf("%smlp.experts.%d.", at, e), inner, false)
		}
		mlp(at+"mlp.shared_experts.", inner, mlpBias)
		if p.config["model_type"] == "deepseek_v3" {
			p.tensor(at+"mlp.gate.e_score_correction_bias", -0.3, 0.3, experts)
		}
	}
	return p
}

// turn rotates the two members of each pair, neighbours or halves.
func turn(x []float64, at int, inv []float64, factor float64, pairs bool) {
	for j, f := range inv {
		a, b := j, j+len(inv)
		if pairs {
			a, b = 2*j, 2*j+1
		}
		c, s := factor*math.Cos(float64(at)*f), factor*math.Sin(float64(at)*f)
		x[a], x[b] = x[a]*c-x[b]*s, x[b]*c+x[a]*s
	}
}

// latentMoE is the routed block of both families, with its experts.
func (p *plain) latentMoE(h []float64, at string) ([]float64, []int) {
	_, _, _, _, experts, k, _ := p.dims()
	scores := p.times(h, at+"gate")
	choice := make([]float64, experts)
	v3 := p.config["model_type"] == "deepseek_v3"
	total := 0.0
	for _, z := range scores {
		total += math.Exp(z)
	}
	for e, z := range scores {
		scores[e] = math.Exp(z) / total
		choice[e] = scores[e]
		if v3 {
			scores[e] = 1 / (1 + math.Exp(-z))
			choice[e] = scores[e] + float64(p.weights[at+"gate.e_score_correction_bias"][e])
		}
	}
	if groups := p.integer("n_group", 1); groups > 1 && (v3 || p.config["topk_method"] == "group_limited_greedy") {
		size := experts / groups
		best := make([]float64, groups)
		for g := range groups {
			sorted := slices.Clone(choice[g*size : (g+1)*size])
			slices.Sort(sorted)
			best[g] = sorted[size-1]
			if v3 {
				best[g] += sorted[size-2]
			}
		}
		for _, g := range descending(best)[p.integer("topk_group", 1):] {
			for e := g * size; e < (g+1)*size; e++ {
				choice[e] = math.Inf(-1)
			}
		}
	}
	ids := descending(choice)[:k]
	sum, y := 0.0, p.mlp(h, at+"shared_experts.")
	for _, e := range ids {
		sum += scores[e]
	}
	if !v3 {
		sum = 1
	}
	for _, e := range ids {
		for i, v := range p.mlp(h, fmt.Sprintf("%sexperts.%d.", at, e)) {
			y[i] += scores[e] / sum * p.number("routed_scaling_factor", 1) * v
		}
	}
	return y, ids
}

// latentForward computes the logits of every row and, for every row and MoE layer, the set of experts.
func (p *plain) latentForward(tokens []int32) (logits [][]float64, chosen [][][]int) {
	hidden, heads, _, _, _, _, _ := p.dims()
	query, rank, plainDim, rotary, value := p.latentDims()
	eps, pairs := p.number("rms_norm_eps", 1e-6), p.flag("rope_interleave", true)
	inv, factor := p.rope(rotary, len(tokens))
	scale := 1 / math.Sqrt(float64(plainDim+rotary))
	if r, ok := p.config["rope_parameters"].(map[string]any); ok && r["rope_type"] == "yarn" {
		ms := func(m float64) float64 { return 0.1*m*math.Log(r["factor"].(float64)) + 1 }
		all, one := r["mscale_all_dim"].(float64), r["mscale"].(float64)
		factor = ms(one) / ms(all)
		scale *= ms(all) * ms(all)
	}
	x := make([][]float64, len(tokens))
	for t, token := range tokens {
		for i := range hidden {
			x[t] = append(x[t], float64(p.weights["model.embed_tokens.weight"][int(token)*hidden+i]))
		}
	}
	chosen = make([][][]int, len(tokens))
	for l := range 3 {
		at := fmt.Sprintf("model.layers.%d.", l)
		expanded, turned := make([][]float64, len(tokens)), make([][]float64, len(tokens))
		for t := range tokens {
			h := p.norm(x[t], at+"input_layernorm.weight", eps)
			var q []float64
			if query > 0 {
				q = p.times(p.norm(p.times(h, at+"self_attn.q_a_proj"), at+"self_attn.q_a_layernorm.weight", 1e-6), at+"self_attn.q_b_proj")
			} else {
				q = p.times(h, at+"self_attn.q_proj")
			}
			c := p.times(h, at+"self_attn.kv_a_proj_with_mqa")
			expanded[t] = p.times(p.norm(c[:rank], at+"self_attn.kv_a_layernorm.weight", 1e-6), at+"self_attn.kv_b_proj")
			turned[t] = c[rank:]
			turn(turned[t], t, inv, factor, pairs)
			o := make([]float64, heads*value)
			for head := range heads {
				part := q[head*(plainDim+rotary) : (head+1)*(plainDim+rotary)]
				turn(part[plainDim:], t, inv, factor, pairs)
				from := head * (plainDim + value)
				scores, total := make([]float64, t+1), 0.0
				for u := range scores {
					for i := range plainDim {
						scores[u] += part[i] * expanded[u][from+i]
					}
					for i := range rotary {
						scores[u] += part[plainDim+i] * turned[u][i]
					}
					scores[u] = math.Exp(scores[u] * scale)
					total += scores[u]
				}
				for u, s := range scores {
					for i := range value {
						o[head*value+i] += s / total * expanded[u][from+plainDim+i]
					}
				}
			}
			for i, v := range p.times(o, at+"self_attn.o_proj") {
				x[t][i] += v
			}
			h = p.norm(x[t], at+"post_attention_layernorm.weight", eps)
			y := []float64(nil)
			if l == 0 {
				y = p.mlp(h, at+"mlp.")
			} else {
				var ids []int
				y, ids = p.latentMoE(h, at+"mlp.")
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
		logits = append(logits, p.times(p.norm(x[t], "model.norm.weight", eps), head))
	}
	return logits, chosen
}

func TestLatentOptionsAgreeWithAPlainForwardPass(t *testing.T) {
	const (
		sizes = `"vocab_size":96,"hidden_size":48,"max_position_embeddings":256,"num_attention_heads":3,"intermediate_size":80,"moe_intermediate_size":24,"n_routed_experts":12,
			"num_experts_per_tok":3,"kv_lora_rank":40,"qk_nope_head_dim":12,"qk_rope_head_dim":8,"v_head_dim":20,"first_k_dense_replace":1`
		v2   = `{"model_type":"deepseek_v2",` + sizes
		v3   = `{"model_type":"deepseek_v3",` + sizes
		yarn = `,"rope_parameters":{"rope_type":"yarn","factor":8.0,"mscale":0.7,"mscale_all_dim":1.2,"original_max_position_embeddings":16,"rope_theta":10000.0}`
	)
	for _, test := range []struct {
		name, config string
		bits, group  int
	}{
		{"greedy, queries straight from the input", v2 + `}`, 0, 0},
		{"group_limited_greedy", v2 + `,"topk_method":"group_limited_greedy","n_group":4,"topk_group":2,"routed_scaling_factor":1.7}`, 0, 0},
		{"a latent of the queries", v2 + `,"q_lora_rank":28}`, 0, 0},
		{"yarn with its factor on the softmax scale", v2 + yarn + `}`, 0, 0},
		{"attention_bias and mlp_bias", v2 + `,"q_lora_rank":28,"attention_bias":true,"mlp_bias":true}`, 0, 0},
		{"tied embeddings", v2 + `,"tie_word_embeddings":true}`, 0, 0},
		{"the norms of latents keep their own eps", v2 + `,"q_lora_rank":28,"rms_norm_eps":0.3}`, 0, 0},
		{"packed matrices, the latent's expansion too", v2 + `}`, 4, 32},
		{"expert groups", v3 + `,"n_group":4,"topk_group":2,"routed_scaling_factor":2.5}`, 0, 0},
		{"rope_interleave false", v3 + `,"q_lora_rank":28,"rope_interleave":false}`, 0, 0},
		{"yarn and biases", v3 + `,"q_lora_rank":28,"attention_bias":true` + yarn + `}`, 0, 0},
	} {
		p := newLatentPlain(test.config)
		dir := p.save(t, test.bits, test.group)
		var tokens []int32
		for range 40 {
			tokens = append(tokens, int32(p.random.IntN(96)))
		}
		want, experts := p.latentForward(tokens)
		largest, diff := 0.0, 0.0
		m := load(t, dir, model.Options{KV: "f32", Activations: "f32", MaxRows: 7})
		d := newDriver(m, 7, true, func(got row) error {
			for i, z := range want[got.position] {
				largest, diff = max(largest, math.Abs(z)), max(diff, math.Abs(z-float64(got.logits[i])))
			}
			for l, ids := range experts[got.position] {
				for _, id := range ids {
					if !slices.Contains(got.ids[l*3:(l+1)*3], uint16(id)) {
						t.Errorf("%s: row %d, MoE layer %d: experts %v, want %v", test.name, got.position, l, got.ids[l*3:(l+1)*3], ids)
					}
				}
			}
			return nil
		})
		if _, err := d.run(t.Context(), [][]int32{tokens}, 0); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		t.Logf("%.1e of %.1f: %s", diff, largest, test.name)
		if !(diff <= relative*largest) {
			t.Errorf("%s: logits differ by %v, the largest is %v", test.name, diff, largest)
		}
	}
}
