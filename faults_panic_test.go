package subagent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// badStringer panics when it is printed, as some values do.
type badStringer struct{}

func (badStringer) String() string { panic("no words") }

// badError is an error that panics when it is asked for its text.
type badError struct{}

func (*badError) Error() string { panic("no words") }

// panicsOfKinds are Funcs that panic, and what their record must say.
func panicsOfKinds() map[string]subagent.Func {
	does := func(f func()) subagent.Func {
		return func(context.Context, *subagent.Run) (subagent.Result, error) { f(); return subagent.Result{}, nil }
	}
	var (
		none    map[string]int
		pointer *subagent.Task
		list    []int
	)
	return map[string]subagent.Func{
		"panic: a string":                       panics("a string"),
		"panic: an error":                       panics(errors.New("an error")),
		"panic: {7}":                            panics(struct{ n int }{7}),
		"panic: assignment to entry in nil map": does(func() { none["x"] = 1 }),
		"panic: runtime error: invalid memory address or nil pointer": does(func() { pointer.Subject = "x" }),
		"panic: runtime error: index out of range [1] with length 0":  does(func() { list[len(list)+1] = 1 }),
		"panic: runtime error: integer divide by zero":                does(func() { list = make([]int, 1/len(list)) }),
		"panic: panic called with nil argument":                       does(func() { panic(nil) }),
		"panic: %!v(PANIC=String method: no words)":                   panics(badStringer{}),
		"panic: %!v(PANIC=Error method: no words)":                    panics(&badError{}),
		"panic: runtime.Goexit":                                       exits,
		"panic: sync: negative WaitGroup counter":                     does(func() { panic("sync: negative WaitGroup counter") }),
		"*subagent_test.badError: %!v(PANIC=Error method: no words)":  gives("", &badError{}),
		"panic: \uFFFDin\uFFFDvalid":                                  panics("\xffin\x00valid"),
	}
}

// A Func that panics, with whatever, is an errored task. The text is in its
// record and the stack in the log alone; the slot serves the next.
func TestB183_APanicIsTheEndOfItsTaskAlone(t *testing.T) {
	for want, fn := range panicsOfKinds() {
		t.Run(want, func(t *testing.T) {
			var log bytes.Buffer
			inRig(t, subagent.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, r *rig) {
				id := r.spawn("panics", func(q *subagent.Request) { q.Func = fn }).ID
				next, _ := r.runs("next")
				end := r.settled(id)
				require.Equal(t, subagent.StatusErrored, end.Status)
				require.True(t, strings.HasPrefix(end.Error, want), end.Error)
				cards, events, notices := r.heard(id)
				for _, text := range []string{end.Error, cards[len(cards)-1].Content, events[len(events)-1].Task.Error, notices[0].Error} {
					require.NotContains(t, text, "goroutine ")
					require.NotContains(t, text, ".go:")
				}
				require.Equal(t, end.Reason == subagent.ReasonPanic && want != "panic: runtime.Goexit", strings.Contains(log.String(), "goroutine "), "the stack is in the log")
				r.gate.Release(next, subagent.Result{Text: "fine"}, nil)
				require.Equal(t, "fine", r.awaited(next).ResultText)
			})
		})
	}
}

