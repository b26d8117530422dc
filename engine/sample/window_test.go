package sample

import (
	"maps"
	"math/rand/v2"
	"testing"
)

func counts(t tally) map[int32]int32 {
	m := map[int32]int32{}
	for i, id := range t.ids {
		m[id] = t.counts[i]
	}
	return m
}

func TestPenaltiesSeePromptAndAnswerApart(t *testing.T) {
	w := newWindow(0, []int32{7, 7, 8})
	w.add(8)
	w.add(9)
	if got, want := counts(w.seen), (map[int32]int32{7: 2, 8: 2, 9: 1}); !maps.Equal(got, want) {
		t.Errorf("prompt and answer: %v, want %v", got, want)
	}
	if got, want := counts(w.answer), (map[int32]int32{8: 1, 9: 1}); !maps.Equal(got, want) {
		t.Errorf("answer: %v, want %v", got, want)
	}
}

func TestPenaltyWindowForgetsOldTokens(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const size = 5
	prompt := []int32{1, 2, 3, 1, 2, 3, 4}
	w := newWindow(size, prompt)
	all := append([]int32(nil), prompt...)
	for range 40 {
		token := rng.Int32N(4)
		w.add(token)
		all = append(all, token)
		seen, answer := map[int32]int32{}, map[int32]int32{}
		for i := len(all) - size; i < len(all); i++ {
			seen[all[i]]++
			if i >= len(prompt) {
				answer[all[i]]++
			}
		}
		if got := counts(w.seen); !maps.Equal(got, seen) {
			t.Fatalf("after %v: prompt and answer %v, want %v", all, got, seen)
		}
		if got := counts(w.answer); !maps.Equal(got, answer) {
			t.Fatalf("after %v: answer %v, want %v", all, got, answer)
		}
	}
}
