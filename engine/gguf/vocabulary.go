package gguf

// Metadata to tokenizer.json, tokenizer_config.json and generation_config.json. A GGUF file names its way of splitting
// text ("qwen2") and leaves the pattern to the program; splits holds the patterns. Vocabularies of SentencePiece have scores
// in place of merges; byte-pair merges in order of score give the same ids (as Hugging Face's own converters do it).

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"covey/engine/tokenizer"
)

// Token types of tokenizer.ggml.token_type.
const (
	tokenNormal = 1 + iota
	tokenUnknown
	tokenControl
	tokenUserDefined
	tokenUnused
	tokenByte
)

// maxPiece is the longest piece of a SentencePiece vocabulary, in bytes. Merges are found by looking up every split.
const maxPiece = 256

// split is a way of splitting text before byte-pair encoding.
type split struct {
	patterns     []string // one after the other; none = the pattern of ByteLevel itself
	digits       bool     // every digit alone
	ignoreMerges bool     // a word that is a token is that token
	composed     bool     // text is normalised to NFC
	begins       bool     // a text begins with the token for that unless the file says otherwise
}

var (
	splitGPT2   = split{}
	splitDigits = split{digits: true}
	splitLlama3 = split{patterns: []string{tokenizer.PatternLlama3}}
	splitQwen2  = split{patterns: []string{tokenizer.PatternQwen2}}
	splitO200k  = split{patterns: []string{tokenizer.PatternO200k}}
)

// splits are the ways by the name in tokenizer.ggml.pre.
var splits = func() map[string]split {
	m := map[string]split{}
	put := func(s split, names string) {
		for _, name := range strings.Fields(names) {
			m[name] = s
		}
	}
	put(splitGPT2, "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat")
	put(splitDigits, "starcoder refact command-r smollm codeshell exaone minerva-7b")
	put(splitLlama3, "dbrx smaug-bpe chatglm-bpe")
	put(split{patterns: splitLlama3.patterns, ignoreMerges: true}, "glm4 glm5")
	put(split{patterns: splitLlama3.patterns, ignoreMerges: true, begins: true}, "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral lfm2")
	put(splitQwen2, "stablelm2 hunyuan solar-open grok-2")
	put(split{patterns: splitQwen2.patterns, composed: true}, "qwen2 deepseek-r1-qwen megrez kormo")
	put(splitO200k, "gpt-4o llama4 minimax-m2 kanana2")
	put(split{patterns: []string{tokenizer.PatternNumbers3, tokenizer.PatternCJK, tokenizer.PatternDeepSeek}}, "deepseek-v3 hunyuan-dense joyai-llm")
	put(split{patterns: []string{`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
		ignoreMerges: true, begins: true}, "tekken")
	put(split{patterns: []string{
		`[\r\n]`,
		`\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+`,
		`\s?[!-/:-~！-／：-～‘-‟　-。]+`, `\s+$`, `[一-龥ࠀ-一가-퟿]+`, `\p{N}+`,
	}}, "deepseek-llm")
	put(split{patterns: []string{`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, `[一-龥ࠀ-一가-퟿]+`, `\p{N}`}}, "deepseek-coder")
	return m
}()

const tokens = "tokenizer.ggml."

// vocabulary is what a file says about its tokens.
type vocabulary struct {
	texts []string
	types []int64
}

// readVocabulary reads tokens and their types; nil if the file has none.
func (f *File) readVocabulary() (*vocabulary, error) {
	var v vocabulary
	var err error
	if v.texts, err = f.Texts(tokens + "tokens"); err != nil || v.texts == nil {
		return nil, err
	}
	if v.types, err = f.Integers(tokens + "token_type"); err != nil {
		return nil, err
	}
	if v.types == nil {
		v.types = slices.Repeat([]int64{tokenNormal}, len(v.texts))
	}
	if len(v.types) != len(v.texts) {
		return nil, &Error{Key: tokens + "token_type", Offset: -1, Problem: fmt.Sprintf("%d types for %d tokens", len(v.types), len(v.texts))}
	}
	return &v, nil
}

