package subagent_test

import (
	"context"
	"fmt"
	"sync"
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

func external(id, session string) func(*subagent.Request) {
	return func(q *subagent.Request) { q.ExternalTaskID, q.ParentSessionID = id, session }
}

// Two sessions whose tasks have the same ExternalTaskID: whatever becomes of
// the one, in whatever order, the other never learns of it.
func TestG2_SameExternalIDInTwoSessions(t *testing.T) {
	for name, run := range map[string]func(l *lab, one, other subagent.Task){
		"one is cancelled": func(l *lab, one, _ subagent.Task) {
			l.cancel(one.ID)
			l.ends(one.ID, subagent.StatusCancelled, subagent.ReasonUser)
		},
		"its session is cancelled": func(l *lab, one, _ subagent.Task) {
			_, err := l.CancelSession(l.ctx, one.ParentSessionID, subagent.CancelOptions{})
			require.NoError(l.t, err)
			l.ends(one.ID, subagent.StatusCancelled, subagent.ReasonSession)
		},
		"one completes": func(l *lab, one, _ subagent.Task) {
			l.gate.Release(one.ID, subagent.Result{Text: "of one"}, nil)
			require.Equal(l.t, "of one", l.wait(one.ID).ResultText)
		},
		"one is forgotten": func(l *lab, one, _ subagent.Task) {
			l.finish(one.ID)
			require.NoError(l.t, l.Forget(l.ctx, one.ID))
			_, err := l.Get(l.ctx, one.ID)
			require.ErrorIs(l.t, err, subagent.ErrNotFound)
		},
		"one is pruned": func(l *lab, one, _ subagent.Task) {
			l.finish(one.ID)
			n, err := l.Prune(l.ctx, subagent.Filter{ExternalTaskID: "call_1"}, time.Now().Add(time.Hour))
			require.NoError(l.t, err)
			require.Equal(l.t, 1, n)
		},
		"one fails": func(l *lab, one, _ subagent.Task) {
			l.gate.Release(one.ID, subagent.Result{}, context.DeadlineExceeded)
			l.ends(one.ID, subagent.StatusErrored, subagent.ReasonError)
		},
	} {
		for _, reversed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reversed %v", name, reversed), func(t *testing.T) {
				inLabs(t, subagent.Config{Workers: 2}, func(t *testing.T, l *lab) { twoStrangers(l, reversed, run) })
			})
		}
	}
}

func twoStrangers(l *lab, reversed bool, run func(l *lab, one, other subagent.Task)) {
	t := l.t
	one := l.spawn("one", external("call_1", "A"))
	other := l.spawn("other", external("call_1", "B"))
	if reversed {
		one, other = other, one
	}
	require.NotEqual(t, one.ID, other.ID)
	require.Equal(t, one.CorrelationID(), other.CorrelationID())
	l.gate.WaitEntered(t, one.ID).ReportUsage("m", subagent.Usage{InputTokens: 1})
	l.gate.WaitEntered(t, other.ID).ReportUsage("m", subagent.Usage{InputTokens: 20})
	synctest.Wait()
	before := l.get(other.ID)
	cards, _ := l.told(other.ID)
	list, err := l.List(l.ctx, subagent.Filter{ExternalTaskID: "call_1"})
	require.NoError(t, err)
	require.Len(t, list, 2, "correlation finds both")
	run(l, one, other)
	synctest.Wait()
	require.Equal(t, before, l.get(other.ID))
	cardsNow, notices := l.told(other.ID)
	require.Equal(t, cards, cardsNow)
	require.Empty(t, notices)
	l.gate.Release(other.ID, subagent.Result{Text: "of the other"}, nil)
	end := l.ends(other.ID, subagent.StatusCompleted, "")
	require.Equal(t, "of the other", end.ResultText)
	require.EqualValues(t, 20, end.Usage.InputTokens)
	if gone, err := l.Get(l.ctx, one.ID); err == nil {
		require.EqualValues(t, 1, gone.Usage.InputTokens)
		require.NotEqual(t, "of the other", gone.ResultText)
	}
	synctest.Wait()
	cardsNow, _ = l.told(other.ID)
	for _, c := range cardsNow {
		require.Equal(t, other.ParentSessionID, c.Attach.SessionID)
	}
}

func TestG2_AHundredSpawnsOfOneID(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 4}, func(t *testing.T, l *lab) {
		var entered atomic.Int64
		q := ask("same", withID(uuid.Must(uuid.NewV7())), withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			entered.Add(1)
			return l.gate.Func()(ctx, run)
		}))
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				task, err := l.Spawn(l.ctx, q)
				require.NoError(t, err)
				require.Equal(t, q.ID, task.ID)
				if i%2 == 0 {
					require.Equal(t, subagent.StatusCompleted, l.wait(q.ID).Status)
				}
			})
		}
		synctest.Wait()
		require.EqualValues(t, 1, entered.Load())
		require.Equal(t, subagent.CapacityStats{Limit: 4, Running: 1}, l.Stats().Capacity)
		l.gate.Release(q.ID, subagent.Result{}, nil)
		wg.Wait()
		require.EqualValues(t, 1, entered.Load())
		list, err := l.List(l.ctx, subagent.Filter{})
		require.NoError(t, err)
		require.Len(t, list, 1)
	})
}

