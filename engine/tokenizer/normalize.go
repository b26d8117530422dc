package tokenizer

import (
	"fmt"
	"sort"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites text before it is cut into words. nil = identity. It fails when a pattern exceeds its limits or the
// text would grow beyond measure.
type normalizer func(text string) (string, error)

// pure is a normalizer that cannot fail.
func pure(f func(text string) string) normalizer {
	return func(text string) (string, error) { return f(text), nil }
}

// maxGrowth is how many times longer a normalizer may make a text, beside a constant; Unicode's own forms reach 18.
const maxGrowth = 32

// chain applies normalizers in order.
func chain(list []normalizer) normalizer {
	if len(list) == 0 {
		return nil
	}
	return func(text string) (string, error) {
		limit := maxGrowth*len(text) + 1<<12
		for _, n := range list {
			var err error
			if text, err = n(text); err != nil {
				return "", err
			}
			if len(text) > limit {
				return "", fmt.Errorf("normalised text has grown to %d bytes; at most %d are allowed", len(text), limit)
			}
		}
		return text, nil
	}
}

// maxMarks is the number of combining marks in a row up to which the Unicode package normalises exactly; beyond it (the
// "stream-safe text format" of UAX 15) it inserts joiners, which the reference does not.
const maxMarks = 30

// normalForm is one of Unicode's normal forms.
func normalForm(form norm.Form) normalizer {
	return pure(func(text string) string {
		if form.IsNormalString(text) {
			return text
		}
		if marksInRow(text) <= maxMarks {
			return form.String(text)
		}
		return normalizeSlowly(form, text)
	})
}

// marksInRow is the length of text's longest run of combining marks, counted after decomposition.
func marksInRow(text string) int {
	longest, n := 0, 0
	for _, r := range text {
		if r < 0x300 {
			n = 0
			continue
		}
		for _, d := range norm.NFKD.String(string(r)) {
			if combiningClass(d) == 0 {
				n = 0
			} else {
				n++
				longest = max(longest, n)
			}
		}
	}
	return longest
}

// normalizeSlowly is the algorithm of UAX 15 written out: decompose each character, order the marks, compose pairs.
func normalizeSlowly(form norm.Form, text string) string {
	decomposed := norm.NFD
	if form == norm.NFKC || form == norm.NFKD {
		decomposed = norm.NFKD
	}
	var runes []rune
	for _, r := range text {
		runes = append(runes, []rune(decomposed.String(string(r)))...)
	}
	for i := 0; i < len(runes); {
		j := i
		for j < len(runes) && combiningClass(runes[j]) != 0 {
			j++
		}
		marks := runes[i:j]
		sort.SliceStable(marks, func(a, b int) bool { return combiningClass(marks[a]) < combiningClass(marks[b]) })
		i = j + 1
	}
	if form == norm.NFD || form == norm.NFKD {
		return string(runes)
	}
	var out []rune
	starter, last := -1, uint8(0) // place of the last starter in out; class of what was kept after it
	for _, r := range runes {
		class := combiningClass(r)
		blocked := starter >= 0 && starter != len(out)-1 && (last >= class || last == 0)
		if starter >= 0 && !blocked {
			if pair := []rune(norm.NFC.String(string([]rune{out[starter], r}))); len(pair) == 1 {
				out[starter] = pair[0]
				continue
			}
		}
		if class == 0 {
			starter = len(out)
		}
		last = class
		out = append(out, r)
	}
	return string(out)
}

func combiningClass(r rune) uint8 {
	if r < 0x300 {
		return 0
	}
	var buf [utf8.UTFMax]byte
	return norm.NFD.Properties(buf[:utf8.EncodeRune(buf[:], r)]).CCC()
}

// lowercase maps each character by itself, without the rules that look at its neighbours.
func lowercase(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	for _, r := range text {
		if r == 'İ' {
			b.WriteString("i\u0307") // the one character whose lower case is two
			continue
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// strip removes white space at the ends.
func strip(left, right bool) normalizer {
	return pure(func(text string) string {
		if left {
			text = strings.TrimLeftFunc(text, unicode.IsSpace)
		}
		if right {
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		}
		return text
	})
}

// stripAccents removes combining marks.
func stripAccents(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsMark(r) {
			return -1
		}
		return r
	}, text)
}

// prepend puts a prefix before text that is not empty.
func prepend(prefix string) normalizer {
	return pure(func(text string) string {
		if text == "" {
			return ""
		}
		return prefix + text
	})
}

// maxContent is the longest text that a Prepend or a Replace puts in, in bytes. Those in use have one character; with it
// a step of a chain cannot make a text more than that many times longer, which chain then refuses.
const maxContent = 64

// replaceLiteral and replacePattern replace every match by content.
func replaceLiteral(old, content string) normalizer {
	return pure(func(text string) string { return strings.ReplaceAll(text, old, content) })
}

func replacePattern(expr, content string) (normalizer, error) {
	re, err := compile(expr)
	if err != nil {
		return nil, err
	}
	return func(text string) (string, error) {
		runes := []rune(text)
		deadline := time.Now().Add(patternBudget)
		var out strings.Builder
		at, slow := 0, false
		err := re.FindRunesMatches(runes, 0, func(v regexp2.MatchView) bool {
			index, length, _ := v.GroupRange(0)
			out.WriteString(string(runes[at:index]))
			out.WriteString(content)
			at = index + length
			slow = time.Now().After(deadline)
			return !slow
		})
		if err != nil || slow {
			return "", fmt.Errorf("replacement pattern %.60q: %w", expr, errSlow)
		}
		out.WriteString(string(runes[at:]))
		return out.String(), nil
	}, nil
}

// normalizerConfig is a normalizer as tokenizer.json spells it.
type normalizerConfig struct {
	Type        string             `json:"type"`
	Normalizers []normalizerConfig `json:"normalizers"`
	StripLeft   bool               `json:"strip_left"`
	StripRight  bool               `json:"strip_right"`
	Prepend     string             `json:"prepend"`
	Pattern     *patternConfig     `json:"pattern"`
	Content     string             `json:"content"`
}

func (c *normalizerConfig) build(where string) ([]normalizer, error) {
	if c == nil {
		return nil, nil
	}
	switch c.Type {
	case "Sequence":
		var list []normalizer
		for i := range c.Normalizers {
			n, err := c.Normalizers[i].build(fmt.Sprintf("%s.normalizers[%d]", where, i))
			if err != nil {
				return nil, err
			}
			list = append(list, n...)
		}
		return list, nil
	case "NFC":
		return []normalizer{normalForm(norm.NFC)}, nil
	case "NFD":
		return []normalizer{normalForm(norm.NFD)}, nil
	case "NFKC":
		return []normalizer{normalForm(norm.NFKC)}, nil
	case "NFKD":
		return []normalizer{normalForm(norm.NFKD)}, nil
	case "Lowercase":
		return []normalizer{pure(lowercase)}, nil
	case "Strip":
		return []normalizer{strip(c.StripLeft, c.StripRight)}, nil
	case "StripAccents":
		return []normalizer{pure(stripAccents)}, nil
	case "Prepend":
		if len(c.Prepend) > maxContent {
			return nil, fmt.Errorf("%s: Prepend of %d bytes; at most %d are taken", where, len(c.Prepend), maxContent)
		}
		return []normalizer{prepend(c.Prepend)}, nil
	case "Replace":
		if len(c.Content) > maxContent {
			return nil, fmt.Errorf("%s: Replace by %d bytes; at most %d are taken", where, len(c.Content), maxContent)
		}
		if c.Pattern.literal() != "" {
			return []normalizer{replaceLiteral(c.Pattern.literal(), c.Content)}, nil
		}
		if c.Pattern == nil || c.Pattern.Regex == nil {
			return nil, fmt.Errorf("%s: Replace without a pattern", where)
		}
		n, err := replacePattern(*c.Pattern.Regex, c.Content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		return []normalizer{n}, nil
	case "ByteLevel":
		return []normalizer{pure(byteLevel)}, nil
	}
	return nil, unsupported(where, c.Type)
}
