package model

// Loading: every weight is read with pread into a worker's scratch memory and repacked straight into the arena, tensor by
// tensor in layer order and in parallel. Nothing but the arena outlives it, and the peak beside the arena is one source
// tensor a worker.

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"covey/engine/canon"
	"covey/engine/weights"
)

// layer holds the packed weights of one layer.
type layer struct {
	attentionNorm, mlpNorm norm
	q, k, v, o             *canon.Matrix
	qBias, kBias, vBias    []float32
	oBias                  []float32
	qNorm, kNorm           []float32
	dense                  *canon.Record // dense layers only
	shared                 *canon.Record // nil = none
	sharedGate             *canon.Matrix
	router                 *canon.Matrix
	routerBias             []float32
	sinks                  []float32
	correction             []float32
	experts                []*canon.Record
	places                 []weights.Record // instead of experts, where they are read on demand
	latent                 *latentLayer     // nil = another kind of attention
	compressed             *compressedLayer // nil = another kind of attention
	table                  []int32          // [vocab, top-k] experts by token; nil = the router chooses
	attentionMixer         mixer            // of residual streams
	mlpMixer               mixer
	delta                  *deltaLayer // nil = attention
}

// attentionBytes is the size of the matrices of the attention block.
func (y *layer) attentionBytes() int64 {
	matrices := []*canon.Matrix{y.q, y.k, y.v, y.o}
	if y.latent != nil {
		matrices = append(matrices, y.latent.down, y.latent.kv, y.latent.keys, y.latent.values)
		if x := y.latent.index; x != nil {
			matrices = append(matrices, x.q, x.k, x.weights)
		}
	}
	if y.compressed != nil {
		matrices = append(matrices, y.compressed.matrices()...)
	}
	if y.delta != nil {
		matrices = append(matrices, y.delta.projections, y.delta.rates, y.delta.out)
	}
	total := int64(0)
	for _, m := range append(matrices, y.attentionMixer.fn, y.mlpMixer.fn) {
		if m != nil {
			total += m.Bytes()
		}
	}
	return total
}

// norm holds the weights of a norm; bias is nil but for layer norms.
type norm struct{ weight, bias []float32 }

// tensors holds all packed weights of a model.
type tensors struct {
	embed, head *canon.Matrix // the same one where the head is tied
	headBias    []float32
	norm        norm
	mixer       mixer // of residual streams
	layers      []layer
}

// loader reads weights by the names of a spec and packs them.
type loader struct {
	checkpoint  *weights.Checkpoint
	spec        *Spec
	arena       *canon.Arena
	dequantised bool
	elements    atomic.Int64       // weights packed
	quantised   atomic.Bool        // some of them in integer form
	forms       sync.Map           // form and group, spelled: set
	vectors     atomic.Int64       // bytes of norms and biases
	read        sync.Map           // modules and vectors read: set of ModuleOf names
	places      [][]weights.Record // [MoE layers] of experts that stay on disk; nil = all are loaded
}

// job is one piece of loading; size is its share of the progress.
type job struct {
	item  Item
	size  int64
	ready func() (bool, error) // reads what lies packed straight to its place, without a source; false = run does it; may be nil
	run   func(*weights.Scratch) error
}

// large says that no other such source is read beside it: an embedding or a head; an expert only if it is so wide that a layer has
// few, since all workers are needed to pack those of many.
func (j *job) large() bool {
	const matrix, record = 16 << 20, 64 << 20
	return j.size >= record || j.size >= matrix && j.item.Kind != RecordItem
}

// note counts packed weights of a container as wanted counts others.
func (l *loader) note(modules []string, layouts ...canon.Layout) {
	for i, layout := range layouts {
		l.read.Store(modules[i], nil)
		if layout.Form.Quantised() {
			l.quantised.Store(true)
		}
		l.forms.Store(layout.Kind(), nil)
		l.elements.Add(int64(layout.Rows) * int64(layout.Cols))
	}
}

