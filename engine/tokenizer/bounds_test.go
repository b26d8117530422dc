package tokenizer

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// The longest files that are read at all, wrong as late as they can be: a refusal must not cost more than the file is worth.
// Memory counts all that was allocated on the way, garbage included, and the file's text; the time is reported, not judged.
func TestLongHostileFilesAreRefusedCheaply(t *testing.T) {
	const model = `{"model":{"type":"BPE","vocab":`
	list := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, test := range map[string]struct{ file, want string }{
		"32 MB of brackets":                            {strings.Repeat("[", MaxFileBytes), `'{' expected`},
		"32 MB of brackets in a field":                 {`{"normalizer":` + strings.Repeat("[", MaxFileBytes-14), "nesting of at most 64"},
		"32 MB of commas for a vocabulary":             {model + "{" + strings.Repeat(",", MaxFileBytes-40), "string expected"},
		"32 MB of commas for merges":                   {model + `{"a":0},"merges":[` + strings.Repeat(",", MaxFileBytes-60), "string expected"},
		"a string of 32 MB without an end":             {model + `{"` + strings.Repeat("x", MaxFileBytes-40), "string that ends within 1048576 bytes expected"},
		"a token of 31 MB":                             {model + `{"` + strings.Repeat("x", 31<<20) + `":0}}}`, "string that ends within 1048576 bytes expected"},
		"a number of 31 MB":                            {model + `{"a":` + strings.Repeat("1", 31<<20) + `}}}`, "',' expected"},
		"one token too many":                           {model + "{" + list(maxList+1, `"%06d":0`) + "}}}", "more than the 524288 tokens"},
		"30 MB of tokens, the last one without an id":  {model + "{" + list(maxList-1, `"%046d":1`) + `,"a":x}}}`, "whole number expected"},
		"28 MB of merges, the last one of three parts": {model + `{"a":0},"merges":[` + list(maxList-1, `"%020d %029d"`[:6]+`0 `+strings.Repeat("0", 38)+`"`) + `,"a a a"]}}`, "is not two tokens"},
		"an unknown side in the last merge":            {model + "{" + list(maxList, `"%06d":0`) + `},"merges":["000000 x"]}}`, "a side is not in the vocabulary"},
		"the largest file and a byte":                  {strings.Repeat(" ", MaxFileBytes+1), "is larger than 32 MiB"},
	} {
		files := fstest.MapFS{"tokenizer.json": {Data: []byte(test.file), Mode: 0o600}}
		test.file = ""
		runtime.GC()
		allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(allocated)
		before, start := allocated[0].Value.Uint64(), time.Now()
		_, err := LoadFS(files, "tokenizer.json")
		took := time.Since(start)
		metrics.Read(allocated)
		used := allocated[0].Value.Uint64() - before
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "tokenizer.json") {
			t.Errorf("%s: %v, want one with %q", name, err, test.want)
		}
		if used > 64<<20 {
			t.Errorf("%s: took %d MiB on the way to its refusal, more than 64", name, used>>20)
		}
		t.Logf("%s: %v, %d KiB: %v", name, took.Round(10*time.Microsecond), used>>10, err)
	}
}
