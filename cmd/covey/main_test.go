package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"covey/daemon"
)

const (
	testModel     = "../../models/smollm2-moe-32x"
	testOracles   = "../../engine/check/testdata/oracles"
	testTokenizer = "../../engine/tokenizer/testdata/kinds/smollm_digits"
)

// asProgram makes the test binary behave as covey: processes are needed to see signals and exit codes.
const asProgram = "TEST_RUN_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		main()
	}
	os.Exit(m.Run())
}

// covey runs a command line in this process.
func covey(t *testing.T, environ []string, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(args, environ, &console{in: strings.NewReader(stdin), out: &out, err: &errs})
	return code, out.String(), errs.String()
}

func TestExitCodesTellWhoCanMendIt(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name    string
		environ []string
		args    []string
		want    int
		says    string
	}{
		{"help", nil, []string{"--help"}, 0, ""},
		{"nothing is help", nil, nil, 0, ""},
		{"unknown verb", nil, []string{"sing"}, 2, "sing"},
		{"unknown flag", nil, []string{"version", "--loud"}, 2, "--loud"},
		{"bad flag value", nil, []string{"config", "--threads", "many"}, 2, "many"},
		{"bad variable value", []string{"COVEY_THREADS=many"}, []string{"config"}, 2, "COVEY_THREADS"},
		{"unknown variable", []string{"COVEY_THREAD=1"}, []string{"version"}, 2, "COVEY_THREADS"},
		{"setting out of range", nil, []string{"config", "--max-sockets", "0"}, 2, "max-sockets"},
		{"the remedy of a setting out of range", nil, []string{"config", "--max-sockets", "0"}, 2, "choose 1 to 65536"},
		{"the remedy of a public address", nil, []string{"config", "--addr", "0.0.0.0:0"}, 2, "--allow-plain"},
		{"unknown kernels", nil, []string{"config", "--isa", "mmx"}, 2, "use one of portable"},
		{"endless configuration", nil, []string{"config", "--config", "/dev/zero"}, 2, "more than the 1048576 bytes"},
		{"missing prompt", nil, []string{"run"}, 2, "--prompt"},
		{"no model", nil, []string{"run", "--prompt", "x", "--model", folder}, 3, "config.json"},
		{"model is a file", nil, []string{"run", "--prompt", "x", "--model", file}, 3, "model folder"},
		{"sampling out of range", nil, []string{"run", "--prompt", "x", "--model", testModel, "--temperature", "9"}, 2, "temperature is 9, want 0 to 2"},
		{"prompt beyond the context", nil, []string{"run", "--prompt", "one two three", "--model", testModel, "--context", "4"}, 3, "shorten the prompt"},
		{"prompt without a token", nil, []string{"run", "--raw", "--prompt", "", "--model", testModel}, 3, "no token"},
		{"no oracle", nil, []string{"check", "oracle", folder}, 3, folder},
		{"no cases", nil, []string{"check", "tokenizer", folder}, 3, folder},
		{"no atlas", nil, []string{"atlas", "show", filepath.Join(folder, "none")}, 3, "none"},
		{"not an atlas", nil, []string{"atlas", "show", file}, 3, "file"},
		{"data folder is a file", nil, []string{"token", "--data", file}, 4, "--data"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			code, _, stderr := covey(t, c.environ, "", c.args...)
			if code != c.want || !strings.Contains(stderr, c.says) {
				t.Errorf("exit code %d, want %d; stderr (should name %q):\n%s", code, c.want, c.says, stderr)
			}
		})
	}
}

