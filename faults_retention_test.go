package subagent_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// inKeep runs f in a bubble with a Runner of two slots on a MemoryStore that
// keeps few ends.
func inKeep(t *testing.T, keep int, n subagent.Notifier, f func(t *testing.T, r *subagent.Runner, s *subagent.MemoryStore, g *subagenttest.Gate)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		store, gate := subagent.NewMemoryStore(), subagenttest.NewGate()
		store.SetRetention(keep)
		r, err := subagent.New(t.Context(), subagent.Config{Store: store, Func: gate.Func(), Workers: 2, MaxQueued: -1, Notifier: n})
		require.NoError(t, err)
		defer func() { // also when f has failed, so that the bubble can end
			gate.ReleaseAll()
			require.NoError(t, r.Shutdown(context.Background()))
		}()
		f(t, r, store, gate)
	})
}

// keeps is a Func that holds on to some memory, as those of real hosts do.
func keeps() subagent.Func {
	held := make([]byte, 4<<10)
	return func(context.Context, *subagent.Run) (subagent.Result, error) {
		return subagent.Result{Text: fmt.Sprint(held[0])}, nil
	}
}

// Ten thousand tasks whose results nobody reads: what is kept is bounded, and
// what has not ended is never among what goes.
func TestB176_ResultsThatNobodyReads(t *testing.T) {
	took := notifierFunc(func(context.Context, subagent.Task) error { return nil })
	inKeep(t, 50, took, func(t *testing.T, r *subagent.Runner, s *subagent.MemoryStore, g *subagenttest.Gate) {
		spawn := func(n int, fn subagent.Func) (ids []uuid.UUID) {
			for range n {
				if fn == nil {
					fn = keeps()
				}
				task, err := r.Spawn(t.Context(), rigAsk("x", withFunc(fn)))
				require.NoError(t, err)
				ids = append(ids, task.ID)
			}
			synctest.Wait()
			return ids
		}
		first := spawn(1, g.Func())[0]
		spawn(1000, nil)
		before := liveHeap()
		for range 9 {
			spawn(1000, nil)
		}
		require.Less(t, int64(liveHeap())-int64(before), int64(1<<20))
		live := append(spawn(2, g.Func()), first)
		rows := listed(t, s, subagent.Filter{})
		require.Len(t, rows, 50+3)
		require.Subset(t, rows, live)
		states := map[subagent.Status]int{}
		for _, id := range live {
			got, err := r.Get(t.Context(), id)
			require.NoError(t, err)
			states[got.Status]++
		}
		require.Equal(t, map[subagent.Status]int{subagent.StatusRunning: 2, subagent.StatusQueued: 1}, states)
	})
}

// Without a Notifier the end of a task that nobody waits for is owed, and its
// record kept, until the host asks for it or forgets it; but that is all that
// is kept of it.
func TestB176_OwedEndsAreFoundAndForgotten(t *testing.T) {
	inKeep(t, 5, nil, func(t *testing.T, r *subagent.Runner, s *subagent.MemoryStore, _ *subagenttest.Gate) {
		before := liveHeap()
		for range 500 {
			_, err := r.Spawn(t.Context(), rigAsk("x", withFunc(keeps())))
			require.NoError(t, err)
		}
		synctest.Wait()
		require.Less(t, int64(liveHeap())-int64(before), int64(500*2<<10), "a record each, and none of the Funcs")
		owed, err := r.List(t.Context(), subagent.Filter{Undelivered: true})
		require.NoError(t, err)
		require.Len(t, owed, 500)
		for _, task := range owed[:100] {
			_, err := r.Wait(t.Context(), task.ID)
			require.NoError(t, err)
		}
		require.Len(t, listed(t, s, subagent.Filter{}), 400, "those that were read are within the bound no more")
		require.NoError(t, r.Forget(t.Context(), idsOf(owed[100:]...)...))
		require.Empty(t, listed(t, s, subagent.Filter{}))
	})
}

