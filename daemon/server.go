// Package daemon is the Covey process: settings, listener, authentication, the WebSocket hub, the HTTP APIs, health,
// metrics and shutdown. It puts the engine, the store and the pages together and holds no arithmetic, SQL or HTML of
// its own.
//
// The life of a daemon: New prepares the data folder, opens the store and binds the address, so that whatever is wrong
// with the machine is said before anything else. Run serves at once and opens the model in the background; until then
// every page and API answers 503 with the progress. A model that fails to load leaves the daemon up with the reason on
// every page and in /readyz. Cancelling Run's context stops it in order: no new work, sockets closed with 1001, running
// generations given Config.Drain seconds, then engine and store closed.
package daemon

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"covey/daemon/doctor"
	"covey/engine"
	"covey/store"
	"covey/web/wire"
)

// Server is one daemon. Make it with New, end it by cancelling Run's context. Methods are safe for concurrent use.
type Server struct {
	cfg      Config
	version  string
	boot     string // random, differs after each start
	started  time.Time
	log      *slog.Logger
	store    *store.Store
	auth     *authenticator
	listener net.Listener
	mux      *http.ServeMux
	model    modelState
	hub      *hub
	storage  storage
	metrics  *metrics
	slots    chan struct{} // one for each API generation at once
	commands map[wire.Name]commandHandler
	ready    []func() // once the model is open

	work       context.Context // of requests and tasks; ends when draining is over
	cancelWork context.CancelFunc
	draining   atomic.Bool
	tasksMu    sync.Mutex // makes "not draining" and tasks.Add one step
	tasks      sync.WaitGroup
}

// New prepares a daemon: it checks the settings, makes the data folder, opens store and token, and binds the address.
// Errors are *Error. version is shown to users; log must not be nil.
func New(ctx context.Context, cfg Config, version string, log *slog.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := PrepareData(cfg.Data); err != nil {
		return nil, err
	}
	if remedy := doctor.Exposed(cfg.Data); remedy != "" {
		log.Warn("others on this machine may change the data folder", slog.String("folder", cfg.Data), slog.String("remedy", remedy))
	}
	secure := cfg.TLSCert != ""
	var certificate tls.Certificate
	if secure {
		var err error
		if certificate, err = tls.LoadX509KeyPair(cfg.TLSCert, cfg.TLSKey); err != nil {
			return nil, problem(KindEnvironment, "tls", "check --tls-cert and --tls-key", err, "reading the certificate")
		}
	}
	db, err := openStore(ctx, cfg.Data, log)
	if err != nil {
		return nil, err
	}
	token, err := openToken(cfg.Data)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	bound, err := listen(cfg.Addr)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s := &Server{
		cfg: cfg, version: version, boot: rand.Text(), started: time.Now(), log: log, store: db,
		mux: http.NewServeMux(), slots: make(chan struct{}, cfg.MaxTasks), commands: map[wire.Name]commandHandler{},
	}
	s.work, s.cancelWork = context.WithCancel(context.WithoutCancel(ctx))
	s.model.started = s.started
	s.auth = newAuthenticator(token, bound.Addr().(*net.TCPAddr), cfg.AllowHost, secure, log)
	s.metrics = newMetrics(s)
	s.auth.failed = func(reason string) { s.metrics.refused.WithLabelValues(reason).Inc() }
	s.hub = newHub(s)
	s.storage.state = db.ReadOnly
	db.Watch(s.storageChanged)
	if err := db.ReadOnly(); err != nil { // since it was opened
		s.storageChanged(err)
	}
	token.onChange = func() { s.hub.closeAll(closeUnauthorised, "the token was rotated") }
	s.listener = &cappedListener{Listener: bound, limit: cfg.MaxConnections, refused: s.metrics.connectionsRefused.Inc}
	if secure {
		// WebSockets need HTTP/1.1.
		s.listener = tls.NewListener(s.listener, &tls.Config{
			Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		})
	}
	s.mount()
	return s, nil
}

