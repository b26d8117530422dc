//go:build cuda

package cuda

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"gorgonia.org/cu"
)

// chunkBytes is what small pieces of device memory are cut from.
const chunkBytes = 64 << 20

// memory is what one runner holds of a device, and of pinned host memory: taken at load, given back together. Owned by the
// backend's thread.
type memory struct {
	b         *Backend
	d         *device
	free, end cu.DevicePtr
	chunks    []cu.DevicePtr
	pinned    []unsafe.Pointer
	booked    []Ledger
}

// take returns n bytes of device memory, aligned to 256, booked under a line.
func (m *memory) take(line string, n int64) (C.CUdeviceptr, error) {
	n = (max(n, 1) + C.COVEY_ALIGN - 1) &^ (C.COVEY_ALIGN - 1)
	if n > int64(m.end-m.free) {
		size := n
		if n < chunkBytes/4 {
			size = chunkBytes
		}
		var p cu.DevicePtr
		if err := m.b.use(m.d); err != nil {
			return 0, err
		}
		if err := call("cuMemAlloc", func() (err error) { p, err = cu.MemAlloc(size); return }); err != nil {
			return 0, m.noMemory(line, n, err)
		}
		m.chunks = append(m.chunks, p)
		if size == n {
			m.book(line, n)
			return C.CUdeviceptr(p), nil
		}
		m.free, m.end = p, p+cu.DevicePtr(size)
	}
	p := m.free
	m.free += cu.DevicePtr(n)
	m.book(line, n)
	return C.CUdeviceptr(p), nil
}

// zeroed is take with zeros in it: what is copied to the host or to another device is all rows of a bucket, of which a step may
// write fewer.
func (m *memory) zeroed(line string, n int64) (C.CUdeviceptr, error) {
	at, err := m.take(line, n)
	if err != nil || n == 0 {
		return at, err
	}
	if err := m.b.use(m.d); err != nil {
		return 0, err
	}
	return at, call("cuMemsetD8", func() error { return cu.MemsetD8(cu.DevicePtr(at), 0, n) })
}

// pin returns n bytes of page-locked host memory: copies from and to it run at the link's speed and beside the host.
func (m *memory) pin(line string, n int64) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	if err := result("cuMemHostAlloc", func() C.CUresult { return C.covey_host_alloc(&p, C.size_t(max(n, 1))) }); err != nil {
		return nil, fmt.Errorf("%s: %d bytes of pinned host memory: %w", line, n, err)
	}
	m.pinned = append(m.pinned, p)
	return p, nil
}

func (m *memory) book(line string, n int64) {
	m.booked = append(m.booked, Ledger{m.d.info.Ordinal, line, n})
	m.b.book(m.d.info.Ordinal, line, n)
}

// release gives everything back and returns what failed.
func (m *memory) release() error {
	errs := []error{m.b.use(m.d)}
	for _, p := range m.chunks {
		errs = append(errs, call("cuMemFree", func() error { return cu.MemFree(p) }))
	}
	for _, p := range m.pinned {
		errs = append(errs, call("cuMemFreeHost", func() error { return cu.MemFreeHost(p) }))
	}
	for _, l := range m.booked {
		m.b.book(l.Device, l.Line, -l.Bytes)
	}
	*m = memory{b: m.b, d: m.d}
	return errors.Join(errs...)
}

func (b *Backend) book(device int, line string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.IndexFunc(b.ledger, func(l Ledger) bool { return l.Device == device && l.Line == line })
	if at < 0 {
		b.ledger = append(b.ledger, Ledger{Device: device, Line: line})
		at = len(b.ledger) - 1
	}
	if b.ledger[at].Bytes += n; b.ledger[at].Bytes == 0 {
		b.ledger = slices.Delete(b.ledger, at, at+1)
	}
}

// Ledger lists what the devices' memory holds, in the order of first use.
func (b *Backend) Ledger() []Ledger {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.ledger)
}

// noMemory says which line of the book did not fit, beside what.
func (m *memory) noMemory(line string, n int64, err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Code != 2 {
		return fmt.Errorf("%s: %w", line, err)
	}
	text := ""
	for _, l := range m.b.Ledger() {
		if l.Device == m.d.info.Ordinal {
			text += fmt.Sprintf(", %s %d MB", l.Line, l.Bytes>>20)
		}
	}
	return fmt.Errorf("%w: %s wants %d MB more; device %d (%s) has %d MB%s: lower the context or the KV cache, or take a smaller model: %w",
		ErrMemory, line, n>>20, m.d.info.Ordinal, m.d.info.Name, m.d.info.Memory>>20, text, err)
}
