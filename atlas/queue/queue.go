// Package queue carries the forwards of a probe run over NATS JetStream, so that several processes, on one machine or on
// many, read its texts.
//
// The one who measures opens a Model, which asks for forwards instead of computing them; whoever has the same model, of
// the same bytes and numerics, works (Work) and sends back what the routers chose. Nothing about a run is kept here: the
// store holds what has been read, a run that resumes asks for what is missing, and streams may vanish at any time without
// loss. By default the server is inside the process and reachable from nowhere else (Start); an outside one is named by
// its URL (Connect).
//
// Two streams, made by whoever comes first:
//
//	COVEY_WORK     covey.work.<model>.<numerics>.<run>   forwards to do; a message goes when a worker acknowledges it
//	COVEY_RESULTS  covey.result.<run>.<key>              the last answer to each; purged when the run ends, or after a day
//
// A worker answers first and acknowledges then, so work whose worker dies is handed to another after a lease (its holder
// renews it while it computes); work may then be done twice, and the second answer, equal in every bit, replaces the
// first. The key is a hash of what is asked, so equal questions have one answer.
//
// Whoever can publish to the server can put numbers into an atlas: give an outside server credentials, and TLS where the
// network is not one's own.
package queue

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"covey/engine"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	workStream   = "COVEY_WORK"
	resultStream = "COVEY_RESULTS"
	workSubject  = "covey.work."
	answers      = "covey.result."

	maxMessage  = 32 << 20       // bytes of one answer inside the process; an outside server has its own limit
	resultsKept = 24 * time.Hour // of runs that never end
	workKept    = 72 * time.Hour
	startWithin = 10 * time.Second
)

// lease is how long a worker may be silent before its work is handed to another. Tests shorten it.
var lease = 30 * time.Second

// Conn is a connection to the streams. Safe for concurrent use. Close it.
type Conn struct {
	nats    *nats.Conn
	js      jetstream.JetStream
	work    jetstream.Stream
	results jetstream.Stream
	server  *server.Server // inside this process; nil = outside
	folder  string         // of the server inside
	storage jetstream.StorageType
}

// Start starts a server inside this process, without a network address and with its streams in memory, and connects to
// it. It takes some 20 ms and a few megabytes: start it when there is work and close it afterwards.
func Start(ctx context.Context) (*Conn, error) {
	folder, err := os.MkdirTemp("", "covey-queue-")
	if err != nil {
		return nil, fmt.Errorf("queue: starting: %w", err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "covey", DontListen: true, NoSigs: true, NoLog: true, NoSystemAccount: true, MaxPayload: maxMessage,
		JetStream: true, StoreDir: folder, JetStreamMaxMemory: 1 << 30,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("queue: starting: %w", err), os.RemoveAll(folder))
	}
	s.Start()
	stop := func(err error) error {
		s.Shutdown()
		s.WaitForShutdown()
		return errors.Join(fmt.Errorf("queue: starting: %w", err), os.RemoveAll(folder))
	}
	if !s.ReadyForConnections(startWithin) {
		return nil, stop(errors.New("the server inside does not answer"))
	}
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.Name("covey"))
	if err != nil {
		return nil, stop(err)
	}
	c := &Conn{nats: nc, server: s, folder: folder, storage: jetstream.MemoryStorage}
	if err := c.open(ctx); err != nil {
		nc.Close()
		return nil, stop(err)
	}
	return c, nil
}

// Connect connects to an outside server by its URL (nats://, tls://, ws:// or wss://). credentials is a NATS credentials
// file; "" = the server asks for none. It fails when the server cannot be reached now; later interruptions are ridden out.
func Connect(ctx context.Context, address, credentials string) (*Conn, error) {
	if err := CheckURL(address); err != nil {
		return nil, err
	}
	options := []nats.Option{nats.Name("covey"), nats.MaxReconnects(-1)}
	if credentials != "" {
		options = append(options, nats.UserCredentials(credentials))
	}
	nc, err := nats.Connect(address, options...)
	if err != nil {
		return nil, fmt.Errorf("queue: connecting to %s: %w", address, err)
	}
	c := &Conn{nats: nc, storage: jetstream.FileStorage}
	if err := c.open(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("queue: connecting to %s: %w", address, err)
	}
	return c, nil
}

// CheckURL refuses what cannot be the URL of a NATS server, and a URL with a password in it: URLs are shown and logged.
func CheckURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "":
		return errors.New("queue: not a URL of a NATS server: give nats://HOST:PORT or tls://HOST:PORT")
	case u.User != nil:
		return errors.New("queue: the URL of the NATS server has a user or password in it: give a credentials file instead")
	case u.Scheme != "nats" && u.Scheme != "tls" && u.Scheme != "ws" && u.Scheme != "wss":
		return fmt.Errorf("queue: scheme %q: give nats://HOST:PORT or tls://HOST:PORT", u.Scheme)
	}
	return nil
}

// open makes the streams.
func (c *Conn) open(ctx context.Context) (err error) {
	if c.js, err = jetstream.New(c.nats); err != nil {
		return err
	}
	c.work, err = c.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: workStream, Subjects: []string{workSubject + ">"}, Retention: jetstream.WorkQueuePolicy, MaxAge: workKept, Storage: c.storage,
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", workStream, err)
	}
	c.results, err = c.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: resultStream, Subjects: []string{answers + ">"}, MaxMsgsPerSubject: 1, MaxAge: resultsKept, Storage: c.storage,
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", resultStream, err)
	}
	return nil
}

// Close ends the connection, and the server if it is inside.
func (c *Conn) Close() error {
	c.nats.Close()
	if c.server == nil {
		return nil
	}
	c.server.Shutdown()
	c.server.WaitForShutdown()
	return os.RemoveAll(c.folder)
}

// subject is where work for a model of these bytes and numerics goes.
func subject(info engine.ModelInfo) string {
	return workSubject + token(info.Hash) + "." + token(info.NumericsID) + "."
}

// token makes a part of a subject: what is neither letter nor digit becomes "_".
func token(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c < '0' || c > '9' && c < 'A' || c > 'Z' && c < 'a' || c > 'z' {
			b[i] = '_'
		}
	}
	if len(b) == 0 {
		return "_"
	}
	return string(b)
}
