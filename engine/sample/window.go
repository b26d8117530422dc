package sample

// tally counts tokens and lists those seen, so that penalties cost time by the number of different tokens and not by
// the length of the sequence. The order of the list means nothing.
type tally struct {
	place  map[int32]int // token -> index in ids
	ids    []int32
	counts []int32
}

func (t *tally) add(token int32) {
	i, ok := t.place[token]
	if !ok {
		if t.place == nil {
			t.place = map[int32]int{}
		}
		i = len(t.ids)
		t.place[token] = i
		t.ids = append(t.ids, token)
		t.counts = append(t.counts, 0)
	}
	t.counts[i]++
}

// remove takes back one add of token.
func (t *tally) remove(token int32) {
	i := t.place[token]
	if t.counts[i]--; t.counts[i] > 0 {
		return
	}
	last := len(t.ids) - 1
	t.ids[i], t.counts[i] = t.ids[last], t.counts[last]
	t.place[t.ids[i]] = i
	delete(t.place, token)
	t.ids, t.counts = t.ids[:last], t.counts[:last]
}

// window is the part of a sequence that penalties look at: the latest size tokens (0 = all). The repetition penalty
// takes the tokens of prompt and answer, the frequency and presence penalties those of the answer alone.
type window struct {
	size   int
	prompt int     // length of the prompt
	tokens []int32 // prompt and answer so far; kept only if size > 0
	seen   tally   // prompt and answer inside the window
	answer tally   // answer inside the window
	start  int     // first position inside the window
}

func newWindow(size int, prompt []int32) window {
	w := window{size: size, prompt: len(prompt)}
	if size > 0 && len(prompt) > size {
		w.start = len(prompt) - size
	}
	if size > 0 {
		w.tokens = append(w.tokens, prompt...)
	}
	for _, t := range prompt[w.start:] {
		w.seen.add(t)
	}
	return w
}

// add appends an answer token and lets the oldest one leave if the window is full.
func (w *window) add(token int32) {
	w.seen.add(token)
	w.answer.add(token)
	if w.size == 0 {
		return
	}
	w.tokens = append(w.tokens, token)
	if len(w.tokens)-w.start > w.size {
		left := w.tokens[w.start]
		w.seen.remove(left)
		if w.start >= w.prompt {
			w.answer.remove(left)
		}
		w.start++
	}
}
