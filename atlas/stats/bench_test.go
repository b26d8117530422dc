package stats

import (
	"math/rand/v2"
	"testing"
)

// family makes shares of experts with an exponential spread between prompts.
func family(topics, prompts, experts int) (Matrix, Design) {
	random := rand.New(rand.NewPCG(1, 2))
	x := NewMatrix(topics*prompts, experts)
	d := Design{Topics: topics}
	for r := range x.Rows {
		d.Topic = append(d.Topic, r/prompts)
		d.Cluster = append(d.Cluster, r)
		d.Length = append(d.Length, 60+random.IntN(190))
		for e := range experts {
			x.Row(r)[e] = 0.1 * random.ExpFloat64()
		}
	}
	return x, d
}

// The aim is 20,000 experts x 14 topics x 560 prompts x 2,000 draws, test and intervals, in under 30 s on two cores; the
// benchmark does a tenth of the experts.
func BenchmarkPermutation2000Experts(b *testing.B) {
	x, d := family(14, 40, 2000)
	for b.Loop() {
		if _, err := Permutation(x, d, TestOptions{Permutations: 2000, Seed: 1}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBootstrap2000Experts(b *testing.B) {
	x, d := family(14, 40, 2000)
	for b.Loop() {
		if _, err := Bootstrap(x, d, BootstrapOptions{Draws: 2000, Seed: 1, Pseudo: 1e-4}); err != nil {
			b.Fatal(err)
		}
	}
}
