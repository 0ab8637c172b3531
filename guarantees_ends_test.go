package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
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

// faults are what a store may do to a call.
func faults() map[string]func() subagenttest.Fault {
	broken := errors.New("broken")
	return map[string]func() subagenttest.Fault{
		"fails":             func() subagenttest.Fault { return subagenttest.Fault{Err: broken} },
		"commits and fails": func() subagenttest.Fault { return subagenttest.Fault{Err: broken, Committed: true} },
		"blocks":            func() subagenttest.Fault { return subagenttest.Fault{Delay: time.Hour} },
		"is deaf":           func() subagenttest.Fault { return subagenttest.Fault{Delay: 2 * time.Minute, Deaf: true} },
		"is slow":           func() subagenttest.Fault { return subagenttest.Fault{Delay: time.Second} },
	}
}

// Each store call of a task's way is disturbed, once and for five minutes.
func TestG9_StoreFaultsAtEveryStep(t *testing.T) {
	for step := 1; step <= 4; step++ { // queued, running, the end, the delivery
		for name, fault := range faults() {
			for _, lasting := range []bool{false, true} {
				t.Run(fmt.Sprintf("update %d %s, lasting %v", step, name, lasting), func(t *testing.T) {
					inWorld(t, subagent.Config{}, func(w *world) {
						until := time.Now().Add(5 * time.Minute)
						w.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
							if c.N == step || (lasting && c.N > step && time.Now().Before(until)) {
								return fault()
							}
							return subagenttest.Fault{}
						})
						w.gate.ReleaseAll()
						start := time.Now()
						task, err := w.Spawn(w.ctx, w.request("a"))
						if err != nil {
							require.Equal(t, 1, step)
							require.Equal(t, subagent.ReasonStore, task.Reason)
						}
						end := w.wait(task.ID)
						require.LessOrEqual(t, time.Since(start), 4*10*time.Second, "each step takes a StoreTimeout at most")
						require.True(t, end.Status.Terminal())
						require.True(t, end.NotifiedAt.IsZero() || len(w.surface.noticesOf(task.ID)) == 1, "this waiter is the first, or it was notified")
						time.Sleep(10 * time.Minute)
						require.Zero(t, w.Stats().Unsaved)
						row, gerr := w.store.Get(w.ctx, task.ID)
						require.NoError(t, gerr)
						require.Equal(t, end.Status, row.Status)
						require.Equal(t, end.Error, row.Error)
						require.False(t, row.NotifiedAt.IsZero())
						w.agreed(end)
						next := w.spawn("next", func(q *subagent.Request) { q.NoWait = true })
						w.wait(next.ID)
					})
				})
			}
		}
	}
}

// A store and a sink that call back into the Runner from every method.
func TestG10_ForeignCodeMayCallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var r *subagent.Runner
		inCall := false
		call := func() {
			if r == nil || inCall {
				return
			}
			inCall = true
			defer func() { inCall = false }()
			list, err := r.List(ctx, subagent.Filter{})
			require.NoError(t, err)
			for _, task := range list {
				_, err := r.Get(ctx, task.ID)
				require.NoError(t, err)
				r.QueuePosition(task.ID)
			}
			r.Stats()
		}
		store := subagenttest.NewFaultyStore(subagent.NewMemoryStore())
		for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpUpdate} {
			store.On(op, func(subagenttest.Call) subagenttest.Fault { call(); return subagenttest.Fault{} })
		}
		var err error
		r, err = subagent.New(ctx, subagent.Config{Store: store.Store(), Workers: 1, Cards: sinkFunc(func(context.Context, subagent.Card) error { call(); return nil }),
			Func: func(context.Context, *subagent.Run) (subagent.Result, error) { return subagent.Result{}, nil }})
		require.NoError(t, err)
		for range 3 {
			task, err := r.Spawn(ctx, subagent.Request{Description: "a", ParentSessionID: "s"})
			require.NoError(t, err)
			_, err = r.Wait(ctx, task.ID)
			require.NoError(t, err)
		}
		require.NoError(t, r.Shutdown(ctx))
	})
}

type sinkFunc func(context.Context, subagent.Card) error

func (f sinkFunc) PutCard(ctx context.Context, c subagent.Card) error { return f(ctx, c) }

type notifierFunc func(context.Context, subagent.Task) error

