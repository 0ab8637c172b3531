package subagent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// A Create that fails says nothing about who has stored the ID meanwhile: a
// record of another Runner is none of ours.
func TestG2_AFailedCreateLeavesAnothersTaskAlone(t *testing.T) {
	for name, gets := range map[string]int{"read at once": 0, "read later": 1} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, gate := context.Background(), subagenttest.NewGate()
				store := subagent.NewMemoryStore()
				faulty := subagenttest.NewFaultyStore(store)
				ours, err := subagent.New(ctx, subagent.Config{Store: faulty.Store(), Func: gate.Func()})
				require.NoError(t, err)
				theirs, err := subagent.New(ctx, subagent.Config{Store: store, Func: gate.Func()})
				require.NoError(t, err)
				defer func() {
					gate.ReleaseAll()
					_, _ = ours.Shutdown(ctx), theirs.Shutdown(ctx)
				}()
				q := subagent.Request{ID: uuid.Must(uuid.NewV7()), Description: "one", ParentSessionID: "s"}
				down := errors.New("down")
				faulty.On(subagenttest.OpCreate, func(subagenttest.Call) subagenttest.Fault {
					_, err := theirs.Spawn(ctx, q)
					require.NoError(t, err)
					if gets > 0 {
						faulty.On(subagenttest.OpGet, func(c subagenttest.Call) (f subagenttest.Fault) {
							if c.N <= gets {
								f.Err = down
							}
							return f
						})
					}
					return subagenttest.Fault{Err: down}
				})
				_, _ = ours.Spawn(ctx, q)
				time.Sleep(time.Minute)
				task, err := theirs.Get(ctx, q.ID)
				require.NoError(t, err)
				require.Equal(t, subagent.StatusRunning, task.Status)
				row, err := store.Get(ctx, q.ID)
				require.NoError(t, err)
				require.Equal(t, subagent.StatusRunning, row.Status, "%+v", row)
			})
		})
	}
}

// A task that was forgotten is gone for everybody, also while somebody waits
// for it together with others.
func TestForget_WhileItIsAwaitedWithOthers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, gate := context.Background(), subagenttest.NewGate()
		r, err := subagent.New(ctx, subagent.Config{Func: gate.Func()})
		require.NoError(t, err)
		defer func() { gate.ReleaseAll(); _ = r.Shutdown(ctx) }()
		ask := subagent.Request{Description: "x", ParentSessionID: "s"}
		a, err := r.Spawn(ctx, ask)
		require.NoError(t, err)
		b, err := r.Spawn(ctx, ask)
		require.NoError(t, err)
		go func() { _, _ = r.Await(ctx, subagent.AwaitAll, a.ID, b.ID) }() // ends with b
		synctest.Wait()
		gate.Release(a.ID, subagent.Result{}, nil)
		synctest.Wait()
		require.NoError(t, r.Forget(ctx, a.ID))
		list, err := r.List(ctx, subagent.Filter{})
		require.NoError(t, err)
		require.Len(t, list, 1)
		_, err = r.Get(ctx, a.ID)
		require.ErrorIs(t, err, subagent.ErrNotFound)
	})
}
