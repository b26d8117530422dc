package check

import (
	"context"
	"fmt"
	"math"
	"slices"

	"covey/engine/canon"
	"covey/engine/model"
	"covey/engine/weights"
)

// Report compares a checkpoint's forward pass with its oracle.
type Report struct {
	MaxAbsDiff   float64 `json:"max_abs_diff"`  // largest difference of any logit of any prompt row
	MaxAbsLogit  float64 `json:"max_abs_logit"` // largest magnitude among the oracle's logits
	ArgmaxAgree  float64 `json:"argmax_agree"`  // share of prompt rows with the oracle's most likely token
	Greedy       int     `json:"greedy"`        // leading tokens of the greedy answer that agree
	GreedyTotal  int     `json:"greedy_total"`  //
	ExpertsAgree float64 `json:"experts_agree"` // share of prompt rows and layers with the oracle's set of experts
	WeightDiff   float64 `json:"weight_diff"`   // largest difference of a combination weight where the sets agree
	KLMean       float64 `json:"kl_mean"`       // mean KL divergence of a prompt row's distribution from the oracle's, in nats
	Pass         bool    `json:"pass"`
}

// Tolerances of Oracle.
const (
	relative  = 1e-5 // of the largest logit: what two float32 orders of summation may differ by
	recurrent = 1e-4 // the same where a state sums up the whole sequence
	quantKL   = 0.02 // nats a row: what quantising activations may cost
)

// Oracle runs the checkpoint in dir against dir/oracle.safetensors: input_ids [T], logits [T, vocab], greedy [n] and, for
// each MoE layer l, experts.<l> [T, k] and optionally weights.<l>. The prompt is read in chunks of 7 rows, then the answer
// is generated row by row over the cache. With activations "f32" it passes if every logit is within 1e-5 (1e-4 with recurrent state) of the largest
// logit, the whole greedy answer agrees and all expert sets are equal. With "int8" it passes on the same terms for a
// checkpoint of float weights, whose arithmetic is the same; where weights are quantised it passes if the mean KL
// divergence is at most 0.02. The KV cache is f32.
func Oracle(ctx context.Context, dir, activations string) (Report, error) {
	return OracleOn(ctx, canon.CPU, dir, activations)
}

// OracleOn is Oracle with the forward pass on a backend.
func OracleOn(ctx context.Context, backend canon.Backend, dir, activations string) (Report, error) {
	checkpoint, err := weights.Open(dir)
	if err != nil {
		return Report{}, err
	}
	defer checkpoint.Close()
	reference, err := weights.OpenTensors(dir, "oracle.safetensors")
	if err != nil {
		return Report{}, err
	}
	defer reference.Close()
	const chunk = 7
	m, err := model.Load(ctx, checkpoint, model.Options{KV: "f32", Activations: activations, MaxRows: chunk, Backend: backend}, nil)
	if err != nil {
		return Report{}, err
	}
	defer m.Close()
	o, err := readOracle(reference, m)
	if err != nil {
		return Report{}, err
	}
	return o.compare(ctx, m, chunk)
}

// oracle is the content of oracle.safetensors.
type oracle struct {
	prompt, greedy []int32
	logits         []float32   // [T, vocab]
	experts        [][]int64   // [MoE layers][T, k]
	weights        [][]float32 // [MoE layers][T, k]; an entry is nil where the file has none
}

func readOracle(t *weights.Tensors, m *model.Model) (*oracle, error) {
	shape, vocab := m.Info().Shape, m.Spec().Vocab
	o := &oracle{}
	var err error
	if o.prompt, err = tokens(t, "input_ids", vocab); err != nil {
		return nil, err
	}
	if o.greedy, err = tokens(t, "greedy", vocab); err != nil {
		return nil, err
	}
	if len(o.prompt) == 0 || len(o.prompt)+len(o.greedy) > m.Info().Context {
		return nil, fmt.Errorf("check: oracle has %d prompt and %d greedy tokens, want 1 to the context of %d in all", len(o.prompt), len(o.greedy), m.Info().Context)
	}
	if o.logits, err = t.Vector("logits", len(o.prompt)*vocab); err != nil {
		return nil, err
	}
	for _, l := range shape.Layers {
		ids, err := t.Integers(fmt.Sprintf("experts.%d", l), len(o.prompt)*shape.TopK)
		if err != nil {
			return nil, err
		}
		o.experts = append(o.experts, ids)
		var values []float32
		if name := fmt.Sprintf("weights.%d", l); has(t, name) {
			if values, err = t.Vector(name, len(ids)); err != nil {
				return nil, err
			}
		}
		o.weights = append(o.weights, values)
	}
	return o, nil
}

