package subagent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// Each of many tasks waits for the one before it. What a new wait looks at
// grows with the chain, not with its square: that took minutes.
func TestG15_ALongChainOfWaits(t *testing.T) {
	const n = 1000
	bubble.Test(t, func(t *testing.T) {
		var last uuid.UUID
		r, err := subagent.New(t.Context(), subagent.Config{Workers: 2, MaxQueued: -1})
		require.NoError(t, err)
		defer r.Shutdown(context.Background())
		for range n {
			before := last
			task, err := r.Spawn(t.Context(), subagent.Request{ParentSessionID: "s", Description: "x", Func: func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				if before == uuid.Nil {
					time.Sleep(time.Second)
					return subagent.Result{}, nil
				}
				_, err := r.Wait(ctx, before)
				return subagent.Result{}, err
			}})
			require.NoError(t, err)
			last = task.ID
			synctest.Wait()
		}
		require.Equal(t, n-1, r.Stats().Lent)
		end, err := r.Wait(t.Context(), last)
		require.NoError(t, err)
		require.NoError(t, end.Err())
	})
}
