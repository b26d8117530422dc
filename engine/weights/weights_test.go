package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"covey/engine/canon"
)

// file gives a safetensors file: header length, header, data.
func safetensors(header string, data []byte) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), data...)
}

// folder writes files into a new folder.
func folder(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func words(values ...uint32) []byte {
	var out []byte
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, v)
	}
	return out
}

func floats(values ...float32) []byte {
	var out []byte
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

// Every refusal names what it refuses. The data behind each header is 16 bytes long.
// repeated joins n texts, each with its number in it.
func repeated(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func TestBadHeadersAreRefused(t *testing.T) {
	const good = `"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}`
	for _, test := range []struct{ name, header, want string }{
		{"empty", ``, "does not start with '{'"},
		{"not JSON", `hello`, "does not start with '{'"},
		{"byte order mark", "\ufeff{" + good + "}", "does not start with '{'"},
		{"unfinished", `{` + good, "header:"},
		{"text behind", `{` + good + `} x`, "text after the closing brace"},
		{"invalid UTF-8", "{\"\xff\":{}}", "UTF-8"},
		{"duplicate name", `{` + good + `,` + good + `}`, "duplicate"},
		{"duplicate key", `{"a":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}}`, "duplicate"},
		{"unknown key", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1}}`, "unknown"},
		{"missing offsets", `{"a":{"dtype":"F32","shape":[4]}}`, "missing or backwards"},
		{"one offset", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0]}}`, "header:"},
		{"three offsets", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16,16]}}`, "header:"},
		{"negative offset", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[-16,0]}}`, "header:"},
		{"backward offsets", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}`, "backwards"},
		{"fractional offset", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16.5]}}`, "header:"},
		{"offset beyond 64 bits", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551616]}}`, "header:"},
		{"end beyond the file", `{"a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}}`, "truncated"},
		{"end beyond the file by a lot", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551600]}}`, "truncated"},
		{"negative dimension", `{"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}}`, "header:"},
		{"shape does not match", `{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}}`, "needs 12 bytes"},
		{"shape product wraps", `{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}`, "overflows"},
		{"shape product wraps to 16 bytes", `{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]}}`, "overflows"},
		{"nine dimensions", `{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]}}`, "dimensions"},
		{"unknown type", `{"a":{"dtype":"Q4_0","shape":[4],"data_offsets":[0,16]}}`, `unknown dtype "Q4_0"`},
		{"half a byte", `{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, "whole bytes"},
		{"overlap", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`, "overlaps"},
		{"two names for the same bytes", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`, "overlaps"},
		{"gap", `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`, "gap"},
		{"empty tensor inside another", `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}}`, "overlaps"},
		{"bytes without a tensor", `{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}`, "too long"},
		{"metadata is not text", `{"__metadata__":{"x":1},` + good + `}`, "__metadata__"},
		{"metadata is a list", `{"__metadata__":[],` + good + `}`, "__metadata__"},
		{"a value of metadata is nested", `{"__metadata__":{"x":{}},` + good + `}`, "__metadata__"},
		{"metadata of 5,000 entries", `{"__metadata__":{` + repeated(5000, `"%d":""`) + `},` + good + `}`, "more than the 4096 entries"},
		{"300,000 tensors", `{` + repeated(300_000, `"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}`) + `}`, "more than the 65536 tensors"},
		{"shape is an object", `{"a":{"dtype":"F32","shape":{},"data_offsets":[0,16]}}`, "shape is not a list"},
		{"a million dimensions", `{"a":{"dtype":"F32","shape":[` + repeated(1_000_000, "%d") + `],"data_offsets":[0,16]}}`, "more than the 8 dimensions"},
		{"nested deeply", `{"a":` + strings.Repeat(`[`, 20000) + strings.Repeat(`]`, 20000) + `}`, "header:"},
	} {
		_, err := parseHeader("f.safetensors", strings.NewReader(test.header), int64(len(test.header)), 16, maxPerFile)
		var refusal *FormatError
		if !errors.As(err, &refusal) || !strings.Contains(err.Error(), test.want) || refusal.File != "f.safetensors" || refusal.Remedy == "" {
			t.Errorf("%s: %v, want a FormatError with %q", test.name, err, test.want)
		}
	}
}

func TestGoodHeadersAreRead(t *testing.T) {
	for _, header := range []string{
		`{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`,
		`{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]},"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}     `,
		`{"z":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"data_offsets":[0,16],"shape":[4,1],"dtype":"F32"}}`,
		`{"a":{"dtype":"F4","shape":[32],"data_offsets":[0,16]}}`,
	} {
		if _, err := parseHeader("f", strings.NewReader(header), int64(len(header)), 16, MaxTensors); err != nil {
			t.Errorf("%s: %v", header, err)
		}
	}
}

