package atlas

import (
	"errors"
	"strings"
	"testing"

	"covey/engine"
)

func TestAUsageHistoryIsReadWithItsHead(t *testing.T) {
	u, err := ReadUsage(strings.NewReader("-1 78 256\n-2 2 3815245270\n3 17 120\n\n78 255 4\n"))
	if err != nil {
		t.Fatal(err)
	}
	if u.Layers != 78 || u.Experts != 256 || u.Total != 124 || u.Counts[engine.Expert{Layer: 3, ID: 17}] != 120 {
		t.Errorf("read %+v", u)
	}
}

func TestWhatIsNoUsageHistoryIsRefusedWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "names no expert",
		"3 17":                     "line 1",
		"3 17 1\n3 x 1":            `line 2: not a usage history of colibri: "x"`,
		"3 17 1\n3 17 2":           "is there already",
		"-1 10 16\n3 16 2":         "outside 10 layers with 16 experts",
		"3 17 -1":                  "out of range",
		"{\"experts\":[]}":         "1 fields",
		strings.Repeat("1", 200):   "line 1",
		"-1 0 16":                  "0 layers",
		"99999999999999999999 1 1": "no integer",
	} {
		if _, err := ReadUsage(strings.NewReader(text)); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30q: error %v, want %q", text, err, want)
		}
	}
}

func FuzzReadUsage(f *testing.F) {
	f.Add("-1 78 256\n3 17 120\n")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := ReadUsage(strings.NewReader(text))
		if err == nil && (u.Total < 0 || len(u.Counts) == 0) {
			t.Fatalf("accepted %+v", u)
		}
	})
}
