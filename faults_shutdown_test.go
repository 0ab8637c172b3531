package subagent_test

import (
	"context"
	"fmt"
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

// The ctx that all was made with ends while tasks run and wait: Shutdown
// returns, with that ctx and with another, and nothing is left.
func TestB134_TheRootCtxEndsBeforeShutdown(t *testing.T) {
	for _, same := range []bool{false, true} {
		t.Run(fmt.Sprintf("Shutdown gets it %v", same), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				root, cancel := context.WithCancel(t.Context())
				gate, store := subagenttest.NewGate(), subagent.NewMemoryStore()
				r, err := subagent.New(root, subagent.Config{Store: store, Workers: 1, Func: gate.Func()})
				require.NoError(t, err)
				var ids []uuid.UUID
				for range 6 {
					task, err := r.Spawn(root, rigAsk("x"))
					require.NoError(t, err)
					ids = append(ids, task.ID)
				}
				gate.WaitEntered(t, ids[0])
				cancel()
				ctx, longest := t.Context(), 5*time.Second
				if same {
					ctx, longest = root, 0
				}
				start := time.Now()
				require.NoError(t, r.Shutdown(ctx))
				require.LessOrEqual(t, time.Since(start), longest)
				for i, id := range ids {
					row, err := store.Get(t.Context(), id)
					require.NoError(t, err)
					require.Equal(t, subagent.ReasonShutdown, row.Reason)
					require.Equal(t, i > 0, row.Status == subagent.StatusCancelled)
					require.Equal(t, i > 0, row.StartedAt.IsZero())
					if i > 0 {
						require.WithinDuration(t, start, row.CompletedAt, 0, "what waits is not kept waiting")
					}
				}
				require.Zero(t, gate.Inside()) // and the bubble ends: no goroutine is left
			})
		})
	}
}

// Shutdown is called, with a second to spare, from wherever the Runner calls:
// it is back within that second, or two where it must see to the end itself,
// though another task hears nothing.
func TestB136_ShutdownFromInsideIsBounded(t *testing.T) {
	for _, place := range []string{"Func", "card sink", "notifier", "event handler"} {
		t.Run(place, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				p := newTape()
				var r *rig
				took := make(chan time.Duration, 1)
				var called atomic.Bool
				call := func(ctx context.Context, here, label string) {
					if here != place || label != "caller" || !called.CompareAndSwap(false, true) {
						return
					}
					ctx, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					start := time.Now()
					_ = r.Shutdown(ctx)
					took <- time.Since(start)
				}
				p.onCard = func(ctx context.Context, c subagent.Card) error { call(ctx, "card sink", c.Attach.Label); return nil }
				p.onNotice = func(ctx context.Context, task subagent.Task) error { call(ctx, "notifier", task.Subject); return nil }
				r = newRig(t, subagent.Config{Workers: 2}, p)
				events := r.Subscribe(subagent.Filter{})
				go func() { // ends with the Runner
					for ev, err := events.Next(context.Background()); err == nil; ev, err = events.Next(context.Background()) {
						call(context.Background(), "event handler", ev.Task.Subject)
					}
				}()
				r.run(func(t *testing.T, r *rig) {
					r.left = true
					deaf, _ := r.runs("deaf", r.deaf)
					_, err := r.Spawn(r.ctx, rigAsk("caller", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
						call(ctx, "Func", "caller")
						return subagent.Result{}, nil
					})))
					require.NoError(t, err)
					longest := time.Second
					if place == "event handler" {
						longest = 2 * time.Second
					}
					require.LessOrEqual(t, <-took, longest)
					time.Sleep(time.Minute)
					require.True(t, r.row(deaf).Detached)
				})
			})
		})
	}
}

// What runs, lingers, is deaf, or waits when the Runner shuts down has ended in
// the store when Shutdown returns, and the next start finds nothing to do.
func TestB137_NothingIsOpenAfterAShutdown(t *testing.T) {
	inRig(t, subagent.Config{Workers: 4}, func(t *testing.T, r *rig) {
		r.crew(time.Hour)
		r.left = true
		require.ErrorIs(t, r.Shutdown(r.ctx), subagent.ErrShutdown, "one is deaf")
		left := remains(t, r.inner)
		before := map[uuid.UUID]subagent.Task{}
		for row, err := range left.List(t.Context(), subagent.Filter{}) {
			require.NoError(t, err)
			require.True(t, row.Status.Terminal())
			require.Equal(t, subagent.ReasonShutdown, row.Reason)
			before[row.ID] = row
		}
		require.Len(t, before, 5)
		restarted(t, left, func(t *testing.T, next *rig) {
			require.Zero(t, next.store.Calls(subagenttest.OpUpdate), "recovery finds nothing to do")
			for id, row := range before {
				require.Equal(t, row, next.row(id))
			}
			require.Empty(t, next.delivered())
		})
		time.Sleep(time.Hour)
	})
}

// Shutdown waits for what a Func still has to clear up, which sees the values
// of its ctx, and leaves no goroutine of it.
func TestB139_ShutdownWaitsForTheCleaningUp(t *testing.T) {
	type key struct{}
	for _, limit := range []time.Duration{0, 5 * time.Second} { // of Shutdown's ctx
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			inRig(t, subagent.Config{ShutdownGrace: time.Second}, func(t *testing.T, r *rig) {
				cleaned := ""
				task, err := r.Spawn(context.WithValue(r.ctx, key{}, "folder"), rigAsk("x", withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					defer func() {
						time.Sleep(300 * time.Millisecond)
						if own, ok := subagent.RunFromContext(ctx); ok && own == run && context.WithoutCancel(ctx).Err() == nil {
							cleaned = ctx.Value(key{}).(string)
						}
					}()
					<-ctx.Done()
					return subagent.Result{}, ctx.Err()
				})))
				require.NoError(t, err)
				synctest.Wait()
				ctx := r.ctx
				if limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, limit)
					defer cancel()
				}
				start := time.Now()
				require.NoError(t, r.Shutdown(ctx), "it was not left behind")
				require.Equal(t, 1300*time.Millisecond, time.Since(start), "its grace and the cleaning up")
				require.Equal(t, "folder", cleaned)
				require.Equal(t, subagent.ReasonShutdown, r.settled(task.ID).Reason)
				require.False(t, r.row(task.ID).Detached)
			})
		})
	}
}

// A process is killed while it shuts down, early or late: the next start ends
// what was still open, and runs nothing again.
func TestB141_KilledWhileItShutsDown(t *testing.T) {
	for _, after := range []time.Duration{0, 100 * time.Millisecond, 4999 * time.Millisecond, 5500 * time.Millisecond, 11 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			inRig(t, subagent.Config{Workers: 4}, func(t *testing.T, r *rig) {
				c := r.crew(time.Hour)
				r.left = true
				go func() { _ = r.Shutdown(context.Background()) }() // ends with the Runner
				time.Sleep(after)
				synctest.Wait()
				left := remains(t, r.inner)
				restarted(t, left, func(t *testing.T, next *rig) {
					for _, id := range []uuid.UUID{c.obedient, c.lingering, c.deaf, c.finishing, c.queued} {
						row := next.row(id)
						require.True(t, row.Status.Terminal())
						require.Contains(t, []subagent.Reason{subagent.ReasonShutdown, subagent.ReasonLost}, row.Reason)
					}
					require.Equal(t, subagent.ReasonShutdown, next.row(c.queued).Reason, "it was cancelled at once")
					require.Equal(t, after < 10*time.Second, next.row(c.deaf).Reason == subagent.ReasonLost)
				})
				time.Sleep(time.Hour)
			})
		})
	}
}
