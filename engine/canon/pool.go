package canon

/*
#include "pool.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Pool is a fixed set of C threads that run programs, one step at a time. The threads sleep while there is no step and
// spin only briefly between the operations of one. They are pinned, one to each core, when there are as many as physical
// cores; fewer or more stay free, or every process with one thread would share the first core.
type Pool struct {
	mu      sync.Mutex // held while a step runs
	c       *C.canon_pool
	threads int
	isa     ISA
	nodes   int // memory nodes of pinned threads
}

// NewPool starts threads with the kernels of one instruction set. 0 means one for each physical core that this process may
// use, or fewer where its control group gives it less processor time.
func NewPool(threads int, isa ISA) (*Pool, error) { return newPool(threads, isa, ownCores()) }

func newPool(threads int, isa ISA, own []core) (*Pool, error) {
	if C.canon_isa_supported(C.int(isa)) != 1 {
		_, err := Resolve(isa.String())
		return nil, fmt.Errorf("canon: starting the pool: %w", err)
	}
	if threads < 0 || threads > 1024 {
		return nil, fmt.Errorf("canon: starting the pool: %d threads; 0 to 1024 are possible", threads)
	}
	if threads == 0 {
		threads = defaultThreads(own)
	}
	p := &Pool{threads: threads, isa: isa}
	var cpu, node []C.int32_t
	if threads == len(own) {
		for _, c := range own {
			cpu, node = append(cpu, C.int32_t(c.cpu)), append(node, C.int32_t(c.node))
		}
	}
	if p.c = C.canon_pool_new(C.int(threads), C.int(isa), unsafe.SliceData(cpu), unsafe.SliceData(node)); p.c == nil {
		return nil, fmt.Errorf("canon: starting the pool: %d threads could not be created", threads)
	}
	p.nodes = int(C.canon_pool_nodes(p.c))
	runtime.SetFinalizer(p, (*Pool).Close)
	return p, nil
}

// Threads is the number of C threads.
func (p *Pool) Threads() int { return p.threads }

// ISA is the kernel family.
func (p *Pool) ISA() ISA { return p.isa }

// ReadProbe reads bytes of memory (rounded down to 64 KiB, at least that) once a round with all threads and the widest loads
// of the kernel family, and returns bytes per second for each round: the bound of a decode step. The memory is allocated for
// the call, and each thread writes its part once before.
func (p *Pool) ReadProbe(bytes, rounds int) ([]float64, error) {
	if rounds <= 0 || rounds > 1000 {
		return nil, fmt.Errorf("canon: read probe: %d rounds; 1 to 1000 are possible", rounds)
	}
	a := NewArena(0)
	defer a.Close()
	mem, err := a.Bytes(max(bytes&^(1<<16-1), 1<<16))
	if err != nil {
		return nil, fmt.Errorf("canon: read probe: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c == nil {
		return nil, fmt.Errorf("canon: read probe: the pool is closed")
	}
	whole := C.canon_piece{at: unsafe.Pointer(&mem[0]), bytes: C.int64_t(len(mem))}
	C.canon_pool_touch(p.c, &whole, 1)
	rates := make([]float64, rounds)
	C.canon_read_probe(p.c, unsafe.Pointer(&mem[0]), C.int64_t(len(mem)), C.int32_t(rounds), (*C.double)(&rates[0]))
	for i, s := range rates {
		rates[i] = float64(len(mem)) / s
	}
	return rates, nil
}

// touch makes the pages of fresh memory lie near the threads that own its parts.
func (p *Pool) touch(pieces []C.canon_piece) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c != nil && len(pieces) > 0 {
		C.canon_pool_touch(p.c, &pieces[0], C.int32_t(len(pieces)))
	}
}

// Close ends the threads after the running step, if any. Closing twice is fine; running a program afterwards is an error.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c != nil {
		C.canon_pool_free(p.c)
		p.c = nil
		runtime.SetFinalizer(p, nil)
	}
}
