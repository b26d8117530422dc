package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// class is a set of Unicode properties of one character, as bits.
type class uint16

const (
	upper    class = 1 << iota // Lu
	lower                      // Ll
	title                      // Lt
	modifier                   // Lm
	other                      // Lo
	mark                       // M
	number                     // N
	punct                      // P
	symbol                     // S
	space                      // White_Space

	letter = upper | lower | title | modifier | other
)

// classes is the class of every character: 2.2 MB, of which a text touches the pages of its own scripts.
var classes = sync.OnceValue(func() *[unicode.MaxRune + 1]class {
	table := new([unicode.MaxRune + 1]class)
	set := func(t *unicode.RangeTable, c class) {
		for _, r := range t.R16 {
			for x := uint32(r.Lo); x <= uint32(r.Hi); x += uint32(r.Stride) {
				table[x] |= c
			}
		}
		for _, r := range t.R32 {
			for x := r.Lo; x <= r.Hi; x += r.Stride {
				table[x] |= c
			}
		}
	}
	set(unicode.Lu, upper)
	set(unicode.Ll, lower)
	set(unicode.Lt, title)
	set(unicode.Lm, modifier)
	set(unicode.Lo, other)
	set(unicode.M, mark)
	set(unicode.N, number)
	set(unicode.P, punct)
	set(unicode.S, symbol)
	set(unicode.White_Space, space)
	for _, r := range newerCharacters {
		for x := r.first; x <= r.last; x++ {
			table[x] = r.class
		}
	}
	return table
})

// classAt is the class of the character at text[i] and its length in bytes; 0, 0 at the end of the text. Text is valid
// UTF-8.
func classAt(text string, i int) (class, int) {
	if i >= len(text) {
		return 0, 0
	}
	if c := text[i]; c < utf8.RuneSelf {
		return asciiClasses[c], 1
	}
	r, n := utf8.DecodeRuneInString(text[i:])
	return classes()[r], n
}

// asciiClasses is the class of each ASCII character.
var asciiClasses = func() (table [utf8.RuneSelf]class) {
	for i := range table {
		switch c := byte(i); {
		case c >= 'A' && c <= 'Z':
			table[i] = upper
		case c >= 'a' && c <= 'z':
			table[i] = lower
		case c >= '0' && c <= '9':
			table[i] = number
		case c == ' ' || c >= '\t' && c <= '\r':
			table[i] = space
		case c == '$' || c == '+' || c == '<' || c == '=' || c == '>' || c == '^' || c == '`' || c == '|' || c == '~':
			table[i] = symbol
		case c > ' ' && c < 0x7F:
			table[i] = punct
		}
	}
	return table
}()
