package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// header builds a file by hand, field by field, so that a test can write any of them wrongly.
type header struct{ bytes.Buffer }

func (h *header) u32(n uint32) *header { h.Write(binary.LittleEndian.AppendUint32(nil, n)); return h }
func (h *header) u64(n uint64) *header { h.Write(binary.LittleEndian.AppendUint64(nil, n)); return h }
func (h *header) text(s string) *header {
	h.u64(uint64(len(s)))
	h.WriteString(s)
	return h
}

// begin writes magic, version and counts.
func begin(version uint32, tensors, entries uint64) *header {
	h := &header{}
	h.WriteString("GGUF")
	return h.u32(version).u64(tensors).u64(entries)
}

// entry writes a metadata entry of a scalar, string or array type.
func (h *header) entry(key string, v any) *header {
	h.text(key)
	switch v := v.(type) {
	case uint32:
		h.u32(uint32(kindU32)).u32(v)
	case int32:
		h.u32(uint32(kindI32)).u32(uint32(v))
	case uint64:
		h.u32(uint32(kindU64)).u64(v)
	case float32:
		h.u32(uint32(kindF32)).u32(math.Float32bits(v))
	case bool:
		h.u32(uint32(kindBool))
		h.WriteByte(map[bool]byte{true: 1}[v])
	case string:
		h.u32(uint32(kindString)).text(v)
	case []string:
		h.u32(uint32(kindArray)).u32(uint32(kindString)).u64(uint64(len(v)))
		for _, s := range v {
			h.text(s)
		}
	case []int32:
		h.u32(uint32(kindArray)).u32(uint32(kindI32)).u64(uint64(len(v)))
		for _, n := range v {
			h.u32(uint32(n))
		}
	case []float32:
		h.u32(uint32(kindArray)).u32(uint32(kindF32)).u64(uint64(len(v)))
		for _, x := range v {
			h.u32(math.Float32bits(x))
		}
	default:
		panic("no such entry")
	}
	return h
}

// tensor writes a tensor entry; dims innermost first.
func (h *header) tensor(name string, number uint32, offset uint64, dims ...uint64) *header {
	h.text(name).u32(uint32(len(dims)))
	for _, d := range dims {
		h.u64(d)
	}
	return h.u32(number).u64(offset)
}

// data pads to 32 bytes and appends n bytes of data.
func (h *header) data(n int) []byte {
	for h.Len()%32 != 0 {
		h.WriteByte(0)
	}
	return append(h.Bytes(), make([]byte, n)...)
}

func parse(file []byte) (*File, error) { return Parse(bytes.NewReader(file), int64(len(file))) }

func TestMetadataAndTensorsAreRead(t *testing.T) {
	for _, version := range []uint32{2, 3} {
		file := begin(version, 2, 6).
			entry("a.count", uint32(7)).entry("a.eps", float32(1e-5)).entry("a.flag", true).entry("a.name", "ä").
			entry("a.list", []string{"x", "", "yz"}).entry("a.ids", []int32{3, -1}).
			tensor("w", 2, 0, 64, 3, 2).tensor("b", 0, 256, 5).data(256 + 20)
		f, err := parse(file)
		if err != nil {
			t.Fatal(err)
		}
		n, _, err1 := f.Integer("a.count")
		x, _, err2 := f.Number("a.eps")
		flag, _, err3 := f.Bool("a.flag")
		name, _, err4 := f.Text("a.name")
		list, err5 := f.Texts("a.list")
		ids, err6 := f.Integers("a.ids")
		if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
			t.Fatal(err)
		}
		if n != 7 || x != 1e-5 || !flag || name != "ä" || !slices.Equal(list, []string{"x", "", "yz"}) || !slices.Equal(ids, []int64{3, -1}) {
			t.Errorf("version %d: read %d %v %v %q %q %d", version, n, x, flag, name, list, ids)
		}
		w, b := f.Tensors[0], f.Tensors[1]
		if w.Type != "Q4_0" || !slices.Equal(w.Shape, []int64{2, 3, 64}) || w.Offset != f.Data || w.Size != 2*3*36 {
			t.Errorf("version %d: tensor %+v", version, w)
		}
		if b.Type != "F32" || b.Offset != f.Data+256 || b.Size != 20 || int(f.Data)+276 != len(file) {
			t.Errorf("version %d: tensor %+v, data at %d", version, b, f.Data)
		}
		if _, ok, err := f.Integer("a.none"); ok || err != nil {
			t.Errorf("an absent key: %v %v", ok, err)
		}
		if _, _, err := f.Integer("a.name"); err == nil || !strings.Contains(err.Error(), `metadata "a.name": is string, want a whole number`) {
			t.Errorf("a text read as a number: %v", err)
		}
	}
}

