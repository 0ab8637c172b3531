// Command example is a small durable runner. Start it, kill it while its tasks
// work (kill -9, or pull the plug), start it again, and see what became of
// every task:
//
//	go run ./example          # in one terminal
//	kill -9 1234              # in another: the process that it names
//	go run ./example
//
// The second run also waits for what the first has left: nobody may touch that
// until the dead process's lease is over, half a minute after its last sign of
// life. Start it twice at the same time, too: each leaves the other's tasks alone
// and sees them end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
)

func main() {
	path := flag.String("db", filepath.Join(os.TempDir(), "sqlstore-example.db"), "the file with the tasks")
	n := flag.Int("n", 6, "how many tasks to spawn")
	work := flag.Duration("work", 3*time.Second, "how long the first task works; the others work longer and longer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *path, *n, *work); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const session = "example"

func run(ctx context.Context, path string, n int, work time.Duration) (err error) {
	store, err := sqlstore.OpenSQLite(path, sqlstore.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	runner, err := subagent.New(ctx, subagent.Config{
		Store: store, Workers: 2, ShutdownGrace: time.Second, Notifier: teller{},
		Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			d, err := time.ParseDuration(run.Task().Metadata["work"])
			if err != nil {
				return subagent.Result{}, err
			}
			select {
			case <-time.After(d):
				return subagent.Result{Text: "worked for " + d.String()}, nil
			case <-ctx.Done():
				return subagent.Result{}, context.Cause(ctx)
			}
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runner.Shutdown(context.WithoutCancel(ctx))) }()
	fmt.Printf("runner %s, process %d, on %s\n", runner.ID(), os.Getpid(), path)

	before, err := runner.List(ctx, subagent.Filter{SessionID: session, NewestFirst: true, Limit: 20})
	if err != nil {
		return err
	}
	var left []uuid.UUID // what another process runs, or a dead one has left
	for _, t := range before {
		show("from before", t)
		if !t.Status.Terminal() {
			left = append(left, t.ID)
		}
	}
	events := runner.Subscribe(subagent.Filter{SessionID: session})
	defer events.Close()
	live := make(map[uuid.UUID]bool)
	for i := range n {
		t, err := runner.Spawn(ctx, subagent.Request{
			ParentSessionID: session, Description: fmt.Sprintf("task %d of process %d", i+1, os.Getpid()),
			Metadata: map[string]string{"work": (work * time.Duration(i+2) / 2).String()},
		})
		if err != nil {
			return err
		}
		live[t.ID] = true
	}
	if err := follow(ctx, events, live); err != nil || len(left) == 0 {
		return err
	}
	return await(ctx, runner, left)
}

// await shows what becomes of tasks that another process runs, or has left.
func await(ctx context.Context, runner *subagent.Runner, left []uuid.UUID) error {
	fmt.Println("waiting for what another process runs, or has left: that is known when its lease is over")
	ended, err := runner.Await(ctx, subagent.AwaitAll, left...)
	if ctx.Err() != nil {
		return nil
	}
	for _, t := range ended {
		show("of others", t)
	}
	return err
}

// follow shows what happens here until none of the tasks is live any more.
func follow(ctx context.Context, events *subagent.Subscription, live map[uuid.UUID]bool) error {
	for len(live) > 0 {
		e, err := events.Next(ctx)
		if ctx.Err() != nil {
			fmt.Println("stopping")
			return nil
		}
		if err != nil {
			return err
		}
		if e.Type != subagent.EventProgress {
			show("now", e.Task)
		}
		if e.Task.Status.Terminal() {
			delete(live, e.Task.ID)
		}
	}
	return nil
}

func show(when string, t subagent.Task) {
	fmt.Printf("%-11s  %-28s  %s %s %s\n", when, t.Description, t.Status, t.Reason, t.Error+t.ResultText)
}

// teller is told of the end of each task once, by whichever process ended it or
// took it over.
type teller struct{}

func (teller) Notify(_ context.Context, t subagent.Task) error {
	show("notice", t)
	return nil
}
