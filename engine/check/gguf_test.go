package check

import (
	"path/filepath"
	"testing"
)

// The files of testdata/gguf were written by llama.cpp's gguf package from the oracles' checkpoints. In F16 the reference
// stays the oracle. In Q4_0 it is llama.cpp's own forward of the same file, which quantises activations in another way:
// f32 activations are nearer to the truth than either.
func TestGGUFAgreesWithItsReferences(t *testing.T) {
	for _, test := range []struct {
		name, activations string
		exact             bool
		kl                float64 // nats a row at most
	}{
		{"glm4_moe_f16", "f32", true, 1e-9},
		{"glm4_moe_f16", "int8", true, 1e-9},
		{"qwen3_moe_q4_0", "f32", false, 0.005},
		{"qwen3_moe_q4_0", "int8", false, 0.01},
	} {
		r, err := Oracle(t.Context(), filepath.Join("testdata/gguf", test.name), test.activations)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		t.Logf("%s, %s: %+v", test.name, test.activations, r)
		if test.exact && (!r.Pass || r.ArgmaxAgree != 1) || r.KLMean > test.kl || r.ArgmaxAgree < 0.95 {
			t.Errorf("%s, %s: %+v", test.name, test.activations, r)
		}
	}
}
