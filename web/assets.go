// Package web holds what a person sees: templ pages and fragments, the static files with their handler, and (below it)
// the wire protocol and the WebAssembly client. It knows views only: no store, no engine; the daemon fills its types.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

// The client (app.wasm, wasm_exec.js and their compressed forms) is a build output that may be missing: the package
// compiles and its tests pass without it, and pages then say how to build it.
//
//go:embed static
var static embed.FS

// AssetSet is the static files of this binary under names that contain a hash of their content, so that browsers may
// keep them for ever. Immutable; safe for concurrent use.
type AssetSet struct {
	files map[string]*asset // by base name, "app.css"
	names map[string]string // hashed name to base name
}

type asset struct {
	hashed  string // "app.1f0c2a9b7d.css"
	mime    string
	raw     []byte
	encoded map[string][]byte // by content coding: "br", "gzip"
}

// Assets returns the files that were compiled in.
var Assets = sync.OnceValue(func() *AssetSet {
	sub, err := fs.Sub(static, "static")
	if err != nil {
		panic("web: static files are not embedded: " + err.Error())
	}
	set, err := newAssets(sub)
	if err != nil {
		panic("web: reading embedded files: " + err.Error())
	}
	return set
})

var mimes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".wasm": "application/wasm",
	".svg":  "image/svg+xml",
	".png":  "image/png",
}

// newAssets reads every file of a known type. NAME.br and NAME.gz are compressed forms of NAME; a text file without one
// is compressed with gzip here, once.
func newAssets(files fs.FS) (*AssetSet, error) {
	set := &AssetSet{files: map[string]*asset{}, names: map[string]string{}}
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name := entry.Name()
		ext := path.Ext(name)
		mime, ok := mimes[ext]
		if !ok || entry.IsDir() {
			continue
		}
		raw, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(raw)
		a := &asset{
			hashed:  strings.TrimSuffix(name, ext) + "." + hex.EncodeToString(sum[:5]) + ext,
			mime:    mime,
			raw:     raw,
			encoded: map[string][]byte{},
		}
		for coding, suffix := range map[string]string{"br": ".br", "gzip": ".gz"} {
			if body, err := fs.ReadFile(files, name+suffix); err == nil {
				a.encoded[coding] = body
			}
		}
		if _, ok := a.encoded["gzip"]; !ok && ext != ".png" && ext != ".wasm" {
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			w.Write(raw) // a bytes.Buffer does not fail
			w.Close()
			a.encoded["gzip"] = b.Bytes()
		}
		set.files[name] = a
		set.names[a.hashed] = name
	}
	return set, nil
}

// URL returns the address of a file by its base name; "" when this binary does not hold it.
func (s *AssetSet) URL(name string) string {
	if a, ok := s.files[name]; ok {
		return "/static/" + a.hashed
	}
	return ""
}

// Built says whether the WebAssembly client is in this binary.
func (s *AssetSet) Built() bool {
	return s.files["app.wasm"] != nil && s.files["wasm_exec.js"] != nil
}

// ServeIcon serves the icon at an address without a hash.
func (s *AssetSet) ServeIcon(w http.ResponseWriter, _ *http.Request) {
	icon := s.files["icon.svg"]
	w.Header().Set("Content-Type", icon.mime)
	w.Header().Set("Cache-Control", "private, max-age=3600")
	w.Write(icon.raw) // the client is gone if this fails
}

// raw is a file's content.
func (s *AssetSet) raw(name string) []byte { return s.files[name].raw }

// ServeHTTP serves GET and HEAD of /static/HASHED: compressed if the client takes it, cacheable for ever. The caller
// has authenticated the request and set the security headers.
func (s *AssetSet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, ok := s.files[s.names[strings.TrimPrefix(r.URL.Path, "/static/")]]
	if !ok {
		http.Error(w, "no such file in this version of Covey: reload the page", http.StatusNotFound)
		return
	}
	h := w.Header()
	body, tag := a.raw, a.hashed
	for _, coding := range []string{"br", "gzip"} {
		if encoded, ok := a.encoded[coding]; ok && accepts(r.Header.Get("Accept-Encoding"), coding) {
			body, tag = encoded, a.hashed+"-"+coding
			h.Set("Content-Encoding", coding)
			break
		}
	}
	h.Set("Content-Type", a.mime)
	h.Set("Cache-Control", "private, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", `"`+tag+`"`)
	if r.Header.Get("If-None-Match") == `"`+tag+`"` {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		w.Write(body)
	}
}

// accepts says whether an Accept-Encoding header names coding with a weight above 0.
func accepts(header, coding string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, params, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(name), coding) {
			weight := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(params), "q="))
			return strings.Trim(weight, "0.") != "" || params == ""
		}
	}
	return false
}
