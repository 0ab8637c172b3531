package subagent_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

// A subscriber that has stopped to read, and a host that keeps listings, hold
// on to previews: neither to the texts that these are the start of, nor to what
// the Funcs and the ctxs of the tasks hold.
func TestB187_B205_PreviewsHoldNothingElse(t *testing.T) {
	type key struct{}
	const size = 1 << 20
	inKeep(t, 1, nil, func(t *testing.T, r *subagent.Runner, _ *subagent.MemoryStore, _ *subagenttest.Gate) {
		sub := r.Subscribe(subagent.Filter{})
		defer sub.Close()
		var kept [][]subagent.Task
		run := func() {
			ctx := context.WithValue(t.Context(), key{}, make([]byte, size))
			held := make([]byte, size)
			_, err := r.Run(ctx, rigAsk("x", withFunc(func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
				_, _ = run.Write([]byte(strings.Repeat("part ", size/5)))
				clear(held)
				return subagent.Result{Text: strings.Repeat("long ", size/5)}, nil
			})))
			require.NoError(t, err)
			list, err := r.List(t.Context(), subagent.Filter{})
			require.NoError(t, err)
			kept = append(kept, list)
			synctest.Wait()
		}
		run()
		before := liveHeap()
		for range 20 {
			run()
		}
		require.Less(t, int64(liveHeap())-int64(before), int64(size), "bytes that 20 ended tasks hold")
		for range 21 {
			ev, err := sub.Next(t.Context())
			require.NoError(t, err)
			require.Len(t, ev.Task.ResultText, 2000)
		}
		runtime.KeepAlive(kept)
	})
}

// An ID that was forgotten may live again: what is unread of its first life is
// not merged into its second.
func TestB187_UnreadEventsOfAnIDThatLivesAgain(t *testing.T) {
	inKeep(t, 10, nil, func(t *testing.T, r *subagent.Runner, _ *subagent.MemoryStore, _ *subagenttest.Gate) {
		sub := r.Subscribe(subagent.Filter{})
		defer sub.Close()
		q := rigAsk("x", withID(uuid.Must(uuid.NewV7())))
		for _, text := range []string{"first", "second"} {
			q.Func = gives(text, nil)
			_, err := r.Run(t.Context(), q)
			require.NoError(t, err)
			require.NoError(t, r.Forget(t.Context(), q.ID))
		}
		for _, text := range []string{"first", "second"} {
			ev, err := sub.Next(t.Context())
			require.NoError(t, err)
			require.Equal(t, text, ev.Task.ResultText)
		}
	})
}
