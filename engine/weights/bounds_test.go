package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"
)

// bounded opens a hostile folder, which must fail with a FormatError that holds want, and holds the memory that it takes on
// the way to 64 MiB in all, garbage included. The time is reported, not judged: machines differ.
func bounded(t *testing.T, name string, files map[string][]byte, want string) {
	t.Helper()
	dir := folder(t, files)
	clear(files)
	runtime.GC()
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(allocated)
	before, start := allocated[0].Value.Uint64(), time.Now()
	c, err := Open(dir)
	took := time.Since(start)
	metrics.Read(allocated)
	used := allocated[0].Value.Uint64() - before
	if err == nil {
		c.Close()
	}
	var refusal *FormatError
	if !errors.As(err, &refusal) || !strings.Contains(err.Error(), want) || refusal.File == "" || refusal.Remedy == "" {
		t.Errorf("%s: %v, want a FormatError with %q", name, err, want)
	}
	if used > 64<<20 {
		t.Errorf("%s: took %d MiB on the way to its refusal, more than 64", name, used>>20)
	}
	t.Logf("%s: %v, %d KiB: %v", name, took.Round(10*time.Microsecond), used>>10, err)
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// attack is a hostile folder and what its refusal says.
type attack struct {
	name  string
	files map[string][]byte
	want  string
}

// attacks are the classes of parser faults that other programs had, each with an instance of ours.
func attacks() []attack {
	config := func() []byte { return []byte(`{"model_type":"olmoe"}`) }
	one := func(entry string, data int) map[string][]byte {
		return map[string][]byte{"config.json": config(), "model.safetensors": safetensors(`{`+entry+`}`, make([]byte, data))}
	}
	gguf := func(change func(w *ggufWriter)) map[string][]byte {
		w := mixtralLike()
		w.mixtralTensors()
		change(w)
		return map[string][]byte{"m.gguf": w.bytes()}
	}
	raw := func(entries, tensors uint64, rest ...byte) map[string][]byte {
		out := append([]byte("GGUF"), words(3)...)
		out = binary.LittleEndian.AppendUint64(out, tensors)
		out = binary.LittleEndian.AppendUint64(out, entries)
		return map[string][]byte{"m.gguf": append(out, rest...)}
	}
	huge := binary.LittleEndian.AppendUint64(nil, 1<<62)
	array := func(kind uint32, count []byte) []byte { // metadata entry "k" that is an array
		return slices.Concat([]byte{1, 0, 0, 0, 0, 0, 0, 0, 'k'}, words(9, kind), count)
	}
	return []attack{
		// Declared size or offset beyond the file.
		{"tensor beyond the file", one(`"a":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4000000]}`, 16), "truncated"},
		{"GGUF tensor beyond the file", gguf(func(w *ggufWriter) { w.tensor("x", 0, nil, 1<<40) }), "truncated"},
		// Byte sizes that wrap.
		{"shape product wraps to 4", one(`"a":{"dtype":"U8","shape":[4294967296,4294967296,4294967296,4],"data_offsets":[0,4]}`, 4), "overflows"},
		{"GGUF shape product wraps", gguf(func(w *ggufWriter) { w.tensor("x", 0, nil, 1<<32, 1<<32, 4) }), "overflows"},
		// Lengths of 2^62 in files of some dozen bytes.
		{"GGUF with 2^62 tensors", raw(0, 1<<62), "more than the 65536"},
		{"GGUF with 2^62 metadata entries", raw(1<<62, 0), "more than the 4096"},
		{"GGUF key of 2^62 bytes", raw(1, 0, append(huge, make([]byte, 8)...)...), "metadata key of 4611686018427387904 bytes"},
		{"GGUF array of 2^62 strings", raw(1, 0, array(8, huge)...), "elements of k, more than"},
		{"GGUF array of 2^62 bytes", raw(1, 0, array(0, huge)...), "elements of k, more than"},
		{"GGUF string of 2^62 bytes", raw(1, 0, slices.Concat([]byte{1, 0, 0, 0, 0, 0, 0, 0, 'k'}, words(8), huge)...), "the text of k of"},
		// Alignment.
		{"GGUF alignment of 0", gguf(func(w *ggufWriter) { w.number("general.alignment", 0) }), "0 is not a power of two"},
		{"GGUF alignment of 48", gguf(func(w *ggufWriter) { w.number("general.alignment", 48) }), "48 is not a power of two"},
		{"GGUF alignment of 2^31", gguf(func(w *ggufWriter) { w.number("general.alignment", 1<<31) }), "not a power of two up to"},
		{"GGUF alignment that is a text", gguf(func(w *ggufWriter) { w.string("general.alignment", "32") }), "of type string, want u32"},
		// Array elements of another type than the reader casts them to.
		{"GGUF tokens that are numbers", gguf(func(w *ggufWriter) { w.put("tokenizer.ggml.tokens", 9, []uint32{4, 2, 0, 7, 7}) }), "is an array of u32, want an array of strings"},
		// Counts beyond what a program has arrays for.
		{"GGUF of 2^32-1 layers whose drafting layers are all of them", gguf(func(w *ggufWriter) { w.number("llama.nextn_predict_layers", math.MaxUint32) }), "4294967295 of 1 layers"},
		{"GGUF with a stack of 2^20 experts", gguf(func(w *ggufWriter) { w.tensor("blk.1.ffn_up_exps.weight", 24, make([]byte, 1<<20), 1, 1, 1<<20) }), "is not a stack of experts"},
		// Vocabulary.
		{"GGUF with more types than tokens", gguf(func(w *ggufWriter) {
			w.strings("tokenizer.ggml.tokens", "a")
			w.put("tokenizer.ggml.token_type", 9, []uint32{5, 2, 0, 1, 1})
		}), "2 types for 1 tokens"},
		{"GGUF whose end token is outside the vocabulary", gguf(func(w *ggufWriter) {
			w.strings("tokenizer.ggml.tokens", "a")
			w.number("tokenizer.ggml.eos_token_id", 1<<31)
		}), "2147483648 is outside the vocabulary of 1"},
		// safetensors headers.
		{"header of 200 MB", map[string][]byte{"config.json": config(), "model.safetensors": binary.LittleEndian.AppendUint64(nil, 200<<20)}, "exceeds"},
		{"header of 2^64-1 bytes", map[string][]byte{"config.json": config(), "model.safetensors": binary.LittleEndian.AppendUint64(nil, math.MaxUint64)}, "exceeds"},
		{"end before begin", one(`"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}`, 16), "backwards"},
		{"negative offset", one(`"a":{"dtype":"F32","shape":[4],"data_offsets":[-16,0]}`, 16), `'-' where a whole number`},
		{"overlap", one(`"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}`, 16), "overlaps"},
		{"gap", one(`"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}`, 8), "gap"},
		{"zero-size tensor within another", one(`"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}`, 16), "overlaps"},
		{"shape does not give the length", one(`"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}`, 16), "needs 12 bytes"},
		// JSON.
		{"deep nesting in a header", one(`"a":`+strings.Repeat("[", 1<<20), 0), `'[' where`},
		{"deep nesting in the index", map[string][]byte{"config.json": config(), index: []byte(`{"metadata":` + strings.Repeat(`{"a":`, 1<<18))}, "nested too deeply"},
		{"deep nesting in config.json", map[string][]byte{"config.json": []byte(`{"quantization_config":` + strings.Repeat(`{"a":`, 1<<18)), "model.safetensors": safetensors("{}", nil)}, "depth"},
		{"NaN", one(`"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}`, 16), `'N' where a whole number`},
		{"duplicate key", one(`"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"\u0061":{"dtype":"F32","shape":[0],"data_offsets":[16,16]}`, 16), "duplicate"},
		{"invalid UTF-8", one("\"a\xff\":{}", 0), "UTF-8"},
		{"byte order mark", map[string][]byte{"config.json": config(), "model.safetensors": safetensors("\ufeff{}", nil)}, "does not start with '{'"},
		{"a string without an end", one(`"`+strings.Repeat("a", 1<<22), 0), "a string that does not end"},
		{"a number without an end", one(`"a":{"dtype":"F32","shape":[1`+strings.Repeat("0", 1<<20)+`],"data_offsets":[0,0]}`, 0), "beyond 64 bits"},
		// Names that leave the folder.
		{"parent folder in the index", map[string][]byte{"config.json": config(), index: []byte(`{"weight_map":{"a":"../../etc/x.safetensors"}}`)}, "not a plain .safetensors name"},
	}
}

// longAttacks are the longest files that are read at all, wrong at their very end.
func longAttacks() []attack {
	config := func() []byte { return []byte(`{"model_type":"olmoe"}`) }
	return []attack{
		{"12 MB of tensors, the last one cut off", map[string][]byte{"config.json": config(), "model.safetensors": safetensors(`{`+repeated(1<<16-1, `"%0130d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}`)+`,"a`, nil)}, "a string that does not end"},
		{"12 MB of metadata", map[string][]byte{"config.json": config(), "model.safetensors": safetensors(`{"__metadata__":{`+repeated(4096, `"%d":"`+strings.Repeat("x", 3_000)+`"`)+`},"a":{}}`, nil)}, "dtype or shape missing"},
		{"31 MB of an index, wrong at its end", map[string][]byte{"config.json": config(), index: []byte(`{"weight_map":{` + repeated(1<<18-1, `"%0100d":"m.safetensors"`) + `,"a":1}}`)}, `'1' where '"'`},
		{"GGUF with 24 MB of tokens, wrong at their end", func() map[string][]byte {
			w := mixtralLike()
			w.mixtralTensors()
			list := slices.Repeat([]string{strings.Repeat("x", 39)}, 1<<19-1)
			w.strings("tokenizer.ggml.tokens", append(list, "\xff")...)
			return map[string][]byte{"m.gguf": w.bytes()}
		}(), "is not UTF-8"},
	}
}

// A bad file must be refused before its claims cost memory.
func TestKnownAttacksOnParsersAreRefusedCheaply(t *testing.T) {
	for _, list := range []func() []attack{attacks, longAttacks} {
		for _, a := range list() {
			bounded(t, a.name, a.files, a.want)
		}
	}
}

// seeds hands the hostile files of that name to a fuzz target, but for long ones.
func seeds(name string, add func(file []byte)) {
	for _, a := range attacks() {
		if file := a.files[name]; file != nil && len(file) < 1<<16 {
			add(file)
		}
	}
}

// Whatever opens can be read: all tensors lie inside the file, and a module of any form gives its values or an error.
func FuzzGGUF(f *testing.F) {
	whole := mixtralLike()
	whole.mixtralTensors()
	f.Add(whole.bytes())
	fused := mixtralLike()
	fused.fusedTensors()
	f.Add(fused.bytes())
	seeds("m.gguf", func(file []byte) { f.Add(file) })
	f.Fuzz(func(t *testing.T, file []byte) {
		c, err := Open(folder(t, map[string][]byte{"m.gguf": file}))
		if err != nil {
			return
		}
		defer c.Close()
		var s Scratch
		for _, name := range c.Names() {
			tensor, _ := c.Tensor(name)
			if module, ok := strings.CutSuffix(name, ".weight"); ok && len(tensor.Shape) == 2 && tensor.Bytes() < 1<<20 {
				_, _ = c.Source(module, int(tensor.Shape[0]), int(tensor.Shape[1]), &s)
				s.Reset()
			}
		}
	})
}

// A file that shrinks after it was opened gives an error when its tensors are read; a mapped file would end the process.
func TestAFileThatShrinksIsAnError(t *testing.T) {
	dir := folder(t, map[string][]byte{"config.json": []byte(`{}`), "model.safetensors": safetensors(`{"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}`, make([]byte, 16))})
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	path := filepath.Join(dir, "model.safetensors")
	if err := os.Truncate(path, 80); err != nil {
		t.Fatal(err)
	}
	_, err = c.Source("a", 2, 2, new(Scratch))
	var refusal *FormatError
	if !errors.As(err, &refusal) || refusal.Tensor != "a.weight" || refusal.Offset < 8 {
		t.Errorf("a shorter file gives %v", err)
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":8,"x":[1,{"y":null}]},"weight_map":{"a":"m-1.safetensors","b\u0020":"m-2.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../m.safetensors"}}`))
	seeds(index, func(file []byte) { f.Add(file) })
	f.Fuzz(func(t *testing.T, text []byte) {
		s := newJSONStream(bytes.NewReader(text))
		s.skip(8)
		s.end()
		if s.err == nil && s.at() > int64(len(text)) {
			t.Fatalf("read %d of %d bytes", s.at(), len(text))
		}
		c, err := Open(folder(t, map[string][]byte{"config.json": []byte("{}"), index: text,
			"m-1.safetensors": safetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, floats(1))}))
		if err != nil {
			return
		}
		defer c.Close()
		if names := fmt.Sprint(c.Names()); names != "[a]" {
			t.Fatalf("tensors %s", names)
		}
	})
}
