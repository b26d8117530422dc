// Command precompress writes NAME.br and NAME.gz beside each named file and prints the three sizes, so that the daemon
// compresses nothing while it serves and the build needs no compressor but this module's own.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"

	"github.com/andybalholm/brotli"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: precompress FILE...")
		os.Exit(2)
	}
	for _, name := range os.Args[1:] {
		if err := compress(name); err != nil {
			fmt.Fprintln(os.Stderr, "precompress:", err)
			os.Exit(1)
		}
	}
}

func compress(name string) error {
	raw, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var br, gz bytes.Buffer
	if err := write(brotli.NewWriterLevel(&br, brotli.BestCompression), raw); err != nil {
		return err
	}
	zip, err := gzip.NewWriterLevel(&gz, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := write(zip, raw); err != nil {
		return err
	}
	if err := os.WriteFile(name+".br", br.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %d bytes, gzip %d, brotli %d\n", name, len(raw), gz.Len(), br.Len())
	return os.WriteFile(name+".gz", gz.Bytes(), 0o644)
}

func write(w io.WriteCloser, b []byte) error {
	if _, err := w.Write(b); err != nil {
		return err
	}
	return w.Close()
}
