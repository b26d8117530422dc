package tokenizer

// Hand-written scanners for the split patterns of the well-known families. Each returns the end of the pattern's match at
// text[i], or i when it does not match there; alternatives are tried in the pattern's order and greedy loops give back as
// a backtracking engine would. A test compares each with regexp2 on random text. One pass over the text with a table
// look-up a character: about ten times as fast as the general engine, so the vocabulary look-ups become the bound.

import (
	"strings"
	"unicode/utf8"
)

// scanner finds the end of a match that begins at text[i]; i = no match.
type scanner func(text string, i int) int

// Split patterns of well-known families, which have a scanner, as the files spell them.
const (
	PatternGPT2     = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	PatternLlama3   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	PatternQwen2    = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	PatternO200k    = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	PatternNumbers3 = `\p{N}{1,3}`
	PatternCJK      = `[一-龥぀-ゟ゠-ヿ]+`
	PatternDeepSeek = `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// scanners by pattern.
var scanners = map[string]scanner{
	PatternGPT2:     scanGPT2,
	PatternLlama3:   func(text string, i int) int { return scanLlama3(text, i, 3) },
	PatternQwen2:    func(text string, i int) int { return scanLlama3(text, i, 1) },
	PatternO200k:    scanO200k,
	PatternNumbers3: func(text string, i int) int { return atMost(text, i, number, 3) },
	PatternCJK:      scanCJK,
	PatternDeepSeek: scanDeepSeek,

	strings.Replace(PatternDeepSeek, `"`, `\"`, 1): scanDeepSeek, // the same set, with a quote that is escaped
}

// run is the end of the longest run from text[i] of characters whose class meets set.
func run(text string, i int, set class) int {
	for {
		c, n := classAt(text, i)
		if c&set == 0 {
			return i
		}
		i += n
	}
}

// runNot is the end of the longest run from text[i] of characters whose class does not meet set.
func runNot(text string, i int, set class) int {
	for {
		c, n := classAt(text, i)
		if n == 0 || c&set != 0 {
			return i
		}
		i += n
	}
}

// atMost is run, limited to n characters.
func atMost(text string, i int, set class, n int) int {
	for ; n > 0; n-- {
		c, size := classAt(text, i)
		if c&set == 0 {
			break
		}
		i += size
	}
	return i
}

// newlines is the end of [\r\n]* at text[i], or of [\r\n/]* with slash.
func newlines(text string, i int, slash bool) int {
	for i < len(text) && (text[i] == '\n' || text[i] == '\r' || slash && text[i] == '/') {
		i++
	}
	return i
}

// contraction is the end of 's|'t|'re|'ve|'m|'ll|'d at text[i], i if none. With fold, case is ignored by Unicode's simple
// folding, under which "ſ" is an s.
func contraction(text string, i int, fold bool) int {
	if i+1 >= len(text) || text[i] != '\'' {
		return i
	}
	at := func(j int) byte {
		if j >= len(text) {
			return 0
		}
		c := text[j]
		if fold && c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}
	switch at(i + 1) {
	case 's', 't', 'm', 'd':
		return i + 2
	case 'r', 'v':
		if at(i+2) == 'e' {
			return i + 3
		}
	case 'l':
		if at(i+2) == 'l' {
			return i + 3
		}
	case "ſ"[0]:
		if fold && at(i+2) == "ſ"[1] {
			return i + 3
		}
	}
	return i
}

// blanks matches \s+(?!\S)|\s+ at text[i], and before it \s*[\r\n]+ when lines is set.
func blanks(text string, i int, lines bool) int {
	end, last, newline := i, i, -1 // last: start of the run's last character; newline: end of its last line break
	for {
		c, n := classAt(text, end)
		if c&space == 0 {
			break
		}
		last = end
		end += n
		if c := text[last]; c == '\n' || c == '\r' {
			newline = end
		}
	}
	switch {
	case lines && newline >= 0:
		return newline
	case end < len(text) && last > i:
		return last // the last blank belongs to what follows
	}
	return end
}

