// Quickstart reads a tree of Go code with sub-agents: one background task for
// each folder, a few at a time, all of them shown live. It does real work and
// needs no model, so it is the shortest way to see the library at work.
//
//	go run ./examples/quickstart [flags] [dir]
//
// dir is the tree to read; without it, it is the module that the current
// directory lies in. Each sub-agent parses the Go files of its folder and
// reports the package, the lines, exported names without a doc comment, TODOs
// and the longest function. Folders named vendor, testdata and node_modules,
// hidden ones and other repositories inside the tree are skipped, and symbolic
// links to folders are not followed.
//
// On a terminal it draws a table of the tasks; elsewhere it prints a line when
// a task starts and one when it ends. Ctrl-C stops the whole session and shows
// what has been found so far; a second Ctrl-C quits at once.
//
//	-workers n    sub-agents at a time (4)
//	-timeout d    run time of one sub-agent, for example 30s (none)
//	-json         the final tasks on stdout, one JSON object a line; the rest on stderr
//
// It exits with 0 when every folder was read, 1 when a task ended in an error,
// 2 when the flags or dir are no good, and 130 when it was interrupted.
//
// Start reading at session.go: that is where the library is used. agent.go
// holds what one sub-agent does.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-subagent/subagent"
)

// The exit codes.
const (
	exitDone        = 0
	exitErrored     = 1
	exitUsage       = 2
	exitInterrupted = 130 // as shells report a program that Ctrl-C ended
)

type options struct {
	dir     string
	workers int
	timeout time.Duration
	json    bool
}

func main() {
	os.Exit(run(interrupts(quit), os.Args[1:], os.Stdout, os.Stderr))
}

// interrupts returns a context that the first Ctrl-C ends; the second calls
// again. Its goroutine lives as long as the program.
func interrupts(again func()) context.Context {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		cancel()
		<-signals
		again()
	}()
	return ctx
}

// quit leaves on the spot, whatever the rest of the program is blocked in.
func quit() {
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if isLive(f) {
			_, _ = io.WriteString(f, showCursor+"\n")
			break
		}
	}
	os.Exit(exitInterrupted)
}

// run is the program: it returns the exit code. When ctx ends it stops the
// session and still shows what was found.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitDone
	}
	if err != nil {
		return complain(stderr, exitUsage, err)
	}
	folders, err := survey(ctx, o.dir)
	if err != nil {
		return complain(stderr, surveyCode(ctx), err)
	}
	view := newView(stdout, o)
	if o.json {
		view = newView(stderr, o)
	}
	if len(folders) == 0 {
		view.note("no Go files under " + o.dir)
		return exitDone
	}
	tasks, err := review(ctx, folders, o, view)
	if o.json {
		err = errors.Join(err, printJSON(stdout, tasks))
	}
	return verdict(ctx, tasks, err, stderr)
}

func surveyCode(ctx context.Context) int {
	if ctx.Err() != nil {
		return exitInterrupted
	}
	return exitUsage
}

func complain(stderr io.Writer, code int, err error) int {
	_, _ = fmt.Fprintln(stderr, "quickstart:", printable(err.Error()))
	return code
}

// parse reads the command line. The flag package has told the user what is
// wrong with a flag before its error gets here; ours say it themselves.
func parse(args []string, stderr io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		_, _ = fmt.Fprintln(stderr, "usage: quickstart [-workers n] [-timeout d] [-json] [dir]")
		flags.PrintDefaults()
	}
	flags.IntVar(&o.workers, "workers", 4, "sub-agents at a time")
	flags.DurationVar(&o.timeout, "timeout", 0, "run time of one sub-agent, for example 30s; 0: no limit")
	flags.BoolVar(&o.json, "json", false, "print the final tasks on stdout, one JSON object a line")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case o.workers < 1:
		return o, fmt.Errorf("-workers must be at least 1, not %d", o.workers)
	case o.timeout < 0:
		return o, fmt.Errorf("-timeout must not be negative, not %s", o.timeout)
	case flags.NArg() > 1:
		return o, errors.New("give one directory, and the flags before it")
	}
	if o.dir = flags.Arg(0); flags.NArg() == 0 {
		o.dir = moduleRoot()
	}
	return o, nil
}

// moduleRoot is the nearest folder upwards that holds a go.mod, so that the
// program reads the same tree from wherever in it it is started. Outside a
// module it is the current directory.
func moduleRoot() string {
	cwd, err := os.Getwd()
	if err != nil {
		return "."
	}
	for dir := cwd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return cwd
		}
	}
}

func printJSON(stdout io.Writer, tasks []subagent.Task) error {
	lines := json.NewEncoder(stdout)
	for _, t := range tasks {
		if err := lines.Encode(t); err != nil {
			return err
		}
	}
	return nil
}

func verdict(ctx context.Context, tasks []subagent.Task, err error, stderr io.Writer) int {
	code := exitDone
	for _, t := range tasks {
		if t.Status == subagent.StatusErrored {
			code = exitErrored
		}
	}
	if err != nil {
		code = complain(stderr, exitErrored, err)
	}
	if ctx.Err() != nil {
		return exitInterrupted
	}
	return code
}
