package subagent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/subagenttest"
)

func TestCancelError(t *testing.T) {
	targets := map[string]error{
		"cancelled": subagent.ErrCancelled, "timeout": subagent.ErrTimeout, "deadline": context.DeadlineExceeded,
		"shutdown": subagent.ErrShutdown, "lost": subagent.ErrLost, "ctx": context.Canceled, "parent": subagent.ErrParentCancelled,
	}
	for reason, want := range map[subagent.Reason]string{
		subagent.ReasonUser:     "cancelled",
		subagent.ReasonParent:   "cancelled",
		"a host's own":          "cancelled",
		subagent.ReasonTimeout:  "cancelled timeout deadline",
		subagent.ReasonShutdown: "cancelled shutdown",
		subagent.ReasonLost:     "cancelled lost",
	} {
		err := error(&subagent.CancelError{Reason: reason, Message: "why"})
		for name, target := range targets {
			is := strings.Contains(" "+want+" ", " "+name+" ")
			require.Equal(t, is, errors.Is(fmt.Errorf("wrapped: %w", err), target), "%s is %s", reason, name)
		}
		require.ErrorIs(t, err, &subagent.CancelError{Reason: reason, Message: "why"})
		require.NotErrorIs(t, err, &subagent.CancelError{Reason: reason})
		require.Equal(t, fmt.Sprintf("subagent: task cancelled (%s): why", reason), err.Error())
	}
	require.Equal(t, "subagent: task cancelled (user)", (&subagent.CancelError{Reason: subagent.ReasonUser}).Error())
}

func TestCancel_EndsTheCtxWithItsCause(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		task, in := l.inside(l.ctx, "a", nil)
		l.read()
		now, err := l.Cancel(l.ctx, task.ID, subagent.CancelOptions{Reason: subagent.ReasonAgent, Message: "enough\x00" + strings.Repeat("é", 2000)})
		require.NoError(t, err)
		require.Equal(t, task.ID, now.ID)
		var cause *subagent.CancelError
		require.ErrorAs(t, context.Cause(in), &cause)
		require.Equal(t, subagent.ReasonAgent, cause.Reason)
		require.True(t, strings.HasPrefix(cause.Message, "enough\uFFFDé"))
		require.LessOrEqual(t, len(cause.Message), 2000)
		require.ErrorIs(t, in.Err(), context.Canceled)
		end := l.ends(task.ID, subagent.StatusCancelled, subagent.ReasonAgent)
		require.Equal(t, cause.Message, end.CancelMessage)
		require.Empty(t, end.Error)
		require.False(t, end.CancelRequestedAt.IsZero())
		require.ErrorIs(t, end.Err(), subagent.ErrCancelled)
	})
}

// A running task that was asked to stop is running, with the time set, on every
// surface: a panel shows it as stopping.
func TestCancel_AStoppingTaskIsSeenAsSuch(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		task, _ := l.inside(l.ctx, "a", l.gate.DeafFunc())
		l.read()
		time.Sleep(time.Second)
		now := l.cancel(task.ID)
		row, err := l.store.Get(l.ctx, task.ID)
		require.NoError(t, err)
		events := l.read()
		require.Len(t, events, 1)
		require.Equal(t, subagent.EventStatus, events[0].Type)
		for where, seen := range map[string]subagent.Task{"Cancel": now, "Get": l.get(task.ID), "store": row, "event": events[0].Task} {
			require.Equal(t, subagent.StatusRunning, seen.Status, where)
			require.Equal(t, subagent.ReasonUser, seen.Reason, where)
			require.Equal(t, time.Second, seen.CancelRequestedAt.Sub(seen.StartedAt), where)
		}
		l.finish(task.ID)
	})
}

func TestCancel_IsIdempotent(t *testing.T) {
	inLabs(t, subagent.Config{CancelGrace: time.Minute}, func(t *testing.T, l *lab) {
		task, _ := l.inside(l.ctx, "a", l.gate.DeafFunc())
		first, err := l.Cancel(l.ctx, task.ID, subagent.CancelOptions{Message: "first"})
		require.NoError(t, err)
		time.Sleep(59 * time.Second)
		again, err := l.Cancel(l.ctx, task.ID, subagent.CancelOptions{Reason: "late", Message: "second"})
		require.NoError(t, err)
		require.Equal(t, first, again)
		end := l.wait(task.ID)
		require.Equal(t, time.Minute, end.CompletedAt.Sub(end.CancelRequestedAt), "asking again prolongs nothing")
		require.Equal(t, "first", end.CancelMessage)
		end = l.get(task.ID)
		l.leavesNothing(func() {
			again, err = l.Cancel(l.ctx, task.ID, subagent.CancelOptions{Message: "third"})
			require.NoError(t, err)
			require.Equal(t, end, again)
			_, err = l.CancelSession(l.ctx, "s", subagent.CancelOptions{})
			require.NoError(t, err)
		})
	})
}

