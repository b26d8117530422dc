package store

// Full-text search over titles and finished messages. The index holds trigrams, so a word of three or more characters
// is found inside others and in scripts without spaces; shorter words (two Chinese characters, "Go") are looked for by
// LIKE among what the longer ones left, or in everything when there are no longer ones.

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Fragment is a piece of a search result's text.
type Fragment struct {
	Text  string
	Match bool // the piece that was searched for
}

// Hit is one search result.
type Hit struct {
	Conversation string
	Title        string
	Message      string // "" = the title matched
	Role         Role   // "" = the title matched
	Snippet      []Fragment
	Time         time.Time // of the message, or of the conversation's last change
}

// Limits of a query; what is beyond is ignored.
const (
	maxTerms      = 16
	maxTermLength = 128 // characters
)

// Characters of a snippet: in all, and at most before the first match.
const (
	snippetLength = 160
	snippetBefore = 40
)

// shortTerms is true when every term of the JSON array ?2 occurs.
const (
	shortInTitle   = `NOT EXISTS (SELECT 1 FROM json_each(?2) WHERE c.title NOT LIKE value ESCAPE '\')`
	shortInContent = `NOT EXISTS (SELECT 1 FROM json_each(?2) WHERE m.content NOT LIKE value ESCAPE '\')`

	sqlSearchTitles = `SELECT c.id, c.title, '', '', c.title, c.updated FROM conversation_search f
		JOIN conversation c ON c.seq = f.rowid
		WHERE conversation_search MATCH ?1 AND c.deleted = 0 AND ` + shortInTitle + ` ORDER BY f.rank, c.seq DESC LIMIT ?3`
	sqlScanTitles = `SELECT c.id, c.title, '', '', c.title, c.updated FROM conversation c
		WHERE ?1 = '' AND c.deleted = 0 AND ` + shortInTitle + ` ORDER BY c.updated DESC, c.seq DESC LIMIT ?3`
	sqlSearchMessages = `SELECT c.id, c.title, m.id, m.role, m.content, m.created FROM message_search f
		JOIN message m ON m.seq = f.rowid JOIN conversation c ON c.seq = m.conversation
		WHERE message_search MATCH ?1 AND c.deleted = 0 AND ` + shortInContent + ` ORDER BY f.rank, m.seq DESC LIMIT ?3`
	sqlScanMessages = `SELECT c.id, c.title, m.id, m.role, m.content, m.created FROM message m
		JOIN conversation c ON c.seq = m.conversation
		WHERE ?1 = '' AND c.deleted = 0 AND m.state <> 'running' AND ` + shortInContent + ` ORDER BY m.seq DESC LIMIT ?3`
)

// Search finds conversations and messages that contain every word of the query, ignoring case; titles first, then the
// best matches, at most limit in all. Words are matched inside words too. An empty query finds nothing.
func (s *Store) Search(ctx context.Context, text string, limit int) (hits []Hit, err error) {
	const doing = "searching"
	terms := searchTerms(text)
	if len(terms) == 0 || limit <= 0 {
		return nil, nil
	}
	match, short, err := searchArguments(terms)
	if err != nil {
		return nil, fail(doing, err)
	}
	titles, messages := sqlSearchTitles, sqlSearchMessages
	if match == "" {
		titles, messages = sqlScanTitles, sqlScanMessages
	}
	scan := func(rows *sql.Rows) (h Hit, err error) {
		var content string
		var at int64
		err = rows.Scan(&h.Conversation, &h.Title, &h.Message, &h.Role, &content, &at)
		h.Snippet, h.Time = snippet(content, terms), moment(at)
		return h, err
	}
	find := func() error {
		return s.snapshot(ctx, doing, func(tx *sql.Tx) error {
			if hits, err = query(ctx, tx, scan, titles, match, short, limit); err != nil {
				return err
			}
			more, err := query(ctx, tx, scan, messages, match, short, limit-len(hits))
			hits = append(hits, more...)
			return err
		})
	}
	if err = find(); isIndexDamage(err) && ctx.Err() == nil {
		if err = fail(doing, s.rebuildSearch(ctx)); err == nil {
			err = find()
		}
	}
	return hits, err
}

