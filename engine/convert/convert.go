// Package convert writes containers: it reads a checkpoint of any form piece by piece, gives each weight the form that was
// asked for, and appends it as a record. Pieces are prepared by several goroutines and written in the order of the layers,
// so that equal sources and options give equal bytes; memory is bounded by a budget of pieces in work. A conversion that was
// killed goes on behind the last record that reached the disk.
package convert

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"covey/engine/canon"
	"covey/engine/model"
	"covey/engine/quant"
	"covey/engine/weights"
)

// Target is the form that weights are given.
type Target string

// Targets. Keep leaves a weight as it is stored.
const (
	Keep Target = "keep"
	BF16 Target = "bf16"
	Int8 Target = "int8"
	Int4 Target = "int4"
)

// Options say how a checkpoint is converted.
type Options struct {
	Experts, Dense Target        // routed experts; all other matrices but routers, which are kept
	Group          int           // inputs a scale of int8 and int4: 32, 64 or 128
	Zeros          bool          // int4 with integer zero points (asymmetric)
	Split          int64         // a data file of at least so many bytes is full; 0 = 8 GiB
	Memory         int64         // bytes of pieces in work at once; 0 = 512 MiB
	Workers        int           // goroutines that prepare pieces; 0 = one a processor
	Sync           time.Duration // how much work may be lost when the process is killed; 0 = 2 s

	// Importance says how much an error of each input of an item's first two matrices counts, [inputs]; nil = all alike. It
	// enters the identity of the conversion through ImportanceID. See Calibrate.
	Importance   func(item model.Item) []float32
	ImportanceID string
}

// sideFiles are the files beside the weights that a container takes over if the checkpoint has them.
var sideFiles = []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "LICENSE", "README.md"}

const (
	maxSideFile = 256 << 20
	// ReportName is the file in the container that says what the conversion did to each weight.
	ReportName = "conversion.json"
)

// Tensor is one line of a report.
type Tensor struct {
	Name  string  `json:"name"`
	From  string  `json:"from"`
	To    string  `json:"to"`
	Bytes int64   `json:"bytes"` // packed
	RMS   float64 `json:"rms"`   // relative error: root of squared errors over squared values; 0 = unchanged
}

// Report is what a conversion did.
type Report struct {
	Source     string   `json:"source_hash"`
	Options    string   `json:"options"`
	Bytes      int64    `json:"bytes"`       // of all packed weights
	ExpertRMS  float64  `json:"expert_rms"`  // mean over the weights of routed experts
	DenseRMS   float64  `json:"dense_rms"`   // mean over all other matrices
	WorstRMS   float64  `json:"worst_rms"`   //
	Worst      string   `json:"worst"`       // the weight with that error
	LeftOut    []string `json:"left_out"`    // tensors of the source that the forward pass does not read
	NumericsID string   `json:"numerics_id"` // with int8 activations and an f16 KV cache
	Tensors    []Tensor `json:"tensors"`
}

// piece is a prepared record.
type piece struct {
	tensors []weights.PackedTensor
	block   []byte
	note    []byte
	cost    int64
	err     error
}

// Run converts source into the folder dir. progress may be nil; it is called with weights done and in all. A folder that
// holds anything but the beginning of the same conversion is refused.
func Run(ctx context.Context, source *weights.Checkpoint, dir string, o Options, progress func(done, total int64)) (*Report, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	spec, items, unused, err := model.Items(source)
	if err != nil {
		return nil, fmt.Errorf("convert: %w", err)
	}
	r := &run{o: o, source: source, items: items, progress: progress, groups: map[int]int{}}
	if err := r.foresee(ctx); err != nil { // before there is a folder, which other options could not go on with
		return nil, fmt.Errorf("convert: %w", err)
	}
	text := fmt.Sprintf("experts %s, dense %s, group %d, zeros %t, importance %s", o.Experts, o.Dense, o.Group, o.Zeros, o.ImportanceID)
	r.writer, err = weights.OpenContainerWriter(dir, sha256.Sum256([]byte(source.Hash()+"\n"+text)), o.Split, o.Sync)
	if err != nil {
		return nil, fmt.Errorf("convert: %w", err)
	}
	err = r.all(ctx)
	var report *Report
	if err == nil {
		report, err = finish(source, spec, items, unused, r.writer, text)
	}
	if err := errors.Join(err, r.writer.Close()); err != nil {
		return nil, fmt.Errorf("convert: %w", err)
	}
	return report, nil
}

