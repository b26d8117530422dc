package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"covey/daemon"
	"covey/engine"
)

type chatCmd struct {
	daemon.EngineConfig `embed:""`
	samplingFlags       `embed:""`
	System              string `help:"System message." placeholder:"TEXT"`
	MaxTokens           int    `help:"Most tokens of an answer." default:"1024" placeholder:"N"`
}

const chatHelp = `  /help           this list
  /reset          forget the conversation
  /system TEXT    set the system message (nothing = none) and forget the conversation
  /quit           leave (so does Ctrl-D)
  """             begins and ends a message of several lines
  Ctrl-C          stops the answer; at the prompt, leaves
`

// conversation is the state of a chat in the terminal.
type conversation struct {
	con    *console
	eng    *engine.Engine
	flags  *chatCmd
	system string
	turns  []turn
}

// Run reads lines and answers them until the end of input.
func (c *chatCmd) Run(con *console) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	loading, loaded := context.WithCancel(ctx)
	go func() {
		select {
		case <-interrupts:
			loaded()
		case <-loading.Done():
		}
	}()
	eng, err := openEngine(loading, con, c.EngineConfig)
	loaded()
	if err != nil {
		return err
	}
	defer eng.Close()
	v := &conversation{con: con, eng: eng, flags: c, system: c.System}
	info := eng.Model()
	fmt.Fprintf(con.out, "%s: %d layers, %d of %d experts a token. /help lists the commands.\n", info.Name, info.Layers, info.Shape.TopK, info.Shape.Experts)

	lines := make(chan string)
	go func() { // reading a terminal cannot be cancelled: the goroutine ends with the input or the process
		defer close(lines)
		scanner := bufio.NewScanner(con.in)
		scanner.Buffer(nil, maxPrompt)
		for scanner.Scan() {
			select {
			case lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		text, ok := v.read(lines, interrupts)
		if !ok {
			fmt.Fprintln(con.out)
			return nil
		}
		if command, ok := strings.CutPrefix(text, "/"); ok {
			if v.command(command) {
				return nil
			}
			continue
		}
		if strings.TrimSpace(text) != "" {
			v.say(ctx, text, interrupts)
		}
	}
}

// read returns the next message; false at the end of input or an interrupt.
func (v *conversation) read(lines <-chan string, interrupts <-chan os.Signal) (string, bool) {
	var block []string
	open := false
	for {
		prompt := "> "
		if open {
			prompt = ". "
		}
		io.WriteString(v.con.out, v.con.dim(prompt))
		select {
		case line, ok := <-lines:
			switch {
			case !ok:
				return "", false
			case strings.TrimSpace(line) == `"""`:
				if open {
					return strings.Join(block, "\n"), true
				}
				open = true
			case open:
				block = append(block, line)
			default:
				return line, true
			}
		case <-interrupts:
			return "", false
		}
	}
}

// command carries out a line that begins with a slash; true ends the chat.
func (v *conversation) command(line string) (quit bool) {
	name, argument, _ := strings.Cut(line, " ")
	switch name {
	case "quit", "exit", "bye":
		return true
	case "help", "?":
		io.WriteString(v.con.out, chatHelp)
	case "reset", "clear":
		v.turns = nil
		fmt.Fprintln(v.con.out, v.con.dim("a new conversation"))
	case "system":
		v.system, v.turns = strings.TrimSpace(argument), nil
		fmt.Fprintln(v.con.out, v.con.dim("a new conversation with this system message"))
	default:
		fmt.Fprintf(v.con.out, "there is no /%s; /help lists the commands\n", name)
	}
	return false
}

// say answers one message. An interrupt stops the answer; what was said stays in the conversation.
func (v *conversation) say(ctx context.Context, text string, interrupts <-chan os.Signal) {
	turns := append(v.turns, turn{"user", text})
	prompt, err := encodeChat(ctx, v.eng, v.system, turns)
	if err != nil {
		v.con.fail(inputError("prompt", "", "turning the conversation into tokens", err))
		return
	}
	left := v.eng.Model().Context - len(prompt)
	if left < 1 {
		fmt.Fprintln(v.con.out, "the conversation fills the model's context; /reset starts a new one")
		return
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-interrupts:
			stop()
		case <-ctx.Done():
		}
	}()
	var said strings.Builder
	result, err := answer(ctx, v.eng, engine.Request{
		Prompt: prompt, MaxTokens: min(left, max(1, v.flags.MaxTokens)), Sampling: v.flags.params(v.eng.Defaults()), Logprobs: -1, Owner: "chat",
	}, func(out engine.Output) {
		switch out.Kind {
		case engine.KindPrefill:
			v.con.progress("reading", int64(out.Done), int64(out.Total))
		case engine.KindToken:
			v.con.clear()
			said.WriteString(out.Text)
			io.WriteString(v.con.foreign(), out.Text)
		}
	})
	v.con.clear()
	fmt.Fprintln(v.con.out)
	switch {
	case interrupted(err):
		fmt.Fprintln(v.con.out, v.con.dim("stopped"))
	case err != nil:
		v.con.fail(err)
		return
	default:
		fmt.Fprintln(v.con.out, v.con.dim(summary(result)))
	}
	v.turns = append(turns, turn{"assistant", said.String()})
}
