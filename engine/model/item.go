package model

import (
	"covey/engine/canon"
	"covey/engine/weights"
)

// ItemKind says what an Item is.
type ItemKind uint8

// Kinds of items.
const (
	VectorItem ItemKind = iota // a norm or bias: one full tensor name
	MatrixItem                 // one module
	ExactItem                  // one module that keeps the form it is stored in: routers, whose choice is all or nothing
	RecordItem                 // gate, up and down modules of a gated block
)

// Item is one piece of a checkpoint that the forward pass reads.
type Item struct {
	Kind       ItemKind
	Expert     int      // id of a routed expert; -1 elsewhere
	Layer      int      // whose router's input the gate and up matrices read; -1 elsewhere
	Names      []string // under which a container keeps the pieces
	Rows, Cols int      // of the matrix; of the gate in a record; 1 and the length of a vector

	tensors []string // of the checkpoint that are read, where they have other names
	// Sources reads the pieces as they are stored, one for each name. They lie in the scratch memory.
	Sources func(*weights.Scratch) ([]canon.Source, error)
}

// Items lists what the forward pass of a checkpoint reads, in the order of its layers: all that a conversion must keep. The
// checkpoint must stay open. unused are the tensors that nothing reads.
func Items(checkpoint *weights.Checkpoint) (spec *Spec, items []Item, unused []string, err error) {
	if spec, err = ReadSpec(checkpoint); err != nil {
		return nil, nil, nil, err
	}
	if err := spec.noFurtherLayers(checkpoint); err != nil {
		return nil, nil, nil, err
	}
	l := &loader{checkpoint: checkpoint, spec: spec}
	jobs, err := l.plan(&tensors{})
	if err != nil {
		return nil, nil, nil, err
	}
	items = make([]Item, len(jobs))
	read := map[string]bool{}
	for i, j := range jobs {
		items[i] = j.item
		for _, name := range append(j.item.Names, j.item.tensors...) {
			read[name] = true
			read[name+".bias"] = true
		}
	}
	for _, name := range checkpoint.Names() {
		if !read[name] && !read[ModuleOf(name)] {
			unused = append(unused, name)
		}
	}
	return spec, items, unused, nil
}
