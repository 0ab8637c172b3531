package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

func TestG7_DeafWorkerIsSettledWhenTheGraceIsOver(t *testing.T) {
	for _, free := range []bool{false, true} {
		t.Run(fmt.Sprintf("FreeOnDetach %v", free), func(t *testing.T) {
			inWorld(t, subagent.Config{CancelGrace: 30 * time.Second, FreeOnDetach: free}, func(w *world) {
				a := w.spawn("deaf", func(q *subagent.Request) { q.Func = w.gate.DeafFunc() })
				run := w.gate.WaitEntered(t, a.ID)
				run.ReportUsage("m", subagent.Usage{OutputTokens: 80})
				_, _ = run.Write([]byte("partial"))
				b := w.spawn("next")
				start := time.Now()
				_, err := w.Cancel(w.ctx, a.ID, subagent.CancelOptions{Reason: subagent.ReasonAgent, Message: "enough"})
				require.NoError(t, err)
				time.Sleep(10 * time.Second)
				again, err := w.Cancel(w.ctx, a.ID, subagent.CancelOptions{})
				require.NoError(t, err)
				require.Equal(t, subagent.StatusRunning, again.Status)
				require.Equal(t, start.UTC(), again.CancelRequestedAt)
				end := w.wait(a.ID)
				require.Equal(t, 30*time.Second, time.Since(start), "the second cancel did not prolong the grace")
				require.Equal(t, subagent.StatusCancelled, end.Status)
				require.Equal(t, subagent.ReasonAgent, end.Reason)
				require.Equal(t, "enough", end.CancelMessage)
				require.Equal(t, "cancel timed out, worker may be stuck", end.Error)
				require.Equal(t, "partial", end.ResultText)
				require.EqualValues(t, 80, end.Usage.OutputTokens)
				require.True(t, end.Detached)
				require.Equal(t, 1, w.Stats().Detached)
				synctest.Wait()
				require.Equal(t, free, w.get(b.ID).Status == subagent.StatusRunning)

				run.ReportUsage("m", subagent.Usage{OutputTokens: 1000})
				run.Progress("late")
				_, _ = run.Write([]byte(" late"))
				w.gate.Release(a.ID, subagent.Result{Text: "too late"}, nil)
				w.gate.WaitEntered(t, b.ID)
				synctest.Wait()
				require.Zero(t, w.Stats().Detached)
				w.agreed(end)
			})
		})
	}
}

func TestG7_OneGraceForAWholeTree(t *testing.T) {
	inWorld(t, subagent.Config{Workers: 4}, func(w *world) {
		kids := make(chan subagent.Task, 3)
		deaf := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			for range 3 {
				kid, err := w.Spawn(ctx, subagent.Request{Description: "kid", Func: w.gate.DeafFunc()})
				require.NoError(t, err)
				kids <- kid
			}
			return w.gate.DeafFunc()(ctx, run)
		}
		parent := w.spawn("parent", func(q *subagent.Request) { q.Func = deaf })
		w.gate.WaitEntered(t, parent.ID)
		synctest.Wait()
		start := time.Now()
		_, err := w.Cancel(w.ctx, parent.ID, subagent.CancelOptions{})
		require.NoError(t, err)
		for range 3 {
			kid := w.wait((<-kids).ID)
			require.Equal(t, subagent.ReasonParent, kid.Reason)
			require.Equal(t, parent.ID, kid.ParentTaskID)
		}
		w.wait(parent.ID)
		require.Equal(t, 30*time.Second, time.Since(start))
		w.gate.ReleaseAll()
		synctest.Wait()
	})
}

