package subagent_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// waysToWait are ways in which a Func waits for a task below its own.
var waysToWait = map[string]func(r *rig, ctx context.Context, q subagent.Request) (subagent.Task, error){
	"Run": func(r *rig, ctx context.Context, q subagent.Request) (subagent.Task, error) { return r.Run(ctx, q) },
	"Spawn, then Wait": func(r *rig, ctx context.Context, q subagent.Request) (subagent.Task, error) {
		task, err := r.Spawn(ctx, q)
		if err != nil {
			return task, err
		}
		return r.Wait(ctx, task.ID)
	},
	"Spawn two, then Await": func(r *rig, ctx context.Context, q subagent.Request) (subagent.Task, error) {
		one, err := r.Spawn(ctx, q)
		if err != nil {
			return one, err
		}
		other, err := r.Spawn(ctx, q)
		if err != nil {
			return other, err
		}
		both, err := r.Await(ctx, subagent.AwaitAll, one.ID, other.ID)
		if err != nil {
			return one, err
		}
		return both[1], nil
	},
}

// A Func that waits for the one below it, in each way of waiting: whatever the
// limit and the depth, the chain ends, or says at which layer it may not go on.
func TestB065_AChainOfWaitingAgents(t *testing.T) {
	for name, way := range waysToWait {
		for _, slots := range []int{1, 2} {
			for _, depth := range []int{4, 8, 9} {
				if depth == 8 && name == "Spawn two, then Await" {
					continue // that many tasks show nothing more
				}
				t.Run(fmt.Sprintf("%s, %d slots, depth %d", name, slots, depth), func(t *testing.T) {
					inRig(t, subagent.Config{Workers: slots}, func(t *testing.T, r *rig) {
						var work subagent.Func
						work = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
							layer := len(run.Task().Description)
							if layer == depth {
								return subagent.Result{Text: "ground"}, nil
							}
							q := rigAsk(run.Task().Description+"x", withFunc(work))
							below, err := way(r, ctx, q)
							if err != nil {
								return subagent.Result{}, err
							}
							return subagent.Result{Text: below.ResultText}, below.Err()
						}
						end := r.awaited(r.spawn("x", withFunc(work)).ID)
						if depth <= 8 {
							require.Equal(t, "ground", end.ResultText)
						} else {
							require.Contains(t, end.Error, "subagent: too many layers of sub-agents: layer 9 of at most 8")
						}
						require.Equal(t, subagent.CapacityStats{Limit: slots}, r.Stats().Capacity)
						require.Zero(t, r.Stats().Lent)
						r.barrier(slots)
					})
				})
			}
		}
	}
}

// An agent that holds the only slot asks for another one, in each way that lends
// it nothing: it is refused at once, or waits no longer than its task may run.
func TestB065_ASecondSlotForTheHolderOfTheOnlyOne(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, r *rig, c *subagent.Capacity) error{
		"a child that will not wait": func(ctx context.Context, r *rig, _ *subagent.Capacity) error {
			_, err := r.Run(ctx, rigAsk("child", noWait))
			require.ErrorIs(r.t, err, subagent.ErrNoCapacity)
			return nil
		},
		"a child where nobody may wait": func(ctx context.Context, r *rig, _ *subagent.Capacity) error {
			_, err := r.Run(ctx, rigAsk("child"))
			require.ErrorIs(r.t, err, subagent.ErrQueueFull)
			return nil
		},
		"the slot itself, if it is free": func(_ context.Context, _ *rig, c *subagent.Capacity) error {
			_, ok := c.TryAcquire()
			require.False(t, ok)
			return nil
		},
		"the slot itself": func(ctx context.Context, _ *rig, c *subagent.Capacity) error {
			_, err := c.Acquire(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := subagent.NewCapacity(1, map[bool]int{true: 1}[name == "the slot itself"])
				newRig(t, subagent.Config{Capacity: c, Timeout: time.Minute}, newTape()).run(func(t *testing.T, r *rig) {
					id := r.spawn("x", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
						return subagent.Result{}, ask(ctx, r, c)
					})).ID
					end := r.awaited(id)
					if name == "the slot itself" {
						require.Equal(t, subagent.ReasonTimeout, end.Reason)
						require.False(t, end.Detached)
						require.Equal(t, time.Minute, end.CompletedAt.Sub(end.StartedAt))
					} else {
						require.Equal(t, subagent.StatusCompleted, end.Status)
						require.Zero(t, end.CompletedAt.Sub(end.StartedAt))
					}
					require.Equal(t, subagent.CapacityStats{Limit: 1}, c.Stats())
					r.gate.WaitEntered(t, r.spawn("next", noWait).ID)
				})
			})
		})
	}
}

