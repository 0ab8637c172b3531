package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

func independent(q *subagent.Request) { q.Independent = true }

func inSession(id string) func(*subagent.Request) {
	return func(q *subagent.Request) { q.ParentSessionID = id }
}

// endOrder is a Func that notes, when its ctx ends, whose it was.
type endOrder struct {
	mu    sync.Mutex
	names []string
}

func (o *endOrder) work(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
	<-ctx.Done()
	o.mu.Lock()
	o.names = append(o.names, run.Task().Description)
	o.mu.Unlock()
	return subagent.Result{}, context.Cause(ctx)
}

// At the moment that a parent's ctx ends, those of its descendants have ended.
func TestCancel_EndsDescendantsFirst(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 10}, func(t *testing.T, l *lab) {
		var below []context.Context
		seen := make(chan int, 10)
		watch := func(depth int) subagent.Func {
			return func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				<-ctx.Done()
				open := 0
				for _, c := range below[depth:] {
					if c.Err() == nil {
						open++
					}
				}
				seen <- open
				return subagent.Result{}, nil
			}
		}
		ctx, ids := l.ctx, []uuid.UUID{}
		for depth := range 4 {
			task, in := l.inside(ctx, fmt.Sprint(depth), watch(depth))
			below, ids, ctx = append(below, in), append(ids, task.ID), in
		}
		l.cancel(ids[0])
		for range 4 {
			require.Zero(t, <-seen)
		}
		l.ends(ids[0], subagent.StatusCancelled, subagent.ReasonUser)
		for _, id := range ids[1:] {
			l.ends(id, subagent.StatusCancelled, subagent.ReasonParent)
		}
	})
}

func TestCancel_IndependentChildrenAreSpared(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 10}, func(t *testing.T, l *lab) {
		parent, in := l.inside(l.ctx, "parent", l.gate.DeafFunc())
		own, own2 := l.inside(in, "independent", nil, independent)
		under, _ := l.inside(own2, "under the independent one", nil)
		child, _ := l.inside(in, "child", nil)
		l.cancel(parent.ID)
		l.ends(child.ID, subagent.StatusCancelled, subagent.ReasonParent)
		synctest.Wait()
		require.Equal(t, subagent.StatusRunning, l.get(own.ID).Status)
		require.Equal(t, subagent.StatusRunning, l.get(under.ID).Status)
		require.NoError(t, own2.Err())
		// It may have children although its own parent is being stopped.
		more, _ := l.inside(own2, "more", nil)
		require.Equal(t, own.ID, more.ParentTaskID)
		// But its parent may have no more, not even Independent ones.
		_, err := l.Spawn(context.WithoutCancel(in), ask("late", independent))
		require.ErrorIs(t, err, subagent.ErrParentCancelled)
		l.cancel(own.ID)
		l.ends(under.ID, subagent.StatusCancelled, subagent.ReasonParent)
		l.ends(more.ID, subagent.StatusCancelled, subagent.ReasonParent)
		l.finish(parent.ID)
	})
}

// Many children end as the parent's, although the parent waits for each in a
// Run whose ctx ends with it.
func TestCancel_ChildrenInRunEndAsParent(t *testing.T) {
	const n = 300
	for name, stop := range map[string]func(l *lab, id uuid.UUID){
		"Cancel":        func(l *lab, id uuid.UUID) { l.cancel(id) },
		"run time over": func(l *lab, _ uuid.UUID) { time.Sleep(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			inLabs(t, subagent.Config{Workers: n / 2}, func(t *testing.T, l *lab) {
				parent, _ := l.inside(l.ctx, "parent", func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					var wg sync.WaitGroup
					for range n {
						wg.Go(func() { _, _ = l.Run(ctx, ask("child", withFunc(l.gate.Func()))) })
					}
					wg.Wait()
					return subagent.Result{}, nil
				}, func(q *subagent.Request) { q.Timeout = time.Minute })
				synctest.Wait()
				stop(l, parent.ID)
				l.wait(parent.ID)
				children, err := l.List(l.ctx, subagent.Filter{ParentTaskID: parent.ID})
				require.NoError(t, err)
				require.Len(t, children, n)
				for _, c := range children {
					l.ends(c.ID, subagent.StatusCancelled, subagent.ReasonParent)
				}
			})
		})
	}
}

