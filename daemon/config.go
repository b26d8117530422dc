package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"covey/atlas/queue"
	"covey/engine"
	"covey/engine/canon"
)

// Config is everything that can be set about the daemon. The struct tags are read by the command line and by the
// settings layers (package settings): one field is one flag, one environment variable COVEY_NAME and one key of the
// configuration file.
type Config struct {
	Addr           string   `help:"Address to listen on; port 0 takes any free port." default:"127.0.0.1:8420" placeholder:"HOST:PORT" group:"Server"`
	Data           string   `help:"Data folder: token, database." default:"${data}" placeholder:"DIR" group:"Server"`
	AllowHost      []string `help:"Further host names (NAME or NAME:PORT) that browsers may use to reach the daemon." placeholder:"NAME" group:"Server"`
	TLSCert        string   `name:"tls-cert" help:"Certificate file (PEM); needed to listen beyond this machine." placeholder:"FILE" group:"Server"`
	TLSKey         string   `name:"tls-key" help:"Key file (PEM) of the certificate." placeholder:"FILE" group:"Server"`
	AllowPlain     bool     `help:"Listen beyond this machine without TLS: the token and all text then cross the network in the clear." group:"Server"`
	MaxConnections int      `help:"Most TCP connections at once." default:"512" group:"Server"`
	MaxSockets     int      `help:"Most WebSockets at once." default:"64" group:"Server"`
	MaxTasks       int      `help:"Most API generations at once, queued ones included." default:"256" group:"Server"`
	Drain          int      `help:"Seconds that running generations may take to end at shutdown." default:"10" group:"Server"`
	NATS           string   `name:"nats" help:"NATS server (nats://HOST:PORT or tls://HOST:PORT) over which other machines help to read probe batches; the one inside Covey when not set." placeholder:"URL" group:"Server"`
	NATSCreds      string   `name:"nats-creds" help:"NATS credentials file." placeholder:"FILE" group:"Server"`
	LogLevel       string   `help:"Least level that is logged." default:"info" enum:"debug,info,warn,error" group:"Server"`
	LogFormat      string   `help:"Form of the log; auto is text on a terminal and JSON otherwise." default:"auto" enum:"auto,text,json" group:"Server"`

	EngineConfig `embed:""`

	// Backend opens the backend that Device names; the daemon closes what it opened. nil = there is none but the CPU.
	Backend func(device string) (canon.Backend, error) `kong:"-"`
}

// EngineConfig is the part of Config that every verb which opens a model shares.
type EngineConfig struct {
	Model        string `help:"Model folder or GGUF file; the bundled model when not set." placeholder:"PATH" group:"Model"`
	Device       string `help:"Where the model runs: cpu, cuda (the first CUDA device), cuda:N or several (cuda:0,cuda:1), which share the experts." default:"cpu" placeholder:"NAME" group:"Model"`
	Threads      int    `help:"Threads of the kernels; 0 = physical cores." default:"0" group:"Model"`
	ISA          string `name:"isa" help:"Kernel family: portable, avx2, avx512, vnni, amx, on Arm neon, dotprod; empty = the best of this machine but amx." placeholder:"NAME" group:"Model"`
	KV           string `name:"kv" help:"Form of the KV cache: f16, bf16 or f32." default:"f16" enum:"f16,bf16,f32" group:"Model"`
	Activations  string `help:"int8 (serving) or f32 (checking: weights dequantised)." default:"int8" enum:"int8,f32" group:"Model"`
	Context      int    `help:"Longest sequence in tokens; 0 = the model's own limit." default:"0" group:"Model"`
	BatchRows    int    `help:"Most rows of a step." default:"256" group:"Model"`
	PrefillRows  int    `help:"Most prompt rows of one sequence in a step; 0 = batch-rows." default:"0" group:"Model"`
	Sequences    int    `help:"Most sequences that run at once; further ones queue." default:"16" group:"Model"`
	QueueLimit   int    `help:"Most requests that wait; further ones are refused." default:"256" group:"Model"`
	KVTokens     int    `name:"kv-tokens" help:"Capacity of the KV cache in tokens; 0 = from context and memory." default:"0" group:"Model"`
	ExpertMemory int    `name:"expert-memory" help:"Megabytes for experts of a container; if they do not all fit, they are read on demand. 0 = all that is left." default:"0" placeholder:"MB" group:"Model"`
}

