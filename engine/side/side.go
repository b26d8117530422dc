// Package side reads the small files beside a model's weights: tokenizers, templates, settings.
package side

import (
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// Read returns the text of a plain file of at most limit bytes. Anything else is refused before it is opened: a pipe would wait
// for a writer for ever. The error of a missing file matches fs.ErrNotExist.
func Read(fsys fs.FS, name string, limit int64) (string, error) {
	if info, err := fs.Stat(fsys, name); err == nil && !info.Mode().IsRegular() {
		return "", fmt.Errorf("side: %s is not a regular file: replace it by a plain file", name)
	}
	f, err := fsys.Open(name)
	if err != nil {
		return "", fmt.Errorf("side: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("side: reading %s: %w", name, err)
	}
	if info.Size() > limit {
		return "", fmt.Errorf("side: %s is larger than %d MiB, the most that is read of such a file", name, limit>>20)
	}
	var text strings.Builder
	text.Grow(int(info.Size()))
	if _, err := io.CopyN(&text, f, info.Size()); err != nil {
		return "", fmt.Errorf("side: reading %s: %w", name, err)
	}
	return text.String(), nil
}