// The same when the Runner is shut down: all running ones end as that.
func TestShutdown_ChildrenInRunEndAsShutDown(t *testing.T) {
	const n = 300
	inLabs(t, subagent.Config{Workers: n}, func(t *testing.T, l *lab) {
		parent, _ := l.inside(l.ctx, "parent", func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() { _, _ = l.Run(ctx, ask("child", withFunc(l.gate.Func()))) })
			}
			wg.Wait()
			return subagent.Result{}, nil
		})
		synctest.Wait()
		require.NoError(t, l.Shutdown(l.ctx))
		children, err := l.List(l.ctx, subagent.Filter{ParentTaskID: parent.ID})
		require.NoError(t, err)
		require.Len(t, children, n)
		for _, c := range append(children, l.get(parent.ID)) {
			require.Equal(t, subagent.StatusErrored, c.Status, c.Description)
			require.Equal(t, subagent.ReasonShutdown, c.Reason)
		}
	})
}

func TestCancel_ReachesThroughAnEndedTask(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 10}, func(t *testing.T, l *lab) {
		top, in := l.inside(l.ctx, "top", nil)
		middle, in2 := l.inside(in, "middle", nil)
		low, _ := l.inside(in2, "low", nil)
		l.finish(middle.ID)
		require.NoError(t, l.Forget(l.ctx, middle.ID))
		synctest.Wait()
		late, _ := l.inside(in2, "late", nil) // with the ctx of a Func that has ended
		require.Equal(t, middle.ID, late.ParentTaskID)
		l.finish(low.ID)
		later, _ := l.inside(in2, "later", nil)
		l.cancel(top.ID)
		l.ends(late.ID, subagent.StatusCancelled, subagent.ReasonParent)
		l.ends(later.ID, subagent.StatusCancelled, subagent.ReasonParent)
		_, err := l.Spawn(in2, ask("too late"))
		require.ErrorIs(t, err, subagent.ErrParentCancelled)
	})
}

// An ended parent leaves its children, also when somebody cancels it then, or
// when its time is over in the same instant.
func TestCancel_AnEndedParentLeavesItsChildren(t *testing.T) {
	inLab(t, subagent.Config{Workers: 10}, func(t *testing.T, l *lab) {
		parent, in := l.inside(l.ctx, "parent", nil)
		child, _ := l.inside(in, "child", nil)
		queued, _ := l.inside(in, "child", nil)
		hold := make(chan struct{}) // its end's delivery is held up: it stays in memory
		l.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if len(c.Tasks) > 0 && !c.Tasks[0].NotifiedAt.IsZero() {
				return subagenttest.Fault{Block: hold}
			}
			return subagenttest.Fault{}
		})
		l.gate.Release(parent.ID, subagent.Result{}, nil)
		synctest.Wait()
		require.Equal(t, subagent.StatusCompleted, l.cancel(parent.ID).Status)
		synctest.Wait()
		for _, id := range []uuid.UUID{child.ID, queued.ID} {
			require.Equal(t, subagent.StatusRunning, l.get(id).Status)
			require.True(t, l.get(id).CancelRequestedAt.IsZero())
		}
		close(hold)
		synctest.Wait()
		require.Equal(t, subagent.StatusCompleted, l.cancel(parent.ID).Status)
		l.gate.Release(child.ID, subagent.Result{}, nil)
		l.ends(child.ID, subagent.StatusCompleted, "")
	})
}

func TestCancel_ATimeLimitThatComesTooLateSparesTheChildren(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 2}, func(t *testing.T, l *lab) {
		for range 100 {
			var child subagent.Task
			parent := l.spawn("parent", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				child = l.spawnIn(ctx, "child", withFunc(l.gate.Func()))
				time.Sleep(time.Minute)
				return subagent.Result{}, nil
			}), func(q *subagent.Request) { q.Timeout = time.Minute })
			end := l.wait(parent.ID)
			synctest.Wait()
			if end.Status == subagent.StatusErrored {
				l.ends(child.ID, subagent.StatusCancelled, subagent.ReasonParent)
				continue
			}
			require.True(t, l.get(child.ID).CancelRequestedAt.IsZero(), "its parent has merely ended")
			l.gate.Release(child.ID, subagent.Result{}, nil)
			l.ends(child.ID, subagent.StatusCompleted, "")
		}
	})
}

func TestCancel_ASpawnByACancellingParentIsRefused(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 10}, func(t *testing.T, l *lab) {
		parent, in := l.inside(l.ctx, "parent", l.gate.DeafFunc())
		child, in2 := l.inside(in, "child", l.gate.DeafFunc())
		_, err := l.Cancel(l.ctx, parent.ID, subagent.CancelOptions{Reason: "quota", Message: "too dear"})
		require.NoError(t, err)
		for _, ctx := range []context.Context{in, in2} {
			cause := context.Cause(ctx)
			require.Error(t, cause)
			l.leavesNothing(func() {
				_, err := l.Spawn(context.WithoutCancel(ctx), ask("late"))
				require.ErrorIs(t, err, subagent.ErrParentCancelled)
				require.ErrorIs(t, err, cause)
				require.ErrorIs(t, err, subagent.ErrCancelled)
				var why *subagent.CancelError
				require.True(t, errors.As(err, &why))
				require.Equal(t, "too dear", why.Message)
				_, err = l.Run(context.WithoutCancel(ctx), ask("late", noWait))
				require.ErrorIs(t, err, subagent.ErrParentCancelled)
				_, err = l.Spawn(ctx, ask("late"))
				require.ErrorIs(t, err, subagent.ErrParentCancelled)
				require.ErrorIs(t, err, cause)
				require.ErrorIs(t, err, context.Canceled, "its ctx is done as well")
			})
		}
		l.finish(child.ID)
		l.finish(parent.ID)
		_, err = l.Spawn(context.WithoutCancel(in), ask("late"))
		require.ErrorIs(t, err, subagent.ErrParentCancelled, "it was stopped, it has not merely ended")
	})
}

