package subagent_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

// A spawn has failed, and its Create, which nobody waits for any more, comes back
// while the record that it has left is being ended: that end is told all the
// same, and once.
func TestG11_ALateCreateComesBackWhileItsRecordIsEnded(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		late := subagenttest.Fault{Committed: true, Deaf: true, Delay: 2 * time.Second}
		var asked atomic.Bool
		r.store.On(subagenttest.OpCreate, func(subagenttest.Call) subagenttest.Fault { return late })
		r.store.On(subagenttest.OpUpdate, func(subagenttest.Call) subagenttest.Fault { return late })
		r.store.On(subagenttest.OpGet, func(subagenttest.Call) (f subagenttest.Fault) {
			if asked.CompareAndSwap(false, true) {
				f.Err = errBroken // its spawn does not learn that it is stored
			}
			return f
		})
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		_, err := r.Spawn(ctx, rigAsk("x"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		all, err := r.List(r.ctx, subagent.Filter{})
		require.NoError(t, err)
		require.Len(t, all, 1)
		end := r.settled(all[0].ID)
		require.Equal(t, subagent.ReasonStore, end.Reason)
		require.NotZero(t, end.NotifiedAt)
		_, _, notices := r.heard(end.ID)
		require.Len(t, notices, 1)
	})
}

// A Func waits for a task whose spawn then fails: it gets its slot back with the
// answer that there is none.
func TestG15_AWaitForASpawnThatFails(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		id := uuid.New()
		r.store.On(subagenttest.OpCreate, func(c subagenttest.Call) (f subagenttest.Fault) {
			if c.IDs[0] == id {
				f.Committed, f.Delay, f.Err = true, time.Minute, errBroken
			}
			return f
		})
		parent := r.spawn("waits", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
			time.Sleep(time.Second)
			_, err := r.Wait(ctx, id)
			require.ErrorIs(t, err, errBroken)
			require.Zero(t, r.Stats().Lent)
			require.Equal(t, 1, r.Stats().Capacity.Running)
			return subagent.Result{}, nil
		}))
		go func() { _, _ = r.Spawn(r.ctx, rigAsk("fails", withID(id))) }() // ends within StoreTimeout
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, r.Stats().Lent)
		r.store.On(subagenttest.OpGet, func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Err: errBroken} })
		require.Equal(t, subagent.StatusCompleted, r.awaited(parent.ID).Status)
		r.heal()
		time.Sleep(time.Hour)
	})
}