func TestG8_CountsAreSettledWhenACallReturns(t *testing.T) {
	inWorld(t, subagent.Config{}, func(w *world) {
		blocker := w.spawn("blocker")
		w.gate.WaitEntered(t, blocker.ID)
		for range 20 {
			ctx, cancel := context.WithTimeout(w.ctx, time.Millisecond)
			task, err := w.Run(ctx, w.request("waits"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, subagent.StatusCancelled, task.Status)
			require.Equal(t, subagent.ReasonCaller, task.Reason)
			require.Equal(t, subagent.CapacityStats{Limit: 1, Running: 1}, w.Stats().Capacity)
			cancel()
		}
	})
}

// wayToEnd is a row of the table of verdicts.
type wayToEnd struct {
	name   string
	fn     subagent.Func
	change func(*subagent.Request)
	act    func(w *world, id uuid.UUID)
	want   subagent.Task
}

func writePartial(run *subagent.Run) { _, _ = run.Write([]byte("partial")) }

func obeys(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	writePartial(run)
	<-ctx.Done()
	return subagent.Result{}, ctx.Err()
}

func waysOfStopping() []wayToEnd {
	stop := func(w *world, id uuid.UUID) {
		_, err := w.Cancel(w.ctx, id, subagent.CancelOptions{})
		require.NoError(w.t, err)
	}
	cancelled := subagent.Task{Status: subagent.StatusCancelled, Reason: subagent.ReasonUser, ResultText: "partial"}
	return []wayToEnd{
		{name: "cancelled, returned", fn: obeys, act: stop, want: cancelled},
		{name: "cancelled, panicked", fn: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			writePartial(run)
			<-ctx.Done()
			panic("late")
		}, act: stop, want: cancelled},
		{name: "run time", fn: obeys, change: func(q *subagent.Request) { q.Timeout = 15 * time.Minute },
			want: subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonTimeout, Error: "timed out after 15m0s", ResultText: "partial"}},
	}
}

func waysOfReturning() []wayToEnd {
	errored := func(reason subagent.Reason, err, text string) subagent.Task {
		return subagent.Task{Status: subagent.StatusErrored, Reason: reason, Error: err, ResultText: text}
	}
	return []wayToEnd{
		{name: "returned nil", fn: func(context.Context, *subagent.Run) (subagent.Result, error) {
			return subagent.Result{Text: "all", StopReason: "turn_capped"}, nil
		}, want: subagent.Task{Status: subagent.StatusCompleted, ResultText: "all", StopReason: "turn_capped"}},
		{name: "returned nil without text", fn: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			writePartial(run)
			return subagent.Result{}, nil
		}, want: subagent.Task{Status: subagent.StatusCompleted, ResultText: "partial"}},
		{name: "error", fn: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			writePartial(run)
			return subagent.Result{}, fmt.Errorf("no: %w", fs.ErrNotExist)
		}, want: errored(subagent.ReasonError, "no: file does not exist", "partial")},
		{name: "typed error", fn: func(context.Context, *subagent.Run) (subagent.Result, error) {
			return subagent.Result{Text: "kept"}, &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}
		}, want: errored(subagent.ReasonError, "*fs.PathError: open x: file does not exist", "kept")},
		{name: "panic", fn: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			writePartial(run)
			panic(os.ErrClosed)
		}, want: errored(subagent.ReasonPanic, "panic: file already closed", "partial")},
		{name: "Goexit", fn: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			writePartial(run)
			runtime.Goexit()
			return subagent.Result{}, nil
		}, want: errored(subagent.ReasonPanic, "panic: runtime.Goexit", "partial")},
		{name: "text that is none", fn: func(context.Context, *subagent.Run) (subagent.Result, error) {
			return subagent.Result{Text: "a\x00b\xff"}, errors.New("c\x00")
		}, want: errored(subagent.ReasonError, "c\uFFFD", "a\uFFFDb\uFFFD")},
	}
}

// The verdict table, row by row: every way to end reaches every surface.
func TestG11_VerdictOnEverySurface(t *testing.T) {
	for _, row := range append(waysOfReturning(), waysOfStopping()...) {
		t.Run(row.name, func(t *testing.T) { inWorld(t, subagent.Config{}, row.check) })
	}
}