func (f notifierFunc) Notify(ctx context.Context, t subagent.Task) error { return f(ctx, t) }

// The verdict table, row by row: every way to end reaches every surface.
func TestG11_VerdictOnEverySurface(t *testing.T) {
	stop := func(w *world, id uuid.UUID) {
		_, err := w.Cancel(w.ctx, id, subagent.CancelOptions{})
		require.NoError(w.t, err)
	}
	write := func(run *subagent.Run) { _, _ = run.Write([]byte("partial")) }
	obey := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		write(run)
		<-ctx.Done()
		return subagent.Result{}, ctx.Err()
	}
	for _, row := range []struct {
		name   string
		fn     subagent.Func
		change func(*subagent.Request)
		act    func(w *world, id uuid.UUID)
		want   subagent.Task
	}{
		{name: "returned nil", fn: func(context.Context, *subagent.Run) (subagent.Result, error) {
			return subagent.Result{Text: "all", StopReason: "turn_capped"}, nil
		}, want: subagent.Task{Status: subagent.StatusCompleted, ResultText: "all", StopReason: "turn_capped"}},
		{name: "returned nil without text", fn: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			write(run)
			return subagent.Result{}, nil
		}, want: subagent.Task{Status: subagent.StatusCompleted, ResultText: "partial"}},
		{name: "cancelled, returned", fn: obey, act: stop,
			want: subagent.Task{Status: subagent.StatusCancelled, Reason: subagent.ReasonUser, ResultText: "partial"}},
		{name: "cancelled, panicked", fn: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			write(run)
			<-ctx.Done()
			panic("late")
		}, act: stop, want: subagent.Task{Status: subagent.StatusCancelled, Reason: subagent.ReasonUser, ResultText: "partial"}},
		{name: "run time", fn: obey, change: func(q *subagent.Request) { q.Timeout = 15 * time.Minute },
			want: subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonTimeout, Error: "timed out after 15m0s", ResultText: "partial"}},
		{name: "error", fn: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			write(run)
			return subagent.Result{}, fmt.Errorf("no: %w", fs.ErrNotExist)
		}, want: subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonError, Error: "no: file does not exist", ResultText: "partial"}},
		{name: "typed error", fn: func(context.Context, *subagent.Run) (subagent.Result, error) {
			return subagent.Result{Text: "kept"}, &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}
		}, want: subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonError, Error: "*fs.PathError: open x: file does not exist", ResultText: "kept"}},
		{name: "panic", fn: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			write(run)
			panic(os.ErrClosed)
		}, want: subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonPanic, Error: "panic: file already closed", ResultText: "partial"}},
		{name: "Goexit", fn: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			write(run)
			runtime.Goexit()
			return subagent.Result{}, nil
		}, want: subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonPanic, Error: "panic: runtime.Goexit", ResultText: "partial"}},
		{name: "text that is none", fn: func(context.Context, *subagent.Run) (subagent.Result, error) {
			return subagent.Result{Text: "a\x00b\xff"}, errors.New("c\x00")
		}, want: subagent.Task{Status: subagent.StatusErrored, Reason: subagent.ReasonError, Error: "c\uFFFD", ResultText: "a\uFFFDb\uFFFD"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			inWorld(t, subagent.Config{}, func(w *world) {
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
			})
		})
	}
}

func TestG12_ShutdownLeavesNothingOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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

