// Package tokenizer turns text into token ids and back, from a checkpoint's tokenizer.json.
//
// A tokenizer is a chain: added tokens are cut out of the text, the rest is normalised, split into words, each word is
// encoded by byte-pair merges, and a post-processor adds the sequence's own special tokens. Every stage follows the
// reference implementation that checkpoints are made with, id for id; a stage that this package does not know is refused
// by name when the file is loaded, because a prompt that is tokenised almost right makes a model quietly worse.
//
// Trust: an added token (such as an end-of-turn marker) written by a user must stay plain text. EncodeSegments therefore
// takes text with the origin of each part and recognises added tokens only inside trusted parts, while words still join
// across the parts exactly as if the text had been one string.
package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"covey/engine/side"
)

// MaxFileBytes is the largest tokenizer.json that is read. The largest of the supported models holds 200,000 tokens and
// 450,000 merges in 28 MB.
const MaxFileBytes = 32 << 20

// ErrUnsupported is wrapped by errors about a component that the file asks for and this package does not implement.
var ErrUnsupported = errors.New("not supported")

// Segment is a piece of text with its origin. Only trusted text (a chat template, a program's own constants) may name
// added tokens; untrusted text that spells one is encoded as the characters it consists of.
type Segment struct {
	Text    string
	Trusted bool
}

// Tokenizer encodes and decodes text. It is immutable after loading and safe for concurrent use.
type Tokenizer struct {
	names   []string         // token by id; "" where the id is unused
	used    []bool           // whether an id names a token
	special []bool           // whether an id is an added token flagged special
	added   map[string]int32 // every added token by content
	raw     *matcher         // added tokens sought in the text as written
	normed  *matcher         // added tokens sought in normalised text

	normalize normalizer // nil = identity
	stages    []stage
	model     *bpe
	template  *template // nil = nothing is added
	decoder   *decoder

	encoders sync.Pool // *encoder
}

// Load reads the tokenizer.json at path; a folder means the file of that name inside it.
func Load(path string) (*Tokenizer, error) {
	dir, name := filepath.Split(path)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		dir, name = path, "tokenizer.json"
	}
	t, err := LoadFS(os.DirFS(cmp.Or(dir, ".")), name)
	if err != nil && dir != "" {
		return nil, fmt.Errorf("%w, in %s", err, dir)
	}
	return t, err
}

// LoadFS reads a tokenizer.json from a file system, such as the root of an opened model folder.
func LoadFS(fsys fs.FS, name string) (*Tokenizer, error) {
	text, err := side.Read(fsys, name, MaxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	t, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w (file %s)", err, name)
	}
	return t, nil
}

// Size is one more than the highest token id. It can be smaller than a model's embedding, which is often padded.
func (t *Tokenizer) Size() int { return len(t.names) }

// Vocab returns every token by id, in the vocabulary's own spelling (byte-level tokenizers write a space as "Ġ"). The
// text of an id that no token uses is "". The slice is the caller's.
func (t *Tokenizer) Vocab() []string { return append([]string(nil), t.names...) }

// Token returns the vocabulary's own spelling of an id; "" and false when no token has that id.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if !t.known(id) {
		return "", false
	}
	return t.names[id], true
}

// ID returns the id of a token in the vocabulary's own spelling.
func (t *Tokenizer) ID(token string) (int32, bool) {
	if id, ok := t.added[token]; ok {
		return id, true
	}
	id, ok := t.model.vocab[token]
	return id, ok
}

// Special reports whether id is an added token that is flagged special: one that decoding can leave out.
func (t *Tokenizer) Special(id int32) bool {
	return id >= 0 && int(id) < len(t.special) && t.special[id]
}

// Added reports whether text is an added token, special or not, and its id.
func (t *Tokenizer) Added(text string) (int32, bool) {
	id, ok := t.added[text]
	return id, ok
}

func (t *Tokenizer) known(id int32) bool {
	return id >= 0 && int(id) < len(t.used) && t.used[id]
}

// Encode returns the ids of text, which is trusted as a whole: added tokens that it spells are recognised. With
// addSpecial the post-processor's own tokens (such as a beginning of sequence) are put around it. Bytes that are not
// UTF-8 are read as U+FFFD. The error is that of a split pattern that exceeded its limits; the tokenizers that the
// checkpoints of the known families bring have none that can.
func (t *Tokenizer) Encode(text string, addSpecial bool) ([]int32, error) {
	return t.EncodeSegments([]Segment{{Text: text, Trusted: true}}, addSpecial)
}

// EncodeSegments returns the ids of the segments' joined text. Added tokens are recognised only where they lie wholly
// inside trusted text (adjoining trusted segments count as one). Untrusted text alone never yields the id of a special
// token other than the byte and unknown tokens that spell plain characters.
func (t *Tokenizer) EncodeSegments(segments []Segment, addSpecial bool) ([]int32, error) {
	text, marks := join(segments)
	e := t.encoder()
	defer t.encoders.Put(e)
	e.out = make([]int32, 0, len(text)/3+8)
	e.guard = marks != nil && t.model.guarded
	if addSpecial && t.template != nil {
		e.out = append(e.out, t.template.before...)
	}
	e.encode(text, marks)
	if addSpecial && t.template != nil {
		e.out = append(e.out, t.template.after...)
	}
	out, err := e.out, e.err
	e.out, e.err = nil, nil
	if err != nil {
		return nil, fmt.Errorf("tokenizer: encoding %d bytes: %w", len(text), err)
	}
	return out, nil
}
