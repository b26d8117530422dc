package tokenizer

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// TestEveryKindGivesTheReferenceIDsAndTexts runs the reference answers of each tokenizer kind.
func TestEveryKindGivesTheReferenceIDsAndTexts(t *testing.T) {
	kinds, err := os.ReadDir("testdata/kinds")
	if err != nil {
		t.Fatal(err)
	}
	if len(kinds) < 8 {
		t.Fatalf("%d kinds in testdata/kinds, want at least 8", len(kinds))
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

func TestAPipeInPlaceOfTheFileIsRefusedWithoutWaiting(t *testing.T) {
	files := fstest.MapFS{"tokenizer.json": {Mode: fs.ModeNamedPipe | 0o600}}
	if _, err := LoadFS(files, "tokenizer.json"); err == nil || !strings.Contains(err.Error(), "tokenizer.json is not a regular file") {
		t.Error(err)
	}
}
