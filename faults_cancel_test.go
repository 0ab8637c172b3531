package subagent_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
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

// The loop goes on after its stop: its ctx was done at once, it is settled when
// the grace is over, nothing of what it does then is taken, and that it still
// works is there to be seen.
func TestB022_ALoopThatGoesOnAfterItsStop(t *testing.T) {
	var said bytes.Buffer
	cfg := subagent.Config{CancelGrace: 30 * time.Second, Logger: slog.New(slog.NewTextHandler(&said, nil))}
	inRig(t, cfg, func(t *testing.T, r *rig) {
		var steps atomic.Int64
		ctxs := make(chan context.Context, 1)
		loop := func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			ctxs <- ctx
			for i := range 60 { // one model call a second, and never a look at ctx
				time.Sleep(time.Second)
				run.ReportUsage(fmt.Sprint(i), subagent.Usage{OutputTokens: 1})
				run.ToolUse("search")
				fmt.Fprintf(run, "%d.", i)
				steps.Add(1)
			}
			return subagent.Result{Text: "final"}, nil
		}
		id := r.spawn("loop", withFunc(loop)).ID
		ctx := <-ctxs
		time.Sleep(2500 * time.Millisecond)
		now := r.stop(id)
		require.ErrorIs(t, context.Cause(ctx), subagent.ErrCancelled)
		require.Equal(t, subagent.StatusRunning, now.Status)
		time.Sleep(29900 * time.Millisecond)
		require.Equal(t, subagent.StatusRunning, r.row(id).Status)
		time.Sleep(200 * time.Millisecond)
		end := r.settled(id)
		require.Equal(t, subagent.StatusCancelled, end.Status)
		require.Equal(t, "cancel timed out, worker may be stuck", end.Error)
		require.True(t, end.Detached)
		require.Equal(t, 30*time.Second, end.CompletedAt.Sub(end.CancelRequestedAt))
		require.EqualValues(t, 32, end.Usage.Calls)
		require.Equal(t, 1, r.Stats().Detached, "and that it runs on is counted")
		before := r.shown(id)
		time.Sleep(time.Minute)
		require.EqualValues(t, 60, steps.Load())
		require.Equal(t, before, r.shown(id))
		require.Zero(t, r.Stats().Detached)
		require.Contains(t, said.String(), "detached worker returned, its result is dropped")
	})
}

// However long the store takes, the signal does not wait for it.
func TestB023_AStopReachesTheLoopAtOnce(t *testing.T) {
	for _, delay := range []time.Duration{0, 9 * time.Second, time.Hour} {
		inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
			heard := make(chan time.Time, 1)
			id := r.spawn("x", withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				<-ctx.Done()
				heard <- time.Now()
				return subagent.Result{}, ctx.Err()
			})).ID
			synctest.Wait()
			r.store.On(subagenttest.OpUpdate, func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Delay: delay} })
			asked := time.Now()
			r.stop(id)
			require.Zero(t, (<-heard).Sub(asked))
			r.store.On(subagenttest.OpUpdate, nil)
			end := r.awaited(id)
			require.Equal(t, subagent.StatusCancelled, end.Status)
			require.Zero(t, end.CompletedAt.Sub(end.CancelRequestedAt))
			require.False(t, end.Detached)
		})
	}
}

// A polling loop has the whole grace for its clean-up, to the last moment.
func TestB027_ThereIsTimeToCleanUp(t *testing.T) {
	for cleanUp, inTime := range map[time.Duration]bool{time.Second: true, 29 * time.Second: true, 31 * time.Second: false} {
		inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
			var cleaned atomic.Bool
			id := r.spawn("polls", withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				for ctx.Err() == nil {
					time.Sleep(500 * time.Millisecond)
				}
				time.Sleep(cleanUp)
				run.ReportUsage("clean-up", subagent.Usage{InputTokens: 1})
				cleaned.Store(true)
				return subagent.Result{Text: "what there is", StopReason: "stopped"}, nil
			})).ID
			time.Sleep(750 * time.Millisecond)
			r.stop(id)
			end := r.awaited(id)
			require.Equal(t, subagent.StatusCancelled, end.Status)
			require.Equal(t, inTime, cleaned.Load())
			require.Equal(t, !inTime, end.Detached)
			if inTime {
				require.Empty(t, end.Error)
				require.Equal(t, "what there is", end.ResultText)
				require.EqualValues(t, 1, end.Usage.InputTokens)
				require.Equal(t, 250*time.Millisecond+cleanUp, end.CompletedAt.Sub(end.CancelRequestedAt))
			}
			time.Sleep(time.Minute)
		})
	}
}

