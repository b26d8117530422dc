package gguf

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"covey/engine/tokenizer"
)

const kinds = "../tokenizer/testdata/kinds"

// tokenizerFile is what the tests need of a tokenizer.json.
type tokenizerFile struct {
	Added []struct {
		ID      int
		Content string
		Special bool
	} `json:"added_tokens"`
	Model struct {
		Vocab  map[string]int
		Merges [][]string
	}
}

// vocabularyOf reads a reference tokenizer into the lists that GGUF has.
func vocabularyOf(t *testing.T, kind string) (tokens []string, types []int32, merges [][]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(kinds, kind, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	// Merges are pairs or texts with a space between.
	var pairs struct {
		Model struct{ Merges []json.RawMessage }
	}
	if err := json.Unmarshal(text, &pairs); err != nil {
		t.Fatal(err)
	}
	for _, raw := range pairs.Model.Merges {
		var pair []string
		if json.Unmarshal(raw, &pair) != nil {
			var joined string
			if err := json.Unmarshal(raw, &joined); err != nil {
				t.Fatal(err)
			}
			pair = strings.SplitN(joined, " ", 2)
		}
		merges = append(merges, pair)
	}
	text = bytes.ReplaceAll(text, []byte(`"merges"`), []byte(`"_"`))
	var file tokenizerFile
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	set := func(id int, token string, kind int32) {
		for len(tokens) <= id {
			tokens, types = append(tokens, ""), append(types, tokenUnused)
		}
		tokens[id], types[id] = token, kind
	}
	for token, id := range file.Model.Vocab {
		set(id, token, tokenNormal)
	}
	for _, a := range file.Added {
		set(a.ID, a.Content, map[bool]int32{true: tokenControl, false: tokenUserDefined}[a.Special])
	}
	return tokens, types, merges
}

// check builds the tokenizer of a GGUF file and runs the reference's cases.
func check(t *testing.T, kind string, file []byte) tokenizer.Report {
	t.Helper()
	f, err := parse(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	cases, err := os.ReadFile(filepath.Join(kinds, kind, "cases.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{"tokenizer.json": text, "cases.jsonl": cases} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := tokenizer.Check(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTokenizersOfGGUFGiveTheReferenceIDs(t *testing.T) {
	for kind, pre := range map[string]string{"gpt2_bytelevel": "gpt-2", "llama3_cl100k": "dbrx", "qwen2": "qwen2", "o200k": "gpt-4o", "deepseek_v3": "deepseek-v3", "smollm_digits": "smollm"} {
		tokens, types, pairs := vocabularyOf(t, kind)
		merges := make([]string, len(pairs))
		for i, p := range pairs {
			merges[i] = strings.Join(p, " ")
		}
		r := check(t, kind, begin(3, 0, 5).entry("tokenizer.ggml.model", "gpt2").entry("tokenizer.ggml.pre", pre).
			entry("tokenizer.ggml.tokens", tokens).entry("tokenizer.ggml.token_type", types).entry("tokenizer.ggml.merges", merges).Bytes())
		if !r.Pass {
			t.Errorf("%s: %+v", kind, r)
		}
	}
}

// A SentencePiece vocabulary has scores: here the later a piece was merged in the reference, the lower.
func TestSentencePieceOfGGUFGivesTheReferenceIDs(t *testing.T) {
	const kind = "mixtral_metaspace"
	tokens, types, merges := vocabularyOf(t, kind)
	scores := make([]float32, len(tokens))
	for id, token := range tokens {
		switch {
		case len(token) == 6 && strings.HasPrefix(token, "<0x"):
			types[id] = tokenByte
		case token == "<unk>":
			types[id] = tokenUnknown
		}
		scores[id] = -1e6
	}
	for rank, p := range slices.Backward(merges) {
		scores[slices.Index(tokens, p[0]+p[1])] = -float32(rank)
	}
	r := check(t, kind, begin(3, 0, 7).entry("tokenizer.ggml.model", "llama").entry("tokenizer.ggml.tokens", tokens).entry("tokenizer.ggml.scores", scores).
		entry("tokenizer.ggml.token_type", types).entry("tokenizer.ggml.bos_token_id", uint32(1)).entry("tokenizer.ggml.unknown_token_id", uint32(0)).
		entry("tokenizer.ggml.add_bos_token", true).Bytes())
	// The reference's file calls its byte tokens special and leaves them out of some texts; here they are text.
	if r.IDsEqual != r.Cases || r.Cases == 0 {
		t.Errorf("%+v", r)
	}
}

func TestVocabulariesThatAreNotUnderstoodAreNamed(t *testing.T) {
	tokens := []string{"a", "b", "ab"}
	gpt2 := func(n uint64) *header {
		return begin(3, 0, n).entry("tokenizer.ggml.model", "gpt2").entry("tokenizer.ggml.tokens", tokens)
	}
	for _, test := range []struct {
		name string
		file *header
		want string
	}{
		{"unigram", begin(3, 0, 2).entry("tokenizer.ggml.model", "t5").entry("tokenizer.ggml.tokens", tokens), `metadata "tokenizer.ggml.model": "t5" is not supported; gpt2 and llama are`},
		{"no way of splitting", gpt2(2), `metadata "tokenizer.ggml.pre": "" is not a way of splitting text that is known`},
		{"an unknown way of splitting", gpt2(3).entry("tokenizer.ggml.pre", "superbpe"), `"superbpe" is not a way`},
		{"no merges", gpt2(3).entry("tokenizer.ggml.pre", "gpt-2"), `metadata "tokenizer.ggml.merges": missing`},
		{"no scores", begin(3, 0, 2).entry("tokenizer.ggml.model", "llama").entry("tokenizer.ggml.tokens", tokens), "0 scores for 3 tokens"},
		{"a token twice", begin(3, 0, 4).entry("tokenizer.ggml.model", "gpt2").entry("tokenizer.ggml.pre", "gpt-2").entry("tokenizer.ggml.tokens", []string{"a", "a"}).entry("tokenizer.ggml.merges", []string{}), `token 1, "a", is there twice`},
		{"a long piece", begin(3, 0, 3).entry("tokenizer.ggml.model", "llama").entry("tokenizer.ggml.tokens", []string{strings.Repeat("x", 300)}).entry("tokenizer.ggml.scores", []float32{0}), "token 0 has 300 bytes, more than the 256 allowed"},
	} {
		f, err := parse(test.file.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Tokenizer(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// Byte tokens beyond a byte, which crashed other readers, are pieces like others: nothing is computed from their names.
func TestByteTokensOutOfRangeAreHarmless(t *testing.T) {
	file := begin(3, 0, 4).entry("tokenizer.ggml.model", "llama").entry("tokenizer.ggml.tokens", []string{"<0x-1>", "<0x1FF>", "<0x41>", "a"}).
		entry("tokenizer.ggml.scores", []float32{0, 0, 0, 0}).entry("tokenizer.ggml.token_type", []int32{tokenByte, tokenByte, tokenByte, tokenNormal}).Bytes()
	f, err := parse(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Decode([]int32{3, 2, 0}, false); got != "aA<0x-1>" {
		t.Errorf("decoded %q", got)
	}
}

func TestChatTemplatesAreFound(t *testing.T) {
	for _, test := range []struct {
		file *header
		want string
	}{
		{begin(3, 0, 0), `{}`},
		{begin(3, 0, 1).entry("tokenizer.chat_template", "{{ x }}"), `{"chat_template":"{{ x }}"}`},
		{begin(3, 0, 3).entry("tokenizer.chat_template", "A").entry("tokenizer.chat_templates", []string{"tool_use"}).entry("tokenizer.chat_template.tool_use", "B"),
			`{"chat_template":[{"name":"default","template":"A"},{"name":"tool_use","template":"B"}]}`},
		{begin(3, 0, 3).entry("tokenizer.ggml.tokens", []string{"<s>", "</s>"}).entry("tokenizer.ggml.bos_token_id", uint32(0)).entry("tokenizer.ggml.eos_token_id", uint32(1)),
			`{"bos_token":"<s>","eos_token":"</s>"}`},
	} {
		f, err := parse(test.file.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.TokenizerConfig()
		if err != nil || string(got) != test.want {
			t.Errorf("%s, %v, want %s", got, err, test.want)
		}
	}
}