func (o Options) withDefaults() Options {
	if o.Split == 0 {
		o.Split = 8 << 30
	}
	if o.Memory == 0 {
		o.Memory = 512 << 20
	}
	if o.Sync == 0 {
		o.Sync = 2 * time.Second
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	return o
}

func (o Options) check() error {
	for _, t := range []Target{o.Experts, o.Dense} {
		if t != Keep && t != BF16 && t != Int8 && t != Int4 {
			return fmt.Errorf("convert: target %q; keep, bf16, int8 and int4 are possible", t)
		}
	}
	if o.Group != 32 && o.Group != 64 && o.Group != 128 {
		return fmt.Errorf("convert: groups of %d; 32, 64 and 128 are possible", o.Group)
	}
	return nil
}

// run is one conversion.
type run struct {
	o        Options
	source   *weights.Checkpoint
	items    []model.Item
	writer   *weights.ContainerWriter
	progress func(done, total int64)

	groups map[int]int // by layer, inputs that its experts quantise together

	mu   sync.Mutex // guards used
	free sync.Cond
	used int64
}

func elements(i model.Item) int64 {
	n := int64(i.Rows) * int64(i.Cols)
	if i.Kind == model.RecordItem {
		n *= 3
	}
	return n
}

// cost is what an item takes in memory while it is prepared: its source in at most four bytes a weight, its packed form,
// and a band of rows as floats.
func cost(i model.Item) int64 { return elements(i)*6 + 1<<20 }

// all prepares and writes what is not written yet.
func (r *run) all(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.free.L = &r.mu
	stop := context.AfterFunc(ctx, func() { r.free.Broadcast() })
	defer stop()
	var done, total int64
	for i, item := range r.items {
		total += elements(item)
		if i < r.writer.Done() {
			done += elements(item)
		}
	}
	if r.writer.Done() > len(r.items) {
		return fmt.Errorf("the folder holds %d records, the checkpoint gives %d", r.writer.Done(), len(r.items))
	}
	queue := make(chan chan piece, r.o.Workers)
	places := make(chan struct{}, r.o.Workers)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		defer close(queue)
		for _, item := range r.items[r.writer.Done():] {
			if !r.reserve(ctx, cost(item)) {
				return
			}
			ch := make(chan piece, 1)
			select {
			case <-ctx.Done():
				return
			case places <- struct{}{}:
			}
			group.Go(func() {
				p := r.prepare(item)
				p.cost = cost(item)
				ch <- p
				<-places
			})
			select {
			case <-ctx.Done():
				return
			case queue <- ch:
			}
		}
	})
	first := r.writer.Done()
	for n := 0; ; n++ {
		ch, more := <-queue
		if !more {
			break
		}
		p := <-ch
		if p.err == nil {
			p.err = ctx.Err()
		}
		if p.err == nil {
			p.err = r.agree(r.items[first+n], p.tensors[0].Name, p.tensors[0].Layout)
		}
		if p.err == nil {
			p.err = r.writer.Append(p.tensors, p.block, p.note)
		}
		if p.err != nil {
			cancel()
			return p.err
		}
		r.release(p.cost)
		done += elements(r.items[first+n])
		if r.progress != nil {
			r.progress(done, total)
		}
	}
	return ctx.Err()
}

// target is the form that an item's weights are given.
func (r *run) target(item model.Item) Target {
	switch {
	case item.Kind == model.ExactItem || item.Kind == model.VectorItem:
		return Keep
	case item.Expert >= 0:
		return r.o.Experts
	}
	return r.o.Dense
}

