package web

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func testAssets(t *testing.T) *AssetSet {
	t.Helper()
	set, err := newAssets(fstest.MapFS{
		"app.css":     {Data: []byte("body { color: red }")},
		"app.wasm":    {Data: []byte("raw wasm")},
		"app.wasm.br": {Data: []byte("brotli")},
		"app.wasm.gz": {Data: []byte("gzip")},
		"notes.txt":   {Data: []byte("not for browsers")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func fetch(set *AssetSet, path, encodings string, more ...string) *http.Response {
	r := httptest.NewRequest("GET", path, nil)
	r.Header.Set("Accept-Encoding", encodings)
	for i := 0; i+1 < len(more); i += 2 {
		r.Header.Set(more[i], more[i+1])
	}
	w := httptest.NewRecorder()
	set.ServeHTTP(w, r)
	return w.Result()
}

func TestAssetsAreServedCompressedUnderHashedNames(t *testing.T) {
	set := testAssets(t)
	for _, test := range []struct{ encodings, coding, body string }{
		{"gzip, deflate, br, zstd", "br", "brotli"},
		{"gzip, br;q=0", "gzip", "gzip"},
		{"", "", "raw wasm"},
		{"identity", "", "raw wasm"},
	} {
		got := fetch(set, set.URL("app.wasm"), test.encodings)
		body, _ := io.ReadAll(got.Body)
		if got.StatusCode != 200 || got.Header.Get("Content-Encoding") != test.coding || string(body) != test.body || got.Header.Get("Content-Type") != "application/wasm" {
			t.Errorf("%q: %d, %v, %q", test.encodings, got.StatusCode, got.Header, body)
		}
		if cache := got.Header.Get("Cache-Control"); !strings.Contains(cache, "immutable") {
			t.Errorf("Cache-Control %q", cache)
		}
	}
}

func TestTextWithoutACompressedFormIsCompressedOnce(t *testing.T) {
	set := testAssets(t)
	got := fetch(set, set.URL("app.css"), "gzip")
	zip, err := gzip.NewReader(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(zip)
	if err != nil || string(body) != "body { color: red }" {
		t.Errorf("got %q, %v", body, err)
	}
}

func TestOnlyTheHashedNameOfThisVersionIsServed(t *testing.T) {
	set := testAssets(t)
	for _, path := range []string{"/static/app.css", "/static/app.0000000000.css", "/static/", "/static/notes.txt", "/static/../assets.go"} {
		if got := fetch(set, path, ""); got.StatusCode != 404 {
			t.Errorf("%s: %d", path, got.StatusCode)
		}
	}
	if set.URL("notes.txt") != "" || set.URL("missing.js") != "" {
		t.Error("a file that is not served has an address")
	}
}

func TestAnUnchangedAssetIsNotSentAgain(t *testing.T) {
	set := testAssets(t)
	tag := fetch(set, set.URL("app.wasm"), "br").Header.Get("ETag")
	got := fetch(set, set.URL("app.wasm"), "br", "If-None-Match", tag)
	if got.StatusCode != 304 {
		t.Errorf("status %d for tag %s", got.StatusCode, tag)
	}
	if got := fetch(set, set.URL("app.wasm"), "gzip", "If-None-Match", tag); got.StatusCode != 200 {
		t.Errorf("another coding with that tag: status %d", got.StatusCode)
	}
}

// The client's loader must be the compiler's own.
func TestBuiltLoaderMatchesTheCompiler(t *testing.T) {
	built, err := static.ReadFile("static/wasm_exec.js")
	if err != nil {
		t.Skip("the client has not been built: run make wasm")
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Skip("no go command here: ", err)
	}
	want, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "lib", "wasm", "wasm_exec.js"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(built, want) {
		t.Error("web/static/wasm_exec.js is of another Go version: run make wasm")
	}
}

func TestClientFitsItsBudget(t *testing.T) {
	const most = 650_000
	br, err := static.ReadFile("static/app.wasm.br")
	if err != nil {
		t.Skip("the client has not been built: run make wasm")
	}
	t.Logf("client: %d bytes of brotli, at most %d", len(br), most)
	if len(br) > most {
		t.Errorf("the client takes %d bytes, at most %d", len(br), most)
	}
}
