package subagent_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// orphan is a record that a dead owner has left.
func orphan(status subagent.Status, change ...func(*subagent.Task)) subagent.Task {
	now := time.Now().UTC()
	row := subagent.Task{ID: uuid.Must(uuid.NewV7()), Subject: string(status), Description: string(status), ParentSessionID: "s",
		Status: status, Background: true, Owner: "dead", CreatedAt: now, Version: 1}
	if status != subagent.StatusPending {
		row.QueuedAt = now
	}
	if status == subagent.StatusRunning || status.Terminal() {
		row.StartedAt = now
	}
	if status.Terminal() {
		row.CompletedAt, row.NotifiedAt, row.ResultText = now, now, "before"
	}
	for _, c := range change {
		c(&row)
	}
	return row
}

func orphans() []subagent.Task {
	return []subagent.Task{
		orphan(subagent.StatusPending), orphan(subagent.StatusQueued), orphan(subagent.StatusRunning),
		orphan(subagent.StatusRunning, func(row *subagent.Task) { row.Background = false }),
		orphan(subagent.StatusRunning, func(row *subagent.Task) { row.Owner = "" }),
		orphan(subagent.StatusRunning, func(row *subagent.Task) {
			row.CancelRequestedAt, row.Reason, row.CancelMessage = row.StartedAt, subagent.ReasonUser, "stop"
		}),
		orphan(subagent.StatusRunning, func(row *subagent.Task) {
			row.Usage = subagent.Usage{TotalTokens: 5, Calls: 1}
			row.ResultText = "stored"
		}),
		orphan(subagent.StatusCompleted), orphan(subagent.StatusCancelled), orphan(subagent.StatusErrored),
	}
}

// What a dead owner has left open is ended, whatever the store; what had ended
// stays as it is, and a second recovery finds nothing to do.
func TestG13_OrphansAreEnded(t *testing.T) {
	for _, kind := range []string{"memory", "leases", "no leases"} {
		t.Run(kind, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				store := subagenttest.NewFaultyStore(inner)
				cfg := subagent.Config{Store: map[string]subagent.Store{"memory": inner, "leases": store.Store(), "no leases": store}[kind]}
				rows := orphans()
				require.NoError(t, inner.Create(t.Context(), rows...))
				time.Sleep(time.Second)
				var first []subagent.Task
				rigOn(t, cfg, newTape(), inner, store).run(func(t *testing.T, r *rig) { first = r.ended(rows) })
				for range 2 {
					rigOn(t, cfg, newTape(), inner, store).run(func(t *testing.T, r *rig) {
						time.Sleep(time.Minute)
						for _, before := range first {
							require.Equal(t, before, r.row(before.ID))
							cards, events, notices := r.heard(before.ID)
							require.Empty(t, cards)
							require.Empty(t, events)
							require.Empty(t, notices)
						}
					})
				}
			})
		})
	}
}

// ended checks what New has made of rows, and returns them.
func (r *rig) ended(rows []subagent.Task) (after []subagent.Task) {
	t := r.t
	for _, before := range rows {
		got, err := r.Get(r.ctx, before.ID)
		require.NoError(t, err)
		require.True(t, got.Status.Terminal(), "New has recovered it before it returned")
	}
	synctest.Wait()
	for _, before := range rows {
		row := r.row(before.ID)
		after = append(after, row)
		if before.Status.Terminal() {
			require.Equal(t, before, row)
			continue
		}
		require.Equal(t, subagent.StatusErrored, row.Status)
		require.Equal(t, subagent.ReasonLost, row.Reason)
		require.Equal(t, "worker died before completion", row.Error)
		require.ErrorIs(t, row.Err(), subagent.ErrLost)
		require.Equal(t, r.ID(), row.Owner)
		require.Equal(t, before.ResultText, row.ResultText, "what was stored is kept")
		require.Equal(t, before.Usage, row.Usage)
		require.Equal(t, before.CancelRequestedAt, row.CancelRequestedAt)
		require.Empty(t, row.CancelMessage, "the end does not answer the request")
		require.False(t, row.CompletedAt.Before(row.CreatedAt.Add(time.Second)))
		got, err := r.Get(r.ctx, row.ID)
		require.NoError(t, err)
		require.Equal(t, row, got)
		cards, _, notices := r.heard(row.ID)
		require.Equal(t, row.Card(), cards[len(cards)-1])
		if before.Background {
			require.Len(t, notices, 1)
			require.Equal(t, essence(row), essence(notices[0]))
		} else {
			require.Empty(t, notices)
		}
	}
	return after
}

