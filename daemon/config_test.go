package daemon

import (
	"errors"
	"strings"
	"testing"
)

func goodConfig() Config {
	return Config{Addr: "127.0.0.1:0", MaxConnections: 64, MaxSockets: 4, MaxTasks: 4, Drain: 1}
}

func TestSettingsThatMakeNoSenseAreNamed(t *testing.T) {
	cases := []struct {
		name   string
		change func(*Config)
		want   string // in the error; "" = none
	}{
		{"the defaults", func(*Config) {}, ""},
		{"IPv6 loopback", func(c *Config) { c.Addr = "[::1]:0" }, ""},
		{"no port", func(c *Config) { c.Addr = "127.0.0.1" }, "addr"},
		{"port too large", func(c *Config) { c.Addr = "127.0.0.1:70000" }, "addr"},
		{"port name", func(c *Config) { c.Addr = "127.0.0.1:http" }, "addr"},
		{"reachable without TLS", func(c *Config) { c.Addr = "192.0.2.1:8420" }, "TLS"},
		{"reachable by name without TLS", func(c *Config) { c.Addr = "box.example:8420" }, "TLS"},
		{"reachable, risk accepted", func(c *Config) { c.Addr, c.AllowPlain = "192.0.2.1:8420", true }, ""},
		{"every address, no name", func(c *Config) { c.Addr, c.AllowPlain = ":8420", true }, "allow-host"},
		{"every address, a name", func(c *Config) { c.Addr, c.AllowPlain, c.AllowHost = ":8420", true, []string{"box"} }, ""},
		{"half a key pair", func(c *Config) { c.TLSCert = "cert.pem" }, "tls-cert"},
		{"wildcard host", func(c *Config) { c.AllowHost = []string{"*.example"} }, "allow-host"},
		{"no sockets", func(c *Config) { c.MaxSockets = 0 }, "max-sockets"},
		{"unknown kernels", func(c *Config) { c.ISA = "mmx" }, "isa"},
		{"negative threads", func(c *Config) { c.Threads = -1 }, "threads"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config := goodConfig()
			c.change(&config)
			err := config.Validate()
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) || e.Kind != KindUsage || e.Hint == "" || !strings.Contains(e.Error(), c.want) {
				t.Errorf("got %v, want a usage error that names %q", err, c.want)
			}
		})
	}
}