func TestCancel_OnWhatHasEndedOrIsUnknown(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		task := l.spawn("a")
		l.finish(task.ID)
		synctest.Wait()
		end := l.get(task.ID)
		l.leavesNothing(func() { require.Equal(t, end, l.cancel(task.ID)) })
		_, err := l.Cancel(l.ctx, uuid.New(), subagent.CancelOptions{})
		require.ErrorIs(t, err, subagent.ErrNotFound)
		_, err = l.Cancel(l.ctx, task.ID, subagent.CancelOptions{Reason: subagent.Reason(strings.Repeat("x", 257))})
		require.ErrorIs(t, err, subagent.ErrInvalidRequest)
		_, err = l.CancelSession(l.ctx, "", subagent.CancelOptions{})
		require.ErrorIs(t, err, subagent.ErrInvalidRequest)
		tasks, err := l.CancelSession(l.ctx, "nobody's", subagent.CancelOptions{})
		require.NoError(t, err)
		require.Empty(t, tasks)
	})
}

// What comes after the request changes the text that is kept, not the end.
func TestCancel_WhateverTheFuncReturns(t *testing.T) {
	for name, c := range map[string]struct {
		work subagent.Func
		text string
	}{
		"a result": {func(context.Context, *subagent.Run) (subagent.Result, error) {
			return subagent.Result{Text: "result"}, nil
		}, "result"},
		"an error": {func(context.Context, *subagent.Run) (subagent.Result, error) {
			return subagent.Result{}, errors.New("broken")
		}, "partial"},
		"a result and an error": {func(context.Context, *subagent.Run) (subagent.Result, error) {
			return subagent.Result{Text: "result"}, errors.New("broken")
		}, "result"},
		"a panic": {func(context.Context, *subagent.Run) (subagent.Result, error) { panic("broken") }, "partial"},
	} {
		t.Run(name, func(t *testing.T) {
			inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
				task, _ := l.inside(l.ctx, "a", func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					_, _ = run.Write([]byte("partial"))
					<-ctx.Done()
					return c.work(ctx, run)
				})
				l.cancel(task.ID)
				end := l.ends(task.ID, subagent.StatusCancelled, subagent.ReasonUser)
				require.Equal(t, c.text, end.ResultText)
				require.Empty(t, end.Error)
				require.False(t, end.Detached)
			})
		})
	}
}

func TestG7_ADeafFuncIsDetached(t *testing.T) {
	for _, free := range []bool{false, true} {
		t.Run(fmt.Sprintf("FreeOnDetach %v", free), func(t *testing.T) {
			inLabs(t, subagent.Config{CancelGrace: time.Minute, FreeOnDetach: free}, func(t *testing.T, l *lab) {
				task, _ := l.inside(l.ctx, "deaf", func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
					_, _ = run.Write([]byte("partial"))
					return l.gate.DeafFunc()(ctx, run)
				})
				next := l.spawn("next")
				l.cancel(task.ID)
				time.Sleep(time.Minute - time.Nanosecond)
				require.Equal(t, subagent.StatusRunning, l.get(task.ID).Status)
				end := l.ends(task.ID, subagent.StatusCancelled, subagent.ReasonUser)
				require.Equal(t, "cancel timed out, worker may be stuck", end.Error)
				require.Equal(t, "partial", end.ResultText)
				require.True(t, end.Detached)
				require.Equal(t, time.Minute, end.CompletedAt.Sub(end.CancelRequestedAt))
				synctest.Wait()
				require.Equal(t, 1, l.Stats().Detached)
				nextStatus := map[bool]subagent.Status{false: subagent.StatusQueued, true: subagent.StatusRunning}[free]
				require.Equal(t, nextStatus, l.get(next.ID).Status)
				end = l.get(task.ID)
				l.gate.Release(task.ID, subagent.Result{Text: "too late"}, nil)
				l.gate.WaitEntered(t, next.ID)
				synctest.Wait()
				require.Zero(t, l.Stats().Detached)
				require.Equal(t, 1, l.Stats().Capacity.Running)
				require.Equal(t, end, l.get(task.ID))
				l.finish(next.ID)
			})
		})
	}
}

