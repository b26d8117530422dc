package convert

import (
	"context"
	"fmt"
	"slices"

	"covey/engine/check"
	"covey/engine/model"
	"covey/engine/weights"
)

// Calibrate reads prompts with a checkpoint that fits in memory and returns how much an error of each input counts: the mean
// square of what goes into the experts of a layer, for the gate and up matrices of the records that read it; nil for all
// other weights. (The expected squared error of an output is the sum over inputs of error times mean square, as long as
// inputs are uncorrelated.) progress may be nil.
func Calibrate(ctx context.Context, source *weights.Checkpoint, prompts [][]int32, progress func(done, total int64)) (func(item model.Item) []float32, error) {
	moments := map[int][]float64{} // by model layer, sums of squares
	rows := map[int]float64{}
	var layers []int
	longest := 1
	for _, p := range prompts {
		longest = max(longest, len(p))
	}
	m, err := model.Load(ctx, source, model.Options{KVTokens: longest + 64, MaxRows: 64, Observe: func(router int, input []float32) {
		layer := layers[router]
		if moments[layer] == nil {
			moments[layer] = make([]float64, len(input))
		}
		for i, x := range input {
			moments[layer][i] += float64(x) * float64(x)
		}
		rows[layer]++
	}}, nil)
	if err != nil {
		return nil, fmt.Errorf("convert: calibrating: %w", err)
	}
	defer m.Close()
	layers = m.Info().Shape.Layers
	for i, p := range prompts {
		if _, err := check.Hashes(ctx, m, [][]int32{p[:min(len(p), m.Info().Context)]}, 0, 1, 64); err != nil {
			return nil, fmt.Errorf("convert: calibrating: %w", err)
		}
		if progress != nil {
			progress(int64(i+1), int64(len(prompts)))
		}
	}
	importance := map[int][]float32{}
	for layer, sums := range moments {
		list := make([]float32, len(sums))
		for i, s := range sums {
			list[i] = float32(s / rows[layer])
		}
		// An input that never moved still needs some weight, or its errors would be unbounded.
		least := slices.Max(list) * 1e-4
		for i := range list {
			list[i] = max(list[i], least, 1e-30)
		}
		importance[layer] = list
	}
	return func(item model.Item) []float32 { return importance[item.Layer] }, nil
}
