package main

import "covey/engine/canon"

// readBytes is the size of the buffer that readSpeed walks: far beyond any cache.
const readBytes = 256 << 20

// readSpeed measures, in GB/s, how fast the kernels' threads read memory when they do nothing else: the roof over decode,
// which reads every active weight once a token.
func readSpeed(isa string, threads, runs int) ([]float64, error) {
	pool, err := benchPool(isa, threads)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	speeds, err := pool.ReadProbe(readBytes, runs+1)
	if err != nil {
		return nil, err
	}
	speeds = speeds[1:] // the first round touches the pages
	for i := range speeds {
		speeds[i] /= 1e9
	}
	return speeds, nil
}

// benchPool starts the threads that a benchmark without a model runs on; the caller closes the pool.
func benchPool(isa string, threads int) (*canon.Pool, error) {
	family, err := canon.Resolve(isa)
	if err != nil {
		return nil, err
	}
	return canon.NewPool(threads, family)
}