// Two, three and seven tasks wait in a ring, on fewer slots or more.
func TestB066_TasksThatWaitForEachOther(t *testing.T) {
	for _, members := range []int{2, 3, 7} {
		for _, slots := range []int{1, 2, 8} {
			inRig(t, subagent.Config{Workers: slots}, func(t *testing.T, r *rig) {
				ids := make([]uuid.UUID, members)
				for i := range ids {
					ids[i] = uuid.Must(uuid.NewV7())
				}
				all := make(chan struct{}) // closed when all exist
				var refused, waited atomic.Int64
				began := time.Now()
				for i, id := range ids {
					r.spawn(fmt.Sprint("T", i), withID(id), withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
						<-all
						ctx, cancel := context.WithTimeout(ctx, time.Minute)
						defer cancel()
						ends, err := r.Await(ctx, subagent.AwaitAll, ids[(i+1)%members])
						if err == nil {
							waited.Add(1)
							return subagent.Result{Text: ends[0].ResultText}, nil
						}
						require.ErrorIs(t, err, subagent.ErrWaitCycle)
						refused.Add(1)
						return subagent.Result{Text: "went on alone"}, nil
					}))
				}
				close(all)
				for _, id := range ids {
					require.Equal(t, "went on alone", r.awaited(id).ResultText)
				}
				require.Zero(t, time.Since(began), "nobody waits for a time-out")
				require.EqualValues(t, 1, refused.Load(), "he who closes the ring is refused")
				require.EqualValues(t, members-1, waited.Load())
				require.Equal(t, subagent.CapacityStats{Limit: slots}, r.Stats().Capacity)
			})
		}
	}
}

// A descendant waits for what waits for it, or may still come to do so: refused
// at once, and it goes on.
func TestB067_AWaitForAnAncestor(t *testing.T) {
	for _, levels := range []int{1, 2, 5} {
		for _, waits := range []bool{true, false} {
			for _, independent := range []bool{false, true} {
				inRig(t, subagent.Config{Workers: levels + 1}, func(t *testing.T, r *rig) {
					top, told := uuid.Must(uuid.NewV7()), make(chan struct{})
					var work subagent.Func
					work = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
						if len(run.Task().Description) > levels {
							defer close(told)
							r.noWayUp(ctx, run, top)
							return subagent.Result{Text: "went on"}, nil
						}
						q := rigAsk(run.Task().Description+"x", withFunc(work))
						q.Independent = independent
						if waits {
							below, err := r.Run(ctx, q)
							return subagent.Result{Text: below.ResultText}, err
						}
						_, err := r.Spawn(ctx, q)
						<-told
						return subagent.Result{Text: "went on"}, err
					}
					r.spawn("x", withID(top), withFunc(work))
					require.Equal(t, "went on", r.awaited(top).ResultText)
				})
			}
		}
	}
}

// noWayUp requires that a Func can wait neither for an ancestor nor for itself.
func (r *rig) noWayUp(ctx context.Context, run *subagent.Run, top uuid.UUID) {
	began := time.Now()
	for _, id := range []uuid.UUID{top, run.Task().ParentTaskID, run.Task().ID} {
		_, err := r.Wait(ctx, id)
		require.ErrorIs(r.t, err, subagent.ErrWaitCycle)
		_, err = r.Wait(context.WithoutCancel(ctx), id)
		require.ErrorIs(r.t, err, subagent.ErrWaitCycle)
		for _, mode := range []subagent.AwaitMode{subagent.AwaitAll, subagent.AwaitAny} {
			_, err = r.Await(ctx, mode, id)
			require.ErrorIs(r.t, err, subagent.ErrWaitCycle)
		}
	}
	require.Zero(r.t, time.Since(began))
	require.NoError(r.t, ctx.Err())
}

// Agents that do nothing but spawn agents: one, or two, each; waiting or not.
// The tree ends at the configured layer and nothing is left of it.
func TestB069_ATreeThatWouldNeverEnd(t *testing.T) {
	for _, kids := range []int{1, 2} {
		for _, waits := range []string{"no", "yes", "no, and independent"} {
			for _, limit := range []int{0, 1, 3} {
				inRig(t, subagent.Config{Workers: 2, MaxDepth: limit}, func(t *testing.T, r *rig) {
					deepest := limit
					if limit == 0 {
						deepest = 8
					}
					var tasks, refused atomic.Int64
					var work subagent.Func
					work = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
						tasks.Add(1)
						for range kids {
							q, start := rigAsk(run.Task().Description+"x", withFunc(work)), r.Spawn
							if waits == "yes" {
								start = r.Run
							}
							q.Independent = waits == "no, and independent"
							task, err := start(ctx, q)
							if err != nil {
								require.ErrorIs(t, err, subagent.ErrDepth)
								require.Zero(t, task)
								require.Len(t, run.Task().Description, deepest)
								refused.Add(1)
							}
						}
						return subagent.Result{}, nil
					}
					r.spawn("x", withFunc(work))
					synctest.Wait()
					r.noneLive()
					want, last := int64(0), int64(1) // a full tree, and its lowest layer
					for range deepest {
						want, last = want+last, last*int64(kids)
					}
					require.Equal(t, want, tasks.Load())
					require.Equal(t, last, refused.Load())
					r.gate.WaitEntered(t, r.spawn("the chat goes on").ID)
				})
			}
		}
	}
}
