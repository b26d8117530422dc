package store

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTokensHaveTheWrittenLayout(t *testing.T) {
	blob := encodeTokens([]Token{{ID: 300, Text: "é", Logprob: -1, Top: []Alternative{{ID: 2, Logprob: 0}}}})
	want := "\x01" + "\x01" + // version, count
		"\xac\x02" + "\x02é" + "\x00\x00\x80\xbf" + // 300, text, -1
		"\x01" + "\x02" + "\x00" + "\x00\x00\x00\x00" // one alternative
	if string(blob) != want {
		t.Errorf("blob is %q, want %q", blob, want)
	}
}

func TestTokensRoundTrip(t *testing.T) {
	tokens := []Token{
		{ID: 0, Text: "", Logprob: 0},
		{ID: math.MaxInt32, Text: "\x00\xff", Logprob: float32(math.Inf(-1))},
		{ID: -1, Text: strings.Repeat("x", 300), Logprob: -3.5, Top: []Alternative{{-1, "x", -3.5}, {7, "", -9}}},
	}
	got, err := decodeTokens(encodeTokens(tokens))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tokens, got); diff != "" {
		t.Error(diff)
	}
}

func TestBrokenTokenBlobsAreRefused(t *testing.T) {
	good := encodeTokens([]Token{{ID: 1, Text: "ab", Top: []Alternative{{ID: 1}}}})
	for name, test := range map[string]struct{ blob, want string }{
		"empty":              {"", "version"},
		"version":            {"\x02\x00", "version"},
		"count beyond bytes": {"\x01\xff\xff\xff\xff\x0f", "do not fit"},
		"count overflows":    {"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "number is cut or too long"},
		"cut":                {string(good[:len(good)-1]), "token 0"},
		"more":               {string(good) + "x", "1 bytes too many"},
		"id over 32 bits":    {"\x01\x01\x80\x80\x80\x80\x10\x00\x00\x00\x00\x00\x00", "over 32 bits"},
	} {
		if _, err := decodeTokens([]byte(test.blob)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error is %v, want %q", name, err, test.want)
		}
	}
}

func FuzzDecodeTokens(f *testing.F) {
	f.Add(encodeTokens(nil))
	f.Add(encodeTokens([]Token{{ID: 1, Text: "ab", Logprob: -1, Top: []Alternative{{ID: 1, Text: "ab"}, {ID: 2}}}, {ID: -5}}))
	f.Add([]byte("\x01\xff\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, blob []byte) {
		tokens, err := decodeTokens(blob)
		if err != nil {
			return
		}
		again, err := decodeTokens(encodeTokens(tokens))
		if err != nil {
			t.Fatal(err)
		}
		same := cmp.Comparer(func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) })
		if diff := cmp.Diff(tokens, again, same); diff != "" {
			t.Error(diff)
		}
	})
}