func TestCancelSession_Reasons(t *testing.T) {
	inLabs(t, subagent.Config{Workers: 5}, func(t *testing.T, l *lab) {
		top, in := l.inside(l.ctx, "top", nil)
		same, in2 := l.inside(in, "same session", nil)
		elsewhere, in3 := l.inside(in2, "other session", nil, inSession("other"))
		back, _ := l.inside(in3, "same again", nil, inSession("s"))
		apart, _ := l.inside(in, "apart", nil, inSession("other"), independent)
		queued := l.spawn("queued")
		loose := l.spawnIn(in2, "independent of the same session", independent)
		stranger := l.spawn("stranger", inSession("third"))
		tasks, err := l.CancelSession(l.ctx, "s", subagent.CancelOptions{Message: "closed"})
		require.NoError(t, err)
		var ids []uuid.UUID
		for _, task := range tasks {
			ids = append(ids, task.ID)
		}
		require.Equal(t, []uuid.UUID{top.ID, same.ID, elsewhere.ID, back.ID, queued.ID, loose.ID}, ids)
		for _, id := range ids {
			reason := subagent.ReasonSession
			if id == elsewhere.ID {
				reason = subagent.ReasonParent
			}
			require.Equal(t, "closed", l.ends(id, subagent.StatusCancelled, reason).CancelMessage)
		}
		synctest.Wait()
		require.Equal(t, subagent.StatusRunning, l.get(apart.ID).Status)
		require.Equal(t, subagent.StatusRunning, l.get(stranger.ID).Status)
		_, err = l.CancelSession(l.ctx, "third", subagent.CancelOptions{Reason: "quota"})
		require.NoError(t, err)
		l.ends(stranger.ID, subagent.StatusCancelled, "quota")
	})
}

func TestRun_EndsWithItsCtx(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf %v", deaf), func(t *testing.T) {
			inLabs(t, subagent.Config{CancelGrace: time.Minute}, func(t *testing.T, l *lab) {
				work, took := l.gate.Func(), time.Second
				if deaf {
					work, took = l.gate.DeafFunc(), time.Second+time.Minute
				}
				ctx, cancel := context.WithTimeout(l.ctx, time.Second)
				defer cancel()
				began := time.Now()
				task, err := l.Run(ctx, ask("a", withFunc(work)))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, took, time.Since(began))
				require.Equal(t, subagent.StatusCancelled, task.Status)
				require.Equal(t, subagent.ReasonCaller, task.Reason)
				require.Equal(t, deaf, task.Detached)
				require.False(t, task.Background)
				require.True(t, task.NotifiedAt.IsZero(), "its Run is the first to see the end")
				require.False(t, l.get(task.ID).NotifiedAt.IsZero())
				synctest.Wait()
				_, notices := l.told(task.ID)
				require.Empty(t, notices)
			})
		})
	}
}

// An obedient parent is not held up by its deaf child: inside a Func that is
// being stopped Run returns as soon as it has asked.
func TestRun_InAStoppedFuncDoesNotWait(t *testing.T) {
	inLabs(t, subagent.Config{CancelGrace: time.Hour}, func(t *testing.T, l *lab) {
		var seen subagent.Task
		parent := l.spawn("parent", withFunc(func(ctx context.Context, _ *subagent.Run) (subagent.Result, error) {
			var err error
			seen, err = l.Run(ctx, ask("child", withFunc(l.gate.DeafFunc())))
			return subagent.Result{}, err
		}))
		synctest.Wait()
		began := time.Now()
		l.cancel(parent.ID)
		l.ends(parent.ID, subagent.StatusCancelled, subagent.ReasonUser)
		require.Zero(t, time.Since(began))
		require.Equal(t, subagent.StatusRunning, seen.Status)
		require.Equal(t, subagent.ReasonParent, seen.Reason)
		l.gate.Release(seen.ID, subagent.Result{}, nil)
		end := l.ends(seen.ID, subagent.StatusCancelled, subagent.ReasonParent)
		require.True(t, end.NotifiedAt.IsZero(), "its Run had left: the next waiter is the first")
	})
}

