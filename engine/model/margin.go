package model

import (
	"math"
	"slices"

	"covey/engine/canon"
)

// ChoiceMargin is the distance between the choice scores of the last expert that row r of the latest step chose in MoE
// layer l and of the best one it did not: where it is tiny, another correct rounding may choose otherwise. It needs
// Options.Margins. Scores are recomputed in float64, for judging only; expert groups are not looked at.
func (m *Model) ChoiceMargin(l, r int) float64 {
	router := m.spec.MoE.Router
	logits := m.forward.scores[l].Row(r)
	scores := make([]float64, len(logits))
	peak := float64(slices.Max(logits))
	total := 0.0
	for _, z := range logits {
		total += math.Exp(float64(z) - peak)
	}
	for i, z := range logits {
		x := float64(z)
		switch router.Score {
		case canon.ScoreSoftmax:
			x = math.Exp(x-peak) / total
		case canon.ScoreSigmoid:
			x = 1 / (1 + math.Exp(-x))
		case canon.ScoreSqrtSoftplus:
			x = math.Sqrt(math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))))
		}
		if m.bias[l] != nil {
			x += float64(m.bias[l][i])
		}
		scores[i] = x
	}
	if router.TopK == len(scores) {
		return math.Inf(1)
	}
	slices.Sort(scores)
	at := len(scores) - router.TopK
	return scores[at] - scores[at-1]
}
