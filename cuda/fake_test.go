//go:build cuda

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Tests run on the emulated driver of fake/, built here and found before any real one, unless COVEY_TEST_DEVICE is set: then
// they run on the machine's device, with the same demands.

func realDevice() bool { return os.Getenv("COVEY_TEST_DEVICE") != "" }

// thorough says whether the long forms of tests are run: on a device, unless its time is a sanitizer's.
func thorough() bool { return realDevice() && !testing.Short() }

func TestMain(m *testing.M) {
	if realDevice() || os.Getenv("COVEY_FAKE_DRIVER") != "" {
		os.Exit(m.Run())
	}
	code, err := withFakeDriver()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

// emulated are the sources of kernels that the driver runs.
var emulated = []string{"attend", "attend_row", "attention", "delta", "draw", "experts", "experts_few", "experts_float", "experts_row", "feedforward", "floats", "fused", "index", "latent", "latent_row", "matmul", "product", "product_row", "route", "router", "rows", "streams", "tiles"}

// withFakeDriver builds the driver and runs this test binary again under it: the driver is looked for when a process starts.
func withFakeDriver() (int, error) {
	dir, err := os.MkdirTemp("", "covey-driver")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	args := []string{"-shared", "-fPIC", "-O2", "-std=c++17", "-ffp-contract=off", "-Wno-unknown-pragmas", "-Wl,-soname,libcuda.so.1", "-o", filepath.Join(dir, "libcuda.so.1"),
		"-DCOVEY_EMULATED", "-Wno-attributes", "fake/driver.cc"}
	for _, kernels := range emulated {
		args = append(args, "-x", "c++", "kernels/"+kernels+".cu")
	}
	args = append(args, "-ldl")
	if runtime.GOARCH == "amd64" {
		if info, _ := os.ReadFile("/proc/cpuinfo"); bytes.Contains(info, []byte(" fma ")) {
			args = append(args, "-mfma") // canon_fmaf is software without it
		}
	}
	if out, err := exec.Command("g++", args...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("building the emulated driver: %w\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	again := exec.Command(self, os.Args[1:]...)
	again.Env = append(os.Environ(), "COVEY_FAKE_DRIVER=1", "LD_LIBRARY_PATH="+dir)
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	err = again.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}