func TestG13_RecoveryOfWhatADeadOwnerLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := subagent.NewMemoryStore()
		var rows []subagent.Task
		for i, status := range []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning, subagent.StatusCompleted, subagent.StatusCancelled, subagent.StatusErrored} {
			row := subagent.Task{ID: uuid.Must(uuid.NewV7()), Description: fmt.Sprint(i), ParentSessionID: "s", Status: status, Owner: "dead", Background: true, CreatedAt: time.Now().UTC()}
			if status.Terminal() {
				row.CompletedAt = time.Now().UTC()
				row.NotifiedAt = row.CompletedAt
			}
			rows = append(rows, row)
		}
		require.NoError(t, store.Create(ctx, rows...))
		for round := range 3 {
			s := &surface{cards: map[uuid.UUID][]subagent.Card{}, notices: map[uuid.UUID][]subagent.Task{}}
			r, err := subagent.New(ctx, subagent.Config{Store: store, Cards: s, Notifier: s})
			require.NoError(t, err)
			synctest.Wait()
			for i, before := range rows {
				row, err := store.Get(ctx, before.ID)
				require.NoError(t, err)
				if before.Status.Terminal() {
					before.Version = 1
					require.Equal(t, before, row)
					continue
				}
				require.Equal(t, subagent.StatusErrored, row.Status)
				require.Equal(t, subagent.ReasonLost, row.Reason)
				require.Equal(t, "worker died before completion", row.Error)
				require.ErrorIs(t, row.Err(), subagent.ErrLost)
				if round == 0 {
					require.Equal(t, r.ID(), row.Owner)
					require.Len(t, s.noticesOf(row.ID), 1)
					require.Equal(t, "errored", s.lastCard(row.ID).Attach.Status)
				} else {
					require.Empty(t, s.noticesOf(row.ID), "round %d, task %d", round, i)
				}
			}
			require.NoError(t, r.Shutdown(ctx))
		}
	})
}

// Two Runners share a store with leases: one does not touch what the other
// runs, stops it through the store, and takes over when the other is dead.
func TestG13_TasksOfALiveOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		gate, store := subagenttest.NewGate(), subagent.NewMemoryStore()
		one, err := subagent.New(ctx, subagent.Config{Store: store, Func: gate.Func()})
		require.NoError(t, err)
		task, err := one.Spawn(ctx, subagent.Request{Description: "x", ParentSessionID: "s"})
		require.NoError(t, err)
		gate.WaitEntered(t, task.ID)
		two, err := subagent.New(ctx, subagent.Config{Store: store})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		got, err := two.Get(ctx, task.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusRunning, got.Status)
		got, err = two.Cancel(ctx, task.ID, subagent.CancelOptions{Reason: "policy", Message: "over there"})
		require.NoError(t, err)
		require.Equal(t, subagent.StatusRunning, got.Status)
		require.False(t, got.CancelRequestedAt.IsZero())
		end, err := two.Wait(ctx, task.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, end.Status)
		require.Equal(t, subagent.Reason("policy"), end.Reason)
		require.Equal(t, "over there", end.CancelMessage)
		require.NoError(t, one.Shutdown(ctx))
		require.NoError(t, two.Shutdown(ctx))
	})
}

func TestG14_UsageIsCountedOncePerCall(t *testing.T) {
	inWorld(t, subagent.Config{}, func(w *world) {
		task := w.spawn("a")
		run := w.gate.WaitEntered(t, task.ID)
		for _, n := range []int64{1, 5, 10} { // a stream reports its running total
			run.ReportUsage("m1", subagent.Usage{InputTokens: n, TotalTokens: n})
		}
		run.ReportUsage("m2", subagent.Usage{InputTokens: 7, TotalTokens: 7})
		run.ReportUsage("m1", subagent.Usage{InputTokens: 10, TotalTokens: 10})
		require.EqualValues(t, 17, w.get(task.ID).Usage.TotalTokens)
		w.gate.Release(task.ID, subagent.Result{}, errors.New("no"))
		end := w.wait(task.ID)
		require.Equal(t, subagent.Usage{InputTokens: 17, TotalTokens: 17, Calls: 2}, end.Usage)
	})
}

func TestG14_UsageTreeCountsEachTaskOnce(t *testing.T) {
	var nest subagent.Func
	inWorld(t, subagent.Config{Workers: 2}, func(w *world) {
		nest = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			run.ReportUsage("m", subagent.Usage{TotalTokens: 10})
			if run.Task().Description != "a/b/b" {
				for range 2 {
					if _, err := w.Run(ctx, subagent.Request{Description: run.Task().Description + "/b", Func: nest}); err != nil {
						return subagent.Result{}, err
					}
				}
			}
			return subagent.Result{}, nil
		}
		task, err := w.Run(w.ctx, subagent.Request{Description: "a", ParentSessionID: "s", Func: nest})
		require.NoError(t, err)
		sum, err := w.UsageTree(w.ctx, task.ID)
		require.NoError(t, err)
		require.EqualValues(t, 10*(1+2+4), sum.TotalTokens)
	})
}

