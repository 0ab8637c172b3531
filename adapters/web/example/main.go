// Example serves the Tasks panel on 127.0.0.1, with a Runner that reads a tree of
// Go code: one sub-agent for the tree, and one for each of its folders, which the
// first waits for. It is real work and needs no model.
//
//	cd adapters/web && go run ./example [flags] [dir]
//
// dir is the tree to read; without it, it is the module that the current
// directory lies in. The page at the printed address has the panel and buttons
// that spawn more: another reading, a worker that does not obey its stop, and one
// that fails, so that every state can be seen.
//
//	-addr a       where to listen; a loopback address (127.0.0.1:8080)
//	-workers n    sub-agents at a time (3)
//	-pause d      between two files, so that a person can follow (400ms)
//	-read-only    the panel without its buttons
//
// host.go is the host: how the handler is mounted. work.go is what the
// sub-agents do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-subagent/subagent"
)

type options struct {
	dir      string
	addr     string
	workers  int
	pause    time.Duration
	readOnly bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("example", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.addr, "addr", "127.0.0.1:8080", "where to listen; a loopback address")
	flags.IntVar(&o.workers, "workers", 3, "sub-agents at a time")
	flags.DurationVar(&o.pause, "pause", 400*time.Millisecond, "between two files, so that a person can follow")
	flags.BoolVar(&o.readOnly, "read-only", false, "show the panel without its buttons")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case o.workers < 1:
		return o, fmt.Errorf("-workers must be at least 1, not %d", o.workers)
	case flags.NArg() > 1:
		return o, errors.New("give one directory, and the flags before it")
	}
	if o.dir = flags.Arg(0); o.dir == "" {
		o.dir = moduleRoot()
	}
	if stat, err := os.Stat(o.dir); err != nil || !stat.IsDir() {
		return o, fmt.Errorf("%s is not a directory that can be read", o.dir)
	}
	return o, nil
}

// moduleRoot is the nearest folder upwards that holds a go.mod, or the current
// directory.
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

// run serves until ctx ends.
func run(ctx context.Context, o options, stdout io.Writer) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.addr)
	if err != nil {
		return err
	}
	defer listener.Close()
	if ip := listener.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
		return fmt.Errorf("%s is no loopback address, and this page asks for no login", ip)
	}
	w := newWork(o)
	runner, err := subagent.New(ctx, subagent.Config{
		Func:          w.readTree, // of tasks that are spawned over HTTP or WebSocket
		Notifier:      w,
		Workers:       o.workers,
		CancelGrace:   3 * time.Second, // a person should not wait long to see a forced end
		ShutdownGrace: 100 * time.Millisecond,
		FreeOnDetach:  true,
	})
	if err != nil {
		return err
	}
	w.runner = runner
	server := &http.Server{Handler: newHost(runner, w, o), ReadHeaderTimeout: 10 * time.Second}
	// The Runner goes first: its end is the end of the event streams, for which
	// the server would wait. This goroutine is waited for below.
	stopped := make(chan struct{})
	served := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
		case <-served:
		}
		over, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = runner.Shutdown(over) // what is left is the worker that does not obey
		_ = server.Shutdown(over)
	}()
	fmt.Fprintf(stdout, "Open http://%s/ — Ctrl-C ends it.\n", listener.Addr())
	err = server.Serve(listener)
	close(served)
	<-stopped
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
