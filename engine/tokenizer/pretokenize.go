package tokenizer

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// metaspace is the character that stands for a space in vocabularies that come from SentencePiece.
const metaspace = "▁"

// stage is one step of the pre-tokenizer: it cuts a piece and hands each part to the stage of index next.
type stage interface {
	split(e *encoder, p piece, next int)
}

// scanStage isolates the matches of a hand-written scanner; what lies between matches is a piece too.
type scanStage struct{ scan scanner }

func (s scanStage) split(e *encoder, p piece, next int) {
	text, from := p.text, 0
	for at := 0; at < len(text); {
		end := s.scan(text, at)
		if end == at {
			_, n := classAt(text, at)
			at += n
			continue
		}
		if from < at {
			e.run(next, piece{text[from:at], p.first && from == 0})
		}
		e.run(next, piece{text[at:end], p.first && at == 0})
		at, from = end, end
	}
	if from < len(text) {
		e.run(next, piece{text[from:], p.first && from == 0})
	}
}

// byteStage spells bytes as byte-level characters. As the last stage it leaves that to the model, which then reads bytes.
type byteStage struct {
	prefixSpace bool
	scan        scanner // nil = the piece stays whole
	last        bool
}

func (s byteStage) split(e *encoder, p piece, next int) {
	if s.prefixSpace && !strings.HasPrefix(p.text, " ") {
		p.text = " " + p.text
	}
	if s.scan == nil {
		e.run(next, s.spell(p))
		return
	}
	for at := 0; at < len(p.text); {
		end := s.scan(p.text, at)
		e.run(next, s.spell(piece{p.text[at:end], p.first && at == 0}))
		at = end
	}
}

func (s byteStage) spell(p piece) piece {
	if !s.last {
		p.text = byteLevel(p.text)
	}
	return p
}

// metaspaceStage writes spaces as a replacement character, puts one before the text, and cuts before each.
type metaspaceStage struct {
	replacement string
	prepend     string // "always", "first" (only where the whole text begins) or "never"
	cut         bool
}

func (s metaspaceStage) split(e *encoder, p piece, next int) {
	text := strings.ReplaceAll(p.text, " ", s.replacement)
	if !strings.HasPrefix(text, s.replacement) && (s.prepend == "always" || s.prepend == "first" && p.first) {
		text = s.replacement + text
	}
	if !s.cut {
		e.run(next, piece{text, p.first})
		return
	}
	splitStage{find: literal(s.replacement), behaviour: mergedWithNext}.split(e, piece{text, p.first}, next)
}

// behaviour says what becomes of the matches of a split.
type behaviour string

const (
	removed            behaviour = "Removed"
	isolated           behaviour = "Isolated"
	mergedWithPrevious behaviour = "MergedWithPrevious"
	mergedWithNext     behaviour = "MergedWithNext"
	contiguous         behaviour = "Contiguous"
)

// finder yields the matches of a pattern in order.
type finder func(e *encoder, text string, yield func(start, end int)) error

// splitStage cuts at the matches of a pattern.
type splitStage struct {
	find      finder
	behaviour behaviour
	invert    bool // what lies between matches counts as the match
}

// cut is a part of a text: a match of the pattern or what lies between.
type cut struct {
	start, end int
	match      bool
}

func (s splitStage) split(e *encoder, p piece, next int) {
	var cuts []cut
	from := 0
	err := s.find(e, p.text, func(start, end int) {
		if from < start {
			cuts = append(cuts, cut{from, start, s.invert})
		}
		cuts = append(cuts, cut{start, end, !s.invert})
		from = end
	})
	if err != nil {
		if e.err == nil {
			e.err = err
		}
		return
	}
	if from < len(p.text) {
		cuts = append(cuts, cut{from, len(p.text), s.invert})
	}
	for _, c := range s.behaviour.apply(cuts) {
		e.run(next, piece{p.text[c.start:c.end], p.first && c.start == 0})
	}
}

// apply merges or drops cuts, in place.
func (b behaviour) apply(cuts []cut) []cut {
	out := cuts[:0]
	switch b {
	case removed:
		for _, c := range cuts {
			if !c.match {
				out = append(out, c)
			}
		}
	case contiguous, mergedWithPrevious:
		for i, c := range cuts {
			joins := i > 0 && (b == contiguous && c.match == cuts[i-1].match || b == mergedWithPrevious && c.match && !cuts[i-1].match)
			if joins {
				// cuts[i-1] may have been overwritten in out, never its match flag at index i-1 or later.
				out[len(out)-1].end = c.end
				continue
			}
			out = append(out, c)
		}
	case mergedWithNext:
		for i := len(cuts) - 2; i >= 0; i-- {
			if cuts[i].match && !cuts[i+1].match {
				cuts[i+1].start = cuts[i].start
				cuts[i].end = cuts[i].start
			}
		}
		for _, c := range cuts {
			if c.start < c.end {
				out = append(out, c)
			}
		}
	default:
		out = cuts
	}
	return out
}

