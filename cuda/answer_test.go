//go:build cuda

package cuda

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"covey/engine"
	"covey/engine/canon"
)

// folder is a tiny checkpoint that an engine opens: with a tokenizer, whatever that makes of its tokens.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(oracles, "olmoe"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), must(os.ReadFile(filepath.Join(bundled, "tokenizer.json"))), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func serve(t *testing.T, dir string, b canon.Backend) *engine.Engine {
	t.Helper()
	eng, err := engine.Open(t.Context(), engine.Config{Dir: dir, Threads: 1, Context: 128, KVTokens: 256, BatchRows: 8, Sequences: 2, Backend: b}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
	})
	return eng
}

// ask is the hash of an answer: a prompt in two chunks, and tokens after it.
func ask(eng *engine.Engine) (string, error) {
	stream, err := eng.Submit(context.Background(), engine.Request{Prompt: []int32{7, 90, 3, 44, 15, 100, 2, 61, 33, 9, 12}, MaxTokens: 4, IgnoreEOS: true, Logprobs: -1})
	if err != nil {
		return "", err
	}
	for {
		if _, err := stream.Next(context.Background()); errors.Is(err, io.EOF) {
			return stream.Result().Hash, stream.Result().Err
		} else if err != nil {
			return "", err
		}
	}
}

// Whichever driver call of an answer fails, a running engine gives the same answer or an error that names the call, and answers
// the next request; by graphs, whose calls are few, and by single launches.
func TestAnEngineOutlivesFailingCalls(t *testing.T) {
	dir := folder(t)
	want := must(ask(serve(t, dir, canon.CPU)))
	defer FailAfter(0)
	for _, o := range []Options{{}, {Launches: true}} {
		eng := serve(t, dir, must(Open(0, o)))
		for range 2 { // plans, then graphs
			if got := must(ask(eng)); got != want {
				t.Fatalf("%+v: hash %.8s, the CPU's is %.8s", o, got, want)
			}
		}
		before := Calls()
		must(ask(eng))
		calls, stride, same := Calls()-before, int64(1), 0
		if o.Launches && !realDevice() {
			stride = 89
		}
		for n := int64(1); n <= calls; n += stride {
			FailAfter(n)
			got, err := ask(eng)
			FailAfter(0)
			if e := (*Error)(nil); err != nil && !(errors.As(err, &e) && e.Injected && e.Call != "") {
				t.Errorf("%+v, call %d of %d: %v", o, n, calls, err)
			} else if err == nil && got != want {
				t.Errorf("%+v, call %d of %d: hash %.8s, the CPU's is %.8s", o, n, calls, got, want)
			} else if err == nil {
				same++
			}
		}
		if got := must(ask(eng)); got != want {
			t.Errorf("%+v, afterwards: hash %.8s, the CPU's is %.8s", o, got, want)
		}
		t.Logf("%+v: %d calls, every %dth made to fail, %d failures made good", o, calls, stride, same)
		if same == 0 {
			t.Errorf("%+v: no failure was made good", o)
		}
	}
}

// When the device dies, answers go on without it: the same tokens, from the CPU.
func TestAnEngineOutlivesItsDevice(t *testing.T) {
	emulatedOnly(t)
	dir := folder(t)
	want := must(ask(serve(t, dir, canon.CPU)))
	eng := serve(t, dir, must(Open(0, Options{})))
	if got := must(ask(eng)); got != want || eng.Stats().DeviceLost {
		t.Fatalf("hash %.8s, the CPU's is %.8s; lost %v", got, want, eng.Stats().DeviceLost)
	}
	t.Setenv("COVEY_FAKE_ERROR", "719")
	if got := must(ask(eng)); got != want || !eng.Stats().DeviceLost {
		t.Errorf("on a dead device: hash %.8s, the CPU's is %.8s; lost %v", got, want, eng.Stats().DeviceLost)
	}
}
