package subagent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

var liveStatuses = []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}

// noneLive requires that no reader finds a live task.
func (r *rig) noneLive() {
	r.t.Helper()
	list, err := r.List(r.ctx, subagent.Filter{Statuses: liveStatuses})
	require.NoError(r.t, err)
	require.Empty(r.t, list)
	s := r.Stats()
	require.Zero(r.t, s.Pending+s.Queued+s.Running+s.Capacity.Running+s.Capacity.Queued, "%+v", s)
	for row, err := range r.inner.List(r.ctx, subagent.Filter{Statuses: liveStatuses}) {
		require.NoError(r.t, err)
		require.Fail(r.t, "a live record", "%+v", row)
	}
}

// A hundred short tasks, also with a store that fails while they end: none is
// shown as running when they are over, and none comes back with a restart.
func TestB013_NothingThatHasEndedIsListedAsRunning(t *testing.T) {
	for name, hit := range map[string]int{"a good store": 0, "a store that fails at every third write": 3} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				store := subagenttest.NewFaultyStore(inner)
				cfg := subagent.Config{Workers: 4, Func: func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
					return subagent.Result{Text: "done"}, nil
				}}
				rigOn(t, cfg, newTape(), inner, store).run(func(t *testing.T, r *rig) {
					r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
						if hit > 0 && c.Ends() && c.N%hit == 0 {
							return subagenttest.Fault{Err: errBroken}
						}
						return subagenttest.Fault{}
					})
					for i := range 100 {
						r.awaited(r.spawn(fmt.Sprint(i)).ID)
						list, err := r.List(r.ctx, subagent.Filter{Statuses: liveStatuses})
						require.NoError(t, err)
						require.Empty(t, list)
					}
					time.Sleep(10 * time.Minute)
					r.noneLive()
				})
				rigOn(t, subagent.Config{}, newTape(), inner, store).run(func(t *testing.T, r *rig) {
					r.noneLive()
					all, err := r.List(r.ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusCompleted}})
					require.NoError(t, err)
					require.Len(t, all, 100)
				})
			})
		})
	}
}

// The chat is inside a model call of its own while its task ends, in each way:
// the chat counts no active task from that moment on.
func TestB014_AnEndDuringTheParentsTurn(t *testing.T) {
	for name, end := range map[string]func(r *rig, id uuid.UUID){
		"completes": func(r *rig, id uuid.UUID) { r.gate.Release(id, subagent.Result{}, nil) },
		"fails":     func(r *rig, id uuid.UUID) { r.gate.Release(id, subagent.Result{}, errBroken) },
		"stopped":   func(r *rig, id uuid.UUID) { r.stop(id) },
	} {
		inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
			turn, endTurn := context.WithCancel(r.ctx) // of the parent agent
			task, err := r.Spawn(turn, rigAsk("work"))
			require.NoError(t, err)
			r.gate.WaitEntered(t, task.ID)
			end(r, task.ID)
			synctest.Wait() // the turn goes on, and nobody asks for anything
			r.noneLive()
			cards, events, notices := r.heard(task.ID)
			require.Equal(t, 3, rank(subagent.Status(cards[len(cards)-1].Attach.Status)), name)
			require.True(t, events[len(events)-1].Task.Status.Terminal(), name)
			require.Len(t, notices, 1, name)
			endTurn()
			synctest.Wait()
			r.noneLive()
			r.settled(task.ID)
		})
	}
}

// whole says what is wrong with a view of a task whose text is "final".
func whole(task subagent.Task, err error) error {
	if err == nil && (task.ResultText == "final") != (task.Status == subagent.StatusCompleted) {
		return fmt.Errorf("%s with text %q", task.Status, task.ResultText)
	}
	return err
}

// A reader spins while tasks finish: text and status change in one moment.
func TestB015_NoReaderSeesTextWithoutTheEndNorTheEndWithoutText(t *testing.T) {
	rounds := 10_000
	if testing.Short() {
		rounds = 1_000
	}
	work := func(context.Context, *subagent.Run) (subagent.Result, error) {
		return subagent.Result{Text: "final"}, nil
	}
	r, err := subagent.New(t.Context(), subagent.Config{Func: work})
	require.NoError(t, err)
	var now atomic.Pointer[uuid.UUID]
	now.Store(&uuid.UUID{1}) // nobody's yet
	wrong := make(chan error, 1)
	go func() { // the reader: ends when now is uuid.Nil
		var first error
		for id := now.Load(); *id != uuid.Nil; id = now.Load() {
			if err := whole(r.Get(context.Background(), *id)); first == nil && !errors.Is(err, subagent.ErrNotFound) {
				first = err
			}
			runtime.Gosched()
		}
		wrong <- first
	}()
	for i := range rounds {
		task, err := r.Spawn(t.Context(), ask("x"))
		require.NoError(t, err)
		now.Store(&task.ID)
		end, err := r.Wait(t.Context(), task.ID)
		require.NoError(t, err)
		require.Equal(t, "final", end.ResultText, "round %d", i)
	}
	now.Store(&uuid.Nil)
	require.NoError(t, <-wrong)
	require.NoError(t, r.Shutdown(t.Context()))
}

