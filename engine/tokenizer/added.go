package tokenizer

// Added tokens are sought before anything else, leftmost first and longest at one place. The text as written is searched
// for those that are not "normalized", then each remaining piece, once normalised, for the others.

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is one entry of tokenizer.json's added_tokens.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only between characters that are not part of a word
	LStrip     bool   `json:"lstrip"`      // takes the white space before it
	RStrip     bool   `json:"rstrip"`      // takes the white space after it
	Normalized *bool  `json:"normalized"`  // sought in normalised text; default: not special
	Special    bool   `json:"special"`
}

func (a *addedToken) normalized() bool {
	if a.Normalized != nil {
		return *a.Normalized
	}
	return !a.Special
}

// matcher finds added tokens in a text: a trie over bytes, entered only at bytes that some token begins with.
type matcher struct {
	first  [256]bool
	nodes  []trieNode // nodes[0] is the root
	tokens []*addedToken
}

// trieNode is a node with its children as a list, 16 bytes in all: files may add 100,000 tokens.
type trieNode struct {
	child, sibling int32 // first child; next child of the same parent; 0 = none
	token          int32 // index into tokens, -1 = none ends here
	label          byte
}

func newMatcher() *matcher { return &matcher{nodes: []trieNode{{token: -1}}} }

// step is the child of a node by that byte, 0 if none.
func (m *matcher) step(node int32, label byte) int32 {
	at := m.nodes[node].child
	for at != 0 && m.nodes[at].label != label {
		at = m.nodes[at].sibling
	}
	return at
}

// add makes the matcher find spelling as token. A later token with the same spelling does not replace an earlier one.
func (m *matcher) add(spelling string, token *addedToken) {
	if spelling == "" {
		return
	}
	m.first[spelling[0]] = true
	at := int32(0)
	for i := range len(spelling) {
		next := m.step(at, spelling[i])
		if next == 0 {
			next = int32(len(m.nodes))
			m.nodes = append(m.nodes, trieNode{sibling: m.nodes[at].child, token: -1, label: spelling[i]})
			m.nodes[at].child = next
		}
		at = next
	}
	if m.nodes[at].token < 0 {
		m.nodes[at].token = int32(len(m.tokens))
		m.tokens = append(m.tokens, token)
	}
}

// longest is the longest token that begins at text[at:] and passes ok, with its length; nil if none does.
func (m *matcher) longest(text string, at int, ok func(end int) bool) (*addedToken, int) {
	var found *addedToken
	end, node := at, int32(0)
	for i := at; i < len(text); i++ {
		if node = m.step(node, text[i]); node == 0 {
			break
		}
		if t := m.nodes[node].token; t >= 0 && ok(i+1) {
			found, end = m.tokens[t], i+1
		}
	}
	return found, end
}

// split walks text: text between tokens goes to gap with its range, tokens go to token. White space that a token with
// lstrip or rstrip takes belongs to the token.
func (m *matcher) split(text string, marks trust, gap func(start, end int), token func(id int32)) {
	if m == nil || len(m.tokens) == 0 {
		gap(0, len(text))
		return
	}
	from := 0 // start of the text that has not been handed out
	for at := 0; at < len(text); {
		if !m.first[text[at]] {
			at++
			continue
		}
		start := at
		found, stop := m.longest(text, start, func(end int) bool { return marks.covers(start, end) })
		if found == nil {
			at++
			continue
		}
		at = stop
		if found.SingleWord && (endsWithWord(text[:start]) || startsWithWord(text[stop:])) {
			continue
		}
		if found.LStrip {
			start = max(len(strings.TrimRightFunc(text[:start], unicode.IsSpace)), from)
		}
		if found.RStrip {
			stop = len(text) - len(strings.TrimLeftFunc(text[stop:], unicode.IsSpace))
		}
		if start > from {
			gap(from, start)
		}
		token(found.ID)
		from = stop // beyond at after rstrip: the reference still finds a token in white space that was taken, and so do we
	}
	if from < len(text) {
		gap(from, len(text))
	}
}

func endsWithWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func startsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

// isWord is \w of Unicode's regular expressions (UTS 18, annex C).
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
