package probes

// This file reads probe sets from outside. Every limit is checked before the set is used, and every error names the line.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
)

// Limits of a set.
const (
	MaxProbes = 20_000
	MaxTopics = 64
	MaxText   = 64 << 10 // bytes of one text
	MaxName   = 120      // bytes of an id, a topic or a cluster
	maxLine   = 8 * MaxText
	maxFile   = 64 << 20
)

// ReadFile reads the set in a file; its name is the file's without folder and extension.
func ReadFile(path string) (*Set, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("probes: opening the set: %w", err)
	}
	defer f.Close()
	name := filepath.Base(path)
	return Read(strings.TrimSuffix(name, filepath.Ext(name)), f)
}

// Read reads JSON Lines. Blank lines are skipped; unknown and repeated fields, invalid UTF-8 and repeated ids are
// refused. id, topic and text must be there; split defaults to open, kind to raw, cluster to the id (every text for
// itself).
func Read(name string, r io.Reader) (*Set, error) {
	s := &Set{Name: name}
	ids := map[string]bool{}
	limited := &io.LimitedReader{R: r, N: maxFile + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	n := 0
	for lines.Scan() {
		n++
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		var p Probe
		if err := json.Unmarshal([]byte(line), &p, json.RejectUnknownMembers(true)); err != nil {
			return nil, fmt.Errorf("probes: %s: line %d: %w", name, n, lineError(err))
		}
		if err := s.add(p, ids); err != nil {
			return nil, fmt.Errorf("probes: %s: line %d: %w", name, n, err)
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("probes: %s: line %d: longer than %d bytes", name, n+1, maxLine)
	} else if err != nil {
		return nil, fmt.Errorf("probes: %s: line %d: reading: %w", name, n+1, err)
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("probes: %s: larger than %d bytes: split the set", name, maxFile)
	}
	return s, s.finish()
}

// lineError says in words of the file format why a line is no probe, all of whose fields are texts.
func lineError(err error) error {
	var kind *json.SemanticError
	switch {
	case !errors.As(err, &kind):
		return err
	case kind.JSONPointer == "":
		return errors.New("it is not a JSON object")
	case errors.Is(err, json.ErrUnknownName):
		return fmt.Errorf("field %q is unknown", kind.JSONPointer.LastToken())
	}
	return fmt.Errorf("field %q is not a text", kind.JSONPointer.LastToken())
}

// add checks one probe and appends it.
func (s *Set) add(p Probe, ids map[string]bool) error {
	if p.Split == "" {
		p.Split = Open
	}
	if p.Kind == "" {
		p.Kind = Raw
	}
	if p.Cluster == "" {
		p.Cluster = p.ID
	}
	if err := checkName(p.ID, isName); err != nil {
		return fmt.Errorf("field \"id\": %w", err)
	}
	if err := checkName(p.Cluster, isName); err != nil {
		return fmt.Errorf("field \"cluster\": %w", err)
	}
	for part := range strings.SplitSeq(p.Topic, "+") {
		if err := checkName(part, isTopic); err != nil {
			return fmt.Errorf("field \"topic\": %w", err)
		}
	}
	if strings.Count(p.Topic, "+") > 1 {
		return fmt.Errorf("field \"topic\": %q crosses more than two topics", p.Topic)
	}
	switch {
	case p.Split != Open && p.Split != Sealed:
		return fmt.Errorf("field \"split\": %q is neither %q nor %q", p.Split, Open, Sealed)
	case p.Kind != Raw && p.Kind != Chat:
		return fmt.Errorf("field \"kind\": %q is neither %q nor %q", p.Kind, Raw, Chat)
	case strings.TrimSpace(p.Text) == "":
		return errors.New("field \"text\" is empty")
	case len(p.Text) > MaxText:
		return fmt.Errorf("field \"text\" has %d bytes: at most %d", len(p.Text), MaxText)
	case !utf8.ValidString(p.Text):
		return errors.New("field \"text\" is not valid UTF-8")
	case ids[p.ID]:
		return fmt.Errorf("field \"id\": %q is there already", p.ID)
	case len(s.Probes) >= MaxProbes:
		return fmt.Errorf("more than %d probes", MaxProbes)
	}
	ids[p.ID] = true
	s.Probes = append(s.Probes, p)
	if !p.Crossed() && !slices.Contains(s.Topics, p.Topic) {
		s.Topics = append(s.Topics, p.Topic)
	}
	return nil
}

func checkName(v string, ok func(rune) bool) error {
	if v == "" {
		return errors.New("is missing")
	}
	if len(v) > MaxName {
		return fmt.Errorf("has %d bytes: at most %d", len(v), MaxName)
	}
	if i := strings.IndexFunc(v, func(r rune) bool { return !ok(r) }); i >= 0 {
		r, _ := utf8.DecodeRuneInString(v[i:])
		return fmt.Errorf("%q has the character %q at byte %d; letters, digits and _ - . are taken", v, r, i)
	}
	return nil
}

func isTopic(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.'
}

// isName allows the separators that ids of generated texts use.
func isName(r rune) bool { return isTopic(r) || r == '/' || r == ':' || r == '+' }