// Every refusal says where and what. The files are as short as they can be: a count must not be believed before it is held
// to the file's size.
func TestBadFilesAreRefused(t *testing.T) {
	const huge = 1 << 62
	long := strings.Repeat("k", 300)
	for _, test := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "the file ends inside its header"},
		{"another format", []byte("PK\x03\x04, and so on and on"), `begins with "PK\x03\x04"`},
		{"version 1", begin(1, 0, 0).Bytes(), "version 1 is not supported"},
		{"version 4", begin(4, 0, 0).Bytes(), "version 4 is not supported"},
		{"big endian", begin(3<<24, 0, 0).Bytes(), "big endian"},
		{"2^62 tensors", begin(3, huge, 0).Bytes(), "more than the 65536 allowed"},
		{"2^62 entries", begin(3, 0, huge).Bytes(), "more than the 4096 allowed"},
		{"tensors that do not fit", begin(3, 1000, 0).Bytes(), "1000 tensors do not fit"},
		{"entries that do not fit", begin(3, 0, 1000).Bytes(), "1000 metadata entries do not fit"},
		{"key of 2^63 bytes", begin(3, 0, 1).u64(1 << 63).u64(0).Bytes(), "a metadata key of 9223372036854775808 bytes"},
		{"long key", begin(3, 0, 1).entry(long, uint32(0)).Bytes(), "a metadata key of 300 bytes"},
		{"key that is not UTF-8", begin(3, 0, 1).entry("\xff", uint32(0)).Bytes(), "not UTF-8"},
		{"key twice", begin(3, 0, 2).entry("k", uint32(0)).entry("k", uint32(0)).Bytes(), `metadata "k": given twice`},
		{"unknown value type", begin(3, 0, 1).text("k").u32(13).u64(0).Bytes(), "unknown type 13"},
		{"string of 2^62 bytes", begin(3, 0, 1).text("k").u32(8).u64(huge).Bytes(), "the text of k of 4611686018427387904 bytes"},
		{"string beyond the file", begin(3, 0, 1).text("k").u32(8).u64(1000).Bytes(), "goes beyond the file"},
		{"bool of 2", append(begin(3, 0, 1).text("k").u32(7).Bytes(), 2), "a bool of 2"},
		{"array of 2^63 bytes", begin(3, 0, 1).text("k").u32(9).u32(0).u64(1 << 63).Bytes(), "elements of k, more than"},
		{"array of 2^62 strings", begin(3, 0, 1).text("k").u32(9).u32(8).u64(huge).Bytes(), "elements of k, more than"},
		{"array beyond the file", begin(3, 0, 1).text("k").u32(9).u32(4).u64(1000).Bytes(), "do not fit the rest of the file"},
		{"array of unknown type", begin(3, 0, 1).text("k").u32(9).u32(99).u64(0).Bytes(), "array of the unknown type 99"},
		{"array of arrays", begin(3, 0, 1).text("k").u32(9).u32(9).u64(1).u32(9).u64(1).Bytes(), "array of arrays"},
		{"element beyond the file", begin(3, 0, 1).text("k").u32(9).u32(8).u64(1).u64(1000).Bytes(), "an element of k of 1000 bytes"},
		{"alignment of zero", begin(3, 0, 1).entry("general.alignment", uint32(0)).Bytes(), "0 is not a power of two"},
		{"alignment of 24", begin(3, 0, 1).entry("general.alignment", uint32(24)).Bytes(), "24 is not a power of two"},
		{"alignment of 2^30", begin(3, 0, 1).entry("general.alignment", uint32(1<<30)).Bytes(), "not a power of two up to"},
		{"alignment of another type", begin(3, 0, 1).entry("general.alignment", uint64(32)).Bytes(), "of type u64, want u32"},
		{"five dimensions", begin(3, 1, 0).tensor("w", 0, 0, 1, 1, 1, 1, 1).data(4), "5 dimensions"},
		{"2^32-1 dimensions", begin(3, 1, 0).text("w").u32(math.MaxUint32).u32(0).u64(0).Bytes(), "4294967295 dimensions"},
		{"negative dimension", begin(3, 1, 0).tensor("w", 0, 0, 1<<63).data(4), "dimension 9223372036854775808 out of range"},
		{"shape product wraps", begin(3, 1, 0).tensor("w", 0, 0, 1<<31, 1<<31, 4).data(4), "overflows"},
		{"shape product wraps to 4", begin(3, 1, 0).tensor("w", 24, 0, 1<<32, 1<<32, 1<<32, 4).data(4), "overflows"},
		{"unknown type", begin(3, 1, 0).tensor("w", 99, 0, 4).data(16), "unknown type 99"},
		{"removed type", begin(3, 1, 0).tensor("w", 4, 0, 4).data(16), "unknown type 4"},
		{"half a block", begin(3, 1, 0).tensor("w", 2, 0, 48).data(64), "rows of 48 are not whole Q4_0 blocks of 32"},
		{"unaligned", begin(3, 1, 0).tensor("w", 0, 4, 4).data(64), "offset 4 is not a multiple of the alignment"},
		{"offset beyond the file", begin(3, 1, 0).tensor("w", 0, 1<<40, 4).data(16), "truncated"},
		{"offset beyond 63 bits", begin(3, 1, 0).tensor("w", 0, 1<<63, 4).data(16), "is not a multiple"},
		{"truncated data", begin(3, 1, 0).tensor("w", 0, 0, 4).data(12), "truncated"},
		{"no data at all", begin(3, 1, 0).tensor("w", 0, 0, 4).Bytes(), "truncated"},
		{"overlap", begin(3, 2, 0).tensor("v", 0, 0, 16).tensor("w", 0, 32, 4).data(64), `tensor "w": overlaps`},
		{"two names for the same bytes", begin(3, 2, 0).tensor("v", 0, 0, 4).tensor("w", 0, 0, 4).data(16), "overlaps"},
		{"name twice", begin(3, 2, 0).tensor("w", 0, 0, 4).tensor("w", 0, 32, 4).data(64), `tensor "w": given twice`},
		{"long name", begin(3, 1, 0).tensor(long, 0, 0, 4).data(16), "a tensor's name of 300 bytes"},
	} {
		_, err := parse(test.file)
		var refusal *Error
		if !errors.As(err, &refusal) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an Error with %q", test.name, err, test.want)
		}
	}
}