// pair is two Runners on one store with leases.
func pair(t *testing.T, one, two subagent.Config, f func(t *testing.T, one, two *rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		inner := subagent.NewMemoryStore()
		rigOn(t, one, newTape(), inner, subagenttest.NewFaultyStore(inner)).run(func(t *testing.T, a *rig) {
			rigOn(t, two, newTape(), inner, subagenttest.NewFaultyStore(inner)).run(func(t *testing.T, b *rig) { f(t, a, b) })
		})
	})
}

// cutOff has every call of r's store fail, as if the network were gone.
func (r *rig) cutOff() {
	for _, op := range []subagenttest.Op{subagenttest.OpCreate, subagenttest.OpGet, subagenttest.OpUpdate, subagenttest.OpList, subagenttest.OpRenew, subagenttest.OpLive} {
		r.store.On(op, func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Err: errBroken} })
	}
}

func TestG13_WhatALiveOwnerRunsIsLeftAlone(t *testing.T) {
	pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
		id, _ := one.runs("x")
		queued := one.spawn("queued")
		before, waiting := one.row(id), one.row(queued.ID)
		time.Sleep(10 * time.Minute)
		require.Equal(t, before, one.row(id))
		require.Equal(t, waiting, one.row(queued.ID))
		cards, events, _ := two.heard(id)
		require.Empty(t, cards)
		require.Empty(t, events)
		one.gate.Release(id, subagent.Result{Text: "done"}, nil)
		require.Equal(t, "done", two.awaited(id).ResultText)
	})
}

// A Runner that is cut off loses its lease: the other ends its tasks, and when
// it is back it stops the Funcs and takes the stored ends for its own.
func TestG13_ALostLease(t *testing.T) {
	pair(t, subagent.Config{Workers: 2}, subagent.Config{}, func(t *testing.T, one, two *rig) {
		cause := make(chan error, 1)
		obedient := one.spawn("obedient", func(q *subagent.Request) {
			q.Func = func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return subagent.Result{Text: "too late"}, nil
			}
		})
		deaf, _ := one.runs("deaf", one.deaf)
		queued := one.spawn("queued")
		synctest.Wait() // both have entered
		one.cutOff()
		start := time.Now()
		require.Equal(t, subagent.ReasonLost, two.awaited(obedient.ID).Reason)
		require.LessOrEqual(t, time.Since(start), 41*time.Second, "found at a renewal after the lease was over")
		require.Empty(t, cause, "nobody has told the Func yet")
		one.heal()
		time.Sleep(11 * time.Second)
		require.Len(t, cause, 1)
		require.ErrorIs(t, <-cause, subagent.ErrLost)
		for _, id := range []uuid.UUID{obedient.ID, deaf, queued.ID} {
			row := one.row(id)
			require.Equal(t, subagent.ReasonLost, row.Reason)
			require.Equal(t, two.ID(), row.Owner)
			got, err := one.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, essence(row), essence(got), "the stored end counts")
			_, events, notices := one.heard(id)
			require.Empty(t, notices, "the other owes it")
			require.Equal(t, essence(row), essence(events[len(events)-1].Task))
			_, _, notices = two.heard(id)
			if id != obedient.ID {
				require.Len(t, notices, 1)
			}
		}
		require.Equal(t, 1, one.Stats().Detached)
		one.gate.ReleaseAll()
		synctest.Wait()
		one.nothingHeld()
	})
}

