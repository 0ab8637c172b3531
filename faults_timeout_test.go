package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

const runLimit = 300 * time.Millisecond

// timeLimits are the two places where a run time limit is set.
var timeLimits = map[string]struct {
	cfg    subagent.Config
	change func(*subagent.Request)
}{
	"of the Runner":  {subagent.Config{Timeout: runLimit}, func(*subagent.Request) {}},
	"of the request": {subagent.Config{Timeout: time.Hour}, func(q *subagent.Request) { q.Timeout = runLimit }},
}

// Time in the queue is not run time: a task that waits longer than it may run
// has all of its run time, to the instant.
func TestB142_QueueTimeIsNotRunTime(t *testing.T) {
	for where, limit := range timeLimits {
		for _, work := range []time.Duration{100 * time.Millisecond, runLimit - time.Nanosecond, runLimit + time.Nanosecond} {
			t.Run(fmt.Sprint(where, ", works ", work), func(t *testing.T) {
				inRig(t, limit.cfg, func(t *testing.T, r *rig) {
					blocker, _ := r.runs("blocker", func(q *subagent.Request) { q.Timeout = -1 })
					id := r.spawn("x", limit.change, withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
						select {
						case <-ctx.Done():
							return subagent.Result{}, ctx.Err()
						case <-time.After(work):
							return subagent.Result{Text: "done"}, nil
						}
					})).ID
					time.Sleep(time.Second)
					r.gate.Release(blocker, subagent.Result{}, nil)
					end := r.awaited(id)
					require.Equal(t, work < runLimit, end.Status == subagent.StatusCompleted, "%+v", end)
					require.Equal(t, min(work, runLimit).Truncate(time.Microsecond), end.CompletedAt.Sub(end.StartedAt))
					require.Equal(t, time.Second, end.StartedAt.Sub(end.QueuedAt))
					r.settled(id)
				})
			})
		}
	}
}

// Whatever blocks for ever is ended when its time is over, with a cause that
// is a deadline, and its slot goes on; without a limit nothing ends it.
func TestB143_WhatBlocksForEverIsEnded(t *testing.T) {
	for where, limit := range timeLimits {
		t.Run(where, func(t *testing.T) {
			inRig(t, limit.cfg, func(t *testing.T, r *rig) {
				var cause error
				var deadline time.Time
				id := r.spawn("x", limit.change, withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					deadline, _ = ctx.Deadline()
					<-ctx.Done()
					cause = context.Cause(ctx)
					return subagent.Result{}, ctx.Err()
				})).ID
				next := r.spawn("next").ID
				end := r.awaited(id)
				require.Equal(t, "errored timeout timed out after 300ms", fmt.Sprint(end.Status, " ", end.Reason, " ", end.Error))
				require.Equal(t, runLimit, end.CompletedAt.Sub(end.StartedAt))
				require.WithinDuration(t, end.CompletedAt, deadline, 0)
				require.ErrorIs(t, cause, context.DeadlineExceeded)
				require.ErrorIs(t, cause, subagent.ErrTimeout)
				require.ErrorIs(t, end.Err(), subagent.ErrTimeout)
				require.False(t, end.Detached)
				r.settled(id)
				r.gate.WaitEntered(t, next)
				r.gate.Release(next, subagent.Result{}, nil)
				unlimited, _ := r.runs("unlimited", func(q *subagent.Request) { q.Timeout = -1 })
				time.Sleep(time.Hour)
				require.Equal(t, subagent.StatusRunning, r.row(unlimited).Status)
			})
		})
	}
}

// Work that looks at its ctx at each step begins none after the deadline, and
// neither do its children: those that run, that wait, and that it would start.
func TestB144_NoStepAfterTheDeadline(t *testing.T) {
	for where, limit := range timeLimits {
		t.Run(where, func(t *testing.T) {
			limit.cfg.Workers = 2
			inRig(t, limit.cfg, func(t *testing.T, r *rig) {
				start := time.Now()
				var mu sync.Mutex
				var steps []time.Duration
				step := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					for ctx.Err() == nil {
						mu.Lock()
						steps = append(steps, time.Since(start))
						mu.Unlock()
						run.ToolUse("step")
						time.Sleep(40 * time.Millisecond)
					}
					return subagent.Result{}, ctx.Err()
				}
				unlimited := func(q *subagent.Request) { q.Timeout = -1 }
				var late error
				id := r.spawn("x", limit.change, withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					for range 2 { // there is a slot for one of them
						_, err := r.Spawn(ctx, rigAsk("kid", unlimited, withFunc(step)))
						require.NoError(t, err)
					}
					res, err := step(ctx, run)
					_, late = r.Spawn(ctx, rigAsk("late", unlimited, withFunc(step)))
					return res, err
				})).ID
				time.Sleep(time.Hour)
				synctest.Wait() // unlike a sleep, it orders what others did before what follows
				require.Greater(t, len(steps), 10)
				for _, at := range steps {
					require.Less(t, at, runLimit)
				}
				require.True(t, errors.Is(late, subagent.ErrParentCancelled) && errors.Is(late, context.DeadlineExceeded), "%v", late)
				require.Equal(t, subagent.ReasonTimeout, r.settled(id).Reason)
				kids, err := r.List(r.ctx, subagent.Filter{ParentTaskID: id})
				require.NoError(t, err)
				require.Len(t, kids, 2)
				for _, kid := range kids {
					require.Equal(t, subagent.ReasonParent, r.settled(kid.ID).Reason)
				}
			})
		})
	}
}
