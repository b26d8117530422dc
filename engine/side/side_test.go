package side

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

func TestReadTakesPlainFilesUpToTheLimit(t *testing.T) {
	files := fstest.MapFS{
		"short": {Data: []byte("text")},
		"long":  {Data: make([]byte, 2<<20+1)},
		"pipe":  {Mode: fs.ModeNamedPipe},
	}
	if text, err := Read(files, "short", 4); text != "text" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
	for name, want := range map[string]string{"long": "long is larger than 2 MiB", "pipe": "pipe is not a regular file: replace it"} {
		if _, err := Read(files, name, 2<<20); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
	if _, err := Read(files, "none", 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