// foresee reads one routed and one shared expert of each layer, of those that are kept, so that groups that do not agree are
// refused before anything is written.
func (r *run) foresee(ctx context.Context) error {
	if r.o.Experts != Keep && r.o.Dense != Keep {
		return nil
	}
	type role struct {
		layer  int
		routed bool
	}
	seen := map[role]bool{}
	var scratch weights.Scratch
	for _, item := range r.items {
		is := role{item.Layer, item.Expert >= 0}
		if item.Layer < 0 || seen[is] {
			continue
		}
		seen[is] = true
		l := canon.Layout{Form: canon.Int8, Group: r.o.Group}
		switch r.target(item) {
		case BF16:
			continue
		case Keep:
			if err := ctx.Err(); err != nil {
				return err
			}
			scratch.Reset()
			sources, err := item.Sources(&scratch)
			if err == nil {
				l, err = sources[0].Layout()
			}
			if err != nil {
				return err
			}
		}
		if err := r.agree(item, item.Names[0], l); err != nil {
			return err
		}
	}
	return nil
}

// agree refuses a layer whose shared and routed experts would quantise the same input in different groups: no program runs
// it.
func (r *run) agree(item model.Item, name string, l canon.Layout) error {
	if item.Layer < 0 || !l.Form.Quantised() {
		return nil
	}
	group, known := r.groups[item.Layer]
	if !known {
		r.groups[item.Layer] = l.Group
	} else if group != l.Group {
		kept := l.Group
		if kept == r.o.Group {
			kept = group
		}
		return fmt.Errorf("layer %d: %s has groups of %d, but the other experts of the layer, routed or shared, have groups of %d: choose the same group for both (--group %d), or bf16 for one", item.Layer, name, l.Group, group, kept)
	}
	return nil
}

// reserve waits until n bytes may be used; one piece always may. false = the conversion ends.
func (r *run) reserve(ctx context.Context, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.used > 0 && r.used+n > r.o.Memory && ctx.Err() == nil {
		r.free.Wait()
	}
	r.used += n
	return ctx.Err() == nil
}

func (r *run) release(n int64) {
	r.mu.Lock()
	r.used -= n
	r.mu.Unlock()
	r.free.Broadcast()
}

// prepare makes the record of an item.
func (r *run) prepare(item model.Item) piece {
	target := r.target(item)
	var scratch weights.Scratch
	sources, err := item.Sources(&scratch)
	if err != nil {
		return piece{err: err}
	}
	var p piece
	var notes []Tensor
	for i, src := range sources {
		var importance []float32
		if r.o.Importance != nil && i < 2 {
			importance = r.o.Importance(item)
		}
		out, loss, err := r.give(src, target, importance)
		if err != nil {
			return piece{err: err}
		}
		out.Bias = src.Bias
		layout, err := out.Layout()
		if err != nil {
			return piece{err: err}
		}
		at := int64(len(p.block))
		p.block = append(p.block, make([]byte, layout.Bytes())...)
		layout.Pack(p.block[at:], out)
		name := item.Names[i]
		if item.Kind != model.VectorItem {
			name += ".weight"
		}
		p.tensors = append(p.tensors, weights.PackedTensor{Name: name, Layout: layout})
		notes = append(notes, Tensor{Name: item.Names[i], From: src.Kind(), To: out.Kind(), Bytes: layout.Bytes(), RMS: loss.RMS()})
	}
	p.note, p.err = json.Marshal(notes)
	return p
}

// give turns a source into its target form.
func (r *run) give(src canon.Source, target Target, importance []float32) (canon.Source, quant.Loss, error) {
	spec := quant.Spec{Group: r.o.Group}
	switch target {
	case Keep:
		return src, quant.Loss{}, nil
	case BF16:
		if src.Form == canon.BF16 {
			return src, quant.Loss{}, nil
		}
		return r.narrow(src)
	case Int8:
		spec.Form = canon.Int8
	case Int4:
		spec.Form, spec.Zeros = canon.Int4, r.o.Zeros
	}
	out, err := spec.Make(src.Name, src.Rows, src.Cols)
	if err != nil {
		return out, quant.Loss{}, err
	}
	var loss quant.Loss
	err = bands(src, func(first int, values []float32) error {
		l, err := spec.Rows(&out, first, values, importance)
		loss.Noise, loss.Signal = loss.Noise+l.Noise, loss.Signal+l.Signal
		return err
	})
	return out, loss, err
}

