package subagent_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
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

func queueTimeout(d time.Duration) func(*subagent.Request) {
	return func(q *subagent.Request) { q.QueueTimeout = d }
}

// order notes who was entered when.
type order struct {
	mu    sync.Mutex
	names []string
}

func (o *order) work(_ context.Context, run *subagent.Run) (subagent.Result, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names = append(o.names, run.Task().Description)
	return subagent.Result{}, nil
}

func TestG4_TheLineIsServedInOrder(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		o := &order{}
		first := l.spawn("first")
		var ids []uuid.UUID
		for i := range 30 {
			ids = append(ids, l.spawn(fmt.Sprint(i), withFunc(o.work)).ID)
			place, ok := l.QueuePosition(ids[i])
			require.True(t, ok)
			require.Equal(t, i+1, place)
		}
		var want []string
		for i, id := range ids {
			if i%3 == 1 { // a task that leaves the line changes nobody's order
				l.cancel(id)
				_, ok := l.QueuePosition(id)
				require.False(t, ok)
			} else {
				want = append(want, fmt.Sprint(i))
			}
		}
		place, ok := l.QueuePosition(ids[29])
		require.True(t, ok)
		require.Equal(t, 20, place)
		_, ok = l.QueuePosition(first.ID)
		require.False(t, ok, "it runs")
		_, ok = l.QueuePosition(uuid.New())
		require.False(t, ok)
		l.finish(first.ID)
		l.wait(ids[29])
		require.Equal(t, want, o.names)
	})
}

// Nobody sees the slot free while it goes from one task to the next: neither
// Stats nor a newcomer that does not wait.
func TestG4_ASlotIsNeverFreeInBetween(t *testing.T) {
	const tasks = 2000
	capacity := subagent.NewCapacity(1, -1)
	r, err := subagent.New(t.Context(), subagent.Config{Capacity: capacity})
	require.NoError(t, err)
	start := make(chan struct{})
	var left atomic.Int64
	left.Store(tasks)
	work := func(context.Context, *subagent.Run) (subagent.Result, error) {
		<-start
		left.Add(-1)
		return subagent.Result{}, nil
	}
	var last subagent.Task
	for range tasks {
		last, err = r.Spawn(t.Context(), ask("x", withFunc(work)))
		require.NoError(t, err)
	}
	close(start)
	for left.Load() > 0 { // ends with the last of the tasks
		before := left.Load()
		running := capacity.Stats().Running
		release, ok := capacity.TryAcquire()
		if ok {
			release()
		}
		if before > 0 && left.Load() > 0 {
			require.Equal(t, 1, running)
			require.False(t, ok, "a newcomer has overtaken the line")
		}
	}
	_, err = r.Wait(t.Context(), last.ID)
	require.NoError(t, err)
	require.NoError(t, r.Shutdown(t.Context()))
	require.Zero(t, capacity.Stats().Running)
}

func TestG4_WhoeverWaitedFindsTheSlotFree(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		for range 100 {
			task := l.spawn("a", noWait)
			l.finish(task.ID)
		}
	})
}

func TestG5_NoMoreFuncsThanSlotsAfterResize(t *testing.T) {
	for name, short := range map[string]bool{"any store": false, "memory": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				capacity := subagent.NewCapacity(3, -1)
				newLab(t, subagent.Config{Capacity: capacity}, short).run(func(t *testing.T, l *lab) { resize(l, capacity) })
			})
		})
	}
}

func resize(l *lab, capacity *subagent.Capacity) {
	t, ids := l.t, []uuid.UUID{}
	for i := range 10 {
		ids = append(ids, l.spawn(fmt.Sprint(i)).ID)
	}
	inside := func(n int) {
		t.Helper()
		synctest.Wait()
		require.Equal(t, n, l.gate.Inside())
	}
	inside(3)
	capacity.Resize(1)
	inside(3)
	l.finish(ids[0])
	inside(2)
	l.finish(ids[1])
	inside(1)
	_, err := l.Spawn(l.ctx, ask("new", noWait))
	require.ErrorIs(t, err, subagent.ErrNoCapacity)
	l.finish(ids[2])
	inside(1)
	require.Equal(t, subagent.StatusRunning, l.get(ids[3]).Status)
	capacity.Resize(5)
	inside(5)
	require.Equal(t, subagent.CapacityStats{Limit: 5, Running: 5, Queued: 2}, capacity.Stats())
	for _, id := range ids[3:] {
		l.finish(id)
	}
}