func (row *wayToEnd) check(w *world) {
	t := w.t
	events := w.Subscribe(subagent.Filter{})
	task := w.spawn("x", func(q *subagent.Request) {
		q.Func = row.fn
		if row.change != nil {
			row.change(q)
		}
	})
	synctest.Wait()
	if row.act != nil {
		row.act(w, task.ID)
	}
	time.Sleep(time.Hour)
	notices := w.surface.noticesOf(task.ID)
	require.Len(t, notices, 1, "nobody waited: a notice was owed")
	end := w.wait(task.ID)
	for where, got := range map[string]subagent.Task{"waiter": end, "notice": notices[0]} {
		require.Equal(t, row.want.Status, got.Status, where)
		require.Equal(t, row.want.Reason, got.Reason, where)
		require.Equal(t, row.want.Error, got.Error, where)
		require.Equal(t, row.want.ResultText, got.ResultText, where)
		require.Equal(t, row.want.StopReason, got.StopReason, where)
	}
	require.False(t, end.NotifiedAt.IsZero())
	ev, err := events.Next(w.ctx)
	require.NoError(t, err)
	require.Equal(t, row.want.Status, ev.Task.Status, "merged events show the end")
	w.agreed(end)
}

func TestG12_ShutdownLeavesNothingOpen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx := t.Context()
		gate, store := subagenttest.NewGate(), subagent.NewMemoryStore()
		r, err := subagent.New(ctx, subagent.Config{Store: store, Workers: 2, Func: gate.Func()})
		require.NoError(t, err)
		spawn := func(fn subagent.Func) uuid.UUID {
			task, err := r.Spawn(ctx, subagent.Request{Description: "x", ParentSessionID: "s", Func: fn})
			require.NoError(t, err)
			return task.ID
		}
		obedient, deaf, queued := spawn(nil), spawn(gate.DeafFunc()), spawn(nil)
		gate.WaitEntered(t, obedient)
		gate.WaitEntered(t, deaf)
		events := r.Subscribe(subagent.Filter{})
		start := time.Now()
		err = r.Shutdown(ctx)
		require.Equal(t, 10*time.Second, time.Since(start), "ShutdownGrace, twice")
		var left *subagent.ShutdownError
		require.ErrorAs(t, err, &left)
		require.ErrorIs(t, err, subagent.ErrShutdown)
		require.Equal(t, []uuid.UUID{deaf}, left.Detached)
		require.Empty(t, left.Unsaved)
		for id, want := range map[uuid.UUID]subagent.Task{
			obedient: {Status: subagent.StatusErrored, Error: "worker pool shutdown"},
			deaf:     {Status: subagent.StatusErrored, Error: "worker pool shutdown", Detached: true},
			queued:   {Status: subagent.StatusCancelled},
		} {
			row, err := store.Get(ctx, id)
			require.NoError(t, err)
			require.Equal(t, subagent.ReasonShutdown, row.Reason)
			require.Equal(t, want.Status, row.Status)
			require.Equal(t, want.Error, row.Error)
			require.Equal(t, want.Detached, row.Detached)
			require.ErrorIs(t, row.Err(), subagent.ErrShutdown)
			got, err := r.Wait(ctx, id)
			require.NoError(t, err, "readers are served after the end")
			require.Equal(t, want.Status, got.Status)
		}
		for range 3 {
			ev, err := events.Next(ctx)
			require.NoError(t, err)
			require.True(t, ev.Task.Status.Terminal())
		}
		_, err = events.Next(ctx)
		require.ErrorIs(t, err, subagent.ErrClosed)
		_, err = r.Spawn(ctx, subagent.Request{Description: "x", ParentSessionID: "s"})
		require.ErrorIs(t, err, subagent.ErrClosed)
		require.Same(t, left, r.Shutdown(ctx))
		gate.ReleaseAll()
	})
}

func TestG12_ShutdownFromInside(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var r *subagent.Runner
		var inside error
		r, err := subagent.New(t.Context(), subagent.Config{Workers: 2})
		require.NoError(t, err)
		task, err := r.Spawn(t.Context(), subagent.Request{Description: "x", ParentSessionID: "s", Func: func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
			inside = r.Shutdown(ctx)
			return subagent.Result{Text: "done"}, nil
		}})
		require.NoError(t, err)
		end, err := r.Wait(t.Context(), task.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCompleted, end.Status)
		require.NoError(t, inside)
		require.NoError(t, r.Shutdown(t.Context()))
	})
}
