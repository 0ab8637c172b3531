package subagent_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// A task that is named twice counts twice, at its end as at the beginning of
// the wait: also where a slot is lent for it, and where one end is enough.
func TestG15_AwaitNamesATaskTwice(t *testing.T) {
	for _, mode := range []subagent.AwaitMode{subagent.AwaitAll, subagent.AwaitAny} {
		t.Run(string(mode), func(t *testing.T) {
			inLabs(t, subagent.Config{Workers: 1}, func(t *testing.T, l *lab) {
				var got []subagent.Task
				empty := func(context.Context, *subagent.Run) (subagent.Result, error) { return subagent.Result{}, nil }
				parent := l.spawn("parent", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					a := l.spawnIn(ctx, "a", withFunc(empty)).ID
					b := l.spawnIn(ctx, "b", withFunc(empty)).ID
					ids := []uuid.UUID{a, a, b, b, a}
					if mode == subagent.AwaitAny {
						ids = []uuid.UUID{b, b}
					}
					var err error
					got, err = l.Await(ctx, mode, ids...)
					return subagent.Result{}, err
				}))
				l.ends(parent.ID, subagent.StatusCompleted, "")
				synctest.Wait()
				for _, task := range got {
					require.True(t, task.Status.Terminal(), task.Subject)
				}
				require.Zero(t, l.Stats().Lent)
			})
		})
	}
}
