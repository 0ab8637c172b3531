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
	"github.com/go-subagent/subagent/internal/bubble"
)

// nested is a Func that runs itself in a foreground child until depth is 0.
func (l *lab) nested(depth int) subagent.Func {
	return func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		if depth == 0 {
			return subagent.Result{Text: "bottom"}, nil
		}
		child, err := l.Run(ctx, ask(fmt.Sprint(depth-1), withFunc(l.nested(depth-1))))
		return subagent.Result{Text: child.ResultText}, errors.Join(err, child.Err())
	}
}

func TestG15_NestedRunsFinishAtAnyLimit(t *testing.T) {
	for limit := 1; limit <= 2; limit++ {
		for depth := 1; depth <= 4; depth++ {
			t.Run(fmt.Sprintf("limit %d, depth %d", limit, depth), func(t *testing.T) {
				inLabs(t, subagent.Config{Workers: limit}, func(t *testing.T, l *lab) {
					var ids []uuid.UUID
					for range 3 { // several trees compete for the slots
						ids = append(ids, l.spawn("top", withFunc(l.nested(depth))).ID)
					}
					for _, id := range ids {
						require.Equal(t, "bottom", l.ends(id, subagent.StatusCompleted, "").ResultText)
					}
				})
			})
		}
	}
}

// A slot is lent while at least one goroutine of a Func waits. Those that come
// back before the last one go on without it.
func TestG15_SeveralGoroutinesOfOneFuncWait(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		var ids [3]uuid.UUID
		back := make(chan int, 3)
		parent := l.spawn("parent", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
			var wg sync.WaitGroup
			for i := range ids {
				ids[i] = l.spawnIn(ctx, fmt.Sprint(i), withFunc(l.gate.Func())).ID
				wg.Go(func() {
					_, err := l.Wait(ctx, ids[i])
					require.NoError(t, err)
					back <- i
				})
			}
			wg.Wait()
			return subagent.Result{}, nil
		}))
		synctest.Wait()
		for i, id := range ids {
			require.Equal(t, 1, l.Stats().Lent)
			l.gate.WaitEntered(t, id)
			require.Equal(t, 1, l.gate.Inside())
			l.gate.Release(id, subagent.Result{}, nil)
			synctest.Wait()
			require.Equal(t, i, <-back)
		}
		l.ends(parent.ID, subagent.StatusCompleted, "")
	})
}

func TestG15_EndsInTheSameInstant(t *testing.T) {
	for _, mode := range []subagent.AwaitMode{subagent.AwaitAll, subagent.AwaitAny} {
		for limit := 1; limit <= 6; limit++ {
			t.Run(fmt.Sprint(mode, limit), func(t *testing.T) {
				inLabs(t, subagent.Config{Workers: limit}, func(t *testing.T, l *lab) {
					for range 10 {
						awaitAtOnce(l, mode)
					}
				})
			})
		}
	}
}

func awaitAtOnce(l *lab, mode subagent.AwaitMode) {
	t, until := l.t, time.Now().Add(time.Second)
	parent := l.spawn("parent", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		var ids []uuid.UUID
		for range 5 {
			ids = append(ids, l.spawnIn(ctx, "child", withFunc(func(context.Context, *subagent.Run) (subagent.Result, error) {
				time.Sleep(time.Until(until))
				return subagent.Result{}, nil
			})).ID)
		}
		tasks, err := l.Await(ctx, mode, ids...)
		require.NoError(t, err)
		require.Len(t, tasks, 5)
		ended := 0
		for i, task := range tasks {
			require.Equal(t, ids[i], task.ID, "in the order asked")
			if task.Status.Terminal() {
				ended++
			}
		}
		if mode == subagent.AwaitAll {
			require.Equal(t, 5, ended)
		} else {
			require.NotZero(t, ended)
		}
		return subagent.Result{}, nil
	}))
	l.ends(parent.ID, subagent.StatusCompleted, "")
	_, err := l.CancelSession(l.ctx, "s", subagent.CancelOptions{})
	require.NoError(t, err)
	synctest.Wait()
	require.Zero(t, l.Stats().Capacity.Running)
	require.Zero(t, l.Stats().Lent)
}