// Engine is the engine's form of the settings; the caller adds a logger.
func (c EngineConfig) Engine() engine.Config {
	return engine.Config{
		Dir: c.Model, Threads: c.Threads, ISA: c.ISA, KV: c.KV, Activations: c.Activations, Context: c.Context,
		BatchRows: c.BatchRows, PrefillRows: c.PrefillRows, Sequences: c.Sequences, QueueLimit: c.QueueLimit,
		KVTokens: c.KVTokens, ExpertMemory: int64(c.ExpertMemory) << 20,
	}
}

// Validate checks what the struct tags cannot say.
func (c Config) Validate() error {
	host, port, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return badSetting("addr", "give HOST:PORT, for example 127.0.0.1:8420", "%q is not an address", c.Addr)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return badSetting("addr", "a port is 0 to 65535; 0 takes any free one", "%q is not a port", port)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return badSetting("tls-cert", "set both --tls-cert and --tls-key, or neither", "half of a key pair is set")
	}
	if !loopback(host) && c.TLSCert == "" && !c.AllowPlain {
		return badSetting("addr", "set --tls-cert and --tls-key, or accept the risk with --allow-plain",
			"%s is reachable from other machines and there is no TLS", c.Addr)
	}
	if !loopback(host) && unspecified(host) && len(c.AllowHost) == 0 {
		return badSetting("allow-host", "name the host that browsers will use, for example --allow-host $(hostname)",
			"%s listens on every address, and no host name is allowed yet", c.Addr)
	}
	for _, name := range c.AllowHost {
		if name == "" || strings.ContainsAny(name, "/*?# @") {
			return badSetting("allow-host", "give exact names, NAME or NAME:PORT", "%q is not a host name", name)
		}
	}
	limits := []struct {
		name              string
		value, least, max int
	}{
		{"max-connections", c.MaxConnections, 1, 1 << 20},
		{"max-sockets", c.MaxSockets, 1, 1 << 16},
		{"max-tasks", c.MaxTasks, 1, 1 << 16},
		{"drain", c.Drain, 0, 3600},
	}
	for _, l := range limits {
		if l.value < l.least || l.value > l.max {
			return badSetting(l.name, fmt.Sprintf("choose %d to %d", l.least, l.max), "%d is out of range", l.value)
		}
	}
	if c.NATS != "" {
		if err := queue.CheckURL(c.NATS); err != nil {
			return badSetting("nats", "for example nats://127.0.0.1:4222", "%v", err)
		}
	}
	return c.EngineConfig.Validate()
}

// Validate checks what holds for every model; the engine checks the rest against the checkpoint.
func (c EngineConfig) Validate() error {
	if _, err := canon.Resolve(c.ISA); err != nil {
		return badSetting("isa", "leave it out to use the best of this machine", "%v", err)
	}
	limits := []struct {
		name              string
		value, least, max int
	}{
		{"threads", c.Threads, 0, 1024},
		{"context", c.Context, 0, 1 << 24},
		{"batch-rows", c.BatchRows, 0, 1 << 16},
		{"prefill-rows", c.PrefillRows, 0, 1 << 16},
		{"sequences", c.Sequences, 0, 1 << 12},
		{"queue-limit", c.QueueLimit, 0, 1 << 16},
		{"kv-tokens", c.KVTokens, 0, 1 << 30},
		{"expert-memory", c.ExpertMemory, 0, 1 << 30},
	}
	for _, l := range limits {
		if l.value < l.least || l.value > l.max {
			return badSetting(l.name, fmt.Sprintf("choose %d to %d", l.least, l.max), "%d is out of range", l.value)
		}
	}
	return nil
}

// badSetting is a mistake in one setting.
func badSetting(setting, hint, format string, args ...any) *Error {
	return problem(KindUsage, "bad_setting", hint, nil, "%s: %s", setting, fmt.Sprintf(format, args...))
}

// loopback says whether only this machine can reach host.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// unspecified says whether host means every address.
func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// DefaultData is the data folder of the current user, "" when the system does not say where that is.
func DefaultData() string {
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "covey")
	}
	switch runtime.GOOS {
	case "darwin", "windows":
		if dir, err := os.UserConfigDir(); err == nil {
			return filepath.Join(dir, "Covey")
		}
		return ""
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "share", "covey")
}
