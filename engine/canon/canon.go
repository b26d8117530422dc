// Package canon is the canonical arithmetic: every floating-point reduction of a forward pass in one written order, so
// that two implementations give the same bits and placement never changes a token.
//
// canon.h holds the scalar definition of each rule in plain C (CUDA includes the same header). Kernels for several
// instruction sets are held to it by equality of bits; a table of functions is chosen once at run time. Go describes the
// work: matrices are packed into off-heap memory, a Program of operations is built once for a model, and each step is
// one call into a fixed pool of C threads. No float arithmetic that reaches a token is done in Go, whose compiler may
// fuse x*y+z on some machines.
package canon

/*
#cgo CFLAGS: -std=c11 -O2 -D_GNU_SOURCE -Wall
#cgo LDFLAGS: -lm -lpthread
#include "engine.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"strings"
)

// RuleVersion names the written rules; it changes whenever any result can change, and enters the numerics id.
const RuleVersion = 1

// ISA is a family of kernels for one instruction set. All families give the same bits.
type ISA uint8

// Families; of those that a processor has, a later one is preferred, but for AMX.
const (
	Portable ISA = iota // plain C; fused multiply-add in software
	AVX2                // AVX2, FMA and F16C
	AVX512              // AVX-512 F, BW, VL, DQ
	VNNI                // AVX-512 with 8-bit dot products
	AMX                 // VNNI with tile products for many rows
	NEON                // 64-bit Arm
	DotProd             // NEON with 8-bit dot products
)

var isaNames = [...]string{"portable", "avx2", "avx512", "vnni", "amx", "neon", "dotprod"}

// String returns the name that Resolve accepts.
func (i ISA) String() string {
	if int(i) < len(isaNames) {
		return isaNames[i]
	}
	return fmt.Sprintf("isa(%d)", uint8(i))
}

// built tells whether the family is compiled in for this architecture.
func (i ISA) built() bool { return C.canon_isa_supported(C.int(i)) >= 0 }

// Supported lists the families that are built in and that this processor can run, Portable first.
func Supported() []ISA {
	var out []ISA
	for i := range isaNames {
		if C.canon_isa_supported(C.int(i)) == 1 {
			out = append(out, ISA(i))
		}
	}
	return out
}

// Resolve turns a name into a family; "" means the best one of this machine, which is never AMX: that is used where it is asked
// for, since it was measured slower than VNNI on one thread (docs/benchmarks.md). An unknown name, a family that is not built and one that the processor lacks are
// errors that list the usable names.
func Resolve(name string) (ISA, error) {
	usable := Supported()
	if name == "" {
		best := slices.DeleteFunc(usable, func(i ISA) bool { return i == AMX })
		return best[len(best)-1], nil
	}
	names := make([]string, len(usable))
	for i, s := range usable {
		names[i] = s.String()
		if name == names[i] {
			return s, nil
		}
	}
	list := strings.Join(names, ", ")
	for i, n := range isaNames {
		if n != name {
			continue
		}
		if !ISA(i).built() {
			return 0, fmt.Errorf("canon: instruction set %q is not built: use one of %s", name, list)
		}
		return 0, fmt.Errorf("canon: instruction set %q is not supported by this processor: use one of %s", name, list)
	}
	return 0, fmt.Errorf("canon: unknown instruction set %q: use one of %s", name, list)
}