// id reads the id of a token with a purpose ("bos"); false when there is none.
func (f *File) id(purpose string, v *vocabulary) (int64, bool, error) {
	key := tokens + purpose + "_token_id"
	id, ok, err := f.Integer(key)
	switch {
	case err != nil || !ok || id == -1 || id == 1<<32-1: // both spellings of "none" occur
		return 0, false, err
	case id < 0 || id >= int64(len(v.texts)):
		return 0, false, &Error{Key: key, Offset: -1, Problem: fmt.Sprintf("%d is outside the vocabulary of %d", id, len(v.texts))}
	}
	return id, true, nil
}

// endings are texts of control tokens that end an answer, whatever the file calls them.
var endings = strings.Fields(`<|endoftext|> <|end_of_text|> <|im_end|> <|end|> <|eot_id|> <|eom_id|> <|return|> <|call|> <end_of_turn>`)

// ends are the ids of tokens that end an answer, ascending.
func (f *File) ends() ([]int64, error) {
	v, err := f.readVocabulary()
	if err != nil {
		return nil, err
	}
	if v == nil { // a file without a vocabulary may name an end all the same
		if id, ok, err := f.Integer(tokens + "eos_token_id"); err != nil || ok && id >= 0 {
			return []int64{id}, err
		}
		return nil, nil
	}
	var ids []int64
	for _, purpose := range []string{"eos", "eot", "eom"} {
		id, ok, err := f.id(purpose, v)
		if err != nil {
			return nil, err
		}
		if ok {
			ids = append(ids, id)
		}
	}
	for id, text := range v.texts {
		if v.types[id] == tokenControl && slices.Contains(endings, text) {
			ids = append(ids, int64(id))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Tokenizer is tokenizer.json; nil for a file without a vocabulary.
func (f *File) Tokenizer() ([]byte, error) {
	if text, ok, err := f.Text("tokenizer.huggingface.json"); err != nil || ok {
		return []byte(text), err
	}
	const key = tokens + "model"
	model, ok, err := f.Text(key)
	if err != nil || !ok || model == "none" || model == "no_vocab" {
		return nil, err
	}
	v, err := f.readVocabulary()
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, &Error{Key: tokens + "tokens", Offset: -1, Problem: "missing"}
	}
	w := &writer{}
	switch model {
	case "gpt2":
		err = f.byteLevel(v, w)
	case "llama":
		err = f.sentencePiece(v, w)
	default:
		return nil, &Error{Key: key, Offset: -1, Problem: fmt.Sprintf("%q is not supported; gpt2 and llama are", model)}
	}
	if err != nil {
		return nil, err
	}
	return w.out.Bytes(), nil
}

// writer writes tokenizer.json: its lists are long, the rest is small.
type writer struct{ out bytes.Buffer }

func (w *writer) value(v any) {
	text, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic("gguf: " + err.Error()) // maps, texts and numbers only
	}
	w.out.Write(text)
}

func (w *writer) text(s string) {
	text, err := jsontext.AppendQuote(w.out.AvailableBuffer(), s)
	if err != nil {
		panic("gguf: " + err.Error()) // texts were checked to be UTF-8
	}
	w.out.Write(text)
}

// object is a JSON object.
type object = map[string]any

// head writes everything but the model.
func (w *writer) head(v *vocabulary, parts object) {
	var added []object
	for id, text := range v.texts {
		switch v.types[id] {
		case tokenControl, tokenUserDefined, tokenUnknown:
			if text != "" {
				added = append(added, object{"id": id, "content": text, "special": v.types[id] != tokenUserDefined, "normalized": false,
					"single_word": false, "lstrip": false, "rstrip": false})
			}
		}
	}
	parts["added_tokens"] = added
	parts["version"] = "1.0"
	w.out.WriteByte('{')
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		w.text(key)
		w.out.WriteByte(':')
		w.value(parts[key])
		w.out.WriteByte(',')
	}
}

// vocab writes "vocab" of the model: all tokens but unused ones and those that are only added.
func (w *writer) vocab(v *vocabulary) error {
	w.out.WriteString(`"vocab":{`)
	seen := make(map[string]bool, len(v.texts))
	first := true
	for id, text := range v.texts {
		if v.types[id] == tokenUnused || v.types[id] == tokenControl || v.types[id] == tokenUserDefined {
			continue
		}
		if seen[text] {
			return &Error{Key: tokens + "tokens", Offset: -1, Problem: fmt.Sprintf("token %d, %.40q, is there twice", id, text)}
		}
		seen[text] = true
		if !first {
			w.out.WriteByte(',')
		}
		first = false
		w.text(text)
		fmt.Fprintf(&w.out, ":%d", id)
	}
	w.out.WriteByte('}')
	return nil
}

