//go:build !cuda

package cuda

import "covey/engine/canon"

// Built says whether the package was compiled with build tag cuda.
const Built = false

// Backend is a device as a canon.Backend; without build tag cuda there is none.
type Backend struct{}

// Open returns ErrNotBuilt.
func Open(int, Options) (*Backend, error) { return nil, ErrNotBuilt }

// Name of the backend.
func (*Backend) Name() string { return "cuda" }

// Load returns ErrNotBuilt.
func (*Backend) Load(*canon.Program) (canon.Runner, error) { return nil, ErrNotBuilt }

// Info is empty.
func (*Backend) Info() Info { return Info{} }

// Ledger is empty.
func (*Backend) Ledger() []Ledger { return nil }

// Measure returns ErrNotBuilt.
func (*Backend) Measure() (Bandwidth, error) { return Bandwidth{}, ErrNotBuilt }

// Close does nothing.
func (*Backend) Close() error { return nil }

// Driver returns ErrNotBuilt.
func Driver() (int, error) { return 0, ErrNotBuilt }

// Devices returns ErrNotBuilt.
func Devices() ([]Info, error) { return nil, ErrNotBuilt }
