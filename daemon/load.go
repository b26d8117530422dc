package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"covey/engine"
	"covey/engine/canon"
)

// modelState is how far the model is. It goes from loading to ready or failed once.
type modelState struct {
	started time.Time

	mu          sync.Mutex
	done, total int64 // bytes loaded, bytes in all (0 = not known yet)
	took        time.Duration
	eng         *engine.Engine
	err         *Error
}

func (m *modelState) engine() (*engine.Engine, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return nil, m.err
	case m.eng == nil:
		return nil, problem(KindEnvironment, "loading", "try again in a moment", nil, "the model is loading, %d %%", m.percent())
	}
	return m.eng, nil
}

// percent of the bytes loaded, rounded down. The caller holds mu.
func (m *modelState) percent() int64 {
	if m.total <= 0 {
		return 0
	}
	return min(100, max(0, m.done)*100/m.total)
}

// errNoModel is why a daemon that was given no model folder, and found none, has no model.
var errNoModel = errors.New("no model folder was named, and the bundled one is not here")

// openBackend opens the device that the settings name.
func (s *Server) openBackend(c *engine.Config) (err error) {
	if s.cfg.Backend != nil {
		c.Backend, err = s.cfg.Backend(s.cfg.Device)
	} else if s.cfg.Device != "" && s.cfg.Device != "cpu" {
		err = fmt.Errorf("device %s: this daemon runs models on the CPU only", s.cfg.Device)
	}
	return err
}

// load opens the model and records progress and outcome.
func (s *Server) load(ctx context.Context) {
	c := s.cfg.Engine()
	c.Logger = s.log
	var eng *engine.Engine
	err := errNoModel
	if c.Dir != "" {
		err = s.openBackend(&c)
	}
	if err == nil {
		eng, err = engine.Open(ctx, c, func(done, total int64) {
			s.model.mu.Lock()
			s.model.done, s.model.total = done, total
			s.model.mu.Unlock()
		})
	}
	s.model.mu.Lock()
	s.model.took = time.Since(s.model.started)
	if err != nil {
		hint := "choose a folder that holds a model with --model DIR and start again; covey doctor names what is wrong"
		if c.Backend != nil && c.Backend.Name() != canon.CPU.Name() {
			hint = "--device cpu runs without the device; " + hint
		}
		if own := (*Error)(nil); errors.As(err, &own) && own.Hint != "" { // of a device that does not open, say
			hint = own.Hint
		}
		s.model.err = problem(KindInput, "load_failed", hint, err, "the model could not be loaded")
	} else {
		s.model.eng = eng
	}
	took := s.model.took
	s.model.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("the model could not be loaded", slog.String("model", c.Dir), slog.Any("err", err))
		}
		return
	}
	info := eng.Model()
	s.log.Info("ready", slog.String("model", info.ID), slog.String("numerics", info.NumericsID), slog.String("isa", info.ISA),
		slog.Int("threads", info.Threads), slog.Duration("dur", took))
	s.hub.welcomeAll()
	for _, f := range s.ready {
		f()
	}
}

// onReady runs f once the model is open, on the goroutine that opened it. Call it before Run.
func (s *Server) onReady(f func()) { s.ready = append(s.ready, f) }
