package canon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Code compiled for the base instruction set must hold no fused multiply-add at all, even where the compiler may use the
// instruction: with the flags of this package it fuses nothing by itself. (In the vector families the equality of y + x*f
// with two rounded operations shows it.)
func TestCompilerFusesNothing(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("NOT TESTED HERE: gcc is missing")
	}
	source, err := os.ReadFile("canon.go")
	if err != nil {
		t.Skipf("NOT TESTED HERE: the sources are elsewhere: %v", err)
	}
	_, flags, _ := strings.Cut(string(source), "#cgo CFLAGS: ")
	flags, _, _ = strings.Cut(flags, "\n")
	// Two roundings written as such, beside one that is written fused.
	probe := filepath.Join(t.TempDir(), "probe.c")
	if err := os.WriteFile(probe, []byte("#include <math.h>\nfloat two(float a, float b, float c) { return a * b + c; }\nfloat one(float a, float b, float c) { return fmaf(a, b, c); }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	assembly := func(file string, extra ...string) string {
		out, err := exec.Command(cc, append(append(strings.Fields(flags), extra...), "-S", "-o", "-", file)...).Output()
		if err != nil {
			t.Fatalf("compiling %s: %v", file, err)
		}
		return string(out)
	}
	if n := strings.Count(assembly(probe, "-mfma"), "vfmadd"); n != 1 {
		t.Errorf("%d fused instructions with the flags %q, one is written", n, flags)
	}
	for _, file := range []string{"kernels_portable.c", "rope.c"} {
		if s := assembly(file); strings.Contains(s, "vfm") || strings.Contains(s, "vfnm") || !strings.Contains(s, "mul") {
			t.Errorf("%s has fused instructions", file)
		}
	}
}