// A Func that came back while its Runner was cut off has its end dropped, too.
func TestG13_AnEndThatComesTooLate(t *testing.T) {
	pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
		id, _ := one.runs("x")
		one.cutOff()
		time.Sleep(45 * time.Second)
		require.Equal(t, subagent.ReasonLost, one.row(id).Reason)
		one.gate.Release(id, subagent.Result{Text: "too late"}, nil)
		synctest.Wait()
		require.Equal(t, 1, one.Stats().Unsaved)
		one.heal()
		time.Sleep(31 * time.Second)
		require.Zero(t, one.Stats().Unsaved)
		got, err := one.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, one.row(id), got)
		require.Equal(t, subagent.ReasonLost, got.Reason)
	})
}

// One record that cannot be written is no obstacle: the others are recovered,
// it is served as ended meanwhile, and it is written as soon as that can be done.
func TestG13_ARecordThatCannotBeWritten(t *testing.T) {
	for name, fault := range map[string]subagenttest.Fault{
		"fails": {Err: errBroken}, "commits and fails": {Err: errBroken, Committed: true},
		"blocks": {Delay: time.Hour}, "is deaf": {Delay: time.Minute, Deaf: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				rows := []subagent.Task{orphan(subagent.StatusQueued), orphan(subagent.StatusRunning), orphan(subagent.StatusPending)}
				require.NoError(t, inner.Create(t.Context(), rows...))
				store, bad := subagenttest.NewFaultyStore(inner), rows[1].ID
				start := time.Now()
				store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
					if c.IDs[0] == bad && time.Since(start) < 5*time.Minute {
						return fault
					}
					return subagenttest.Fault{}
				})
				rigOn(t, subagent.Config{}, newTape(), inner, store).run(func(t *testing.T, r *rig) {
					require.LessOrEqual(t, time.Since(start), 10*time.Second)
					require.Equal(t, 1, r.Stats().Unsaved)
					for _, row := range rows {
						got, err := r.Get(r.ctx, row.ID)
						require.NoError(t, err)
						require.Equal(t, subagent.ReasonLost, got.Reason)
						require.Equal(t, subagent.ReasonLost, r.awaited(row.ID).Reason)
					}
					list, err := r.List(r.ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusErrored}})
					require.NoError(t, err)
					require.Len(t, list, 3)
					time.Sleep(7 * time.Minute)
					require.Zero(t, r.Stats().Unsaved)
					for _, row := range rows {
						end := r.settled2(row.ID)
						require.Equal(t, subagent.ReasonLost, end.Reason)
						require.Equal(t, r.ID(), end.Owner)
					}
				})
			})
		})
	}
}

// What its owner has completed between the reading and the writing stays so.
func TestG13_CompletedMeanwhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		inner := subagent.NewMemoryStore()
		row := orphan(subagent.StatusRunning)
		require.NoError(t, inner.Create(t.Context(), row))
		store := subagenttest.NewFaultyStore(inner)
		store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if c.N == 1 {
				_, err := inner.Update(context.Background(), row.ID, func(t *subagent.Task) error {
					t.Status, t.ResultText, t.CompletedAt = subagent.StatusCompleted, "made it", time.Now().UTC()
					return nil
				})
				require.NoError(t, err)
			}
			return subagenttest.Fault{}
		})
		rigOn(t, subagent.Config{}, newTape(), inner, store).run(func(t *testing.T, r *rig) {
			synctest.Wait()
			for range 2 {
				stored := r.row(row.ID)
				require.Equal(t, "made it", stored.ResultText)
				got, err := r.Get(r.ctx, row.ID)
				require.NoError(t, err)
				require.Equal(t, stored, got)
				time.Sleep(time.Minute)
			}
			_, _, notices := r.heard(row.ID)
			require.Len(t, notices, 1, "its notice is owed, and its owner is dead")
			require.Equal(t, "made it", notices[0].ResultText)
		})
	})
}

