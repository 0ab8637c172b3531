package subagent_test

import (
	"context"
	"fmt"
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

// A has its slot and the store will not have it run: the slot goes to B.
func TestB047_ARefusedStartGivesItsSlotBack(t *testing.T) {
	for _, fault := range storeFaults {
		if slowOnly(fault.name) {
			continue
		}
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, A has waited %v", fault.name, waits), func(t *testing.T) {
				inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
					var first uuid.UUID
					if waits {
						first, _ = r.runs("first")
					}
					a := uuid.Must(uuid.NewV7())
					r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
						if c.IDs[0] == a && stepOf(r.inner, c) == stepRunning {
							return fault.do()
						}
						return subagenttest.Fault{}
					})
					r.spawn("A", withID(a))
					b := r.spawn("B").ID
					if waits {
						r.gate.Release(first, subagent.Result{}, nil)
					}
					end := r.awaited(a)
					require.Equal(t, subagent.StatusErrored, end.Status)
					require.Equal(t, subagent.ReasonStore, end.Reason)
					r.gate.WaitEntered(t, b)
					require.Equal(t, subagent.CapacityStats{Limit: 1, Running: 1}, r.Stats().Capacity)
					r.gate.Release(b, subagent.Result{}, nil)
					r.awaited(b)
					require.Equal(t, subagent.CapacityStats{Limit: 1}, r.Stats().Capacity)
					time.Sleep(5 * time.Minute) // a deaf store has answered
					require.Equal(t, essence(end), essence(r.settled(a)))
				})
			})
		}
	}
}

// A is forced to its end and its goroutine lives on. Whoever waits for A is
// let go with that end; its slot goes to B once, now or when it is back; and
// all who count agree at each moment.
func TestB048_B049_AForcedEndWhoseWorkerLivesOn(t *testing.T) {
	for _, why := range []string{"stopped", "timed out"} {
		for _, free := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, FreeOnDetach %v", why, free), func(t *testing.T) {
				inRig(t, subagent.Config{CancelGrace: time.Second, FreeOnDetach: free}, func(t *testing.T, r *rig) {
					a, _ := r.runs("A", r.deaf, func(q *subagent.Request) { q.Timeout = time.Hour })
					b := r.spawn("B").ID
					if why == "stopped" {
						r.stop(a)
					} else {
						time.Sleep(time.Hour)
					}
					before := time.Now()
					ends, err := r.Await(r.ctx, subagent.AwaitAll, a)
					require.NoError(t, err)
					require.Equal(t, time.Second, time.Since(before), "when the grace is over")
					require.True(t, ends[0].Detached)
					for range 2 {
						_, err = r.Wait(endedContext(), a)
						require.NoError(t, err, "and at once from then on")
					}
					synctest.Wait()
					running, queued := 0, 1 // tasks
					if free {
						running, queued = 1, 0
						r.gate.WaitEntered(t, b)
					}
					r.counts(running, queued, 1, subagent.CapacityStats{Limit: 1, Running: 1, Queued: queued})
					r.gate.Release(a, subagent.Result{}, nil)
					r.gate.WaitEntered(t, b)
					synctest.Wait()
					r.counts(1, 0, 0, subagent.CapacityStats{Limit: 1, Running: 1})
					r.gate.Release(b, subagent.Result{}, nil)
					r.awaited(b)
					synctest.Wait()
					r.counts(0, 0, 0, subagent.CapacityStats{Limit: 1})
					r.settled(a)
				})
			})
		}
	}
}

// counts requires that listings, statistics and store count the same.
func (r *rig) counts(running, queued, detached int, slots subagent.CapacityStats) {
	r.t.Helper()
	for status, n := range map[subagent.Status]int{subagent.StatusRunning: running, subagent.StatusQueued: queued} {
		list, err := r.List(r.ctx, subagent.Filter{SessionID: "s", Statuses: []subagent.Status{status}})
		require.NoError(r.t, err)
		require.Len(r.t, list, n, "%s", status)
		rows := 0
		for _, err := range r.inner.List(r.ctx, subagent.Filter{Statuses: []subagent.Status{status}}) {
			require.NoError(r.t, err)
			rows++
		}
		require.Equal(r.t, n, rows, "%s in the store", status)
	}
	s := r.Stats()
	require.Equal(r.t, []int{running, queued, detached}, []int{s.Running, s.Queued, s.Detached})
	require.Equal(r.t, slots, s.Capacity)
}

// Shutdown counts such a worker too, and names its task.
func TestB049_ShutdownNamesTheWorkerThatLivesOn(t *testing.T) {
	for _, free := range []bool{false, true} {
		inRig(t, subagent.Config{CancelGrace: time.Second, FreeOnDetach: free}, func(t *testing.T, r *rig) {
			r.left = true
			a, _ := r.runs("A", r.deaf)
			r.stop(a)
			r.awaited(a)
			var left *subagent.ShutdownError
			require.ErrorAs(t, r.Shutdown(r.ctx), &left)
			require.Equal(t, []uuid.UUID{a}, left.Detached)
			require.Empty(t, left.Unsaved)
			require.Equal(t, 1, r.Stats().Detached)
			r.gate.ReleaseAll()
			synctest.Wait()
			require.Zero(t, r.Stats().Detached)
			require.Zero(t, r.Stats().Capacity.Running)
		})
	}
}

