package covey_test

import (
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// allowed lists, for each top folder, the top folders that its packages may import (ARCHITECTURE.md, "Folders").
var allowed = map[string][]string{
	"cmd":    {"daemon", "engine", "atlas", "store", "web", "cuda"},
	"daemon": {"engine", "atlas", "store", "web"},
	"atlas":  {"engine", "store"},
	"cuda":   {"engine"},
	"engine": {},
	"store":  {},
	"web":    {},
}

// packages walks the tree and yields every folder with Go files, relative to the root.
func packages(t *testing.T) []string {
	t.Helper()
	var dirs []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(path, ".go") && !slices.Contains(dirs, filepath.Dir(path)) {
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

func top(dir string) string { first, _, _ := strings.Cut(filepath.ToSlash(dir), "/"); return first }

func TestImportsPointOneWay(t *testing.T) {
	for _, dir := range packages(t) {
		if dir == "." {
			continue
		}
		from := top(dir)
		if _, ok := allowed[from]; !ok {
			t.Errorf("%s: folder %q is not in the architecture", dir, from)
			continue
		}
		for _, path := range imports(t, dir) {
			inner, ours := strings.CutPrefix(path, "covey/")
			if !ours {
				continue
			}
			to := top(inner)
			if to == from {
				if from == "engine" && inner == "engine" {
					t.Errorf("%s imports covey/engine: packages below the facade must not know it", dir)
				}
				if from == "web" && strings.HasPrefix(filepath.ToSlash(dir), "web/wire") {
					t.Errorf("%s imports %s: the wire knows nobody", dir, path)
				}
				continue
			}
			if !slices.Contains(allowed[from], to) {
				t.Errorf("%s imports %s: %s may import only %v", dir, path, from, allowed[from])
			}
		}
	}
}

// imports lists the imports of the non-test Go files of dir, whatever their build constraints.
func imports(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			paths = append(paths, strings.Trim(spec.Path.Value, `"`))
		}
	}
	return paths
}

func TestEveryPackageHasAPackageComment(t *testing.T) {
	for _, dir := range packages(t) {
		files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
		documented, sources := false, 0
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			sources++
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			documented = documented || parsed.Doc != nil
		}
		if sources > 0 && !documented {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

// The client is WebAssembly: each of these packages costs it tens to hundreds of kilobytes (RATIONALE.md).
func TestClientStaysSmall(t *testing.T) {
	heavy := []string{"fmt", "encoding/json", "net/http", "regexp", "text/template", "log", "github.com/a-h/templ"}
	context := build.Default
	context.GOOS, context.GOARCH, context.CgoEnabled = "js", "wasm", false
	for _, root := range []string{"web/client", "web/wire"} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() || d.Name() == "testdata" {
				return err
			}
			pkg, err := context.ImportDir(path, 0)
			if err != nil {
				return nil
			}
			for _, name := range pkg.Imports {
				if slices.Contains(heavy, name) {
					t.Errorf("%s imports %s", path, name)
				}
			}
			return nil
		})
	}
	if _, err := os.Stat("go.mod"); err != nil {
		t.Fatal(err)
	}
}
