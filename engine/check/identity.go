package check

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math"
	"math/rand/v2"

	"covey/engine/model"
)

// Prompts gives count prompts of random tokens with lengths up to longest; the last one has that length. The same on every
// machine.
func Prompts(count, longest, vocab int) [][]int32 {
	random := rand.New(rand.NewPCG(3, 4))
	list := make([][]int32, count)
	for i := range list {
		n := 1 + random.IntN(longest)
		if i == count-1 {
			n = longest
		}
		for range n {
			list[i] = append(list[i], int32(random.IntN(vocab)))
		}
	}
	return list
}

// Hundred is 100 prompts, four of them of about 700 tokens, and how many tokens are to be generated for each: what a backend's
// hashes of a model are compared on.
func Hundred(vocab int) (prompts [][]int32, n int) {
	prompts = Prompts(96, 120, vocab)
	for i := range 4 {
		prompts = append(prompts, Prompts(1, 680+9*i, vocab)...)
	}
	return prompts, 24
}

// Hashes generates n tokens greedily for each prompt, batch prompts at a time and chunk prompt rows at a time, and returns
// a hash for each: hex SHA-256 over the bits (float32, little endian) of the logits of the last prompt row and of every
// generated token's row, by position. The result must not depend on batch or chunk, nor on how m was loaded as long as
// its numerics id is the same.
func Hashes(ctx context.Context, m *model.Model, prompts [][]int32, n, batch, chunk int) ([]string, error) {
	if batch < 1 || chunk < 1 || n < 0 {
		return nil, fmt.Errorf("check: hashes of %d tokens with batch %d, chunk %d", n, batch, chunk)
	}
	var hashes []string
	for len(prompts) > 0 {
		some := prompts[:min(batch, len(prompts))]
		prompts = prompts[len(some):]
		sums := make([]hash.Hash, len(some))
		for i := range sums {
			sums[i] = sha256.New()
		}
		var buf []byte
		d := newDriver(m, chunk, false, func(r row) error {
			if r.logits == nil {
				return nil
			}
			buf = buf[:0]
			for _, x := range r.logits {
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(x))
			}
			sums[r.sequence].Write(buf)
			return nil
		})
		if _, err := d.run(ctx, some, n); err != nil {
			return nil, err
		}
		for _, sum := range sums {
			hashes = append(hashes, hex.EncodeToString(sum.Sum(nil)))
		}
	}
	return hashes, nil
}