// A Func whose wait is over goes on before all who stand in line, and of two
// the one that waited first.
func TestG15_LendersGoAheadOfAFullQueue(t *testing.T) {
	inLabs(t, subagent.Config{MaxQueued: 12}, func(t *testing.T, l *lab) {
		o, start, child := &order{}, make(chan struct{}), uuid.Must(uuid.NewV7())
		lender := withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			<-start
			if _, err := l.Wait(ctx, child); err != nil {
				return subagent.Result{}, err
			}
			return o.work(ctx, run)
		})
		l.spawn("lender 1", lender)
		l.spawn("lender 2", lender)
		l.spawn("child", withID(child))
		close(start)
		l.gate.WaitEntered(t, child)
		require.Equal(t, 2, l.Stats().Lent)
		var last uuid.UUID
		want := []string{"lender 1", "lender 2"}
		for i := range 12 {
			last = l.spawn(fmt.Sprint(i), withFunc(o.work)).ID
			want = append(want, fmt.Sprint(i))
		}
		_, err := l.Spawn(l.ctx, ask("one too many"))
		require.ErrorIs(t, err, subagent.ErrQueueFull)
		l.finish(child)
		l.wait(last)
		require.Equal(t, want, o.names)
		require.Zero(t, l.Stats().Lent)
	})
}

func TestG15_AWaitForWhatHasEndedLendsNothing(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		ended := l.spawn("ended")
		l.finish(ended.ID)
		parent, in := l.inside(l.ctx, "parent", nil)
		next := l.spawn("next")
		for range 10 {
			_, err := l.Wait(in, ended.ID)
			require.NoError(t, err)
			_, err = l.Await(in, subagent.AwaitAny, next.ID, ended.ID)
			require.NoError(t, err)
		}
		synctest.Wait()
		require.Equal(t, subagent.StatusQueued, l.get(next.ID).Status)
		l.finish(parent.ID)
		l.finish(next.ID)
	})
}

// A Run whose ctx ends cancels the child that runs in the slot that it lent.
func TestG15_ACancelledRunAtLimitOne(t *testing.T) {
	for name, started := range map[string]bool{"child running": true, "child queued": false} {
		t.Run(name, func(t *testing.T) {
			inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
				stop := make(chan struct{})
				var child subagent.Task
				parent, _ := l.inside(l.ctx, "parent", func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					if !started {
						l.spawnIn(ctx, "in between", withFunc(l.gate.Func()))
					}
					limited, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					var err error
					child, err = l.Run(limited, ask("child", withFunc(l.gate.Func())))
					require.ErrorIs(t, err, context.DeadlineExceeded)
					<-stop
					return subagent.Result{Text: "went on"}, nil
				})
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				require.Equal(t, subagent.StatusCancelled, child.Status, "Run returns the terminal task")
				require.Equal(t, subagent.ReasonCaller, child.Reason)
				require.Equal(t, started, !child.StartedAt.IsZero())
				require.Zero(t, l.Stats().Lent)
				close(stop)
				require.Equal(t, "went on", l.ends(parent.ID, subagent.StatusCompleted, "").ResultText)
			})
		})
	}
}

// A Func whose ctx, or whose wait's ctx, ends takes its slot back at once, over
// the limit. Nothing new starts until Running is below the limit again.
func TestG15_ASlotTakenBackOverTheLimit(t *testing.T) {
	for _, how := range []string{"Func cancelled", "wait's ctx ends"} {
		t.Run(how, func(t *testing.T) {
			inLabs(t, subagent.Config{CancelGrace: time.Hour}, func(t *testing.T, l *lab) {
				takeBackOverTheLimit(l, how == "Func cancelled")
			})
		})
	}
}

