// Package answer is the client's copy of a running answer: text by channel with byte offsets, and the part of it that
// no rendered block holds yet. It knows no document, so that it is tested natively.
package answer

import "covey/web/wire"

// Answer grows by Tokens frames and is cut by blocks. The zero value is an empty answer.
type Answer struct {
	Tokens int // tokens had
	Blocks int // blocks had

	start     int    // bytes of answer text that rendered blocks hold
	open      string // answer text after start
	reasoning int    // bytes of reasoning text had
}

// Resume returns an answer of which a page already shows some: tokens, blocks, bytes of answer and reasoning text, and
// the open text, which ends at bytes.
func Resume(tokens, blocks, bytes, reasoning int, open string) *Answer {
	return &Answer{Tokens: tokens, Blocks: blocks, start: max(bytes-len(open), 0), open: open, reasoning: reasoning}
}

// Open is the text that follows the rendered blocks.
func (a *Answer) Open() string { return a.open }

// Bytes is the length of the answer text had.
func (a *Answer) Bytes() int { return a.start + len(a.open) }

// Reasoning is the length of the reasoning text had.
func (a *Answer) Reasoning() int { return a.reasoning }

// Add takes a frame and returns the new text of answer and reasoning. Text that it already has is skipped; it is false
// if text between what it has and the frame is missing, in which case nothing was taken and the message must be asked
// for anew.
func (a *Answer) Add(f wire.Tokens) (text, thought string, ok bool) {
	if f.First > a.Tokens || f.Answer > a.Bytes() || f.Reasoning > a.reasoning {
		return "", "", false
	}
	text, thought = beyond(f.Text, f.Answer, a.Bytes()), beyond(f.Thought, f.Reasoning, a.reasoning)
	a.open += text
	a.reasoning += len(thought)
	a.Tokens = max(a.Tokens, f.First+len(f.Tokens))
	return text, thought, true
}

// beyond is the part of text, which begins at offset at, from offset have on.
func beyond(text string, at, have int) string { return text[min(max(have-at, 0), len(text)):] }

// Close drops the open text before a byte offset of the answer: a rendered block holds it now. fresh is false if an
// earlier block held it already; ok is false if the offset lies beyond the text had.
func (a *Answer) Close(end int) (fresh, ok bool) {
	if end > a.Bytes() {
		return false, false
	}
	if end <= a.start {
		return false, true
	}
	a.open = a.open[end-a.start:]
	a.start = end
	a.Blocks++
	return true, true
}

// Fence splits open text that is the beginning of a code block: its language and the code so far. False for other text.
func Fence(open string) (language, code string, ok bool) {
	i := 0
	for i < len(open) && open[i] == '\n' {
		i++
	}
	text := open[i:]
	n := 0
	for n < len(text) && text[n] == '`' {
		n++
	}
	if n < 3 {
		return "", "", false
	}
	for end := n; end < len(text); end++ {
		if text[end] == '\n' {
			return text[n:end], text[end+1:], true
		}
	}
	return "", "", false
}
