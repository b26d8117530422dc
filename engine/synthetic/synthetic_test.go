package synthetic_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"covey/engine"
	"covey/engine/synthetic"
)

// Each architecture and form loads and answers with finite logits, and its bytes are what Bytes promised.
func TestCheckpointsLoadAndAnswer(t *testing.T) {
	for _, architecture := range []string{"glm4_moe", "qwen3_moe", "olmoe"} {
		for _, form := range synthetic.Forms {
			s, err := synthetic.Preset("tiny")
			if err != nil {
				t.Fatal(err)
			}
			s.Architecture, s.Form = architecture, form
			if architecture != "glm4_moe" {
				s.Dense, s.Shared = 0, 0
			}
			t.Run(architecture+"/"+string(form), func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "model")
				if err := synthetic.Write(context.Background(), dir, s, nil); err != nil {
					t.Fatal(err)
				}
				e, err := engine.Open(context.Background(), engine.Config{Dir: dir, Threads: 1, Context: 128}, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				stream, err := e.Submit(context.Background(), engine.Request{Prompt: []int32{72, 105, 300}, MaxTokens: 4, IgnoreEOS: true, Logprobs: -1})
				if err != nil {
					t.Fatal(err)
				}
				for err == nil {
					_, err = stream.Next(context.Background())
				}
				if !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				if r := stream.Result(); r.Err != nil || len(r.Tokens) != 4 {
					t.Fatal(r.Err, r.Tokens)
				}
			})
		}
	}
}

func TestEqualSeedsGiveEqualBytes(t *testing.T) {
	read := func(seed uint64) string {
		s, _ := synthetic.Preset("tiny")
		s.Form, s.Seed = synthetic.Int4, seed
		dir := filepath.Join(t.TempDir(), "model")
		if err := synthetic.Write(context.Background(), dir, s, nil); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, "model-00001-of-00001.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(b)) < s.Bytes() || int64(len(b)) > s.Bytes()+1<<16 {
			t.Errorf("%d bytes, %d of them weights", len(b), s.Bytes())
		}
		return string(b)
	}
	a := read(1)
	if read(1) != a {
		t.Error("one seed gave two checkpoints")
	}
	if read(2) == a {
		t.Error("two seeds gave one checkpoint")
	}
}

func TestImpossibleShapesAreRefused(t *testing.T) {
	for want, change := range map[string]func(*synthetic.Shape){
		"architecture \"gpt2\"": func(s *synthetic.Shape) { s.Architecture = "gpt2" },
		"form \"int3\"":         func(s *synthetic.Shape) { s.Form = "int3" },
		"9 of 8 experts":        func(s *synthetic.Shape) { s.TopK = 9 },
		"leave none":            func(s *synthetic.Shape) { s.Dense = 3 },
		"vocab is 3":            func(s *synthetic.Shape) { s.Vocab = 3 },
	} {
		s, _ := synthetic.Preset("tiny")
		change(&s)
		if err := synthetic.Write(context.Background(), filepath.Join(t.TempDir(), "m"), s, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if s.Bytes() != 0 {
			t.Errorf("%s: %d bytes", want, s.Bytes())
		}
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := synthetic.Preset("tiny")
	if err := synthetic.Write(context.Background(), full, s, nil); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("writing into a full folder: %v", err)
	}
}