// narrow rounds a source to bf16.
func (r *run) narrow(src canon.Source) (canon.Source, quant.Loss, error) {
	out := canon.Source{Name: src.Name, Form: canon.BF16, Rows: src.Rows, Cols: src.Cols, Codes: make([]byte, 0, 2*src.Rows*src.Cols)}
	var loss quant.Loss
	err := bands(src, func(_ int, values []float32) error {
		for _, v := range values {
			h := canon.ToBF16(v)
			e := float64(v) - float64(canon.FromBF16(h))
			loss.Noise += e * e
			loss.Signal += float64(v) * float64(v)
			out.Codes = binary.LittleEndian.AppendUint16(out.Codes, h)
		}
		return nil
	})
	return out, loss, err
}

// bands hands the values of a source to f, some rows at a time.
func bands(src canon.Source, f func(first int, values []float32) error) error {
	rows := max(1<<20/src.Cols, 1)
	if h := src.GroupRows; src.Form == canon.FP8 && h > 1 {
		rows = (rows + h - 1) / h * h
	}
	var values []float32
	for first := 0; first < src.Rows; first += rows {
		wide, err := canon.Dequantised(src.Band(first, min(rows, src.Rows-first)))
		if err != nil {
			return err
		}
		n := len(wide.Codes) / 4
		values = slices.Grow(values[:0], n)[:n]
		if _, err := binary.Decode(wide.Codes, binary.LittleEndian, values); err != nil {
			return err
		}
		if err := f(first, values); err != nil {
			return err
		}
	}
	return nil
}

// finish writes what stands beside the records.
func finish(source *weights.Checkpoint, spec *model.Spec, items []model.Item, leftOut []string, w *weights.ContainerWriter, options string) (*Report, error) {
	report := &Report{Source: source.Hash(), Options: options}
	kinds := map[string]bool{}
	var sums, counts [2]float64 // experts, others
	for i, note := range w.Notes() {
		var lines []Tensor
		if err := json.Unmarshal(note, &lines); err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		for _, t := range lines {
			report.Bytes += t.Bytes
			if t.RMS > report.WorstRMS {
				report.WorstRMS, report.Worst = t.RMS, t.Name
			}
			which := 1
			if items[i].Expert >= 0 {
				which = 0
			}
			if items[i].Kind != model.VectorItem {
				kinds[t.To] = true
				sums[which], counts[which] = sums[which]+t.RMS, counts[which]+1
			}
		}
		report.Tensors = append(report.Tensors, lines...)
	}
	report.ExpertRMS, report.DenseRMS = sums[0]/max(counts[0], 1), sums[1]/max(counts[1], 1)
	report.LeftOut = leftOut
	var numerics string
	report.NumericsID, numerics = model.Numerics("int8", slices.Sorted(maps.Keys(kinds)), "f16")
	text, err := json.MarshalIndent(report, "", " ")
	if err != nil {
		return nil, err
	}
	sides := map[string][]byte{"config.json": source.Config(), ReportName: append(text, '\n')}
	for _, name := range sideFiles {
		data, err := source.File(name, maxSideFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		sides[name] = data
	}
	return report, w.Finish(map[string]string{
		"architecture": spec.Architecture, "source": source.Hash(), "options": options, "numerics": numerics, "numerics_id": report.NumericsID,
	}, sides)
}

// Speed follows a progress for a line that says how fast it goes and how long it will take.
type Speed struct {
	start time.Time
	first int64
}

// Line is the rate in weights and the time left, "" before anything is known.
func (s *Speed) Line(done, total int64) string {
	now := time.Now()
	if s.start.IsZero() {
		s.start, s.first = now, done
		return ""
	}
	seconds := now.Sub(s.start).Seconds()
	if done <= s.first || seconds < 0.5 {
		return ""
	}
	rate := float64(done-s.first) / seconds
	left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second)
	return fmt.Sprintf("%.0f M weights/s, %s left", rate/1e6, left)
}
