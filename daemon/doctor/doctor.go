// Package doctor examines whether this machine can run Covey as configured: processor, kernels, memory, disk, data
// folder, port and model. It changes nothing that outlasts it, opens no weights, and each finding that is not well
// names its remedy.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"covey/engine/canon"
	"covey/engine/memory"
	"covey/engine/model"
	"covey/engine/tokenizer"
	"covey/engine/weights"
)

// Status of a finding.
type Status string

// Statuses. A Warn works with a drawback, a Fail keeps the daemon from serving.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Finding is one thing that was looked at.
type Finding struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"` // the remedy, unless all is well
}

// Options say what the daemon would be started with.
type Options struct {
	Addr    string
	Data    string // "" = none could be chosen
	Model   string // "" = none was found
	ISA     string
	Threads int
}

// Limits below which a finding is not well.
const (
	leastDisk     = 64 << 20 // bytes free in the data folder
	wantedDisk    = 1 << 30
	leastFiles    = 256 // open files
	probeTimeout  = time.Second
	memoryReserve = 512 << 20 // for everything but weights: KV cache, buffers, pages of the store
)

// Examine looks at everything, in the order in which a start would need it. It takes well under a second.
func Examine(ctx context.Context, o Options) []Finding {
	checkpoint, size := examineModel(o)
	return []Finding{
		examineProcessor(o), examineKernels(o), examineMemory(memory.Read(os.DirFS("/")), size), examineFiles(),
		examineData(o.Data), examineDisk(o.Data), examinePort(ctx, o.Addr), checkpoint,
	}
}

// Worst is the gravest status among findings.
func Worst(findings []Finding) Status {
	worst := OK
	for _, f := range findings {
		if f.Status == Fail || f.Status == Warn && worst == OK {
			worst = f.Status
		}
	}
	return worst
}

func examineProcessor(o Options) Finding {
	f := Finding{Name: "processor", Status: OK}
	name, features := processor(os.DirFS("/"))
	f.Detail = fmt.Sprintf("%s, %d CPUs usable", name, runtime.NumCPU())
	if len(features) > 0 {
		f.Detail += ", " + strings.Join(features, " ")
	}
	if o.Threads > runtime.NumCPU() {
		f.Status, f.Hint = Warn, fmt.Sprintf("--threads %d is more than there are CPUs: steps will wait for each other", o.Threads)
	}
	return f
}

func examineKernels(o Options) Finding {
	f := Finding{Name: "kernels", Status: OK}
	var names []string
	for _, isa := range canon.Supported() {
		names = append(names, isa.String())
	}
	isa, err := canon.Resolve(o.ISA)
	if err != nil {
		return Finding{Name: f.Name, Status: Fail, Detail: err.Error(), Hint: "leave --isa out to use the best family"}
	}
	f.Detail = fmt.Sprintf("%s in use, built and supported: %s; numerics rules %d", isa, strings.Join(names, " "), canon.RuleVersion)
	if isa == canon.Portable {
		f.Status, f.Hint = Warn, "plain C kernels are many times slower; a processor with AVX2 and FMA is wanted"
	}
	return f
}

func examineMemory(m memory.Limits, weights int64) Finding {
	f := Finding{Name: "memory", Status: OK}
	if m.Total == 0 {
		f.Detail = "this system does not say how much memory there is"
		return f
	}
	f.Detail = fmt.Sprintf("%s available of %s", bytes(m.Available), bytes(m.Total))
	if m.Grouped {
		f.Detail += " (limit of the control group)"
	}
	switch need := weights + memoryReserve; {
	case weights == 0:
	case m.Total < weights:
		f.Status, f.Hint = Fail, fmt.Sprintf("the weights take %s: choose a smaller model or raise the limit", bytes(weights))
	case m.Available < need:
		f.Status, f.Hint = Warn, fmt.Sprintf("about %s are wanted for this model: close other programs or raise the limit", bytes(need))
	}
	return f
}

func examineFiles() Finding {
	f := Finding{Name: "open files", Status: OK}
	n, ok := fileLimit()
	switch {
	case !ok:
		f.Detail = "no limit is known on this system"
	case n < leastFiles:
		f.Status, f.Detail, f.Hint = Warn, fmt.Sprintf("at most %d", n), fmt.Sprintf("raise the limit (ulimit -n %d): every connection takes one", 4*leastFiles)
	default:
		f.Detail = fmt.Sprintf("at most %d", n)
	}
	return f
}