// What a worker reports when nobody is there any more is dropped: after its
// cancel and its forced end, after its subscribers have left, and after the
// Runner was shut down.
func TestB186_ReportsWhenEverythingIsClosed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		gate, store := subagenttest.NewGate(), subagent.NewMemoryStore()
		r, err := subagent.New(t.Context(), subagent.Config{Store: store, Func: gate.DeafFunc(), CancelGrace: time.Second})
		require.NoError(t, err)
		sub := r.Subscribe(subagent.Filter{})
		task, err := r.Spawn(t.Context(), rigAsk("deaf"))
		require.NoError(t, err)
		run := gate.WaitEntered(t, task.ID)
		report := func() {
			run.Progress("late")
			run.ToolUse("late")
			run.ReportUsage("late", tokens(1))
			n, err := run.Write([]byte("late"))
			require.NoError(t, err)
			require.Equal(t, 4, n)
			require.Equal(t, task.ID, run.Task().ID)
		}
		_, err = r.Cancel(t.Context(), task.ID, subagent.CancelOptions{})
		require.NoError(t, err)
		sub.Close()
		report() // stopped, and still running
		time.Sleep(time.Second)
		synctest.Wait()
		end, err := store.Get(t.Context(), task.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, end.Status)
		report()
		require.Error(t, r.Shutdown(t.Context()))
		report()
		_, err = sub.Next(t.Context())
		require.ErrorIs(t, err, subagent.ErrClosed)
		gate.ReleaseAll()
		synctest.Wait()
		report() // its Func has returned
		got, err := store.Get(t.Context(), task.ID)
		require.NoError(t, err)
		require.Equal(t, essence(end), essence(got))
		_, err = r.Subscribe(subagent.Filter{}).Next(t.Context())
		require.ErrorIs(t, err, subagent.ErrClosed)
	})
}

// Nobody reads the events, and the sinks do not answer: the task ends on time,
// and nothing of it is left but what was not read.
func TestB187_NobodyReads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		before := goleak.IgnoreCurrent()
		r, err := subagent.New(t.Context(), subagent.Config{Workers: 1})
		require.NoError(t, err)
		var subs []*subagent.Subscription
		for range 3 {
			subs = append(subs, r.Subscribe(subagent.Filter{}))
		}
		began := time.Now()
		task, err := r.Run(t.Context(), rigAsk("talks", withFunc(func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			for i := range 20_000 {
				run.Progress(fmt.Sprint(i))
				run.ReportUsage("m", tokens(int64(i)))
			}
			return subagent.Result{Text: "done"}, nil
		})))
		require.NoError(t, err)
		require.Equal(t, "done", task.ResultText)
		require.Zero(t, time.Since(began))
		for _, sub := range subs {
			ev, err := sub.Next(t.Context())
			require.NoError(t, err)
			require.Equal(t, subagent.StatusCompleted, ev.Task.Status, "what they missed is merged into the end")
		}
		require.NoError(t, r.Shutdown(t.Context()))
		synctest.Wait()
		require.NoError(t, goleak.Find(before))
	})
}

// caller is foreign code that calls every verb of the Runner, synchronously, from
// wherever it is called.
type caller struct {
	slog.Handler
	r      *subagent.Runner
	inside [5]atomic.Int32 // calls under way from each place: what they lead to does not call from there again
	called [5]atomic.Int32 // from each place, which is bounded: what it spawns calls too
}

func (c *caller) call(where int) {
	if c.r == nil {
		return
	}
	defer c.inside[where].Add(-1)
	if c.inside[where].Add(1) > 1 || c.called[where].Add(1) > 20 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := c.r
	kid, err := r.Spawn(ctx, rigAsk("kid", withFunc(keeps())))
	if err == nil {
		_, _ = r.Get(ctx, kid.ID)
		_, _ = r.Cancel(ctx, kid.ID, subagent.CancelOptions{})
		_, _ = r.UsageTree(ctx, kid.ID)
	}
	list, _ := r.List(ctx, subagent.Filter{})
	for _, task := range list {
		_, _ = r.Get(ctx, task.ID)
		_, _ = r.QueuePosition(task.ID)
		_, _ = r.Spawn(ctx, rigAsk("x", withID(task.ID), withFunc(keeps())))
		if task.Description == "stop me" {
			_, _ = r.Cancel(ctx, task.ID, subagent.CancelOptions{})
		}
	}
	sub := r.Subscribe(subagent.Filter{})
	_, _ = sub.Next(endedContext())
	sub.Close()
	r.Stats()
	_, _ = r.CancelSession(ctx, "nobody", subagent.CancelOptions{})
	_, _ = r.Prune(ctx, subagent.Filter{}, time.Time{})
}

