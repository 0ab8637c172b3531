package sqlstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/sqlstore"
	"github.com/go-subagent/subagent/subagenttest"
)

func runner(t *testing.T, cfg subagent.Config) *subagent.Runner {
	r, err := subagent.New(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Shutdown(context.Background())) })
	return r
}

// TestCancelReachesTheOwner cancels from Runners that do not execute the task:
// one with another handle on the file, as another process has, and one that
// shares the owner's. The Func sees it within 250 ms.
func TestCancelReachesTheOwner(t *testing.T) {
	path := file(t)
	mine := open(t, path)
	stopped := make(chan time.Time, 1)
	r := runner(t, subagent.Config{Store: mine, Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		<-ctx.Done()
		stopped <- time.Now()
		return subagent.Result{}, context.Cause(ctx)
	}})
	for name, other := range map[string]*subagent.Runner{
		"another handle": runner(t, subagent.Config{Store: open(t, path)}),
		"the same":       runner(t, subagent.Config{Store: mine}),
	} {
		t.Run(name, func(t *testing.T) {
			var took []time.Duration
			for range 9 {
				task, err := r.Spawn(t.Context(), subagent.Request{Description: "wait", ParentSessionID: "s"})
				require.NoError(t, err)
				until(t, "it runs", func() bool {
					got, err := other.Get(t.Context(), task.ID)
					require.NoError(t, err)
					return got.Status == subagent.StatusRunning
				})
				asked := time.Now()
				got, err := other.Cancel(t.Context(), task.ID, subagent.CancelOptions{Reason: "quota", Message: "enough"})
				require.NoError(t, err)
				require.False(t, got.CancelRequestedAt.IsZero())
				took = append(took, (<-stopped).Sub(asked))
				end, err := other.Wait(t.Context(), task.ID)
				require.NoError(t, err)
				require.Equal(t, subagent.StatusCancelled, end.Status)
				require.Equal(t, subagent.Reason("quota"), end.Reason)
				require.Equal(t, "enough", end.CancelMessage)
			}
			t.Logf("median %v", median(took))
			require.Less(t, median(took), 250*time.Millisecond)
		})
	}
}

// TestNewsSurviveTheOwnersOwnWrites has the owner write the row again after
// somebody else has, before it looks.
func TestNewsSurviveTheOwnersOwnWrites(t *testing.T) {
	path := file(t)
	mine, other := open(t, path), open(t, path)
	require.NoError(t, mine.Renew(t.Context(), "me", time.Hour))
	task := newTask()
	task.Owner = "me"
	require.NoError(t, mine.Create(t.Context(), task))
	_, err := other.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.CancelRequestedAt = time.Now().UTC(); return nil })
	require.NoError(t, err)
	_, err = mine.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Status = subagent.StatusQueued; return nil })
	require.NoError(t, err)
	got := firstNews(t, mine, "me")
	require.Equal(t, task.ID, got.ID)
	require.False(t, got.CancelRequestedAt.IsZero())
	require.Equal(t, subagent.StatusQueued, got.Status)
}

