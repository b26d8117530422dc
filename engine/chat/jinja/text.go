package jinja

import (
	"strings"
	"unicode/utf8"
)

// Text is a string that remembers where its bytes came from. Bytes of the template are trusted, bytes of messages and
// tools are not, and every operation of the language carries the mark of each byte along. The zero value is empty.
type Text struct {
	s    string
	mask string // "" = all trusted; else a byte for each byte of s, 0 = trusted
}

// Trusted is text that may name control tokens.
func Trusted(s string) Text { return Text{s: s} }

// Untrusted is text that is only ever text.
func Untrusted(s string) Text { return Text{s, strings.Repeat("\x01", len(s))} }

// String is the text without its marks.
func (t Text) String() string { return t.s }

// Runs calls yield for each longest part of one origin, in order.
func (t Text) Runs(yield func(part string, trusted bool)) {
	for from := 0; from < len(t.s); {
		end := len(t.s)
		if t.mask != "" {
			end = from + 1
			for end < len(t.s) && t.mask[end] == t.mask[from] {
				end++
			}
		}
		yield(t.s[from:end], t.mask == "" || t.mask[from] == 0)
		from = end
	}
}

// slice is the bytes [i, j).
func (t Text) slice(i, j int) Text {
	if t.mask == "" {
		return Text{s: t.s[i:j]}
	}
	return Text{t.s[i:j], t.mask[i:j]}
}

// plus is t followed by u.
func (t Text) plus(u Text) Text {
	var b builder
	b.write(t)
	b.write(u)
	return b.text()
}

// mapRunes replaces each character by what f gives for it; i is its byte offset.
func (t Text) mapRunes(f func(i int, r rune) string) Text {
	var b builder
	for i, r := range t.s {
		b.mapped(f(i, r), t, i)
	}
	return b.text()
}

// characters cuts t into its characters.
func (t Text) characters() []Text {
	out := make([]Text, 0, len(t.s))
	for i := 0; i < len(t.s); {
		_, n := utf8.DecodeRuneInString(t.s[i:])
		out = append(out, t.slice(i, i+n))
		i += n
	}
	return out
}

// trimFunc removes characters that meet cut from the ends.
func (t Text) trimFunc(cut func(rune) bool, left, right bool) Text {
	i, j := 0, len(t.s)
	if left {
		i = len(t.s) - len(strings.TrimLeftFunc(t.s, cut))
	}
	if right {
		j = max(i, len(strings.TrimRightFunc(t.s, cut)))
	}
	return t.slice(i, j)
}

// replace puts new for the first n occurrences of old, all if n < 0.
func (t Text) replace(old string, new Text, n int) Text {
	if old == "" {
		return t.interleave(new, n)
	}
	var b builder
	for n != 0 {
		i := strings.Index(t.s, old)
		if i < 0 {
			break
		}
		b.write(t.slice(0, i))
		b.write(new)
		t = t.slice(i+len(old), len(t.s))
		n--
	}
	b.write(t)
	return b.text()
}

// interleave puts new before the first n characters, and at the end if the count allows: replacing the empty string.
func (t Text) interleave(new Text, n int) Text {
	var b builder
	for _, c := range t.characters() {
		if n != 0 {
			b.write(new)
			n--
		}
		b.write(c)
	}
	if n != 0 {
		b.write(new)
	}
	return b.text()
}

// split cuts at sep, at most n times if n >= 0.
func (t Text) split(sep string, n int) []Text {
	var out []Text
	for n != 0 {
		i := strings.Index(t.s, sep)
		if i < 0 {
			break
		}
		out = append(out, t.slice(0, i))
		t = t.slice(i+len(sep), len(t.s))
		n--
	}
	return append(out, t)
}

// splitRight is split counted from the end.
func (t Text) splitRight(sep string, n int) []Text {
	var out []Text
	for n != 0 {
		i := strings.LastIndex(t.s, sep)
		if i < 0 {
			break
		}
		out = append([]Text{t.slice(i+len(sep), len(t.s))}, out...)
		t = t.slice(0, i)
		n--
	}
	return append([]Text{t}, out...)
}

// fields cuts at runs of white space, at most n times if n >= 0.
func (t Text) fields(n int) []Text {
	var out []Text
	t = t.trimFunc(isSpace, true, false)
	for t.s != "" && n != 0 {
		i := strings.IndexFunc(t.s, isSpace)
		if i < 0 {
			break
		}
		out = append(out, t.slice(0, i))
		t = t.slice(i, len(t.s)).trimFunc(isSpace, true, false)
		n--
	}
	if t.s != "" {
		out = append(out, t)
	}
	return out
}

// builder joins texts.
type builder struct {
	s    strings.Builder
	mask []byte // nil while everything is trusted
}

func (b *builder) write(t Text) {
	if t.mask != "" && b.mask == nil {
		b.mask = make([]byte, b.s.Len(), b.s.Len()+len(t.mask))
	}
	b.s.WriteString(t.s)
	switch {
	case t.mask != "":
		b.mask = append(b.mask, t.mask...)
	case b.mask != nil:
		b.mask = append(b.mask, make([]byte, len(t.s))...)
	}
}

// mapped writes s with the origin of the byte of t at i.
func (b *builder) mapped(s string, t Text, i int) {
	if t.mask != "" && t.mask[i] != 0 {
		b.write(Untrusted(s))
		return
	}
	b.write(Trusted(s))
}

func (b *builder) text() Text {
	if b.mask == nil {
		return Text{s: b.s.String()}
	}
	return Text{b.s.String(), string(b.mask)}
}