func TestG15_NestedTasksFinishAtAnyLimit(t *testing.T) {
	for limit := 1; limit <= 3; limit++ {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			inWorld(t, subagent.Config{Workers: limit}, func(w *world) {
				var nest subagent.Func
				nest = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					depth := len(run.Task().Description)
					if depth == 5 {
						return subagent.Result{Text: "x"}, nil
					}
					var ids []uuid.UUID
					for range 2 {
						kid, err := w.Spawn(ctx, subagent.Request{Description: run.Task().Description + "x", Func: nest})
						if err != nil {
							return subagent.Result{}, err
						}
						ids = append(ids, kid.ID)
					}
					text := "x"
					kids, err := w.Await(ctx, subagent.AwaitAll, ids...)
					for _, kid := range kids {
						text += kid.ResultText
					}
					return subagent.Result{Text: text}, err
				}
				task, err := w.Run(w.ctx, subagent.Request{Description: "x", ParentSessionID: "s", Func: nest})
				require.NoError(t, err)
				require.Len(t, task.ResultText, 31)
			})
		})
	}
}

// A lender goes ahead of the line: its child's slot comes to it.
func TestG15_LenderGoesAheadOfTheLine(t *testing.T) {
	inWorld(t, subagent.Config{}, func(w *world) {
		var order []string
		note := func(name string) subagent.Func {
			return func(context.Context, *subagent.Run) (subagent.Result, error) {
				order = append(order, name)
				return subagent.Result{}, nil
			}
		}
		parent := w.spawn("parent", func(q *subagent.Request) {
			q.Func = func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				_, err := w.Run(ctx, subagent.Request{Description: "kid", Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					require.Equal(t, 1, w.Stats().Lent)
					return w.gate.Func()(ctx, run)
				}})
				order = append(order, "parent")
				return subagent.Result{}, err
			}
		})
		synctest.Wait()
		var last subagent.Task
		for i := range 3 {
			last = w.spawn("other", func(q *subagent.Request) { q.Func = note(fmt.Sprint(i)) })
		}
		w.gate.ReleaseAll()
		w.wait(parent.ID)
		w.wait(last.ID)
		require.Equal(t, []string{"parent", "0", "1", "2"}, order)
	})
}

func TestG15_WaitCyclesAreRefused(t *testing.T) {
	inWorld(t, subagent.Config{Workers: 3}, func(w *world) {
		var errs sync.Map
		ids := make([]uuid.UUID, 3)
		for i := range ids {
			ids[i] = uuid.Must(uuid.NewV7())
		}
		for i := range ids { // a ring: each waits for the next
			w.spawn(fmt.Sprint(i), func(q *subagent.Request) {
				q.ID = ids[i]
				q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					time.Sleep(time.Duration(i+1) * time.Second)
					_, self := w.Wait(ctx, run.Task().ID)
					require.ErrorIs(t, self, subagent.ErrWaitCycle)
					_, err := w.Wait(ctx, ids[(i+1)%3])
					errs.Store(i, err)
					return subagent.Result{}, nil
				}
			})
		}
		_, err := w.Await(w.ctx, subagent.AwaitAll, ids...)
		require.NoError(t, err)
		for i := range ids {
			got, _ := errs.Load(i)
			if i == 2 {
				require.ErrorIs(t, got.(error), subagent.ErrWaitCycle, "it would have closed the ring")
			} else {
				require.Nil(t, got)
			}
		}
	})
}

// A Func whose ctx has ended takes its slot back and may still wait.
func TestG15_StoppedLenderTakesItsSlotBack(t *testing.T) {
	inWorld(t, subagent.Config{}, func(w *world) {
		var cleanedUp subagent.Task
		parent := w.spawn("parent", func(q *subagent.Request) {
			q.Func = func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				kid, err := w.Spawn(ctx, subagent.Request{Description: "kid", Func: func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					<-ctx.Done()
					time.Sleep(time.Second) // it cleans up
					return subagent.Result{}, context.Cause(ctx)
				}})
				if err != nil {
					return subagent.Result{}, err
				}
				cleanedUp, err = w.Wait(context.WithoutCancel(ctx), kid.ID)
				return subagent.Result{}, err
			}
		})
		synctest.Wait()
		_, err := w.Cancel(w.ctx, parent.ID, subagent.CancelOptions{})
		require.NoError(t, err)
		require.Equal(t, 2, w.Stats().Capacity.Running, "both must clean up")
		require.Equal(t, subagent.StatusCancelled, w.wait(parent.ID).Status)
		require.Equal(t, subagent.ReasonParent, cleanedUp.Reason)
	})
}