// wrap is the post-processor that puts the tokens for beginning and end around a text; nil = none.
func (f *File) wrap(v *vocabulary, begins bool) (any, error) {
	var single []object
	special := object{}
	put := func(purpose, key string, absent bool) error {
		want, given, err := f.Bool(tokens + key)
		if err != nil {
			return err
		}
		if !given {
			want = absent
		}
		id, ok, err := f.id(purpose, v)
		if err != nil || !ok || !want {
			return err
		}
		text := v.texts[id]
		single = append(single, object{"SpecialToken": object{"id": text, "type_id": 0}})
		special[text] = object{"id": text, "ids": []int64{id}, "tokens": []string{text}}
		return nil
	}
	if err := put("bos", "add_bos_token", begins); err != nil {
		return nil, err
	}
	single = append(single, object{"Sequence": object{"id": "A", "type_id": 0}})
	if err := put("eos", "add_eos_token", false); err != nil {
		return nil, err
	}
	if len(special) == 0 {
		return nil, nil
	}
	return object{"type": "TemplateProcessing", "single": single, "special_tokens": special}, nil
}

// byteLevel writes a tokenizer of the GPT-2 kind.
func (f *File) byteLevel(v *vocabulary, w *writer) error {
	const key = tokens + "pre"
	pre, ok, err := f.Text(key)
	if err != nil {
		return err
	}
	s, known := splits[pre]
	if !ok || !known {
		return &Error{Key: key, Offset: -1, Problem: fmt.Sprintf("%q is not a way of splitting text that is known; a prompt split another way would be read wrongly", pre)}
	}
	merges, err := f.Texts(tokens + "merges")
	if err != nil {
		return err
	}
	if merges == nil {
		return &Error{Key: tokens + "merges", Offset: -1, Problem: "missing"}
	}
	around, err := f.wrap(v, s.begins)
	if err != nil {
		return err
	}
	var stages []object
	if s.digits {
		stages = append(stages, object{"type": "Digits", "individual_digits": true})
	}
	for _, p := range s.patterns {
		stages = append(stages, object{"type": "Split", "pattern": object{"Regex": p}, "behavior": "Isolated", "invert": false})
	}
	stages = append(stages, object{"type": "ByteLevel", "add_prefix_space": false, "use_regex": len(s.patterns) == 0})
	parts := object{"pre_tokenizer": object{"type": "Sequence", "pretokenizers": stages}, "decoder": object{"type": "ByteLevel"}, "post_processor": around}
	if s.composed {
		parts["normalizer"] = object{"type": "NFC"}
	}
	w.head(v, parts)
	fmt.Fprintf(&w.out, `"model":{"type":"BPE","ignore_merges":%t,`, s.ignoreMerges)
	if err := w.vocab(v); err != nil {
		return err
	}
	w.out.WriteString(`,"merges":[`)
	for i, merge := range merges {
		if i > 0 {
			w.out.WriteByte(',')
		}
		w.text(merge)
	}
	w.out.WriteString(`]}}`)
	return nil
}

