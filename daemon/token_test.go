package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestTokenIsMadeOnceReadableByItsOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := PrepareData(dir); err != nil {
		t.Fatal(err)
	}
	first, err := ReadToken(dir)
	if err != nil || len(first) != 43 {
		t.Fatalf("token %q, error %v", first, err)
	}
	if again, err := ReadToken(dir); err != nil || again != first {
		t.Errorf("the token changed: %q, %v", again, err)
	}
	if rotated, err := RotateToken(dir); err != nil || rotated == first {
		t.Errorf("rotation gave %q, %v", rotated, err)
	}
	if runtime.GOOS == "windows" {
		return // folder permissions work otherwise there
	}
	for path, want := range map[string]os.FileMode{filepath.Join(dir, "token"): 0o600, dir: 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v (%v)", filepath.Base(path), info.Mode().Perm(), want, err)
		}
	}
}

func TestABrokenTokenFileIsRefusedWithItsRemedy(t *testing.T) {
	for _, content := range []string{"", "short", "not base64 not base64 not base64 not base64", strings.Repeat("x", 1<<20)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadToken(dir)
		var e *Error
		if !errors.As(err, &e) || e.Code != "token_file" || e.Hint == "" {
			t.Errorf("%q: got %v", content, err)
		}
	}
}

func TestATokenThatOthersMayReadIsRefused(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("folder permissions work otherwise there")
	}
	dir := t.TempDir()
	if _, err := RotateToken(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "token"), 0o644); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err := ReadToken(dir); !errors.As(err, &e) || e.Code != "token_file" || !strings.Contains(e.Message, "0644") || !strings.Contains(e.Hint, "--rotate") {
		t.Errorf("got %v", err)
	}
	if _, err := RotateToken(dir); err != nil {
		t.Errorf("rotation: %v", err)
	}
	if _, err := ReadToken(dir); err != nil {
		t.Errorf("after rotation: %v", err)
	}
}

func TestATokenFileThatIsNoFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "token"), 0o700); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err := ReadToken(dir); !errors.As(err, &e) || e.Code != "token_file" || !strings.Contains(e.Message, "is not a token file") {
		t.Errorf("got %v", err)
	}
}

func TestADataFolderThatCannotBeMadeIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below"), ""} {
		var e *Error
		if err := PrepareData(dir); !errors.As(err, &e) || e.Kind != KindEnvironment || e.Hint == "" {
			t.Errorf("%q: got %v", dir, err)
		}
	}
}