// Whenever a task starts, the store shows no more tasks running than there are
// slots: an end is stored before its slot goes on.
func TestG5_AnEndIsStoredBeforeItsSlotGoesOn(t *testing.T) {
	const limit = 3
	inLab(t, subagent.Config{Workers: limit}, func(t *testing.T, l *lab) {
		var most atomic.Int64
		look := func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
			var n int64
			for _, err := range l.store.List(ctx, subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}}) {
				if n++; err != nil {
					return subagent.Result{}, err
				}
			}
			for most.Load() < n { // ends with the largest number
				most.CompareAndSwap(most.Load(), n)
			}
			time.Sleep(time.Second)
			return subagent.Result{}, nil
		}
		l.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			return subagenttest.Fault{Delay: time.Duration(c.N%5) * 100 * time.Millisecond}
		})
		var ids []uuid.UUID
		for i := range 30 {
			ids = append(ids, l.spawn(fmt.Sprint(i), withFunc(look)).ID)
		}
		ends, err := l.Await(l.ctx, subagent.AwaitAll, ids...)
		require.NoError(t, err)
		for _, end := range ends {
			require.Equal(t, subagent.StatusCompleted, end.Status, end.Error)
		}
		require.EqualValues(t, limit, most.Load())
	})
}

// A detached worker that comes back while its end is still being stored: its
// slot waits for that.
func TestG5_ALateWorkersSlotWaitsForItsEnd(t *testing.T) {
	for _, free := range []bool{false, true} {
		t.Run(fmt.Sprintf("FreeOnDetach %v", free), func(t *testing.T) {
			inLab(t, subagent.Config{CancelGrace: time.Second, FreeOnDetach: free}, func(t *testing.T, l *lab) {
				task, _ := l.inside(l.ctx, "late", l.gate.DeafFunc())
				next := l.spawn("next")
				l.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
					if c.IDs[0] == task.ID && c.Ends() {
						return subagenttest.Fault{Delay: 5 * time.Second}
					}
					return subagenttest.Fault{}
				})
				l.cancel(task.ID)
				time.Sleep(2 * time.Second)
				l.gate.Release(task.ID, subagent.Result{}, nil)
				synctest.Wait()
				require.Zero(t, l.gate.Inside())
				require.Equal(t, subagent.CapacityStats{Limit: 1, Running: 1, Queued: 1}, l.Stats().Capacity)
				l.wait(task.ID)
				l.gate.WaitEntered(t, next.ID)
				require.True(t, l.get(task.ID).Detached)
				l.finish(next.ID)
			})
		})
	}
}

// B has been granted A's slot and its start is being stored: cancels, a queue
// time-out or both arrive. It never starts, and its slot goes to C, once.
func TestG6_StoppedInTheGrantWindow(t *testing.T) {
	for _, stored := range []bool{false, true} {
		for _, cancels := range []int{0, 1, 5} {
			t.Run(fmt.Sprintf("start stored %v, cancels %d", stored, cancels), func(t *testing.T) {
				inLab(t, subagent.Config{}, func(t *testing.T, l *lab) {
					a := l.spawn("a")
					b := l.spawn("b", queueTimeout(time.Minute))
					c, d := l.spawn("c"), l.spawn("d")
					l.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
						if c.IDs[0] == b.ID && !c.Ends() && c.Tasks[0].CancelRequestedAt.IsZero() {
							return subagenttest.Fault{Delay: 2 * time.Second, Committed: stored}
						}
						return subagenttest.Fault{}
					})
					time.Sleep(time.Minute - time.Second)
					l.gate.Release(a.ID, subagent.Result{}, nil)
					synctest.Wait()
					for range cancels {
						require.False(t, l.cancel(b.ID).Status.Terminal())
					}
					time.Sleep(1500 * time.Millisecond) // its queue time is over meanwhile
					l.gate.WaitEntered(t, a.ID)
					if cancels == 0 {
						l.gate.WaitEntered(t, b.ID)
						l.gate.Release(b.ID, subagent.Result{}, nil)
						l.ends(b.ID, subagent.StatusCompleted, "")
					} else {
						end := l.ends(b.ID, subagent.StatusCancelled, subagent.ReasonUser)
						require.Empty(t, end.Error)
					}
					l.gate.WaitEntered(t, c.ID)
					synctest.Wait()
					require.Equal(t, 1, l.gate.Inside())
					require.Equal(t, subagent.CapacityStats{Limit: 1, Running: 1, Queued: 1}, l.Stats().Capacity)
					l.finish(c.ID)
					l.finish(d.ID)
					require.Equal(t, subagent.CapacityStats{Limit: 1}, l.Stats().Capacity)
				})
			})
		}
	}
}