// sentencePiece writes a tokenizer of the Llama kind: spaces are written "▁", characters outside the vocabulary as bytes.
func (f *File) sentencePiece(v *vocabulary, w *writer) error {
	scores, err := f.Numbers(tokens + "scores")
	if err != nil {
		return err
	}
	if len(scores) != len(v.texts) {
		return &Error{Key: tokens + "scores", Offset: -1, Problem: fmt.Sprintf("%d scores for %d tokens", len(scores), len(v.texts))}
	}
	around, err := f.wrap(v, true)
	if err != nil {
		return err
	}
	prefix, given, err := f.Bool(tokens + "add_space_prefix")
	if err != nil {
		return err
	}
	prefix = prefix || !given
	const space = "▁"
	normalizers := []object{{"type": "Replace", "pattern": object{"String": " "}, "content": space}}
	decoders := []object{{"type": "Replace", "pattern": object{"String": space}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}}
	if prefix {
		normalizers = slices.Insert(normalizers, 0, object{"type": "Prepend", "prepend": space})
		decoders = append(decoders, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	merges, err := mergesByScore(v, scores)
	if err != nil {
		return err
	}
	w.head(v, object{"normalizer": object{"type": "Sequence", "normalizers": normalizers}, "decoder": object{"type": "Sequence", "decoders": decoders}, "post_processor": around})
	w.out.WriteString(`"model":{"type":"BPE","byte_fallback":true,"fuse_unk":true,`)
	if id, ok, err := f.id("unknown", v); err != nil {
		return err
	} else if ok && v.types[id] == tokenUnknown {
		w.out.WriteString(`"unk_token":`)
		w.text(v.texts[id])
		w.out.WriteByte(',')
	}
	if err := w.vocab(v); err != nil {
		return err
	}
	w.out.WriteString(`,"merges":[`)
	for i, m := range merges {
		if i > 0 {
			w.out.WriteByte(',')
		}
		w.out.WriteByte('[')
		w.text(m.left)
		w.out.WriteByte(',')
		w.text(m.right)
		w.out.WriteByte(']')
	}
	w.out.WriteString(`]}}`)
	return nil
}

// merge is a pair of pieces that join to a third, which has a score.
type merge struct {
	left, right string
	score       float32
}

// mergesByScore lists all merges of a SentencePiece vocabulary, the best score first. A piece that two pairs join to takes
// the pair with the longer left side first, as the reference converter orders them.
func mergesByScore(v *vocabulary, scores []float32) ([]merge, error) {
	ids := make(map[string]int, len(v.texts))
	for id, text := range v.texts {
		if v.types[id] == tokenNormal {
			ids[text] = id
		}
	}
	var merges []merge
	for id, text := range v.texts {
		if v.types[id] != tokenNormal {
			continue
		}
		if len(text) > maxPiece {
			return nil, &Error{Key: tokens + "tokens", Offset: -1, Problem: fmt.Sprintf("token %d has %d bytes, more than the %d allowed", id, len(text), maxPiece)}
		}
		for at := range text {
			if at == 0 {
				continue
			}
			left, right := text[:at], text[at:]
			if _, ok := ids[left]; !ok {
				continue
			}
			if _, ok := ids[right]; ok {
				merges = append(merges, merge{left, right, scores[id]})
			}
		}
		if len(merges) > maxElements {
			return nil, &Error{Key: tokens + "tokens", Offset: -1, Problem: fmt.Sprintf("more than %d merges", maxElements)}
		}
	}
	slices.SortStableFunc(merges, func(a, b merge) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(utf8.RuneCountInString(b.left), utf8.RuneCountInString(a.left)))
	})
	return merges, nil
}

// TokenizerConfig is tokenizer_config.json: the texts of tokens with a purpose, and the chat template.
func (f *File) TokenizerConfig() ([]byte, error) {
	config := object{}
	v, err := f.readVocabulary()
	if err != nil {
		return nil, err
	}
	if v != nil {
		for purpose, name := range map[string]string{"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"} {
			id, ok, err := f.id(purpose, v)
			if err != nil {
				return nil, err
			}
			if ok {
				config[name] = v.texts[id]
			}
		}
	}
	const key = "tokenizer.chat_template"
	template, ok, err := f.Text(key)
	if err != nil {
		return nil, err
	}
	names, err := f.Texts("tokenizer.chat_templates")
	if err != nil {
		return nil, err
	}
	switch {
	case len(names) == 0 && ok:
		config["chat_template"] = template
	case len(names) > 0:
		var list []object
		if ok {
			list = append(list, object{"name": "default", "template": template})
		}
		for _, name := range names {
			if text, there, err := f.Text(key + "." + name); err != nil {
				return nil, err
			} else if there && (name != "default" || !ok) {
				list = append(list, object{"name": name, "template": text})
			}
		}
		config["chat_template"] = list
	}
	return json.Marshal(config, json.Deterministic(true))
}

// GenerationConfig is generation_config.json, the suggested sampling; nil if the file suggests none.
func (f *File) GenerationConfig() ([]byte, error) {
	config := object{}
	for name, key := range map[string]string{"temperature": "temp", "top_p": "top_p", "min_p": "min_p", "repetition_penalty": "penalty_repeat"} {
		x, ok, err := f.Number("general.sampling." + key)
		if err != nil {
			return nil, err
		}
		if ok {
			config[name] = x
		}
	}
	if k, ok, err := f.Integer("general.sampling.top_k"); err != nil {
		return nil, err
	} else if ok {
		config["top_k"] = k
	}
	if len(config) == 0 {
		return nil, nil
	}
	return json.Marshal(config, json.Deterministic(true))
}
