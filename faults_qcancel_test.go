package subagent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// neverEntered requires that nobody is at the gate, nor was since it was last
// asked.
func (r *rig) neverEntered() {
	r.t.Helper()
	synctest.Wait()
	_, err := r.gate.Entered(endedContext())
	require.Error(r.t, err)
}

// waysOutOfTheLine take B, which waits in line, out of it.
var waysOutOfTheLine = []struct {
	name   string
	reason subagent.Reason
	do     func(r *rig, b uuid.UUID)
}{
	{"it is stopped", subagent.ReasonAgent, func(r *rig, b uuid.UUID) { r.stop(b) }},
	{"its session is stopped", subagent.ReasonSession, func(r *rig, b uuid.UUID) {
		_, err := r.CancelSession(r.ctx, "B", subagent.CancelOptions{})
		require.NoError(r.t, err)
	}},
	{"another process stores a request", "", func(r *rig, b uuid.UUID) {
		_, err := r.inner.Update(r.ctx, b, func(t *subagent.Task) error {
			t.CancelRequestedAt, t.Reason = time.Now(), "from afar"
			return nil
		})
		require.NoError(r.t, err)
		time.Sleep(11 * time.Second) // the next renewal sees it
	}},
	{"it has waited too long", subagent.ReasonQueueTimeout, func(*rig, uuid.UUID) { time.Sleep(time.Minute) }},
}

func TestB038_WhatLeftTheLineNeverStarts(t *testing.T) {
	for _, way := range waysOutOfTheLine {
		t.Run(way.name, func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				a, _ := r.runs("A")
				_, err := r.gate.Entered(r.ctx)
				require.NoError(t, err)
				b := r.spawn("B", external("", "B"), queueTimeout(time.Minute)).ID
				c := r.spawn("C").ID
				way.do(r, b)
				end := r.settled(b) // without waiting for A
				if way.reason != "" {
					require.Equal(t, way.reason, end.Reason)
				}
				require.Zero(t, end.StartedAt)
				require.Equal(t, subagent.StatusRunning, r.row(a).Status)
				place, ok := r.QueuePosition(c)
				require.True(t, ok)
				require.Equal(t, 1, place)
				r.neverEntered()
				r.gate.Release(a, subagent.Result{}, nil)
				run, err := r.gate.Entered(r.ctx)
				require.NoError(t, err)
				require.Equal(t, c, run.Task().ID, "the slot went past B")
				r.neverEntered()
				require.Equal(t, end, r.row(b))
			})
		})
	}
}

// B has been chosen for the freed slot, and its start is being stored.
func TestB039_AStopBetweenTheGrantAndTheStart(t *testing.T) {
	for _, way := range waysOutOfTheLine[:2] {
		for _, committed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stored %v", way.name, committed), func(t *testing.T) {
				inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
					a, _ := r.runs("A")
					b := r.spawn("B", external("", "B")).ID
					c, d := r.spawn("C").ID, r.spawn("D").ID
					r.store.On(subagenttest.OpUpdate, func(call subagenttest.Call) subagenttest.Fault {
						if call.IDs[0] == b && call.Tasks[0].Status == subagent.StatusRunning && call.Tasks[0].CancelRequestedAt.IsZero() {
							return subagenttest.Fault{Committed: committed, Delay: 2 * time.Second}
						}
						return subagenttest.Fault{}
					})
					r.gate.Release(a, subagent.Result{}, nil)
					time.Sleep(time.Second)
					_, err := r.gate.Entered(r.ctx) // A, long ago
					require.NoError(t, err)
					way.do(r, b)
					end := r.awaited(b)
					require.Equal(t, subagent.StatusCancelled, end.Status)
					require.Equal(t, way.reason, end.Reason)
					run, err := r.gate.Entered(r.ctx)
					require.NoError(t, err)
					require.Equal(t, c, run.Task().ID)
					r.neverEntered()
					require.Equal(t, subagent.CapacityStats{Limit: 1, Running: 1, Queued: 1}, r.Stats().Capacity)
					r.gate.Release(c, subagent.Result{}, nil)
					r.gate.WaitEntered(t, d)
					r.settled(b)
				})
			})
		}
	}
}

// Two hundred in line are stopped: one by one, all at once, as a session.
func TestB041_AStoppedLineLeavesNothing(t *testing.T) {
	for name, stop := range map[string]func(r *rig, ids []uuid.UUID){
		"one by one": func(r *rig, ids []uuid.UUID) {
			for _, id := range ids {
				r.stop(id)
			}
		},
		"at once": func(r *rig, ids []uuid.UUID) {
			var all sync.WaitGroup
			for _, id := range ids {
				all.Go(func() { r.stop(id) })
			}
			all.Wait()
		},
		"as a session": func(r *rig, ids []uuid.UUID) {
			stopped, err := r.CancelSession(r.ctx, "B", subagent.CancelOptions{})
			require.NoError(r.t, err)
			require.Len(r.t, stopped, len(ids))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				a, _ := r.runs("A")
				synctest.Wait()
				before := runtime.NumGoroutine()
				var ids []uuid.UUID
				for i := range 200 {
					ids = append(ids, r.spawn(fmt.Sprint(i), external("", "B")).ID)
				}
				stop(r, ids)
				synctest.Wait()
				require.Less(t, runtime.NumGoroutine(), before+20) // some that have ended may still be counted
				require.Equal(t, subagent.CapacityStats{Limit: 1, Running: 1}, r.Stats().Capacity)
				s := r.Stats()
				require.Equal(t, []int{0, 0, 1}, []int{s.Pending, s.Queued, s.Running})
				for _, id := range ids {
					row := r.row(id)
					require.Equal(t, subagent.StatusCancelled, row.Status)
					require.Zero(t, row.StartedAt)
				}
				r.gate.Release(a, subagent.Result{}, nil)
				r.awaited(a)
				r.gate.WaitEntered(t, r.spawn("next", noWait).ID)
			})
		})
	}
}