func scanGPT2(text string, i int) int {
	if end := contraction(text, i, false); end > i {
		return end
	}
	j := i
	if text[i] == ' ' {
		j++
	}
	switch c, n := classAt(text, j); {
	case c&letter != 0:
		return run(text, j+n, letter)
	case c&number != 0:
		return run(text, j+n, number)
	case n > 0 && c&space == 0:
		return runNot(text, j+n, space|letter|number)
	}
	return blanks(text, i, false)
}

// scanLlama3 matches the pattern of Llama 3 (digits = 3) and of Qwen 2 and 3 (digits = 1).
func scanLlama3(text string, i, digits int) int {
	if end := contraction(text, i, true); end > i {
		return end
	}
	c, n := classAt(text, i)
	switch {
	case c&letter != 0:
		return run(text, i+n, letter)
	case c&number != 0:
		return atMost(text, i, number, digits)
	case text[i] != '\r' && text[i] != '\n':
		if next, m := classAt(text, i+n); next&letter != 0 {
			return run(text, i+n+m, letter)
		}
	}
	return marksAndBlanks(text, i, space|letter|number, false)
}

// marksAndBlanks matches " ?[^not]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+", with slash "[\r\n/]*" for the first line break set.
func marksAndBlanks(text string, i int, not class, slash bool) int {
	j := i
	if text[i] == ' ' {
		j++
	}
	if end := runNot(text, j, not); end > j {
		return newlines(text, end, slash)
	}
	return blanks(text, i, true)
}

func scanO200k(text string, i int) int {
	const (
		capital = upper | title | modifier | other | mark
		small   = lower | modifier | other | mark
	)
	c, n := classAt(text, i)
	prefix := c&(letter|number) == 0 && text[i] != '\r' && text[i] != '\n'
	// words matches capital*small+ at text[j]. When nothing small follows the capitals, the loop gives back up to its last
	// character that is both.
	words := func(j int) int {
		end, both := j, -1
		for {
			c, n := classAt(text, end)
			if c&capital == 0 {
				break
			}
			end += n
			if c&small != 0 {
				both = end
			}
		}
		if tail := run(text, end, small); tail > end {
			return tail
		}
		if both >= 0 {
			return both
		}
		return j
	}
	if prefix {
		if end := words(i + n); end > i+n {
			return contraction(text, end, true)
		}
	}
	if end := words(i); end > i {
		return contraction(text, end, true)
	}
	if prefix {
		if end := run(text, i+n, capital); end > i+n {
			return contraction(text, end, true)
		}
	}
	if end := run(text, i, capital); end > i {
		return contraction(text, end, true)
	}
	if c&number != 0 {
		return atMost(text, i, number, 3)
	}
	return marksAndBlanks(text, i, space|letter|number, true)
}

func scanCJK(text string, i int) int {
	for i < len(text) {
		r, n := utf8.DecodeRuneInString(text[i:])
		if !(r >= '一' && r <= '龥' || r >= 0x3040 && r <= 0x30FF) {
			break
		}
		i += n
	}
	return i
}

func scanDeepSeek(text string, i int) int {
	c, n := classAt(text, i)
	if n == 1 && c&(punct|symbol) != 0 {
		end := i + 1
		for end < len(text) && asciiLetter(text[end]) {
			end++
		}
		if end > i+1 {
			return end
		}
	}
	if c&(letter|punct|symbol) == 0 && text[i] != '\r' && text[i] != '\n' {
		if end := run(text, i+n, letter|mark); end > i+n {
			return end
		}
	}
	if c&(letter|mark) != 0 {
		return run(text, i+n, letter|mark)
	}
	j := i
	if text[i] == ' ' {
		j++
	}
	if end := run(text, j, punct|symbol); end > j {
		return newlines(text, end, false)
	}
	return blanks(text, i, true)
}

func asciiLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
