package weights

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// integers is a matrix [8, 64] of 4-bit codes with two groups of 32 inputs, a zero point and a scale for each of them, and
// the values that they stand for.
type integers struct{ codes, zeros, scales, values [][]int }

func someIntegers() integers {
	const rows, cols = 8, 64
	var m integers
	for r := range rows {
		codes, values := make([]int, cols), make([]int, cols)
		zeros, scales := []int{(3*r + 1) % 16, (5*r + 2) % 16}, []int{r + 1, r + 9}
		for i := range cols {
			codes[i] = (7*r + 3*i + i*i/5) % 16
			values[i] = (codes[i] - zeros[i/32]) * scales[i/32]
		}
		m.codes, m.values = append(m.codes, codes), append(m.values, values)
		m.zeros, m.scales = append(m.zeros, zeros), append(m.scales, scales)
	}
	return m
}

// tensorFile writes tensors, in the order given, as one safetensors file.
func tensorFile(tensors ...any) []byte {
	var header []string
	var data []byte
	for i := 0; i < len(tensors); i += 4 {
		content := tensors[i+3].([]byte)
		shape := strings.ReplaceAll(fmt.Sprint(tensors[i+2].([]int)), " ", ",")
		header = append(header, fmt.Sprintf(`"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, tensors[i], tensors[i+1], shape, len(data), len(data)+len(content)))
		data = append(data, content...)
	}
	return safetensors(`{`+strings.Join(header, ",")+`}`, data)
}

// packed makes words of eight values each: value i of a word, in bits 4i.., is at(word, i).
func packed(words int, at func(word, i int) int) []byte {
	var out []byte
	for w := range words {
		word := uint32(0)
		for i := range 8 {
			word |= uint32(at(w, i)) << (4 * i)
		}
		out = binary.LittleEndian.AppendUint32(out, word)
	}
	return out
}

// transposedScales gives scales [groups, rows] as F32.
func (m integers) transposedScales() []byte {
	var list []float32
	for g := range 2 {
		for r := range 8 {
			list = append(list, float32(m.scales[r][g]))
		}
	}
	return floats(list...)
}

// check reads module "m" of a folder and compares.
func (m integers) check(t *testing.T, name string, config string, file []byte) {
	t.Helper()
	c, err := Open(folder(t, map[string][]byte{"config.json": []byte(config), "model.safetensors": file}))
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	defer c.Close()
	if !c.HasModule("m") {
		t.Errorf("%s: the module is not seen", name)
	}
	got := moduleValues(t, c, "m", 8, 64)
	for r, row := range m.values {
		for i, want := range row {
			if got[r*64+i] != float32(want) {
				t.Errorf("%s: weight [%d, %d] is %v, want %d", name, r, i, got[r*64+i], want)
				return
			}
		}
	}
}

func TestAsymmetricPackedIntegersAreRead(t *testing.T) {
	m := someIntegers()
	weights := packed(8*8, func(w, i int) int { return m.codes[w/8][w%8*8+i] })
	zeros := packed(2, func(w, i int) int { return m.zeros[i][w] }) // [1, groups], along the rows
	var scales []float32
	for _, s := range m.scales {
		scales = append(scales, float32(s[0]), float32(s[1]))
	}
	shape := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 8), 64)
	tensors := []any{"m.weight_packed", "I32", []int{8, 8}, weights, "m.weight_scale", "F32", []int{8, 2}, floats(scales...), "m.weight_shape", "I64", []int{2}, shape}
	asymmetric := string(quantised(strings.Replace(int4group, "true", "false", 1)))
	whole := tensorFile(append(slices.Clone(tensors), "m.weight_zero_point", "I32", []int{1, 2}, zeros)...)
	m.check(t, "asymmetric", asymmetric, whole)

	for _, test := range []struct {
		name, config string
		file         []byte
		want         string
	}{
		{"no zero points", asymmetric, tensorFile(tensors...), `tensor "m.weight_zero_point": missing, but config_groups.group_0 is asymmetric`},
		{"zero points of a symmetric group", string(quantised(int4group)), whole, "zero points, although config_groups.group_0 is symmetric"},
		{"zero points of another shape", asymmetric, tensorFile(append(slices.Clone(tensors), "m.weight_zero_point", "I32", []int{2, 1}, zeros)...), "need I32 [1 2]"},
	} {
		c, err := Open(folder(t, map[string][]byte{"config.json": []byte(test.config), "model.safetensors": test.file}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Source("m", 8, 64, new(Scratch)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func TestGPTQIsRead(t *testing.T) {
	m := someIntegers()
	weights := packed(8*8, func(w, i int) int { return m.codes[w%8][w/8*8+i] }) // [cols/8, rows], along the inputs
	for _, test := range []struct {
		format string
		less   int
	}{{`"gptq"`, 1}, {`"gptq_v2"`, 0}} {
		zeros := packed(2, func(w, i int) int { return (m.zeros[i][w] - test.less) & 15 })
		file := tensorFile("m.qweight", "I32", []int{8, 8}, weights, "m.qzeros", "I32", []int{2, 1}, zeros, "m.scales", "F32", []int{2, 8}, m.transposedScales(),
			"m.g_idx", "I32", []int{64}, words(slices.Concat(slices.Repeat([]uint32{0}, 32), slices.Repeat([]uint32{1}, 32))...))
		config := `{"quantization_config":{"quant_method":"gptq","bits":4,"group_size":32,"desc_act":false,"sym":false,"checkpoint_format":` + test.format + `}}`
		m.check(t, test.format, config, file)

		permuted := tensorFile("m.qweight", "I32", []int{8, 8}, weights, "m.qzeros", "I32", []int{2, 1}, zeros, "m.scales", "F32", []int{2, 8}, m.transposedScales(),
			"m.g_idx", "I32", []int{64}, words(slices.Concat(slices.Repeat([]uint32{1}, 32), slices.Repeat([]uint32{0}, 32))...))
		c, err := Open(folder(t, map[string][]byte{"config.json": []byte(config), "model.safetensors": permuted}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Source("m", 8, 64, new(Scratch)); err == nil || !strings.Contains(err.Error(), "input 0 is in group 1: permuted inputs are not supported; use a checkpoint that was quantised without act-order") {
			t.Errorf("permuted inputs: %v", err)
		}
	}
}

func TestAutoAWQIsRead(t *testing.T) {
	m := someIntegers()
	order := [8]int{0, 2, 4, 6, 1, 3, 5, 7}
	weights := packed(64, func(w, i int) int { return m.codes[order[i]][w] }) // [cols, rows/8]
	zeros := packed(2, func(w, i int) int { return m.zeros[order[i]][w] })
	file := tensorFile("m.qweight", "I32", []int{64, 1}, weights, "m.qzeros", "I32", []int{2, 1}, zeros, "m.scales", "F32", []int{2, 8}, m.transposedScales())
	m.check(t, "awq", `{"quantization_config":{"quant_method":"awq","bits":4,"group_size":32,"version":"gemm","zero_point":true}}`, file)
}

func TestOtherColumnFormatsAreNamed(t *testing.T) {
	for config, want := range map[string]string{
		`"quant_method":"gptq","bits":3,"group_size":128`:                              "3-bit weights",
		`"quant_method":"gptq","bits":4`:                                               "group_size must be",
		`"quant_method":"gptq","bits":4,"group_size":48`:                               "group_size must be",
		`"quant_method":"gptq","bits":4,"group_size":128,"checkpoint_format":"marlin"`: `checkpoint_format "marlin"`,
		`"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"+:.*down.*":{}}`:  "bits that differ from module to module",
		`"quant_method":"awq","bits":4,"group_size":128,"version":"gemv"`:              `version "gemv"`,
		`"quant_method":"awq","bits":8,"group_size":128`:                               "8-bit weights",
	} {
		_, err := readScheme([]byte(`{"quantization_config":{` + config + `}}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
}
