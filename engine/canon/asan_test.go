//go:build asan

package canon

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"
)

// planted are mistakes that a sanitizer must end the process for.
var planted = map[string]struct {
	make func()
	want string
}{
	"overflow":   {func() { RuleNorm(make([]float32, 64), make([]float32, 8), 1e-5, false) }, "AddressSanitizer: "},
	"misaligned": {func() { RuleSum(unsafe.Slice((*float32)(unsafe.Pointer(&make([]byte, 65)[1])), 16)) }, "runtime error: load of misaligned address"},
}

// With `make asan` only. What the other tests find nothing of, this finds: reads behind a slice, and undefined behaviour.
func TestSanitizersSeePlantedMistakes(t *testing.T) {
	const name = "COVEY_PLANTED"
	if p, ok := planted[os.Getenv(name)]; ok {
		p.make()
		return
	}
	for what, p := range planted {
		c := exec.Command(os.Args[0], "-test.run=^TestSanitizersSeePlantedMistakes$")
		c.Env = append(os.Environ(), name+"="+what)
		if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), p.want) {
			t.Errorf("%s: %v, want %q:\n%s", what, err, p.want, out)
		}
	}
}
