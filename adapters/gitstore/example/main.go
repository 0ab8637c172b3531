// Example shows what is left of sub-agents when their process is killed, and
// what the next process makes of it:
//
//	go run ./example
//
// It starts itself as a host with five tasks, kills it with SIGKILL when two of
// them have ended and two are running, and starts it again.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/gitstore"
)

// hostVariable tells this program to be the host in the folder that it names.
const hostVariable = "GITSTORE_EXAMPLE_HOST"

func main() {
	log.SetFlags(0)
	if dir := os.Getenv(hostVariable); dir != "" {
		if err := host(context.Background(), dir, os.Stdout); err != nil {
			log.Fatal(err)
		}
		return
	}
	dir := flag.String("dir", "", "folder of the sessions (default: a temporary one)")
	flag.Parse()
	if err := run(*dir, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run starts the host, kills it, and starts it again.
func run(dir string, out io.Writer) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "gitstore-example"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }() // the git of the killed host may not have ended
	}
	fmt.Fprintln(out, "== a host, with two slots")
	if err := start(dir, out, stuck); err != nil {
		return err
	}
	fmt.Fprintln(out, "== killed with SIGKILL; started again")
	if err := start(dir, out, ""); err != nil {
		return err
	}
	fmt.Fprintln(out, "== git log tasks --")
	git := exec.Command("git", "log", "--reverse", "--format=%s", "tasks", "--")
	git.Dir, git.Stdout, git.Stderr = filepath.Join(dir, "chat-1"), out, out
	return git.Run()
}

// start runs the host until it ends, or until it says a line with the words at
// which it is to be killed.
func start(dir string, out io.Writer, killAt string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr = append(os.Environ(), hostVariable+"="+dir), os.Stderr
	said, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	killed := false
	for lines := bufio.NewScanner(said); lines.Scan(); {
		fmt.Fprintln(out, lines.Text())
		if killAt != "" && strings.Contains(lines.Text(), killAt) {
			killed = true
			time.Sleep(time.Second) // history follows behind: what it misses now is one commit, "reconcile"
			if err := cmd.Process.Kill(); err != nil {
				return err
			}
		}
	}
	if err := cmd.Wait(); err != nil && !killed {
		return err
	}
	return nil
}

const stuck = "two are at work, and it gets stuck"

// host works on its tasks, if its store has none yet; else it only sees what
// has become of them.
func host(ctx context.Context, dir string, out io.Writer) error {
	store, err := gitstore.Open(dir, gitstore.Options{})
	if err != nil {
		return err
	}
	panel := &panel{out: out}
	working := make(chan struct{}, 2)
	runner, err := subagent.New(ctx, subagent.Config{
		Store: store, Workers: 2, Cards: panel, Notifier: panel,
		Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			if strings.HasPrefix(run.Task().Description, "quick") {
				return subagent.Result{Text: "done: " + run.Task().Description}, nil
			}
			working <- struct{}{}
			<-ctx.Done() // until it is stopped
			return subagent.Result{}, ctx.Err()
		},
	})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	err = work(ctx, runner, working, panel)
	return errors.Join(err, runner.Shutdown(ctx), store.Close())
}

func work(ctx context.Context, runner *subagent.Runner, working <-chan struct{}, panel *panel) error {
	tasks, err := runner.List(ctx, subagent.Filter{SessionID: "chat-1"})
	if err != nil {
		return err
	}
	for _, t := range tasks {
		panel.say("found: %s is %s: %s%s", t.Subject, t.Status, t.ResultText, t.Error)
	}
	if len(tasks) > 0 {
		return nil
	}
	for _, prompt := range []string{"quick 1", "quick 2", "slow 3", "slow 4", "slow 5"} {
		if strings.HasPrefix(prompt, "quick") {
			_, err = runner.Run(ctx, subagent.Request{ParentSessionID: "chat-1", Description: prompt})
		} else {
			_, err = runner.Spawn(ctx, subagent.Request{ParentSessionID: "chat-1", Description: prompt})
		}
		if err != nil {
			return err
		}
	}
	<-working
	<-working
	panel.say(stuck)
	<-ctx.Done() // somebody will have to kill it
	return ctx.Err()
}

// panel is the chat: it shows cards, and is told of ends.
type panel struct {
	mu  sync.Mutex // guards out
	out io.Writer
}

func (p *panel) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}

func (p *panel) PutCard(_ context.Context, c subagent.Card) error {
	p.say("card: %s, %s: %s", c.Attach.Label, c.Attach.Status, c.Content)
	return nil
}

func (p *panel) Notify(_ context.Context, t subagent.Task) error {
	p.say("notice: %s: %v", t.Subject, t.Err())
	return nil
}
