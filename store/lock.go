package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

var errHeld = errors.New("lock is held")

// lockFolder makes the data folder if need be and takes its lock, which lasts until the file returned is closed or the
// process ends, however it ends. The lock file holds the owner's process id for the message of the next one.
func lockFolder(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, unwritable(dir, err)
	}
	file, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, unwritable(dir, err)
	}
	if err := tryLock(file); err != nil {
		defer func() { _ = file.Close() }()
		if !errors.Is(err, errHeld) {
			return nil, fmt.Errorf("store: locking data folder %s: %w", dir, err)
		}
		owner := "another process"
		if text, err := io.ReadAll(io.LimitReader(file, 32)); err == nil {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
				owner = "process " + strconv.Itoa(pid)
			}
		}
		return nil, fmt.Errorf("store: opening data folder %s: %w by %s: stop it or choose another folder", dir, ErrLocked, owner)
	}
	// On a full disk the id cannot be written; the lock holds all the same.
	if err := file.Truncate(0); err == nil {
		_, _ = file.WriteString(strconv.Itoa(os.Getpid()) + "\n")
	}
	return file, nil
}

func unwritable(dir string, err error) error {
	return fmt.Errorf("store: opening data folder %s: %w: %w: give this user the right to write there or choose another folder",
		dir, ErrReadOnly, err)
}
