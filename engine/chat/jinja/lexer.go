package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tokenKind is the kind of a token.
type tokenKind uint8

const (
	tokenEnd      tokenKind = iota
	tokenData               // text outside tags
	tokenOpen               // "{%" or "{{"
	tokenClose              // "%}" or "}}"
	tokenName               // identifier or keyword
	tokenString             // string literal, unescaped
	tokenInt                // whole number
	tokenFloat              // number with a point or exponent
	tokenOperator           // operator or punctuation
)

// token is a word of the template.
type token struct {
	kind tokenKind
	text string
	line int
}

// lexer cuts a template's source into tokens. White space follows the settings that chat templates are written for:
// trim_blocks (a line break after a block tag goes) and lstrip_blocks (blanks between the line's start and a block tag go),
// with "-" and "+" signs inside tags taking precedence, and one line break at the end of the source dropped.
type lexer struct {
	source string
	at     int
	line   int
	start  bool // at the start of a line, for lstrip_blocks
	tokens []token
}

func lex(source string) ([]token, error) {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	if !utf8.ValidString(source) {
		return nil, fmt.Errorf("template is not UTF-8")
	}
	l := &lexer{source: source, line: 1, start: true}
	for l.at < len(l.source) {
		if err := l.next(); err != nil {
			return nil, err
		}
	}
	l.add(tokenEnd, "")
	return l.tokens, nil
}

func (l *lexer) add(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind, text, l.line})
}

func (l *lexer) fail(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", l.line, fmt.Sprintf(format, args...))
}

// skip moves to offset to, counting lines.
func (l *lexer) skip(to int) {
	l.line += strings.Count(l.source[l.at:to], "\n")
	l.at = to
}

// data emits the text up to offset end, shortened as the sign of the following tag and lstrip_blocks ask.
func (l *lexer) data(end int, sign byte, block bool) {
	text := l.source[l.at:end]
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, isSpace)
	case block && sign != '+':
		from := strings.LastIndexByte(text, '\n') + 1
		if (from > 0 || l.start) && strings.TrimFunc(text[from:], isSpace) == "" {
			text = text[:from]
		}
	}
	if text != "" {
		l.add(tokenData, text)
	}
	l.skip(end)
}

// next lexes text and the tag after it.
func (l *lexer) next() error {
	open := -1
	for i := l.at; i+1 < len(l.source); i++ {
		if l.source[i] == '{' && (l.source[i+1] == '{' || l.source[i+1] == '%' || l.source[i+1] == '#') {
			open = i
			break
		}
	}
	if open < 0 {
		l.add(tokenData, l.source[l.at:])
		l.skip(len(l.source))
		return nil
	}
	tag := l.source[open+1]
	sign := byte(0)
	if after := open + 2; after < len(l.source) && (l.source[after] == '-' || l.source[after] == '+') {
		sign = l.source[after]
	}
	l.data(open, sign, tag != '{')
	l.at += 2
	if sign != 0 {
		l.at++
	}
	switch {
	case tag == '#':
		return l.comment()
	case tag == '%':
		if end, ok := l.isRaw(); ok {
			return l.raw(end)
		}
		return l.tag("{%", "%}")
	}
	return l.tag("{{", "}}")
}

// closed handles the white space after a tag that ends at l.at.
func (l *lexer) closed(sign byte, block bool) {
	from := l.at
	switch {
	case sign == '-':
		l.skip(len(l.source) - len(strings.TrimLeftFunc(l.source[l.at:], isSpace)))
	case block && sign != '+' && strings.HasPrefix(l.source[l.at:], "\n"):
		l.skip(l.at + 1)
	}
	l.start = l.at > from && l.source[l.at-1] == '\n'
}

func (l *lexer) comment() error {
	i := strings.Index(l.source[l.at:], "#}")
	if i < 0 {
		return l.fail("comment without an end")
	}
	end, sign := l.at+i, byte(0)
	if i > 0 && (l.source[end-1] == '-' || l.source[end-1] == '+') {
		sign = l.source[end-1]
	}
	l.skip(end + 2)
	l.closed(sign, true)
	return nil
}

// isRaw reports whether the tag at l.at is {% raw %} and where it ends.
func (l *lexer) isRaw() (int, bool) {
	rest := strings.TrimLeftFunc(l.source[l.at:], isSpace)
	if !strings.HasPrefix(rest, "raw") {
		return 0, false
	}
	rest = strings.TrimLeftFunc(rest[3:], isSpace)
	rest = strings.TrimPrefix(rest, "-")
	if !strings.HasPrefix(rest, "%}") {
		return 0, false
	}
	return len(l.source) - len(rest) + 2, true
}