// Two thousand tasks end in every way there is; then there are as many slots as
// before, and as many tasks really run side by side.
func TestB051_NoSlotIsLostOrWon(t *testing.T) {
	rnd := seeded(t)
	const slots = 5
	inRig(t, subagent.Config{Workers: slots, MaxQueued: -1, CancelGrace: time.Second}, func(t *testing.T, r *rig) {
		var most crowd
		var ids []uuid.UUID
		for i := range 2000 {
			id := r.spawn(fmt.Sprint(i), func(q *subagent.Request) {
				q.Timeout = 10 * time.Minute
				q.Func = most.count([]subagent.Func{
					r.gate.Func(), r.gate.DeafFunc(),
					func(context.Context, *subagent.Run) (subagent.Result, error) { panic("x") },
					func(context.Context, *subagent.Run) (subagent.Result, error) {
						runtime.Goexit()
						return subagent.Result{}, nil
					},
				}[rnd.IntN(4)])
				if rnd.IntN(4) == 0 {
					q.QueueTimeout = time.Minute
				}
			}).ID
			ids = append(ids, id)
			switch rnd.IntN(6) {
			case 0:
				r.stop(id)
			case 1:
				r.gate.Release(ids[rnd.IntN(len(ids))], subagent.Result{}, errBroken)
			case 2:
				r.stop(ids[rnd.IntN(len(ids))])
			case 3:
				time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
			}
		}
		time.Sleep(2 * time.Minute)
		r.gate.ReleaseAll()
		synctest.Wait()
		r.noneLive()
		require.Equal(t, subagent.CapacityStats{Limit: slots}, r.Stats().Capacity)
		require.LessOrEqual(t, most.most.Load(), int64(slots))
		r.barrier(slots)
	})
}

// crowd counts how many are inside, and how many there were at most.
type crowd struct{ now, most atomic.Int64 }

func (c *crowd) enter() {
	for n := c.now.Add(1); ; { // ends with the largest number
		if most := c.most.Load(); n <= most || c.most.CompareAndSwap(most, n) {
			return
		}
	}
}

// count has f counted while it runs, however it comes back.
func (c *crowd) count(f subagent.Func) subagent.Func {
	return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		c.enter()
		defer c.now.Add(-1)
		return f(ctx, run)
	}
}

// barrier has exactly n tasks meet inside.
func (r *rig) barrier(n int) {
	r.t.Helper()
	var met sync.WaitGroup
	met.Add(n)
	var ids []uuid.UUID
	for range n {
		ids = append(ids, r.spawn("barrier", withFunc(func(context.Context, *subagent.Run) (subagent.Result, error) {
			met.Done()
			met.Wait()
			return subagent.Result{}, nil
		})).ID)
	}
	ends, err := r.Await(r.ctx, subagent.AwaitAll, ids...)
	require.NoError(r.t, err)
	for _, end := range ends {
		require.NoError(r.t, end.Err())
	}
	require.Equal(r.t, subagent.CapacityStats{Limit: n}, r.Stats().Capacity)
}

// A task that is stopped in line cleans up after itself: it gives back no slot
// that it never held.
func TestB052_AStoppedWaiterGivesNoSlotBack(t *testing.T) {
	for _, way := range waysOutOfTheLine {
		t.Run(way.name, func(t *testing.T) {
			inRig(t, subagent.Config{Workers: 2}, func(t *testing.T, r *rig) {
				r.runs("A")
				r.runs("A'")
				b := r.spawn("B", external("", "B"), queueTimeout(time.Minute)).ID
				way.do(r, b)
				r.settled(b)
				require.Equal(t, subagent.CapacityStats{Limit: 2, Running: 2}, r.Stats().Capacity)
				_, err := r.Spawn(r.ctx, rigAsk("no room", noWait))
				require.ErrorIs(t, err, subagent.ErrNoCapacity)
			})
		})
	}
}

