//go:build cuda

package cuda

/*
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"gorgonia.org/cu"
)

// Built says whether the package was compiled with build tag cuda.
const Built = true

// The kernels, one file a source: machine code where the architecture was known, PTX for later ones. Beside each lies what it was
// made from, so that a header of kernels/ that changes makes this package another one: Go compiles its C files anew then.
//
//go:embed kernels/*.fatbin kernels/*.fatbin.for
var images embed.FS

// gorgonia.org/cu hides its handles; they are the only field of these structs.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Stream{})-unsafe.Sizeof(C.CUstream(nil))]
	_ = [1]struct{}{}[unsafe.Sizeof(cu.Function{})-unsafe.Sizeof(C.CUfunction(nil))]
)

func streamOf(s cu.Stream) C.CUstream       { return *(*C.CUstream)(unsafe.Pointer(&s)) }
func functionOf(f cu.Function) C.CUfunction { return *(*C.CUfunction)(unsafe.Pointer(&f)) }

// call makes one driver call through gorgonia.org/cu: the one way in, beside result.
func call(name string, f func() error) error {
	if C.covey_injected() != 0 {
		return &Error{Call: name, Injected: true}
	}
	err := f()
	if err == nil {
		return nil
	}
	code := 999
	if v := reflect.ValueOf(err); v.CanInt() { // cu's error type is the unexported CUresult
		code = int(v.Int())
	}
	return failure(name, code)
}

// result makes one driver call of driver.c.
func result(name string, f func() C.CUresult) error {
	if C.covey_injected() != 0 {
		return &Error{Call: name, Injected: true}
	}
	if code := int(f()); code != 0 {
		return failure(name, code)
	}
	return nil
}

func failure(name string, code int) *Error {
	return &Error{Call: name, Code: code, Text: C.GoString(C.covey_error_name(C.int(code))) + ": " + C.GoString(C.covey_error_text(C.int(code)))}
}

// sticky says whether the device's context is dead after an error: every later call would return it too, so it must not be
// taken for the failure of what is tried next.
func (e *Error) sticky() bool {
	switch e.Code {
	case 2, 1, 3, 100, 101, 200, 209, 218, 222, 301, 304, 400, 500, 600, 701, 801, 802: // refused calls leave the context alive
		return false
	}
	return !e.Injected
}

// FailAfter lets the n-th driver call from now fail; 0 ends it. Calls is how many were made so far.
func FailAfter(n int64) { C.covey_fail_after(C.int64_t(n)) }

// Calls is the number of driver calls made so far.
func Calls() int64 { return int64(C.covey_calls()) }

// Driver is the newest CUDA version that the driver supports, as 1000 * major + 10 * minor; 0 if there is no driver.
func Driver() (int, error) { return cu.Version(), nil }

// Devices describes all devices; none if there is no driver.
func Devices() ([]Info, error) {
	var n int
	err := call("cuDeviceGetCount", func() (err error) { n, err = cu.NumDevices(); return })
	if err != nil {
		return nil, err
	}
	infos := make([]Info, n)
	for i := range infos {
		if infos[i], err = describe(i, n); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

func describe(ordinal, devices int) (Info, error) {
	i := Info{Ordinal: ordinal}
	d := cu.Device(ordinal)
	get := func(a cu.DeviceAttribute, to *int) error {
		return call("cuDeviceGetAttribute", func() (err error) { *to, err = d.Attribute(a); return })
	}
	var pci [32]C.char
	err := errors.Join(
		call("cuDeviceGetName", func() (err error) { i.Name, err = d.Name(); return }),
		call("cuDeviceTotalMem", func() (err error) { i.Memory, err = d.TotalMem(); return }),
		get(cu.ComputeCapabilityMajor, &i.Major), get(cu.ComputeCapabilityMinor, &i.Minor), get(cu.MultiprocessorCount, &i.Multiprocessors),
		get(97, &i.SharedMemoryBlock), // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
		result("cuDeviceGetPCIBusId", func() C.CUresult { return C.covey_pci(&pci[0], C.int(len(pci)), C.CUdevice(ordinal)) }))
	if err != nil {
		return i, err
	}
	i.PCI = C.GoString(&pci[0])
	for o := range devices {
		if o == ordinal {
			continue
		}
		var can int
		if err := call("cuDeviceCanAccessPeer", func() (err error) { can, err = d.CanAccessPeer(cu.Device(o)); return }); err != nil {
			return i, err
		}
		if can != 0 {
			i.Peers = append(i.Peers, o)
		}
	}
	return i, nil
}

// What a module may lack: code for the device, code that its driver can compile, a kernel.
const (
	noBinary   = 209
	invalidPTX = 218
	unknownPTX = 222
	notFound   = 500
)

// bulkCopies is the virtual architecture from which on kernels have bulk copies, their barriers and launches that overlap.
const bulkCopies = 90

// loadLimit is the watchdog's time where kernels are compiled for the device or a whole model is copied.
const loadLimit = 30 * time.Minute

// device is one GPU of a backend. Owned by the backend's thread, except for info.
type device struct {
	info    Info
	context cu.CUContext
	stream  cu.Stream
	event   cu.Event // of the devices of a backend with several

	functions [C.COVEY_KERNEL_COUNT]C.CUfunction
	fast      C.int32_t                 // families of fast kernels that are there and wanted
	overlap   C.int32_t                 // 1: kernels may start before the one before has ended
	granted   [C.COVEY_KERNEL_COUNT]int // bytes of shared memory asked for
	modules   []cu.Module
	found     int // the module of the last kernel that was found
}

// Backend is one device, or one and others that hold a share of the experts (spread.go), with their contexts, kernels and
// memory. Safe for use by several goroutines; work is done in order.
type Backend struct {
	*device // runs everything but the experts of the others
	far     []*device
	direct  bool    // the others read and write the first one's memory
	current *device // whose context the thread has
	options Options
	work    chan func()

	mu     sync.Mutex
	lost   error
	ledger []Ledger
	closed bool
}

// Open takes a device into use, and those that the options name beside it. The caller closes it after everything that it loaded.
func Open(ordinal int, o Options) (*Backend, error) {
	if o.Watchdog == 0 {
		o.Watchdog = time.Minute
	}
	if v := os.Getenv("COVEY_FAIL_AFTER"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("cuda: COVEY_FAIL_AFTER: %q is not a number", v)
		}
		FailAfter(n)
	}
	infos, err := Devices()
	if err != nil {
		return nil, err
	}
	b := &Backend{options: o, work: make(chan func())}
	for i, n := range append([]int{ordinal}, o.Beside...) {
		if n < 0 || n >= len(infos) {
			return nil, fmt.Errorf("cuda: device %d of %d: %w", n, len(infos), ErrNoDevice)
		}
		if i > 0 && !o.Twice && (n == ordinal || slices.Contains(o.Beside[:i-1], n)) {
			return nil, fmt.Errorf("cuda: device %d is named twice", n)
		}
		if d := (&device{info: infos[n]}); i == 0 {
			b.device = d
		} else {
			b.far = append(b.far, d)
		}
	}
	go b.loop()
	if err := b.do("opening", loadLimit, b.open); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// loop is the device's thread. A closed channel ends it, and the thread with it, since it stays locked.
func (b *Backend) loop() {
	runtime.LockOSThread()
	for f := range b.work {
		f()
	}
}

// do runs f in the device's thread. Beyond the limit the device counts as lost: f may still run, and everything that it
// touches is abandoned.
func (b *Backend) do(what string, limit time.Duration, f func() error) error {
	if err := b.alive(); err != nil {
		return err
	}
	watchdog := time.NewTimer(limit)
	defer watchdog.Stop()
	done := make(chan error, 1)
	select {
	case b.work <- func() { done <- b.first(f) }:
	case <-watchdog.C:
		return b.lose(fmt.Errorf("cuda: %s: waited %v for the device: %w", what, limit, ErrLost))
	}
	select {
	case err := <-done:
		var e *Error
		if errors.As(err, &e) && e.sticky() {
			return b.lose(fmt.Errorf("cuda: %s: %w: %w", what, err, ErrLost))
		}
		if err != nil {
			return fmt.Errorf("cuda: %s: %w", what, err)
		}
		return nil
	case <-watchdog.C:
		return b.lose(fmt.Errorf("cuda: %s: no answer within %v: %w", what, limit, ErrLost))
	}
}

func (b *Backend) alive() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.New("cuda: device is closed")
	}
	return b.lost
}

// lose records the first reason.
func (b *Backend) lose(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost == nil {
		b.lost = err
	}
	return err
}

// devices are all devices, the first one first.
func (b *Backend) devices() []*device { return append([]*device{b.device}, b.far...) }

// use makes a device's context the thread's.
func (b *Backend) use(d *device) error {
	if b.current == d || d.context == (cu.CUContext{}) {
		return nil
	}
	if err := call("cuCtxSetCurrent", func() error { return cu.SetCurrentContext(d.context) }); err != nil {
		return err
	}
	b.current = d
	return nil
}

// first calls f with the context of the first device, whatever was current before.
func (b *Backend) first(f func() error) error {
	if err := b.use(b.device); err != nil {
		return err
	}
	return f()
}

func (b *Backend) open() error {
	for _, d := range b.devices() {
		if err := call("cuDevicePrimaryCtxRetain", func() (err error) { d.context, err = cu.Device(d.info.Ordinal).RetainPrimaryCtx(); return }); err != nil {
			return err
		}
		if err := b.use(d); err != nil {
			return err
		}
		if err := d.open(b.options.Plain); err != nil {
			return err
		}
	}
	return b.link()
}

func (d *device) open(plain bool) error {
	if err := call("cuStreamCreate", func() (err error) { d.stream, err = cu.MakeStream(cu.NonBlocking); return }); err != nil {
		return err
	}
	var unfit error // of modules with fast kernels only, which may hold nothing that this device runs
	files, err := fs.Glob(images, "kernels/*.fatbin")
	if err != nil {
		return fmt.Errorf("reading kernels: %w", err)
	}
	begun, told := time.Now(), false
	for _, f := range files {
		image, err := images.ReadFile(f)
		if err != nil {
			return fmt.Errorf("reading kernels: %w", err)
		}
		var m cu.Module
		if err := call("cuModuleLoadData", func() (err error) { m, err = cu.LoadData(string(image)); return }); err != nil {
			err = fmt.Errorf("%s on compute capability %d.%d: %w", f, d.info.Major, d.info.Minor, err)
			if e := (*Error)(nil); !errors.As(err, &e) || !slices.Contains([]int{noBinary, invalidPTX, unknownPTX}, e.Code) {
				return err
			}
			unfit = errors.Join(unfit, err)
			continue
		}
		d.modules = append(d.modules, m)
		if !told && time.Since(begun) > 2*time.Second {
			told = true
			slog.Info("the driver compiles kernels for this device, once: it keeps them", slog.String("device", d.info.Name), slog.Int("modules", len(files)))
		}
	}
	if !plain {
		d.fast = C.COVEY_FAST_PRODUCTS | C.COVEY_FAST_EXPERTS | C.COVEY_FAST_ATTENTION | C.COVEY_FAST_BULK
	}
	d.overlap = 1
	for k := range d.functions {
		family := C.covey_kernel_family(C.int32_t(k))
		f, err := d.function(C.GoString(C.covey_kernel_name(C.int32_t(k))))
		if e := (*Error)(nil); k >= C.COVEY_PLAIN_COUNT && errors.As(err, &e) && e.Code == notFound {
			d.fast &^= family // not made for this device
			continue
		}
		if err != nil {
			return errors.Join(err, unfit)
		}
		d.functions[k] = functionOf(f)
		if d.fast&family == 0 {
			continue
		}
		var made int // virtual architecture that it was compiled for: 80 where the driver compiled the PTX, on whatever device
		if err := call("cuFuncGetAttribute", func() (err error) { made, err = f.Attribute(cu.PtxVersion); return }); err != nil {
			return err
		}
		if made < bulkCopies {
			d.overlap, d.fast = 0, d.fast&^(family&C.COVEY_FAST_BULK)
		}
	}
	return nil
}

// function finds a kernel in one of the modules, the last one's first: kernels of a source are neighbours in the list.
func (d *device) function(name string) (cu.Function, error) {
	err := error(&Error{Call: "cuModuleGetFunction", Code: notFound, Text: "no module"})
	for i := range d.modules {
		at := (d.found + i) % len(d.modules)
		var f cu.Function
		if err = call("cuModuleGetFunction", func() (err error) { f, err = d.modules[at].Function(name); return }); err == nil {
			d.found = at
			return f, nil
		}
		var e *Error
		if errors.As(err, &e) && (e.Injected || e.Code != notFound) {
			break
		}
	}
	return cu.Function{}, fmt.Errorf("kernel %s: %w", name, err)
}

// Name is what reports call the backend.
func (b *Backend) Name() string {
	name := fmt.Sprintf("cuda:%d", b.info.Ordinal)
	for _, d := range b.far {
		name += fmt.Sprintf(",cuda:%d", d.info.Ordinal)
	}
	return name
}

// Info describes the first device.
func (b *Backend) Info() Info { return b.info }

// Close gives the device back; close runners first. A lost device's memory is left to the end of the process.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	lost := b.lost
	b.mu.Unlock()
	var err error
	if lost == nil {
		err = b.do("closing", b.options.Watchdog, func() error {
			var errs []error
			for _, d := range b.devices() {
				if d.context == (cu.CUContext{}) {
					continue // opening failed before it
				}
				errs = append(errs, b.use(d))
				for _, m := range d.modules {
					errs = append(errs, call("cuModuleUnload", m.Unload))
				}
				if d.event != (cu.Event{}) {
					errs = append(errs, call("cuEventDestroy", func() error { return cu.DestroyEvent(&d.event) }))
				}
				if d.stream != (cu.Stream{}) {
					errs = append(errs, call("cuStreamDestroy", d.stream.Destroy))
				}
				errs = append(errs, call("cuDevicePrimaryCtxRelease", cu.Device(d.info.Ordinal).ReleasePrimaryCtx))
			}
			return errors.Join(errs...)
		})
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	if lost == nil {
		close(b.work)
	}
	return err
}
