//go:build !unix

package doctor

func diskFree(string) (int64, bool) { return 0, false }

func fileLimit() (int64, bool) { return 0, false }
