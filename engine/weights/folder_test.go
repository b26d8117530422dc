package weights

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cached lays a checkpoint out as Hugging Face's tools cache it: blobs, and a snapshot of links to them. It returns the snapshot.
func cached(t *testing.T, links map[string]string, blobs map[string][]byte) string {
	t.Helper()
	repository := filepath.Join(t.TempDir(), "models--owner--name")
	snapshot := filepath.Join(repository, "snapshots", "0123456789abcdef")
	for _, dir := range []string{snapshot, filepath.Join(repository, "blobs")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range blobs {
		if err := os.WriteFile(filepath.Join(repository, "blobs", name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(snapshot, name)); err != nil {
			t.Fatal(err)
		}
	}
	return snapshot
}

func TestASnapshotOfACacheIsReadThroughItsLinks(t *testing.T) {
	dir := cached(t,
		map[string]string{"config.json": "../../blobs/c", "model.safetensors": "../../blobs/m", "tokenizer.json": "../../blobs/t"},
		map[string][]byte{"c": []byte(`{}`), "t": []byte(`"text"`),
			"m": safetensors(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, floats(3, 4))})
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if v, err := c.Vector("a", 2); err != nil || v[0] != 3 || v[1] != 4 {
		t.Errorf("got %v, %v, want [3 4]", v, err)
	}
	if text, err := fs.ReadFile(c.FS(), "tokenizer.json"); string(text) != `"text"` || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestALinkOutOfACachesRepositoryIsRefused(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(outside, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{outside, "../../../config.json"} {
		dir := cached(t, map[string]string{"config.json": target, "model.safetensors": "../../blobs/m"},
			map[string][]byte{"m": safetensors(`{}`, nil)})
		if err := os.WriteFile(filepath.Join(dir, "../../../config.json"), []byte(`{}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "leaves the model folder") {
			t.Errorf("%s: got %v", target, err)
		}
	}
}
