package sched

import (
	"strings"
	"testing"
)

func TestStopTextAcrossPiecesIsNotReleased(t *testing.T) {
	for _, c := range []struct {
		name     string
		stops    []string
		pieces   []string
		released []string // one a piece, then the flush
		stop     string
	}{
		{"no stops", nil, []string{"a", "b"}, []string{"a", "b", ""}, ""},
		{"inside one piece", []string{"END"}, []string{"one END two"}, []string{"one "}, "END"},
		{"across pieces", []string{"END"}, []string{"one E", "N", "D two"}, []string{"one ", "", ""}, "END"},
		{"partial match released when it fails", []string{"END"}, []string{"one E", "N", "TER"}, []string{"one ", "", "ENTER", ""}, ""},
		{"partial match released at the end", []string{"END"}, []string{"one EN"}, []string{"one ", "EN"}, ""},
		{"repeated first letter", []string{"aab"}, []string{"a", "a", "a", "b"}, []string{"", "", "a", ""}, "aab"},
		{"earliest end wins", []string{"bcde", "cd"}, []string{"abc", "de"}, []string{"a", "b"}, "cd"},
		{"earliest end wins in one piece too", []string{"bcde", "cd"}, []string{"abcde"}, []string{"ab"}, "cd"},
		{"same end: earliest begin wins", []string{"cd", "bcd"}, []string{"abcd"}, []string{"a"}, "bcd"},
		{"characters of several bytes", []string{"。停"}, []string{"好。", "停"}, []string{"好", ""}, "。停"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStopper(c.stops)
			var got []string
			stop := ""
			for _, p := range c.pieces {
				var text string
				text, stop = s.add(p)
				got = append(got, text)
				if stop != "" {
					break
				}
			}
			if stop == "" {
				got = append(got, s.flush())
			}
			if stop != c.stop || strings.Join(got, "|") != strings.Join(c.released, "|") {
				t.Errorf("released %q and stopped at %q, want %q and %q", got, stop, c.released, c.stop)
			}
		})
	}
}

func FuzzStopper(f *testing.F) {
	f.Add("one END two", "END", "E", 3)
	f.Add("aaaab", "aab", "ab", 1)
	f.Fuzz(func(t *testing.T, text, first, second string, size int) {
		if first == "" || second == "" || size < 1 {
			return
		}
		whole := newStopper([]string{first, second})
		want, wantStop := whole.add(text)
		if wantStop == "" {
			want += whole.flush()
		}
		pieces := newStopper([]string{first, second})
		var got, stop string
		for at := 0; at < len(text) && stop == ""; at += size {
			var release string
			release, stop = pieces.add(text[at:min(at+size, len(text))])
			got += release
		}
		if stop == "" {
			got += pieces.flush()
		}
		if got != want || stop != wantStop {
			t.Fatalf("in pieces of %d: %q, stop %q; whole: %q, stop %q", size, got, stop, want, wantStop)
		}
		if stop == "" && got != text {
			t.Fatalf("text was lost: %q of %q", got, text)
		}
	})
}
