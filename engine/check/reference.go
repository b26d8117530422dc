package check

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"covey/engine/model"
	"covey/engine/weights"
)

// Tolerances of Reference: two correct roundings may differ by this much, and choose otherwise below these margins.
const (
	nearTie    = 1e-4 // choice scores of the last chosen and the first not chosen expert
	nearGreedy = 0.05 // two best logits
	logitSlack = 1e-3 // absolute, on top-16 logits and on the log-sum-exp
)

// TextReport compares one text of a reference file.
type TextReport struct {
	Name         string  `json:"name"`
	Rows         int     `json:"rows"`
	NearTie      int     `json:"near_tie"`      // first row that chose other experts at a near tie; -1 = none: rows behind it see another past
	Wrong        int     `json:"wrong"`         // (row, layer) places before that with other experts and no near tie
	ExpertsAgree float64 `json:"experts_agree"` // share of all (row, layer) places with equal sets
	ArgmaxAgree  float64 `json:"argmax_agree"`  // share of all rows
	LogitDiff    float64 `json:"logit_diff"`    // largest difference of a top-16 logit before the near tie
	SumDiff      float64 `json:"sum_diff"`      // largest difference of a log-sum-exp before the near tie
	KLMean       float64 `json:"kl_mean"`       // mean KL divergence from the reference over (top 16, all others) of all rows, in nats
	Greedy       int     `json:"greedy"`        // leading tokens of the greedy answer that agree
	GreedyTotal  int     `json:"greedy_total"`  // tokens before the first margin below 0.05
	Pass         bool    `json:"pass"`
}

// ReferenceReport compares a model with a reference file.
type ReferenceReport struct {
	Numerics string       `json:"numerics"`
	Texts    []TextReport `json:"texts"`
	Pass     bool         `json:"pass"`
}

// Reference runs the model in dir with activations "f32" or "int8" and an f32 KV cache against the safetensors file at
// path, which holds for each text: input_ids [T], top_ids and top_logits [T, 16], logsumexp [T], experts
// [T, MoE layers, k], greedy [n] and greedy_margin [n]. names selects texts; none = all. A text passes if experts are
// equal except at near ties, top logits and log-sum-exps are within 1e-3 before its first near tie, and the greedy answer
// agrees up to its first margin below 0.05. With "int8" a text passes if its mean KL divergence is at most 0.02.
func Reference(ctx context.Context, dir, path, activations string, names ...string) (ReferenceReport, error) {
	checkpoint, err := weights.Open(dir)
	if err != nil {
		return ReferenceReport{}, err
	}
	defer checkpoint.Close()
	file, err := weights.OpenTensors(filepath.Dir(path), filepath.Base(path))
	if err != nil {
		return ReferenceReport{}, err
	}
	defer file.Close()
	m, err := model.Load(ctx, checkpoint, model.Options{KV: "f32", Activations: activations, MaxRows: 64, KVTokens: 1024, Margins: true}, nil)
	if err != nil {
		return ReferenceReport{}, err
	}
	defer m.Close()
	report := ReferenceReport{Numerics: m.Info().Numerics, Pass: true}
	for _, tensor := range file.Names() {
		name, isText := strings.CutSuffix(tensor, ".input_ids")
		if !isText || len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		t, err := readText(file, name, m)
		if err != nil {
			return ReferenceReport{}, err
		}
		r, err := t.compare(ctx, m)
		if err != nil {
			return ReferenceReport{}, err
		}
		report.Texts = append(report.Texts, r)
		report.Pass = report.Pass && r.Pass
	}
	if len(report.Texts) == 0 {
		return ReferenceReport{}, fmt.Errorf("check: %s holds no such text", path)
	}
	return report, nil
}

// top is how many logits of a row a reference holds.
const top = 16

// text is one text of a reference file.
type text struct {
	name           string
	prompt, greedy []int32
	topIDs         []int64   // [T, top]
	topLogits      []float32 // [T, top]
	sums           []float32 // [T]
	experts        []int64   // [T, MoE layers, k]
}

