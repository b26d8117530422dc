package engine

import (
	"testing"

	"covey/engine/tokenizer"
)

func TestDecoderKnowsWhenACharacterIsIncomplete(t *testing.T) {
	tok, err := tokenizer.Load("../models/smollm2-moe-32x/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	const text = "naïve 😀 語 x"
	ids, err := tok.Encode(text, false)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	kept := 0
	for n := range ids { // an answer may end after any token
		d := &decoder{Stream: tok.Stream(true), tokenizer: tok}
		got = ""
		for _, id := range ids[:n+1] {
			got += d.Push(id)
		}
		rest := d.Flush()
		if rest != "" && !d.pending {
			t.Errorf("after %d tokens %q is kept unannounced", n+1, rest)
		}
		if d.pending {
			kept++
		}
	}
	if got != text || kept == 0 || kept >= len(ids)/2 {
		t.Errorf("text %q, pending after %d of %d tokens", got, kept, len(ids))
	}
}

func TestEndsInsideACharacter(t *testing.T) {
	for text, want := range map[string]bool{"": false, "a": false, "é": false, "\xc3": true, "a\xf0\x9f\x98": true, "😀": false, "\x98\x80": false, "😀\xe8": true} {
		if got := endsInside([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
