package atlas

// This file reads colibri's usage history (.coli_usage): how often each expert was chosen in all use so far. It is weak
// evidence: whatever was typed, in whatever order, one number an expert; no topic, no text, no interval. It is shown beside
// an atlas and never mixed into one.
//
//	each line: three integers "layer expert count"; records with a negative layer are a head:
//	-1 layers experts       the geometry
//	-2 version engine       a version and a hash of the engine that wrote it

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"covey/engine"
)

// Limits of a usage history.
const (
	maxUsageLines = 4 << 20
	maxUsageLine  = 128
	maxCount      = 1 << 50
)

// ErrUsage is wrapped by errors about files that are no usage history.
var ErrUsage = errors.New("not a usage history of colibri")

// Usage is a usage history.
type Usage struct {
	Layers, Experts int // of the head; 0 = it has none
	Counts          map[engine.Expert]int64
	Total           int64
}

// ReadUsage reads a history. Anything but three integers a line, an expert twice, or one outside the head's geometry is
// refused with the line's number.
func ReadUsage(r io.Reader) (*Usage, error) {
	u := &Usage{Counts: map[engine.Expert]int64{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 4<<10), maxUsageLine)
	n := 0
	bad := func(format string, args ...any) error {
		return fmt.Errorf("atlas: usage: line %d: %w: %s", n, ErrUsage, fmt.Sprintf(format, args...))
	}
	for lines.Scan() {
		if n++; n > maxUsageLines {
			return nil, bad("more than %d lines", maxUsageLines)
		}
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 3 {
			return nil, bad("%d fields, expected layer, expert and count", len(fields))
		}
		var v [3]int64
		for i, f := range fields {
			var err error
			if v[i], err = strconv.ParseInt(f, 10, 64); err != nil {
				return nil, bad("%.20q is no integer", f)
			}
		}
		switch {
		case v[0] == -1:
			if v[1] < 1 || v[1] > maxLayer || v[2] < 1 || v[2] > maxExperts {
				return nil, bad("%d layers with %d experts", v[1], v[2])
			}
			u.Layers, u.Experts = int(v[1]), int(v[2])
		case v[0] < 0: // other heads say who wrote it
		case v[0] > maxLayer || v[1] < 0 || v[1] >= maxExperts || v[2] < 0 || v[2] > maxCount:
			return nil, bad("layer %d expert %d count %d is out of range", v[0], v[1], v[2])
		case u.Experts > 0 && (v[0] > int64(u.Layers) || v[1] >= int64(u.Experts)): // a draft layer counts as one more
			return nil, bad("layer %d expert %d is outside %d layers with %d experts", v[0], v[1], u.Layers, u.Experts)
		default:
			x := engine.Expert{Layer: int(v[0]), ID: int(v[1])}
			if _, twice := u.Counts[x]; twice {
				return nil, bad("layer %d expert %d is there already", x.Layer, x.ID)
			}
			u.Counts[x] = v[2]
			u.Total += v[2]
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		n++
		return nil, bad("longer than %d bytes", maxUsageLine)
	} else if err != nil {
		return nil, fmt.Errorf("atlas: usage: reading: %w", err)
	}
	if len(u.Counts) == 0 {
		return nil, fmt.Errorf("atlas: usage: %w: it names no expert", ErrUsage)
	}
	return u, nil
}
