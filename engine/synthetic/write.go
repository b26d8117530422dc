package synthetic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
)

// shardBytes is where a new file begins.
const shardBytes = 2 << 30

// Write makes dir, which must not exist or be empty, into a checkpoint: shards with their index, config.json, and a
// tokenizer of 256 bytes and a few markers. progress may be nil. What was written when an error came stays.
func Write(ctx context.Context, dir string, s Shape, progress func(done, total int64)) error {
	if err := s.check(); err != nil {
		return err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("synthetic: %s is not empty; name a new folder", dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("synthetic: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("synthetic: %w", err)
	}
	var shards [][]tensor
	var size int64
	for _, t := range s.tensors() {
		if len(shards) == 0 || size+t.bytes > shardBytes {
			shards, size = append(shards, nil), 0
		}
		size += t.bytes
		shards[len(shards)-1] = append(shards[len(shards)-1], t)
	}
	w := writer{ctx: ctx, seed: s.Seed, total: s.Bytes(), progress: progress}
	index := map[string]string{}
	for i, tensors := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		for _, t := range tensors {
			index[t.name] = name
		}
		if err := w.shard(filepath.Join(dir, name), tensors); err != nil {
			return fmt.Errorf("synthetic: writing %s: %w", name, err)
		}
	}
	for name, value := range map[string]any{
		"config.json": s.config(), "tokenizer.json": tokenizer(), "tokenizer_config.json": tokenizerConfig,
		"model.safetensors.index.json": map[string]any{"metadata": map[string]any{"total_size": w.total}, "weight_map": index},
	} {
		text, err := json.Marshal(value, json.Deterministic(true))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("synthetic: writing %s: %w", name, err)
		}
	}
	return nil
}

type writer struct {
	ctx         context.Context
	seed        uint64
	done, total int64
	progress    func(done, total int64)
	buffer      [1 << 20]byte
}

// shard writes one safetensors file.
func (w *writer) shard(path string, tensors []tensor) (err error) {
	type entry struct {
		Type    string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	header, at := map[string]entry{}, int64(0)
	for _, t := range tensors {
		header[t.name] = entry{t.dtype, t.shape, [2]int64{at, at + t.bytes}}
		at += t.bytes
	}
	text, err := json.Marshal(header, json.Deterministic(true))
	if err != nil {
		return err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)); err != nil {
		return err
	}
	for _, t := range tensors {
		h := fnv.New64a()
		h.Write([]byte(t.name))
		r := &random{state: h.Sum64() ^ w.seed*0x9e3779b97f4a7c15}
		for left := t.bytes; left > 0; {
			if err := w.ctx.Err(); err != nil {
				return err
			}
			b := w.buffer[:min(left, int64(len(w.buffer)))]
			t.fill(r, b)
			if _, err := f.Write(b); err != nil {
				return err
			}
			left -= int64(len(b))
			w.done += int64(len(b))
		}
		if w.progress != nil {
			w.progress(w.done, w.total)
		}
	}
	return nil
}

// random is splitmix64: fast, and equal everywhere.
type random struct{ state uint64 }

func (r *random) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// filler writes the next bytes of a tensor; all but the last call of a tensor are for a multiple of 8 bytes.
type filler func(r *random, b []byte)

// words fills b with what f makes of each random word.
func words(r *random, b []byte, f func(uint64) uint64) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, f(r.next()))
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], f(r.next()))
		copy(b, last[:])
	}
}

// noise is uniform codes.
func noise(r *random, b []byte) { words(r, b, func(v uint64) uint64 { return v }) }

// weights are bf16 numbers of either sign whose magnitude is one to two times a power of two near inputs^-0.5.
func weights(inputs int) filler {
	exponent := uint64(127-int(math.Round(math.Log2(float64(inputs))/2+0.6))) << 7
	all := exponent | exponent<<16 | exponent<<32 | exponent<<48
	return func(r *random, b []byte) {
		words(r, b, func(v uint64) uint64 { return v&0x807f807f807f807f | all })
	}
}

// scales are bf16 numbers that give uniform codes a deviation of inputs^-0.5.
func scales(inputs, bits int) filler {
	spread := float64(int(1)<<bits) / math.Sqrt(12)
	base := uint64(math.Float32bits(float32(1/(spread*math.Sqrt(float64(inputs)))))>>16) &^ 7
	all := base | base<<16 | base<<32 | base<<48
	return func(r *random, b []byte) { words(r, b, func(v uint64) uint64 { return v&0x0007000700070007 | all }) }
}

func ones(r *random, b []byte) { words(r, b, func(uint64) uint64 { return 0x3f803f803f803f80 }) }

func zeros(_ *random, b []byte) { clear(b) }

// numbers are a few I64.
func numbers(v ...int) filler {
	return func(_ *random, b []byte) {
		for i, n := range v {
			binary.LittleEndian.PutUint64(b[8*i:], uint64(n))
		}
	}
}

// tokenizerConfig has a template of the common kind.
var tokenizerConfig = map[string]any{
	"bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
	"chat_template": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
}

// tokenizer is byte-level BPE without merges: ids 0 to 255 are bytes in the order of their printable stand-ins.
func tokenizer() map[string]any {
	vocab := map[string]int{}
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad { // what the byte-level alphabet moves behind 255
			r = next
			next++
		}
		vocab[string(r)] = b
	}
	var added []map[string]any
	for i, text := range []string{"<|im_start|>", "<|im_end|>"} {
		added = append(added, map[string]any{"id": 256 + i, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
	}
	return map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil,
		"pre_tokenizer":  map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"post_processor": nil,
		"decoder":        map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model":          map[string]any{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []string{}},
	}
}
