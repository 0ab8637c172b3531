package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

const (
	sessionID   = "quickstart"           // a host has one for each conversation
	cancelGrace = 2 * time.Second        // how long a stopped sub-agent may take to return
	redraw      = 100 * time.Millisecond // ten frames a second
)

// review runs one sub-agent for each folder and returns their final tasks, in
// the order of the folders. The end of ctx stops the session; the tasks that
// come back then hold what was found before.
func review(ctx context.Context, folders []folder, o options, v view) ([]subagent.Task, error) {
	// ctx is not given to New nor to Spawn: an interrupt is passed on as a
	// cancel of the session, and then every task has its orderly end.
	background := context.WithoutCancel(ctx)
	runner, err := subagent.New(background, subagent.Config{
		Workers:     o.workers,
		MaxQueued:   -1, // the number of folders is the bound
		Timeout:     o.timeout,
		CancelGrace: cancelGrace,
		// A sub-agent that hangs in a read is given up after the grace; its slot
		// then goes to the next folder.
		FreeOnDetach: true,
	})
	if err != nil {
		return nil, err
	}
	// Subscribed before the first Spawn, so that no event is missed.
	events := runner.Subscribe(subagent.Filter{SessionID: sessionID})
	defer events.Close()
	tasks, err := spawn(background, runner, folders)
	if err == nil {
		tasks, err = watch(ctx, runner, events, tasks, v)
	}
	return tasks, errors.Join(err, shutdown(background, runner))
}

// spawn starts the tasks. Spawn never waits for a slot: as many as there are
// workers begin at once, the others stand in line in this order.
func spawn(ctx context.Context, runner *subagent.Runner, folders []folder) ([]subagent.Task, error) {
	tasks := make([]subagent.Task, 0, len(folders))
	for _, f := range folders {
		t, err := runner.Spawn(ctx, subagent.Request{
			ParentSessionID: sessionID,
			Subject:         printable(f.name),
			Description:     "Read the Go files of " + printable(f.name) + " and report on them.",
			Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				return inspect(ctx, run, f.path)
			},
		})
		if err != nil {
			return tasks, err
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

// watch shows the tasks until all have ended. Everything that the view does
// happens on this goroutine.
func watch(ctx context.Context, runner *subagent.Runner, events *subagent.Subscription, tasks []subagent.Task, v view) ([]subagent.Task, error) {
	defer v.close()
	v.begin(tasks, runner.QueuePosition)

	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	changes := follow(background, runner, events)
	ended := await(background, runner, tasks)
	defer func() { // both goroutines have ended before watch returns
		cancel()
		for range changes {
		}
		for range ended {
		}
	}()

	tick := time.NewTicker(redraw)
	defer tick.Stop()
	interrupt, news := ctx.Done(), changes
	for {
		select {
		case t, ok := <-news:
			if !ok {
				news = nil // no more of them; the end is told by await
				continue
			}
			v.update(t)
		case <-tick.C:
			v.tick()
		case <-interrupt:
			interrupt = nil // once
			// It asks and does not wait: the ends are seen like any others.
			if _, err := runner.CancelSession(background, sessionID, subagent.CancelOptions{Message: "interrupted"}); err != nil {
				return nil, err
			}
			v.stopping()
		case end := <-ended:
			if end.err == nil {
				v.end(end.tasks)
			}
			return end.tasks, end.err
		}
	}
}

// follow sends each change of a task, until ctx or the subscription ends; then
// it closes the channel.
func follow(ctx context.Context, runner *subagent.Runner, events *subagent.Subscription) <-chan subagent.Task {
	changes := make(chan subagent.Task)
	go func() {
		defer close(changes)
		for {
			event, err := events.Next(ctx)
			news := []subagent.Task{event.Task}
			// A subscriber that has fallen far behind is told so once and reads
			// the state anew; no task ever waits for one.
			if errors.Is(err, subagent.ErrLagged) {
				news, err = runner.List(ctx, subagent.Filter{SessionID: sessionID})
			}
			if err != nil {
				return
			}
			for _, t := range news {
				select {
				case changes <- t:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return changes
}

type ending struct {
	tasks []subagent.Task
	err   error
}

// await sends the tasks as they are when the last of them has ended, and closes
// the channel.
func await(ctx context.Context, runner *subagent.Runner, tasks []subagent.Task) <-chan ending {
	ids := make([]uuid.UUID, len(tasks))
	for i, t := range tasks {
		ids[i] = t.ID
	}
	ended := make(chan ending, 1)
	go func() {
		defer close(ended)
		final, err := runner.Await(ctx, subagent.AwaitAll, ids...)
		ended <- ending{final, err}
	}()
	return ended
}

// shutdown ends the Runner. All that may be left then is a sub-agent that hangs
// in a read; it is given little time, for the program is about to exit.
func shutdown(ctx context.Context, runner *subagent.Runner) error {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	err := runner.Shutdown(ctx)
	if left := (*subagent.ShutdownError)(nil); errors.As(err, &left) && len(left.Detached) > 0 {
		return fmt.Errorf("%s did not return: a read hangs", plural(len(left.Detached), "sub-agent"))
	}
	return err
}
