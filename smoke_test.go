package subagent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

func TestSmoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		r, err := subagent.New(ctx, subagent.Config{Workers: 1, Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			time.Sleep(time.Second)
			return subagent.Result{Text: "hi " + run.Task().Description}, ctx.Err()
		}})
		require.NoError(t, err)
		a, err := r.Spawn(ctx, subagent.Request{Description: "a", ParentSessionID: "s"})
		require.NoError(t, err)
		b, err := r.Spawn(ctx, subagent.Request{Description: "b", ParentSessionID: "s"})
		require.NoError(t, err)
		c, err := r.Run(ctx, subagent.Request{Description: "c", ParentSessionID: "s"})
		require.NoError(t, err)
		require.Equal(t, "hi c", c.ResultText)
		ts, err := r.Await(ctx, subagent.AwaitAll, a.ID, b.ID)
		require.NoError(t, err)
		require.Equal(t, "hi a", ts[0].ResultText)
		require.Equal(t, int64(4), ts[0].Version-1)
		nested, err := r.Run(ctx, subagent.Request{Description: "c", ParentSessionID: "s", Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			t, err := r.Run(ctx, subagent.Request{Description: "kid"})
			return subagent.Result{Text: t.ResultText}, err
		}})
		require.NoError(t, err)
		require.Equal(t, "hi kid", nested.ResultText)
		d, err := r.Spawn(ctx, subagent.Request{Description: "b", ParentSessionID: "s"})
		require.NoError(t, err)
		d, err = r.Cancel(ctx, d.ID, subagent.CancelOptions{})
		require.NoError(t, err)
		d, err = r.Wait(ctx, d.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, d.Status)
		require.NoError(t, r.Shutdown(ctx))
		require.Equal(t, 0, r.Stats().Capacity.Running)
	})
}