func has(t *weights.Tensors, name string) bool { _, ok := t.Tensor(name); return ok }

// tokens reads a one-dimensional tensor of token ids.
func tokens(t *weights.Tensors, name string, vocab int) ([]int32, error) {
	info, ok := t.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("check: tensor %s is missing", name)
	}
	list, err := t.Integers(name, int(info.Elements()))
	if err != nil {
		return nil, err
	}
	out := make([]int32, len(list))
	for i, id := range list {
		if id < 0 || id >= int64(vocab) {
			return nil, fmt.Errorf("check: tensor %s: token %d outside the vocabulary of %d", name, id, vocab)
		}
		out[i] = int32(id)
	}
	return out, nil
}

// compare runs m and fills the report.
func (o *oracle) compare(ctx context.Context, m *model.Model, chunk int) (Report, error) {
	var r Report
	k, vocab := m.Info().Shape.TopK, m.Spec().Vocab
	for _, z := range o.logits {
		r.MaxAbsLogit = max(r.MaxAbsLogit, math.Abs(float64(z)))
	}
	argmax, sets := 0, 0
	d := newDriver(m, chunk, true, func(got row) error {
		if got.position >= len(o.prompt) {
			return nil
		}
		want := o.logits[got.position*vocab : (got.position+1)*vocab]
		for i, z := range got.logits {
			r.MaxAbsDiff = max(r.MaxAbsDiff, math.Abs(float64(z)-float64(want[i])))
		}
		if peak(got.logits) == peak(want) {
			argmax++
		}
		r.KLMean += divergence(want, got.logits) / float64(len(o.prompt))
		for l, experts := range o.experts {
			ids := experts[got.position*k : (got.position+1)*k]
			places := got.ids[l*k : (l+1)*k]
			if !sameSet(places, ids) {
				continue
			}
			sets++
			if o.weights[l] == nil {
				continue
			}
			for i, id := range places {
				at := slices.Index(ids, int64(id))
				r.WeightDiff = max(r.WeightDiff, math.Abs(float64(got.weights[l*k+i])-float64(o.weights[l][got.position*k+at])))
			}
		}
		return nil
	})
	answers, err := d.run(ctx, [][]int32{o.prompt}, len(o.greedy))
	if err != nil {
		return Report{}, err
	}
	r.GreedyTotal = len(o.greedy)
	for r.Greedy < r.GreedyTotal && answers[0][r.Greedy] == o.greedy[r.Greedy] {
		r.Greedy++
	}
	r.ArgmaxAgree = float64(argmax) / float64(len(o.prompt))
	r.ExpertsAgree = float64(sets) / float64(len(o.prompt)*len(o.experts))
	tolerance := relative
	if m.Spec().Delta != nil {
		tolerance = recurrent
	}
	r.Pass = r.MaxAbsDiff <= tolerance*r.MaxAbsLogit && r.Greedy == r.GreedyTotal && r.ExpertsAgree == 1
	if m.Info().Quantised {
		r.Pass = r.KLMean <= quantKL
	}
	return r, nil
}

// sameSet says whether two rows name the same experts in any order.
func sameSet(a []uint16, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for _, id := range a {
		if !slices.Contains(b, int64(id)) {
			return false
		}
	}
	return true
}

// peak is the index of the largest value, the first one among equals.
func peak(v []float32) int {
	best := 0
	for i, x := range v {
		if x > v[best] {
			best = i
		}
	}
	return best
}

// logSumExp is ln(sum(exp(v))).
func logSumExp(v []float32) float64 {
	top := float64(v[peak(v)])
	sum := 0.0
	for _, x := range v {
		sum += math.Exp(float64(x) - top)
	}
	return top + math.Log(sum)
}

// divergence is the Kullback-Leibler divergence of softmax(got) from softmax(want) in nats.
func divergence(want, got []float32) float64 {
	a, b := logSumExp(want), logSumExp(got)
	kl := 0.0
	for i, x := range want {
		p := float64(x) - a
		kl += math.Exp(p) * (p - (float64(got[i]) - b))
	}
	return kl
}
