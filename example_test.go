package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

// research stands in for an agent loop.
func research(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	return subagent.Result{Text: "found: " + run.Task().Description}, ctx.Err()
}

func Example() {
	ctx := context.Background()
	runner, err := subagent.New(ctx, subagent.Config{
		Workers: 4,
		Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			run.Progress("thinking")
			return subagent.Result{Text: strings.ToUpper(run.Task().Description)}, nil
		},
	})
	if err != nil {
		panic(err)
	}
	defer runner.Shutdown(ctx)

	task, err := runner.Spawn(ctx, subagent.Request{ParentSessionID: "chat-1", Description: "say hello"})
	if err != nil {
		panic(err)
	}
	task, err = runner.Wait(ctx, task.ID)
	fmt.Println(task.Status, task.ResultText, err)
	// Output: completed SAY HELLO <nil>
}

// A foreground call: the caller waits, and its ctx cancels the task.
func ExampleRunner_Run() {
	ctx := context.Background()
	runner, _ := subagent.New(ctx, subagent.Config{Func: research})
	defer runner.Shutdown(ctx)

	task, err := runner.Run(ctx, subagent.Request{ParentSessionID: "chat-1", Description: "whales"})
	if err == nil {
		err = task.Err() // how the task ended; err before was about the call
	}
	fmt.Println(task.ResultText, err)
	// Output: found: whales <nil>
}

// Cancelling never waits for the worker; Wait does.
func ExampleRunner_Cancel() {
	ctx := context.Background()
	runner, _ := subagent.New(ctx, subagent.Config{Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		fmt.Fprint(run, "half a result") // a Run is an io.Writer
		<-ctx.Done()
		return subagent.Result{}, context.Cause(ctx)
	}})
	defer runner.Shutdown(ctx)
	running := runner.Subscribe(subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}})
	defer running.Close()

	task, _ := runner.Spawn(ctx, subagent.Request{ParentSessionID: "chat-1", Description: "endless"})
	for event, err := running.Next(ctx); err == nil && event.Task.ResultText == ""; event, err = running.Next(ctx) {
		continue // until it has written something
	}
	runner.Cancel(ctx, task.ID, subagent.CancelOptions{Message: "changed my mind"})
	task, _ = runner.Wait(ctx, task.ID)
	fmt.Println(task.Status, task.Reason, task.ResultText)
	fmt.Println(errors.Is(task.Err(), subagent.ErrCancelled))
	// Output:
	// cancelled user half a result
	// true
}

// Limits of one request; Config has the defaults for all.
func ExampleRequest_timeout() {
	ctx := context.Background()
	runner, _ := subagent.New(ctx, subagent.Config{Func: func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		<-ctx.Done()
		return subagent.Result{}, ctx.Err()
	}})
	defer runner.Shutdown(ctx)

	task, _ := runner.Run(ctx, subagent.Request{
		ParentSessionID: "chat-1",
		Description:     "slow",
		Timeout:         10 * time.Millisecond, // of running
		QueueTimeout:    time.Minute,           // of waiting for a slot
	})
	fmt.Println(task.Status, task.Error, errors.Is(task.Err(), subagent.ErrTimeout))
	// Output: errored timed out after 10ms true
}

// A task that waits for its own sub-tasks lends them its slot.
func ExampleRunner_Await() {
	ctx := context.Background()
	runner, _ := subagent.New(ctx, subagent.Config{Workers: 1, Func: research})
	defer runner.Shutdown(ctx)

	lead := func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		a, err := runner.Spawn(ctx, subagent.Request{Description: "whales"}) // ctx makes it a child
		if err != nil {
			return subagent.Result{}, err
		}
		b, err := runner.Spawn(ctx, subagent.Request{Description: "krill"})
		if err != nil {
			return subagent.Result{}, err
		}
		found, err := runner.Await(ctx, subagent.AwaitAll, a.ID, b.ID)
		if err != nil {
			return subagent.Result{}, err
		}
		return subagent.Result{Text: found[0].ResultText + ", " + found[1].ResultText}, nil
	}
	task, _ := runner.Run(ctx, subagent.Request{ParentSessionID: "chat-1", Description: "the sea", Func: lead})
	fmt.Println(task.ResultText)
	// Output: found: whales, found: krill
}

// inbox delivers notices; chat keeps one card for each task.
type inbox struct{ notices chan subagent.Task }

func (i inbox) Notify(_ context.Context, t subagent.Task) error {
	i.notices <- t
	return nil
}

type chat struct{}

func (chat) PutCard(_ context.Context, c subagent.Card) error {
	fmt.Println("card:", c.Content) // keep the newest card of each c.TaskID
	return nil
}

func ExampleNotifier() {
	ctx := context.Background()
	in := inbox{make(chan subagent.Task, 1)}
	runner, _ := subagent.New(ctx, subagent.Config{Func: research, Notifier: in, Cards: chat{}})
	defer runner.Shutdown(ctx)

	runner.Spawn(ctx, subagent.Request{ParentSessionID: "chat-1", Description: "whales"})
	notice := <-in.notices // nobody waited for the task: its end is delivered
	fmt.Println("notice for", notice.ParentSessionID, notice.Status)
	// Output:
	// card: (queued)
	// card: (queued)
	// card: (running)
	// card: found: whales
	// notice for chat-1 completed
}

// audited is a store that tells somebody of every change of state. It hides
// that the inner store is a Leaser, so it serves one Runner at a time.
type audited struct {
	subagent.Store
	tell func(string)
}

func (a audited) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	var from subagent.Status
	task, err := a.Store.Update(ctx, id, func(t *subagent.Task) error {
		from = t.Status // edit may run again: keep what the last round saw
		return edit(t)
	})
	if err == nil && from != task.Status {
		a.tell(fmt.Sprintf("%s -> %s", from, task.Status))
	}
	return task, err
}

func ExampleStore() {
	ctx := context.Background()
	store := audited{subagent.NewMemoryStore(), func(line string) { fmt.Println(line) }}
	runner, _ := subagent.New(ctx, subagent.Config{Func: research, Store: store})
	defer runner.Shutdown(ctx)

	runner.Run(ctx, subagent.Request{ParentSessionID: "chat-1", Description: "whales"})
	// Output:
	// pending -> queued
	// queued -> running
	// running -> completed
}

func TestAuditedStore(t *testing.T) {
	subagenttest.TestStore(t, func(*testing.T) subagent.Store {
		return audited{subagent.NewMemoryStore(), func(string) {}}
	})
}

// A test of a host: the work of the tasks waits at a gate, and the time is the
// bubble's.
func TestAChatCanStopItsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := subagenttest.NewGate()
		runner, err := subagent.New(t.Context(), subagent.Config{Func: gate.Func()})
		require.NoError(t, err)
		defer runner.Shutdown(t.Context())

		task, err := runner.Spawn(t.Context(), subagent.Request{ParentSessionID: "chat-1", Description: "whales"})
		require.NoError(t, err)
		gate.WaitEntered(t, task.ID) // it is at work, and stays there
		_, err = runner.Cancel(t.Context(), task.ID, subagent.CancelOptions{})
		require.NoError(t, err)
		task, err = runner.Wait(t.Context(), task.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, task.Status)
	})
}
