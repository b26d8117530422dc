package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A stand-in for llama-bench: what it prints is what that program prints, shortened.
func TestBenchPeerReportsPairs(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "llama-bench")
	script := `#!/bin/sh
echo "$@" >> "$0.calls"
echo '[{"n_prompt": 16, "n_gen": 0, "avg_ts": 50.5}, {"n_prompt": 0, "n_gen": 4, "avg_ts": 0.25}]'
`
	if err := os.WriteFile(binary, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	args := []string{"bench", "peer", "--binary", binary, "--gguf", "x.gguf", "--model", testModel, "--context", "512", "--threads", "1", "--runs", "2", "--prompt", "16", "--tokens", "4", "--json"}
	code, out, stderr := covey(t, nil, "", args...)
	var r peerReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		t.Fatalf("exit code %d, error %v, stderr %s", code, err, stderr)
	}
	if len(r.Pairs) != 2 || r.PeerDecode != 0.25 || r.PeerPrefill != 50.5 || r.Decode <= 0 || r.Ratios[0] != median([]float64{r.Pairs[0].Decode / 0.25, r.Pairs[1].Decode / 0.25}) {
		t.Errorf("%s", out)
	}
	if calls, _ := os.ReadFile(binary + ".calls"); strings.Count(string(calls), "-m x.gguf -t 1 -p 16 -n 4 -r 1 -o json") != 3 { // one warms up
		t.Errorf("calls:\n%s", calls)
	}
}

func TestPeerSpeedsNeedBoth(t *testing.T) {
	for _, out := range []string{"", "nothing", `[{"n_prompt": 16, "n_gen": 0, "avg_ts": 50.5}]`, `[{"n_prompt": 16, "n_gen": 4, "avg_ts": 50.5}]`} {
		if p, d, err := peerSpeeds([]byte(out)); err == nil {
			t.Errorf("%q gives %v and %v", out, p, d)
		}
	}
}