func examineData(dir string) Finding {
	f := Finding{Name: "data folder", Status: OK, Detail: dir}
	fail := func(detail, hint string) Finding {
		return Finding{Name: f.Name, Status: Fail, Detail: detail, Hint: hint}
	}
	if dir == "" {
		return fail("this user has no home folder", "choose a folder with --data DIR")
	}
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		parent := existingParent(dir)
		if !writable(parent) {
			return fail(fmt.Sprintf("%s does not exist, and %s cannot be written", dir, parent), "choose another folder with --data DIR")
		}
		f.Detail += " (will be made at the first start)"
		return f
	}
	if err != nil {
		return fail(err.Error(), "choose another folder with --data DIR")
	}
	if !info.IsDir() {
		return fail(dir+" is not a folder", "move the file away, or choose a folder with --data DIR")
	}
	if !writable(dir) {
		return fail(dir+" cannot be written", "make it writable for this user, or choose another folder with --data DIR")
	}
	if secret, err := os.Stat(filepath.Join(dir, "token")); err == nil && runtime.GOOS != "windows" && secret.Mode().Perm()&0o077 != 0 {
		f.Status, f.Hint = Warn, fmt.Sprintf("other users may read the token: chmod 600 %s", filepath.Join(dir, "token"))
	} else if remedy := Exposed(dir); remedy != "" {
		f.Status, f.Hint = Warn, "other users may put files in the place of the token and the history: "+remedy
	}
	return f
}

// Exposed is the command that keeps other users from changing a data folder; "" where they cannot, or on a system without
// such permissions.
func Exposed(dir string) string {
	info, err := os.Stat(dir)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o022 == 0 {
		return ""
	}
	return "chmod go-w " + dir
}

func examineDisk(dir string) Finding {
	f := Finding{Name: "disk", Status: OK}
	if dir == "" {
		dir = "."
	}
	free, ok := diskFree(existingParent(dir))
	if !ok {
		f.Detail = "this system does not say how much is free"
		return f
	}
	f.Detail = bytes(free) + " free for the data folder"
	switch {
	case free < leastDisk:
		f.Status, f.Hint = Fail, "free some space: history could not be written"
	case free < wantedDisk:
		f.Status, f.Hint = Warn, "free some space: history grows by about a megabyte for every ten thousand tokens"
	}
	return f
}

func examinePort(ctx context.Context, addr string) Finding {
	f := Finding{Name: "address", Status: OK, Detail: addr + " is free"}
	l, err := net.Listen("tcp", addr)
	if err == nil {
		l.Close()
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/healthz", nil); err == nil {
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
			if strings.HasPrefix(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") {
				return Finding{Name: f.Name, Status: Warn, Detail: "a Covey daemon answers at " + addr, Hint: "use it (covey token prints its token), stop it, or start another with --addr and --data"}
			}
		}
	}
	return Finding{Name: f.Name, Status: Fail, Detail: err.Error(), Hint: "choose another with --addr HOST:PORT; port 0 takes any free one"}
}

// examineModel reads everything of the model but the weights. size is the bytes of its tensors.
func examineModel(o Options) (f Finding, size int64) {
	f = Finding{Name: "model", Status: OK}
	fail := func(err error, hint string) (Finding, int64) {
		return Finding{Name: f.Name, Status: Fail, Detail: err.Error(), Hint: hint}, 0
	}
	if o.Model == "" {
		return fail(errors.New("no model was named and the bundled one is not here"), "choose a folder with --model DIR")
	}
	checkpoint, err := weights.Open(o.Model)
	if err != nil {
		return fail(err, "choose a folder with config.json, tokenizer.json and safetensors files, or a GGUF file, or fetch the broken file again")
	}
	defer checkpoint.Close()
	spec, err := model.ReadSpec(checkpoint)
	if err != nil {
		return fail(err, "choose a model of a supported architecture")
	}
	if _, err := tokenizer.LoadFS(checkpoint.FS(), "tokenizer.json"); err != nil {
		return fail(err, "fetch the model's tokenizer.json again")
	}
	size = checkpoint.Bytes()
	f.Detail = fmt.Sprintf("%s: %s, %d layers, %s of weights, context %d", filepath.Base(o.Model), spec.Architecture, spec.Layers, bytes(size), spec.Context)
	return f, size
}

// existingParent is dir, or the nearest folder above it that exists.
func existingParent(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "."
	}
	for {
		if _, err := os.Stat(dir); err == nil || filepath.Dir(dir) == dir {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// writable says whether a file can be made in dir, by making one and removing it.
func writable(dir string) bool {
	f, err := os.CreateTemp(dir, ".covey-doctor-*")
	if err != nil {
		return false
	}
	f.Close()
	return os.Remove(f.Name()) == nil
}

// bytes is a byte count for people.
func bytes(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", n)
}