func (c *caller) PutCard(context.Context, subagent.Card) error { c.call(0); return nil }
func (c *caller) Notify(context.Context, subagent.Task) error  { c.call(1); return nil }
func (c *caller) Enabled(context.Context, slog.Level) bool     { return true }
func (c *caller) Handle(context.Context, slog.Record) error    { c.call(2); return nil }
func (c *caller) fault(subagenttest.Call) subagenttest.Fault   { c.call(3); return subagenttest.Fault{} }
func (c *caller) value(key any) any                            { c.call(4); return nil }

// askedCtx is a ctx whose values call the Runner.
type askedCtx struct {
	context.Context
	c *caller
}

func (c askedCtx) Value(key any) any {
	if _, ours := key.(string); ours {
		c.c.value(key)
	}
	return c.Context.Value(key)
}

// Store, sink, notifier, logger and ctx call every verb from inside their own
// calls, for tasks of every end: nothing waits for itself.
func TestB188_CallbacksMayCallEverything(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := &caller{}
		store := subagenttest.NewFaultyStore(subagent.NewMemoryStore())
		for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpGet, subagenttest.OpUpdate, subagenttest.OpList} {
			store.On(op, c.fault)
		}
		r, err := subagent.New(t.Context(), subagent.Config{Store: store.Store(), Workers: 2, MaxQueued: -1, Cards: c, Notifier: c, Logger: slog.New(c)})
		require.NoError(t, err)
		c.r = r
		defer func() { // also when the test has failed, so that the bubble can end
			require.NoError(t, r.Shutdown(t.Context()))
		}()
		ctx := askedCtx{t.Context(), c}
		for _, fn := range []subagent.Func{gives("done", nil), gives("", errBroken), panics("logged"), stopped(gives("", nil))} {
			prompt := "x"
			for range 5 {
				_, err := r.Spawn(ctx, rigAsk(prompt, withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					ctx.Value("a key")
					time.Sleep(time.Second)
					return fn(ctx, run)
				}), func(q *subagent.Request) { q.Timeout = time.Minute }))
				require.NoError(t, err)
				prompt = "stop me"
			}
		}
		time.Sleep(time.Hour)
		s := r.Stats()
		require.Zero(t, s.Pending+s.Queued+s.Running+s.Unsaved, "%+v", s)
		for i := range c.called {
			require.Positive(t, c.called[i].Load(), "%d was never called", i)
		}
	})
}

// A thousand tasks that are started and stopped leave no goroutine and no
// timer: run time, queue time and grace, of an hour each, hold on to nothing.
func TestB190_StoppedTasksLeaveNothing(t *testing.T) {
	slots := subagent.NewCapacity(4, -1)
	store := subagent.NewMemoryStore()
	store.SetRetention(0)
	r, err := subagent.New(t.Context(), subagent.Config{Store: store, Capacity: slots, Timeout: time.Hour, QueueTimeout: time.Hour, CancelGrace: time.Hour})
	require.NoError(t, err)
	before, held := goleak.IgnoreCurrent(), newHeapTokens()
	for range 250 {
		var ids []uuid.UUID
		for range 4 {
			ctx, fn := held.carry(t.Context(), obeys)
			task, err := r.Spawn(ctx, rigAsk("x", withFunc(fn)))
			require.NoError(t, err)
			ids = append(ids, task.ID)
		}
		for i, id := range ids {
			if i%2 == 0 {
				runtime.Gosched() // some have started, some have not
			}
			_, err := r.Cancel(t.Context(), id, subagent.CancelOptions{})
			require.NoError(t, err)
			_, err = r.Wait(t.Context(), id)
			if !errors.Is(err, subagent.ErrNotFound) { // it may have ended, and gone, before
				require.NoError(t, err)
			}
		}
	}
	held.gone(t)
	require.NoError(t, goleak.Find(before))
	s := r.Stats()
	require.Zero(t, s.Capacity.Running+s.Capacity.Queued+s.Running+s.Detached+s.Lent)
	require.NoError(t, r.Shutdown(t.Context()))
}