// openStore opens the database, turning its errors into advice.
func openStore(ctx context.Context, dir string, log *slog.Logger) (*store.Store, error) {
	db, err := store.Open(ctx, store.Options{Dir: dir, Logger: log})
	switch {
	case err == nil:
		return db, nil
	case errors.Is(err, store.ErrLocked):
		return nil, problem(KindEnvironment, "data_in_use", "stop the other daemon, or choose another folder with --data DIR", err, "another process uses %s", dir)
	case errors.Is(err, store.ErrCorrupt):
		return nil, problem(KindEnvironment, "data_damaged", "move the file away (it is kept as it is) or restore a backup beside it", err, "the database in %s is damaged", dir)
	case errors.Is(err, store.ErrNewer):
		return nil, problem(KindEnvironment, "data_newer", "use the newer Covey, or another folder with --data DIR", err, "the database in %s was written by a newer version", dir)
	case errors.Is(err, store.ErrReadOnly):
		return nil, problem(KindEnvironment, "data_read_only", "free space or make it writable, or choose another folder with --data DIR", err, "the database in %s cannot be written", dir)
	}
	return nil, problem(KindEnvironment, "data_folder", "choose another folder with --data DIR", err, "opening the database in %s", dir)
}

// Addr is the bound address.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Link is the address to open in a browser, with the token in it. Treat it as a secret.
func (s *Server) Link() string { return s.auth.link(s.host()) }

// host is the name by which this machine's browser reaches the daemon.
func (s *Server) host() string {
	addr := s.listener.Addr().(*net.TCPAddr)
	if addr.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", fmt.Sprint(addr.Port))
	}
	return addr.String()
}

// Handler is the whole HTTP surface, guarded. Run serves it; tests may call it.
func (s *Server) Handler() http.Handler { return s.guard(s.routes()) }

// Run serves until ctx ends, then stops in order. It returns nil after an orderly stop. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       120 * time.Second,
		MaxHeaderBytes:    64 << 10,
		// "OPTIONS *" would be answered before the guard sees it.
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return s.work },
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // broken clients are no news
	}
	loadCtx, cancelLoad := context.WithCancel(s.work)
	defer cancelLoad()
	loaded := make(chan struct{})
	go func() { defer close(loaded); s.load(loadCtx) }()
	served := make(chan error, 1)
	go func() { served <- server.Serve(s.listener) }()

	var failure error
	select {
	case <-ctx.Done():
		s.log.Info("stopping", slog.Duration("drain", s.drain()))
	case err := <-served:
		failure = problem(KindEnvironment, "listen", "", err, "serving %s", s.Addr())
	}
	s.tasksMu.Lock()
	s.draining.Store(true)
	s.tasksMu.Unlock()
	cancelLoad()
	s.hub.closeAll(closeGoingAway, "the daemon is stopping")

	drained, cancelDrain := context.WithTimeout(context.WithoutCancel(ctx), s.drain())
	defer cancelDrain()
	tasksDone := make(chan struct{})
	go func() { s.tasks.Wait(); close(tasksDone) }()
	shutdown := server.Shutdown(drained)
	select {
	case <-tasksDone:
	case <-drained.Done():
	}
	s.cancelWork()
	if shutdown != nil {
		server.Close()
	}
	select {
	case <-tasksDone:
	case <-time.After(5 * time.Second):
		s.log.Error("a task did not end after its context did")
	}
	<-loaded
	if e, err := s.Engine(); err == nil {
		if err := e.Close(); err != nil {
			s.log.Error("closing the engine", slog.Any("err", err))
		}
	}
	if err := s.store.Close(); err != nil && failure == nil {
		failure = problem(KindEnvironment, "data_folder", "check the disk", err, "closing the database")
	}
	s.log.Info("stopped")
	return failure
}

func (s *Server) drain() time.Duration { return time.Duration(s.cfg.Drain) * time.Second }

// Go runs f as a task of the daemon: a chat turn, a probe job. Its context ends when the daemon has stopped waiting for
// running work. Go returns false, and does not run f, once the daemon is stopping.
func (s *Server) Go(f func(ctx context.Context)) bool {
	s.tasksMu.Lock()
	defer s.tasksMu.Unlock()
	if s.draining.Load() {
		return false
	}
	s.tasks.Add(1)
	go func() {
		defer s.tasks.Done()
		f(s.work)
	}()
	return true
}

// Engine is the open engine, or an *Error with code "loading" or "load_failed".
func (s *Server) Engine() (*engine.Engine, error) { return s.model.engine() }