func TestLostResultsAreAFailureOfTheEnvironment(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--help"}, {"config"}, {"run", "--model", testModel, "--prompt", "Hi", "--max-tokens", "1"},
		{"run", "--json", "--model", testModel, "--prompt", "Hi", "--max-tokens", "1"}} {
		var errs bytes.Buffer
		code := run(args, nil, &console{in: strings.NewReader(""), out: fullDisk{}, err: &errs})
		if code != 4 || !strings.Contains(errs.String(), "could not be written to standard output: no space left on device") {
			t.Errorf("%v: exit code %d:\n%s", args, code, errs.String())
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestForeignTextCannotSteerATerminal(t *testing.T) {
	const hostile = "a\x1b]0;title\x07\tb\r\n\u009b2Jé"
	const harmless = "a\uFFFD]0;title\uFFFD\tb\uFFFD\n\uFFFD2Jé"
	var out bytes.Buffer
	w := (&console{out: &out, screen: true}).foreign()
	for _, b := range []byte(hostile) { // characters arrive in pieces
		if n, err := w.Write([]byte{b}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if out.String() != harmless {
		t.Errorf("a terminal gets %q, want %q", out.String(), harmless)
	}
	out.Reset()
	io.WriteString((&console{out: &out}).foreign(), hostile)
	if out.String() != hostile {
		t.Errorf("a pipe gets %q, want the text as it is", out.String())
	}
	var errs bytes.Buffer
	(&console{err: &errs}).fail(errors.New(hostile))
	if want := "covey: " + harmless + "\n"; errs.String() != want {
		t.Errorf("an error reads %q, want %q", errs.String(), want)
	}
}

func TestNoFlagOfAVerbShadowsASetting(t *testing.T) {
	parser, err := kong.New(&cli{}, kong.Vars{"data": "", "version": ""})
	if err != nil {
		t.Fatal(err)
	}
	settings, err := kong.New(&daemon.Config{}, kong.Vars{"data": ""}, kong.NoDefaultHelp())
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]string{}
	for _, f := range settings.Model.Flags {
		declared[f.Name] = f.Default
	}
	for _, leaf := range parser.Model.Leaves(false) {
		for _, f := range leaf.Flags {
			if value, ok := declared[f.Name]; ok && !f.Tag.Has("local") && f.Default != value {
				t.Errorf("%s --%s has the default %q, the setting %q: tag it local or rename it", leaf.FullPath(), f.Name, f.Default, value)
			}
		}
	}
}

func TestEverySettingAndVerbIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/command-line.md")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := kong.New(&daemon.Config{}, kong.Vars{"data": ""}, kong.NoDefaultHelp())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range settings.Model.Flags {
		if !strings.Contains(string(text), "`"+f.Name+"`") {
			t.Errorf("the setting %s is not in docs/command-line.md", f.Name)
		}
	}
	parser, err := kong.New(&cli{}, kong.Vars{"data": "", "version": ""})
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range parser.Model.Leaves(false) {
		if verb := strings.TrimPrefix(leaf.Path(), " "); !strings.Contains(string(text), "`"+verb) {
			t.Errorf("the verb %q is not in docs/command-line.md", verb)
		}
	}
}

func TestConfigPrintsValuesAndWhereTheyCameFrom(t *testing.T) {
	file := filepath.Join(t.TempDir(), "covey.toml")
	if err := os.WriteFile(file, []byte("drain = 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, stderr := covey(t, []string{"COVEY_KV=bf16"}, "", "--config", file, "config", "--threads", "2", "--json")
	if code != 0 {
		t.Fatal(stderr)
	}
	var all map[string]struct {
		Value any
		From  string
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		value any
		from  string
	}{
		"threads": {2.0, "flag"}, "kv": {"bf16", "COVEY_KV"}, "drain": {3.0, file + ":1"}, "addr": {"127.0.0.1:8420", "default"},
	} {
		if got := all[name]; got.Value != want.value || got.From != want.from {
			t.Errorf("%s is %v from %q, want %v from %q", name, got.Value, got.From, want.value, want.from)
		}
	}
	_, plain, _ := covey(t, nil, "", "config")
	path := filepath.Join(t.TempDir(), "printed.toml")
	if err := os.WriteFile(path, []byte(plain), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := covey(t, nil, "", "--config", path, "config"); code != 0 {
		t.Errorf("what config prints is no configuration file: %s", stderr)
	}
}

func TestTokenIsPrintedAndRotated(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	_, first, _ := covey(t, nil, "", "token", "--data", dir)
	_, again, _ := covey(t, []string{"COVEY_DATA=" + dir}, "", "token")
	_, rotated, _ := covey(t, nil, "", "token", "--data", dir, "--rotate")
	if len(first) != 44 || again != first || len(rotated) != 44 || rotated == first {
		t.Errorf("tokens %q, %q, %q", first, again, rotated)
	}
}

func TestChecksReportAndFail(t *testing.T) {
	for _, arch := range []string{"glm4_moe", "olmoe", "qwen3_moe"} {
		code, out, stderr := covey(t, nil, "", "check", "oracle", filepath.Join(testOracles, arch), "--json")
		var r map[string]any
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%s: %v: %s", arch, err, stderr)
		}
		for _, key := range []string{"max_abs_diff", "max_abs_logit", "argmax_agree", "greedy", "greedy_total", "experts_agree", "kl_mean", "pass"} {
			if _, ok := r[key]; !ok {
				t.Errorf("%s: no %q in %s", arch, key, out)
			}
		}
		if code != 0 || r["pass"] != true {
			t.Errorf("%s: exit code %d: %s", arch, code, out)
		}
	}
	code, out, _ := covey(t, nil, "", "check", "tokenizer", testTokenizer, "--json")
	if code != 0 || !strings.Contains(out, `"pass":true`) {
		t.Errorf("tokenizer: exit code %d: %s", code, out)
	}
	wrong := t.TempDir() // the same tokenizer with a case that it does not meet
	raw, err := os.ReadFile(filepath.Join(testTokenizer, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(wrong, "tokenizer.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(wrong, "cases.jsonl"), []byte(`{"text": "a", "ids": [1, 2, 3], "ids_no_special": [1, 2, 3], "decoded": "x", "decoded_skip": "x"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := covey(t, nil, "", "check", "tokenizer", wrong); code != 1 || stderr == "" {
		t.Errorf("a failed check: exit code %d, stderr %q; want 1 and a sentence", code, stderr)
	}
}

func TestRunAnswersOnStandardOutputAndReportsAsJSON(t *testing.T) {
	args := []string{"run", "--model", testModel, "--prompt", "The capital of France is", "--raw", "--temperature", "0", "--max-tokens", "8", "--context", "512"}
	code, text, stderr := covey(t, nil, "", args...)
	if code != 0 || !strings.HasSuffix(text, "\n") || !strings.Contains(stderr, "first token after") {
		t.Fatalf("exit code %d, text %q, stderr %q", code, text, stderr)
	}
	var r runReport
	_, out, _ := covey(t, nil, "", append(args, "--json", "--threads", "1")...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Text+"\n" != text || r.Tokens != 8 || len(r.IDs) != 8 || r.PromptTokens == 0 || r.Prefill <= 0 || r.Decode <= 0 || r.FirstToken <= 0 || len(r.Hash) != 64 || r.NumericsID == "" {
		t.Errorf("report %s, text %q", out, text)
	}
	_, fromInput, _ := covey(t, nil, "The capital of France is", "run", "--model", testModel, "--prompt", "-", "--raw", "--temperature", "0", "--max-tokens", "8", "--context", "512", "--json")
	var second runReport
	if err := json.Unmarshal([]byte(fromInput), &second); err != nil || second.Hash != r.Hash {
		t.Errorf("the same prompt from standard input with other threads: hash %s, want %s (%v)", second.Hash, r.Hash, err)
	}
}

func TestBenchReportsEveryRun(t *testing.T) {
	for _, what := range []string{"decode", "prefill", "read"} {
		code, out, stderr := covey(t, nil, "", "bench", what, "--model", testModel, "--context", "512", "--runs", "1", "--prompt", "16", "--tokens", "4", "--json")
		var r benchReport
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
			t.Fatalf("%s: exit code %d, error %v, stderr %s", what, code, err, stderr)
		}
		if (r.Decode > 0) != (what == "decode") || (r.Prefill > 0) != (what != "read") || r.Read <= 0 || r.Runs != 1 || len(r.ReadRuns) != 1 || len(r.DecodeRuns) > 1 || len(r.PrefillRuns) > 1 {
			t.Errorf("%s: %s", what, out)
		}
		if what != "read" && (r.NumericsID == "" || r.BytesPerToken == 0 || r.Threads == 0) {
			t.Errorf("%s does not say what was measured: %s", what, out)
		}
	}
}

// Several answers at once read more experts a step than one, and fewer bytes a token.
func TestBenchMeasuresAnswersAtOnce(t *testing.T) {
	code, out, stderr := covey(t, nil, "", "bench", "decode", "--model", testModel, "--context", "128", "--runs", "1", "--prompt", "4", "--tokens", "12", "--batch", "3", "--json")
	var r benchReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		t.Fatalf("exit code %d, error %v, stderr %s", code, err, stderr)
	}
	if one := float64(r.BytesPerToken); r.Batch != 3 || r.Decode <= 0 || r.BytesPerStep <= one || r.BytesPerStep >= 3*one || r.Used <= 0 || r.Fraction <= 0 {
		t.Errorf("three answers at once: %s", out)
	}
}

func TestBenchServeSeesAQuestionPassALongText(t *testing.T) {
	code, out, stderr := covey(t, nil, "", "bench", "serve", "--model", testModel, "--context", "1024", "--batch-rows", "32", "--conversations", "3",
		"--runs", "1", "--prompt", "8", "--tokens", "16", "--long", "400", "--json")
	var r serveReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		t.Fatalf("exit code %d, error %v, stderr %s", code, err, stderr)
	}
	if len(r.Together) != 3 || r.Together[2].Conversations != 3 || r.Together[2].Decode <= 0 || r.Gain <= 0 {
		t.Errorf("1, 2 and 3 conversations: %+v", r.Together)
	}
	for name, q := range map[string]questioning{"question": r.Question, "question beside an answer": r.Beside} {
		if len(q.Steps) != 1 || q.Steps[0] < 1 || q.Steps[0] > 9 || q.FirstMS <= 0 || q.StepMS <= 0 {
			t.Errorf("%s: %+v; the text's last two thirds take at least 9 steps", name, q)
		}
	}
	if r.Gaps.Median <= 0 || r.Alone.Median <= 0 || r.Gaps.Most < r.Gaps.Median {
		t.Errorf("gaps: %+v alone, %+v beside", r.Alone, r.Gaps)
	}
}

func TestBenchServeSaysWhenConversationsDoNotFitAtOnce(t *testing.T) {
	code, out, stderr := covey(t, nil, "", "bench", "serve", "--model", testModel, "--context", "64", "--kv-tokens", "64", "--batch-rows", "8", "--conversations", "2",
		"--runs", "1", "--prompt", "8", "--tokens", "16", "--long", "32", "--json")
	if code != 2 || out != "" || !strings.Contains(stderr, "2 conversations were not answered at once") || !strings.Contains(stderr, "--kv-tokens") {
		t.Errorf("exit code %d, output %q, stderr %s", code, out, stderr)
	}
}

func TestPlanRefusesWithTheReason(t *testing.T) {
	for _, c := range []struct {
		args  []string
		code  int
		fits  bool
		says  string // in the reason
		cache int64
	}{
		{[]string{testModel, "--memory", "2048", "--context", "1024", "--sequences", "1"}, 0, true, "", 2048 * 23040},
		{[]string{testModel, "--memory", "300", "--kv-tokens", "8192"}, 0, true, "", 8192 * 23040},
		{[]string{"--model", testModel, "--memory", "200"}, 1, false, "lower the context (8192 tokens", 8192 * 23040},
		{[]string{testModel, "--memory", "60"}, 1, false, "covey convert", 8192 * 23040},
		{[]string{testModel, "--memory", "2048", "--kv-tokens", "8192", "--device", "cuda:77"}, 1, false, "", 8192 * 23040},
	} {
		code, out, stderr := covey(t, nil, "", append([]string{"plan", "--json"}, c.args...)...)
		var r planReport
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v: %v, stderr %s", c.args, err, stderr)
		}
		if code != c.code || r.Fits != c.fits || !strings.Contains(r.Reason, c.says) || (r.Reason == "") != c.fits {
			t.Errorf("%v: exit code %d, fits %t, reason %q", c.args, code, r.Fits, r.Reason)
		}
		if r.Records != 928 || r.TokenBytes != 23040 || r.Weights < 100e6 || r.Cache != c.cache || r.Resident != r.Weights+r.Cache {
			t.Errorf("%v: %+v, want a cache of %d bytes", c.args, r, c.cache)
		}
	}
	folder := t.TempDir()
	if code, _, stderr := covey(t, nil, "", "plan", folder); code != 3 || !strings.Contains(stderr, "config.json") {
		t.Errorf("a folder without a model: exit code %d, %s", code, stderr)
	}
}

func TestVersionNamesWhatResultsDependOn(t *testing.T) {
	ids := map[string]string{}
	for _, kv := range []string{"f16", "f32"} {
		code, out, stderr := covey(t, nil, "", "version", "--model", testModel, "--kv", kv, "--json")
		var v versionInfo
		if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 {
			t.Fatalf("exit code %d, error %v, stderr %s", code, err, stderr)
		}
		if v.Rules == 0 || v.ISA == "" || len(v.Kernels) == 0 || len(v.NumericsID) != 12 || len(v.Hash) != 64 || !strings.Contains(v.Numerics, kv) {
			t.Errorf("%s", out)
		}
		ids[v.NumericsID] = kv
	}
	if len(ids) != 2 {
		t.Errorf("another form of the KV cache has the same numerics id: %v", ids)
	}
	code, out, _ := covey(t, nil, "", "version") // no model beside the tests
	if code != 0 || !strings.HasPrefix(out, "covey ") || strings.Contains(out, "numerics id") {
		t.Errorf("without a model: exit code %d, %s", code, out)
	}
}

func TestMedianOfRuns(t *testing.T) {
	for _, c := range []struct {
		runs []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{5, 1, 3}, 3}, {[]float64{4, 1, 2, 3}, 2.5}} {
		if got := median(c.runs); got != c.want {
			t.Errorf("median of %v: %v, want %v", c.runs, got, c.want)
		}
	}
}

func TestChatKeepsTheConversationAndObeysCommands(t *testing.T) {
	script := "/help\nMy name is Ada.\n\"\"\"\nline one\nline two\n\"\"\"\n/system Answer in French.\n/nonsense\n/reset\n/quit\nnever read\n"
	code, out, stderr := covey(t, nil, script, "chat", "--model", testModel, "--temperature", "0", "--max-tokens", "4", "--context", "512")
	if code != 0 {
		t.Fatal(stderr)
	}
	if n := strings.Count(out, "prompt tokens at"); n != 2 {
		t.Errorf("%d answers, want 2:\n%s", n, out)
	}
	for _, want := range []string{"/quit", "a new conversation", "there is no /nonsense"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestDoctorFindsTheBundledModelReady(t *testing.T) {
	code, out, stderr := covey(t, nil, "", "doctor", "--model", testModel, "--addr", "127.0.0.1:0", "--data", t.TempDir(), "--json")
	var r struct {
		Status   string
		Findings []struct{ Name, Status, Detail string }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || len(r.Findings) < 8 {
		t.Errorf("exit code %d, error %v: %s %s", code, err, out, stderr)
	}
	if code, _, _ := covey(t, nil, "", "doctor", "--model", t.TempDir(), "--addr", "127.0.0.1:0", "--data", t.TempDir()); code != 1 {
		t.Errorf("without a model: exit code %d, want 1", code)
	}
}

func TestDevicesThatAreNamedMustBeThere(t *testing.T) {
	doctor := func(device string) (int, string) {
		code, out, stderr := covey(t, nil, "", "doctor", "--model", testModel, "--addr", "127.0.0.1:0", "--data", t.TempDir(), "--device", device)
		return code, out + stderr
	}
	if code, says := doctor("cuda:77"); code != 1 || !strings.Contains(says, "there is no device cuda:77") {
		t.Errorf("a device that is not there: exit code %d, %s", code, says)
	}
	for device, want := range map[string]string{"gpu": `"gpu" is not known`, "cuda:0,cuda": "cuda:0 is named twice"} {
		if code, says := doctor(device); code != 2 || !strings.Contains(says, want) {
			t.Errorf("%s: exit code %d, %s", device, code, says)
		}
		if code, _, says := covey(t, nil, "", "plan", testModel, "--device", device); code != 2 || !strings.Contains(says, want) {
			t.Errorf("plan for %s: exit code %d, %s", device, code, says)
		}
	}
}

// program starts covey as a process.
func program(t *testing.T, args ...string) (cmd *exec.Cmd, stdout *bufio.Reader, stderr *bytes.Buffer) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(exe, args...)
	cmd.Env = []string{asProgram + "=1", "HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, bufio.NewReader(pipe), stderr
}

func TestServePrintsItsLinkFirstAndStopsInOrder(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	cmd, out, stderr := program(t, "serve", "--addr", "127.0.0.1:0", "--data", data, "--model", testModel, "--context", "512")
	link, err := out.ReadString('\n')
	if err != nil || !strings.HasPrefix(link, "http://127.0.0.1:") || !strings.Contains(link, "/?token=") {
		t.Fatalf("first line %q, error %v, stderr %s", link, err, stderr)
	}
	token, err := os.ReadFile(filepath.Join(data, "token"))
	if err != nil || !strings.HasSuffix(link, strings.TrimSpace(string(token))+"\n") {
		t.Errorf("the link does not carry the token of the data folder: %v", err)
	}
	addr, _, _ := strings.Cut(strings.TrimPrefix(link, "http://"), "/")
	resp, err := http.Get("http://" + addr + "/healthz")
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("healthz: %v %v", resp, err)
	}
	resp.Body.Close()

	second, _, errs := program(t, "serve", "--addr", addr, "--data", t.TempDir(), "--model", testModel)
	if second.Wait(); second.ProcessState.ExitCode() != 4 || !strings.Contains(errs.String(), "in use") {
		t.Errorf("a second daemon on %s: exit code %d, stderr %s", addr, second.ProcessState.ExitCode(), errs)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("more than the link on standard output: %q %v", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v, stderr %s", err, stderr)
	}
}

func TestAnInterruptedRunSaysSo(t *testing.T) {
	cmd, out, stderr := program(t, "run", "--model", testModel, "--prompt", "Once upon a time", "--raw", "--ignore-eos", "--max-tokens", "100000", "--context", "4096", "--kv-tokens", "4096")
	if _, err := out.ReadByte(); err != nil { // it generates
		t.Fatalf("%v, stderr %s", err, stderr)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, out)
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 130 || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("exit code %d, stderr %s", cmd.ProcessState.ExitCode(), stderr)
	}
}

// waitFor asks until the answer contains a text.
func waitFor(t *testing.T, url, token, text string) {
	t.Helper()
	for range 3000 {
		if strings.Contains(get(t, url, token), text) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s never said %q", url, text)
}

func get(t *testing.T, url, token string) string {
	t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestASecondSignalEndsTheProcessAtOnce(t *testing.T) {
	cmd, out, stderr := program(t, "serve", "--addr", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data"), "--model", testModel, "--context", "512", "--drain", "60")
	link, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("%v, stderr %s", err, stderr)
	}
	addr, token, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(link, "http://")), "/?token=")
	waitFor(t, "http://"+addr+"/readyz", token, `"ready":true`)
	// A request whose body never comes keeps the daemon draining.
	body, feed := io.Pipe()
	defer feed.Close()
	r, err := http.NewRequest("POST", "http://"+addr+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", token)
	go http.DefaultClient.Do(r)
	waitFor(t, "http://"+addr+"/metrics", token, "covey_http_in_flight 2") // this look and the request
	cmd.Process.Signal(os.Interrupt)
	cmd.Process.Signal(syscall.SIGTERM) // another one: two equal signals may arrive as one
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("exit code %d, want 130; stderr %s", cmd.ProcessState.ExitCode(), stderr)
	}
}
