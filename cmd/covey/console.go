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
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-isatty"

	"covey/daemon"
)

// console is where a verb reads and writes. Results go to out, everything else (progress, logs, errors) to err, so that
// output can be piped.
type console struct {
	in       io.Reader
	out, err io.Writer
	terminal bool // err is a terminal: progress may be drawn
	screen   bool // out is a terminal: text of models and files must not steer it
	colour   bool // out is a terminal that takes escape sequences
	drawn    int  // length of the progress line on the screen
	drawnAt  time.Time
	undo     []func()
}

func newConsole(in, out, err *os.File) *console {
	plain := os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	return &console{in: in, out: out, err: err, terminal: isatty.IsTerminal(err.Fd()), screen: isatty.IsTerminal(out.Fd()), colour: isatty.IsTerminal(out.Fd()) && !plain}
}

// outlet remembers the first failed write, so that lost results are never a success. (A broken pipe ends the process by
// its signal, as it should.)
type outlet struct {
	io.Writer
	failed error
}

func (o *outlet) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if err != nil && o.failed == nil {
		o.failed = err
	}
	return n, err
}

// problem is the error to report for the lost results, or nil.
func (o *outlet) problem() error {
	if o.failed == nil {
		return nil
	}
	return &daemon.Error{Kind: daemon.KindEnvironment, Code: "output", Message: "the results could not be written to standard output",
		Hint: "free space, or send them elsewhere", Err: o.failed}
}

// visible replaces the control characters of text from models and files, escape sequences above all, which a terminal
// would obey: they could rewrite what is on the screen, its title or the clipboard.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}

// foreign is where text of models and files goes: unchanged into a file or a pipe, visible on a terminal.
func (c *console) foreign() io.Writer {
	if !c.screen {
		return c.out
	}
	return &visibleWriter{w: c.out}
}

type visibleWriter struct {
	w    io.Writer
	rest []byte // the beginning of a character whose end has not been written yet
}

func (v *visibleWriter) Write(p []byte) (int, error) {
	text := append(v.rest, p...)
	end := len(text)
	for k := 1; k < utf8.UTFMax && k <= len(text); k++ {
		if start := len(text) - k; utf8.RuneStart(text[start]) {
			if !utf8.FullRune(text[start:]) {
				end = start
			}
			break
		}
	}
	v.rest = append([]byte(nil), text[end:]...)
	if _, err := io.WriteString(v.w, visible(string(text[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
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
	fmt.Fprintf(c.err, "covey: %s\n", visible(e.Error())) // errors quote files and templates
	if e.Hint != "" {
		fmt.Fprintf(c.err, "  %s\n", visible(e.Hint))
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
func (c *console) progress(what string, done, total int64) { c.progressLine(what, done, total, "") }

// progressLine is progress with something behind it, such as speed and time left.
func (c *console) progressLine(what string, done, total int64, behind string) {
	if !c.terminal || total <= 0 || done < total && time.Since(c.drawnAt) < 100*time.Millisecond {
		return
	}
	c.drawnAt = time.Now()
	const width = 30
	filled := int(min(done, total) * width / total)
	line := fmt.Sprintf("%s [%s%s] %3d %%", what, strings.Repeat("=", filled), strings.Repeat(" ", width-filled), min(done, total)*100/total)
	if behind != "" {
		line += ", " + behind
	}
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