// A stopped task, also one whose worker is still about, is loaded again and
// again by later Runners, and hears late from the one that ran it.
func TestB028_B034_AStoppedTaskStaysStopped(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			inner := subagent.NewMemoryStore()
			store := subagenttest.NewFaultyStore(inner)
			var calls atomic.Int64
			newRig := func() *rig { return rigOn(t, subagent.Config{CancelGrace: time.Second}, newTape(), inner, store) }
			newRig().run(func(t *testing.T, r *rig) {
				work := r.gate.Func()
				if deaf {
					work = r.gate.DeafFunc()
				}
				q := rigAsk("work", withID(uuid.Must(uuid.NewV7())), withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					calls.Add(1)
					return work(ctx, run)
				}))
				task, err := r.Spawn(r.ctx, q)
				require.NoError(t, err)
				run := r.gate.WaitEntered(t, task.ID)
				r.stop(task.ID)
				r.awaited(task.ID)
				synctest.Wait()
				end := r.row(task.ID)
				require.Equal(t, subagent.StatusCancelled, end.Status)
				for range 3 {
					newRig().run(func(t *testing.T, later *rig) {
						later.noneLive()
						again, err := later.Spawn(later.ctx, q) // a client that asks once more
						require.NoError(t, err)
						require.Equal(t, end, again)
						time.Sleep(time.Minute)
						require.Equal(t, end, later.row(task.ID))
						for _, to := range liveStatuses {
							_, err = later.inner.Update(later.ctx, task.ID, func(t *subagent.Task) error { t.Status = to; return nil })
							require.ErrorIs(t, err, subagent.ErrInvalidTransition)
						}
					})
				}
				run.Progress("late") // what the old worker still says
				r.gate.ReleaseAll()
				synctest.Wait()
				require.Equal(t, end, r.row(task.ID))
				r.noneLive()
			})
			require.EqualValues(t, 1, calls.Load())
		})
	}
}

// A stop at each moment between the first record and the Func: the Func is
// never entered, or finds its ctx done at its first instruction, and the one
// slot goes to T2.
func TestB029_AStopBetweenTheRecordAndTheStart(t *testing.T) {
	id := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	stops := map[string]func(r *rig){
		"the task":    func(r *rig) { _, _ = r.Cancel(r.ctx, id, subagent.CancelOptions{}) },
		"its session": func(r *rig) { _, _ = r.CancelSession(r.ctx, "s", subagent.CancelOptions{}) },
	}
	for name, stop := range stops {
		for _, at := range []string{"create", "card pending", "update queued", "card queued", "update running", "card running"} {
			t.Run(name+" at "+at, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					var r *rig
					var hits atomic.Int64
					moment := func(what string, of uuid.UUID) {
						if of == id && what == at {
							hits.Add(1)
							stop(r)
						}
					}
					p := newTape()
					p.onCard = func(_ context.Context, c subagent.Card) error { moment("card "+c.Attach.Status, c.TaskID); return nil }
					r = newRig(t, subagent.Config{}, p)
					r.run(func(t *testing.T, r *rig) {
						r.store.On(subagenttest.OpCreate, func(c subagenttest.Call) subagenttest.Fault {
							if at == "create" { // it is stored, and Create has not answered
								time.AfterFunc(time.Second, func() { moment("create", c.IDs[0]) }) // ends with the stop
								return subagenttest.Fault{Committed: true, Delay: 2 * time.Second}
							}
							return subagenttest.Fault{}
						})
						r.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
							if c.Tasks[0].CancelRequestedAt.IsZero() {
								moment("update "+string(c.Tasks[0].Status), c.IDs[0])
							}
							return subagenttest.Fault{}
						})
						r.spawn("T", withID(id))
						r.store.On(subagenttest.OpCreate, nil)
						end := r.awaited(id)
						require.EqualValues(t, 1, hits.Load())
						require.Equal(t, subagent.StatusCancelled, end.Status)
						require.Zero(t, r.gate.Inside())
						_, err := r.gate.Entered(endedContext())
						require.Error(t, err, "it was never entered")
						next := r.spawn("T2", noWait)
						r.gate.WaitEntered(t, next.ID)
						require.Equal(t, subagent.CapacityStats{Limit: 1, Running: 1}, r.Stats().Capacity)
						r.settled(id)
					})
				})
			})
		}
	}
}

// Twenty at once, and one after: one transition, one broadcast, one notice.
func TestB032_TwentyStopsAreOne(t *testing.T) {
	for _, state := range []string{"queued", "running", "deaf"} {
		t.Run(state, func(t *testing.T) {
			inRig(t, subagent.Config{Workers: 1, CancelGrace: time.Second}, func(t *testing.T, r *rig) {
				var id uuid.UUID
				switch state {
				case "queued":
					r.runs("holds the slot")
					id = r.spawn("x").ID
				case "running":
					id, _ = r.runs("x")
				case "deaf":
					id, _ = r.runs("x", r.deaf)
				}
				synctest.Wait()
				_, before, _ := r.heard(id)
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() { r.stop(id) })
				}
				all.Wait()
				time.Sleep(time.Minute)
				end := r.settled(id)
				require.Equal(t, subagent.StatusCancelled, end.Status)
				again := r.stop(id)
				require.Equal(t, end, again)
				synctest.Wait()
				_, events, notices := r.heard(id)
				asked, ended := 0, 0
				for _, e := range events[len(before):] {
					if e.Task.Status.Terminal() {
						ended++
					} else {
						asked++
					}
				}
				require.Equal(t, 1, ended)
				require.LessOrEqual(t, asked, 1, "that it is stopping is told once")
				require.Len(t, notices, 1)
				require.Equal(t, end, r.row(id))
			})
		})
	}
}