// literal finds a string.
func literal(s string) finder {
	return func(_ *encoder, text string, yield func(start, end int)) error {
		for at := 0; ; {
			i := strings.Index(text[at:], s)
			if i < 0 {
				return nil
			}
			yield(at+i, at+i+len(s))
			at += i + len(s)
		}
	}
}

// single finds each character that meets is.
func single(is func(rune) bool) finder {
	return func(_ *encoder, text string, yield func(start, end int)) error {
		for i, r := range text {
			if is(r) {
				yield(i, i+utf8.RuneLen(r))
			}
		}
		return nil
	}
}

// scanned finds the matches of a scanner.
func scanned(scan scanner) finder {
	return func(_ *encoder, text string, yield func(start, end int)) error {
		for at := 0; at < len(text); {
			end := scan(text, at)
			if end == at {
				_, n := classAt(text, at)
				at += n
				continue
			}
			yield(at, end)
			at = end
		}
		return nil
	}
}

const (
	patternLimit   = 8 << 10          // longest split pattern, in bytes
	patternTimeout = time.Second      // longest search for one match
	patternBudget  = 10 * time.Second // longest time in all that patterns may take of one call
)

// errSlow is the failure of a pattern that takes too long. The library's own error quotes the whole text.
var errSlow = fmt.Errorf("takes longer than %v for one match, or %v in all: the tokenizer's pattern is not made for such text", patternTimeout, patternBudget)

// pattern finds the matches of a regular expression: with its scanner if it has one, else with regexp2.
func pattern(expr string) (finder, scanner, error) {
	if scan, ok := scanners[expr]; ok {
		return scanned(scan), scan, nil
	}
	re, err := compile(expr)
	if err != nil {
		return nil, nil, err
	}
	return func(e *encoder, text string, yield func(start, end int)) error {
		e.runes = append(e.runes[:0], []rune(text)...)
		at, offset := 0, 0 // the same place in runes and in bytes
		advance := func(to int) int {
			for ; at < to; at++ {
				offset += utf8.RuneLen(e.runes[at])
			}
			return offset
		}
		if e.deadline.IsZero() {
			e.deadline = time.Now().Add(patternBudget)
		}
		var found []span
		slow := false
		err := re.FindRunesMatches(e.runes, 0, func(v regexp2.MatchView) bool {
			index, length, _ := v.GroupRange(0)
			found = append(found, span{advance(index), advance(index + length)})
			slow = time.Now().After(e.deadline)
			return !slow
		})
		if err != nil || slow {
			return fmt.Errorf("split pattern %.60q: %w", expr, errSlow)
		}
		for _, s := range found {
			yield(s.start, s.end)
		}
		return nil
	}, nil, nil
}

// wordMembers are the characters of isWord as members of a class. Marks hold nearly all of Other_Alphabetic; the rest are
// letters in circles and squares.
const wordMembers = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}` + "\u200C\u200D\u24B6-\u24E9\U0001F130-\U0001F149\U0001F150-\U0001F169\U0001F170-\U0001F189"

// unicodeWords writes \w and \W out: in regexp2 they are those of .NET, which leave out numerals that are letters, marks that
// take room, and joiners; a tokenizer.json means Unicode's. A \W inside a class stays as it is.
func unicodeWords(expr string) string {
	var b strings.Builder
	class := false
	for i := 0; i < len(expr); i++ {
		c := expr[i]
		switch {
		case c == '\\' && i+1 < len(expr):
			i++
			switch d := expr[i]; {
			case d == 'w' && class:
				b.WriteString(wordMembers)
			case d == 'w':
				b.WriteString("[" + wordMembers + "]")
			case d == 'W' && !class:
				b.WriteString("[^" + wordMembers + "]")
			default:
				b.WriteByte(c)
				b.WriteByte(d)
			}
			continue
		case c == '[':
			class = true
		case c == ']':
			class = false
		}
		b.WriteByte(c)
	}
	return b.String()
}

// compile compiles a regular expression of a tokenizer.json, with limits on its size and running time.
func compile(expr string) (*regexp2.Regexp, error) {
	if len(expr) > patternLimit {
		return nil, fmt.Errorf("pattern of %d bytes; at most %d are read", len(expr), patternLimit)
	}
	re, err := regexp2.Compile(unicodeWords(expr), regexp2.OptionMaxBacktrackingStackSize(1<<22))
	if err != nil {
		return nil, fmt.Errorf("pattern %.60q: %w", expr, err)
	}
	re.MatchTimeout = patternTimeout
	return re, nil
}
