package sched

import "strings"

// stopper finds stop texts in an answer that arrives in pieces and holds back what may become one, so that no part of a
// stop text is ever released. The match that ends first counts, and of those the one that begins first, whatever the
// pieces were. The zero value knows no stop texts and passes everything on.
type stopper struct {
	stops   []string
	longest int    // bytes of the longest stop text
	held    string // a proper prefix of some stop text, not yet released
}

func newStopper(stops []string) stopper {
	s := stopper{stops: stops}
	for _, stop := range stops {
		s.longest = max(s.longest, len(stop))
	}
	return s
}

// add takes the next piece and returns the text to release, and the stop text that ended the answer, if one did.
func (s *stopper) add(piece string) (release, stop string) {
	text := s.held + piece
	begin, end := -1, len(text)+1
	for _, c := range s.stops {
		if i := strings.Index(text, c); i >= 0 && (i+len(c) < end || i+len(c) == end && i < begin) {
			begin, end, stop = i, i+len(c), c
		}
	}
	if begin >= 0 {
		s.held = ""
		return text[:begin], stop
	}
	n := min(len(text), s.longest-1)
	for ; n > 0; n-- {
		if s.begins(text[len(text)-n:]) {
			break
		}
	}
	n = max(n, 0)
	s.held = text[len(text)-n:]
	return text[:len(text)-n], ""
}

// flush gives up waiting: the answer has ended, so what was held back was no stop text.
func (s *stopper) flush() string {
	text := s.held
	s.held = ""
	return text
}

// begins says whether some stop text begins with tail.
func (s *stopper) begins(tail string) bool {
	for _, stop := range s.stops {
		if strings.HasPrefix(stop, tail) {
			return true
		}
	}
	return false
}
