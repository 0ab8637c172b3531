package subagent_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/internal/bubble"
)

// Waits that run out or are cut leave nothing behind: no goroutine, nothing in
// memory, and nothing that the end of the task has to see to.
func TestB161_WaitsThatRunOutLeaveNothing(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		task, _ := l.inside(l.ctx, "endless", nil)
		second := l.spawn("in line")
		waits := func() {
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(l.ctx, time.Millisecond)
					defer cancel()
					if i%2 == 0 {
						defer time.AfterFunc(time.Microsecond*time.Duration(9*i), cancel).Stop()
					}
					var err error
					switch i % 3 {
					case 0:
						_, err = l.Wait(ctx, task.ID)
					case 1:
						_, err = l.Await(ctx, subagent.AwaitAny, task.ID, second.ID)
					case 2:
						_, err = l.Await(ctx, subagent.AwaitAll, second.ID, task.ID)
					}
					if err == nil {
						t.Error("the wait did not run out")
					}
				})
			}
			all.Wait()
			synctest.Wait()
		}
		waits()
		goroutines, heap := runtime.NumGoroutine(), liveHeap()
		for range 20 {
			waits()
		}
		require.Less(t, runtime.NumGoroutine(), goroutines+20) // some that have ended may still be counted
		if !bubble.Race {
			require.Less(t, int64(liveHeap())-int64(heap), int64(100<<10), "bytes that 2000 waits have left")
		}
		began := time.Now()
		l.finish(task.ID)
		l.finish(second.ID)
		require.Zero(t, time.Since(began))
	})
}

// A wait that names one task several times counts it once, also if another
// Runner executes it.
func TestB157_AwaitOfTheSameTaskSeveralTimes(t *testing.T) {
	inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
		other, err := subagent.New(r.ctx, subagent.Config{Store: r.inner})
		require.NoError(t, err)
		defer func() { require.NoError(t, other.Shutdown(context.Background())) }()
		id, _ := r.runs("work")
		next := r.spawn("next").ID
		for name, from := range map[string]*subagent.Runner{"its own": r.Runner, "another": other} {
			for _, mode := range []subagent.AwaitMode{subagent.AwaitAll, subagent.AwaitAny} {
				ctx, cancel := context.WithTimeout(r.ctx, time.Second)
				tasks, err := from.Await(ctx, mode, id, id, next, id)
				cancel()
				require.ErrorIs(t, err, context.DeadlineExceeded, name)
				require.Len(t, tasks, 4, "one snapshot for each id")
			}
		}
		var all sync.WaitGroup
		for _, from := range []*subagent.Runner{r.Runner, other} {
			all.Go(func() {
				tasks, err := from.Await(r.ctx, subagent.AwaitAll, id, next, id)
				if err != nil || len(tasks) != 3 || tasks[0].Status != subagent.StatusCompleted || tasks[1].Status != subagent.StatusCompleted {
					t.Errorf("%v, %v", tasks, err)
				}
			})
		}
		synctest.Wait()
		r.gate.Release(id, subagent.Result{}, nil)
		r.gate.Release(next, subagent.Result{}, nil)
		all.Wait()
	})
}

// A spawn waits for no slot, however full the line is before it, in every way
// that leads to one.
func TestB163_NoSpawnWaitsForASlot(t *testing.T) {
	inLabs(t, subagent.Config{MaxQueued: 3}, func(t *testing.T, l *lab) {
		began := time.Now()
		var ids []uuid.UUID
		for range 4 {
			ids = append(ids, l.spawn("stuck", withFunc(l.gate.DeafFunc())).ID)
			synctest.Wait()
		}
		_, err := l.Spawn(l.ctx, ask("one too many"))
		require.ErrorIs(t, err, subagent.ErrQueueFull)
		_, err = l.Spawn(l.ctx, ask("at once", noWait))
		require.ErrorIs(t, err, subagent.ErrNoCapacity)
		_, err = l.Spawn(endedContext(), ask("for nobody"))
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, time.Since(began))
		for _, id := range ids {
			l.finish(id)
		}
	})
}