// A file that becomes shorter between opening and reading an array gives an error.
func TestArraysAreReadFromTheFile(t *testing.T) {
	file := begin(3, 0, 1).entry("k", []string{"abc"}).Bytes()
	reader := bytes.NewReader(file)
	f, err := Parse(reader, int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	reader.Reset(file[:len(file)-1])
	if _, err := f.Texts("k"); err == nil || !strings.Contains(err.Error(), `metadata "k": reading`) {
		t.Errorf("a shorter file: %v", err)
	}
	changed := slices.Clone(file)
	binary.LittleEndian.PutUint64(changed[len(file)-11:], 1<<40)
	reader.Reset(changed)
	if _, err := f.Texts("k"); err == nil || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("a changed file: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(begin(3, 2, 3).entry("general.architecture", "olmoe").entry("k", []string{"a", "b"}).entry("general.alignment", uint32(64)).
		tensor("token_embd.weight", 2, 0, 64, 8).tensor("blk.0.ffn_up_exps.weight", 8, 320, 32, 8, 4).data(2000))
	f.Add(begin(2, 0, 1).text("k").u32(9).u32(8).u64(1 << 62).Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parse(data)
		if err != nil {
			return
		}
		for _, w := range file.Tensors {
			if w.Offset < file.Data || w.Size < 0 || w.Offset+w.Size > int64(len(data)) {
				t.Fatalf("tensor %+v lies outside the file of %d bytes", w, len(data))
			}
		}
		for _, key := range file.Keys() {
			_, _ = file.Texts(key)
			_, _ = file.Integers(key)
			_, _ = file.Numbers(key)
			_, _, _ = file.Text(key)
		}
		_, _ = file.Tokenizer()
		_, _ = file.TokenizerConfig()
		d, err := Describe(file, file.Tensors)
		if err != nil {
			return
		}
		for _, w := range file.Tensors {
			_, _ = d.Places(w, 1<<16)
		}
	})
}