func TestB054_ManySubmittersNeverPassTheCap(t *testing.T) {
	capacity := subagent.NewCapacity(10, -1)
	var inside crowd
	r, err := subagent.New(t.Context(), subagent.Config{Capacity: capacity, Func: inside.count(
		func(context.Context, *subagent.Run) (subagent.Result, error) {
			runtime.Gosched()
			return subagent.Result{}, nil
		})})
	require.NoError(t, err)
	over := make(chan struct{})
	watched := make(chan error, 1)
	go func() { watched <- watchStats(capacity, 10, 200, over) }() // ends with over
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			<-start
			if i%2 == 0 { // a host's own work on the same slots
				release, err := capacity.Acquire(t.Context())
				require.NoError(t, err)
				inside.enter()
				runtime.Gosched()
				inside.now.Add(-1)
				release()
				return
			}
			task, err := r.Run(t.Context(), ask("x"))
			require.NoError(t, err)
			require.NoError(t, task.Err())
		})
	}
	close(start)
	all.Wait()
	close(over)
	require.NoError(t, <-watched)
	require.LessOrEqual(t, inside.most.Load(), int64(10))
	require.Positive(t, inside.most.Load())
	require.NoError(t, r.Shutdown(t.Context()))
	require.Equal(t, subagent.CapacityStats{Limit: 10}, capacity.Stats())
}

func TestB055_PanicsHoldNobodyUp(t *testing.T) {
	for name, die := range map[string]func(){"panic": func() { panic("x") }, "Goexit": runtime.Goexit} {
		inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
			before := time.Now()
			var ids []uuid.UUID
			for i := range 5 {
				ids = append(ids, r.spawn(fmt.Sprint(i), withFunc(func(context.Context, *subagent.Run) (subagent.Result, error) {
					die()
					return subagent.Result{}, nil
				})).ID)
			}
			ends, err := r.Await(r.ctx, subagent.AwaitAll, ids...)
			require.NoError(t, err)
			require.Zero(t, time.Since(before))
			for _, end := range ends {
				require.Equal(t, subagent.StatusErrored, end.Status, name)
				require.Equal(t, subagent.ReasonPanic, end.Reason)
			}
			require.Equal(t, subagent.CapacityStats{Limit: 1}, r.Stats().Capacity)
		})
	}
}

func TestB056_ACapThatIsChanged(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		capacity := subagent.NewCapacity(4, -1)
		newRig(t, subagent.Config{Capacity: capacity}, newTape()).run(func(t *testing.T, r *rig) {
			var ids []uuid.UUID
			for i := range 6 {
				ids = append(ids, r.spawn(fmt.Sprint(i)).ID)
			}
			next, inside := 0, func(n, queued int) {
				t.Helper()
				synctest.Wait()
				require.Equal(t, n, r.gate.Inside())
				require.Equal(t, queued, capacity.Stats().Queued)
			}
			finish := func() {
				r.gate.Release(ids[next], subagent.Result{}, nil)
				next++
			}
			inside(4, 2)
			capacity.Resize(1)
			for left := 3; left > 0; left-- { // nobody starts before it is below the new cap
				finish()
				inside(left, 2)
			}
			_, err := r.Spawn(r.ctx, rigAsk("refused", noWait))
			require.ErrorIs(t, err, subagent.ErrNoCapacity)
			finish()
			inside(1, 1)
			for i := range 4 {
				ids = append(ids, r.spawn(fmt.Sprint("more ", i)).ID)
			}
			inside(1, 5)
			capacity.Resize(3) // with no release
			inside(3, 3)
			for next < len(ids) {
				finish()
			}
			inside(0, 0)
		})
	})
}

// Readers of all numbers, while the line changes as fast as it can.
func TestB058_NumbersAreReadWhileTheLineChanges(t *testing.T) {
	const rounds = 10_000
	store := subagent.NewMemoryStore()
	store.SetRetention(100)
	release := make(chan struct{})
	r, err := subagent.New(t.Context(), subagent.Config{Workers: 1, MaxQueued: -1, Store: store,
		Func: func(context.Context, *subagent.Run) (subagent.Result, error) {
			<-release
			return subagent.Result{}, nil
		}})
	require.NoError(t, err)
	var over atomic.Bool
	var all sync.WaitGroup
	all.Go(func() { // ends with over
		for !over.Load() {
			s := r.Stats()
			require.GreaterOrEqual(t, min(s.Queued, s.Pending, s.Running, s.Capacity.Queued, s.Capacity.Running), 0, "%+v", s)
			list, err := r.List(context.Background(), subagent.Filter{Statuses: liveStatuses, Limit: 20})
			require.NoError(t, err)
			for _, task := range list {
				if place, ok := r.QueuePosition(task.ID); ok {
					require.Positive(t, place)
				}
			}
		}
	})
	_, err = r.Spawn(t.Context(), ask("holds the slot"))
	require.NoError(t, err)
	line := make([]uuid.UUID, 8)
	for i := range rounds {
		if old := line[i%len(line)]; old != uuid.Nil {
			_, err := r.Cancel(t.Context(), old, subagent.CancelOptions{})
			require.NoError(t, err)
		}
		task, err := r.Spawn(t.Context(), ask("x"))
		require.NoError(t, err)
		line[i%len(line)] = task.ID
	}
	over.Store(true)
	all.Wait()
	require.Equal(t, len(line), r.Stats().Capacity.Queued)
	close(release)
	require.NoError(t, r.Shutdown(t.Context()))
}