func firstNews(t *testing.T, s *sqlstore.Store, owner string) (got subagent.Task) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := s.Watch(ctx, owner, func(task subagent.Task) {
		if ctx.Err() == nil { // the first alone
			got = task
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	return got
}

// TestTakenTaskIsNews: who loses a task to somebody that took it for dead is
// told of that, though the task is the other's then.
func TestTakenTaskIsNews(t *testing.T) {
	path := file(t)
	mine, other := open(t, path), open(t, path)
	task := newTask()
	task.Owner = "me"
	require.NoError(t, mine.Create(t.Context(), task))
	_, err := other.Update(t.Context(), task.ID, func(t *subagent.Task) error {
		t.Status, t.Reason, t.Owner = subagent.StatusErrored, subagent.ReasonLost, "you"
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, subagent.StatusErrored, firstNews(t, mine, "me").Status)
}

// TestOwnWritesAreNoNews: an owner is not told what it does itself.
func TestOwnWritesAreNoNews(t *testing.T) {
	s := fresh(t)
	require.NoError(t, s.Renew(t.Context(), "me", time.Hour))
	first, last := newTask(), newTask()
	first.Owner, last.Owner = "me", "me"
	require.NoError(t, s.Create(t.Context(), first, last))
	_, err := s.Update(t.Context(), first.ID, func(t *subagent.Task) error { t.Status = subagent.StatusQueued; return nil })
	require.NoError(t, err)
	_, err = s.Update(t.Context(), last.ID, func(t *subagent.Task) error { t.CancelRequestedAt = time.Now().UTC(); return nil })
	require.NoError(t, err)
	require.Equal(t, last.ID, firstNews(t, s, "me").ID, "told of its own write")
}

// TestNewsAreToldOnce: each look goes on where the last one ended.
func TestNewsAreToldOnce(t *testing.T) {
	path := file(t)
	mine, other := open(t, path), open(t, path)
	tasks := []subagent.Task{newTask(), newTask(), newTask()}
	for i := range tasks {
		tasks[i].Owner = "me"
	}
	require.NoError(t, mine.Create(t.Context(), tasks...))
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan subagent.Task, 100), make(chan error, 1)
	go func() { ended <- mine.Watch(ctx, "me", func(task subagent.Task) { told <- task }) }() // ends with ctx
	for _, task := range tasks {
		_, err := other.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.Status = subagent.StatusQueued; return nil })
		require.NoError(t, err)
		require.Equal(t, task.ID, (<-told).ID)
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Empty(t, told)
}

// TestNewsPassADamagedTask: a task that cannot be read does not keep its owner
// from the news of others.
func TestNewsPassADamagedTask(t *testing.T) {
	path := file(t)
	mine, other := open(t, path), open(t, path)
	damaged, whole := newTask(), newTask()
	damaged.Owner, whole.Owner = "me", "me"
	require.NoError(t, mine.Create(t.Context(), damaged, whole))
	for _, task := range []subagent.Task{damaged, whole} {
		_, err := other.Update(t.Context(), task.ID, func(t *subagent.Task) error { t.CancelRequestedAt = time.Now().UTC(); return nil })
		require.NoError(t, err)
	}
	_, err := rawDB(t, path).Exec(`UPDATE tasks SET task = substr(task, 1, 50) WHERE id = $1`, damaged.ID[:])
	require.NoError(t, err)
	require.Equal(t, whole.ID, firstNews(t, mine, "me").ID)
}

func TestWatchEndsWithTheStore(t *testing.T) {
	s, err := sqlstore.OpenSQLite(file(t), sqlstore.Options{})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Watch(context.Background(), "me", func(subagent.Task) {}) }() // ends with s
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-ended, sqlstore.ErrClosed)
}

// TestRecoveryLeavesTheLivingAlone: a new Runner ends the tasks of the dead one
// only, and tells of them.
func TestRecoveryLeavesTheLivingAlone(t *testing.T) {
	path := file(t)
	gate := subagenttest.NewGate()
	living := runner(t, subagent.Config{Store: open(t, path), Func: gate.Func()})
	kept, err := living.Spawn(t.Context(), subagent.Request{Description: "d", ParentSessionID: "s"})
	require.NoError(t, err)
	gate.WaitEntered(t, kept.ID)
	left := newTask()
	left.Status, left.Owner, left.NotifiedAt = subagent.StatusRunning, "dead", time.Time{}
	require.NoError(t, open(t, path).Create(t.Context(), left))

	told := make(chan subagent.Task, 10)
	next := runner(t, subagent.Config{Store: open(t, path), Notifier: notify(told)})
	got := <-told
	require.Equal(t, left.ID, got.ID)
	require.Equal(t, []any{subagent.StatusErrored, subagent.ReasonLost, next.ID()}, []any{got.Status, got.Reason, got.Owner})
	still, err := next.Get(t.Context(), kept.ID)
	require.NoError(t, err)
	require.Equal(t, subagent.StatusRunning, still.Status)
	gate.Release(kept.ID, subagent.Result{Text: "done"}, nil)
	end, err := next.Wait(t.Context(), kept.ID)
	require.NoError(t, err)
	require.Equal(t, subagent.StatusCompleted, end.Status)
}

type notify chan subagent.Task

func (n notify) Notify(_ context.Context, t subagent.Task) error {
	n <- t
	return nil
}