func TestG2_AKnownIDIsNeverRunAgain(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		q := ask("same", withID(uuid.Must(uuid.NewV7())))
		first, err := l.Spawn(l.ctx, q)
		require.NoError(t, err)
		require.NotZero(t, first.Version)
		l.gate.Release(q.ID, subagent.Result{Text: "once"}, nil)
		l.wait(q.ID)
		for _, forget := range []bool{false, true} {
			for _, change := range []func(*subagent.Request){noWait, func(q *subagent.Request) { q.Timeout, q.QueueTimeout, q.Independent = 1, 1, true }} {
				same := q
				change(&same)
				l.leavesNothing(func() {
					again, err := l.Spawn(l.ctx, same)
					require.NoError(t, err, "what is no content does not matter")
					require.Equal(t, "once", again.ResultText)
				})
			}
			for _, change := range []func(*subagent.Request){
				func(q *subagent.Request) { q.Description = "another" },
				func(q *subagent.Request) { q.Subject = "another" },
				inSession("another"),
				func(q *subagent.Request) { q.ExternalTaskID = "another" },
				func(q *subagent.Request) { q.Metadata = map[string]string{"k": "v"} },
			} {
				other := q
				change(&other)
				l.leavesNothing(func() {
					task, err := l.Spawn(l.ctx, other)
					require.ErrorIs(t, err, subagent.ErrTaskExists)
					require.Equal(t, subagent.Task{}, task)
					_, err = l.Run(l.ctx, other)
					require.ErrorIs(t, err, subagent.ErrTaskExists)
				})
			}
			if forget {
				break
			}
			synctest.Wait() // now memory knows nothing of it but what the store has
		}
		require.NoError(t, l.Forget(l.ctx, q.ID))
		anew, err := l.Spawn(l.ctx, q)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusQueued, anew.Status, "its record is gone: it is a new task")
	})
}

func TestG2_ARunThatJoinsOnlyWaits(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		q := ask("same", withID(uuid.Must(uuid.NewV7())))
		task, err := l.Spawn(l.ctx, q)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(l.ctx, time.Second)
		defer cancel()
		joined, err := l.Run(ctx, q)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, subagent.StatusRunning, joined.Status)
		require.True(t, l.get(task.ID).CancelRequestedAt.IsZero())
		var wg sync.WaitGroup
		var first atomic.Int64
		for range 10 {
			wg.Go(func() {
				end, err := l.Run(l.ctx, q)
				require.NoError(t, err)
				require.Equal(t, subagent.StatusCompleted, end.Status)
				if end.NotifiedAt.IsZero() {
					first.Add(1)
				}
			})
		}
		synctest.Wait()
		l.gate.Release(task.ID, subagent.Result{}, nil)
		wg.Wait()
		require.EqualValues(t, 1, first.Load(), "one of them is the first to see the end")
		require.True(t, l.get(task.ID).Background, "it is still the task that Spawn made")
		synctest.Wait()
		_, notices := l.told(task.ID)
		require.Empty(t, notices)
	})
}

// A spawn of an ID whose first spawn fails is no repetition of anything.
func TestG2_ASpawnThatFailsLeavesItsIDFree(t *testing.T) {
	inLab(t, subagent.Config{}, func(t *testing.T, l *lab) {
		l.store.On(subagenttest.OpCreate, func(c subagenttest.Call) subagenttest.Fault {
			if c.N == 1 {
				return subagenttest.Fault{Delay: time.Second, Err: context.DeadlineExceeded}
			}
			return subagenttest.Fault{}
		})
		q := ask("same", withID(uuid.Must(uuid.NewV7())))
		var failed atomic.Int64
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := l.Spawn(l.ctx, q); err != nil {
					failed.Add(1)
				}
			})
		}
		impatient, cancel := context.WithTimeout(l.ctx, time.Millisecond)
		defer cancel()
		wg.Go(func() {
			synctest.Wait()
			_, err := l.Spawn(impatient, q)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
		wg.Wait()
		require.EqualValues(t, 1, failed.Load())
		l.gate.WaitEntered(t, q.ID)
		require.Equal(t, 1, l.gate.Inside())
	})
}

// Two Runners on one store are asked for one ID: one of them runs it, and both
// return it.
func TestG2_TwoRunnersOneID(t *testing.T) {
	for round := range 20 {
		bubble.Test(t, func(t *testing.T) {
			memory := subagent.NewMemoryStore()
			cfg := subagent.Config{Store: memory, Workers: 2}
			newLab(t, cfg, false).run(func(t *testing.T, a *lab) {
				if round%2 == 1 {
					cfg.Store = subagenttest.NewFaultyStore(memory).Store()
				}
				newLab(t, cfg, false).run(func(t *testing.T, b *lab) { spawnInBoth(t, a, b) })
			})
		})
	}
}

func spawnInBoth(t *testing.T, a, b *lab) {
	var entered atomic.Int64
	release := make(chan struct{})
	q := ask("same", withID(uuid.Must(uuid.NewV7())), withFunc(func(context.Context, *subagent.Run) (subagent.Result, error) {
		entered.Add(1)
		<-release
		return subagent.Result{Text: "once"}, nil
	}))
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			l, same := []*lab{a, b}[i%2], q
			same.NoWait = i%4 < 2
			task, err := l.Spawn(l.ctx, same)
			if err == nil { // a slot may be held for a moment by one who was slower
				require.Equal(t, q.ID, task.ID)
				require.Equal(t, "once", l.wait(q.ID).ResultText)
				return
			}
			require.ErrorIs(t, err, subagent.ErrNoCapacity)
		})
	}
	synctest.Wait()
	require.EqualValues(t, 1, entered.Load())
	require.Equal(t, 1, a.Stats().Capacity.Running+b.Stats().Capacity.Running)
	close(release)
	wg.Wait()
	require.EqualValues(t, 1, entered.Load())
	other := q
	other.Description = "another"
	for _, l := range []*lab{a, b} {
		_, err := l.Spawn(l.ctx, other)
		require.ErrorIs(t, err, subagent.ErrTaskExists)
	}
}
