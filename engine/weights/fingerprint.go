package weights

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
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

// stream is part without holding the data: a part of the reader's whole length.
func (f fingerprint) stream(name string, data *io.SectionReader) error {
	f.number(int64(len(name)))
	f.Write([]byte(name))
	f.number(data.Size())
	n, err := io.Copy(f, data)
	if err == nil && n != data.Size() {
		err = io.ErrUnexpectedEOF
	}
	return err
}
