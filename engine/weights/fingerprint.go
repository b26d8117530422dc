package weights

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// fingerprint is SHA-256 over length-prefixed parts, so that moving bytes from one part to the next changes the sum.
type fingerprint struct{ hash.Hash }

func newFingerprint() fingerprint { return fingerprint{sha256.New()} }

func (f fingerprint) number(n int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	f.Write(b[:])
}

func (f fingerprint) part(name string, data []byte) {
	f.number(int64(len(name)))
	f.Write([]byte(name))
	f.number(int64(len(data)))
	f.Write(data)
}