func TestCancel_TheCtxOfAnEndedFuncMaySpawn(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		parent, in := l.inside(l.ctx, "parent", nil, inSession("other"))
		l.finish(parent.ID)
		require.NoError(t, in.Err())
		synctest.Wait()
		late, below := l.inside(in, "late", nil, inSession(""))
		require.Equal(t, parent.ID, late.ParentTaskID)
		require.Equal(t, "other", late.ParentSessionID, "inherited")
		_, err := l.Spawn(below, ask("deep", noWait))
		require.ErrorIs(t, err, subagent.ErrNoCapacity)
		l.cancel(parent.ID)
		l.gate.Release(late.ID, subagent.Result{}, nil)
		l.ends(late.ID, subagent.StatusCompleted, "")
	})
}

// One grace for the whole tree, not one after another, also when each parent
// waits for its deaf child.
func TestG7_DeafTreeEndsWithOneGrace(t *testing.T) {
	inLabs(t, subagent.Config{CancelGrace: time.Minute}, func(t *testing.T, l *lab) {
		var nest func(depth int) subagent.Func
		nest = func(depth int) subagent.Func {
			if depth == 0 {
				return l.gate.DeafFunc()
			}
			return func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				task, _ := l.Spawn(ctx, ask("nested", withFunc(nest(depth-1))))
				_, err := l.Wait(context.WithoutCancel(ctx), task.ID) // deaf, too
				return subagent.Result{}, err
			}
		}
		top := l.spawn("top", withFunc(nest(3)))
		synctest.Wait()
		began := time.Now()
		l.cancel(top.ID)
		tree, err := l.List(l.ctx, subagent.Filter{SessionID: "s"})
		require.NoError(t, err)
		require.Len(t, tree, 4)
		for _, task := range tree {
			l.wait(task.ID)
		}
		require.Equal(t, time.Minute, time.Since(began))
		require.Equal(t, "cancel timed out, worker may be stuck", l.get(tree[3].ID).Error)
	})
}

func TestCancel_ATimeLimitTakesTheDescendants(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 3}, func(t *testing.T, l *lab) {
		order := &endOrder{}
		parent, in := l.inside(l.ctx, "parent", order.work, func(q *subagent.Request) { q.Timeout = 15 * time.Minute })
		child, in2 := l.inside(in, "child", order.work)
		apart, _ := l.inside(in2, "apart", nil, independent)
		queued := l.spawnIn(in2, "queued")
		end := l.ends(parent.ID, subagent.StatusErrored, subagent.ReasonTimeout)
		require.Equal(t, "timed out after 15m0s", end.Error)
		require.Equal(t, "", end.CancelMessage)
		l.ends(child.ID, subagent.StatusCancelled, subagent.ReasonParent)
		l.ends(queued.ID, subagent.StatusCancelled, subagent.ReasonParent)
		require.ErrorIs(t, context.Cause(in), subagent.ErrTimeout)
		require.NotErrorIs(t, context.Cause(in2), subagent.ErrTimeout)
		require.Equal(t, subagent.StatusRunning, l.get(apart.ID).Status)
		require.ElementsMatch(t, []string{"parent", "child"}, order.names)
	})
}

// The families of several Runners are one.
func TestCancel_ReachesChildrenInAnotherRunner(t *testing.T) {
	inLab(t, subagent.Config{Workers: 2}, func(t *testing.T, l *lab) {
		newLab(t, subagent.Config{}, true).run(func(t *testing.T, other *lab) {
			parent, in := l.inside(l.ctx, "parent", nil)
			child, in2 := other.inside(in, "child", nil)
			low, _ := l.inside(in2, "grandchild", nil)
			require.Equal(t, parent.ID, child.ParentTaskID)
			l.cancel(parent.ID)
			l.ends(low.ID, subagent.StatusCancelled, subagent.ReasonParent)
			other.ends(child.ID, subagent.StatusCancelled, subagent.ReasonParent)
		})
	})
}
