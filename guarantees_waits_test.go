package subagent_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

func TestG15_NestedTasksFinishAtAnyLimit(t *testing.T) {
	for limit := 1; limit <= 3; limit++ {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			inWorld(t, subagent.Config{Workers: limit}, func(w *world) {
				var nest subagent.Func
				nest = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					depth := len(run.Task().Description)
					if depth == 5 {
						return subagent.Result{Text: "x"}, nil
					}
					var ids []uuid.UUID
					for range 2 {
						kid, err := w.Spawn(ctx, subagent.Request{Description: run.Task().Description + "x", Func: nest})
						if err != nil {
							return subagent.Result{}, err
						}
						ids = append(ids, kid.ID)
					}
					text := "x"
					kids, err := w.Await(ctx, subagent.AwaitAll, ids...)
					for _, kid := range kids {
						text += kid.ResultText
					}
					return subagent.Result{Text: text}, err
				}
				task, err := w.Run(w.ctx, subagent.Request{Description: "x", ParentSessionID: "s", Func: nest})
				require.NoError(t, err)
				require.Len(t, task.ResultText, 31)
			})
		})
	}
}

// A lender goes ahead of the line: its child's slot comes to it.
func TestG15_LenderGoesAheadOfTheLine(t *testing.T) {
	inWorld(t, subagent.Config{}, func(w *world) {
		var order []string
		note := func(name string) subagent.Func {
			return func(context.Context, *subagent.Run) (subagent.Result, error) {
				order = append(order, name)
				return subagent.Result{}, nil
			}
		}
		parent := w.spawn("parent", func(q *subagent.Request) {
			q.Func = func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				_, err := w.Run(ctx, subagent.Request{Description: "kid", Func: func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					require.Equal(t, 1, w.Stats().Lent)
					return w.gate.Func()(ctx, run)
				}})
				order = append(order, "parent")
				return subagent.Result{}, err
			}
		})
		synctest.Wait()
		var last subagent.Task
		for i := range 3 {
			last = w.spawn("other", func(q *subagent.Request) { q.Func = note(fmt.Sprint(i)) })
		}
		w.gate.ReleaseAll()
		w.wait(parent.ID)
		w.wait(last.ID)
		require.Equal(t, []string{"parent", "0", "1", "2"}, order)
	})
}

func TestG15_WaitCyclesAreRefused(t *testing.T) {
	inWorld(t, subagent.Config{Workers: 3}, func(w *world) {
		var errs sync.Map
		ids := make([]uuid.UUID, 3)
		for i := range ids {
			ids[i] = uuid.Must(uuid.NewV7())
		}
		for i := range ids { // a ring: each waits for the next
			w.spawn(fmt.Sprint(i), func(q *subagent.Request) {
				q.ID = ids[i]
				q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					time.Sleep(time.Duration(i+1) * time.Second)
					_, self := w.Wait(ctx, run.Task().ID)
					require.ErrorIs(t, self, subagent.ErrWaitCycle)
					_, err := w.Wait(ctx, ids[(i+1)%3])
					errs.Store(i, err)
					return subagent.Result{}, nil
				}
			})
		}
		_, err := w.Await(w.ctx, subagent.AwaitAll, ids...)
		require.NoError(t, err)
		for i := range ids {
			got, _ := errs.Load(i)
			if i == 2 {
				require.ErrorIs(t, got.(error), subagent.ErrWaitCycle, "it would have closed the ring")
			} else {
				require.Nil(t, got)
			}
		}
	})
}

// A Func whose ctx has ended takes its slot back and may still wait.
func TestG15_StoppedLenderTakesItsSlotBack(t *testing.T) {
	inWorld(t, subagent.Config{}, func(w *world) {
		var cleanedUp subagent.Task
		parent := w.spawn("parent", func(q *subagent.Request) {
			q.Func = func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
				kid, err := w.Spawn(ctx, subagent.Request{Description: "kid", Func: func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
					<-ctx.Done()
					time.Sleep(time.Second) // it cleans up
					return subagent.Result{}, context.Cause(ctx)
				}})
				if err != nil {
					return subagent.Result{}, err
				}
				cleanedUp, err = w.Wait(context.WithoutCancel(ctx), kid.ID)
				return subagent.Result{}, err
			}
		})
		synctest.Wait()
		_, err := w.Cancel(w.ctx, parent.ID, subagent.CancelOptions{})
		require.NoError(t, err)
		require.Equal(t, 2, w.Stats().Capacity.Running, "both must clean up")
		require.Equal(t, subagent.StatusCancelled, w.wait(parent.ID).Status)
		require.Equal(t, subagent.ReasonParent, cleanedUp.Reason)
	})
}