// What has ended is not touched again, however often the Runner looks after its
// lease and the store.
func TestB177_MaintenanceLeavesEndsAlone(t *testing.T) {
	inRig(t, subagent.Config{Workers: 4}, func(t *testing.T, r *rig) {
		r.inner.SetRetention(20)
		for i := range 200 {
			r.spawn(fmt.Sprint(i))
		}
		r.gate.ReleaseAll()
		synctest.Wait()
		rows := listed(t, r.inner, subagent.Filter{})
		require.Len(t, rows, 20)
		var before []subagent.Task
		for _, id := range rows {
			before = append(before, r.row(id))
		}
		calls := r.store.Calls(subagenttest.OpUpdate) + r.store.Calls(subagenttest.OpCreate) + r.store.Calls(subagenttest.OpDelete)
		renewals := r.store.Calls(subagenttest.OpRenew)
		time.Sleep(100*time.Second + time.Millisecond) // ten periods
		require.Equal(t, renewals+10, r.store.Calls(subagenttest.OpRenew))
		require.Equal(t, calls, r.store.Calls(subagenttest.OpUpdate)+r.store.Calls(subagenttest.OpCreate)+r.store.Calls(subagenttest.OpDelete))
		require.Equal(t, rows, listed(t, r.inner, subagent.Filter{}))
		for _, row := range before {
			require.Equal(t, row, r.row(row.ID))
		}
	})
}

// A result is there until it was handed over, hours after the end and however
// many others have ended since: while it is waited for together with a slower
// one, while nobody has asked yet, and while its notice cannot be delivered.
func TestB179_AResultWaitsForItsReader(t *testing.T) {
	fails := notifierFunc(func(context.Context, subagent.Task) error { return errBroken })
	for name, c := range map[string]struct {
		notifier subagent.Notifier
		awaited  bool
	}{
		"awaited with a slower one": {awaited: true},
		"awaited, and a notifier":   {awaited: true, notifier: notifierFunc(func(context.Context, subagent.Task) error { return nil })},
		"read later":                {},
		"its notice fails":          {notifier: fails},
	} {
		t.Run(name, func(t *testing.T) {
			inKeep(t, 1, c.notifier, func(t *testing.T, r *subagent.Runner, s *subagent.MemoryStore, g *subagenttest.Gate) {
				var ids [2]uuid.UUID
				for i := range ids {
					task, err := r.Spawn(t.Context(), rigAsk(fmt.Sprint(i)))
					require.NoError(t, err)
					ids[i] = task.ID
				}
				var read []subagent.Task
				var err error
				var reader sync.WaitGroup
				await := func() { read, err = r.Await(t.Context(), subagent.AwaitAll, ids[0], ids[1]) }
				if c.awaited {
					reader.Go(await)
				}
				synctest.Wait()
				g.Release(ids[0], subagent.Result{Text: "early"}, nil)
				synctest.Wait()
				for range 30 { // the store is full of others all the while
					time.Sleep(6 * time.Minute)
					_, err := r.Run(t.Context(), rigAsk("other", withFunc(keeps())))
					require.NoError(t, err)
				}
				g.Release(ids[1], subagent.Result{Text: "late"}, nil)
				synctest.Wait()
				if !c.awaited {
					await()
				}
				reader.Wait()
				require.NoError(t, err)
				require.Equal(t, []string{"early", "late"}, []string{read[0].ResultText, read[1].ResultText})
				require.Equal(t, 3*time.Hour, read[1].CompletedAt.Sub(read[0].CompletedAt))
				require.Len(t, listed(t, s, subagent.Filter{}), 1, "and then it goes")
			})
		})
	}
}

// A task that is past its retention is gone for every call alike.
func TestB180_EveryCallAgreesOnWhatIsGone(t *testing.T) {
	inKeep(t, 0, nil, func(t *testing.T, r *subagent.Runner, _ *subagent.MemoryStore, _ *subagenttest.Gate) {
		ctx := t.Context()
		gone, err := r.Run(ctx, rigAsk("x", withFunc(keeps())))
		require.NoError(t, err)
		require.Equal(t, "0", gone.ResultText, "its own Run has it")
		synctest.Wait()
		for name, call := range map[string]func() error{
			"Get":       func() error { _, err := r.Get(ctx, gone.ID); return err },
			"Wait":      func() error { _, err := r.Wait(ctx, gone.ID); return err },
			"Await":     func() error { _, err := r.Await(ctx, subagent.AwaitAny, gone.ID); return err },
			"Cancel":    func() error { _, err := r.Cancel(ctx, gone.ID, subagent.CancelOptions{}); return err },
			"UsageTree": func() error { _, err := r.UsageTree(ctx, gone.ID); return err },
		} {
			require.ErrorIs(t, call(), subagent.ErrNotFound, name)
		}
		list, err := r.List(ctx, subagent.Filter{})
		require.NoError(t, err)
		require.Empty(t, list)
		stopped, err := r.CancelSession(ctx, "s", subagent.CancelOptions{})
		require.NoError(t, err)
		require.Empty(t, stopped)
		_, queued := r.QueuePosition(gone.ID)
		require.False(t, queued)
		require.NoError(t, r.Forget(ctx, gone.ID))
	})
}
