package tokenizer

// Reading tokenizer.json. The file is untrusted: sizes are capped before memory is taken, nesting is bounded, and every
// component is either built exactly or refused by name. Its "truncation" and "padding" entries are settings of batch
// jobs, not of the vocabulary, and are not applied.

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits on what a file may hold.
const (
	maxID     = 1 << 19 // highest token id
	maxList   = 1 << 19 // tokens of the vocabulary, and merges: the longest in use have 262,144 and 450,000
	maxToken  = 4 << 10 // longest token, in bytes
	maxAdded  = 1 << 20 // all added tokens together, in bytes
	maxText   = 1 << 20 // longest string of the JSON
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
	Model         modelConfig
}

// modelConfig is the model.
type modelConfig struct {
	Type                    string
	UnkToken                *string
	Dropout                 *float64
	ContinuingSubwordPrefix *string
	EndOfWordSuffix         *string
	FuseUnk                 bool
	ByteFallback            bool
	IgnoreMerges            bool
	vocab                   map[string]int32
	merges                  []mergeNames
	unigram                 bool // vocab is a list, as other models than byte-pair encodings have it
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
func Parse(data []byte) (*Tokenizer, error) { return parse(string(data)) }

// parse is Parse of a text, which is not kept.
func parse(text string) (*Tokenizer, error) {
	var c fileConfig
	r := jsonReader{data: text}
	r.object(map[string]any{
		"added_tokens": &c.AddedTokens, "normalizer": &c.Normalizer, "pre_tokenizer": &c.PreTokenizer,
		"post_processor": &c.PostProcessor, "decoder": &c.Decoder, "model": func() { c.Model.read(&r) },
	})
	if err := r.end(); err != nil {
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
	if err := t.buildModel(&c.Model); err != nil {
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
	t.model.seams = t.model.findSeams(c.Model.merges)
	t.settle()
	t.encoders.New = func() any { return &encoder{t: t, cache: make(map[string]cached)} }
	return t, nil
}

// read reads the model where r stands.
func (c *modelConfig) read(r *jsonReader) {
	r.object(map[string]any{
		"type": &c.Type, "unk_token": &c.UnkToken, "dropout": &c.Dropout, "fuse_unk": &c.FuseUnk,
		"continuing_subword_prefix": &c.ContinuingSubwordPrefix, "end_of_word_suffix": &c.EndOfWordSuffix,
		"byte_fallback": &c.ByteFallback, "ignore_merges": &c.IgnoreMerges,
		"vocab": func() {
			if c.unigram = r.peek() == '['; c.unigram {
				r.value()
				return
			}
			c.vocab = r.vocab()
		},
		"merges": func() { c.merges = r.merges() },
	})
}

// buildModel makes the model of its vocabulary and merges.
func (t *Tokenizer) buildModel(c *modelConfig) error {
	// Files written before models had a type are byte-pair encodings when they have merges.
	switch {
	case c.Type == "" && c.vocab == nil && !c.unigram:
		return fmt.Errorf("model: missing")
	case c.Type != "BPE" && !(c.Type == "" && c.merges != nil):
		return unsupported("model", c.Type)
	case len(c.vocab) == 0:
		return fmt.Errorf("model.vocab: empty")
	}
	if c.Dropout != nil && *c.Dropout > 0 {
		return fmt.Errorf("model: dropout %g is %w; it makes tokens random", *c.Dropout, ErrUnsupported)
	}
	vocab, names := c.vocab, c.merges
	m := &bpe{vocab: vocab, fuseUnk: c.FuseUnk, byteFallback: c.ByteFallback, ignoreMerges: c.IgnoreMerges}
	if c.ContinuingSubwordPrefix != nil {
		m.prefix = *c.ContinuingSubwordPrefix
	}
	if c.EndOfWordSuffix != nil {
		m.suffix = *c.EndOfWordSuffix
	}
	if c.UnkToken != nil {
		if m.unk, m.hasUnk = vocab[*c.UnkToken]; !m.hasUnk {
			return fmt.Errorf("model.unk_token: %q is not in the vocabulary", *c.UnkToken)
		}
	}
	m.merges = newMergeTable(len(names))
	for rank, p := range names {
		a, okA := vocab[p.a]
		b, okB := vocab[p.b]
		if !okA || !okB || !strings.HasPrefix(p.b, m.prefix) {
			return fmt.Errorf("model.merges[%d]: %.40q + %.40q: a side is not in the vocabulary", rank, p.a, p.b)
		}
		merged, ok := vocab[p.a+p.b[len(m.prefix):]]
		if !ok {
			return fmt.Errorf("model.merges[%d]: %.40q + %.40q: the result is not in the vocabulary", rank, p.a, p.b)
		}
		m.merges.put(a, b, int32(rank), merged)
	}
	t.model = m
	return nil
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

// settle copies the vocabulary out of the file's text, all of which would stay in memory with any part of it.
func (t *Tokenizer) settle() {
	vocab := make(map[string]int32, len(t.model.vocab))
	for token, id := range t.model.vocab {
		own := strings.Clone(token)
		vocab[own], t.names[id] = id, own
	}
	t.model.vocab = vocab
}

// mergeNames is a merge by its two sides.
type mergeNames struct{ a, b string }

// vocab reads {"token": id, ...}.
func (r *jsonReader) vocab() map[string]int32 {
	n := r.count('{', '}', "tokens", func() {
		r.skipText()
		r.want(':')
		r.number()
	})
	vocab := make(map[string]int32, n)
	for more := r.open('{', '}'); more; more = r.next('}') {
		token := r.text()
		r.want(':')
		id := r.number()
		before := len(vocab)
		vocab[token] = int32(id)
		switch {
		case r.err != nil:
		case id > maxID:
			r.err = fmt.Errorf("%.40q has id %d; at most %d are read", token, id, maxID)
		case len(token) > maxToken:
			r.err = fmt.Errorf("id %d: token of %d bytes; at most %d are read", id, len(token), maxToken)
		case len(vocab) == before:
			r.err = fmt.Errorf("%.40q is given twice", token)
		}
	}
	r.within("model.vocab")
	return vocab
}

// version begins a line of older files that is no merge.
const version = "#version"

// merges reads ["a b", ...] or [["a", "b"], ...].
func (r *jsonReader) merges() []mergeNames {
	entry := 0
	pair := func(s string) (m mergeNames) {
		var ok bool
		if m.a, m.b, ok = strings.Cut(s, " "); r.err == nil && (!ok || strings.Contains(m.b, " ")) {
			r.err = fmt.Errorf("entry %d: %.40q is not two tokens with a space between", entry, s)
		}
		return m
	}
	n := r.count('[', ']', "merges", func() {
		switch {
		case r.take('['):
			r.skipText()
			r.want(',')
			r.skipText()
			r.want(']')
		default:
			r.blank()
			if raw, escaped := r.quoted(); !escaped && !strings.HasPrefix(raw, version) {
				pair(raw)
			}
		}
		entry++
	})
	entry = 0
	merges := make([]mergeNames, 0, n)
	for more := r.open('[', ']'); more; more = r.next(']') {
		var m mergeNames
		if r.take('[') {
			m.a = r.text()
			r.want(',')
			m.b = r.text()
			r.want(']')
		} else {
			s := r.text()
			if strings.HasPrefix(s, version) {
				continue
			}
			m = pair(s)
		}
		merges = append(merges, m)
		entry++
	}
	r.within("model.merges")
	return merges
}

// count reads a list or object without keeping anything, and goes back to its beginning: a file that is wrong at its end, or
// too long, costs no memory, and one that is not costs as much as it needs.
func (r *jsonReader) count(begin, end byte, what string, element func()) int {
	n, at := 0, r.at
	for more := r.open(begin, end); more; more = r.next(end) {
		if element(); n == maxList && r.err == nil {
			r.err = fmt.Errorf("more than the %d %s that are read", maxList, what)
		}
		n++
	}
	if r.err != nil {
		return 0
	}
	r.at = at
	return n
}

// within says of an error where it was met.
func (r *jsonReader) within(place string) {
	if r.err != nil {
		r.err = fmt.Errorf("%s: %w", place, r.err)
	}
}
