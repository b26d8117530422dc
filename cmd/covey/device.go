package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"covey/cuda"
	"covey/daemon"
	"covey/engine/canon"
)

// parseDevice reads what --device names: CUDA devices by number, or none for the CPU.
func parseDevice(name string) (ordinals []int, err error) {
	if name == "" || name == "cpu" {
		return nil, nil
	}
	for part := range strings.SplitSeq(name, ",") {
		kind, digits, found := strings.Cut(part, ":")
		n := 0
		if found {
			if n, err = strconv.Atoi(digits); err != nil {
				kind = ""
			}
		}
		if kind != "cuda" {
			return nil, &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: fmt.Sprintf("device %q is not known", name), Hint: "give cpu, cuda, cuda:N or several: cuda:0,cuda:1"}
		}
		if slices.Contains(ordinals, n) {
			return nil, &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: fmt.Sprintf("device cuda:%d is named twice in %q", n, name), Hint: "name each device once"}
		}
		ordinals = append(ordinals, n)
	}
	return ordinals, nil
}

// numbered finds a device among those that there are.
func numbered(known []cuda.Info, n int) (cuda.Info, error) {
	at := slices.IndexFunc(known, func(d cuda.Info) bool { return d.Ordinal == n })
	if at < 0 {
		return cuda.Info{}, fmt.Errorf("there is no device cuda:%d", n)
	}
	return known[at], nil
}

// openDevice opens the backend that --device names; the engine that gets it closes it.
func openDevice(name string) (canon.Backend, error) { return openDeviceWith(name, cuda.Options{}) }

// openDeviceWith is openDevice with options, of which the name says the devices.
func openDeviceWith(name string, o cuda.Options) (canon.Backend, error) {
	ordinals, err := parseDevice(name)
	if err != nil || ordinals == nil {
		return canon.CPU, err
	}
	o.Beside = ordinals[1:]
	b, err := cuda.Open(ordinals[0], o)
	if err != nil {
		return nil, &daemon.Error{Kind: daemon.KindEnvironment, Code: "device", Message: "opening device " + name, Hint: "covey doctor lists the devices; --device cpu runs without one", Err: err}
	}
	return b, nil
}

// closeDevice closes a backend that no engine was given.
func closeDevice(b canon.Backend) {
	if c, ok := b.(io.Closer); ok {
		_ = c.Close() // the process is about to end
	}
}

// deviceSpeed is what a device's memory reaches in a copy, bytes read plus bytes written, in GB/s.
func deviceSpeed(name string) ([]float64, error) {
	b, err := openDevice(name)
	if err != nil {
		return nil, err
	}
	defer closeDevice(b)
	device, ok := b.(*cuda.Backend)
	if !ok {
		return nil, fmt.Errorf("device %s is not measured so", name)
	}
	w, err := device.Measure()
	return []float64{w.Copy / 1e9}, err
}
