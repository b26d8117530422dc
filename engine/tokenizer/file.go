package tokenizer

// Reading tokenizer.json. The file is untrusted: sizes are capped before memory is taken, nesting is bounded, and every
// component is either built exactly or refused by name. Its "truncation" and "padding" entries are settings of batch
// jobs, not of the vocabulary, and are not applied.

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits on what a file may hold.
const (
	maxID     = 1 << 20 // highest token id
	maxToken  = 4 << 10 // longest token, in bytes
	maxAdded  = 1 << 20 // all added tokens together, in bytes
	maxDepth  = 64      // deepest nesting of the JSON
	maxStages = 64      // pre-tokenizer stages
)

// fileConfig is the top level of tokenizer.json.
type fileConfig struct {
	AddedTokens   []addedToken
	Normalizer    *normalizerConfig
	PreTokenizer  *preTokenizerConfig
	PostProcessor *postProcessorConfig
	Decoder       *decoderConfig
	model         rawJSON
}

// modelConfig is the model, with its two long lists unread.
type modelConfig struct {
	Type                    string
	UnkToken                *string
	Dropout                 *float64
	ContinuingSubwordPrefix *string
	EndOfWordSuffix         *string
	FuseUnk                 bool
	ByteFallback            bool
	IgnoreMerges            bool
	vocab, merges           rawJSON
}

// patternConfig is a pattern: one of a string and a regular expression.
type patternConfig struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

func (p *patternConfig) literal() string {
	if p == nil || p.String == nil {
		return ""
	}
	return *p.String
}

// unsupported is the error about a component of that type.
func unsupported(where, kind string) error {
	if kind == "" {
		return fmt.Errorf("%s: no type given", where)
	}
	return fmt.Errorf("%s: component %q is %w; a prompt tokenised without it would be wrong", where, kind, ErrUnsupported)
}

// Parse builds a tokenizer from the bytes of a tokenizer.json.
func Parse(data []byte) (*Tokenizer, error) {
	var c fileConfig
	err := readObject(data, map[string]any{
		"added_tokens": &c.AddedTokens, "normalizer": &c.Normalizer, "pre_tokenizer": &c.PreTokenizer,
		"post_processor": &c.PostProcessor, "decoder": &c.Decoder, "model": &c.model,
	})
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	t, err := build(&c)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}

func build(c *fileConfig) (*Tokenizer, error) {
	t := &Tokenizer{added: make(map[string]int32, len(c.AddedTokens)), raw: newMatcher(), normed: newMatcher()}
	merges, err := t.buildModel(c.model)
	if err != nil {
		return nil, err
	}
	if err := t.nameTokens(c.AddedTokens); err != nil {
		return nil, err
	}
	list, err := c.Normalizer.build("normalizer")
	if err != nil {
		return nil, err
	}
	t.normalize = chain(list)
	for i := range c.AddedTokens {
		a := &c.AddedTokens[i]
		switch {
		case !a.normalized():
			t.raw.add(a.Content, a)
		case t.normalize == nil:
			t.normed.add(a.Content, a)
		default:
			spelling, err := t.normalize(a.Content)
			if err != nil {
				return nil, fmt.Errorf("added_tokens[%d]: %w", i, err)
			}
			t.normed.add(spelling, a)
		}
	}
	if t.stages, err = c.PreTokenizer.build("pre_tokenizer", 0); err != nil {
		return nil, err
	}
	if len(t.stages) > maxStages {
		return nil, fmt.Errorf("pre_tokenizer: %d stages; at most %d are read", len(t.stages), maxStages)
	}
	if n := len(t.stages); n > 0 {
		if s, ok := t.stages[n-1].(byteStage); ok {
			s.last = true
			t.stages[n-1] = s
			t.model.bytesIn = true
		}
	}
	if t.template, err = c.PostProcessor.build("post_processor", t); err != nil {
		return nil, err
	}
	if t.decoder, err = c.Decoder.build(); err != nil {
		return nil, err
	}
	t.model.prepare(t.special)
	t.model.seams = t.model.findSeams(merges)
	t.encoders.New = func() any { return &encoder{t: t, cache: make(map[string]cached)} }
	return t, nil
}