// locked waits until some goroutine waits for a mutex inside this function.
func locked(t *testing.T, n int, inside ...string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for range 1_000_000 {
		found := 0
		for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if !strings.Contains(stack, "sync.(*Mutex).Lock") {
				continue
			}
			for _, name := range inside {
				if strings.Contains(stack, name) {
					found++
					break
				}
			}
		}
		if found >= n {
			return
		}
		runtime.Gosched()
	}
	t.Fatal("nobody came to the lock in ", inside)
}

// The same race at its narrowest, outside a bubble, because waiting for a lock
// is no durable block: while the Capacity is locked, A's release, B's cancels
// and B's queue time-out line up for it in a chosen order.
func TestG6_HandOffWhileTheCapacityIsLocked(t *testing.T) {
	for _, released := range []bool{true, false} {
		for _, first := range []string{"cancel", "queue time-out"} {
			t.Run(fmt.Sprintf("%s, released %v", first, released), func(t *testing.T) {
				handOffWhileLocked(t, released, first == "cancel")
			})
		}
	}
}

func handOffWhileLocked(t *testing.T, released, cancelFirst bool) {
	capacity := subagent.NewCapacity(1, 10)
	gate := subagenttest.NewGate()
	r, err := subagent.New(t.Context(), subagent.Config{Capacity: capacity, Func: gate.Func()})
	require.NoError(t, err)
	spawn := func(change ...func(*subagent.Request)) subagent.Task {
		task, err := r.Spawn(t.Context(), ask("x", change...))
		require.NoError(t, err)
		return task
	}
	a := spawn()
	gate.WaitEntered(t, a.ID)
	var wg sync.WaitGroup
	cancel := func(id uuid.UUID, blocked int) {
		wg.Go(func() {
			_, err := r.Cancel(context.Background(), id, subagent.CancelOptions{})
			require.NoError(t, err)
		})
		locked(t, blocked, "Runner).Cancel(")
	}
	b := spawn()
	unlock := capacity.Lock()
	if released {
		gate.Release(a.ID, subagent.Result{}, nil)
		locked(t, 1, "execution).freeSlot(")
	}
	if !cancelFirst {
		wg.Go(func() { r.Overdue(b.ID) })
		locked(t, 1, "execution).overdue(")
	}
	cancel(b.ID, 1)
	cancel(b.ID, 2)
	if cancelFirst {
		wg.Go(func() { r.Overdue(b.ID) })
		locked(t, 1, "execution).overdue(")
	}
	unlock()
	wg.Wait()
	gate.Release(a.ID, subagent.Result{}, nil)
	end, err := r.Wait(t.Context(), b.ID)
	require.NoError(t, err)
	if cancelFirst || released {
		require.Equal(t, subagent.StatusCancelled, end.Status, "once it was granted a slot its queue time is over")
		require.Equal(t, subagent.ReasonUser, end.Reason)
	} else {
		require.Equal(t, subagent.StatusErrored, end.Status)
		require.Equal(t, subagent.ReasonQueueTimeout, end.Reason)
	}
	if cancelFirst {
		require.True(t, end.StartedAt.IsZero(), "the cancel came before the grant or with it")
	}
	_, err = r.Wait(t.Context(), a.ID)
	require.NoError(t, err)
	require.Equal(t, subagent.CapacityStats{Limit: 1}, capacity.Stats())
	c := spawn(noWait)
	gate.WaitEntered(t, c.ID)
	gate.ReleaseAll()
	require.NoError(t, r.Shutdown(t.Context()))
	require.Equal(t, subagent.CapacityStats{Limit: 1}, capacity.Stats())
}
