package weights

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// modelFolder is a model's folder. Its files are opened by name through an os.Root, so that no link leads out of it. One layout has a
// wider root: a snapshot in a cache of Hugging Face's tools (models--OWNER--NAME/snapshots/REVISION) holds nothing but links to
// the blobs of its repository, which lie two folders up.
type modelFolder struct {
	root *os.Root
	at   string // slash path of the model's folder in the root
}

// openModelFolder opens dir. The caller closes it.
func openModelFolder(dir string) (modelFolder, error) {
	whole, err := filepath.Abs(dir)
	if err != nil {
		return modelFolder{}, err
	}
	snapshots := filepath.Dir(whole)
	repository := filepath.Dir(snapshots)
	f := modelFolder{at: "."}
	if filepath.Base(snapshots) == "snapshots" && strings.HasPrefix(filepath.Base(repository), "models--") {
		dir, f.at = repository, path.Join("snapshots", filepath.Base(whole))
	}
	if f.root, err = os.OpenRoot(dir); err != nil {
		return modelFolder{}, err
	}
	if _, err := fs.Stat(f.FS(), "."); err != nil {
		f.root.Close()
		return modelFolder{}, err
	}
	return f, nil
}

func (f modelFolder) Stat(name string) (fs.FileInfo, error) {
	return f.root.Stat(path.Join(f.at, name))
}
func (f modelFolder) Lstat(name string) (fs.FileInfo, error) {
	return f.root.Lstat(path.Join(f.at, name))
}
func (f modelFolder) Open(name string) (*os.File, error) { return f.root.Open(path.Join(f.at, name)) }
func (f modelFolder) Close() error                       { return f.root.Close() }

// OpenFile is os.OpenFile in the folder.
func (f modelFolder) OpenFile(name string, flag int, mode fs.FileMode) (*os.File, error) {
	return f.root.OpenFile(path.Join(f.at, name), flag, mode)
}

// FS is the folder's files by slash path.
func (f modelFolder) FS() fs.FS {
	if f.at == "." {
		return f.root.FS()
	}
	files, err := fs.Sub(f.root.FS(), f.at)
	if err != nil {
		panic("weights: " + err.Error()) // at is a clean path
	}
	return files
}