func TestG16_PanicsOfForeignCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var n atomic.Int64
		store := subagenttest.NewFaultyStore(subagent.NewMemoryStore())
		store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if c.N == 3 {
				panic("store")
			}
			return subagenttest.Fault{}
		})
		panicky := &surface{cards: map[uuid.UUID][]subagent.Card{}, notices: map[uuid.UUID][]subagent.Task{}}
		r, err := subagent.New(ctx, subagent.Config{
			Store: store.Store(), Workers: 1, Logger: slog.New(panicHandler{}),
			Cards: sinkFunc(func(ctx context.Context, c subagent.Card) error {
				if i := n.Add(1); i%2 == 0 {
					runtime.Goexit()
				} else if i%3 == 0 {
					panic("sink")
				}
				return panicky.PutCard(ctx, c)
			}),
			Notifier: notifierFunc(func(ctx context.Context, task subagent.Task) error {
				if n.Add(1)%2 == 0 {
					panic("notifier")
				}
				return panicky.Notify(ctx, task)
			}),
			Func: func(context.Context, *subagent.Run) (subagent.Result, error) { panic(&fs.PathError{}) },
		})
		require.NoError(t, err)
		task, err := r.Spawn(ctx, subagent.Request{Description: "x", ParentSessionID: "s"})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		got, err := r.Get(ctx, task.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.ReasonPanic, got.Reason)
		require.Equal(t, "errored", panicky.lastCard(task.ID).Attach.Status)
		require.Len(t, panicky.noticesOf(task.ID), 1)
		require.Zero(t, r.Stats().Unsaved)
		require.NoError(t, r.Shutdown(ctx))
	})
}

type panicHandler struct{ slog.Handler }

func (panicHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (panicHandler) Handle(context.Context, slog.Record) error { panic("logger") }

func TestG17_WhatAQueuedTaskHolds(t *testing.T) {
	const tasks = 100_000
	gate := subagenttest.NewGate()
	r, err := subagent.New(t.Context(), subagent.Config{Workers: 1, MaxQueued: -1, Func: gate.Func()})
	require.NoError(t, err)
	spawn := func() subagent.Task {
		task, err := r.Spawn(t.Context(), subagent.Request{Description: "x", ParentSessionID: "s"})
		require.NoError(t, err)
		return task
	}
	gate.WaitEntered(t, spawn().ID)
	before := liveHeap()
	goroutines := runtime.NumGoroutine() // after the collections: one from before may still have been ending
	for range tasks {
		spawn()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	each := (int64(liveHeap()) - int64(before)) / tasks
	t.Logf("%d bytes a queued task", each)
	if runtime.GOARCH == "amd64" && !raceEnabled {
		require.LessOrEqual(t, each, int64(1228))
	}
	_, err = r.CancelSession(t.Context(), "s", subagent.CancelOptions{})
	require.NoError(t, err)
	require.Zero(t, r.Stats().Capacity.Queued)
	require.NoError(t, r.Shutdown(t.Context()))
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// 100 000 tasks leave nothing behind.
func TestG17_EndedTasksLeaveNothing(t *testing.T) {
	store := subagent.NewMemoryStore()
	store.SetRetention(100)
	r, err := subagent.New(t.Context(), subagent.Config{Store: store, Func: func(context.Context, *subagent.Run) (subagent.Result, error) { return subagent.Result{}, nil }})
	require.NoError(t, err)
	batch := func(n int) {
		ids := make([]uuid.UUID, n)
		for i := range ids {
			task, err := r.Spawn(t.Context(), subagent.Request{Description: "x", ParentSessionID: "s", Timeout: time.Hour})
			require.NoError(t, err)
			ids[i] = task.ID
		}
		_, err := r.Await(t.Context(), subagent.AwaitAll, ids...)
		require.NoError(t, err)
	}
	batch(1000)
	before := liveHeap()
	goroutines := runtime.NumGoroutine()
	for range 100 {
		batch(1000)
	}
	require.Less(t, liveHeap(), before+1<<20)
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	require.NoError(t, r.Shutdown(t.Context()))
}
