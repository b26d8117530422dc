package weights

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// The container that these tests write follows its description alone: codes as U8 under the tensor's own name, scales in f32
// under NAME.qs.

// containerTensor is a matrix with its scales; nil scales = none.
type containerTensor struct {
	name   string
	codes  []byte
	scales []float32
}

// containerFile writes one file of a container, stamped or not.
func containerFile(stamp string, tensors ...containerTensor) []byte {
	var header []string
	var data []byte
	if stamp != "" {
		header = append(header, fmt.Sprintf(`"__metadata__":{"colibri.fmt":%q}`, stamp))
	}
	put := func(name, kind string, n int, content []byte) {
		header = append(header, fmt.Sprintf(`%q:{"dtype":%q,"shape":[%d],"data_offsets":[%d,%d]}`, name, kind, n, len(data), len(data)+len(content)))
		data = append(data, content...)
	}
	for _, t := range tensors {
		put(t.name, "U8", len(t.codes), t.codes)
		if t.scales != nil {
			put(t.name+".qs", "F32", len(t.scales), floats(t.scales...))
		}
	}
	return safetensors(`{`+strings.Join(header, ",")+`}`, data)
}

// ramp gives the value that input i of row r has before scaling, within [low, high].
func ramp(r, i, low, high int) int { return low + (5*r+3*i+i*i/7)%(high-low+1) }

func TestContainersOfColibriAreRead(t *testing.T) {
	const rows, cols = 3, 128
	bits := func(n, offset, low, high int) []byte { // n bits a code, the earlier input lower
		var out []byte
		for r := range rows {
			row := make([]byte, cols*n/8)
			for i := range cols {
				row[i*n/8] |= byte(ramp(r, i, low, high)+offset) << (i * n % 8)
			}
			out = append(out, row...)
		}
		return out
	}
	var planes []byte // 64 inputs: 16 bytes of two bits each, then 8 bytes of one
	for r := range rows {
		for g := range cols / 64 {
			block := make([]byte, 24)
			for k := range 64 {
				code := ramp(r, g*64+k, -4, 3) + 4
				block[k/4] |= byte(code&3) << (k % 4 * 2)
				block[16+k/8] |= byte(code>>2) << (k % 8)
			}
			planes = append(planes, block...)
		}
	}
	signed := make([]byte, rows*cols)
	eighths := make([]byte, rows*cols) // fp8: sign, 4 bits of exponent with a bias of 7, 3 of fraction; 1.0 is 0x38
	plain := make([]float32, rows*cols)
	for n := range signed {
		signed[n] = byte(int8(ramp(n/cols, n%cols, -127, 127)))
		eighths[n] = 0x38 | byte(ramp(n/cols, n%cols, 0, 7))
		plain[n] = float32(n) / 8
	}
	perRow := []float32{0.5, 2, -1}
	perGroup := []float32{1, 2, 3, 4, 5, 6}
	tensors := []containerTensor{
		{"int8.weight", signed, perRow},
		{"int4.weight", bits(4, 8, -8, 7), perRow},
		{"int2.weight", bits(2, 2, -2, 1), perRow},
		{"grouped.weight", bits(4, 8, -8, 7), perGroup},
		{"int3.weight", planes, perGroup},
		{"fp8.weight", eighths, []float32{0.25}},
		{"f32.weight", floats(plain...), nil},
	}
	want := map[string]func(r, i int) float32{
		"int8":    func(r, i int) float32 { return float32(ramp(r, i, -127, 127)) * perRow[r] },
		"int4":    func(r, i int) float32 { return float32(ramp(r, i, -8, 7)) * perRow[r] },
		"int2":    func(r, i int) float32 { return float32(ramp(r, i, -2, 1)) * perRow[r] },
		"grouped": func(r, i int) float32 { return float32(ramp(r, i, -8, 7)) * perGroup[2*r+i/64] },
		"int3":    func(r, i int) float32 { return float32(ramp(r, i, -4, 3)) * perGroup[2*r+i/64] },
		"fp8":     func(r, i int) float32 { return (1 + float32(ramp(r, i, 0, 7))/8) * 0.25 },
		"f32":     func(r, i int) float32 { return float32(r*cols+i) / 8 },
	}
	c, err := Open(folder(t, map[string][]byte{
		"config.json":               []byte(`{}`),
		"out-00000.safetensors":     containerFile("", tensors[:3]...),
		"out-00001.safetensors":     containerFile(`{"int3.weight":"int3-g64"}`, tensors[3:]...),
		"out-mtp-00000.safetensors": containerFile("", containerTensor{"draft.weight", signed, perRow}),
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for module, value := range want {
		got := moduleValues(t, c, module, rows, cols)
		for n, x := range got {
			if x != value(n/cols, n%cols) {
				t.Errorf("%s: weight [%d, %d] is %v, want %v", module, n/cols, n%cols, x, value(n/cols, n%cols))
				break
			}
		}
	}
}

func TestContainersThatDoNotSayWhatTheyAreAreRefused(t *testing.T) {
	zeros := func(n int) []byte { return make([]byte, n) }
	ones := func(n int) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = 1
		}
		return out
	}
	for _, test := range []struct {
		name, stamp string
		rows, cols  int
		codes       []byte
		scales      []float32
		want        string // "" = read
	}{
		// Two rows of 200 inputs: a scale a row in int8, or two blocks of 128 inputs in fp8.
		{"int8 or fp8", "", 2, 200, zeros(400), ones(2), "400 bytes and 2 scales for [2 200] may be int8-row or fp8-e4m3-b128; convert the model again"},
		{"stamped int8", "int8-row", 2, 200, zeros(400), ones(2), ""},
		{"stamped fp8", "fp8-e4m3-b128", 2, 200, zeros(400), ones(2), ""},
		{"stamp that lies", "int4-row", 2, 200, zeros(400), ones(2), "stamped as int4-row, which for [2 200] does not give 400 bytes and 2 scales"},
		{"unknown stamp", "int5", 2, 200, zeros(400), ones(2), `stamped as int5`},
		{"lattice", "", 256, 256, zeros(256 * 98), ones(1), "format e8-iq3 is not supported"},
		{"no format", "", 2, 200, zeros(401), ones(2), "are no format of a matrix [2 200]"},
		{"too few scales", "", 4, 200, zeros(800), ones(3), "are no format"},
		{"scale that is not finite", "", 4, 200, zeros(800), []float32{1, 1, float32(math.Inf(1)), 1}, "scale 2 is not finite"},
		{"fp8 that is not a number", "fp8-e4m3-b128", 2, 200, append(zeros(399), 0xff), ones(2), "value 399 is not a number"},
	} {
		stamp := ""
		if test.stamp != "" {
			stamp = fmt.Sprintf(`{"m.weight":%q}`, test.stamp)
		}
		c, err := Open(folder(t, map[string][]byte{"config.json": []byte(`{}`), "out-00000.safetensors": containerFile(stamp, containerTensor{"m.weight", test.codes, test.scales})}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Source("m", test.rows, test.cols, new(Scratch))
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	_, err := Open(folder(t, map[string][]byte{"config.json": []byte(`{}`), "out-00001.safetensors": containerFile("", containerTensor{"m.weight", zeros(4), nil})}))
	if err == nil || !strings.Contains(err.Error(), "out-00000.safetensors, which comes before it, is missing") {
		t.Errorf("a missing file: %v", err)
	}
}
