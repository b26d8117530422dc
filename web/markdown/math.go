package markdown

import (
	"bytes"
	"html"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// Mathematics between $...$, $$...$$, \(...\) and \[...\] is kept as it was written, in its own type face: without this
// its underscores and stars would be taken for emphasis. It is not typeset.

var kindMath = ast.NewNodeKind("Math")

type mathNode struct {
	ast.BaseInline
	formula []byte
	display bool
}

func (n *mathNode) Kind() ast.NodeKind            { return kindMath }
func (n *mathNode) Dump(source []byte, level int) { ast.DumpHelper(n, source, level, nil, nil) }

type mathParser struct{}

func (mathParser) Trigger() []byte { return []byte{'$', '\\'} }

// Parse takes one formula that begins at the reader and ends on the same line.
func (mathParser) Parse(parent ast.Node, block text.Reader, pc parser.Context) ast.Node {
	line, _ := block.PeekLine()
	for _, d := range []struct {
		open, close string
		display     bool
	}{{"$$", "$$", true}, {"$", "$", false}, {`\(`, `\)`, false}, {`\[`, `\]`, true}} {
		if !bytes.HasPrefix(line, []byte(d.open)) {
			continue
		}
		rest := line[len(d.open):]
		end := bytes.Index(rest, []byte(d.close))
		if end <= 0 {
			return nil
		}
		formula := rest[:end]
		if d.open == "$" {
			// Money is not mathematics: no space inside the dollars, no digit after the second.
			after := rest[end+1:]
			if isSpace(formula[0]) || isSpace(formula[end-1]) || len(after) > 0 && after[0] >= '0' && after[0] <= '9' {
				return nil
			}
		}
		block.Advance(len(d.open) + end + len(d.close))
		return &mathNode{formula: bytes.TrimSpace(formula), display: d.display}
	}
	return nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' }

func renderMath(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		n := node.(*mathNode)
		class := "math"
		if n.display {
			class = "math math-display"
		}
		w.WriteString(`<span class="` + class + `">` + html.EscapeString(string(n.formula)) + `</span>`)
	}
	return ast.WalkContinue, nil
}
