package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

type config struct {
	Addr       string   `default:"127.0.0.1:8420" group:"Server"`
	Threads    int      `default:"0"`
	AllowHost  []string ``
	AllowPlain bool     ``
}

type program struct {
	Config File `name:"config"`
	Serve  struct {
		config `embed:""`
	} `cmd:""`
	Check struct {
		Threads int `local:"" default:"7"`
	} `cmd:""`
}

// parse runs a command line over an environment and a configuration file ("" = none).
func parse(t *testing.T, args, environ []string, name, content string) (*program, []Value, error) {
	t.Helper()
	l, err := New(&config{}, nil, environ)
	if err != nil {
		return nil, nil, err
	}
	if content != "" {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"--config", path}, args...)
	}
	var p program
	parser, err := kong.New(&p, kong.Resolvers(l), kong.Bind(l))
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		return nil, nil, err
	}
	return &p, l.Effective(ctx), nil
}

func TestFlagBeatsEnvironmentBeatsFileBeatsDefault(t *testing.T) {
	file := "addr = \"file:1\"\nthreads = 3\nallow-host = [\"a\", \"b\"]\nallow-plain = true\n"
	cases := []struct {
		name     string
		args     []string
		environ  []string
		file     string
		addr     string
		threads  int
		addrFrom string
	}{
		{"default", []string{"serve"}, nil, "", "127.0.0.1:8420", 0, "default"},
		{"file", []string{"serve"}, nil, file, "file:1", 3, "covey.toml:1"},
		{"environment", []string{"serve"}, []string{"COVEY_ADDR=env:1", "COVEY_THREADS=2"}, file, "env:1", 2, "COVEY_ADDR"},
		{"flag", []string{"serve", "--addr", "flag:1", "--threads", "1"}, []string{"COVEY_ADDR=env:1", "COVEY_THREADS=2"}, file, "flag:1", 1, "flag"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, values, err := parse(t, c.args, c.environ, "covey.toml", c.file)
			if err != nil {
				t.Fatal(err)
			}
			if p.Serve.Addr != c.addr || p.Serve.Threads != c.threads {
				t.Errorf("got %q and %d, want %q and %d", p.Serve.Addr, p.Serve.Threads, c.addr, c.threads)
			}
			if from := values[0].From; !strings.HasSuffix(from, c.addrFrom) {
				t.Errorf("addr came from %q, want %q", from, c.addrFrom)
			}
			if c.file != "" && (!cmp.Equal(p.Serve.AllowHost, []string{"a", "b"}) || !p.Serve.AllowPlain) {
				t.Errorf("lists and switches of the file are lost: %v %v", p.Serve.AllowHost, p.Serve.AllowPlain)
			}
		})
	}
}

func TestJSONFileGivesTheSameTypes(t *testing.T) {
	p, values, err := parse(t, []string{"serve"}, nil, "covey.json", "{\n \"threads\": 4, \"allow-host\": [\"x\"],\n \"allow-plain\": true}")
	if err != nil {
		t.Fatal(err)
	}
	if p.Serve.Threads != 4 || !cmp.Equal(p.Serve.AllowHost, []string{"x"}) || !p.Serve.AllowPlain {
		t.Errorf("got %+v", p.Serve.config)
	}
	if !strings.HasSuffix(values[1].From, "covey.json:2") {
		t.Errorf("threads came from %q, want line 2", values[1].From)
	}
}

func TestUnknownNamesAreErrorsThatNameTheNearest(t *testing.T) {
	cases := []struct {
		name, file, content string
		environ             []string
		want                []string
	}{
		{"toml key", "c.toml", "addr = \"a:1\"\n\nthread = 2\n", nil, []string{"c.toml:3", `"thread"`, `"threads"`}},
		{"json key", "c.json", "{\"addr\": \"a:1\",\n\"allow_host\": []}", nil, []string{"c.json:2", `"allow_host"`, `"allow-host"`}},
		{"table", "c.toml", "[server]\naddr = \"a:1\"\n", nil, []string{"c.toml:1", `"server"`, "flat"}},
		{"variable", "", "", []string{"COVEY_THREAD=2"}, []string{"COVEY_THREAD:", "COVEY_THREADS"}},
		{"broken toml", "c.toml", "addr = \n", nil, []string{"c.toml", "line 1"}},
		{"json key twice", "c.json", "{\"threads\": 1,\n\"threads\": 2}", nil, []string{"c.json:2", "duplicate", `"threads"`}},
		{"json after the end", "c.json", "{}\n{}", nil, []string{"c.json:2"}},
		{"broken json", "c.json", "{\n\n\"addr\" 3}", nil, []string{"c.json:3"}},
		{"bad value", "c.toml", "threads = \"many\"\n", nil, []string{"threads", "many"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := parse(t, []string{"serve"}, c.environ, c.file, c.content)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
		})
	}
}

func TestFileNamedByTheEnvironmentIsReadUnlessAFlagNamesAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "env.toml")
	if err := os.WriteFile(path, []byte("threads = 9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, _, err := parse(t, []string{"serve"}, []string{"COVEY_CONFIG=" + path}, "", "")
	if err != nil || p.Serve.Threads != 9 {
		t.Errorf("threads %v, error %v; want 9", p, err)
	}
	p, _, err = parse(t, []string{"serve"}, []string{"COVEY_CONFIG=/does/not/exist"}, "flag.toml", "threads = 5\n")
	if err != nil || p.Serve.Threads != 5 {
		t.Errorf("threads %v, error %v; want 5", p, err)
	}
}

func TestLocalFlagsAndForeignVariablesAreLeftAlone(t *testing.T) {
	p, _, err := parse(t, []string{"check"}, []string{"COVEY_THREADS=2", "COVEY_LONG=1", "HOME=/"}, "", "")
	if err != nil || p.Check.Threads != 7 {
		t.Errorf("got %v, %v; want the verb's own default 7", p, err)
	}
}

func FuzzFile(f *testing.F) {
	f.Add("c.toml", "addr = \"x\"")
	f.Add("c.json", "{\"addr\": [1, {\"a\": null}]}")
	f.Fuzz(func(t *testing.T, name, content string) {
		l, err := New(&config{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if l.parse(name, []byte(content)) != nil {
			return
		}
		for key := range l.file {
			if key != "addr" && key != "threads" && key != "allow-host" && key != "allow-plain" {
				t.Errorf("unknown key %q was taken", key)
			}
		}
	})
}
