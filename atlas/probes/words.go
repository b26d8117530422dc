package probes

import (
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"unicode"
)

// ShuffleWords returns the probe with the words of its text in another order and everything between them in place: the
// same words, no order. A word is a run without white space; each character of a script written without spaces (Han,
// kana, Thai and the like) is one. The order depends on the seed and the probe's id alone.
func ShuffleWords(p Probe, seed uint64) Probe {
	h := fnv.New64a()
	h.Write([]byte(p.ID))
	random := rand.New(rand.NewPCG(seed, h.Sum64()))
	parts, words := split(p.Text)
	random.Shuffle(len(words), func(i, j int) {
		a, b := words[i], words[j]
		parts[a], parts[b] = parts[b], parts[a]
	})
	p.Text = strings.Join(parts, "")
	return p
}

// split cuts a text into words and what lies between, and lists which parts are words.
func split(text string) (parts []string, words []int) {
	var current strings.Builder
	var space bool
	flush := func() {
		if current.Len() == 0 {
			return
		}
		if !space {
			words = append(words, len(parts))
		}
		parts = append(parts, current.String())
		current.Reset()
	}
	for _, r := range text {
		if unbroken(r) {
			flush()
			words = append(words, len(parts))
			parts = append(parts, string(r))
			continue
		}
		if s := unicode.IsSpace(r); s != space {
			flush()
			space = s
		}
		current.WriteRune(r)
	}
	flush()
	return parts, words
}

func unbroken(r rune) bool {
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}