// raw emits everything up to {% endraw %} as text.
func (l *lexer) raw(from int) error {
	dash := l.source[from-3] == '-'
	l.skip(from)
	if dash {
		l.closed('-', true)
	} else {
		l.start = false // the line break after {% raw %} stays
	}
	for i := l.at; ; {
		j := strings.Index(l.source[i:], "{%")
		if j < 0 {
			return l.fail("raw block without an end")
		}
		open := i + j
		rest, sign := l.source[open+2:], byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			sign, rest = rest[0], rest[1:]
		}
		rest = strings.TrimLeftFunc(rest, isSpace)
		if tail, ok := strings.CutPrefix(rest, "endraw"); ok {
			tail = strings.TrimLeftFunc(tail, isSpace)
			end := byte(0)
			if tail != "" && (tail[0] == '-' || tail[0] == '+') {
				end, tail = tail[0], tail[1:]
			}
			if strings.HasPrefix(tail, "%}") {
				l.data(open, sign, true)
				l.skip(len(l.source) - len(tail) + 2)
				l.closed(end, true)
				return nil
			}
		}
		i = open + 2
	}
}

// operators by length, longest first.
var operators = []string{"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "|", ".", ",", ":", "(", ")", "[", "]", "{", "}", ";"}

// tag emits the tokens of a tag up to its end. Inside brackets the end sign is not an end.
func (l *lexer) tag(open, end string) error {
	l.add(tokenOpen, open)
	var brackets []byte
	for {
		l.skip(len(l.source) - len(strings.TrimLeftFunc(l.source[l.at:], isSpace)))
		rest := l.source[l.at:]
		if rest == "" {
			return l.fail("tag without an end")
		}
		if len(brackets) == 0 {
			sign := byte(0)
			if (rest[0] == '-' || rest[0] == '+' && end == "%}") && strings.HasPrefix(rest[1:], end) {
				sign = rest[0]
			}
			if sign != 0 || strings.HasPrefix(rest, end) {
				l.at += len(end)
				if sign != 0 {
					l.at++
				}
				l.add(tokenClose, end)
				l.closed(sign, end == "%}")
				return nil
			}
		}
		first, _ := utf8.DecodeRuneInString(rest)
		var err error
		switch {
		case first == '\'' || first == '"':
			err = l.quoted(rest)
		case first >= '0' && first <= '9':
			err = l.digits(rest)
		case first == '_' || unicode.IsLetter(first):
			n := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
			if n < 0 {
				n = len(rest)
			}
			l.add(tokenName, rest[:n])
			l.at += n
		default:
			brackets, err = l.operator(rest, brackets)
		}
		if err != nil {
			return err
		}
	}
}

func (l *lexer) operator(rest string, brackets []byte) ([]byte, error) {
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		switch op {
		case "(", "[", "{":
			brackets = append(brackets, op[0])
		case ")", "]", "}":
			pair := map[string]byte{")": '(', "]": '[', "}": '{'}[op]
			if len(brackets) == 0 || brackets[len(brackets)-1] != pair {
				return nil, l.fail("unexpected %q", op)
			}
			brackets = brackets[:len(brackets)-1]
		}
		l.add(tokenOperator, op)
		l.at += len(op)
		return brackets, nil
	}
	r, _ := utf8.DecodeRuneInString(rest)
	return nil, l.fail("unexpected character %q", r)
}

// quoted emits a string literal.
func (l *lexer) quoted(rest string) error {
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case rest[0]:
			text, err := unescape(rest[1:i])
			if err != nil {
				return l.fail("%v", err)
			}
			l.add(tokenString, text)
			l.skip(l.at + i + 1)
			return nil
		}
	}
	return l.fail("string without an end")
}

// unescape resolves Python's escapes; a backslash before any other character stays.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	simple := map[byte]string{'n': "\n", 't': "\t", 'r': "\r", '\\': `\`, '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v", '\n': ""}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		if text, ok := simple[s[i]]; ok {
			b.WriteString(text)
			continue
		}
		if n := digits[s[i]]; n > 0 {
			if i+n >= len(s) {
				return "", fmt.Errorf("escape \\%c needs %d digits", s[i], n)
			}
			code, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			if err != nil || code > unicode.MaxRune {
				return "", fmt.Errorf("escape \\%c%s is not a character", s[i], s[i+1:i+1+n])
			}
			b.WriteRune(rune(code))
			i += n
			continue
		}
		if s[i] >= '0' && s[i] <= '7' {
			code, n := 0, 0
			for n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7' {
				code = code*8 + int(s[i+n]-'0')
				n++
			}
			b.WriteRune(rune(code))
			i += n - 1
			continue
		}
		b.WriteByte('\\')
		b.WriteByte(s[i])
	}
	return b.String(), nil
}

// digits emits a number.
func (l *lexer) digits(rest string) error {
	n, kind := 0, tokenInt
	digits := func() {
		for n < len(rest) && (rest[n] >= '0' && rest[n] <= '9' || rest[n] == '_') {
			n++
		}
	}
	digits()
	if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' {
		kind = tokenFloat
		n++
		digits()
	}
	if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
		from := n
		n++
		if n < len(rest) && (rest[n] == '+' || rest[n] == '-') {
			n++
		}
		if n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			kind = tokenFloat
			digits()
		} else {
			n = from
		}
	}
	l.add(kind, strings.ReplaceAll(rest[:n], "_", ""))
	l.at += n
	return nil
}
