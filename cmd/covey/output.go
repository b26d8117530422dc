package main

import (
	"errors"
	"os"
	"path/filepath"

	"covey/daemon"
)

// output is a file that appears under its name only when it is whole.
type output struct {
	path string
	file *os.File // beside path, under a name of its own; nil once committed or abandoned
}

// create begins a file; it fails at once where path cannot be written.
func create(path string) (*output, error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return nil, &daemon.Error{Kind: daemon.KindEnvironment, Code: "output", Message: "cannot write " + path, Hint: "choose a folder that exists and can be written", Err: err}
	}
	return &output{path: path, file: file}, nil
}

// commit writes the rest and gives the file its name.
func (o *output) commit(rest []byte) error {
	_, err := o.file.Write(rest)
	if err == nil {
		err = o.file.Chmod(0o644)
	}
	if err == nil {
		err = o.file.Sync()
	}
	if err = errors.Join(err, o.file.Close()); err == nil {
		err = os.Rename(o.file.Name(), o.path)
	}
	if err != nil {
		os.Remove(o.file.Name())
		err = &daemon.Error{Kind: daemon.KindEnvironment, Code: "output", Message: "writing " + o.path, Hint: "check the disk", Err: err}
	}
	o.file = nil
	return err
}

// abandon removes what was not committed.
func (o *output) abandon() {
	if o.file != nil {
		o.file.Close()
		os.Remove(o.file.Name())
	}
}