// The index is derived from the texts: what the triggers of the first migration put in is put in again.
const (
	sqlEmptyMessageIndex = `INSERT INTO message_search (message_search) VALUES ('delete-all')`
	sqlFillMessageIndex  = `INSERT INTO message_search (rowid, content) SELECT seq, content FROM message WHERE state <> 'running'`
	sqlFillTitleIndex    = `INSERT INTO conversation_search (conversation_search) VALUES ('rebuild')`
)

// rebuildSearch makes the search indices anew, so that a damaged one costs time and not a message.
func (s *Store) rebuildSearch(ctx context.Context) error {
	s.log.Warn("search index is damaged: making it anew", slog.String("file", s.path))
	return s.transact(ctx, func(tx *sql.Tx) error {
		for _, statement := range []string{sqlEmptyMessageIndex, sqlFillMessageIndex, sqlFillTitleIndex} {
			if _, err := tx.Exec(statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// searchTerms splits a query into words. NUL ends a text for FTS5, so it separates words here.
func searchTerms(text string) []string {
	terms := strings.FieldsFunc(clean(text), func(r rune) bool { return unicode.IsSpace(r) || r == 0 })
	terms = terms[:min(len(terms), maxTerms)]
	for i, term := range terms {
		if runes := []rune(term); len(runes) > maxTermLength {
			terms[i] = string(runes[:maxTermLength])
		}
	}
	return terms
}

// searchArguments makes the MATCH expression of the long terms, each a quoted string so that no operator of FTS5's
// query language gets through, and the JSON array of LIKE patterns of the short ones.
func searchArguments(terms []string) (match, short string, err error) {
	var quoted []string
	patterns := []string{}
	escape := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)
	for _, term := range terms {
		if len(fold(term)) >= 3 {
			quoted = append(quoted, `"`+strings.ReplaceAll(term, `"`, `""`)+`"`)
		} else {
			patterns = append(patterns, "%"+escape.Replace(term)+"%")
		}
	}
	list, err := json.Marshal(patterns)
	return strings.Join(quoted, " "), string(list), err
}

// fold maps each character of a text to what search compares: lower case, without diacritics. One rune gives one rune,
// so that places in the result are places in the text.
func fold(text string) []rune {
	folded := []rune(text)
	for i, r := range folded {
		if r >= utf8.RuneSelf {
			if base, _ := utf8.DecodeRuneInString(norm.NFD.String(string(r))); unicode.IsLetter(base) {
				r = base
			}
		}
		folded[i] = unicode.ToLower(r)
	}
	return folded
}

// snippet cuts the part of a text around the first match of any term and marks all matches in it. Without a match (the
// index folds a few characters that fold does not) it is the text's beginning.
func snippet(text string, terms []string) []Fragment {
	runes, folded := []rune(text), fold(text)
	keys := make([][]rune, len(terms))
	for i, term := range terms {
		keys[i] = fold(term)
	}
	// matchAt is the length of the longest term that stands at i.
	matchAt := func(i int) int {
		best := 0
		for _, key := range keys {
			if len(key) > best && len(folded)-i >= len(key) && slices.Equal(folded[i:i+len(key)], key) {
				best = len(key)
			}
		}
		return best
	}
	first := 0
	for i := range folded {
		if matchAt(i) > 0 {
			first = i
			break
		}
	}
	from := max(min(first-snippetBefore, len(runes)-snippetLength), 0)
	to := min(from+snippetLength, len(runes))
	var list []Fragment
	add := func(text string, match bool) {
		if text != "" {
			list = append(list, Fragment{text, match})
		}
	}
	plain := from
	lead := ""
	if from > 0 {
		lead = "…"
	}
	for i := from; i < to; {
		length := min(matchAt(i), to-i)
		if length == 0 {
			i++
			continue
		}
		add(lead+string(runes[plain:i]), false)
		lead = ""
		add(string(runes[i:i+length]), true)
		i += length
		plain = i
	}
	tail := lead + string(runes[plain:to])
	if to < len(runes) {
		tail += "…"
	}
	add(tail, false)
	return list
}