func TestG13_WhenNewFails(t *testing.T) {
	for _, c := range []struct {
		op    subagenttest.Op
		fault subagenttest.Fault
		fails bool
	}{
		{subagenttest.OpList, subagenttest.Fault{Err: errBroken}, true},
		{subagenttest.OpList, subagenttest.Fault{Err: errBroken, Committed: true}, true},
		{subagenttest.OpList, subagenttest.Fault{Delay: time.Hour}, true},
		{subagenttest.OpList, subagenttest.Fault{Delay: time.Minute, Deaf: true}, true},
		{subagenttest.OpUpdate, subagenttest.Fault{Err: errBroken}, false},
		{subagenttest.OpUpdate, subagenttest.Fault{Delay: time.Hour}, false},
		{subagenttest.OpUpdate, subagenttest.Fault{Delay: time.Minute, Deaf: true}, false},
	} {
		t.Run(fmt.Sprintf("%s, %+v", c.op, c.fault), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				require.NoError(t, inner.Create(t.Context(), orphans()...))
				store := subagenttest.NewFaultyStore(inner)
				store.On(c.op, func(subagenttest.Call) subagenttest.Fault { return c.fault })
				start := time.Now()
				r, err := subagent.New(t.Context(), subagent.Config{Store: store.Store()})
				require.LessOrEqual(t, time.Since(start), 10*time.Second)
				require.Equal(t, c.fails, err != nil, "%v", err)
				if err == nil {
					store.On(c.op, nil)
					require.NoError(t, r.Shutdown(t.Context()))
				}
				time.Sleep(2 * time.Minute) // a deaf call has returned: nothing is left
			})
		})
	}
}

// A task of another live Runner is stopped through the store; its owner acts at
// its next renewal, with the reason and the grace from then on.
func TestCancelling_AnotherRunnersTask(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		for _, session := range []bool{false, true} {
			t.Run(fmt.Sprintf("deaf %v, session %v", deaf, session), func(t *testing.T) {
				pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
					fn := one.gate.Func()
					if deaf {
						fn = one.gate.DeafFunc()
					}
					id, _ := one.runs("x", func(q *subagent.Request) { q.Func = fn })
					time.Sleep(3 * time.Second)
					start := time.Now()
					o := subagent.CancelOptions{Reason: "policy", Message: "over there"}
					if session {
						tasks, err := two.CancelSession(t.Context(), "s", o)
						require.NoError(t, err)
						require.Len(t, tasks, 1)
						require.Equal(t, id, tasks[0].ID)
					} else {
						got, err := two.Cancel(t.Context(), id, o)
						require.NoError(t, err)
						require.Equal(t, subagent.StatusRunning, got.Status)
						require.Equal(t, start.UTC(), got.CancelRequestedAt)
					}
					row := one.row(id)
					require.Equal(t, subagent.StatusRunning, row.Status)
					require.Equal(t, subagent.Reason("policy"), row.Reason)
					require.Equal(t, "over there", row.CancelMessage)
					end := two.awaited(id)
					require.Equal(t, subagent.StatusCancelled, end.Status)
					require.Equal(t, subagent.Reason("policy"), end.Reason)
					require.Equal(t, "over there", end.CancelMessage)
					require.Equal(t, start.UTC(), end.CancelRequestedAt)
					require.Equal(t, deaf, end.Detached)
					seen := end.CompletedAt.Sub(start)
					if deaf {
						seen -= 30 * time.Second
					}
					require.LessOrEqual(t, seen, 10*time.Second)
					require.LessOrEqual(t, time.Since(end.CompletedAt), 250*time.Millisecond)
					one.gate.ReleaseAll()
				})
			})
		}
	}
}

