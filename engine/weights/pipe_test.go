//go:build unix

package weights

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Opening a named pipe waits until somebody writes to it, which would hang a start for ever.
func TestPipesAreRefusedWithoutWaiting(t *testing.T) {
	const shard, index = "m.safetensors", "model.safetensors.index.json"
	for _, name := range []string{"config.json", "model.safetensors", index, shard} {
		files := map[string][]byte{"config.json": []byte(`{}`)}
		if name == shard {
			files[index] = []byte(`{"weight_map":{"a":"m.safetensors"}}`)
		}
		delete(files, name)
		dir := folder(t, files)
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), name+": not a regular file; replace it") {
			t.Errorf("%s is a pipe: %v", name, err)
		}
	}
}
