package convert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"covey/engine/canon"
	"covey/engine/check"
	"covey/engine/model"
	"covey/engine/synthetic"
	"covey/engine/weights"
)

const oracles = "../check/testdata/oracles"

func open(t testing.TB, dir string) *weights.Checkpoint {
	t.Helper()
	c, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func converted(t testing.TB, source string, o Options) (string, *Report) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "container")
	report, err := Run(t.Context(), open(t, source), dir, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	return dir, report
}

// hashes are the logits' hashes of some prompts.
func hashes(t testing.TB, dir string, o model.Options) []string {
	t.Helper()
	c := open(t, dir)
	m, err := model.Load(t.Context(), c, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	random := rand.New(rand.NewPCG(1, 2))
	var prompts [][]int32
	for _, n := range []int{1, 40, 9} {
		p := make([]int32, n)
		for i := range p {
			p[i] = int32(random.IntN(m.Spec().Vocab))
		}
		prompts = append(prompts, p)
	}
	h, err := check.Hashes(t.Context(), m, prompts, 6, 2, 17)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestKeptWeightsComputeTheSameBits(t *testing.T) {
	dirs, err := filepath.Glob(oracles + "/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no oracles: %v", err)
	}
	for _, source := range dirs {
		dir, report := converted(t, source, Options{Experts: Keep, Dense: Keep, Group: 64})
		for _, o := range []model.Options{{KVTokens: 2048}, {KVTokens: 2048, Activations: "f32"}} {
			if a, b := hashes(t, source, o), hashes(t, dir, o); !slices.Equal(a, b) {
				t.Errorf("%s: the container computes something else", source)
			}
		}
		if report.WorstRMS != 0 {
			t.Errorf("%s: kept weights have an error of %g", source, report.WorstRMS)
		}
	}
}

// small is a synthetic checkpoint with room for several experts.
func small(t testing.TB, form synthetic.Form) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "source")
	shape, err := synthetic.Preset("tiny")
	if err != nil {
		t.Fatal(err)
	}
	shape.Form, shape.Layers, shape.Experts = form, 5, 12
	if err := synthetic.Write(t.Context(), dir, shape, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestExpertsOnDemandComputeTheSameBits(t *testing.T) {
	dir, _ := converted(t, small(t, synthetic.BF16), Options{Experts: Int4, Dense: Int8, Group: 32})
	o := model.Options{KVTokens: 2048, MaxRows: 4}
	want := hashes(t, dir, o)
	c := open(t, dir)
	const record, layers, experts = 4096, 4, 12
	for _, n := range []int64{4 * 2, layers * experts * 3 / 10, layers*experts - 1} { // one step's need, 30 %, nearly all
		o.ExpertMemory = n * record
		m, err := model.Load(t.Context(), c, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		info := m.Info()
		m.Close()
		if p, err := model.Place(open(t, dir), o); err != nil || !p.OnDemand || p.Slots != n || p.Record != record {
			t.Errorf("planned %+v, %v", p, err)
		}
		if int64(info.ExpertSlots) != n {
			t.Fatalf("%d experts fit in %d bytes, want %d", info.ExpertSlots, o.ExpertMemory, n)
		}
		if got := hashes(t, dir, o); !slices.Equal(got, want) {
			t.Errorf("with room for %d experts other logits came out", n)
		}
	}
	o.ExpertMemory = record * 7
	if _, err := model.Load(t.Context(), c, o, nil); !errors.Is(err, model.ErrMemory) || !strings.Contains(err.Error(), "MaxRows (4)") {
		t.Errorf("a cache below one step's need: %v", err)
	}
}

func TestEqualConversionsGiveEqualBytes(t *testing.T) {
	source := small(t, synthetic.BF16)
	files := func(workers int, split int64) map[string]string {
		dir, _ := converted(t, source, Options{Experts: Int4, Dense: Int8, Group: 64, Zeros: true, Workers: workers, Split: split})
		out := map[string]string{}
		for name, data := range all(t, dir) {
			out[name] = string(data)
		}
		return out
	}
	one, two := files(1, 1<<30), files(3, 1<<30)
	for name := range one {
		if one[name] != two[name] {
			t.Errorf("%s depends on the number of workers", name)
		}
	}
	if split := files(2, 64<<10); len(split) < len(one)+3 {
		t.Errorf("%d files of a split container, %d of a whole one", len(split), len(one))
	}
}

// all reads the files of a folder.
func all(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if out[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// The test program converts slowly when it is asked to, so that it can be killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("CONVERT_TO"); dir != "" {
		c, err := weights.Open(os.Getenv("CONVERT_FROM"))
		if err == nil {
			_, err = Run(context.Background(), c, dir, killed, func(int64, int64) { time.Sleep(20 * time.Millisecond) })
		}
		if err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var killed = Options{Experts: Int4, Dense: Int8, Group: 32, Split: 100 << 10, Sync: 50 * time.Millisecond}

func TestKilledConversionGoesOn(t *testing.T) {
	source := small(t, synthetic.BF16)
	whole, _ := converted(t, source, killed)
	dir := filepath.Join(t.TempDir(), "container")
	for range 2 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "CONVERT_FROM="+source, "CONVERT_TO="+dir)
		var text bytes.Buffer
		cmd.Stderr = &text
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for begun := size(dir); size(dir) == begun; { // until the journal has grown
			time.Sleep(time.Millisecond)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the conversion ended before it was killed")
		} else if text.Len() > 0 {
			t.Fatal(text.String())
		}
	}
	if _, err := weights.Open(dir); err == nil || !strings.Contains(err.Error(), "has not finished") {
		t.Errorf("half a container was opened: %v", err)
	}
	other := killed
	other.Group = 64
	if _, err := Run(t.Context(), open(t, source), dir, other, nil); !errors.Is(err, weights.ErrOtherConversion) {
		t.Errorf("another conversion went on: %v", err)
	}
	steps := 0
	if _, err := Run(t.Context(), open(t, source), dir, killed, func(int64, int64) { steps++ }); err != nil {
		t.Fatal(err)
	}
	_, items, _, err := model.Items(open(t, source))
	if err != nil {
		t.Fatal(err)
	}
	if steps >= len(items) {
		t.Errorf("%d of %d pieces were done again", steps, len(items))
	}
	got, want := all(t, dir), all(t, whole)
	for name := range want {
		if !bytes.Equal(got[name], want[name]) {
			t.Errorf("%s differs from that of a conversion that was not killed", name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
	if _, err := Run(t.Context(), open(t, source), dir, killed, nil); err == nil || !strings.Contains(err.Error(), "nothing is overwritten") {
		t.Errorf("a finished container was overwritten: %v", err)
	}
}

// size is the length of a journal once it is more than a header.
func size(dir string) int64 {
	info, err := os.Stat(filepath.Join(dir, "model.covey.partial"))
	if err != nil || info.Size() < 100 {
		return 0
	}
	return info.Size()
}

func TestCancelledConversionStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, open(t, small(t, synthetic.BF16)), filepath.Join(t.TempDir(), "c"), killed, func(int64, int64) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestGroupsThatNoProgramRunsAreRefused(t *testing.T) {
	for _, o := range []Options{{Experts: Int4, Dense: Keep, Group: 64}, {Experts: Keep, Dense: Int8, Group: 64}} {
		began, source, dir := false, open(t, small(t, synthetic.Int4)), filepath.Join(t.TempDir(), "c")
		_, err := Run(t.Context(), source, dir, o, func(int64, int64) { began = true })
		if err == nil || !strings.Contains(err.Error(), "choose the same group for both (--group 32)") || began {
			t.Errorf("experts %s, others %s, in groups of 64 beside kept ones of 32: %v, begun %t", o.Experts, o.Dense, err, began)
		}
		o.Group = 32
		if _, err := Run(t.Context(), source, dir, o, nil); err != nil {
			t.Errorf("experts %s, others %s, in groups of 32 as the refusal says, into the same folder: %v", o.Experts, o.Dense, err)
		}
	}
}

func TestReportSaysWhatEachWeightCost(t *testing.T) {
	dir, report := converted(t, small(t, synthetic.BF16), Options{Experts: Int4, Dense: Int8, Group: 32})
	text, err := os.ReadFile(filepath.Join(dir, ReportName))
	if err != nil {
		t.Fatal(err)
	}
	var stored Report
	if err := json.Unmarshal(text, &stored); err != nil || stored.ExpertRMS != report.ExpertRMS || len(stored.Tensors) != len(report.Tensors) {
		t.Errorf("%v: %+v", err, stored)
	}
	for _, line := range report.Tensors {
		var least, most float64
		switch line.To {
		case "int4 g32":
			least, most = 0.03, 0.1
		case "int8 g32":
			least, most = 0.002, 0.007
		}
		if line.RMS < least || line.RMS > most || line.Bytes == 0 {
			t.Errorf("%+v: want an error of %g to %g", line, least, most)
		}
	}
	if report.ExpertRMS < 0.03 || report.DenseRMS > 0.01 || !strings.Contains(report.Worst, "experts") {
		t.Errorf("experts %g, others %g, worst %s", report.ExpertRMS, report.DenseRMS, report.Worst)
	}
}

func TestDamageIsFound(t *testing.T) {
	dir, _ := converted(t, small(t, synthetic.BF16), Options{Experts: Int4, Dense: Keep, Group: 32})
	if v, err := weights.Verify(t.Context(), open(t, dir), true, nil); err != nil || v.Tensors == 0 {
		t.Fatalf("%+v, %v", v, err)
	}
	path := filepath.Join(dir, "data-00001.covey")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-4096*7] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = weights.Verify(t.Context(), open(t, dir), false, nil)
	var e *weights.FormatError
	if !errors.As(err, &e) || e.File != "data-00001.covey" || e.Tensor == "" || e.Offset < 4096 {
		t.Errorf("a flipped bit: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), bytes.Replace(must(os.ReadFile(filepath.Join(dir, "config.json"))), []byte("rms_norm_eps"), []byte("rms_norm_epz"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := weights.Verify(t.Context(), open(t, dir), false, nil); err == nil || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("another config.json: %v", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// What happens to the data while a model runs is an error of the step, and the model lives.
func TestChangedFilesFailTheStepOnly(t *testing.T) {
	dir, _ := converted(t, small(t, synthetic.BF16), Options{Experts: Int4, Dense: Int8, Group: 32})
	m, err := model.Load(t.Context(), open(t, dir), model.Options{KVTokens: 2048, MaxRows: 1, ExpertMemory: 2 * 4096}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	path := filepath.Join(dir, "data-00001.covey")
	info := must(os.Stat(path))
	step := func() error {
		_, err := m.Step(&model.Batch{Step: canon.Step{Tokens: []int32{3}, Positions: []int32{0}, Sequence: []int32{0}, Pages: [][]int32{{0}}, LogitRows: []int32{0}}})
		return err
	}
	if err := step(); err != nil {
		t.Fatal(err)
	}
	resident, shape := 0, m.Info().Shape
	for cell := range len(shape.Layers) * shape.Experts {
		if m.Resident(cell/shape.Experts, cell%shape.Experts) {
			resident++
		}
	}
	if resident != m.Info().ExpertSlots {
		t.Errorf("%d experts are said to be in memory, which has room for %d", resident, m.Info().ExpertSlots)
	}
	if err := os.Chtimes(path, time.Time{}, info.ModTime().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := step(); !errors.Is(err, weights.ErrChanged) || !strings.Contains(err.Error(), "data-00001.covey") {
		t.Errorf("a changed file: %v", err)
	}
	if err := os.Chtimes(path, time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := step(); err != nil {
		t.Errorf("the model did not recover: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "model.covey.partial")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the journal is left: %v", err)
	}
}
