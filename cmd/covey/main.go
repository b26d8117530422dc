// Command covey runs Mixture-of-Experts models and shows what their experts do. This package holds the verbs of the
// command line, kept thin: each parses its flags, calls the package that does the work, and prints.
//
// Exit codes: 0 done; 1 a check ran and did not pass; 2 usage; 3 a model, file or prompt that cannot be used; 4 the
// machine (ports, folders, memory); 70 a fault of Covey itself; 130 interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"covey/daemon"
	"covey/daemon/settings"
)

// version is set by the linker (Makefile).
var version = "dev"

// cli is the command line: one field is one verb.
type cli struct {
	Config settings.File `help:"Configuration file: TOML, or JSON if its name ends in .json. Keys are the names of the settings (covey config)." placeholder:"FILE"`

	Serve   serveCmd   `cmd:"" help:"Start the daemon and print its link."`
	Chat    chatCmd    `cmd:"" help:"Talk to a model in the terminal."`
	Run     runCmd     `cmd:"" help:"Answer one prompt."`
	Check   checkCmd   `cmd:"" help:"Hold the engine to references: oracle, reference, tokenizer."`
	Atlas   atlasCmd   `cmd:"" help:"Measure, show and convert expert atlases."`
	Convert convertCmd `cmd:"" help:"Write a container: weights in the kernels' layout, experts as records that can stay on disk."`
	Verify  verifyCmd  `cmd:"" help:"Compare all hashes of a container."`
	Info    infoCmd    `cmd:"" help:"Describe a checkpoint without loading it."`
	Plan    planCmd    `cmd:"" help:"Say what a model takes, what fits and where it goes, without loading it."`
	Bench   benchCmd   `cmd:"" help:"Measure speed: decode, prefill, read, kernels; make models to measure with."`
	Doctor  doctorCmd  `cmd:"" help:"Say whether this machine is ready, and what to do if not."`
	Cfg     configCmd  `cmd:"" name:"config" help:"Print the effective settings and where each came from."`
	Token   tokenCmd   `cmd:"" help:"Print the token of the data folder, or make a new one."`
	Version versionCmd `cmd:"" help:"Print version, numerics and kernels."`
}

const description = `Covey runs Mixture-of-Experts language models and shows what their experts do.

Settings come from flags, COVEY_NAME variables, the configuration file, then defaults (covey config shows which).
Exit codes: 0 done, 1 failed check, 2 usage, 3 model or input, 4 environment, 130 interrupted.`

func main() { os.Exit(run(os.Args[1:], os.Environ(), newConsole(os.Stdin, os.Stdout, os.Stderr))) }

// run is main without the process: it returns the exit code.
func run(args, environ []string, con *console) int {
	defer con.close()
	out := &outlet{Writer: con.out}
	con.out = out
	vars := kong.Vars{"data": daemon.DefaultData(), "version": version}
	layers, err := settings.New(&daemon.Config{}, vars, environ)
	if err != nil {
		return con.fail(&daemon.Error{Kind: daemon.KindUsage, Code: "bad_setting", Message: err.Error(), Hint: "correct or unset it; covey config lists the settings"})
	}
	exited, code := false, 0
	parser, err := kong.New(&cli{}, vars, kong.Name("covey"), kong.Description(description), kong.UsageOnError(),
		kong.Resolvers(layers), kong.Bind(layers), kong.Writers(con.out, con.err),
		kong.Exit(func(status int) { exited, code = true, status }), kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		return con.fail(err)
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	ctx, err := parser.Parse(args)
	if lost := out.problem(); lost != nil {
		return con.fail(lost)
	}
	if exited { // --help was printed
		return code
	}
	if err != nil {
		hint := "covey --help lists the verbs, covey VERB --help their flags"
		var setting *daemon.Error // of a setting's own check, which knows its remedy
		if errors.As(err, &setting) {
			hint = setting.Hint
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "--"), ":")
		if place := layers.Place(name); place != "" {
			hint = "the value comes from " + place
			if setting != nil {
				hint += "; " + setting.Hint
			}
		}
		return con.fail(&daemon.Error{Kind: daemon.KindUsage, Code: "usage", Message: err.Error(), Hint: hint})
	}
	err = ctx.Run(con, layers)
	if lost := out.problem(); lost != nil && !interrupted(err) {
		err = lost
	}
	if err == nil {
		return 0
	}
	return con.fail(err)
}

// exitCode is the process's answer to an error.
func exitCode(err error) int {
	if errors.Is(err, context.Canceled) {
		return 130
	}
	switch daemon.AsError(err).Kind {
	case daemon.KindCheck:
		return 1
	case daemon.KindUsage:
		return 2
	case daemon.KindInput:
		return 3
	case daemon.KindEnvironment:
		return 4
	}
	return 70
}

// inputError wraps a failure that the model folder or another input is to blame for.
func inputError(code, hint, message string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &daemon.Error{Kind: daemon.KindInput, Code: code, Hint: hint, Message: message, Err: err}
}

// failedCheck is the error of a check that ran and did not pass.
func failedCheck(format string, args ...any) error {
	return &daemon.Error{Kind: daemon.KindCheck, Code: "check_failed", Message: fmt.Sprintf(format, args...)}
}