// If the verdict falls before the request is seen, that end counts.
func TestCancelling_TheVerdictFallsBeforeTheRequestIsSeen(t *testing.T) {
	pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
		id, _ := one.runs("x")
		asked, err := two.Cancel(t.Context(), id, subagent.CancelOptions{Message: "stop"})
		require.NoError(t, err)
		one.gate.Release(id, subagent.Result{Text: "done"}, nil)
		end := one.awaited(id)
		require.Equal(t, subagent.StatusCompleted, end.Status)
		require.Empty(t, end.Reason)
		require.Empty(t, end.CancelMessage)
		require.Equal(t, asked.CancelRequestedAt, end.CancelRequestedAt)
		require.NoError(t, end.Err())
		one.settled(id)
	})
}

// A task whose owner is dead is recovered by whoever wants to stop it.
func TestCancelling_ATaskOfADeadOwner(t *testing.T) {
	for _, status := range []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning} {
		t.Run(string(status), func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				rows := []subagent.Task{orphan(status), orphan(status)}
				require.NoError(t, r.inner.Create(r.ctx, rows...))
				start := time.Now()
				got, err := r.Cancel(r.ctx, rows[0].ID, subagent.CancelOptions{})
				require.NoError(t, err)
				require.Equal(t, subagent.StatusErrored, got.Status)
				require.Equal(t, subagent.ReasonLost, got.Reason)
				tasks, err := r.CancelSession(r.ctx, "s", subagent.CancelOptions{})
				require.NoError(t, err)
				require.Len(t, tasks, 1)
				require.Equal(t, subagent.ReasonLost, tasks[0].Reason)
				require.Zero(t, time.Since(start))
				for _, row := range rows {
					require.Equal(t, subagent.ReasonLost, r.settled2(row.ID).Reason)
					_, _, notices := r.heard(row.ID)
					require.Len(t, notices, 1)
				}
			})
		})
	}
}

// settled2 is settled for a task that was not spawned here.
func (r *rig) settled2(id uuid.UUID) subagent.Task {
	r.t.Helper()
	synctest.Wait()
	row := r.row(id)
	require.True(r.t, row.Status.Terminal())
	got, err := r.Get(r.ctx, id)
	require.NoError(r.t, err)
	require.Equal(r.t, row, got)
	r.audit(row)
	return row
}

// Recovery that takes its time never costs the recoverer its own lease.
func TestG13_RecoveryDoesNotCostTheLease(t *testing.T) {
	for name, fault := range map[string]struct {
		op     subagenttest.Op
		fault  subagenttest.Fault
		owners int
	}{
		"writes block":      {subagenttest.OpUpdate, subagenttest.Fault{Delay: time.Hour}, 1},
		"writes are slow":   {subagenttest.OpUpdate, subagenttest.Fault{Delay: 9 * time.Second}, 1},
		"leases are slow":   {subagenttest.OpLive, subagenttest.Fault{Delay: 9 * time.Second}, 8},
		"reading is slow":   {subagenttest.OpList, subagenttest.Fault{Delay: 9 * time.Second}, 1},
		"reading is broken": {subagenttest.OpList, subagenttest.Fault{Delay: 9 * time.Second, Err: errBroken}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				id, _ := r.runs("x")
				for i := range 400 {
					require.NoError(t, r.inner.Create(r.ctx, orphan(subagent.StatusRunning, func(row *subagent.Task) {
						row.Owner = fmt.Sprint("dead", i%fault.owners)
					})))
				}
				r.store.On(fault.op, func(subagenttest.Call) subagenttest.Fault { return fault.fault })
				for range 300 {
					time.Sleep(time.Second)
					live, err := r.inner.Live(r.ctx, r.ID())
					require.NoError(t, err)
					require.True(t, live, "its own task would be taken for orphaned")
				}
				r.heal()
				time.Sleep(5 * time.Minute)
				r.gate.Release(id, subagent.Result{Text: "done"}, nil)
				require.Equal(t, "done", r.awaited(id).ResultText)
			})
		})
	}
}
