package tokenizer

// Reading tokenizer.json. The file is untrusted: sizes are capped before memory is taken, nesting is bounded, and every
// component is either built exactly or refused by name. Its "truncation" and "padding" entries are settings of batch
// jobs, not of the vocabulary, and are not applied.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits on what a file may hold.
const (
	maxID     = 1 << 22 // highest token id
	maxToken  = 4 << 10 // longest token, in bytes
	maxDepth  = 64      // deepest nesting of the JSON
	maxStages = 64      // pre-tokenizer stages
)

// fileConfig is the top level of tokenizer.json.
type fileConfig struct {
	AddedTokens   []addedToken         `json:"added_tokens"`
	Normalizer    *normalizerConfig    `json:"normalizer"`
	PreTokenizer  *preTokenizerConfig  `json:"pre_tokenizer"`
	PostProcessor *postProcessorConfig `json:"post_processor"`
	Decoder       *decoderConfig       `json:"decoder"`
	Model         *modelConfig         `json:"model"`
}

type modelConfig struct {
	Type                    string          `json:"type"`
	UnkToken                *string         `json:"unk_token"`
	Dropout                 *float64        `json:"dropout"`
	ContinuingSubwordPrefix *string         `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string         `json:"end_of_word_suffix"`
	FuseUnk                 bool            `json:"fuse_unk"`
	ByteFallback            bool            `json:"byte_fallback"`
	IgnoreMerges            bool            `json:"ignore_merges"`
	Vocab                   json.RawMessage `json:"vocab"`
	Merges                  json.RawMessage `json:"merges"`
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
	if err := checkDepth(data); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	var c fileConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("tokenizer: parsing: %w", err)
	}
	t, err := build(&c)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}

func build(c *fileConfig) (*Tokenizer, error) {
	t := &Tokenizer{added: make(map[string]int32, len(c.AddedTokens)), raw: newMatcher(), normed: newMatcher()}
	merges, err := t.buildModel(c.Model)
	if err != nil {
		return nil, err
	}
	if err := t.nameTokens(c.AddedTokens); err != nil {
		return nil, err
	}
	if t.normalize, err = c.Normalizer.build("normalizer"); err != nil {
		return nil, err
	}
	for i := range c.AddedTokens {
		a := &c.AddedTokens[i]
		switch {
		case !a.normalized():
			t.raw.add(a.Content, a)
		case t.normalize == nil:
			t.normed.add(a.Content, a)
		default:
			t.normed.add(t.normalize(a.Content), a)
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
	t.model.findSticky(merges)
	t.encoders.New = func() any { return &encoder{t: t, cache: make(map[string]cached)} }
	return t, nil
}

// buildModel reads the vocabulary and the merges.
func (t *Tokenizer) buildModel(c *modelConfig) ([]mergeNames, error) {
	if c == nil {
		return nil, fmt.Errorf("model: missing")
	}
	// Files written before models had a type are byte-pair encodings when they have merges.
	if c.Type != "BPE" && !(c.Type == "" && len(c.Merges) > 0) {
		return nil, unsupported("model", c.Type)
	}
	if c.Dropout != nil && *c.Dropout > 0 {
		return nil, fmt.Errorf("model: dropout %g is %w; it makes tokens random", *c.Dropout, ErrUnsupported)
	}
	vocab, err := parseVocab(c.Vocab)
	if err != nil {
		return nil, err
	}
	names, err := parseMerges(c.Merges)
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

// parseVocab reads {"token": id, ...}. The JSON has been checked for validity.
func parseVocab(raw json.RawMessage) (map[string]int32, error) {
	r := jsonReader{data: raw}
	if !r.take('{') {
		return nil, fmt.Errorf("model.vocab: not an object of token to id")
	}
	vocab := make(map[string]int32, bytes.Count(raw, []byte{','})+1)
	for !r.take('}') {
		token, ok := r.text()
		if !ok || !r.take(':') {
			return nil, fmt.Errorf("model.vocab: offset %d: not a token", r.at)
		}
		id, ok := r.number()
		if !ok || id < 0 || id > maxID {
			return nil, fmt.Errorf("model.vocab: %.40q: id is not a whole number in 0..%d", token, maxID)
		}
		if len(token) > maxToken {
			return nil, fmt.Errorf("model.vocab: id %d: token of %d bytes; at most %d are read", id, len(token), maxToken)
		}
		vocab[token] = int32(id)
		r.take(',')
	}
	if len(vocab) == 0 {
		return nil, fmt.Errorf("model.vocab: empty")
	}
	return vocab, nil
}

// parseMerges reads ["a b", ...] or [["a", "b"], ...].
func parseMerges(raw json.RawMessage) ([]mergeNames, error) {
	r := jsonReader{data: raw}
	if !r.take('[') {
		return nil, fmt.Errorf("model.merges: not a list")
	}
	merges := make([]mergeNames, 0, bytes.Count(raw, []byte{','})/2+1)
	for !r.take(']') {
		var p mergeNames
		if r.take('[') {
			a, okA := r.text()
			comma := r.take(',')
			b, okB := r.text()
			if !okA || !comma || !okB || !r.take(']') {
				return nil, fmt.Errorf("model.merges[%d]: not a pair of tokens", len(merges))
			}
			p = mergeNames{a, b}
		} else {
			s, ok := r.text()
			if ok && strings.HasPrefix(s, "#version") {
				r.take(',')
				continue
			}
			a, b, cut := strings.Cut(s, " ")
			if !ok || !cut || strings.Contains(b, " ") {
				return nil, fmt.Errorf("model.merges[%d]: not two tokens with a space between", len(merges))
			}
			p = mergeNames{a, b}
		}
		merges = append(merges, p)
		r.take(',')
	}
	return merges, nil
}

// jsonReader walks JSON that is known to be valid: a quarter of the time that reflection takes on these long lists.
type jsonReader struct {
	data []byte
	at   int
}

// take skips white space, then c if it is next.
func (r *jsonReader) take(c byte) bool {
	r.blank()
	if r.at < len(r.data) && r.data[r.at] == c {
		r.at++
		return true
	}
	return false
}

func (r *jsonReader) blank() {
	for r.at < len(r.data) && (r.data[r.at] == ' ' || r.data[r.at] == '\n' || r.data[r.at] == '\t' || r.data[r.at] == '\r') {
		r.at++
	}
}

func (r *jsonReader) text() (string, bool) {
	r.blank()
	if r.at >= len(r.data) || r.data[r.at] != '"' {
		return "", false
	}
	start, escaped := r.at, false
	for i := start + 1; i < len(r.data); i++ {
		switch r.data[i] {
		case '\\':
			escaped = true
			i++
		case '"':
			r.at = i + 1
			if !escaped {
				return string(r.data[start+1 : i]), true
			}
			var s string
			err := json.Unmarshal(r.data[start:i+1], &s)
			return s, err == nil
		}
	}
	return "", false
}

func (r *jsonReader) number() (int, bool) {
	r.blank()
	n, start := 0, r.at
	for r.at < len(r.data) && r.data[r.at] >= '0' && r.data[r.at] <= '9' {
		n = min(n*10+int(r.data[r.at]-'0'), 1<<40)
		r.at++
	}
	whole := r.at == len(r.data) || r.data[r.at] != '.' && r.data[r.at] != 'e' && r.data[r.at] != 'E'
	return n, whole && r.at > start
}

// checkDepth refuses JSON that nests deeper than maxDepth.
func checkDepth(data []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return fmt.Errorf("offset %d: nested deeper than %d", i, maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}
