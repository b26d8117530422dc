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

// compressed is a quantization_config of compressed-tensors whose activations faster kernels would quantise.
func compressed(format, weights string) string {
	return fmt.Sprintf(`{"quant_method":"compressed-tensors","format":%q,"ignore":["lm_head","re:.*gate$"],"config_groups":{"group_0":{"targets":["Linear"],"weights":{%s},"input_activations":{"num_bits":8,"type":"float","dynamic":true,"strategy":"token"}}}}`, format, weights)
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
		{"the longer name of the form", `{"quant_method":"fp8","fmt":"float8_e4m3fn","weight_block_size":[128,128],"modules_to_not_convert":["lm_head"]}`, "m.weight_scale_inv", "F32", "[1,1]", floats(3), slices.Repeat([]float32{3}, 15)},
		{"rows of fbgemm", `{"quant_method":"fbgemm_fp8","activation_scale_ub":1200.0}`, "m.weight_scale", "F32", "[3,1]", floats(1, 2, 3), []float32{1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3}},
		{"rows of compressed-tensors", compressed("float-quantized", `"num_bits":8,"type":"float","strategy":"channel","symmetric":true`), "m.weight_scale", "BF16", "[3,1]", []byte{0x80, 0x3f, 0, 0x40, 0x40, 0x40}, []float32{1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3}},
		{"a matrix of compressed-tensors", compressed("naive-quantized", `"num_bits":8,"type":"float","strategy":"tensor","symmetric":true`), "m.weight_scale", "F32", "[1]", floats(5), slices.Repeat([]float32{5}, 15)},
		{"blocks of compressed-tensors", compressed("float-quantized", `"num_bits":8,"type":"float","strategy":"block","block_structure":[2,3],"symmetric":true`), "m.weight_scale", "F32", "[2,2]", floats(1, 2, 3, 4), []float32{1, 1, 1, 2, 2, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4}},
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
		{two, "m.weight_scale_inv", "F32", "[4]", floats(1, 2, 3, 4), "need [2 2]"},
		{two, "m.weight_scale_inv", "I8", "[2,2]", []byte{1, 2, 3, 4}, "scales of type I8"},
		{two, "m.weight_scale_inv", "F32", "[2,2]", words(0x3f800000, 0x7f800000, 0, 0), "scale 1 is not finite"},
		{compressed("float-quantized", `"num_bits":8,"type":"float","strategy":"channel"`), "m.weight_scale", "F32", "[2,2]", floats(1, 2, 3, 4), "need [3 1]"},
		{strings.Replace(compressed("float-quantized", `"num_bits":8,"type":"float","strategy":"channel"`), "lm_head", "m", 1), "m.weight_scale", "F32", "[3]", floats(1, 2, 3), "no group of quantization_config claims it"},
		{compressed("int-quantized", `"num_bits":8,"type":"int","strategy":"channel"`), "m.weight_scale", "F32", "[3]", floats(1, 2, 3), "no group of compressed-tensors in FP8"},
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

func TestEightBitValuesOneByOneAreRead(t *testing.T) {
	header := `{"m.weight":{"dtype":"I8","shape":[2,3],"data_offsets":[0,6]},"m.weight_scale":{"dtype":"F32","shape":[2,1],"data_offsets":[6,14]}}`
	data := append([]byte{1, 0xff, 0x7f, 0x80, 0, 2}, floats(1, 0.5)...)
	for format, want := range map[string]string{
		compressed("int-quantized", `"num_bits":8,"type":"int","strategy":"channel","symmetric":true`):   "",
		compressed("naive-quantized", `"num_bits":8,"type":"int","strategy":"channel","symmetric":true`): "",
		compressed("int-quantized", `"num_bits":8,"type":"int","strategy":"channel","symmetric":false`):  "zero points", // whether or not they are stored
		compressed("float-quantized", `"num_bits":8,"type":"float","strategy":"channel"`):                "the configuration gives",
	} {
		c, err := Open(folder(t, map[string][]byte{"config.json": []byte(`{"quantization_config":` + format + `}`), "model.safetensors": safetensors(header, data)}))
		if err != nil {
			t.Fatal(err)
		}
		source, err := c.Source("m", 2, 3, new(Scratch))
		switch {
		case want != "":
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		case err != nil:
			t.Error(err)
		default:
			if got := values(t, source); !slices.Equal(got, []float32{1, -1, 127, -64, 0, 1}) {
				t.Errorf("got %v", got)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
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
