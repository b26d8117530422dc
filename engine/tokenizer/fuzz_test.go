package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// FuzzParse feeds arbitrary files; whatever loads must encode and decode without a panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(hostile))
	f.Add([]byte(`{"added_tokens": [{"id": 9, "content": "<x>", "lstrip": true, "rstrip": true, "single_word": true}],
		"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Strip", "strip_left": true}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Prepend", "prepend": "▁"}]},
		"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "MergedWithNext", "invert": true}, {"type": "Metaspace", "prepend_scheme": "first"}, {"type": "Digits"}, {"type": "ByteLevel"}]},
		"post_processor": {"type": "RobertaProcessing", "cls": ["a", 1], "sep": ["b", 2]},
		"decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1}]},
		"model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "a", "ignore_merges": true, "end_of_word_suffix": "</w>", "vocab": {"a": 1, "b": 2, "ab": 3, "<0x41>": 4}, "merges": [["a", "b"]]}}`))
	for _, text := range []string{ // classes of faults that other programs had
		`{"model": {"type": "BPE", "byte_fallback": true, "vocab": {"<0x-1>": 0, "<0x1FF>": 1, "<0x41>": 2}, "merges": []}}`,
		`{"model": {"type": "BPE", "vocab": {"a": 4294967296}, "merges": []}}`, `{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}`,
		`{"model": {"type": "BPE", "vocab": {"a": NaN}, "merges": []}}`, `{"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}}`,
		"\ufeff{}", "{\"model\": {\"vocab\": {\"a\xff\": 0}}}", `{"normalizer": ` + strings.Repeat("[", 100), `{"added_tokens": [{"id": -1, "content": "x"}], "model": {"vocab": {"a": 0}, "merges": []}}`,
	} {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"model": {"vocab": {"\ud800": 0, "a": 1}, "merges": ["#version: 0.2", "a a"]}}`))
	f.Add([]byte(`{"model": {"type": "BPE", "vocab": {"": 0, "a": 1}, "merges": [["", "a"], ["", ""]]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			t.Skip()
		}
		tok, err := Parse(data)
		if err != nil {
			return
		}
		ids, err := tok.EncodeSegments([]Segment{{"a<x> ab 12é", true}, {"<x>ab\x00▁", false}}, true)
		if err != nil {
			return
		}
		s := tok.Stream(true)
		for _, id := range append(ids, 0, 1, 2, 9, -1) {
			s.Push(id)
			tok.Bytes(id)
		}
		s.Flush()
		tok.Decode(ids, false)
	})
}

// FuzzRoundTrip: a byte-level vocabulary without a normalizer gives back every text, and untrusted text never holds an
// added token.
func FuzzRoundTrip(f *testing.F) {
	kinds := []string{"gpt2_bytelevel", "llama3_cl100k", "o200k", "deepseek_v3", "smollm_digits"}
	var toks []*Tokenizer
	for _, k := range kinds {
		toks = append(toks, open(f, k))
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		f.Add(randomText(r, 10))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			t.Skip()
		}
		for i, tok := range toks {
			for _, trusted := range []bool{true, false} {
				ids, err := tok.EncodeSegments([]Segment{{text, trusted}}, true)
				if err != nil {
					t.Fatal(err)
				}
				if got := tok.Decode(ids, false); got != valid(text) {
					t.Fatalf("%s: %q came back as %q", kinds[i], text, got)
				}
				for _, id := range ids {
					if !trusted && id >= 3000 {
						t.Fatalf("%s: untrusted %q gave token %d", kinds[i], text, id)
					}
				}
			}
		}
	})
}
