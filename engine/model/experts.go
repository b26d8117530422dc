package model

import (
	"fmt"

	"covey/engine/canon"
	"covey/engine/weights"
)

// expert returns a job that packs one routed expert into *to, however its matrices are stored.
func (l *loader) expert(to **canon.Record, layer, id int) job {
	m, names := l.spec.MoE, l.spec.Names.Expert
	alone := m.Stack == StackNone
	if !alone && l.checkpoint.HasModule(fmt.Sprintf(standardNames.Expert[0], layer, id)) {
		alone, names = true, standardNames.Expert // a format without stacks calls the parts what most families call them
	}
	if alone {
		var modules [3]string
		for i, pattern := range names {
			modules[i] = fmt.Sprintf(pattern, layer, id)
		}
		return l.record(to, modules, m.Inner, m.Bias)
	}
	hidden := l.spec.Hidden
	both := weights.Stack{Tensor: fmt.Sprintf(names[0], layer), Experts: m.Experts, Rows: 2 * m.Inner, Cols: hidden}
	down := weights.Stack{Tensor: fmt.Sprintf(names[2], layer), Experts: m.Experts, Rows: hidden, Cols: m.Inner}
	gate, up := weights.Outputs{Step: 1, Count: m.Inner}, weights.Outputs{First: m.Inner, Step: 1, Count: m.Inner}
	if m.Stack == StackInterleaved {
		gate, up = weights.Outputs{Step: 2, Count: m.Inner}, weights.Outputs{First: 1, Step: 2, Count: m.Inner}
		both.Transposed, down.Transposed = true, true
	}
	return job{size: 3 * int64(m.Inner) * int64(hidden), run: func(s *weights.Scratch) error {
		var sources [3]canon.Source
		for i, part := range []struct {
			stack   weights.Stack
			outputs weights.Outputs
		}{{both, gate}, {both, up}, {down, weights.Outputs{Step: 1, Count: hidden}}} {
			var err error
			if sources[i], err = l.stacked(part.stack, id, part.outputs, s); err != nil {
				return err
			}
		}
		var err error
		*to, err = l.arena.PackRecord(sources[0], sources[1], sources[2])
		return err
	}}
}

// stacked reads outputs of one expert's matrix, with its bias if experts have them.
func (l *loader) stacked(stack weights.Stack, id int, outputs weights.Outputs, s *weights.Scratch) (canon.Source, error) {
	source, err := l.checkpoint.Expert(stack, id, outputs, s)
	if err != nil {
		return source, err
	}
	l.read.Store(stack.Tensor, nil)
	if l.spec.MoE.Bias {
		name := stack.Tensor + "_bias"
		if source.Bias, err = l.checkpoint.ExpertBias(name, stack.Experts, stack.Rows, id, outputs, s); err != nil {
			return source, err
		}
		l.read.Store(name, nil)
		l.elements.Add(int64(len(source.Bias)))
	}
	return l.wanted(source)
}
