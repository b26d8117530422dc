package markdown

import "strings"

// Closed returns the ends, as byte offsets in text, of the blocks that later text cannot change: rendering
// text[previous end : end] for each gives what a reader sees while an answer grows. Blocks are cut between top-level
// blocks, and inside lists between top-level items, so that a long list does not stay raw until its end. What follows
// the last offset is still open.
//
// from is an offset that an earlier call returned, 0 at first: the scan goes on from there, so a whole answer costs
// linear time as long as blocks are of bounded size.
func Closed(text string, from int) []int {
	var ends []int
	var (
		fence  string // the fence that opened the code block we are in; "" = none
		blank  bool   // the line before was blank
		inside bool   // the block in hand has a line
		list   bool   // the block in hand is a list item
	)
	for at := from; ; {
		size := strings.IndexByte(text[at:], '\n')
		if size < 0 {
			break // the last line is not complete
		}
		line := text[at : at+size]
		next := at + size + 1
		body := strings.TrimLeft(line, " ")
		indent := len(line) - len(body)
		switch {
		case fence != "":
			if (indent < 4 || list) && strings.HasPrefix(body, fence) && strings.Trim(body, fence[:1]+" \t\r") == "" {
				fence = ""
				if !list {
					ends = append(ends, next)
					inside = false
				}
			}
		case strings.TrimSpace(line) == "":
			// An empty line ends paragraphs, tables and quotes; a list may go on after it.
			if inside && !list {
				ends = append(ends, next)
				inside = false
			}
		default:
			item := indent < 4 && isItem(body)
			if inside && list && (item && indent < 2 || blank && indent < 2) {
				ends = append(ends, at)
				inside, list = false, false
			}
			follows := inside
			if !inside {
				inside, list = true, item
			}
			if opened := fenceOf(body); opened != "" && (indent < 4 || list) {
				if follows && !list {
					ends = append(ends, at) // a fence may follow a paragraph without an empty line
				}
				fence = opened
			} else if !list && strings.HasPrefix(body, "#") && indent < 4 && isHeading(body) {
				ends = append(ends, next)
				inside = false
			}
		}
		blank = strings.TrimSpace(line) == ""
		at = next
	}
	return ends
}

// fenceOf returns the run of backticks or tildes that opens a code block, or "".
func fenceOf(body string) string {
	for _, c := range []string{"`", "~"} {
		n := len(body) - len(strings.TrimLeft(body, c))
		if n >= 3 && !(c == "`" && strings.Contains(body[n:], "`")) {
			return body[:n]
		}
	}
	return ""
}

func isHeading(body string) bool {
	rest := strings.TrimLeft(body, "#")
	n := len(body) - len(rest)
	return n <= 6 && (rest == "" || rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r')
}

// isItem says whether a line begins a list item: "- ", "* ", "+ ", "1. " or "1) ".
func isItem(body string) bool {
	digits := len(body) - len(strings.TrimLeft(body, "0123456789"))
	rest := body[digits:]
	if digits > 9 || rest == "" {
		return false
	}
	mark := "-*+"
	if digits > 0 {
		mark = ".)"
	}
	return strings.IndexByte(mark, rest[0]) >= 0 && (len(rest) == 1 || rest[1] == ' ' || rest[1] == '\t') && !isRule(body)
}

// isRule says whether a line is a thematic break made of stars or dashes with spaces.
func isRule(body string) bool {
	compact := strings.ReplaceAll(strings.TrimSpace(body), " ", "")
	return len(compact) >= 3 && (strings.Trim(compact, "-") == "" || strings.Trim(compact, "*") == "")
}