// ready reads a module that lies packed in a container straight into the arena; nil if it has to be packed.
func (l *loader) ready(module string, rows, cols int) (*canon.Matrix, error) {
	layout, ok := l.checkpoint.Packed(module)
	if !ok || l.dequantised || layout.Rows != rows || layout.Cols != cols {
		return nil, nil
	}
	block, err := l.arena.Room(layout)
	if err != nil {
		return nil, fmt.Errorf("model: loading %s: %w", module, err)
	}
	if err := l.checkpoint.ReadPacked(module, block); err != nil {
		return nil, err
	}
	l.note([]string{module}, layout)
	return layout.View(block), nil
}

// readyRecord is ready for three modules that are one record of a container.
func (l *loader) readyRecord(modules [3]string, inner int) (*canon.Record, error) {
	place, ok, err := l.checkpoint.Record(modules)
	if err != nil || !ok || l.dequantised || place.Layout.Gate.Rows != inner || place.Layout.Gate.Cols != l.spec.Hidden {
		return nil, err
	}
	block, err := l.arena.Room(place.Layout)
	if err != nil {
		return nil, fmt.Errorf("model: loading %s: %w", modules[0], err)
	}
	if err := l.checkpoint.ReadRecord(place, block); err != nil {
		return nil, err
	}
	l.note(modules[:], place.Layout.Gate, place.Layout.Up, place.Layout.Down)
	return place.Layout.View(block), nil
}

// source reads one weight as the options want it.
func (l *loader) source(module string, rows, cols int, s *weights.Scratch) (canon.Source, error) {
	source, err := l.checkpoint.Source(module, rows, cols, s)
	if err != nil {
		return source, err
	}
	l.read.Store(module, nil)
	return l.wanted(source)
}

// wanted gives a source the form that the options want, and counts it.
func (l *loader) wanted(source canon.Source) (canon.Source, error) {
	var err error
	form := source.Kind()
	if l.dequantised && source.Form != canon.F32 {
		if source, err = canon.Dequantised(source); err != nil {
			return source, err
		}
		form += " as f32"
	}
	if source.Form.Quantised() {
		l.quantised.Store(true)
	}
	l.forms.Store(form, nil)
	l.elements.Add(int64(source.Rows) * int64(source.Cols))
	return source, nil
}

// matrix returns a job that packs a module into *to.
func (l *loader) matrix(to **canon.Matrix, module string, rows, cols int) job {
	item := Item{Kind: MatrixItem, Expert: -1, Layer: -1, Names: []string{module}, Rows: rows, Cols: cols}
	item.Sources = func(s *weights.Scratch) ([]canon.Source, error) {
		source, err := l.source(module, rows, cols, s)
		return []canon.Source{source}, err
	}
	return job{item: item, size: int64(rows) * int64(cols), ready: func() (bool, error) {
		m, err := l.ready(module, rows, cols)
		*to = m
		return m != nil, err
	}, run: func(s *weights.Scratch) error {
		source, err := l.source(module, rows, cols, s)
		if err != nil {
			return err
		}
		*to, err = l.arena.Pack(source)
		return err
	}}
}

// record returns a job that packs gate, up and down modules of a feed-forward block into *to.
func (l *loader) record(to **canon.Record, modules [3]string, inner int, biased bool) job {
	hidden := l.spec.Hidden
	shapes := [3][2]int{{inner, hidden}, {inner, hidden}, {hidden, inner}}
	return l.packed(to, modules, inner, func(s *weights.Scratch) ([]canon.Source, error) {
		parts := make([]canon.Source, 3)
		for i, module := range modules {
			var err error
			if parts[i], err = l.source(module, shapes[i][0], shapes[i][1], s); err != nil {
				return nil, err
			}
			if biased && parts[i].Bias == nil { // a container has it with the matrix
				if err := l.vector(&parts[i].Bias, module+".bias", shapes[i][0]).run(s); err != nil {
					return nil, err
				}
			}
		}
		return parts, nil
	})
}

