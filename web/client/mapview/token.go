package mapview

import (
	"math"
	"slices"

	"covey/web/wire"
)

// TokenLift is the mean lift in a topic of the experts that served one token, by their weights; NaN where the atlas knows
// none of them. layers are model layers, ids and weights [layers, k] with weights 0..255. It is a figure of one token: it
// has no interval.
func TokenLift(m wire.Map, topic int, layers []int, ids []uint16, weights []byte) float64 {
	if topic < 0 || topic >= len(m.Topics) || len(layers) == 0 || len(ids)%len(layers) != 0 || len(ids) != len(weights) {
		return math.NaN()
	}
	k, lift := len(ids)/len(layers), m.Topics[topic].Lift
	sum, total := 0.0, 0.0
	for j, layer := range layers {
		row := slices.Index(m.Shape.Layers, layer)
		if row < 0 {
			continue
		}
		for i := j * k; i < (j+1)*k; i++ {
			v := at(lift, row*m.Shape.Experts+int(ids[i]))
			if int(ids[i]) < m.Shape.Experts && !math.IsNaN(v) {
				sum += float64(weights[i]) * v
				total += float64(weights[i])
			}
		}
	}
	return sum / total
}
