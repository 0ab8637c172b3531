package subagent_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// slowOnly reports whether a fault of the table holds a call up and nothing more.
func slowOnly(name string) bool { return name == "is slow" }

// A lease that cannot be taken, or an owner that cannot be asked about, is no
// start: New fails within a StoreTimeout, and leaves what it found alone.
func TestG13_NewNeedsItsLease(t *testing.T) {
	for _, op := range []subagenttest.Op{subagenttest.OpRenew, subagenttest.OpLive} {
		for _, fault := range storeFaults {
			t.Run(fmt.Sprintf("%s %s", op, fault.name), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					inner := subagent.NewMemoryStore()
					row := orphan(subagent.StatusRunning)
					require.NoError(t, inner.Create(t.Context(), row))
					store := subagenttest.NewFaultyStore(inner)
					store.On(op, func(subagenttest.Call) subagenttest.Fault { return fault.do() })
					start := time.Now()
					r, err := subagent.New(t.Context(), subagent.Config{Store: store.Store()})
					require.LessOrEqual(t, time.Since(start), 10*time.Second)
					require.Equal(t, slowOnly(fault.name), err == nil, "%v", err)
					got, gerr := inner.Get(t.Context(), row.ID)
					require.NoError(t, gerr)
					if err != nil {
						require.Nil(t, r)
						require.Equal(t, row, got)
					} else {
						require.Equal(t, subagent.ReasonLost, got.Reason)
						store.On(op, nil)
						require.NoError(t, r.Shutdown(t.Context()))
					}
					time.Sleep(2 * time.Minute) // a deaf call has returned: nothing is left
				})
			})
		}
	}
}

// One renewal that fails, or takes its time, costs nothing.
func TestG13_OneRenewalMayFail(t *testing.T) {
	for _, fault := range storeFaults {
		t.Run(fault.name, func(t *testing.T) {
			pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
				id, _ := one.runs("x")
				one.store.On(subagenttest.OpRenew, func(c subagenttest.Call) (f subagenttest.Fault) {
					if c.N == 1 {
						f = fault.do()
					}
					return f
				})
				for range 180 {
					time.Sleep(time.Second)
					live, err := one.inner.Live(t.Context(), one.ID())
					require.NoError(t, err)
					require.True(t, live)
				}
				require.Equal(t, subagent.StatusRunning, one.row(id).Status)
				one.gate.Release(id, subagent.Result{Text: "done"}, nil)
				require.Equal(t, "done", two.awaited(id).ResultText)
			})
		})
	}
}

// A Runner whose lease is not renewed for too long loses its tasks to the other
// and sees it, for it still reads the store: the stored end counts.
func TestG13_RenewalsThatFailForLong(t *testing.T) {
	for _, fault := range storeFaults {
		t.Run(fault.name, func(t *testing.T) {
			pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
				id, _ := one.runs("x")
				one.store.On(subagenttest.OpRenew, func(subagenttest.Call) subagenttest.Fault { return fault.do() })
				time.Sleep(2 * time.Minute)
				switch fault.name {
				case "is slow", "commits and fails", "commits and blocks", "commits and is deaf":
					// The lease was renewed, whatever the store says.
					require.Equal(t, subagent.StatusRunning, one.row(id).Status)
					one.heal()
					one.gate.Release(id, subagent.Result{Text: "done"}, nil)
					require.Equal(t, "done", one.awaited(id).ResultText)
				default:
					row := one.row(id)
					require.Equal(t, subagent.ReasonLost, row.Reason)
					require.Equal(t, two.ID(), row.Owner)
					got, err := one.Get(t.Context(), id)
					require.NoError(t, err)
					require.Equal(t, row, got)
					require.Zero(t, one.gate.Inside(), "its Func was told to stop")
					one.heal()
					time.Sleep(11 * time.Second)
					live, err := one.inner.Live(t.Context(), one.ID())
					require.NoError(t, err)
					require.True(t, live, "it is back")
				}
				time.Sleep(3 * time.Minute) // deaf calls have returned
			})
		})
	}
}

// An owner that cannot be asked about is left alone until he can; what others
// left is recovered meanwhile, and requests for one's own tasks are obeyed.
func TestG13_AnOwnerThatCannotBeAskedAbout(t *testing.T) {
	for _, fault := range storeFaults {
		t.Run(fault.name, func(t *testing.T) {
			pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
				one.store.On(subagenttest.OpLive, func(c subagenttest.Call) (f subagenttest.Fault) {
					if c.Owner == "riddle" {
						f = fault.do()
					}
					return f
				})
				two.store.On(subagenttest.OpLive, func(c subagenttest.Call) (f subagenttest.Fault) {
					if c.Owner == "riddle" || c.Owner == "dead" { // so that two leaves both to one
						f.Err = errBroken
					}
					return f
				})
				riddle := orphan(subagent.StatusRunning, func(row *subagent.Task) { row.Owner = "riddle" })
				dead := orphan(subagent.StatusRunning)
				id, _ := one.runs("x")
				require.NoError(t, one.inner.Create(t.Context(), riddle, dead))
				_, err := two.Cancel(t.Context(), id, subagent.CancelOptions{Message: "over there"})
				require.NoError(t, err)
				time.Sleep(31 * time.Second)
				require.Equal(t, subagent.ReasonLost, one.row(dead.ID).Reason)
				require.Equal(t, subagent.StatusCancelled, one.row(id).Status)
				if slowOnly(fault.name) {
					require.Equal(t, subagent.ReasonLost, one.row(riddle.ID).Reason)
				} else {
					require.Equal(t, riddle, one.row(riddle.ID))
				}
				one.heal()
				time.Sleep(2 * time.Minute) // deaf calls have returned
				require.Equal(t, subagent.ReasonLost, one.row(riddle.ID).Reason)
				two.heal()
			})
		})
	}
}

