package check

import (
	"context"
	"fmt"
	"slices"

	"covey/engine/canon"
	"covey/engine/model"
	"covey/engine/weights"
)

// Comparison is how far one model's predictions are from another's.
type Comparison struct {
	Texts       int     `json:"texts"`
	Rows        int     `json:"rows"`
	KLMean      float64 `json:"kl_mean"` // mean KL divergence of a row's distribution from the first model's, in nats
	KL99        float64 `json:"kl_99"`   // 99 % of the rows have at most this
	ArgmaxAgree float64 `json:"argmax_agree"`
	Experts     float64 `json:"experts_agree"` // share of rows and layers with the same set of experts
}

// Compare reads prompts with two checkpoints, both in memory, and compares the predictions at every row. progress may be
// nil.
func Compare(ctx context.Context, first, second string, prompts [][]int32, progress func(done, total int64)) (Comparison, error) {
	var models [2]*model.Model
	longest := 1
	for _, p := range prompts {
		longest = max(longest, len(p))
	}
	for i, dir := range []string{first, second} {
		checkpoint, err := weights.Open(dir)
		if err != nil {
			return Comparison{}, err
		}
		models[i], err = model.Load(ctx, checkpoint, model.Options{KVTokens: longest + canon.PageTokens, MaxRows: 64}, nil)
		checkpoint.Close()
		if err != nil {
			return Comparison{}, err
		}
		defer models[i].Close()
	}
	if a, b := models[0].Spec(), models[1].Spec(); a.Vocab != b.Vocab || a.MoE.TopK != b.MoE.TopK || a.Layers != b.Layers {
		return Comparison{}, fmt.Errorf("check: the two models have different shapes")
	}
	c := Comparison{Texts: len(prompts)}
	var all []float64
	same, sets, places := 0, 0, 0
	for i, prompt := range prompts {
		prompt = prompt[:min(len(prompt), models[0].Info().Context)]
		if len(prompt) == 0 {
			continue
		}
		logits, ids := make([][]float32, len(prompt)), make([][]uint16, len(prompt))
		_, err := newDriver(models[0], 64, true, func(r row) error {
			logits[r.position], ids[r.position] = slices.Clone(r.logits), slices.Clone(r.ids)
			return nil
		}).run(ctx, [][]int32{prompt}, 0)
		if err != nil {
			return c, err
		}
		k := models[0].Spec().MoE.TopK
		_, err = newDriver(models[1], 64, true, func(r row) error {
			want := logits[r.position]
			all = append(all, divergence(want, r.logits))
			if canon.Argmax(want) == canon.Argmax(r.logits) {
				same++
			}
			for at := 0; at < len(r.ids); at += k {
				a, b := slices.Clone(ids[r.position][at:at+k]), slices.Clone(r.ids[at:at+k])
				slices.Sort(a)
				slices.Sort(b)
				places++
				if slices.Equal(a, b) {
					sets++
				}
			}
			return nil
		}).run(ctx, [][]int32{prompt}, 0)
		if err != nil {
			return c, err
		}
		if progress != nil {
			progress(int64(i+1), int64(len(prompts)))
		}
	}
	if c.Rows = len(all); c.Rows == 0 {
		return c, fmt.Errorf("check: no rows to compare")
	}
	for _, kl := range all {
		c.KLMean += kl / float64(len(all))
	}
	slices.Sort(all)
	c.KL99 = all[(len(all)-1)*99/100]
	c.ArgmaxAgree, c.Experts = float64(same)/float64(c.Rows), float64(sets)/float64(max(places, 1))
	return c, nil
}
