package subagent_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

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
