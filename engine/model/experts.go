package model

import (
	"fmt"
	"strings"

	"covey/engine/canon"
	"covey/engine/weights"
)

// expert returns a job that packs one routed expert into *to, however its matrices are stored.
func (l *loader) expert(to **canon.Record, layer, id int) job {
	j := l.expertRecord(to, layer, id)
	j.item.Expert, j.item.Layer = id, layer
	return j
}

func (l *loader) expertRecord(to **canon.Record, layer, id int) job {
	m, names, modules := l.spec.MoE, l.spec.Names.Expert, l.spec.expert(layer, id)
	if m.Stack == StackNone || l.checkpoint.HasModule(modules[0]) {
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
	j := l.packed(to, modules, m.Inner, func(s *weights.Scratch) ([]canon.Source, error) {
		sources := make([]canon.Source, 3)
		for i, part := range []struct {
			stack   weights.Stack
			outputs weights.Outputs
		}{{both, gate}, {both, up}, {down, weights.Outputs{Step: 1, Count: hidden}}} {
			var err error
			if sources[i], err = l.stacked(part.stack, id, part.outputs, s); err != nil {
				return nil, err
			}
		}
		return sources, nil
	})
	j.item.tensors = []string{both.Tensor, both.Tensor + "_bias", down.Tensor, down.Tensor + "_bias"}
	return j
}

// expert is the modules of one routed expert, gate, up and down. A format without stacks calls the parts of a stack what most
// families call them.
func (s *Spec) expert(layer, id int) (modules [3]string) {
	names := s.Names.Expert
	if s.MoE.Stack != StackNone {
		names = standardNames.Expert
	}
	for i, pattern := range names {
		modules[i] = fmt.Sprintf(pattern, layer, id)
	}
	return modules
}

// findStacks looks where the experts of a family that keeps them apart are stored: some files have them in stacks of rows, and a
// container made of such a file calls them what most families do. The router follows its block's name.
func (s *Spec) findStacks(checkpoint *weights.Checkpoint) {
	moe := s.MoELayers()
	if s.MoE.Stack != StackNone || len(moe) == 0 || checkpoint.HasModule(s.expert(moe[0], 0)[0]) {
		return
	}
	has := func(pattern string, numbers ...any) bool {
		name := fmt.Sprintf(pattern, numbers...)
		_, bare := checkpoint.Tensor(name)
		return bare || checkpoint.HasModule(name)
	}
	const both, down = "experts.gate_up_proj", "experts.down_proj"
	for _, at := range []string{"model.layers.%d.mlp.", "model.layers.%d.block_sparse_moe."} {
		if has(at+both, moe[0]) {
			s.MoE.Stack, s.Names.Expert = StackRows, [3]string{at + both, at + both, at + down}
		}
	}
	if s.MoE.Stack == StackNone && has(standardNames.Expert[0], moe[0], 0) {
		s.Names.Expert = standardNames.Expert
	}
	for _, name := range []*string{&s.Names.Router, &s.Names.Correction} {
		if other := strings.Replace(*name, "block_sparse_moe.", "mlp.", 1); has(other, moe[0]) {
			*name = other
		}
	}
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
