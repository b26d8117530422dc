package tokenizer

import (
	"os"
	"path/filepath"
	"testing"
)

// TestEveryKindGivesTheReferenceIDsAndTexts runs the reference answers of each tokenizer kind.
func TestEveryKindGivesTheReferenceIDsAndTexts(t *testing.T) {
	kinds, err := os.ReadDir("testdata/kinds")
	if err != nil {
		t.Fatal(err)
	}
	if len(kinds) < 7 {
		t.Fatalf("%d kinds in testdata/kinds, want at least 7", len(kinds))
	}
	for _, kind := range kinds {
		t.Run(kind.Name(), func(t *testing.T) {
			r, err := Check(filepath.Join("testdata/kinds", kind.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if !r.Pass {
				t.Errorf("%d cases, ids equal in %d, texts equal in %d: %s", r.Cases, r.IDsEqual, r.DecodedEqual, r.FirstFailure)
			}
		})
	}
}
