package weights

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// blocks opens a folder whose one module m is [3, 5] in FP8: every code is 0x38 (1.0), so that values show their scales.
func blocks(t *testing.T, method, scaleName, scaleType, scaleShape string, scales []byte) *Checkpoint {
	t.Helper()
	data := append(slices.Repeat([]byte{0x38}, 15), scales...)
	header := fmt.Sprintf(`{"m.weight":{"dtype":"F8_E4M3","shape":[3,5],"data_offsets":[0,15]},%q:{"dtype":%q,"shape":%s,"data_offsets":[15,%d]}}`, scaleName, scaleType, scaleShape, len(data))
	c, err := Open(folder(t, map[string][]byte{"config.json": []byte(`{"quantization_config":` + method + `}`), "model.safetensors": safetensors(header, data)}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestFP8BlocksHaveTheConfiguredSizeAndMayBeRagged(t *testing.T) {
	const two = `{"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[2,3]}`
	for _, test := range []struct {
		name, method, scale, kind, shape string
		scales                           []byte
		want                             []float32
	}{
		{"blocks", two, "m.weight_scale_inv", "F32", "[2,2]", floats(1, 2, 3, 4), []float32{1, 1, 1, 2, 2, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4}},
		{"short name", two, "m.scale", "F32", "[2,2]", floats(1, 2, 3, 4), []float32{1, 1, 1, 2, 2, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4}},
		{"E8M0 scales", two, "m.scale", "F8_E8M0", "[2,2]", []byte{127, 128, 126, 130}, []float32{1, 1, 1, 2, 2, 1, 1, 1, 2, 2, .5, .5, .5, 8, 8}},
		{"one block", `{"quant_method":"fp8","weight_block_size":[128,128]}`, "m.weight_scale_inv", "F32", "[1,1]", floats(3), slices.Repeat([]float32{3}, 15)},
		{"one scale", `{"quant_method":"fp8","weight_block_size":null}`, "m.weight_scale_inv", "F32", "[]", floats(5), slices.Repeat([]float32{5}, 15)},
	} {
		source, err := blocks(t, test.method, test.scale, test.kind, test.shape, test.scales).Source("m", 3, 5, new(Scratch))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if got := values(t, source); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

func TestFP8ThatDoesNotFitIsRefused(t *testing.T) {
	const two = `{"quant_method":"fp8","weight_block_size":[2,3]}`
	for _, test := range []struct {
		method, scale, kind, shape string
		scales                     []byte
		want                       string
	}{
		{two, "m.weight_scale_inv", "F32", "[2,1]", floats(1, 2), "blocks of [2 3] in [3 5] need [2 2]"},
		{two, "n.weight_scale_inv", "F32", "[2,2]", floats(1, 2, 3, 4), "F8_E4M3 without m.weight_scale_inv"},
		{two, "m.weight_scale_inv", "I8", "[2,2]", []byte{1, 2, 3, 4}, "scales of type I8"},
		{two, "m.weight_scale_inv", "F32", "[2,2]", words(0x3f800000, 0x7f800000, 0, 0), "scale 1 is not finite"},
		{`null`, "m.weight_scale_inv", "F32", "[2,2]", floats(1, 2, 3, 4), "no quantization_config of quant_method fp8"},
	} {
		_, err := blocks(t, test.method, test.scale, test.kind, test.shape, test.scales).Source("m", 3, 5, new(Scratch))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %s: %v, want %q", test.scale, test.shape, err, test.want)
		}
	}
	for _, method := range []string{`{"quant_method":"fp8","weight_block_size":[0,128]}`, `{"quant_method":"fp8","weight_block_size":[128]}`, `{"quant_method":"fp8","fmt":"e5m2"}`, `{"quant_method":"fp8","weight_block_size":"x"}`} {
		if _, err := Open(folder(t, map[string][]byte{"config.json": []byte(`{"quantization_config":` + method + `}`), "model.safetensors": safetensors(`{}`, nil)})); err == nil || !strings.Contains(err.Error(), "quantization_config: fp8: ") {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// FP4 experts: two e2m1 codes a byte, the low nibble first, one power of two for 32 inputs.
func TestFP4IsReadWithItsPowersOfTwo(t *testing.T) {
	data := append(slices.Repeat([]byte{0x21}, 16), slices.Repeat([]byte{0x9f}, 16)...) // 0.5 and 1; -6 and -0.5
	data = append(data, 127, 129)
	header := `{"m.weight":{"dtype":"I8","shape":[1,32],"data_offsets":[0,32]},"m.scale":{"dtype":"F8_E8M0","shape":[1,2],"data_offsets":[32,34]}}`
	c, err := Open(folder(t, map[string][]byte{"config.json": []byte(`{}`), "model.safetensors": safetensors(header, data)}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	source, err := c.Source("m", 1, 64, new(Scratch))
	if err != nil {
		t.Fatal(err)
	}
	want := append(slices.Repeat([]float32{.5, 1}, 16), slices.Repeat([]float32{-24, -2}, 16)...)
	if got := values(t, source); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := c.Source("m", 1, 32, new(Scratch)); err == nil || !strings.Contains(err.Error(), "FP4 of [1 32] needs [1 16]") {
		t.Errorf("another width: %v", err)
	}
}
