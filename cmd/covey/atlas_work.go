package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"time"

	"covey/atlas"
	"covey/atlas/queue"
	"covey/daemon"
)

// Forwards at once: this engine's own, and those asked for when others help.
const (
	ownForwards = 16
	closeWithin = 5 * time.Second
)

// natsFlags name an outside NATS server.
type natsFlags struct {
	NATS      string `name:"nats" help:"NATS server over which other processes help (covey atlas work)." placeholder:"URL" group:"Help of others"`
	NATSCreds string `name:"nats-creds" help:"NATS credentials file." placeholder:"FILE" group:"Help of others"`
}

// connect connects to the server.
func (f natsFlags) connect(ctx context.Context) (*queue.Conn, error) {
	conn, err := queue.Connect(ctx, f.NATS, f.NATSCreds)
	if err != nil {
		return nil, &daemon.Error{Kind: daemon.KindEnvironment, Code: "nats", Message: "the NATS server cannot be used", Hint: "start one with JetStream (nats-server -js) and give its URL, for example nats://127.0.0.1:4222", Err: err}
	}
	return conn, nil
}

// spread returns a model whose texts this process and others read, or local alone when no server is named; stop ends it.
func (f natsFlags) spread(ctx context.Context, local atlas.Model) (m atlas.Model, stop func(), err error) {
	if f.NATS == "" {
		return local, func() {}, nil
	}
	conn, err := f.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	shared, err := conn.Open(ctx, local, rand.Text())
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	working, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = conn.Work(working, local, ownForwards, nil) // the run's own requests report a lost server
	}()
	return shared, func() {
		cancel()
		<-done
		closing, ended := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer ended()
		_ = shared.Close(closing, true) // what stays on the server ages out
		conn.Close()
	}, nil
}

type atlasWorkCmd struct {
	daemon.EngineConfig `embed:""`
	natsFlags           `embed:""`
}

// Run works until it is interrupted.
func (c *atlasWorkCmd) Run(con *console) error {
	ctx := con.untilInterrupted()
	if c.NATS == "" {
		return &daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: "--nats: name the server that the batches are on", Hint: "for example --nats nats://127.0.0.1:4222"}
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	eng, err := openEngine(ctx, con, c.EngineConfig)
	if err != nil {
		return err
	}
	defer eng.Close()
	fmt.Fprintf(con.foreign(), "working for batches of %s, numerics %s; stop with Ctrl C\n", eng.Model().Name, eng.Model().NumericsID)
	var texts atomic.Int64
	err = conn.Work(ctx, atlas.FromEngine(eng), ownForwards, func() { texts.Add(1) })
	fmt.Fprintf(con.out, "%d texts read\n", texts.Load())
	return err
}