// packed returns a job that packs what sources reads, gate, up and down under those names, into *to.
func (l *loader) packed(to **canon.Record, modules [3]string, inner int, sources func(*weights.Scratch) ([]canon.Source, error)) job {
	item := Item{Kind: RecordItem, Expert: -1, Layer: -1, Names: modules[:], Rows: inner, Cols: l.spec.Hidden, Sources: sources}
	return job{item: item, size: 3 * int64(inner) * int64(l.spec.Hidden), ready: func() (bool, error) {
		r, err := l.readyRecord(modules, inner)
		*to = r
		return r != nil, err
	}, run: func(s *weights.Scratch) error {
		parts, err := sources(s)
		if err != nil {
			return err
		}
		*to, err = l.arena.PackRecord(parts[0], parts[1], parts[2])
		return err
	}}
}

// norm returns the jobs that read a norm of the hidden width, named by its weight.
func (l *loader) norm(to *norm, weight string) []job {
	jobs := []job{l.vector(&to.weight, weight, l.spec.Hidden)}
	if l.spec.LayerNorm {
		jobs = append(jobs, l.vector(&to.bias, strings.TrimSuffix(weight, ".weight")+".bias", l.spec.Hidden))
	}
	return jobs
}

// vector returns a job that reads n floats of a full tensor name into *to.
func (l *loader) vector(to *[]float32, name string, n int) job {
	item := Item{Kind: VectorItem, Expert: -1, Layer: -1, Names: []string{name}, Rows: 1, Cols: n}
	item.Sources = func(*weights.Scratch) ([]canon.Source, error) {
		values, err := l.checkpoint.Vector(name, n)
		if err != nil {
			return nil, err
		}
		codes, err := binary.Append(nil, binary.LittleEndian, values)
		return []canon.Source{{Name: name, Form: canon.F32, Rows: 1, Cols: n, Codes: codes}}, err
	}
	return job{item: item, size: int64(n), run: func(*weights.Scratch) error {
		values, err := l.checkpoint.Vector(name, n)
		*to = values
		l.read.Store(ModuleOf(name), nil)
		l.elements.Add(int64(n))
		l.vectors.Add(4 * int64(n))
		return err
	}}
}

// bare returns a job that packs a matrix whose tensor has no ".weight" behind its name into *to, in f32. A container keeps it
// as a vector.
func (l *loader) bare(to **canon.Matrix, name string, rows, cols int) job {
	j := l.vector(nil, name, rows*cols)
	j.run = func(*weights.Scratch) error {
		values, err := l.checkpoint.Vector(name, rows*cols)
		if err != nil {
			return err
		}
		l.read.Store(name, nil)
		l.elements.Add(int64(rows) * int64(cols))
		*to, err = l.arena.PackFloats(name, values, rows, cols)
		return err
	}
	return j
}

// table returns a job that reads the experts of each token. A container keeps it as a vector of floats, which hold the ids
// exactly.
func (l *loader) table(to *[]int32, name string) job {
	n := l.spec.Vocab * l.spec.MoE.TopK
	ids := func() ([]int32, error) {
		if t, ok := l.checkpoint.Tensor(name); ok && t.Type == "F32" {
			values, err := l.checkpoint.Vector(name, n)
			if err != nil {
				return nil, err
			}
			return expertIDs(name, values, l.spec.MoE.TopK, l.spec.MoE.Experts)
		}
		values, err := l.checkpoint.Integers(name, n)
		if err != nil {
			return nil, err
		}
		return expertIDs(name, values, l.spec.MoE.TopK, l.spec.MoE.Experts)
	}
	j := l.vector(nil, name, n)
	j.item.Sources = func(*weights.Scratch) ([]canon.Source, error) {
		list, err := ids()
		codes := make([]byte, 0, 4*len(list))
		for _, id := range list {
			codes = binary.LittleEndian.AppendUint32(codes, math.Float32bits(float32(id)))
		}
		return []canon.Source{{Name: name, Form: canon.F32, Rows: 1, Cols: len(list), Codes: codes}}, err
	}
	j.run = func(*weights.Scratch) (err error) {
		l.read.Store(name, nil)
		*to, err = ids()
		return err
	}
	return j
}