// A slow store keeps no agent spending: the request takes effect in memory first.
func TestCancel_ComesBeforeTheStore(t *testing.T) {
	inLab(t, subagent.Config{StoreTimeout: time.Hour}, func(t *testing.T, l *lab) {
		task, in := l.inside(l.ctx, "a", l.gate.DeafFunc())
		queued := l.spawn("queued")
		l.store.On(subagenttest.OpUpdate, func(subagenttest.Call) subagenttest.Fault {
			return subagenttest.Fault{Delay: time.Minute}
		})
		var wg sync.WaitGroup
		for _, id := range []uuid.UUID{task.ID, queued.ID} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(l.ctx, time.Second)
				defer cancel()
				_, err := l.Cancel(ctx, id, subagent.CancelOptions{})
				require.ErrorIs(t, err, context.DeadlineExceeded, "what it waits for is the store")
			})
		}
		synctest.Wait()
		require.ErrorIs(t, context.Cause(in), subagent.ErrCancelled)
		_, ok := l.QueuePosition(queued.ID)
		require.False(t, ok)
		require.Zero(t, l.Stats().Capacity.Queued)
		wg.Wait()
		l.ends(queued.ID, subagent.StatusCancelled, subagent.ReasonUser)
		l.gate.Release(task.ID, subagent.Result{}, nil)
		l.ends(task.ID, subagent.StatusCancelled, subagent.ReasonUser)
	})
}

func TestCancel_EndedCtxsStopNoBackgroundTask(t *testing.T) {
	inLabs(t, subagent.Config{}, func(t *testing.T, l *lab) {
		ctx, cancel := context.WithCancel(l.ctx)
		task, in := l.inside(ctx, "a", nil)
		queued := l.spawnIn(ctx, "b")
		cancel()
		time.Sleep(time.Hour)
		require.NoError(t, in.Err())
		l.finish(task.ID)
		l.gate.Release(queued.ID, subagent.Result{}, nil)
		l.ends(queued.ID, subagent.StatusCompleted, "")
	})
}

// The first cause decides.
func TestCancel_AndTimeLimitAtOnce(t *testing.T) {
	limit := func(q *subagent.Request) { q.Timeout = time.Minute }
	inLabs(t, subagent.Config{CancelGrace: time.Hour, Workers: 2}, func(t *testing.T, l *lab) {
		first, _ := l.inside(l.ctx, "cancelled first", l.gate.DeafFunc(), limit)
		second, _ := l.inside(l.ctx, "timed out first", l.gate.DeafFunc(), limit)
		l.cancel(first.ID)
		time.Sleep(2 * time.Minute)
		l.cancel(second.ID)
		l.gate.ReleaseAll()
		l.ends(first.ID, subagent.StatusCancelled, subagent.ReasonUser)
		require.Equal(t, "timed out after 1m0s", l.ends(second.ID, subagent.StatusErrored, subagent.ReasonTimeout).Error)
	})
}

func TestTimeLimits_Texts(t *testing.T) {
	cfg := subagent.Config{CancelGrace: time.Minute, Timeout: 15 * time.Minute, QueueTimeout: 5 * time.Minute}
	inLabs(t, cfg, func(t *testing.T, l *lab) {
		obeys, in := l.inside(l.ctx, "obeys", nil)
		deadline, ok := in.Deadline()
		require.True(t, ok)
		require.Equal(t, 15*time.Minute, time.Until(deadline))
		late := l.spawn("late")
		patient := l.spawn("patient", withFunc(l.gate.DeafFunc()), queueTimeout(-1))
		own := l.spawn("own limits", queueTimeout(time.Hour), func(q *subagent.Request) { q.Timeout = -1 })
		end := l.ends(late.ID, subagent.StatusErrored, subagent.ReasonQueueTimeout)
		require.Equal(t, "waited 5m0s for a slot", end.Error)
		require.ErrorIs(t, end.Err(), subagent.ErrTimeout)
		require.Equal(t, 5*time.Minute, end.CompletedAt.Sub(end.QueuedAt))
		require.True(t, end.StartedAt.IsZero())
		place, ok := l.QueuePosition(patient.ID)
		require.True(t, ok)
		require.Equal(t, 1, place)
		end = l.ends(obeys.ID, subagent.StatusErrored, subagent.ReasonTimeout)
		require.Equal(t, "timed out after 15m0s", end.Error)
		require.ErrorIs(t, end.Err(), subagent.ErrTimeout)
		require.False(t, end.Detached)
		end = l.ends(patient.ID, subagent.StatusErrored, subagent.ReasonTimeout)
		require.Equal(t, "timed out after 15m0s; worker may be stuck", end.Error)
		require.True(t, end.Detached)
		require.Equal(t, 16*time.Minute, end.CompletedAt.Sub(end.StartedAt))
		l.gate.Release(patient.ID, subagent.Result{}, nil)
		l.gate.WaitEntered(t, own.ID)
		time.Sleep(10 * time.Hour)
		require.Equal(t, subagent.StatusRunning, l.get(own.ID).Status)
		l.gate.Release(own.ID, subagent.Result{}, nil)
		l.ends(own.ID, subagent.StatusCompleted, "")
	})
}

