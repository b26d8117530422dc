//go:build cuda

package cuda

/*
#include "driver.h"
*/
import "C"

import (
	"errors"

	"gorgonia.org/cu"
)

// measureBytes is what one copy of a measurement moves: several times the caches of a device.
const measureBytes = 256 << 20

// Measure copies 256 MB to the device, from it and on it, each a few times, and returns the best speeds. It takes twice that of
// device memory and once of pinned host memory for well under a second.
func (b *Backend) Measure() (Bandwidth, error) {
	var w Bandwidth
	err := b.do("measuring", b.options.Watchdog, func() (err error) {
		m := memory{b: b, d: b.device}
		defer func() { err = errors.Join(err, m.release()) }()
		host, err := m.pin("measurement", measureBytes)
		if err != nil {
			return err
		}
		from, err := m.take("measurement", measureBytes)
		if err != nil {
			return err
		}
		to, err := m.take("measurement", measureBytes)
		if err != nil {
			return err
		}
		a, z := cu.DevicePtr(from), cu.DevicePtr(to)
		if w.Upload, err = b.speed(1, func() error { return cu.MemcpyHtoDAsync(a, host, measureBytes, b.stream) }); err != nil {
			return err
		}
		if w.Download, err = b.speed(1, func() error { return cu.MemcpyDtoHAsync(host, a, measureBytes, b.stream) }); err != nil {
			return err
		}
		w.Copy, err = b.speed(2, func() error { return cu.MemcpyDtoDAsync(z, a, measureBytes, b.stream) })
		return err
	})
	return w, err
}

// speed is the best of a few copies, in bytes a second; each moves its bytes `times` times.
func (b *Backend) speed(times float64, copy func() error) (float64, error) {
	var start, end cu.Event
	for _, e := range []*cu.Event{&start, &end} {
		if err := call("cuEventCreate", func() (err error) { *e, err = cu.MakeEvent(cu.DefaultEvent); return }); err != nil {
			return 0, err
		}
		defer func() { _ = call("cuEventDestroy", func() error { return cu.DestroyEvent(e) }) }() // what was measured stands
	}
	best := 0.0
	for range 4 {
		var ms float64
		steps := []struct {
			name string
			f    func() error
		}{
			{"cuEventRecord", func() error { return start.Record(b.stream) }},
			{"cuMemcpyAsync", copy},
			{"cuEventRecord", func() error { return end.Record(b.stream) }},
			{"cuEventSynchronize", end.Synchronize},
			{"cuEventElapsedTime", func() (err error) { ms, err = start.Elapsed(end); return }},
		}
		for _, s := range steps {
			if err := call(s.name, s.f); err != nil {
				return 0, err
			}
		}
		if ms > 0 {
			best = max(best, times*measureBytes/(ms/1e3))
		}
	}
	return best, nil
}
