// Package model turns a checkpoint into a running forward pass: config.json becomes a Spec (architectures as data, one
// file per family), weights are repacked into off-heap memory, and a canonical program is built once and run for each
// step.
//
// A Model computes rows; which rows make up a step, what is sampled from their logits and which KV pages they use is the
// scheduler's business.
package model

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"covey/engine/canon"
	"covey/engine/route"
	"covey/engine/tier"
	"covey/engine/weights"
)

// Info describes a loaded model. Immutable.
type Info struct {
	Hash          string        // of the checkpoint, see weights.Checkpoint.Hash
	NumericsID    string        // short hash of Numerics
	Numerics      string        // rule version, mode, activations, weight forms, KV form: what results depend on beside the weights
	Quantised     bool          // some products quantise their activations (rule 2): results differ from a float32 reference by more than rounding
	Shape         route.Shape   // MoE geometry
	Parameters    int64         // weights in all
	Active        int64         // weights read for one token
	Bytes         int64         // weight bytes resident
	BytesPerToken int64         // weight bytes read for one decoded token in a step of its own
	RecordBytes   []int64       // [MoE layers] bytes of one routed expert
	ISA           canon.ISA     // kernel family in use
	Threads       int           // C threads
	MaxRows       int           // most rows of a step
	MaxLogits     int           // most rows of a step that want logits
	Context       int           // longest sequence in tokens
	KVPages       int           // pages of the KV cache
	States        int           // slots of recurrent state, one for each open sequence; 0 = the model has none
	KVBytes       int64         // KV bytes of one token
	Unused        []string      // tensors of the checkpoint that the forward pass does not read, such as prediction layers beyond Layers
	ExpertSlots   int           // expert records that fit in memory, where experts are read on demand; 0 = all are resident
	ExpertMemory  int64         // bytes of those
	Direct        bool          // experts are read past the page cache
	LoadTime      time.Duration // reading and repacking the weights
}

// Model is a loaded checkpoint. Step, ZeroPage and Close must be called from one goroutine at a time; the rest is
// immutable.
type Model struct {
	spec     *Spec
	settings settings
	info     Info
	arena    *canon.Arena
	pool     *canon.Pool
	caches   map[cacheName]*canon.KV
	forward  *forward
	runner   canon.Runner
	demand   *demand     // nil = all experts are in memory
	tiers    *tier.Store // of demand; stays when the model is closed, for Resident
	unclean  error       // of ZeroPage, for the next Step to return
	bias     [][]float32 // [MoE layers] correction biases, nil where there are none
	output   Output
	seen     []uint64 // [MoE layers, words] experts that a step has counted
}