// The same for a host's own work in a Capacity: first half of the line gives up,
// then the rest.
func TestB041_B052_WaitersThatGiveUpLeaveNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := subagent.NewCapacity(1, -1)
		release, err := c.Acquire(t.Context())
		require.NoError(t, err)
		before := runtime.NumGoroutine()
		var ctxs [2]context.Context
		var cancels [2]context.CancelFunc
		for i := range ctxs {
			ctxs[i], cancels[i] = context.WithCancel(t.Context())
		}
		var failed atomic.Int64
		for i := range 200 {
			go func() { // ends with its ctx
				release, err := c.Acquire(ctxs[i%2])
				if release != nil { // the clean-up of one that may not have a slot
					release()
					release()
				}
				if err != nil {
					failed.Add(1)
				}
			}()
		}
		synctest.Wait()
		require.Equal(t, subagent.CapacityStats{Limit: 1, Running: 1, Queued: 200}, c.Stats())
		for i, left := range []int{100, 0} {
			cancels[i]()
			synctest.Wait()
			require.Equal(t, subagent.CapacityStats{Limit: 1, Running: 1, Queued: left}, c.Stats())
			require.EqualValues(t, 200-left, failed.Load())
		}
		require.Less(t, runtime.NumGoroutine(), before+20)
		release()
		require.Equal(t, subagent.CapacityStats{Limit: 1}, c.Stats())
	})
}

// Slots are free, and the ctx that asks for one is done.
func TestB044_ADoneCtxStartsNothing(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 2}, func(t *testing.T, l *lab) {
		late, cancel := context.WithDeadline(l.ctx, time.Now().Add(-time.Second))
		defer cancel()
		l.leavesNothing(func() {
			for _, ctx := range []context.Context{endedContext(), late} {
				for range 50 { // whatever a select would choose
					for _, change := range []func(*subagent.Request){noWait, independent} {
						task, err := l.Spawn(ctx, ask("x", change))
						require.ErrorIs(t, err, ctx.Err())
						require.Zero(t, task)
						task, err = l.Run(ctx, ask("x", change))
						require.ErrorIs(t, err, ctx.Err())
						require.Zero(t, task)
					}
					capacity := subagent.NewCapacity(1, 1)
					_, err := capacity.Acquire(ctx)
					require.ErrorIs(t, err, ctx.Err())
					require.Zero(t, capacity.Stats().Running)
				}
			}
		})
		_, err := l.gate.Entered(endedContext())
		require.Error(t, err, "nothing has run")
	})
}

// A hundred thousand operations at random, on three slots: who waits in line
// is let go as soon as his ctx ends, and at the end nobody is left behind.
func TestB045_AStormOfWaitersThatGiveUp(t *testing.T) {
	rnd := seeded(t)
	ops := 100_000
	if testing.Short() {
		ops = 10_000
	}
	const crowd = 16
	c := subagent.NewCapacity(3, -1)
	var all sync.WaitGroup
	var cancels atomic.Pointer[[crowd]context.CancelFunc]
	cancels.Store(new([crowd]context.CancelFunc))
	for range crowd {
		mine := rand.New(rand.NewPCG(rnd.Uint64(), 1))
		all.Go(func() { // ends with its share of the operations
			for range ops / crowd {
				ctx, cancel := context.WithCancel(context.Background())
				now := *cancels.Load() // those of others, of whom this one stops some
				now[mine.IntN(crowd)] = cancel
				cancels.Store(&now)
				if other := now[mine.IntN(crowd)]; other != nil && mine.IntN(2) == 0 {
					other()
				}
				release, err := c.Acquire(ctx)
				if err == nil {
					if mine.IntN(4) == 0 {
						runtime.Gosched()
					}
					release()
				}
				cancel()
			}
		})
	}
	over := make(chan struct{})
	go func() { all.Wait(); close(over) }() // ends with the crowd
	select {
	case <-over:
	case <-time.After(time.Minute):
		require.Fail(t, "somebody is blocked", "%+v", c.Stats())
	}
	require.Equal(t, subagent.CapacityStats{Limit: 3}, c.Stats())
}

// The same with tasks, in time that stands still while they queue: each that
// is stopped in line has ended in that moment.
func TestB045_AStormOfTasksThatAreStopped(t *testing.T) {
	rnd := seeded(t)
	ops := bubble.Often(100_000, 1_500)
	if testing.Short() {
		ops = 500
	}
	inRig(t, subagent.Config{Workers: 3, MaxQueued: -1}, func(t *testing.T, r *rig) {
		r.inner.SetRetention(-1)
		var open []uuid.UUID
		for range ops {
			switch n := rnd.IntN(3); {
			case n == 0 || len(open) == 0:
				open = append(open, r.spawn("x").ID)
				continue
			case n == 1:
				id := open[rnd.IntN(len(open))]
				before := time.Now()
				queued := r.row(id).Status == subagent.StatusQueued
				r.stop(id)
				if queued {
					r.awaited(id)
				}
				require.Zero(t, time.Since(before))
			default:
				r.gate.Release(open[rnd.IntN(len(open))], subagent.Result{}, nil)
			}
		}
		for _, id := range open {
			r.stop(id)
		}
		synctest.Wait()
		r.noneLive()
	})
}
