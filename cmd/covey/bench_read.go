package main

import (
	"sync"
	"time"
)

// readBytes is the size of the buffer that readSpeed walks: far beyond any cache.
const readBytes = 256 << 20

// readSpeed measures, in GB/s, how fast threads read memory when they do nothing else: the roof over decode, which reads
// every active weight once a token. Eight independent sums leave the loads, not the additions, as the bound.
func readSpeed(threads, runs int) []float64 {
	memory := make([]uint64, readBytes/8)
	for i := range memory {
		memory[i] = uint64(i) // touched: untouched pages would all be the one page of zeros
	}
	speeds := make([]float64, 0, runs)
	for range runs {
		var readers sync.WaitGroup
		start := time.Now()
		for t := range threads {
			part := memory[t*len(memory)/threads : (t+1)*len(memory)/threads]
			readers.Go(func() { readSink(sum(part)) })
		}
		readers.Wait()
		speeds = append(speeds, readBytes/1e9/time.Since(start).Seconds())
	}
	return speeds
}

func sum(part []uint64) uint64 {
	var a [8]uint64
	for ; len(part) >= 8; part = part[8:] {
		a[0] += part[0]
		a[1] += part[1]
		a[2] += part[2]
		a[3] += part[3]
		a[4] += part[4]
		a[5] += part[5]
		a[6] += part[6]
		a[7] += part[7]
	}
	return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7]
}

// readSink keeps the compiler from dropping a sum that nobody uses.
//
//go:noinline
func readSink(uint64) {}