// Load reads all weights of a checkpoint into memory and builds its forward pass. progress may be nil; it is called with
// weights done and in all, from one goroutine at a time. The checkpoint may be closed afterwards. The caller closes the
// model.
func Load(ctx context.Context, checkpoint *weights.Checkpoint, options Options, progress func(done, total int64)) (*Model, error) {
	spec, err := ReadSpec(checkpoint)
	if err != nil {
		return nil, err
	}
	s, err := options.resolve(spec)
	if err != nil {
		return nil, err
	}
	// What is known now is said now: loading can take minutes.
	_, list, err := s.place(checkpoint, spec)
	if err != nil {
		return nil, err
	}
	m := &Model{spec: spec, settings: s, arena: canon.NewArena(s.Memory)}
	if err := m.load(ctx, checkpoint, list, progress); err != nil {
		if errors.Is(err, canon.ErrArenaFull) {
			err = fmt.Errorf("%w: %w; lower the context (%d tokens a sequence) or the KV cache (%d tokens), or use a smaller checkpoint", ErrMemory, err, s.Context, s.KVTokens)
		}
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// ErrMemory says that a model does not fit the memory that it may use.
var ErrMemory = errors.New("not enough memory")

func (m *Model) load(ctx context.Context, checkpoint *weights.Checkpoint, list [][]weights.Record, progress func(done, total int64)) error {
	start := time.Now()
	spec, s := m.spec, m.settings
	l := &loader{checkpoint: checkpoint, spec: spec, arena: m.arena, dequantised: s.dequantised, places: list}
	for _, layer := range list {
		for _, r := range layer {
			l.note(r.Modules[:], r.Layout.Gate, r.Layout.Up, r.Layout.Down)
		}
	}
	var err error
	if m.pool, err = canon.NewPool(s.Threads, s.isa); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	m.arena.Near(m.pool)
	t, err := l.load(ctx, runtime.GOMAXPROCS(0), progress)
	debug.FreeOSMemory() // what sources were read into
	if err != nil {
		return err
	}
	m.caches = map[cacheName]*canon.KV{}
	for name, cache := range spec.caches(s.kv, s.pages) {
		if m.caches[name], err = m.arena.NewKV(cache); err != nil {
			return fmt.Errorf("model: %s: %w", name, err)
		}
	}
	var state *canon.State
	if spec.Delta != nil {
		if state, err = m.arena.NewState(s.MaxSlots, spec.stateFloats(spec.Layers)); err != nil {
			return fmt.Errorf("model: %w", err)
		}
	}
	limits := canon.Limits{Rows: s.MaxRows, LogitRows: s.MaxLogits, Sequences: s.MaxSlots, Pages: min(s.pages, (s.Context+canon.PageTokens-1)/canon.PageTokens)}
	if m.forward, err = build(spec, t, m.pool, m.arena, m.caches, state, limits, s.Margins); err != nil {
		return err
	}
	if m.runner, err = s.Backend.Load(m.forward.program); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	m.describe(checkpoint, l, t)
	if list != nil {
		if err := m.openDemand(checkpoint, list); err != nil {
			return err
		}
	}
	m.info.LoadTime = time.Since(start)
	places := m.info.Shape.Slots()
	m.output.IDs, m.output.Weights = make([]uint16, s.MaxRows*places), make([]float32, s.MaxRows*places)
	m.seen = make([]uint64, len(m.info.Shape.Layers)*((spec.MoE.Experts+63)/64))
	return nil
}

// describe fills info.
func (m *Model) describe(checkpoint *weights.Checkpoint, l *loader, t *tensors) {
	spec, s := m.spec, m.settings
	i := Info{
		Hash: checkpoint.Hash(), Parameters: l.elements.Load(), MaxRows: s.MaxRows, MaxLogits: s.MaxLogits, Context: s.Context, ISA: m.pool.ISA(), Threads: m.pool.Threads(),
		Shape:   route.Shape{Layers: spec.MoELayers(), Experts: spec.MoE.Experts, TopK: spec.MoE.TopK},
		KVPages: s.pages, KVBytes: spec.pageBytes(s.kv) / canon.PageTokens,
	}
	if spec.Delta != nil {
		i.States = s.MaxSlots
	}
	for _, name := range checkpoint.Names() {
		if _, read := l.read.Load(ModuleOf(name)); !read {
			i.Unused = append(i.Unused, name)
		}
	}
	i.Active = i.Parameters
	i.Bytes = l.vectors.Load() + t.embed.Bytes()
	if t.head != t.embed { // a token reads one row of an embedding that is not also the head
		i.Active -= int64(spec.Vocab-1) * int64(spec.Hidden)
		i.Bytes += t.head.Bytes()
		i.BytesPerToken -= t.embed.Bytes() - t.embed.Bytes()/int64(spec.Vocab)
	}
	for n := range t.layers {
		y := &t.layers[n]
		i.Bytes += y.attentionBytes()
		if spec.Dense[n] {
			i.Bytes += y.dense.Bytes()
			continue
		}
		m.bias = append(m.bias, y.correction)
		i.Bytes += y.router.Bytes()
		if y.shared != nil {
			i.Bytes += y.shared.Bytes()
		}
		if y.sharedGate != nil {
			i.Bytes += y.sharedGate.Bytes()
		}
		idle := int64(spec.MoE.Experts - spec.MoE.TopK)
		var record int64
		if y.places != nil {
			record = y.places[0].Layout.Bytes()
		} else {
			record = y.experts[0].Bytes()
		}
		i.RecordBytes = append(i.RecordBytes, record)
		i.Bytes += int64(spec.MoE.Experts) * record
		i.BytesPerToken -= idle * record
		i.Active -= idle * 3 * int64(spec.MoE.Inner) * int64(spec.Hidden)
	}
	i.BytesPerToken += i.Bytes

	var forms []string
	l.forms.Range(func(form, _ any) bool { forms = append(forms, form.(string)); return true })
	slices.Sort(forms)
	i.Quantised = l.quantised.Load()
	i.NumericsID, i.Numerics = Numerics(s.Activations, forms, s.KV)
	m.info = i
}

// Numerics is the numerics id of a model, short and spelled out: forms are the kinds of its weights (canon.Layout.Kind),
// ascending.
func Numerics(activations string, forms []string, kv string) (id, text string) {
	text = fmt.Sprintf("rules %d, exact, activations %s, weights %s, kv %s", canon.RuleVersion, activations, strings.Join(forms, " + "), kv)
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6]), text
}

