package tokenizer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Report is the outcome of Check. Cases whose ids and texts are all equal make it pass.
type Report struct {
	Cases        int    `json:"cases"`
	IDsEqual     int    `json:"ids_equal"`     // ids equal with and without the post-processor's tokens
	DecodedEqual int    `json:"decoded_equal"` // text equal with special tokens and without
	Pass         bool   `json:"pass"`
	FirstFailure string `json:"first_failure,omitempty"` // what differs in the first case that does
}

// checkCase is a line of cases.jsonl.
type checkCase struct {
	Text         string  `json:"text"`
	IDs          []int32 `json:"ids"`            // with the post-processor's tokens
	IDsNoSpecial []int32 `json:"ids_no_special"` // without
	Decoded      string  `json:"decoded"`        // of IDs
	DecodedSkip  string  `json:"decoded_skip"`   // of IDs, special tokens left out
}

// Check loads the tokenizer.json in dir and compares it with the reference answers in dir's cases.jsonl, one JSON object
// a line.
func Check(dir string) (Report, error) {
	t, err := Load(dir)
	if err != nil {
		return Report{}, err
	}
	f, err := os.Open(filepath.Join(dir, "cases.jsonl"))
	if err != nil {
		return Report{}, fmt.Errorf("tokenizer: %w", err)
	}
	defer f.Close()
	var r Report
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var c checkCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return r, fmt.Errorf("tokenizer: cases.jsonl line %d: %w", r.Cases+1, err)
		}
		r.Cases++
		if err := r.compare(t, &c); err != nil {
			return r, err
		}
	}
	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("tokenizer: reading cases.jsonl: %w", err)
	}
	r.Pass = r.Cases > 0 && r.IDsEqual == r.Cases && r.DecodedEqual == r.Cases
	return r, nil
}

// compare counts one case.
func (r *Report) compare(t *Tokenizer, c *checkCase) error {
	ids, err := t.Encode(c.Text, true)
	if err != nil {
		return err
	}
	bare, err := t.Encode(c.Text, false)
	if err != nil {
		return err
	}
	fail := func(what string, got, want any) {
		if r.FirstFailure == "" {
			r.FirstFailure = fmt.Sprintf("case %d %.200q: %s: got %v, want %v", r.Cases, c.Text, what, got, want)
		}
	}
	switch {
	case !slices.Equal(ids, c.IDs):
		fail("ids", ids, c.IDs)
	case !slices.Equal(bare, c.IDsNoSpecial):
		fail("ids without special tokens", bare, c.IDsNoSpecial)
	default:
		r.IDsEqual++
	}
	whole, skipped := t.Decode(c.IDs, false), t.Decode(c.IDs, true)
	switch {
	case whole != c.Decoded:
		fail("decoded", fmt.Sprintf("%q", whole), fmt.Sprintf("%q", c.Decoded))
	case skipped != c.DecodedSkip:
		fail("decoded without special tokens", fmt.Sprintf("%q", skipped), fmt.Sprintf("%q", c.DecodedSkip))
	default:
		r.DecodedEqual++
	}
	return nil
}
