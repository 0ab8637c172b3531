// Agentloop is a lead agent and its sub-agents as a plain loop over HTTP. It
// puts a question about a directory to the lead, which lets sub-agents list,
// read and search the files, and then asks it for a plan.
//
//	go run ./examples/agentloop [flags] question dir
//	go run ./examples/agentloop -replay file
//
// It talks to any endpoint of OpenAI's chat completions format:
//
//	OPENAI_BASE_URL   for example https://api.openai.com/v1
//	OPENAI_MODEL      the model's name
//	OPENAI_API_KEY    sent if it is set
//
// Without OPENAI_BASE_URL it starts a model server of its own on loopback, whose
// answers come from a script: it needs no network, and each run is the same. A
// key alone is not used, so that nobody is charged by accident.
//
//	-slots n       sub-agents at a time (1); those that wait for others lend them their slot
//	-save file     where the history goes (a new file in the temporary directory); it
//	               replaces a regular file, and nothing else: also no symbolic link
//	-replay file   add up a saved history again, and show that nothing is counted twice
//
// It prints the lead's conversation: what it says, the tools that it calls (>),
// what they answer; then the cards that a chat would show for the sub-agents,
// and at the end a table of tokens. Ctrl-C stops all sub-agents, and what was
// said and spent until then is saved; a second Ctrl-C quits at once.
//
// It exits with 0 when the lead has answered, 1 when something failed, 2 when
// the arguments are no good, and 130 when it was interrupted.
//
// Start reading at loop.go, the loop that all agents run; host.go puts it
// together with the library. history.go and save.go keep the conversations,
// usage.go and replay.go count the tokens. client.go and answer.go talk to the
// model in the format of wire.go.
// server.go and script.go are there for runs without a provider.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// The exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // as shells report a program that Ctrl-C ended
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // from the first signal on, the next one kills
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

type options struct {
	question, dir string
	slots         int
	save, replay  string
	url, model    string // of a provider; "": the scripted one
	key           string
}

// usageError is a mistake in how the program was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// run is the program: it returns the exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	o, err := parse(args, getenv, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
	case o.replay != "":
		err = replay(o.replay, stdout)
	default:
		err = converse(ctx, o, stdout)
	}
	if err == nil {
		return exitDone
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(stderr, "agentloop:", printable(line))
	}
	switch {
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.As(err, new(usageError)):
		return exitUsage
	}
	return exitFailed
}

// converse has the conversation: a question, then a plan. However it ends, what
// was said until then is saved, and what it cost is shown.
func converse(ctx context.Context, o options, stdout io.Writer) error {
	folder, err := openFolder(o.dir)
	if err != nil {
		return usageError{err}
	}
	defer folder.close()
	if err := o.chooseFile(); err != nil {
		return usageError{err}
	}
	if o.url == "" {
		server, err := startScripted()
		if err != nil {
			return err
		}
		defer server.close()
		o.url, o.model, o.key = server.url, scriptedName, ""
	}
	model := newModel(o.url, o.key, o.model)
	defer model.http.CloseIdleConnections()
	// The Runner gets a ctx that no interrupt ends: it has yet to stop the tasks.
	h, err := newHost(context.WithoutCancel(ctx), model, folder, o, stdout)
	if err != nil {
		return err
	}
	h.screen.line(fmt.Sprintf("model  %s at %s", o.model, o.url))
	err = h.ask(ctx, o.question, h.normal)
	if err == nil {
		err = h.ask(ctx, planning, h.plan)
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted; all sub-agents are told to stop")
	}
	closed := h.close(ctx)
	if err != nil {
		h.showCards(leadSession, "") // how all of them ended
	}
	return errors.Join(err, closed, h.report())
}

// parse reads the command line and the environment. The flag package has told
// the user what is wrong with a flag; its errors are then said again, shortly.
func parse(args []string, getenv func(string) string, stderr io.Writer) (options, error) {
	o := options{url: getenv("OPENAI_BASE_URL"), model: getenv("OPENAI_MODEL"), key: getenv("OPENAI_API_KEY")}
	flags := flag.NewFlagSet("agentloop", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: agentloop [-slots n] [-save file] question dir\n       agentloop -replay file")
		flags.PrintDefaults()
	}
	flags.IntVar(&o.slots, "slots", 1, "sub-agents at a time")
	flags.StringVar(&o.save, "save", "", "where the history goes; default: a new file in the temporary directory")
	flags.StringVar(&o.replay, "replay", "", "add up a saved history again, and show that nothing is counted twice")
	if err := flags.Parse(args); err != nil {
		return o, usageError{err}
	}
	if err := o.check(flags.Args()); err != nil {
		return o, usageError{err}
	}
	return o, nil
}

func (o *options) check(args []string) error {
	switch {
	case o.replay != "" && len(args) > 0:
		return fmt.Errorf("-replay takes no further arguments, not %q", args[0])
	case o.replay != "":
		return nil
	case len(args) != 2:
		return fmt.Errorf("give a question and a directory, and the flags before them; these are %s", plural(len(args), "argument"))
	case strings.TrimSpace(args[0]) == "":
		return errors.New("the question is empty")
	case o.slots < 1:
		return fmt.Errorf("-slots must be at least 1, not %d", o.slots)
	case o.url == "" && o.model != "":
		return errors.New("OPENAI_MODEL is set and OPENAI_BASE_URL is not; set both, or neither for the scripted model")
	case o.url != "" && o.model == "":
		return errors.New("OPENAI_BASE_URL is set and OPENAI_MODEL is not; set both, or neither for the scripted model")
	}
	if u, err := url.Parse(o.url); o.url != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("OPENAI_BASE_URL is %q; it must be an http or https URL, for example https://api.openai.com/v1", o.url)
	}
	o.question, o.dir = args[0], args[1]
	return nil
}