// Metadata may say anything of heads, also what adds up to the rows that there are.
func TestPartsOfFusedTensorsAreNeitherNegativeNorEndless(t *testing.T) {
	for _, heads := range [][2]int64{{-1, 1}, {3, -1}, {math.MinInt64/4 + 1, math.MinInt64 / 4}, {1, 0}} {
		d := &Description{family: &family{}, heads: heads, dim: 4}
		if places, err := d.Places(Tensor{Name: "blk.0.attn_qkv.weight", Type: "F32", Shape: []int64{4, 8}, Size: 128}, 100); err == nil {
			t.Errorf("%d heads: %+v", heads, places)
		}
	}
}

func TestLayersLessThanNoneAreRefused(t *testing.T) {
	minus := uint32(math.MaxUint32) // -1 as an int32
	h := begin(3, 0, 3).text("general.architecture").u32(8).text("glm-dsa").text("glm-dsa.block_count").u32(5).u32(minus).
		text("glm-dsa.attention.indexer.types").u32(9).u32(5).u64(2).u32(1).u32(0)
	f, err := Parse(bytes.NewReader(h.Bytes()), int64(h.Len()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Describe(f, nil); err == nil {
		t.Error("accepted")
	}
	r := &reader{file: f, prefix: "glm-dsa.", used: map[string]bool{}}
	if r.layers(map[string]any{}); r.err == nil || !strings.Contains(r.err.Error(), `block_count": -1 layers`) {
		t.Errorf("got %v", r.err)
	}
}

// Any number may stand for any other: a description or an error follows, and so it does for tensors of any shape.
func TestNoNumberEndsTheProcess(t *testing.T) {
	described := 0
	for name, family := range families {
		file := &File{reader: strings.NewReader(name + "\x01\x00")}
		at := int64(len(name))
		put := func(f field, n int64) {
			v := value{kind: kindI64, bits: uint64(n)}
			switch f.kind {
			case real:
				v = value{kind: kindF64, bits: math.Float64bits(float64(n))}
			case truth:
				v = value{kind: kindBool, bits: uint64(n) & 1}
			}
			file.values[name+"."+f.key] = v
		}
		fields := slices.Concat(common, family.fields)
		more := "block_count expert_gating_func rope.dimension_count"
		if strings.HasPrefix(name, "deepseek") || name == "glm-dsa" {
			more += " nextn_predict_layers attention.key_length_mla attention.value_length_mla attention.kv_lora_rank attention.q_lora_rank"
		}
		for _, key := range strings.Fields(more) {
			fields = append(fields, field{key: key, kind: whole})
		}
		for _, changed := range fields {
			for _, n := range []int64{math.MinInt64, -1, 0, 1, 1 << 40, math.MaxInt64} {
				file.values = map[string]value{"general.architecture": {kind: kindString, count: at, size: at}}
				for _, f := range fields {
					put(f, 4)
				}
				put(field{key: "expert_gating_func"}, max(family.gating, gateSoftmax))
				if strings.Contains(more, "nextn") {
					put(field{key: "nextn_predict_layers"}, 1)
					put(field{key: "attention.key_length_mla"}, 8)
				}
				if name == "glm-dsa" {
					file.values["glm-dsa.attention.indexer.types"] = value{kind: kindArray, element: kindU8, count: 2, at: at, size: 2}
				}
				put(changed, n)
				d, err := Describe(file, []Tensor{{Name: "token_embd.weight", Shape: []int64{4, 4}}})
				if err != nil {
					continue
				}
				described++
				for _, tensor := range []string{"attn_qkv.weight", "attn_qkv.bias", "attn_q.weight", "attn_k.weight", "ffn_gate_up_exps.weight", "ffn_up_exps.weight", "ffn_gate_inp_shexp.weight", "attn_k_b.weight"} {
					for _, shape := range [][]int64{nil, {0}, {4}, {48}, {0, 4}, {4, 0}, {48, 4}, {4, 0, 4}, {4, 4, 0}, {2, 4, 4}} {
						size := int64(4)
						for _, side := range shape {
							size *= side
						}
						_, _ = d.Places(Tensor{Name: "blk.0." + tensor, Type: "F32", Shape: shape, Size: size}, 16)
					}
				}
			}
		}
	}
	if described < 500 {
		t.Errorf("%d descriptions: too few for the test to show anything", described)
	}
}