func readText(file *weights.Tensors, name string, m *model.Model) (*text, error) {
	t := &text{name: name}
	vocab := m.Spec().Vocab
	var err error
	if t.prompt, err = tokens(file, name+".input_ids", vocab); err != nil {
		return nil, err
	}
	if t.greedy, err = tokens(file, name+".greedy", vocab); err != nil {
		return nil, err
	}
	rows := len(t.prompt)
	if t.topIDs, err = file.Integers(name+".top_ids", rows*top); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(t.topIDs, func(id int64) bool { return id < 0 || id >= int64(vocab) }) {
		return nil, fmt.Errorf("check: tensor %s.top_ids: token outside the vocabulary of %d", name, vocab)
	}
	if t.topLogits, err = file.Vector(name+".top_logits", rows*top); err != nil {
		return nil, err
	}
	if t.sums, err = file.Vector(name+".logsumexp", rows); err != nil {
		return nil, err
	}
	if t.experts, err = file.Integers(name+".experts", rows*m.Info().Shape.Slots()); err != nil {
		return nil, err
	}
	margins, err := file.Vector(name+".greedy_margin", len(t.greedy))
	if err != nil {
		return nil, err
	}
	if at := slices.IndexFunc(margins, func(x float32) bool { return x < nearGreedy }); at >= 0 {
		t.greedy = t.greedy[:at]
	}
	return t, nil
}

// compare runs the text through m.
func (t *text) compare(ctx context.Context, m *model.Model) (TextReport, error) {
	r := TextReport{Name: t.name, Rows: len(t.prompt), NearTie: -1, GreedyTotal: len(t.greedy)}
	shape := m.Info().Shape
	k, places := shape.TopK, shape.Slots()
	sets, argmax := 0, 0
	d := newDriver(m, 64, true, func(got row) error {
		if got.position >= len(t.prompt) {
			return nil
		}
		want := t.experts[got.position*places : (got.position+1)*places]
		for l := range shape.Layers {
			if sameSet(got.ids[l*k:(l+1)*k], want[l*k:(l+1)*k]) {
				sets++
				continue
			}
			switch {
			case r.NearTie >= 0: // explained by the past
			case m.ChoiceMargin(l, got.place) < nearTie:
				r.NearTie = got.position
			default:
				r.Wrong++
			}
		}
		ids, logits := t.topIDs[got.position*top:(got.position+1)*top], t.topLogits[got.position*top:(got.position+1)*top]
		if int64(peak(got.logits)) == ids[peak(logits)] {
			argmax++
		}
		sum := logSumExp(got.logits)
		r.KLMean += coarseDivergence(ids, logits, float64(t.sums[got.position]), got.logits, sum) / float64(len(t.prompt))
		if r.NearTie >= 0 {
			return nil
		}
		for i, id := range ids {
			r.LogitDiff = max(r.LogitDiff, math.Abs(float64(got.logits[id])-float64(logits[i])))
		}
		r.SumDiff = max(r.SumDiff, math.Abs(sum-float64(t.sums[got.position])))
		return nil
	})
	answers, err := d.run(ctx, [][]int32{t.prompt}, len(t.greedy))
	if err != nil {
		return TextReport{}, fmt.Errorf("check: text %s: %w", t.name, err)
	}
	for r.Greedy < r.GreedyTotal && answers[0][r.Greedy] == t.greedy[r.Greedy] {
		r.Greedy++
	}
	r.ExpertsAgree = float64(sets) / float64(len(t.prompt)*len(shape.Layers))
	r.ArgmaxAgree = float64(argmax) / float64(len(t.prompt))
	r.Pass = r.Wrong == 0 && r.LogitDiff <= logitSlack && r.SumDiff <= logitSlack && r.Greedy == r.GreedyTotal
	if m.Info().Quantised {
		r.Pass = r.KLMean <= quantKL
	}
	return r, nil
}

// coarseDivergence is the KL divergence of got from a reference of which only the most likely tokens are known, with all
// other tokens taken together as one: a lower bound of the full divergence. sum and gotSum are the log-sum-exps.
func coarseDivergence(ids []int64, logits []float32, sum float64, got []float32, gotSum float64) float64 {
	kl, rest, gotRest := 0.0, 1.0, 1.0
	for i, id := range ids {
		p, q := float64(logits[i])-sum, float64(got[id])-gotSum
		kl += math.Exp(p) * (p - q)
		rest -= math.Exp(p)
		gotRest -= math.Exp(q)
	}
	if rest > 0 && gotRest > 0 {
		kl += rest * math.Log(rest/gotRest)
	}
	return kl
}
