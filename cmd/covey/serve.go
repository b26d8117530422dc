package main

import (
	"fmt"
	"io"
	"log/slog"

	"covey/daemon"
)

type serveCmd struct {
	daemon.Config `embed:""`
}

// Run starts the daemon. Its link is the first line on standard output.
func (c *serveCmd) Run(con *console) error {
	ctx := con.untilInterrupted()
	log := newLogger(con, c.LogLevel, c.LogFormat)
	if model, err := modelFolder(c.Model); err == nil {
		c.Model = model
	} else if c.Model == "" {
		log.Warn("no model", slog.Any("err", err)) // the daemon starts all the same and says so on its pages
	}
	c.Backend = openDevice
	s, err := daemon.New(ctx, c.Config, version, log)
	if err != nil {
		return err
	}
	fmt.Fprintln(con.out, s.Link())
	return s.Run(ctx)
}

// newLogger logs to standard error: text for people, JSON for programs.
func newLogger(con *console, level, format string) *slog.Logger {
	var least slog.Level
	if least.UnmarshalText([]byte(level)) != nil {
		least = slog.LevelInfo // the flag's enum admits no other
	}
	options := &slog.HandlerOptions{Level: least}
	var w io.Writer = con.err
	if format == "text" || format == "auto" && con.terminal {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}