// A stop of what has been stopped, or is just stopping, answers at once and
// does not begin the grace anew: however it is asked for.
func TestB035_StoppingAgainReturnsAtOnce(t *testing.T) {
	inRig(t, subagent.Config{CancelGrace: 10 * time.Second}, func(t *testing.T, r *rig) {
		id, _ := r.runs("deaf", r.deaf)
		first := r.stop(id)
		again := func(want subagent.Task) {
			before := time.Now()
			require.Equal(t, want, r.stop(id))
			list, err := r.CancelSession(r.ctx, "s", subagent.CancelOptions{})
			require.NoError(t, err)
			if want.Status.Terminal() {
				require.Empty(t, list)
			} else {
				require.Len(t, list, 1)
			}
			_, err = r.Wait(endedContext(), id)
			require.Equal(t, want.Status.Terminal(), err == nil)
			require.Zero(t, time.Since(before))
		}
		for range 9 {
			time.Sleep(time.Second)
			again(first)
		}
		end := r.awaited(id)
		require.Equal(t, 10*time.Second, end.CompletedAt.Sub(first.CancelRequestedAt))
		synctest.Wait()
		again(r.row(id))
		time.Sleep(time.Hour)
		again(r.row(id))
	})
}

// stopsOfEveryOrigin are stops by everybody who may ask for one. Each returns
// the task that was stopped.
var stopsOfEveryOrigin = []struct {
	name   string
	status subagent.Status
	reason subagent.Reason
	do     func(r *rig) uuid.UUID
}{
	{"a person", subagent.StatusCancelled, subagent.ReasonUser, func(r *rig) uuid.UUID {
		id, _ := r.runs("x")
		_, err := r.Cancel(r.ctx, id, subagent.CancelOptions{})
		require.NoError(r.t, err)
		return id
	}},
	{"a model", subagent.StatusCancelled, subagent.ReasonAgent, func(r *rig) uuid.UUID {
		id, _ := r.runs("x")
		r.stop(id)
		return id
	}},
	{"the chat was closed", subagent.StatusCancelled, subagent.ReasonSession, func(r *rig) uuid.UUID {
		id, _ := r.runs("x")
		_, err := r.CancelSession(r.ctx, "s", subagent.CancelOptions{})
		require.NoError(r.t, err)
		return id
	}},
	{"its parent was stopped", subagent.StatusCancelled, subagent.ReasonParent, func(r *rig) uuid.UUID {
		child := make(chan uuid.UUID, 1)
		parent := r.spawn("parent", withFunc(func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			task, err := r.Spawn(ctx, rigAsk("child"))
			child <- task.ID
			<-ctx.Done()
			return subagent.Result{}, err
		}))
		id := <-child
		r.stop(parent.ID)
		return id
	}},
	{"its caller went away", subagent.StatusCancelled, subagent.ReasonCaller, func(r *rig) uuid.UUID {
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		task, err := r.Run(ctx, rigAsk("x"))
		require.ErrorIs(r.t, err, context.DeadlineExceeded)
		return task.ID
	}},
	{"a shutdown before it began", subagent.StatusCancelled, subagent.ReasonShutdown, func(r *rig) uuid.UUID {
		r.runs("holds the slot")
		id := r.spawn("x").ID
		require.NoError(r.t, r.Shutdown(r.ctx))
		return id
	}},
	{"a shutdown while it ran", subagent.StatusErrored, subagent.ReasonShutdown, func(r *rig) uuid.UUID {
		id, _ := r.runs("x")
		require.NoError(r.t, r.Shutdown(r.ctx))
		return id
	}},
}

func TestB037_EveryStopSaysWhoAskedForIt(t *testing.T) {
	for _, row := range stopsOfEveryOrigin {
		t.Run(row.name, func(t *testing.T) {
			inRig(t, subagent.Config{}, func(t *testing.T, r *rig) {
				id := row.do(r)
				record := r.settled(id)
				require.Equal(t, row.status, record.Status)
				require.Equal(t, row.reason, record.Reason)
				cards, events, notices := r.heard(id)
				require.Equal(t, string(row.reason), cards[len(cards)-1].Attach.Reason)
				require.Equal(t, row.reason, events[len(events)-1].Task.Reason)
				if record.Background {
					require.Len(t, notices, 1)
					require.Equal(t, row.reason, notices[0].Reason)
				}
				later := rigOn(t, subagent.Config{}, newTape(), r.inner, r.store) // and for those who come later
				got, err := later.Get(r.ctx, id)
				require.NoError(t, err)
				require.Equal(t, row.reason, got.Reason)
				require.NoError(t, later.Shutdown(r.ctx))
			})
		})
	}
}