// The same, looked at from inside every call that the Runner makes, before and
// after it has taken effect.
func TestB015_EveryCallShowsOneState(t *testing.T) {
	for _, committed := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			var r *rig
			var looks atomic.Int64
			look := func(ctx context.Context, id uuid.UUID) {
				looks.Add(1)
				require.NoError(t, whole(r.Get(ctx, id)))
				list, err := r.List(ctx, subagent.Filter{SessionID: "s"})
				require.NoError(t, err)
				for _, task := range list {
					require.NoError(t, whole(task, nil))
				}
			}
			p := newTape()
			p.onCard = func(ctx context.Context, c subagent.Card) error { look(ctx, c.TaskID); return nil }
			p.onNotice = func(ctx context.Context, task subagent.Task) error { look(ctx, task.ID); return whole(task, nil) }
			r = newRig(t, subagent.Config{}, p)
			r.run(func(t *testing.T, r *rig) {
				id, _ := r.runs("work")
				r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
					look(r.ctx, id)
					time.AfterFunc(time.Second, func() { look(r.ctx, id) }) // ends with its look, before the call returns
					return subagenttest.Fault{Delay: 2 * time.Second, Committed: committed}
				})
				r.gate.Release(id, subagent.Result{Text: "final"}, nil)
				require.NoError(t, whole(r.awaited(id), nil))
				require.NoError(t, whole(r.settled(id), nil))
				require.GreaterOrEqual(t, looks.Load(), int64(4))
			})
		})
	}
}

// The agent comes back straight after its first model call, without a word of
// farewell.
func TestB016_AChildThatDiesInItsFirstModelCall(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		panics any
		status subagent.Status
		text   string
	}{
		{"an error", errors.New("529 overloaded"), nil, subagent.StatusErrored, "529 overloaded"},
		{"nil, nil", nil, nil, subagent.StatusCompleted, ""},
		{"the ctx error of its own call", context.Canceled, nil, subagent.StatusErrored, "context canceled"},
		{"a panic", nil, "no closing event", subagent.StatusErrored, "panic: no closing event"},
	} {
		t.Run(c.name, func(t *testing.T) {
			die := func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
				run.ReportUsage("call-1", subagent.Usage{InputTokens: 3})
				if c.panics != nil {
					panic(c.panics)
				}
				return subagent.Result{}, c.err
			}
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				before := time.Now()
				id := r.spawn("dies", withFunc(die)).ID
				next := r.spawn("next")
				r.gate.WaitEntered(t, next.ID)
				end := r.awaited(id)
				require.Less(t, time.Since(before), time.Second)
				require.Equal(t, c.status, end.Status)
				require.Equal(t, c.text, end.Error)
				require.EqualValues(t, 3, end.Usage.InputTokens, "the call was paid for")
				require.Equal(t, essence(end), essence(r.settled(id)))
			})
		})
	}
}

// The clock of a task runs from the grant of its slot, whatever it does with it.
func TestB019_AFactoryThatBlocksIsTimedOut(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		for _, waits := range []time.Duration{0, 10 * time.Second} {
			inRig(t, subagent.Config{CancelGrace: time.Second, FreeOnDetach: true}, func(t *testing.T, r *rig) {
				holder, _ := r.runs("holds the slot")
				parked := r.spawn("parked", func(q *subagent.Request) {
					q.Timeout = 500 * time.Millisecond
					if deaf {
						r.deaf(q)
					}
				})
				next := r.spawn("next")
				time.Sleep(waits)
				r.gate.Release(holder, subagent.Result{}, nil)
				end := r.awaited(parked.ID)
				require.Equal(t, subagent.ReasonTimeout, end.Reason)
				require.Equal(t, deaf, end.Detached)
				took := 500 * time.Millisecond
				if deaf {
					took += time.Second // the grace, for it does not come back
				}
				require.Equal(t, took, end.CompletedAt.Sub(end.StartedAt))
				require.Equal(t, waits, end.StartedAt.Sub(end.QueuedAt), "the wait in line does not count")
				r.gate.WaitEntered(t, next.ID)
			})
		}
	}
}

// The sink panics once, at one transition of
// T1: that is logged, and all three tasks run.
func TestB021_ASinkThatPanicsAtATransition(t *testing.T) {
	for _, at := range []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning, subagent.StatusCompleted} {
		t.Run(string(at), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newTape()
				var once atomic.Bool
				p.onCard = func(_ context.Context, c subagent.Card) error {
					if c.Attach.Status == string(at) && once.CompareAndSwap(false, true) {
						panic("the sink")
					}
					return nil
				}
				var said bytes.Buffer
				newRig(t, subagent.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))}, p).run(func(t *testing.T, r *rig) {
					var ids []uuid.UUID
					for i := range 3 {
						ids = append(ids, r.spawn(fmt.Sprint("T", i+1)).ID)
					}
					for _, id := range ids {
						r.gate.WaitEntered(t, id)
						r.gate.Release(id, subagent.Result{Text: "fine"}, nil)
						require.Equal(t, "fine", r.awaited(id).ResultText)
					}
					time.Sleep(time.Second) // the card that was lost is put again
					for _, id := range ids {
						r.settled(id)
					}
					require.True(t, once.Load())
					require.Contains(t, said.String(), "panic: the sink")
					require.Contains(t, said.String(), ids[0].String())
				})
			})
		})
	}
}