// expertIDs are the values of a table [tokens, k] of experts.
func expertIDs[T float32 | int64](name string, values []T, k, experts int) ([]int32, error) {
	list := make([]int32, len(values))
	for i, v := range values {
		if !(v >= 0 && v < T(experts)) || v != T(int32(v)) {
			return nil, fmt.Errorf("model: tensor %s: token %d goes to expert %v, which is none of 0 to %d; download the file again", name, i/k, v, experts-1)
		}
		list[i] = int32(v)
	}
	return list, nil
}

// either returns the first name, or the prefix of names, that the checkpoint has a tensor for; the first one if it has none.
func (l *loader) either(names ...string) string {
	for _, name := range names {
		for _, end := range []string{"", "base"} {
			if _, ok := l.checkpoint.Tensor(name + end); ok {
				return name
			}
		}
	}
	return names[0]
}

// plan lists the jobs that fill t.
func (l *loader) plan(t *tensors) ([]job, error) {
	spec, names := l.spec, l.spec.Names
	a := spec.Attention
	t.layers = make([]layer, spec.Layers)
	var jobs []job

	// Whichever of embedding and head is stored serves as both, if the configuration ties them.
	embed, head := l.checkpoint.HasModule(names.Embed), l.checkpoint.HasModule(names.Head)
	if embed || !spec.Tied {
		jobs = append(jobs, l.matrix(&t.embed, names.Embed, spec.Vocab, spec.Hidden))
	}
	if head || !spec.Tied {
		jobs = append(jobs, l.matrix(&t.head, names.Head, spec.Vocab, spec.Hidden))
	}
	if len(jobs) == 0 {
		return nil, fmt.Errorf("model: neither %s nor %s is in the checkpoint", names.Embed, names.Head)
	}
	if spec.HeadBias {
		jobs = append(jobs, l.vector(&t.headBias, names.Head+".bias", spec.Vocab))
	}
	jobs = append(jobs, l.norm(&t.norm, names.Norm)...)
	if s := spec.Streams; s != nil {
		jobs = append(jobs, l.mixer(&t.mixer, l.either(names.Root+"hc_head.hc_", names.Root+"hc_head_"), s.Count, 1)...)
	}

	at := func(pattern string, layer int) string { return fmt.Sprintf(pattern, layer) }
	three := func(patterns [3]string, numbers ...any) (out [3]string) {
		for i, p := range patterns {
			out[i] = fmt.Sprintf(p, numbers...)
		}
		return out
	}
	for i := range t.layers {
		y := &t.layers[i]
		jobs = append(jobs, l.norm(&y.attentionNorm, at(names.AttentionNorm, i))...)
		jobs = append(jobs, l.norm(&y.mlpNorm, at(names.MLPNorm, i))...)
		switch {
		case spec.Recurrent(i):
			jobs = append(jobs, l.deltaNet(y, i)...)
		case a.Latent != nil:
			jobs = append(jobs, l.latent(y, i)...)
		case a.Compressed != nil:
			jobs = append(jobs, l.compressed(y, i)...)
		default:
			jobs = append(jobs, l.groupedQuery(y, i)...)
		}
		if s := spec.Streams; s != nil {
			jobs = append(jobs, l.mixer(&y.attentionMixer, names.stream(i, "attn"), (2+s.Count)*s.Count, 3)...)
			jobs = append(jobs, l.mixer(&y.mlpMixer, names.stream(i, "ffn"), (2+s.Count)*s.Count, 3)...)
		}
		if spec.Dense[i] {
			jobs = append(jobs, l.record(&y.dense, three(names.Dense, i), spec.DenseInner, spec.MLPBias))
			continue
		}
		router := l.matrix(&y.router, at(names.Router, i), spec.MoE.Experts, spec.Hidden)
		router.item.Kind = ExactItem
		jobs = append(jobs, router)
		if spec.MoE.RouterBias {
			jobs = append(jobs, l.vector(&y.routerBias, at(names.Router, i)+".bias", spec.MoE.Experts))
		}
		if spec.MoE.Hash != nil && spec.MoE.Hash[i] {
			jobs = append(jobs, l.table(&y.table, at(names.Hash, i)))
		} else if spec.MoE.Correction {
			jobs = append(jobs, l.vector(&y.correction, at(names.Correction, i), spec.MoE.Experts))
		}
		if spec.MoE.Shared > 0 {
			shared := l.record(&y.shared, three(names.Shared, i), spec.MoE.Shared, spec.MLPBias)
			shared.item.Layer = i
			jobs = append(jobs, shared)
		}
		if spec.MoE.SharedGate {
			gate := l.matrix(&y.sharedGate, at(names.SharedGate, i), 1, spec.Hidden)
			gate.item.Kind = ExactItem
			jobs = append(jobs, gate)
		}
		if l.places != nil {
			y.places = l.places[slices.Index(spec.MoELayers(), i)]
			continue
		}
		y.experts = make([]*canon.Record, spec.MoE.Experts)
		for e := range y.experts {
			jobs = append(jobs, l.expert(&y.experts[e], i, e))
		}
	}
	return jobs, nil
}

