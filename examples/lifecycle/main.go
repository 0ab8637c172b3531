// Command lifecycle is a tour: it puts tasks through everything that can
// happen to them and prints what becomes of each.
//
//	go run ./examples/lifecycle
//
// Each stop is one function, to be read beside its lines of output.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/go-subagent/subagent"
)

func main() {
	if err := tour(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lifecycle:", err)
		os.Exit(1)
	}
}

// guide leads through the tour with one Runner of one slot.
type guide struct {
	out    io.Writer
	ctx    context.Context
	runner *subagent.Runner
	err    error // the first that should not have been
}

// beat is long enough for what was begun to get where it must wait.
const beat = 20 * time.Millisecond

func tour(out io.Writer) error {
	g := &guide{out: out, ctx: context.Background()}
	for _, stop := range []struct {
		title string
		visit func(*guide)
	}{
		{"The same tool_call_id twice", (*guide).sameCallID},
		{"Queueing and hand-off", (*guide).queueing},
		{"Cancelling a queued and a running task", (*guide).cancelling},
		{"A worker that ignores its cancel", (*guide).deafWorker},
		{"A time limit", (*guide).timeLimit},
		{"A panic", (*guide).panicking},
		{"Nested waiting with one slot", (*guide).nesting},
		{"Recovery after a crash", (*guide).recovery},
	} {
		fmt.Fprintf(out, "\n== %s\n", stop.title)
		runner, err := subagent.New(g.ctx, subagent.Config{Workers: 1, CancelGrace: 5 * beat})
		if err != nil {
			return err
		}
		g.runner = runner
		stop.visit(g)
		if err := runner.Shutdown(g.ctx); err != nil && g.err == nil {
			g.err = err
		}
	}
	return g.err
}

func (g *guide) say(format string, args ...any) { fmt.Fprintf(g.out, format+"\n", args...) }

func (g *guide) spawn(name string, fn subagent.Func, change ...func(*subagent.Request)) uuid.UUID {
	q := subagent.Request{ParentSessionID: "chat", Description: name, Func: fn}
	for _, c := range change {
		c(&q)
	}
	task, err := g.runner.Spawn(g.ctx, q)
	if err != nil && g.err == nil {
		g.err = err
	}
	return task.ID
}

// show prints a task: as it is now, or, with Wait, as it ended.
func (g *guide) show(read func(context.Context, uuid.UUID) (subagent.Task, error), id uuid.UUID) {
	task, err := read(g.ctx, id)
	if err != nil {
		g.say("%v", err)
		return
	}
	line := fmt.Sprintf("%-8s %s", task.Description, task.Status)
	if n, queued := g.runner.QueuePosition(id); queued {
		line += fmt.Sprintf(", number %d in line", n)
	}
	if task.Reason != "" {
		line += fmt.Sprintf(" (%s)", task.Reason)
	}
	if task.ResultText != "" {
		line += fmt.Sprintf(", text %q", task.ResultText)
	}
	if task.Error != "" {
		line += fmt.Sprintf(", error %q", task.Error)
	}
	if task.Detached {
		line += ", detached"
	}
	g.say("%s", line)
}

// answers is a worker that is done at once.
func answers(text string) subagent.Func {
	return func(context.Context, *subagent.Run) (subagent.Result, error) {
		return subagent.Result{Text: text}, nil
	}
}

// waits is a worker that writes something and then waits to be told: to
// finish, or by its ctx to stop.
func waits(finish <-chan struct{}) subagent.Func {
	return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		fmt.Fprint(run, "so far")
		select {
		case <-finish:
			return subagent.Result{Text: "finished"}, nil
		case <-ctx.Done():
			return subagent.Result{}, context.Cause(ctx)
		}
	}
}

// A provider's tool_call_id may repeat. Each execution has an ID of its own, so
// the two never see each other.
func (g *guide) sameCallID() {
	callID := func(q *subagent.Request) { q.ExternalTaskID = "call_0" }
	first := g.spawn("first", answers("one"), callID)
	second := g.spawn("second", answers("two"), callID)
	g.show(g.runner.Wait, first)
	g.show(g.runner.Wait, second)
	both, err := g.runner.List(g.ctx, subagent.Filter{ExternalTaskID: "call_0"})
	g.say("%d records carry call_0, error %v", len(both), err)
}