func takeBackOverTheLimit(l *lab, cancelled bool) {
	t, child, stop := l.t, uuid.Must(uuid.NewV7()), make(chan struct{})
	var waited subagent.Task
	var werr error
	parent, _ := l.inside(l.ctx, "parent", func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
		waiting := context.WithoutCancel(ctx)
		if !cancelled {
			limited, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			waiting = limited
		}
		l.spawn("child", withID(child)) // not its own: no cascade reaches it
		waited, werr = l.Wait(waiting, child)
		<-stop
		return subagent.Result{}, nil
	})
	l.gate.WaitEntered(t, child)
	next := l.spawn("next")
	capacity := func(running, queued, lent int) {
		t.Helper()
		synctest.Wait()
		require.Equal(t, subagent.CapacityStats{Limit: 1, Running: running, Queued: queued}, l.Stats().Capacity)
		require.Equal(t, lent, l.Stats().Lent)
	}
	capacity(1, 1, 1)
	if cancelled {
		l.cancel(parent.ID)
		capacity(2, 1, 0)
	} else {
		time.Sleep(2 * time.Second)
		capacity(2, 1, 0)
		require.ErrorIs(t, werr, context.DeadlineExceeded)
		require.Equal(t, subagent.StatusRunning, waited.Status, "the task as it is then")
	}
	l.finish(child)
	capacity(1, 1, 0)
	if cancelled {
		require.NoError(t, werr)
		require.Equal(t, subagent.StatusCompleted, waited.Status, "the wait went on")
	}
	close(stop)
	l.wait(parent.ID)
	l.gate.WaitEntered(t, next.ID)
	capacity(1, 0, 0)
	l.finish(next.ID)
}

// waits has the Func of ctx wait, on a goroutine of its own, until it is over.
func (l *lab) waits(ctx context.Context, mode subagent.AwaitMode, ids ...uuid.UUID) {
	go func() { _, _ = l.Await(ctx, mode, ids...) }()
	synctest.Wait()
}

func TestG15_WaitCyclesAreRefusedAtOnce(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 10}, func(t *testing.T, l *lab) {
		a, inA := l.inside(l.ctx, "a", nil)
		b, inB := l.inside(inA, "b", nil)
		c, inC := l.inside(inB, "c", nil, independent)
		d, inD := l.inside(inA, "d", nil)
		x, _ := l.inside(l.ctx, "x", nil)
		refused := func(ctx context.Context, mode subagent.AwaitMode, ids ...uuid.UUID) {
			t.Helper()
			lent := l.Stats().Lent
			ctx, cancel := context.WithTimeout(ctx, time.Hour) // a time limit makes it no better
			defer cancel()
			tasks, err := l.Await(ctx, mode, ids...)
			require.ErrorIs(t, err, subagent.ErrWaitCycle)
			require.Empty(t, tasks)
			require.Equal(t, lent, l.Stats().Lent)
		}
		all, some := subagent.AwaitAll, subagent.AwaitAny
		_, err := l.Wait(inA, a.ID)
		require.ErrorIs(t, err, subagent.ErrWaitCycle, "oneself")
		refused(inA, all, a.ID)
		refused(inA, all, x.ID, a.ID)
		refused(inA, some, a.ID)
		_, err = l.Wait(inB, a.ID)
		require.ErrorIs(t, err, subagent.ErrWaitCycle, "the parent")
		refused(inC, all, a.ID) // an ancestor over an Independent one
		refused(inC, some, a.ID, b.ID, c.ID)
		l.waits(inB, all, d.ID) // siblings
		refused(inD, all, b.ID)
		refused(inD, some, b.ID, a.ID)
		l.waits(inC, some, b.ID, c.ID) // waits for its ancestor b and itself: refused too
		l.waits(inD, some, c.ID, x.ID)
		refused(inC, all, d.ID, b.ID)
		for _, id := range []uuid.UUID{x.ID, d.ID, c.ID, b.ID, a.ID} {
			l.finish(id)
		}
	})
}

func TestG15_ARingOfThree(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 4}, func(t *testing.T, l *lab) {
		a, inA := l.inside(l.ctx, "a", nil)
		b, inB := l.inside(l.ctx, "b", nil)
		c, inC := l.inside(l.ctx, "c", nil)
		x, inX := l.inside(l.ctx, "x", nil)
		l.waits(inA, subagent.AwaitAll, b.ID)
		l.waits(inB, subagent.AwaitAny, c.ID, x.ID)
		l.waits(inC, subagent.AwaitAll, a.ID) // a can still end: over b and x
		require.Equal(t, 3, l.Stats().Lent)
		_, err := l.Wait(inX, c.ID) // which would end that hope
		require.ErrorIs(t, err, subagent.ErrWaitCycle)
		_, err = l.Await(inX, subagent.AwaitAny, a.ID, b.ID, c.ID)
		require.ErrorIs(t, err, subagent.ErrWaitCycle)
		l.finish(x.ID)
		synctest.Wait()
		require.Equal(t, 2, l.Stats().Lent)
		for _, id := range []uuid.UUID{b.ID, a.ID, c.ID} {
			l.finish(id)
		}
	})
}

