//go:build unix

package doctor

import "golang.org/x/sys/unix"

// diskFree is the bytes that this user may still write on the file system of dir.
func diskFree(dir string) (int64, bool) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}

// fileLimit is the number of files that this process may have open.
func fileLimit() (int64, bool) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 0, false
	}
	return int64(min(uint64(l.Cur), 1<<62)), true
}
