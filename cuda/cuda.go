// Package cuda runs canonical programs on NVIDIA devices, with the bits of the CPU.
//
// It takes the list of operations that engine/canon built, copies what the operations point to into device memory, and runs
// every operation as one or a few kernels (plan.c says which). A step is one upload (tokens, positions, pages), the launches,
// and one download (choices, logits, faults); steps of few rows are captured once a bucket as a CUDA graph and replayed,
// larger ones are launched one by one. Both ways run the same kernels.
//
// The package is real with build tag cuda and needs `make cuda-toolchain` to compile; without the tag Open returns
// ErrNotBuilt. With it the program still starts without a driver: libcuda/ holds an archive of jumps that finds libcuda.so.1
// at run time, and then there are no devices.
//
// Several devices run one program: the first one everything, the others their share of the routed experts (spread.go). Where nobody
// wants more of a step's logits than tokens, these are drawn on the device.
//
// One goroutine a backend is locked to an operating system thread that holds the devices' contexts; everything that enters the
// driver runs there. Every call is counted and may be made to fail (COVEY_FAIL_AFTER).
package cuda

import (
	"errors"
	"fmt"
	"time"

	"covey/engine/canon"
)

// Errors that callers test for with errors.Is.
var (
	ErrNotBuilt    = errors.New("built without CUDA (make cuda-toolchain, then make)")
	ErrNoDevice    = errors.New("no such CUDA device")
	ErrMemory      = errors.New("out of device memory")
	ErrUnsupported = errors.New("no CUDA kernel for an operation of this model")
	ErrLost        = canon.ErrLost
)

// Error is a driver call that failed.
type Error struct {
	Call     string // the driver's function
	Code     int    // CUresult
	Text     string // the driver's name and description of the code
	Injected bool   // the call was not made: COVEY_FAIL_AFTER counted down to it
}

func (e *Error) Error() string {
	if e.Injected {
		return fmt.Sprintf("cuda: %s: failure injected by COVEY_FAIL_AFTER", e.Call)
	}
	return fmt.Sprintf("cuda: %s: %s (%d)", e.Call, e.Text, e.Code)
}

// Info describes one device.
type Info struct {
	Ordinal           int    `json:"ordinal"`
	Name              string `json:"name"`
	Major             int    `json:"major"` // compute capability
	Minor             int    `json:"minor"`
	Multiprocessors   int    `json:"multiprocessors"`
	Memory            int64  `json:"memory"` // bytes
	PCI               string `json:"pci"`
	Peers             []int  `json:"peers,omitempty"` // devices whose memory it can read directly
	SharedMemoryBlock int    `json:"shared_memory_block"`
}

// Ledger is what one line of a device's memory book holds.
type Ledger struct {
	Device int    `json:"device"` // ordinal
	Line   string `json:"line"`
	Bytes  int64  `json:"bytes"`
}

// Options of Open. The zero value of a field means its default.
type Options struct {
	Beside   []int         // further devices, which take a share of the routed experts
	Bounce   bool          // let them exchange rows through host memory even where they reach the first one's: the reference for that
	Twice    bool          // let a device stand beside itself, with a stream and memory of its own: the way of several on a machine with one
	Plain    bool          // use the plain kernels only: the reference for the fast ones
	Launches bool          // launch kernels one by one in every step, never as a graph: the reference for graphs
	Distinct bool          // copy weights that several operations share for each of them: measures a speed without making all weights
	Watchdog time.Duration // longest time that a step or copy may take before the device counts as lost; 0 = 60 s
}

// Bandwidth is what Measure found, in bytes a second.
type Bandwidth struct {
	Upload   float64 `json:"upload"`   // pinned host memory to device
	Download float64 `json:"download"` // device to pinned host memory
	Copy     float64 `json:"copy"`     // device to device, bytes read plus bytes written
}