// From the moment its record can be found a task can be stopped and waited
// for, although its Spawn has not returned.
func TestG1_StoppedWhileSpawnIsUnderWay(t *testing.T) {
	cancelAlone := func(l *lab, id uuid.UUID) subagent.Reason {
		_, err := l.Cancel(l.ctx, id, subagent.CancelOptions{Reason: subagent.ReasonAgent})
		require.NoError(l.t, err)
		return subagent.ReasonAgent
	}
	cancelSession := func(l *lab, id uuid.UUID) subagent.Reason {
		tasks, err := l.CancelSession(l.ctx, "s", subagent.CancelOptions{})
		require.NoError(l.t, err)
		require.Len(l.t, tasks, 1)
		require.Equal(l.t, id, tasks[0].ID)
		return subagent.ReasonSession
	}
	shutdown := func(l *lab, id uuid.UUID) subagent.Reason {
		require.NoError(l.t, l.Shutdown(l.ctx))
		return subagent.ReasonShutdown
	}
	held := subagenttest.Fault{Delay: time.Second}
	after := subagenttest.Fault{Delay: time.Second, Committed: true}
	for _, c := range []struct {
		name  string
		op    subagenttest.Op
		fault subagenttest.Fault
		stop  func(*lab, uuid.UUID) subagent.Reason
	}{
		{"Cancel, created", subagenttest.OpCreate, after, cancelAlone},
		{"Cancel, not queued yet", subagenttest.OpUpdate, held, cancelAlone},
		{"Cancel, queued", subagenttest.OpUpdate, after, cancelAlone},
		{"CancelSession, created", subagenttest.OpCreate, after, cancelSession},
		{"CancelSession, not queued yet", subagenttest.OpUpdate, held, cancelSession},
		{"CancelSession, queued", subagenttest.OpUpdate, after, cancelSession},
		{"Shutdown, not created yet", subagenttest.OpCreate, held, shutdown},
		{"Shutdown, queued", subagenttest.OpUpdate, after, shutdown},
	} {
		for name, change := range map[string]func(*subagent.Request){"": func(*subagent.Request) {}, ", NoWait": noWait} {
			t.Run(c.name+name, func(t *testing.T) {
				inLab(t, subagent.Config{}, func(t *testing.T, l *lab) { stopDuringSpawn(l, c.op, c.fault, change, c.stop) })
			})
		}
	}
}

func stopDuringSpawn(l *lab, op subagenttest.Op, fault subagenttest.Fault, change func(*subagent.Request), stop func(*lab, uuid.UUID) subagent.Reason) {
	t, id := l.t, uuid.Must(uuid.NewV7())
	l.store.On(op, func(c subagenttest.Call) subagenttest.Fault {
		if c.N == 1 {
			return fault
		}
		return subagenttest.Fault{}
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		task, err := l.Spawn(l.ctx, ask("a", withID(id), change))
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, task.Status)
		require.True(t, task.StartedAt.IsZero())
	})
	synctest.Wait()
	if fault.Committed || op == subagenttest.OpUpdate {
		wg.Go(func() { require.Equal(t, subagent.StatusCancelled, l.wait(id).Status) })
		synctest.Wait()
		require.Equal(t, id, l.get(id).ID)
	}
	reason := stop(l, id)
	wg.Wait()
	l.ends(id, subagent.StatusCancelled, reason)
	require.Zero(t, l.gate.Inside())
	require.Equal(t, subagent.CapacityStats{Limit: 1}, l.Stats().Capacity)
	if reason != subagent.ReasonShutdown {
		l.spawn("next", noWait)
	}
}
