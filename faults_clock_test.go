package subagent_test

import (
	"context"
	"encoding/json"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// skewed is a store whose times were stamped by a clock that is off by so much
// from the one that goes on: as after a jump of the wall clock, which no running
// time may be measured with.
type skewed struct {
	subagent.Store
	by time.Duration
}

func (s skewed) move(t subagent.Task) subagent.Task {
	for _, at := range []*time.Time{&t.CreatedAt, &t.QueuedAt, &t.StartedAt, &t.CancelRequestedAt, &t.CompletedAt, &t.Progress.LastActivityAt} {
		if !at.IsZero() {
			*at = at.Add(s.by)
		}
	}
	return t
}

func (s skewed) Get(ctx context.Context, id uuid.UUID) (subagent.Task, error) {
	t, err := s.Store.Get(ctx, id)
	return s.move(t), err
}

func (s skewed) Update(ctx context.Context, id uuid.UUID, edit func(*subagent.Task) error) (subagent.Task, error) {
	t, err := s.Store.Update(ctx, id, edit)
	return s.move(t), err
}

func (s skewed) List(ctx context.Context, f subagent.Filter) iter.Seq2[subagent.Task, error] {
	return func(yield func(subagent.Task, error) bool) {
		for t, err := range s.Store.List(ctx, f) {
			if !yield(s.move(t), err) {
				return
			}
		}
	}
}

// The wall clock jumps by hours, ahead or back, while tasks wait in line, run and
// are being stopped: time limits and graces are as long as they are.
func TestB207_AJumpOfTheWallClock(t *testing.T) {
	for _, jump := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		bubble.Test(t, func(t *testing.T) {
			store := skewed{subagent.NewMemoryStore(), -jump} // seen from after the jump
			r, err := subagent.New(t.Context(), subagent.Config{Store: store, Workers: 1, Timeout: 10 * time.Minute, QueueTimeout: 20 * time.Minute, CancelGrace: time.Minute})
			require.NoError(t, err)
			ended := func(deaf bool, stop time.Duration) time.Duration {
				release := make(chan struct{})
				began := time.Now()
				task, err := r.Spawn(t.Context(), rigAsk("x", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					if deaf {
						<-release
					}
					<-ctx.Done()
					return subagent.Result{}, ctx.Err()
				})))
				require.NoError(t, err)
				if stop > 0 {
					time.Sleep(stop)
					_, err = r.Cancel(t.Context(), task.ID, subagent.CancelOptions{})
					require.NoError(t, err)
				}
				_, err = r.Wait(t.Context(), task.ID)
				require.NoError(t, err)
				defer synctest.Wait()
				defer close(release)
				return time.Since(began)
			}
			require.Equal(t, 10*time.Minute, ended(false, 0), "run time")
			require.Equal(t, 11*time.Minute, ended(true, 0), "and the grace")
			require.Equal(t, 5*time.Minute, ended(false, 5*time.Minute))
			require.Equal(t, 6*time.Minute, ended(true, 5*time.Minute), "the grace of a cancel")
			_, err = r.Spawn(t.Context(), rigAsk("holds the slot", withFunc(obeys), func(q *subagent.Request) { q.Timeout = time.Hour }))
			require.NoError(t, err)
			require.Equal(t, 20*time.Minute, ended(false, 0), "queue time")
			require.NoError(t, r.Shutdown(t.Context()))
		})
	}
}

// A task that was stamped by a clock that was ahead, and has been put right since:
// its later times are not before its earlier ones.
func TestB207_TimesOfATaskNeverRunBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, err := subagent.New(t.Context(), subagent.Config{Store: skewed{subagent.NewMemoryStore(), time.Hour}, Workers: 1})
		require.NoError(t, err)
		task, err := r.Run(t.Context(), rigAsk("x", withFunc(func(_ context.Context, run *subagent.Run) (subagent.Result, error) {
			run.Progress("p")
			now := run.Task()
			require.False(t, now.Progress.LastActivityAt.Before(now.StartedAt))
			return subagent.Result{}, nil
		})))
		require.NoError(t, err)
		require.False(t, task.QueuedAt.Before(task.CreatedAt))
		require.False(t, task.StartedAt.Before(task.QueuedAt))
		require.False(t, task.CompletedAt.Before(task.StartedAt))
		require.NoError(t, r.Shutdown(t.Context()))
	})
}

// Through all states: each transition has its time, in order, and changes the
// record; nothing else does; what has not happened has no time, not an early one.
func TestB209_TimesOfEachTransition(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		r.onNotice = func(context.Context, subagent.Task) error { return errBroken } // its reader comes later
		blocker, _ := r.runs("blocker")
		id := r.spawn("walks").ID
		walk := []struct {
			do   func()
			to   subagent.Status
			time string
		}{
			{func() {}, subagent.StatusQueued, "queued_at"},
			{func() { r.gate.Release(blocker, subagent.Result{}, nil) }, subagent.StatusRunning, "started_at"},
			{func() { r.gate.Release(id, subagent.Result{}, nil) }, subagent.StatusCompleted, "completed_at"},
		}
		set := []string{"created_at"}
		var last time.Time
		for i, step := range walk {
			if i > 0 {
				time.Sleep(time.Minute)
			}
			step.do()
			synctest.Wait()
			row := r.row(id)
			require.Equal(t, step.to, row.Status)
			set = append(set, step.time)
			times := timesOf(t, row)
			require.Len(t, times, len(set), "what has not happened is left out")
			for _, key := range set {
				require.Contains(t, times, key)
			}
			require.Equal(t, time.Now().UTC(), times[step.time])
			require.False(t, times[step.time].Before(last))
			last = times[step.time]
			time.Sleep(time.Minute)
			r.looksAt(id)
			row2 := r.row(id)
			require.Equal(t, row, row2, "reading, and time that passes, change nothing")
		}
		_, err := r.Wait(r.ctx, id)
		require.NoError(t, err)
		require.Contains(t, timesOf(t, r.row(id)), "notified_at")
	})
}

// looksAt reads a task in the ways that are no delivery.
func (r *rig) looksAt(id uuid.UUID) {
	for range 3 {
		_, _ = r.Get(r.ctx, id)
		_, _ = r.List(r.ctx, subagent.Filter{})
		_, _ = r.UsageTree(r.ctx, id)
		r.QueuePosition(id)
	}
}

// timesOf are the times in a task's JSON, by key.
func timesOf(t *testing.T, task subagent.Task) map[string]time.Time {
	t.Helper()
	var all map[string]any
	require.NoError(t, json.Unmarshal(jsonOf(t, task), &all))
	times := make(map[string]time.Time)
	for key, v := range all {
		if s, ok := v.(string); ok && len(key) > 3 && key[len(key)-3:] == "_at" {
			at, err := time.Parse(time.RFC3339Nano, s)
			require.NoError(t, err)
			require.Greater(t, at.Year(), 1970)
			times[key] = at
		}
	}
	return times
}
