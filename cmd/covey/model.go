package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"covey/daemon"
	"covey/engine"
	"covey/engine/tokenizer"
	"covey/engine/weights"
)

// bundled is the folder of the model that comes with Covey.
const bundled = "models/smollm2-moe-32x"

// modelFolder returns the named folder or GGUF file, or finds the bundled model beside the working directory, the
// executable or the executable's parent folder.
func modelFolder(named string) (string, error) {
	if named != "" {
		if info, err := os.Stat(named); err != nil || !info.IsDir() && filepath.Ext(named) != ".gguf" {
			return named, &daemon.Error{Kind: daemon.KindInput, Code: "model", Message: named + " is not a model folder", Hint: "give a folder with config.json, tokenizer.json and safetensors files, or a GGUF file", Err: err}
		}
		return named, nil
	}
	places := []string{"."}
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		places = append(places, filepath.Dir(exe), filepath.Dir(filepath.Dir(exe)))
	}
	for _, place := range places {
		dir := filepath.Join(place, filepath.FromSlash(bundled))
		if _, err := os.Stat(filepath.Join(dir, "config.json")); err == nil {
			return dir, nil
		}
	}
	return "", &daemon.Error{Kind: daemon.KindInput, Code: "model", Message: "the bundled model (" + bundled + ") is not beside the working directory or the program", Hint: "choose a model with --model DIR"}
}

// openEngine opens the model of a verb, drawing progress.
func openEngine(ctx context.Context, con *console, c daemon.EngineConfig) (*engine.Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	dir, err := modelFolder(c.Model)
	if err != nil {
		return nil, err
	}
	c.Model = dir
	config := c.Engine()
	config.Logger = slog.New(slog.DiscardHandler)
	if config.Backend, err = openDevice(c.Device); err != nil {
		return nil, err
	}
	eng, err := engine.Open(ctx, config, func(done, total int64) { con.progress("loading", done, total) })
	con.clear()
	if err != nil {
		return nil, inputError("model", "covey doctor --model "+dir+" names what is wrong", "opening the model in "+dir, err)
	}
	return eng, nil
}

// openTokenizer loads the tokenizer of the named model, or of the bundled one.
func openTokenizer(model string) (*tokenizer.Tokenizer, error) {
	dir, err := modelFolder(model)
	if err != nil {
		return nil, err
	}
	tok, err := tokenizer.Load(filepath.Join(dir, "tokenizer.json"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) { // it may be inside the model's own file
		tok, err = innerTokenizer(dir)
	}
	if err != nil {
		return nil, inputError("model", "choose a folder with tokenizer.json", "reading the tokenizer", err)
	}
	return tok, nil
}

// innerTokenizer loads the tokenizer of a checkpoint that holds it within its tensor files.
func innerTokenizer(path string) (*tokenizer.Tokenizer, error) {
	checkpoint, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	defer checkpoint.Close()
	return tokenizer.LoadFS(checkpoint.FS(), "tokenizer.json")
}