// ModuleOf strips what a packed or plain weight adds to its module's name.
func ModuleOf(tensor string) string {
	for _, suffix := range []string{".weight", ".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point", ".weight.qs", ".qweight", ".qzeros", ".scales", ".g_idx", ".weight_scale_inv", ".scale", "_blocks", "_scales"} {
		if module, ok := strings.CutSuffix(tensor, suffix); ok {
			return module
		}
	}
	return tensor
}

// Spec is the architecture; read only.
func (m *Model) Spec() *Spec { return m.spec }

// Info describes the model.
func (m *Model) Info() Info { return m.info }

// Close ends the threads and gives all memory back. Outputs of Step must not be used afterwards.
func (m *Model) Close() error {
	var err error
	if m.demand != nil {
		err = m.demand.close()
		m.demand = nil
	}
	if m.runner != nil {
		err = errors.Join(err, m.runner.Close())
		m.runner = nil
	}
	if m.forward != nil {
		m.forward.program.Close()
		m.forward = nil
	}
	if m.pool != nil {
		m.pool.Close()
		m.pool = nil
	}
	return errors.Join(err, m.arena.Close())
}

// Resident says whether an expert, by place of its MoE layer and id, is in memory (the device's, where a device runs the
// model). It may be called from any goroutine, also after Close.
func (m *Model) Resident(router, id int) bool { return m.tiers == nil || m.tiers.Resident(router, id) }

// ZeroPage clears one KV page in all layers; see kv.New.
func (m *Model) ZeroPage(page int32) {
	for _, cache := range m.caches {
		if err := m.runner.Zero(cache, int(page)); err != nil && m.unclean == nil {
			m.unclean = fmt.Errorf("clearing page %d: %w", page, err)
		}
	}
}

// Expert names one routed expert by model layer and id.
type Expert struct{ Layer, ID int }

// NewBan makes a set of experts for Batch.Banned. An expert that does not exist is an error, and so is leaving a layer
// fewer experts than its router must choose (canon.ErrBanned), counted in the groups that its router may keep.
func (m *Model) NewBan(experts []Expert) (*Ban, error) {
	ban := m.forward.program.NewBan()
	for _, e := range experts {
		router := slices.Index(m.info.Shape.Layers, e.Layer)
		if router < 0 {
			return nil, fmt.Errorf("model: ban: layer %d has no experts; layers %d to %d have", e.Layer, m.info.Shape.Layers[0], m.info.Shape.Layers[len(m.info.Shape.Layers)-1])
		}
		if err := ban.Add(router, e.ID); err != nil {
			return nil, fmt.Errorf("model: layer %d: %w", e.Layer, err)
		}
	}
	for router, layer := range m.info.Shape.Layers {
		if err := ban.Check(router); err != nil {
			return nil, fmt.Errorf("model: ban: layer %d: %w", layer, err)
		}
	}
	return ban, nil
}

