package subagent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// besides runs f with two Runners on one store.
func besides(t *testing.T, f func(t *testing.T, mine, other *subagent.Runner)) {
	bubble.Test(t, func(t *testing.T) {
		store := subagent.NewMemoryStore()
		var both [2]*subagent.Runner
		for i := range both {
			r, err := subagent.New(t.Context(), subagent.Config{Store: store})
			require.NoError(t, err)
			defer func() { require.NoError(t, r.Shutdown(context.Background())) }()
			both[i] = r
		}
		f(t, both[0], both[1])
	})
}

func spawnFor(t *testing.T, r *subagent.Runner, d time.Duration) subagent.Task {
	task, err := r.Spawn(t.Context(), subagent.Request{Description: "x", ParentSessionID: "s", Func: func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		select {
		case <-time.After(d):
			return subagent.Result{}, nil
		case <-ctx.Done():
			return subagent.Result{}, ctx.Err()
		}
	}})
	require.NoError(t, err)
	synctest.Wait() // it runs
	return task
}

// A wait that runs out between two looks at another Runner's task says how it
// is then, not how it was.
func TestG11_AWaitThatRunsOutLooksOnceMore(t *testing.T) {
	besides(t, func(t *testing.T, mine, other *subagent.Runner) {
		theirs := spawnFor(t, other, 300*time.Millisecond)
		slow := spawnFor(t, other, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 450*time.Millisecond)
		defer cancel()
		end, err := mine.Wait(ctx, theirs.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCompleted, end.Status)
		require.True(t, end.NotifiedAt.IsZero())
		brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		live, err := mine.Wait(brief, slow.ID)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, subagent.StatusRunning, live.Status)
	})
}

// What a wait does not return it has not delivered: one of several tasks was
// deleted meanwhile.
func TestG14_AWaitThatFailsDeliversNothing(t *testing.T) {
	besides(t, func(t *testing.T, mine, other *subagent.Runner) {
		first := spawnFor(t, mine, time.Millisecond)
		theirs := spawnFor(t, other, 300*time.Millisecond)
		go func() { // ends within the bubble
			time.Sleep(310 * time.Millisecond)
			_ = other.Forget(context.Background(), theirs.ID)
		}()
		tasks, err := mine.Await(t.Context(), subagent.AwaitAll, first.ID, theirs.ID)
		require.ErrorIs(t, err, subagent.ErrNotFound)
		require.Empty(t, tasks)
		end, err := mine.Wait(t.Context(), first.ID)
		require.NoError(t, err)
		require.True(t, end.NotifiedAt.IsZero(), "nobody was handed it before")
	})
}