// There is one slot. Who comes later waits in line; a released slot goes to
// the head of the line.
func (g *guide) queueing() {
	finish := make(chan struct{})
	a, b, c := g.spawn("a", waits(finish)), g.spawn("b", waits(finish)), g.spawn("c", waits(finish))
	time.Sleep(beat)
	for _, id := range []uuid.UUID{a, b, c} {
		g.show(g.runner.Get, id)
	}
	_, err := g.runner.Spawn(g.ctx, subagent.Request{ParentSessionID: "chat", Description: "d", Func: answers(""), NoWait: true})
	g.say("one that will not wait: %v", err)
	finish <- struct{}{} // a is done: b gets its slot
	g.show(g.runner.Wait, a)
	time.Sleep(beat)
	g.show(g.runner.Get, b)
	g.show(g.runner.Get, c)
	close(finish)
	g.show(g.runner.Wait, c)
}

// A queued task is cancelled at once. A running one is told through its ctx;
// what it wrote so far is kept.
func (g *guide) cancelling() {
	never := make(chan struct{})
	running, queued := g.spawn("running", waits(never)), g.spawn("queued", waits(never))
	time.Sleep(beat)
	for _, id := range []uuid.UUID{queued, running} {
		if _, err := g.runner.Cancel(g.ctx, id, subagent.CancelOptions{}); err != nil {
			g.say("%v", err)
		}
		g.show(g.runner.Wait, id)
	}
}

// A worker that does not obey is settled without it when the grace is over. It
// keeps its slot until it returns, and what it says then is dropped.
func (g *guide) deafWorker() {
	wakeUp := make(chan struct{})
	deaf := g.spawn("deaf", func(context.Context, *subagent.Run) (subagent.Result, error) {
		<-wakeUp
		return subagent.Result{Text: "too late"}, nil
	})
	next := g.spawn("next", answers("my turn"))
	time.Sleep(beat)
	if _, err := g.runner.Cancel(g.ctx, deaf, subagent.CancelOptions{Reason: subagent.ReasonAgent}); err != nil {
		g.say("%v", err)
	}
	g.show(g.runner.Get, deaf)
	g.show(g.runner.Wait, deaf)
	g.show(g.runner.Get, next)
	close(wakeUp)
	g.show(g.runner.Wait, next)
	g.show(g.runner.Get, deaf)
}

// The run time begins when the task starts, not while it waits in line.
func (g *guide) timeLimit() {
	id := g.spawn("slow", waits(nil), func(q *subagent.Request) { q.Timeout = 2 * beat })
	g.show(g.runner.Wait, id)
}

// A panic ends its task, not the process.
func (g *guide) panicking() {
	id := g.spawn("bold", func(context.Context, *subagent.Run) (subagent.Result, error) {
		panic(errors.New("out of range"))
	})
	g.show(g.runner.Wait, id)
	g.show(g.runner.Wait, g.spawn("next", answers("still here")))
}

// A task that waits for its sub-task lends it its slot.
func (g *guide) nesting() {
	id := g.spawn("lead", func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		kid, err := g.runner.Run(ctx, subagent.Request{Description: "kid", Func: func(context.Context, *subagent.Run) (subagent.Result, error) {
			g.say("while kid runs, %d slot of %d is lent", g.runner.Stats().Lent, g.runner.Stats().Capacity.Limit)
			return subagent.Result{Text: "from the kid"}, nil
		}})
		if err != nil {
			return subagent.Result{}, err
		}
		_, err = g.runner.Wait(ctx, run.Task().ID) // on itself
		g.say("waiting for oneself is a cycle: %v", errors.Is(err, subagent.ErrWaitCycle))
		return subagent.Result{Text: kid.ResultText}, nil
	})
	g.show(g.runner.Wait, id)
}

// A process died and left open records. The next Runner on that store ends
// them before it does anything else; nothing is run again.
func (g *guide) recovery() {
	store := subagent.NewMemoryStore() // in its place: a store that outlives the process
	now := time.Now().UTC()
	for _, status := range []subagent.Status{subagent.StatusQueued, subagent.StatusRunning} {
		err := store.Create(g.ctx, subagent.Task{
			ID: uuid.Must(uuid.NewV7()), ParentSessionID: "chat", Description: string(status),
			Status: status, CreatedAt: now, QueuedAt: now, Owner: "a Runner that is no more",
		})
		if err != nil {
			g.say("%v", err)
		}
	}
	runner, err := subagent.New(g.ctx, subagent.Config{Store: store})
	if err != nil {
		g.say("%v", err)
		return
	}
	left, err := runner.List(g.ctx, subagent.Filter{SessionID: "chat"})
	if err != nil {
		g.say("%v", err)
	}
	for _, task := range left {
		g.show(runner.Get, task.ID)
	}
	if err := runner.Shutdown(g.ctx); err != nil {
		g.say("%v", err)
	}
}
