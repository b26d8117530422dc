package wire

import "strconv"

// Op says what a patch does with its HTML. Patches touch leaf elements only: never the composer, never the scroll
// container, so focus and scroll position survive.
type Op string

// Operations.
const (
	Replace Op = "replace" // the element itself
	Inner   Op = "inner"   // its content
	Append  Op = "append"  // after its last child
	Prepend Op = "prepend" // before its first child
	Discard Op = "discard" // the element goes; no HTML
	Block   Op = "block"   // append to the blocks of message Target and drop the open text before byte Arg
	Fold    Op = "fold"    // Target's reasoning is over; Arg = its duration in milliseconds
	Title   Op = "title"   // the document's title is the text after the line; no Target
)

// Patch is a text frame: a fragment that templ rendered, and where it goes.
//
//	layout: op SP target SP arg LF html
//
// Target is an element id (for Block and Fold a message id) of letters, digits, '-', '_', '.', ':' and '/'.
type Patch struct {
	Op     Op
	Target string
	Arg    int
	HTML   string
}

// Append appends the text frame to b.
func (p Patch) Append(b []byte) []byte {
	b = append(b, p.Op...)
	b = append(b, ' ')
	b = append(b, p.Target...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(p.Arg), 10)
	b = append(b, '\n')
	return append(b, p.HTML...)
}

// DecodePatch decodes a text frame. HTML shares no memory that the caller could change: strings are immutable.
func DecodePatch(s string) (Patch, error) {
	if len(s) > MaxFrame {
		return Patch{}, ErrLimit
	}
	var fields [3]string
	start, field := 0, 0
	for i := 0; i < len(s); i++ {
		if s[i] != ' ' && s[i] != '\n' {
			continue
		}
		if (s[i] == '\n') != (field == 2) {
			return Patch{}, ErrShort
		}
		fields[field] = s[start:i]
		start = i + 1
		if field++; field == 3 {
			break
		}
	}
	if field != 3 {
		return Patch{}, ErrShort
	}
	arg, err := strconv.Atoi(fields[2])
	if err != nil {
		return Patch{}, ErrLimit
	}
	p := Patch{Op: Op(fields[0]), Target: fields[1], Arg: arg, HTML: s[start:]}
	switch p.Op {
	case Replace, Inner, Append, Prepend, Discard, Block, Fold, Title:
		return p, nil
	}
	return Patch{}, ErrKind
}