func TestG15_AnyWithOneHopefulTarget(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 2}, func(t *testing.T, l *lab) {
		parent, in := l.inside(l.ctx, "parent", nil)
		child := l.spawnIn(in, "child")
		var tasks []subagent.Task
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { tasks, err = l.Await(in, subagent.AwaitAny, parent.ID, child.ID, child.ID) })
		synctest.Wait()
		require.Equal(t, 1, l.Stats().Lent)
		l.gate.Release(child.ID, subagent.Result{}, nil)
		wg.Wait()
		require.NoError(t, err)
		require.Len(t, tasks, 3)
		require.Equal(t, subagent.StatusRunning, tasks[0].Status)
		require.Equal(t, subagent.StatusCompleted, tasks[1].Status)
		require.Equal(t, child.ID, tasks[2].ID)
		l.finish(parent.ID)
	})
}

// A wait for any may name an ancestor beside others, and then it ends with the
// ancestor, too: who waits for the one that waits is in no cycle.
func TestG15_AnyNamesAnAncestor(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 4}, func(t *testing.T, l *lab) {
		parent, inParent := l.inside(l.ctx, "parent", nil)
		child, inChild := l.inside(inParent, "child", nil)
		x, inX := l.inside(l.ctx, "x", nil)
		l.waits(inChild, subagent.AwaitAny, parent.ID, x.ID)
		l.waits(inX, subagent.AwaitAll, child.ID)
		require.Equal(t, 2, l.Stats().Lent)
		_, err := l.Wait(inParent, child.ID) // which would end that hope
		require.ErrorIs(t, err, subagent.ErrWaitCycle)
		l.finish(parent.ID)
		synctest.Wait()
		require.Equal(t, 1, l.Stats().Lent)
		l.finish(child.ID)
		synctest.Wait()
		require.Zero(t, l.Stats().Lent)
		l.finish(x.ID)
	})
}

// Waits go from Runner to Runner: a shared slot is lent, and a cycle is found.
func TestG15_TwoRunnersShareOneSlot(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cfg := subagent.Config{Capacity: subagent.NewCapacity(1, -1)}
		newLab(t, cfg, true).run(func(t *testing.T, one *lab) {
			newLab(t, cfg, false).run(func(t *testing.T, two *lab) {
				a, inA := one.inside(one.ctx, "a", nil)
				b := two.spawn("b", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					_, err := one.Wait(ctx, a.ID)
					require.ErrorIs(t, err, subagent.ErrWaitCycle)
					end, err := one.Run(ctx, ask("nested", withFunc(one.nested(2))))
					return subagent.Result{Text: end.ResultText}, err
				}))
				end, err := two.Wait(inA, b.ID)
				require.NoError(t, err)
				require.Equal(t, "bottom", end.ResultText)
				require.Equal(t, subagent.CapacityStats{Limit: 1, Running: 1}, cfg.Capacity.Stats())
				one.finish(a.ID)
			})
		})
	})
}

func TestAwait_WhatItIsAskedFor(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		task := l.spawn("a")
		tasks, err := l.Await(endedContext(), subagent.AwaitAll)
		require.NoError(t, err)
		require.Empty(t, tasks)
		x, y := uuid.New(), uuid.New()
		_, err = l.Await(l.ctx, subagent.AwaitAny, task.ID, x, y)
		require.ErrorIs(t, err, subagent.ErrNotFound)
		require.ErrorContains(t, err, x.String())
		require.ErrorContains(t, err, y.String())
		_, err = l.Await(l.ctx, "some", task.ID)
		require.ErrorIs(t, err, subagent.ErrInvalidRequest)
		tasks, err = l.Await(endedContext(), subagent.AwaitAll, task.ID, task.ID)
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, tasks, 2)
		require.Equal(t, task.ID, tasks[1].ID)
		l.finish(task.ID)
	})
}
