package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

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
	bubble.Test(t, func(t *testing.T) {
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

func TestG16_PanicsOfForeignCode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
