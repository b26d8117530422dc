package daemon

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// tokenBytes is the size of the secret: 256 bits.
const tokenBytes = 32

// tokenFileLimit is far above the size of a token file.
const tokenFileLimit = 4096

// PrepareData makes the data folder (0700) if need be and proves that it can be written.
func PrepareData(dir string) error {
	if dir == "" {
		return problem(KindEnvironment, "no_data_folder", "set --data DIR", nil, "this user has no home folder to keep data in")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return problem(KindEnvironment, "data_folder", "choose another folder with --data DIR", err, "making the data folder %s", dir)
	}
	probe, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return problem(KindEnvironment, "data_folder", "make the folder writable for this user, or choose another with --data DIR", err,
			"the data folder %s cannot be written", dir)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// ReadToken returns the token in dir, making one if there is none.
func ReadToken(dir string) (string, error) {
	path := filepath.Join(dir, "token")
	const renew = "make a new one with covey token --rotate"
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return RotateToken(dir)
	}
	var raw []byte
	if err == nil {
		if !info.Mode().IsRegular() || info.Size() > tokenFileLimit { // a pipe would wait, a device never end
			return "", problem(KindEnvironment, "token_file", renew, nil, "%s is not a token file", path)
		}
		if info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
			return "", problem(KindEnvironment, "token_file", renew+", or chmod 600 it if nobody else has read it", nil,
				"others on this machine may read %s (mode %#o)", path, info.Mode().Perm())
		}
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return "", problem(KindEnvironment, "token_file", "make it readable for this user", err, "reading the token")
	}
	token := strings.TrimSpace(string(raw))
	if secret, err := base64.RawURLEncoding.DecodeString(token); err != nil || len(secret) != tokenBytes {
		return "", problem(KindEnvironment, "token_file", renew, nil,
			"%s does not hold a token (43 characters of base64url)", path)
	}
	return token, nil
}

// RotateToken replaces the token in dir. A running daemon sees the new one within a second; every link, cookie and API
// key of the old one stops working.
func RotateToken(dir string) (string, error) {
	secret := make([]byte, tokenBytes)
	rand.Read(secret) // never fails (crypto/rand)
	token := base64.RawURLEncoding.EncodeToString(secret)
	fail := func(err error) (string, error) {
		return "", problem(KindEnvironment, "token_file", "make the data folder writable, or choose another with --data DIR", err, "writing the token")
	}
	file, err := os.CreateTemp(dir, ".token-*") // 0600
	if err != nil {
		return fail(err)
	}
	_, err = file.WriteString(token + "\n")
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), filepath.Join(dir, "token"))
	}
	if err != nil {
		os.Remove(file.Name())
		return fail(err)
	}
	return token, nil
}

// tokenFile is the token as the running daemon sees it: it follows rotations of the file, looking at most once a
// second. Only hashes are compared, in constant time, so neither length nor content leaks through timing.
type tokenFile struct {
	dir      string
	onChange func() // called, without locks, after a rotation was seen

	mu     sync.Mutex
	token  string
	sum    [sha256.Size]byte
	looked time.Time
	seen   os.FileInfo // of the file that token came from; nil if it could not be read
}

func openToken(dir string) (*tokenFile, error) {
	token, err := ReadToken(dir)
	if err != nil {
		return nil, err
	}
	f := &tokenFile{dir: dir, token: token, sum: sha256.Sum256([]byte(token)), looked: time.Now()}
	if info, err := os.Stat(filepath.Join(dir, "token")); err == nil {
		f.seen = info
	}
	return f, nil
}

// current is the token and its hash now.
func (f *tokenFile) current() (string, [sha256.Size]byte) {
	f.mu.Lock()
	rotated := false
	if now := time.Now(); now.Sub(f.looked) > time.Second {
		f.looked = now
		// A missing or broken file keeps the old token: losing the file must not lock the owner out, nor let anyone in.
		info, err := os.Stat(filepath.Join(f.dir, "token"))
		if err == nil && (f.seen == nil || !os.SameFile(info, f.seen) || !info.ModTime().Equal(f.seen.ModTime())) {
			if token, err := ReadToken(f.dir); err == nil {
				rotated = token != f.token
				f.token, f.sum, f.seen = token, sha256.Sum256([]byte(token)), info
			}
		}
	}
	token, sum := f.token, f.sum
	f.mu.Unlock()
	if rotated && f.onChange != nil {
		f.onChange()
	}
	return token, sum
}
