package tokenizer

import (
	"os"
	"strings"
	"testing"
)

const bundled = "../../models/smollm2-moe-32x"

// prose is the licence text repeated to n bytes, so most words come from the cache after the first tenth.
func prose(tb testing.TB, n int) string {
	data, err := os.ReadFile("../../LICENSE")
	if err != nil {
		tb.Fatal(err)
	}
	return strings.Repeat(string(data), n/len(data)+1)[:n]
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		if _, err := Load(bundled); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkEncode(b *testing.B, dir string) {
	t, err := Load(dir)
	if err != nil {
		b.Fatal(err)
	}
	text := prose(b, 1<<20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := t.Encode(text, false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeBundled(b *testing.B)   { benchmarkEncode(b, bundled) }
func BenchmarkEncodeLlama3(b *testing.B)    { benchmarkEncode(b, "testdata/kinds/llama3_cl100k") }
func BenchmarkEncodeO200k(b *testing.B)     { benchmarkEncode(b, "testdata/kinds/o200k") }
func BenchmarkEncodeDeepSeek(b *testing.B)  { benchmarkEncode(b, "testdata/kinds/deepseek_v3") }
func BenchmarkEncodeQwen2(b *testing.B)     { benchmarkEncode(b, "testdata/kinds/qwen2") }
func BenchmarkEncodeMetaspace(b *testing.B) { benchmarkEncode(b, "testdata/kinds/mixtral_metaspace") }