// buildModel reads the vocabulary and the merges.
func (t *Tokenizer) buildModel(raw rawJSON) ([]mergeNames, error) {
	if len(raw) == 0 {
		return nil, fmt.Errorf("model: missing")
	}
	var c modelConfig
	err := readObject(raw, map[string]any{
		"type": &c.Type, "unk_token": &c.UnkToken, "dropout": &c.Dropout, "fuse_unk": &c.FuseUnk,
		"continuing_subword_prefix": &c.ContinuingSubwordPrefix, "end_of_word_suffix": &c.EndOfWordSuffix,
		"byte_fallback": &c.ByteFallback, "ignore_merges": &c.IgnoreMerges, "vocab": &c.vocab, "merges": &c.merges,
	})
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	// Files written before models had a type are byte-pair encodings when they have merges.
	if c.Type != "BPE" && !(c.Type == "" && len(c.merges) > 0) {
		return nil, unsupported("model", c.Type)
	}
	if c.Dropout != nil && *c.Dropout > 0 {
		return nil, fmt.Errorf("model: dropout %g is %w; it makes tokens random", *c.Dropout, ErrUnsupported)
	}
	vocab, err := parseVocab(c.vocab)
	if err != nil {
		return nil, err
	}
	names, err := parseMerges(c.merges)
	if err != nil {
		return nil, err
	}
	m := &bpe{vocab: vocab, fuseUnk: c.FuseUnk, byteFallback: c.ByteFallback, ignoreMerges: c.IgnoreMerges}
	if c.ContinuingSubwordPrefix != nil {
		m.prefix = *c.ContinuingSubwordPrefix
	}
	if c.EndOfWordSuffix != nil {
		m.suffix = *c.EndOfWordSuffix
	}
	if c.UnkToken != nil {
		if m.unk, m.hasUnk = vocab[*c.UnkToken]; !m.hasUnk {
			return nil, fmt.Errorf("model.unk_token: %q is not in the vocabulary", *c.UnkToken)
		}
	}
	m.merges = newMergeTable(len(names))
	for rank, p := range names {
		a, okA := vocab[p.a]
		b, okB := vocab[p.b]
		if !okA || !okB || !strings.HasPrefix(p.b, m.prefix) {
			return nil, fmt.Errorf("model.merges[%d]: %.40q + %.40q: a side is not in the vocabulary", rank, p.a, p.b)
		}
		merged, ok := vocab[p.a+p.b[len(m.prefix):]]
		if !ok {
			return nil, fmt.Errorf("model.merges[%d]: %.40q + %.40q: the result is not in the vocabulary", rank, p.a, p.b)
		}
		m.merges.put(a, b, int32(rank), merged)
	}
	t.model = m
	return names, nil
}

// nameTokens fills the tables by id from the vocabulary and the added tokens.
func (t *Tokenizer) nameTokens(added []addedToken) error {
	top := int32(-1)
	for _, id := range t.model.vocab {
		top = max(top, id)
	}
	total := 0
	for i, a := range added {
		if a.ID < 0 || a.ID > maxID {
			return fmt.Errorf("added_tokens[%d]: id %d is outside 0..%d", i, a.ID, maxID)
		}
		if len(a.Content) > maxToken {
			return fmt.Errorf("added_tokens[%d]: content of %d bytes; at most %d are read", i, len(a.Content), maxToken)
		}
		if !utf8.ValidString(a.Content) {
			return fmt.Errorf("added_tokens[%d]: content is not UTF-8", i)
		}
		if total += len(a.Content); total > maxAdded {
			return fmt.Errorf("added_tokens[%d]: the tokens up to here have %d bytes; at most %d are read", i, total, maxAdded)
		}
		top = max(top, a.ID)
	}
	t.names, t.used, t.special = make([]string, top+1), make([]bool, top+1), make([]bool, top+1)
	for token, id := range t.model.vocab {
		if t.used[id] {
			return fmt.Errorf("model.vocab: %.40q and %.40q share id %d", t.names[id], token, id)
		}
		t.names[id], t.used[id] = token, true
	}
	for i, a := range added {
		if a.Content == "" {
			continue
		}
		if id, ok := t.model.vocab[a.Content]; ok && id != a.ID {
			return fmt.Errorf("added_tokens[%d]: %.40q has id %d here and %d in the vocabulary", i, a.Content, a.ID, id)
		}
		if id, ok := t.added[a.Content]; ok && id != a.ID {
			return fmt.Errorf("added_tokens[%d]: %.40q has id %d here and %d before", i, a.Content, a.ID, id)
		}
		if t.used[a.ID] && t.names[a.ID] != a.Content {
			return fmt.Errorf("added_tokens[%d]: %.40q takes id %d, which %.40q has", i, a.Content, a.ID, t.names[a.ID])
		}
		t.added[a.Content] = a.ID
		t.names[a.ID], t.used[a.ID] = a.Content, true
		t.special[a.ID] = t.special[a.ID] || a.Special
	}
	return nil
}

// mergeNames is a merge by its two sides.
type mergeNames struct{ a, b string }

// parseVocab reads {"token": id, ...}.
func parseVocab(raw rawJSON) (map[string]int32, error) {
	r := jsonReader{data: raw}
	vocab := make(map[string]int32, bytes.Count(raw, []byte{','})+1)
	for more := r.open('{', '}'); more; more = r.next('}') {
		token := r.text()
		r.want(':')
		id := r.number()
		if r.err == nil && id > maxID {
			r.err = fmt.Errorf("%.40q has id %d; at most %d are read", token, id, maxID)
		}
		if r.err == nil && len(token) > maxToken {
			r.err = fmt.Errorf("id %d: token of %d bytes; at most %d are read", id, len(token), maxToken)
		}
		vocab[token] = int32(id)
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	if len(vocab) == 0 {
		return nil, fmt.Errorf("model.vocab: empty")
	}
	return vocab, nil
}

// parseMerges reads ["a b", ...] or [["a", "b"], ...].
func parseMerges(raw rawJSON) ([]mergeNames, error) {
	r := jsonReader{data: raw}
	merges := make([]mergeNames, 0, bytes.Count(raw, []byte{','})/2+1)
	for more := r.open('[', ']'); more; more = r.next(']') {
		if r.take('[') {
			a := r.text()
			r.want(',')
			b := r.text()
			r.want(']')
			merges = append(merges, mergeNames{a, b})
			continue
		}
		s := r.text()
		if strings.HasPrefix(s, "#version") {
			continue
		}
		a, b, ok := strings.Cut(s, " ")
		if r.err == nil && (!ok || strings.Contains(b, " ")) {
			r.err = fmt.Errorf("entry %d: %.40q is not two tokens with a space between", len(merges), s)
		}
		merges = append(merges, mergeNames{a, b})
	}
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("model.merges: %w", err)
	}
	return merges, nil
}
