package tokenizer

import (
	"sort"
	"strings"
	"unicode/utf8"
)

// span is a half-open range of bytes.
type span struct{ start, end int }

// trust lists the trusted ranges of a text, ascending and not adjoining. nil means that all of it is trusted.
type trust []span

// covers reports whether the bytes [start, end) are all trusted.
func (t trust) covers(start, end int) bool {
	if t == nil {
		return true
	}
	i := sort.Search(len(t), func(i int) bool { return t[i].end >= end })
	return i < len(t) && t[i].start <= start
}

// slice is the trust of text[start:end], with offsets from its beginning.
func (t trust) slice(start, end int) trust {
	if t == nil || t.covers(start, end) {
		return nil
	}
	out := trust{}
	for i := sort.Search(len(t), func(i int) bool { return t[i].end > start }); i < len(t) && t[i].start < end; i++ {
		out = append(out, span{max(t[i].start, start) - start, min(t[i].end, end) - start})
	}
	return out
}

// through is the trust of text after normalize, which turned it into normal: each boundary is moved to where the
// normalised form of everything before it ends, and kept only where that is a prefix of the whole. Characters that
// combine across a boundary thereby count as untrusted.
func (t trust) through(normalize normalizer, text, normal string) trust {
	if t == nil || normalize == nil {
		return t
	}
	at := func(offset int) (int, bool) {
		prefix, err := normalize(text[:offset])
		return len(prefix), err == nil && strings.HasPrefix(normal, prefix)
	}
	out := trust{}
	for _, s := range t {
		start, ok := at(s.start)
		if !ok {
			continue
		}
		if end, ok := at(s.end); ok && start < end {
			out = append(out, span{start, end})
		}
	}
	return out
}

// join concatenates segments into valid UTF-8 and says which ranges of the result are trusted.
func join(segments []Segment) (string, trust) {
	if len(segments) == 1 {
		text := valid(segments[0].Text)
		if segments[0].Trusted {
			return text, nil
		}
		return text, trust{}
	}
	var b strings.Builder
	marks, all := trust{}, true
	for _, s := range segments {
		start := b.Len()
		b.WriteString(valid(s.Text))
		switch {
		case b.Len() == start:
		case !s.Trusted:
			all = false
		case len(marks) > 0 && marks[len(marks)-1].end == start:
			marks[len(marks)-1].end = b.Len()
		default:
			marks = append(marks, span{start, b.Len()})
		}
	}
	if all {
		return b.String(), nil
	}
	return b.String(), marks
}

// valid is text with each byte that is not UTF-8 read as U+FFFD.
func valid(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return string([]rune(text))
}
