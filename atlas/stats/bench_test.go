package stats

import (
	"math/rand/v2"
	"strconv"
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

// The aim is 20,000 experts x 14 topics x 560 prompts x 2,000 draws, test and intervals together, in under 30 s on two
// cores; 2,000 experts take a tenth.
func benchmark(b *testing.B, work func(x Matrix, d Design) error) {
	for _, experts := range []int{2000, 20000} {
		b.Run(strconv.Itoa(experts), func(b *testing.B) {
			x, d := family(14, 40, experts)
			b.ReportAllocs()
			for b.Loop() {
				if err := work(x, d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPermutation(b *testing.B) {
	benchmark(b, func(x Matrix, d Design) error {
		_, err := Permutation(x, d, TestOptions{Permutations: 2000, Seed: 1})
		return err
	})
}

func BenchmarkBootstrap(b *testing.B) {
	benchmark(b, func(x Matrix, d Design) error {
		_, err := Bootstrap(x, d, BootstrapOptions{Draws: 2000, Seed: 1, Pseudo: 1e-4})
		return err
	})
}
