package subagent_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
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

// remains is what the store has of everything at this moment, and no lease: what
// a process leaves that is killed now.
func remains(t *testing.T, inner *subagent.MemoryStore) *subagent.MemoryStore {
	t.Helper()
	left := subagent.NewMemoryStore()
	for row, err := range inner.List(context.Background(), subagent.Filter{}) {
		require.NoError(t, err)
		require.NoError(t, left.Create(context.Background(), row))
	}
	return left
}

// restarted runs f with the next Runner on what is left. No Func may be
// entered before f.
func restarted(t *testing.T, left *subagent.MemoryStore, f func(t *testing.T, next *rig)) {
	t.Helper()
	next := rigOn(t, subagent.Config{}, newTape(), left, subagenttest.NewFaultyStore(left))
	next.run(func(t *testing.T, next *rig) {
		time.Sleep(time.Minute)
		require.Zero(t, next.Stats().Running+next.gate.Inside(), "nothing is run again")
		require.Zero(t, next.Stats().Capacity.Running+next.Stats().Capacity.Queued)
		f(t, next)
	})
}

// isLost checks that what was unfinished when its process died has ended so.
func (r *rig) isLost(before subagent.Task) {
	r.t.Helper()
	row := r.settled2(before.ID)
	require.Equal(r.t, subagent.StatusErrored, row.Status)
	require.Equal(r.t, subagent.ReasonLost, row.Reason)
	require.Equal(r.t, "worker died before completion", row.Error)
	require.False(r.t, row.CompletedAt.IsZero())
	require.Equal(r.t, before.ParentTaskID, row.ParentTaskID)
	require.Equal(r.t, before.ParentSessionID, row.ParentSessionID)
	_, _, notices := r.heard(before.ID)
	require.Len(r.t, notices, 1, "its session is told")
}

// A second Runner on the same store, with leases, touches nothing that the
// first one runs or has queued, however long it looks on.
func TestB122_TheLivingAreLeftAlone(t *testing.T) {
	pair(t, subagent.Config{}, subagent.Config{}, func(t *testing.T, one, two *rig) {
		running, _ := one.runs("running")
		queued := one.spawn("queued").ID
		before := []subagent.Task{one.row(running), one.row(queued)}
		time.Sleep(time.Hour)
		rigOn(t, subagent.Config{}, newTape(), one.inner, subagenttest.NewFaultyStore(one.inner)).run(func(t *testing.T, _ *rig) {
			time.Sleep(time.Hour)
			require.Equal(t, before, []subagent.Task{one.row(running), one.row(queued)})
		})
		for _, id := range []uuid.UUID{running, queued} {
			one.gate.WaitEntered(t, id)
			one.gate.Release(id, subagent.Result{Text: "done"}, nil)
			require.Equal(t, subagent.StatusCompleted, one.settled(id).Status)
			require.Equal(t, "done", two.awaited(id).ResultText)
		}
	})
}

// A process is killed with a task in each of the six states.
func TestB123_KilledWithATaskInEachState(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		var ended, open []uuid.UUID
		for _, status := range endStatuses {
			id, _ := r.endedIn(status)
			ended = append(ended, id)
		}
		running, _ := r.runs("running")
		open = append(open, running, r.spawn("queued").ID, uuid.Must(uuid.NewV7()))
		delaying(subagent.StatusQueued)(r)
		go func() { _, _ = r.Spawn(r.ctx, rigAsk("pending", withID(open[2]))) }() // ends within StoreTimeout
		synctest.Wait()
		for i, status := range []subagent.Status{subagent.StatusRunning, subagent.StatusQueued, subagent.StatusPending} {
			require.Equal(t, status, r.row(open[i]).Status)
		}
		left := remains(t, r.inner)
		before := map[uuid.UUID]subagent.Task{}
		for _, id := range append(ended, open...) {
			row, err := left.Get(t.Context(), id)
			require.NoError(t, err)
			before[id] = row
		}
		restarted(t, left, func(t *testing.T, next *rig) {
			for _, id := range ended {
				require.Equal(t, before[id], next.row(id))
				cards, events, notices := next.heard(id)
				require.Zero(t, len(cards)+len(events)+len(notices))
			}
			for _, id := range open {
				next.isLost(before[id])
			}
		})
	})
}

// One of three orphans cannot be written, as long as the Runner lives: that is
// logged and reported, it is never shown as work, and the next start ends it.
func TestB124_OneOrphanCannotBeWritten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		inner := subagent.NewMemoryStore()
		rows := []subagent.Task{orphan(subagent.StatusRunning), orphan(subagent.StatusRunning), orphan(subagent.StatusQueued)}
		require.NoError(t, inner.Create(t.Context(), rows...))
		store, bad := subagenttest.NewFaultyStore(inner), rows[1].ID
		store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if c.IDs[0] == bad {
				return subagenttest.Fault{Err: errBroken}
			}
			return subagenttest.Fault{}
		})
		var logged atomic.Bool
		log := slog.New(logHook(func(text string) {
			if strings.Contains(text, "store failed") {
				logged.Store(true)
			}
		}))
		r, err := subagent.New(t.Context(), subagent.Config{Store: store.Store(), Logger: log})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		for _, row := range rows {
			got, err := r.Get(t.Context(), row.ID)
			require.NoError(t, err)
			require.Equal(t, subagent.ReasonLost, got.Reason)
		}
		live, err := r.List(t.Context(), subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}})
		require.NoError(t, err)
		require.Empty(t, live)
		require.True(t, logged.Load())
		require.Equal(t, 1, r.Stats().Unsaved)
		var left *subagent.ShutdownError
		require.ErrorAs(t, r.Shutdown(t.Context()), &left)
		require.Equal(t, []uuid.UUID{bad}, left.Unsaved)
		row, err := inner.Get(t.Context(), bad)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusRunning, row.Status, "the store knows no better yet")
		restarted(t, inner, func(_ *testing.T, next *rig) { next.isLost(rows[1]) })
	})
}

