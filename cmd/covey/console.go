package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"

	"covey/daemon"
)

// console is where a verb reads and writes. Results go to out, everything else (progress, logs, errors) to err, so that
// output can be piped.
type console struct {
	in       io.Reader
	out, err io.Writer
	terminal bool // err is a terminal: progress may be drawn
	colour   bool // out is a terminal that takes escape sequences
	drawn    int  // length of the progress line on the screen
	drawnAt  time.Time
	undo     []func()
}

func newConsole(in, out, err *os.File) *console {
	plain := os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	return &console{in: in, out: out, err: err, terminal: isatty.IsTerminal(err.Fd()), colour: isatty.IsTerminal(out.Fd()) && !plain}
}

func (c *console) close() {
	for _, f := range c.undo {
		f()
	}
}

// untilInterrupted is a context that the first interrupt or termination signal ends. The second one ends the process at
// once, whatever it is doing.
func (c *console) untilInterrupted() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case <-signals:
			cancel()
		case <-done:
			return
		}
		select {
		case <-signals:
			os.Exit(130)
		case <-done:
		}
	}()
	c.undo = append(c.undo, func() { signal.Stop(signals); close(done); cancel() })
	return ctx
}

// fail prints an error with its hint and returns the exit code.
func (c *console) fail(err error) int {
	c.clear()
	code := exitCode(err)
	if code == 130 {
		fmt.Fprintln(c.err, "covey: interrupted")
		return code
	}
	e := daemon.AsError(err)
	fmt.Fprintf(c.err, "covey: %s\n", e.Error())
	if e.Hint != "" {
		fmt.Fprintf(c.err, "  %s\n", e.Hint)
	}
	return code
}

// json prints v as one line.
func (c *console) json(v any) error {
	encoder := json.NewEncoder(c.out)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// progress draws one line on a terminal, at most ten times a second and at the end; elsewhere it does nothing.
func (c *console) progress(what string, done, total int64) {
	if !c.terminal || total <= 0 || done < total && time.Since(c.drawnAt) < 100*time.Millisecond {
		return
	}
	c.drawnAt = time.Now()
	const width = 30
	filled := int(min(done, total) * width / total)
	line := fmt.Sprintf("%s [%s%s] %3d %%", what, strings.Repeat("=", filled), strings.Repeat(" ", width-filled), min(done, total)*100/total)
	fmt.Fprintf(c.err, "\r%s%s", line, strings.Repeat(" ", max(0, c.drawn-len(line))))
	c.drawn = len(line)
}

// clear wipes the progress line.
func (c *console) clear() {
	if c.drawn > 0 {
		fmt.Fprintf(c.err, "\r%s\r", strings.Repeat(" ", c.drawn))
		c.drawn = 0
	}
}

// dim wraps text in a faint escape sequence where that is wanted.
func (c *console) dim(text string) string {
	if !c.colour {
		return text
	}
	return "\x1b[2m" + text + "\x1b[0m"
}

// interrupted says whether err comes from an ended context.
func interrupted(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
