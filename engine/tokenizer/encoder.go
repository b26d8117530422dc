package tokenizer

import (
	"strings"
	"time"
)

// encoder is the state of one Encode call: its output and the scratch memory that calls share through a pool, among it
// a cache of words already encoded. Text repeats its words, so most are one map lookup.
type encoder struct {
	t     *Tokenizer
	out   []int32
	guard bool  // untrusted text is involved and the vocabulary could spell special tokens by itself
	err   error // first failure of a split pattern; nothing more is encoded after it

	deadline time.Time // of the patterns of this call; zero until one is used

	symbols []int32
	links   []link
	heap    []uint64
	runes   []rune

	cache map[string]cached
	arena []int32
}

// cached is the place of a word's ids in the arena.
type cached struct{ start, end int32 }

const (
	cacheWords  = 1 << 14 // words kept before the cache starts afresh
	cacheLength = 48      // longest word kept, in bytes
)

func (t *Tokenizer) encoder() *encoder {
	e := t.encoders.Get().(*encoder)
	e.out, e.err, e.deadline = nil, nil, time.Time{}
	return e
}

// encode appends the ids of text.
func (e *encoder) encode(text string, marks trust) {
	t := e.t
	t.raw.split(text, marks, func(start, end int) {
		part, partMarks := text[start:end], marks.slice(start, end)
		if e.err != nil {
			return
		}
		if t.normalize != nil {
			normal, err := t.normalize(part)
			if err != nil {
				e.err = err
				return
			}
			if len(t.normed.tokens) > 0 {
				partMarks = partMarks.through(t.normalize, part, normal)
			}
			part = normal
		}
		t.normed.split(part, partMarks, func(a, b int) {
			e.run(0, piece{part[a:b], start == 0 && a == 0})
		}, e.token)
	}, e.token)
}

func (e *encoder) token(id int32) { e.out = append(e.out, id) }

// piece is a part of the text on its way through the pre-tokenizer.
type piece struct {
	text  string
	first bool // begins where the whole text begins
}

// run hands a piece to the stage of that index, or to the model after the last.
func (e *encoder) run(stage int, p piece) {
	if p.text == "" || e.err != nil {
		return
	}
	if stage < len(e.t.stages) {
		e.t.stages[stage].split(e, p, stage+1)
		return
	}
	seams := e.t.model.seams
	if seams == nil {
		e.word(p.text)
		return
	}
	for from := 0; from < len(p.text); {
		end := seams.next(p.text, from)
		e.word(p.text[from:end])
		from = end
	}
}

// word appends the ids of one word, from the cache where it has them.
func (e *encoder) word(text string) {
	if len(text) > cacheLength || e.guard {
		e.t.model.encode(e, text)
		return
	}
	if c, ok := e.cache[text]; ok {
		e.out = append(e.out, e.arena[c.start:c.end]...)
		return
	}
	from := len(e.out)
	e.t.model.encode(e, text)
	if len(e.cache) >= cacheWords {
		clear(e.cache)
		e.arena = e.arena[:0]
	}
	start := len(e.arena)
	e.arena = append(e.arena, e.out[from:]...)
	e.cache[strings.Clone(text)] = cached{int32(start), int32(len(e.arena))}
}