// A lease that cannot be given back keeps Shutdown for a StoreTimeout at most,
// is logged, and runs out by itself.
func TestG12_ALeaseThatCannotBeGivenBack(t *testing.T) {
	for _, fault := range storeFaults {
		t.Run(fault.name, func(t *testing.T) {
			var logged atomic.Int64
			logger := slog.New(logHook(func(string) { logged.Add(1) }))
			inRig(t, subagent.Config{Logger: logger}, func(t *testing.T, r *rig) {
				r.awaited(r.spawn("x", func(q *subagent.Request) { q.Func = gives("done", nil) }).ID)
				r.store.On(subagenttest.OpRelease, func(subagenttest.Call) subagenttest.Fault { return fault.do() })
				start := time.Now()
				require.NoError(t, r.Shutdown(r.ctx))
				require.LessOrEqual(t, time.Since(start), 10*time.Second)
				require.Equal(t, !slowOnly(fault.name), logged.Load() == 1)
				time.Sleep(31 * time.Second)
				live, err := r.inner.Live(r.ctx, r.ID())
				require.NoError(t, err)
				require.False(t, live)
				require.Equal(t, 1, r.store.Calls(subagenttest.OpRelease))
				time.Sleep(2 * time.Minute) // a deaf call has returned
			})
		})
	}
}

// One task of another Runner that cannot be cancelled is no obstacle to the
// cancelling of the others of its session.
func TestCancelling_OneOfASessionThatCannotBeAsked(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		require.NoError(t, r.inner.Renew(r.ctx, "elsewhere", time.Hour))
		elsewhere := func(row *subagent.Task) { row.Owner = "elsewhere" }
		rows := []subagent.Task{
			orphan(subagent.StatusRunning, elsewhere),
			orphan(subagent.StatusRunning, func(row *subagent.Task) { row.Owner = "riddle" }),
			orphan(subagent.StatusRunning, elsewhere),
		}
		require.NoError(t, r.inner.Create(r.ctx, rows...))
		r.store.On(subagenttest.OpLive, func(c subagenttest.Call) (f subagenttest.Fault) {
			if c.Owner == "riddle" {
				f.Err = errBroken
			}
			return f
		})
		tasks, err := r.CancelSession(r.ctx, "s", subagent.CancelOptions{})
		require.ErrorIs(t, err, errBroken)
		require.Len(t, tasks, 2)
		for i, row := range rows {
			require.Equal(t, i == 1, r.row(row.ID).CancelRequestedAt.IsZero())
		}
	})
}

// An orphan that cannot be written is looked at again at each renewal, also
// while the Runner shuts down: it stays one task, with one end. One that is found
// then is left to the next Runner.
func TestG13_ARecoveryDuringAShutdown(t *testing.T) {
	inRig(t, subagent.Config{ShutdownGrace: time.Minute}, func(t *testing.T, r *rig) {
		row, later := orphan(subagent.StatusRunning), orphan(subagent.StatusRunning)
		r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if c.IDs[0] == row.ID || c.IDs[0] == later.ID {
				return subagenttest.Fault{Err: errBroken}
			}
			return subagenttest.Fault{}
		})
		require.NoError(t, r.inner.Create(r.ctx, row))
		id, _ := r.runs("x")
		time.Sleep(15 * time.Second)
		time.AfterFunc(10*time.Second, func() { _ = r.inner.Create(context.Background(), later) })
		time.AfterFunc(35*time.Second, func() { r.gate.Release(id, subagent.Result{}, nil) })
		r.left = true
		var left *subagent.ShutdownError
		require.ErrorAs(t, r.Shutdown(r.ctx), &left)
		require.Equal(t, []uuid.UUID{row.ID}, left.Unsaved)
		_, events, notices := r.heard(row.ID)
		require.Len(t, events, 1)
		require.Len(t, notices, 1)
		r.store.On(subagenttest.OpUpdate, nil)
		rigOn(t, subagent.Config{}, newTape(), r.inner, r.store).run(func(_ *testing.T, next *rig) {
			for _, id := range []uuid.UUID{row.ID, later.ID} {
				require.Equal(t, subagent.ReasonLost, next.settled2(id).Reason)
			}
		})
	})
}