// A task ends by its owner's hand after it was read and before recovery
// writes: that end stays, whoever recovers it and why.
func TestB125_EndedBetweenReadingAndWriting(t *testing.T) {
	for _, status := range endStatuses {
		for _, who := range []string{"New", "a renewal", "a stop", "a stop of the session"} {
			t.Run(string(status)+", "+who, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) { endedMeanwhile(t, status, who) })
			})
		}
	}
}

func endedMeanwhile(t *testing.T, status subagent.Status, who string) {
	inner := subagent.NewMemoryStore()
	row := orphan(subagent.StatusRunning)
	if who == "New" {
		require.NoError(t, inner.Create(t.Context(), row))
	}
	store := subagenttest.NewFaultyStore(inner)
	var done atomic.Bool
	store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
		if c.IDs[0] == row.ID && done.CompareAndSwap(false, true) {
			_, err := inner.Update(context.Background(), row.ID, func(t *subagent.Task) error {
				t.Status, t.ResultText, t.CompletedAt = status, "made it", time.Now().UTC()
				return nil
			})
			require.NoError(t, err)
		}
		return subagenttest.Fault{}
	})
	rigOn(t, subagent.Config{}, newTape(), inner, store).run(func(t *testing.T, r *rig) {
		if who != "New" {
			require.NoError(t, inner.Create(t.Context(), row))
		}
		switch who {
		case "a renewal":
			time.Sleep(11 * time.Second)
		case "a stop":
			require.Equal(t, "made it", r.stop(row.ID).ResultText)
		case "a stop of the session":
			_, err := r.CancelSession(r.ctx, "s", subagent.CancelOptions{})
			require.NoError(t, err)
		}
		time.Sleep(time.Minute)
		require.True(t, done.Load())
		end := r.settled2(row.ID)
		require.Equal(t, status, end.Status)
		require.Equal(t, "made it", end.ResultText)
		require.Empty(t, string(end.Reason)+end.Error)
		_, _, notices := r.heard(row.ID)
		require.Len(t, notices, 1, "its owner is dead: the notice is owed here")
	})
}

// Recovery is killed at each of its writes and repeated: ends stay as they
// were first stored, and after one full recovery nobody is told again.
func TestB129_RecoveryIsKilledAndRepeated(t *testing.T) {
	for n := 1; n <= 7; n++ {
		t.Run(fmt.Sprintf("before write %d", n), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { killedRecovery(t, n) })
		})
	}
}

func killedRecovery(t *testing.T, n int) {
	first := subagent.NewMemoryStore()
	rows := []subagent.Task{orphan(subagent.StatusPending), orphan(subagent.StatusQueued), orphan(subagent.StatusRunning)}
	require.NoError(t, first.Create(t.Context(), rows...))
	time.Sleep(time.Hour)
	var left *subagent.MemoryStore
	store := subagenttest.NewFaultyStore(first)
	store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
		if c.N == n {
			left = remains(t, first)
		}
		return subagenttest.Fault{}
	})
	rigOn(t, subagent.Config{}, newTape(), first, store).run(func(*testing.T, *rig) { time.Sleep(time.Minute) })
	if left == nil { // it makes no more than six: an end and a delivery for each
		require.Equal(t, 7, n)
		left = remains(t, first)
	}
	before := map[uuid.UUID]subagent.Task{}
	owed := 0
	for _, row := range rows {
		stored, err := left.Get(t.Context(), row.ID)
		require.NoError(t, err)
		before[row.ID] = stored
		if stored.NotifiedAt.IsZero() {
			owed++
		}
	}
	for round := range 2 {
		restarted(t, left, func(t *testing.T, next *rig) {
			require.Len(t, next.delivered(), owed, "round %d", round)
			owed = 0
			for _, row := range rows {
				end := next.row(row.ID)
				require.Equal(t, subagent.ReasonLost, end.Reason)
				if before[row.ID].Status.Terminal() {
					require.Equal(t, essence(before[row.ID]), essence(end))
				}
				before[row.ID] = end
			}
		})
	}
}

// A chain of three is killed, while all work or when the middle one has ended
// already: every level ends, and the chain stays one.
func TestB131_AChainIsKilled(t *testing.T) {
	for _, middleEnded := range []bool{false, true} {
		t.Run(fmt.Sprintf("middle had ended %v", middleEnded), func(t *testing.T) {
			inRig(t, subagent.Config{Workers: 3}, func(t *testing.T, r *rig) {
				ids := make(chan uuid.UUID, 3)
				var chain func(ctx context.Context, run *subagent.Run) (subagent.Result, error)
				chain = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					ids <- run.Task().ID
					if level := run.Task().Description; len(level) < 3 {
						_, err := r.Spawn(ctx, rigAsk(level+"x", inSession(level), withFunc(chain)))
						require.NoError(t, err)
					}
					return r.gate.Func()(ctx, run)
				}
				r.spawn("x", withFunc(chain))
				levels := []uuid.UUID{<-ids, <-ids, <-ids}
				if middleEnded {
					r.gate.Release(levels[1], subagent.Result{Text: "done"}, nil)
				}
				synctest.Wait()
				left := remains(t, r.inner)
				restarted(t, left, func(t *testing.T, next *rig) {
					for i, id := range levels {
						if i == 1 && middleEnded {
							require.Equal(t, "done", next.row(id).ResultText)
						} else {
							next.isLost(r.row(id))
						}
						if i > 0 {
							require.Equal(t, levels[i-1], next.row(id).ParentTaskID)
						}
					}
				})
			})
		})
	}
}