func TestBadFilesAreRefused(t *testing.T) {
	good := safetensors(`{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`, make([]byte, 16))
	for _, test := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "too short"},
		{"seven bytes", good[:7], "too short"},
		{"truncated header", good[:20], "truncated"},
		{"truncated data", good[:len(good)-1], "truncated"},
		{"longer than its tensors", append(slices.Clone(good), 0), "too long"},
		{"header of 2^63 bytes", binary.LittleEndian.AppendUint64(nil, 1<<63), "exceeds"},
		{"header of 200 MB", binary.LittleEndian.AppendUint64(nil, 200<<20), "exceeds"},
		{"header of 10 MB in a file of 8 bytes", binary.LittleEndian.AppendUint64(nil, 10<<20), "truncated"},
	} {
		_, err := Open(folder(t, map[string][]byte{"config.json": []byte(`{}`), "model.safetensors": test.data}))
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "model.safetensors") {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func TestShardsMustAgreeWithTheirIndex(t *testing.T) {
	shard := func(name string) []byte {
		return safetensors(`{"`+name+`":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, floats(1))
	}
	index := func(pairs ...string) []byte {
		var list []string
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, strconv.Quote(pairs[i])+":"+strconv.Quote(pairs[i+1]))
		}
		return []byte(`{"metadata":{"total_size":8},"weight_map":{` + strings.Join(list, ",") + `}}`)
	}
	one, two := "m-1.safetensors", "m-2.safetensors"
	for _, test := range []struct {
		name  string
		index []byte
		want  string // "" = accepted
	}{
		{"two shards", index("a", one, "b", two), ""},
		{"missing shard", index("a", one, "b", "m-3.safetensors"), "m-3.safetensors, which is missing"},
		{"tensor in the other shard", index("a", two, "b", one), "where the index places it"},
		{"tensor in no shard", index("a", one, "b", two, "c", two), `"c"`},
		{"duplicate name", []byte(`{"weight_map":{"a":"m-1.safetensors","a":"m-1.safetensors"}}`), "duplicate"},
		{"parent folder", index("a", "../m-1.safetensors"), "not a plain"},
		{"absolute", index("a", "/tmp/m-1.safetensors"), "not a plain"},
		{"backslash", index("a", `..\m-1.safetensors`), "not a plain"},
		{"drive", index("a", `c:m-1.safetensors`), "not a plain"},
		{"another kind of file", index("a", "config.json"), "not a plain"},
		{"empty name", index("a", ""), "not a plain"},
		{"zero byte", []byte(`{"weight_map":{"a":"m\u0000.safetensors"}}`), "not a plain"},
		{"escape sequence", []byte(`{"weight_map":{"a":"m\u001b[2J.safetensors"}}`), "not a plain"},
		{"5,000 shards", []byte(`{"weight_map":{` + repeated(5000, `"%[1]d":"m-%[1]d.safetensors"`) + `}}`), "more than the 4096 shards"},
		{"empty map", []byte(`{"weight_map":{}}`), "empty"},
		{"not JSON", []byte(`x`), "index.json"},
		{"link out of the folder", index("a", "link.safetensors"), "leaves the model folder"},
	} {
		dir := folder(t, map[string][]byte{"config.json": []byte(`{}`), one: shard("a"), two: shard("b"), "model.safetensors.index.json": test.index})
		outside := filepath.Join(folder(t, map[string][]byte{"x.safetensors": shard("a")}), "x.safetensors")
		if err := os.Symlink(outside, filepath.Join(dir, "link.safetensors")); err != nil {
			t.Fatal(err)
		}
		c, err := Open(dir)
		if test.want == "" {
			if err != nil || !slices.Equal(c.Names(), []string{"a", "b"}) {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	dir := folder(t, map[string][]byte{"config.json": []byte(`{}`), one: shard("a"), two: shard("a"), "model.safetensors.index.json": index("a", one, "b", two)})
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "also in") {
		t.Errorf("one tensor in two shards: %v", err)
	}
}

func TestErrorsDoNotRepeatLongNames(t *testing.T) {
	long := strings.Repeat("x", 1000)
	dir := folder(t, map[string][]byte{"config.json": []byte(`{}`), "model.safetensors.index.json": []byte(`{"weight_map":{"` + long + `":"` + long + `.safetensors"}}`)})
	if _, err := Open(dir); err == nil || len(err.Error()) > 1000 || !strings.Contains(err.Error(), "not a plain .safetensors name") {
		t.Errorf("%.3000v", err)
	}
}

func TestMissingFilesAreNamed(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "nowhere")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
	if _, err := Open(folder(t, nil)); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "config.json") || !strings.Contains(err.Error(), "; point at a folder") {
		t.Errorf("empty folder: %v", err)
	}
	if _, err := Open(folder(t, map[string][]byte{"config.json": []byte(`{}`)})); err == nil || !strings.Contains(err.Error(), "model.safetensors") {
		t.Errorf("no tensors: %v", err)
	}
}

func TestHashTellsContentsApart(t *testing.T) {
	config := []byte(`{"a":1}`)
	header := `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`
	hash := func(files map[string][]byte) string {
		c, err := Open(folder(t, files))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.Hash()
	}
	base := hash(map[string][]byte{"config.json": config, "model.safetensors": safetensors(header, floats(1, 2, 3, 4))})
	again := hash(map[string][]byte{"config.json": config, "model.safetensors": safetensors(header, floats(1, 2, 3, 4)), "README.md": []byte("x")})
	if base != again || len(base) != 64 {
		t.Errorf("the same checkpoint gave %s and %s", base, again)
	}
	for name, other := range map[string]string{
		"other value":     hash(map[string][]byte{"config.json": config, "model.safetensors": safetensors(header, floats(1, 2, 3, 5))}),
		"other config":    hash(map[string][]byte{"config.json": []byte(`{"a":2}`), "model.safetensors": safetensors(header, floats(1, 2, 3, 4))}),
		"other name":      hash(map[string][]byte{"config.json": config, "model.safetensors": safetensors(strings.Replace(header, `"a"`, `"b"`, 1), floats(1, 2, 3, 4))}),
		"other tokenizer": hash(map[string][]byte{"config.json": config, "model.safetensors": safetensors(header, floats(1, 2, 3, 4)), "tokenizer.json": []byte(`{}`)}),
	} {
		if other == base {
			t.Errorf("%s: the hash stayed the same", name)
		}
	}
}

// quantised is a config.json with one group of the given weights for all Linear modules and 8-bit ones for embeddings.
func quantised(weights string) []byte {
	return []byte(`{"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","ignore":["re:.*gate$"],"config_groups":{
		"group_0":{"targets":["Linear"],"weights":` + weights + `},
		"group_1":{"targets":["re:.*embed_tokens"],"weights":{"num_bits":8,"type":"int","symmetric":true,"strategy":"group","group_size":32}}}}}`)
}

const int4group = `{"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":32}`

// values dequantises a source.
func values(t *testing.T, s canon.Source) []float32 {
	t.Helper()
	wide, err := canon.Dequantised(s)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float32, s.Rows*s.Cols)
	if _, err := binary.Decode(wide.Codes, binary.LittleEndian, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPackedFourBitValuesAreRead(t *testing.T) {
	// Two rows of 32 inputs: the first counts 0..15 twice (values -8..7), the second is all 8 (value 0) but one 15 (7).
	const up, down, zero = 0x76543210, 0xfedcba98, 0x88888888
	data := append(words(up, down, up, down, zero, zero, zero, 0xf8888888), floats(0.5, 2)...)
	data = append(data, 2, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0)
	header := `{"m.weight_packed":{"dtype":"I32","shape":[2,4],"data_offsets":[0,32]},"m.weight_scale":{"dtype":"F32","shape":[2,1],"data_offsets":[32,40]},"m.weight_shape":{"dtype":"I64","shape":[2],"data_offsets":[40,56]}}`
	c, err := Open(folder(t, map[string][]byte{"config.json": quantised(int4group), "model.safetensors": safetensors(header, data)}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var scratch Scratch
	source, err := c.Source("m", 2, 32, &scratch)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]float32, 64)
	for i := range 32 {
		want[i] = (float32(i%16) - 8) * 0.5
	}
	want[63] = 14
	if got := values(t, source); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for _, test := range []struct {
		module     string
		rows, cols int
		want       string
	}{
		{"m", 2, 64, "shape [2 32], but the configuration gives [2 64]"},
		{"n", 2, 32, "missing"},
	} {
		if _, err := c.Source(test.module, test.rows, test.cols, &scratch); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s [%d, %d]: %v, want %q", test.module, test.rows, test.cols, err, test.want)
		}
	}
}

func TestPackedEightBitValuesDropTheirPadding(t *testing.T) {
	// One row of 33 inputs in 9 words: 32 times 129 (value 1), then 130 (value 2) and three bytes of padding.
	data := append(words(0x81818181, 0x81818181, 0x81818181, 0x81818181, 0x81818181, 0x81818181, 0x81818181, 0x81818181, 0x00000082),
		0x00, 0x3c, 0x00, 0x40, // scales 1 and 2 in binary16
		1, 0, 0, 0, 33, 0, 0, 0)
	header := `{"embed_tokens.weight_packed":{"dtype":"I32","shape":[1,9],"data_offsets":[0,36]},"embed_tokens.weight_scale":{"dtype":"F16","shape":[1,2],"data_offsets":[36,40]},"embed_tokens.weight_shape":{"dtype":"I32","shape":[2],"data_offsets":[40,48]}}`
	c, err := Open(folder(t, map[string][]byte{"config.json": quantised(int4group), "model.safetensors": safetensors(header, data)}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	source, err := c.Source("embed_tokens", 1, 33, new(Scratch))
	if err != nil {
		t.Fatal(err)
	}
	want := append(slices.Repeat([]float32{1}, 32), 4)
	if got := values(t, source); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestChannelAndTensorScalesAreRepeated(t *testing.T) {
	for _, test := range []struct{ strategy, shape, scales string }{
		{"channel", "[2,1]", "two"},
		{"tensor", "[1]", "one"},
	} {
		data := words(0x99999999, 0x99999999, 0x99999999, 0x99999999, 0xaaaaaaaa, 0xaaaaaaaa, 0xaaaaaaaa, 0xaaaaaaaa)
		want := append(slices.Repeat([]float32{3}, 32), slices.Repeat([]float32{10}, 32)...)
		size := 8
		if test.scales == "two" {
			data = append(data, floats(3, 5)...)
		} else {
			data = append(data, floats(3)...)
			want = append(slices.Repeat([]float32{3}, 32), slices.Repeat([]float32{6}, 32)...)
			size = 4
		}
		data = append(data, 2, 0, 0, 0, 32, 0, 0, 0)
		header := `{"m.weight_packed":{"dtype":"I32","shape":[2,4],"data_offsets":[0,32]},"m.weight_scale":{"dtype":"F32","shape":` + test.shape + `,"data_offsets":[32,` + strconv.Itoa(32+size) + `]},"m.weight_shape":{"dtype":"I32","shape":[2],"data_offsets":[` + strconv.Itoa(32+size) + `,` + strconv.Itoa(40+size) + `]}}`
		config := quantised(`{"num_bits":4,"type":"int","symmetric":true,"strategy":"` + test.strategy + `","group_size":null}`)
		c, err := Open(folder(t, map[string][]byte{"config.json": config, "model.safetensors": safetensors(header, data)}))
		if err != nil {
			t.Fatal(err)
		}
		source, err := c.Source("m", 2, 32, new(Scratch))
		if err != nil {
			t.Fatal(err)
		}
		if got := values(t, source); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", test.strategy, got, want)
		}
		c.Close()
	}
}

func TestUnsupportedQuantisationIsNamed(t *testing.T) {
	wrap := func(q string) []byte { return []byte(`{"quantization_config":` + q + `}`) }
	for _, test := range []struct {
		config []byte
		want   string
	}{
		{wrap(`{"quant_method":"bitsandbytes","bits":4}`), `quant_method "bitsandbytes"`},
		{wrap(`{"quant_method":"hqq"}`), `quant_method "hqq"`},
		{wrap(`{"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized"}`), `format "nvfp4-pack-quantized"`},
		{quantised(`{"num_bits":3,"type":"int","strategy":"group","group_size":32}`), "3-bit int"},
		{quantised(`{"num_bits":8,"type":"float","strategy":"group","group_size":32}`), "8-bit float"},
		{quantised(`{"num_bits":4,"type":"int","strategy":"block"}`), `strategy "block"`},
		{quantised(`{"num_bits":4,"type":"int","strategy":"group","group_size":16}`), "group_size must be"},
		{quantised(`{"num_bits":4,"type":"int","strategy":"group"}`), "group_size must be"},
		{quantised(`{"num_bits":4,"type":"int","strategy":"group","group_size":32,"actorder":"group"}`), "actorder"},
		{wrap(`{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"targets":["re:(?=x)"],"weights":` + int4group + `}}}`), "(?=x)"},
		{wrap(`{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"g":{"targets":["Linear"],"weights":` + int4group + `,"input_activations":{"num_bits":8}}}}`), "quantised activations"},
		{wrap(`{"quant_method":"compressed-tensors","format":"pack-quantized","kv_cache_scheme":{"num_bits":8}}`), "kv_cache_scheme"},
		{[]byte(`{"a":1,"a":2}`), "a: it stands twice"},
	} {
		_, err := readScheme(test.config)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.config, err, test.want)
		}
	}
	for _, config := range []string{`{}`, `{"quantization_config":null}`} {
		if s, err := readScheme([]byte(config)); s != nil || err != nil {
			t.Errorf("%s: %v, %v; want no scheme", config, s, err)
		}
	}
}

func TestNamesComeBeforePatternsAndPatternsBeforeClasses(t *testing.T) {
	s, err := readScheme([]byte(`{"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{
		"a":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int","strategy":"group","group_size":32}},
		"b":{"targets":["re:.*down_proj"],"weights":{"num_bits":8,"type":"int","strategy":"group","group_size":64}},
		"c":{"targets":["x.0.down_proj"],"weights":{"num_bits":4,"type":"int","strategy":"group","group_size":128}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for module, want := range map[string]int{"x.0.up_proj": 32, "x.1.down_proj": 64, "x.0.down_proj": 128} {
		if g := s.method(module); g == nil || g.inputs != want {
			t.Errorf("%s: %+v, want groups of %d", module, g, want)
		}
	}
	if g := s.method("model.embed_tokens"); g != nil {
		t.Errorf("an embedding is not a Linear, but %s claimed it", g.name)
	}
}

func TestVectorsAreWidenedExactly(t *testing.T) {
	data := append(floats(1.5, -2), 0x00, 0x3e, 0x01, 0x00) // binary16: 1.5 and the smallest denormal
	data = append(data, 0xc0, 0x3f, 0x00, 0xc0)             // bfloat16: 1.5 and -2
	data = append(data, floats(float32(math.Inf(1)))...)
	c, err := Open(folder(t, map[string][]byte{"config.json": []byte(`{}`), "model.safetensors": safetensors(
		`{"f32":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"f16":{"dtype":"F16","shape":[2,1],"data_offsets":[8,12]},"bf16":{"dtype":"BF16","shape":[2],"data_offsets":[12,16]},"inf":{"dtype":"F32","shape":[1],"data_offsets":[16,20]}}`, data)}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, want := range map[string][]float32{"f32": {1.5, -2}, "f16": {1.5, 0x1p-24}, "bf16": {1.5, -2}} {
		if got, err := c.Vector(name, 2); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
	for name, want := range map[string]string{"inf": "not finite", "none": "missing"} {
		if _, err := c.Vector(name, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if _, err := c.Vector("f32", 3); err == nil || !strings.Contains(err.Error(), "gives 3 values") {
		t.Errorf("wrong length: %v", err)
	}
}

func FuzzHeader(f *testing.F) {
	for _, seed := range []string{
		`{}`,
		`{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`,
		`{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]},"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}  `,
		`{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}`,
		`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`,
	} {
		f.Add([]byte(seed), uint64(16))
	}
	seeds("model.safetensors", func(file []byte) {
		if head := binary.LittleEndian.Uint64(file); head <= uint64(len(file)-8) {
			f.Add(file[8:8+head], uint64(len(file)-8)-head)
		}
	})
	f.Fuzz(func(t *testing.T, header []byte, data uint64) {
		list, err := parseHeader("f", bytes.NewReader(header), int64(len(header)), data, MaxTensors)
		if err != nil {
			return
		}
		// Whatever was accepted covers the data exactly once.
		at := uint64(0)
		for _, n := range list.tensors {
			if n.Offsets[0] != at || n.Offsets[1] < at || n.Offsets[1] > data {
				t.Fatalf("%q lies at %v of %d bytes, expected from %d", n.name, n.Offsets, data, at)
			}
			at = n.Offsets[1]
		}
		if at != data {
			t.Fatalf("%d of %d bytes covered", at, data)
		}
	})
}

func FuzzScheme(f *testing.F) {
	f.Add(quantised(int4group))
	for _, scheme := range []string{
		`{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]}`, `{"quant_method":"fbgemm_fp8"}`, `{"quant_method":"mxfp4"}`,
		`{"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false}`, `{"quant_method":"awq","w_bit":4,"q_group_size":64,"version":"gemm"}`,
		compressed("float-quantized", `"num_bits":8,"type":"float","strategy":"block","block_structure":[128,128]`), compressed("int-quantized", `"num_bits":8,"type":"int","strategy":"channel"`),
	} {
		f.Add([]byte(`{"quantization_config":` + scheme + `}`))
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		if s, err := readScheme(config); err == nil && s != nil {
			s.method("model.layers.0.mlp.up_proj")
		}
	})
}
