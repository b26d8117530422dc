// Package quant chooses integer codes and scales for float weights: symmetric or with zero points, a scale for each group
// of inputs found by search on the weighted squared error. Nothing here runs while a model does; the results are data, and
// what they mean is canon's.
package quant

/*
#cgo CFLAGS: -std=c11 -O3 -Wall
#cgo LDFLAGS: -lm
#include "quant.h"
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"covey/engine/canon"
)

// Spec says what to make of a weight.
type Spec struct {
	Form  canon.Form // Int4 or Int8
	Group int        // 32, 64 or 128 inputs a scale
	Zeros bool       // with an integer zero point beside each scale
}

// Loss sums squared errors and squared values.
type Loss struct{ Noise, Signal float64 }

// RMS is the relative error: the root of noise over signal; 0 for a weight of zeros.
func (l Loss) RMS() float64 {
	if l.Signal == 0 {
		return 0
	}
	return math.Sqrt(l.Noise / l.Signal)
}

// Make returns a source of shape [rows, cols] whose codes and scales are still to be filled by Rows.
func (s Spec) Make(name string, rows, cols int) (canon.Source, error) {
	if s.Form != canon.Int4 && s.Form != canon.Int8 || s.Group != 32 && s.Group != 64 && s.Group != 128 || rows <= 0 || cols <= 0 {
		return canon.Source{}, fmt.Errorf("quant: %s: %s in groups of %d; int4 and int8 in groups of 32, 64 and 128 are possible", name, s.Form, s.Group)
	}
	groups := (cols + s.Group - 1) / s.Group
	out := canon.Source{Name: name, Form: s.Form, ScaleForm: canon.F16, Rows: rows, Cols: cols, Group: s.Group,
		Codes: make([]byte, rows*((cols*s.Form.Bits()+7)/8)), Scales: make([]byte, rows*groups*2)}
	if s.Zeros {
		out.Zeros = make([]byte, rows*groups)
	}
	return out, nil
}

// Rows quantises values [n, cols], which are rows first.. of the weight, into out, which Make made. importance [cols] says
// how much the error of each input counts; nil = all alike.
func (s Spec) Rows(out *canon.Source, first int, values []float32, importance []float32) (Loss, error) {
	n := len(values) / out.Cols
	if n == 0 {
		return Loss{}, nil
	}
	groups := (out.Cols + s.Group - 1) / s.Group
	rowBytes := len(out.Codes) / out.Rows
	codes, scales := out.Codes[first*rowBytes:(first+n)*rowBytes], out.Scales[first*groups*2:(first+n)*groups*2]
	var zeros *C.uint8_t
	flag := C.int32_t(0)
	if s.Zeros {
		zeros, flag = (*C.uint8_t)(&out.Zeros[first*groups : (first+n)*groups][0]), 1
	}
	var weight *C.float
	if importance != nil {
		weight = (*C.float)(&importance[:out.Cols][0])
	}
	var noise, signal C.double
	switch C.quant_rows((*C.float)(&values[0]), C.int32_t(n), C.int32_t(out.Cols), C.int32_t(s.Group), C.int32_t(s.Form.Bits()), flag, weight,
		(*C.uint8_t)(&codes[0]), (*C.uint16_t)(unsafe.Pointer(&scales[0])), zeros, &noise, &signal) {
	case 1:
		return Loss{}, fmt.Errorf("quant: %s: rows from %d: a value is not finite", out.Name, first)
	case 2:
		return Loss{}, fmt.Errorf("quant: %s: rows from %d: values too large for scales of 16 bits", out.Name, first)
	}
	return Loss{float64(noise), float64(signal)}, nil
}