// load runs the plan on workers goroutines. progress may be nil; it is called from one goroutine at a time. Of several
// errors the one of the earliest job is returned: jobs are taken in order, so that it is the same one every time.
//
// Beside the packed weights there is at most one large source at a time, in memory that the next one reuses, and a smaller one for
// each worker: with few workers less than a layer's in all. What lies packed in a container needs no source.
func (l *loader) load(ctx context.Context, workers int, progress func(done, total int64)) (*tensors, error) {
	t := &tensors{}
	jobs, err := l.plan(t)
	if err != nil {
		return nil, err
	}
	var (
		total, done int64
		next        atomic.Int64
		mu          sync.Mutex // guards done, first and at, and calls of progress
		first       error
		at          int
		failed      atomic.Bool
		group       sync.WaitGroup
		alone       sync.Mutex // guards large
		large       weights.Scratch
	)
	for _, j := range jobs {
		total += j.size
	}
	work := func() {
		var scratch weights.Scratch
		for !failed.Load() {
			i := int(next.Add(1)) - 1
			if i >= len(jobs) {
				return
			}
			ready, err := false, ctx.Err()
			if err == nil && jobs[i].ready != nil {
				ready, err = jobs[i].ready()
			}
			switch {
			case ready || err != nil:
			case !jobs[i].large():
				scratch.Reset()
				err = jobs[i].run(&scratch)
			default:
				alone.Lock()
				if err = ctx.Err(); err == nil { // it may have waited for long
					large.Reset()
					err = jobs[i].run(&large)
				}
				alone.Unlock()
			}
			mu.Lock()
			if err != nil {
				if first == nil || i < at {
					first, at = err, i
				}
				failed.Store(true)
			} else if done += jobs[i].size; progress != nil {
				progress(done, total)
			}
			mu.Unlock()
		}
	}
	for range workers {
		group.Go(work)
	}
	group.Wait()
	if first != nil {
		return nil, fmt.Errorf("model: loading: %w", first)
	}
	if t.embed == nil {
		t.embed = t.head
	}
	if t.head == nil {
		t.head = t.embed
	}
	return t, nil
}