// failed is the error of a step. After the loss of a device (canon.ErrLost) the CPU runs the steps that follow, from the weights
// that are still in memory: every sequence must begin again at its first position.
func (m *Model) failed(err error) error {
	err = fmt.Errorf("model: %w", err)
	if !errors.Is(err, canon.ErrLost) {
		return err
	}
	runner, other := canon.CPU.Load(m.forward.program)
	if other != nil {
		return errors.Join(err, other)
	}
	err = errors.Join(err, m.runner.Close())
	m.runner = runner
	return err
}

// Step runs one batch and returns when it is done. Rows that failed (Output.Faults) do not affect the others; an error
// means that nothing ran, because the batch is malformed or the backend failed (canon.ErrLost: see failed). The call is not
// interruptible: it takes one forward pass over at most MaxRows rows.
func (m *Model) Step(b *Batch) (*Output, error) {
	if err := m.unclean; err != nil {
		m.unclean = nil
		return nil, m.failed(err)
	}
	out := &m.output
	out.Faults = nil
	var faults *canon.FaultError
	if err := m.run(b); errors.As(err, &faults) {
		out.Faults = make([]error, b.Rows())
		for _, f := range faults.Faults {
			out.Faults[f.Row] = fmt.Errorf("model: %s: %w", f.Op, f.Kind)
		}
	} else if err != nil {
		return nil, m.failed(err)
	}
	out.Logits = out.Logits[:0]
	for i := range b.LogitRows {
		out.Logits = append(out.Logits, m.forward.logits.Row(i))
	}
	out.Drawn = nil
	if d, ok := m.runner.(canon.Drawer); ok {
		out.Drawn = d.Drawn()
	}
	m.gather(b)
	return out, nil
}

// run runs the program for a batch.
func (m *Model) run(b *Batch) error {
	if err := m.checkResiduals(b); err != nil {
		return err
	}
	observe := m.settings.Observe
	if m.demand == nil && observe == nil && b.Keep == nil && b.From == nil {
		return m.runner.Run(&b.Step)
	}
	ready := func(router int) error {
		if observe != nil {
			for r := range b.Rows() {
				observe(router, m.forward.inputs[router].Row(r))
			}
		}
		m.keep(b, router)
		if m.demand == nil {
			return nil
		}
		return m.demand.bring(router, m.forward.choices[router], b.Rows())
	}
	var err error
	if b.From != nil {
		err = m.forward.program.RunFrom(&b.Step, b.Router, func() { m.resume(b) }, ready)
	} else {
		err = m.forward.program.RunInParts(&b.Step, ready)
	}
	if m.demand != nil {
		m.output.Fetched = m.demand.counters()
	}
	return err
}

// gather copies routing out of the choices of each layer, [layer][row, k], into [row, layer, k], and counts the bytes of
// the records that the rows used.
func (m *Model) gather(b *Batch) {
	out, rows, k, layers := &m.output, b.Rows(), m.spec.MoE.TopK, len(m.forward.choices)
	out.IDs, out.Weights = out.IDs[:rows*layers*k], out.Weights[:rows*layers*k]
	words := (m.spec.MoE.Experts + 63) / 64
	clear(m.seen)
	out.Bytes = 0
	first := 0
	if b.From != nil {
		first = b.Router
		clear(out.IDs)
		clear(out.Weights)
	}
	for l := first; l < layers; l++ {
		choice := m.forward.choices[l]
		seen := m.seen[l*words : (l+1)*words]
		for r := range rows {
			at := (r*layers + l) * k
			copy(out.Weights[at:], choice.Weights(r))
			for i, id := range choice.IDs(r) {
				if uint(id) >= uint(m.spec.MoE.Experts) { // a failed row has no choice
					id = 0
				} else if bit := uint64(1) << (id % 64); seen[id/64]&bit == 0 {
					seen[id/64] |= bit
					out.Bytes += m.info.RecordBytes[l]
				}
				out.IDs[at+i] = uint16(id)
			}
		}
	}
}
