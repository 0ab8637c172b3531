package subagent_test

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// A record whose status this version does not know, or that has none, is shown
// as it is and left alone by everything: it is not run, not recovered, not
// stopped, not counted, and no obstacle to the others.
func TestB194_AStatusThatIsNotKnown(t *testing.T) {
	for _, status := range []subagent.Status{"paused", ""} {
		for _, leases := range []bool{true, false} {
			bubble.Test(t, func(t *testing.T) {
				inner := subagent.NewMemoryStore()
				store := subagenttest.NewFaultyStore(inner)
				odd, lost := orphan(status), orphan(subagent.StatusRunning)
				require.NoError(t, inner.Create(t.Context(), odd, lost, orphan(subagent.StatusCompleted)))
				cfg := subagent.Config{Store: store}
				if leases {
					cfg.Store = store.Store()
				}
				rigOn(t, cfg, newTape(), inner, store).run(func(t *testing.T, r *rig) {
					r.leavesAlone(odd)
					require.Equal(t, subagent.ReasonLost, r.row(lost.ID).Reason)
					require.NoError(t, inner.Create(t.Context(), orphan(subagent.StatusCompleted)))
					require.NoError(t, r.Shutdown(r.ctx), "there is nothing about it that is to be stored")
					require.Equal(t, odd, r.row(odd.ID))
				})
			})
		}
	}
}

// leavesAlone does all that can be done to the record of an unknown status.
func (r *rig) leavesAlone(odd subagent.Task) {
	t := r.t
	got, err := r.Cancel(r.ctx, odd.ID, subagent.CancelOptions{})
	require.ErrorIs(t, err, subagent.ErrInvalidTransition)
	require.Equal(t, odd, got)
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	got, err = r.Wait(ctx, odd.ID)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, odd, got)
	stopped, err := r.CancelSession(r.ctx, odd.ParentSessionID, subagent.CancelOptions{})
	require.NoError(t, err)
	require.Empty(t, stopped)
	require.ErrorIs(t, r.Forget(r.ctx, odd.ID), subagent.ErrNotTerminal)
	n, err := r.Prune(r.ctx, subagent.Filter{Statuses: []subagent.Status{odd.Status}}, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Zero(t, n)
	live, err := r.List(r.ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning}})
	require.NoError(t, err)
	require.Empty(t, live)
	got, err = r.Get(r.ctx, odd.ID)
	require.NoError(t, err)
	require.Equal(t, odd, got)
	require.Equal(t, "("+string(odd.Status)+")", got.Card().Content)
	require.False(t, got.Card().Expand())
	s := r.Stats()
	require.Zero(t, s.Pending+s.Queued+s.Running+s.Unsaved)
}

// A store that lists such a record among the open ones has it left alone, too.
func TestB194_AStoreThatTakesItForOpen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		inner := subagent.NewMemoryStore()
		odd := orphan("paused")
		require.NoError(t, inner.Create(t.Context(), odd))
		r, err := subagent.New(t.Context(), subagent.Config{Store: listsAll{inner}})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.NoError(t, r.Shutdown(t.Context()))
		got, err := inner.Get(t.Context(), odd.ID)
		require.NoError(t, err)
		require.Equal(t, odd, got)
	})
}

// listsAll is a store that does not look at statuses.
type listsAll struct{ subagent.Store }

func (s listsAll) List(ctx context.Context, f subagent.Filter) iter.Seq2[subagent.Task, error] {
	f.Statuses = nil
	return s.Store.List(ctx, f)
}
