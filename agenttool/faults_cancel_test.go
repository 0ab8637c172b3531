package agenttool_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/subagenttest"
)

// One write fails while a stop is asked for, in each way in which writes fail.
// As long as the Func is alive and the grace is not over, no tool says that the
// task has ended, nor that nothing happened.
func TestB024_AStopWhoseWriteFailsIsNoSuccess(t *testing.T) {
	for name, fault := range map[string]func() subagenttest.Fault{
		"fails":             func() subagenttest.Fault { return subagenttest.Fault{Err: errors.New("busy")} },
		"commits and fails": func() subagenttest.Fault { return subagenttest.Fault{Err: errors.New("busy"), Committed: true} },
		"blocks":            func() subagenttest.Fault { return subagenttest.Fault{Delay: time.Hour} },
		"panics":            func() subagenttest.Fault { panic("busy") },
	} {
		t.Run(name, func(t *testing.T) {
			inHost(t, func(t *testing.T, h *host) {
				id := h.spawn(t.Context(), func(q *subagent.Request) { q.Func = h.gate.DeafFunc() })
				h.gate.WaitEntered(t, id)
				h.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
					if c.N == 1 {
						return fault()
					}
					return subagenttest.Fault{}
				})
				a := h.call("task_stop", args{"task_id": id})
				require.Contains(t, a.Text, "The task was asked to stop and will end soon: task_id="+id.String()+" status=running reason=agent")
				require.Equal(t, subagent.StatusRunning, data[stopData](t, a).Status)
				for range 15 { // seconds of the grace
					read := h.call("task_output", args{"task_id": id, "block": false})
					require.Equal(t, subagent.StatusRunning, data[taskData](t, read).Status)
					require.Contains(t, read.Text, "asked to stop")
					require.Contains(t, h.call("list_tasks", args{"status": "running"}).Text, id.String())
					time.Sleep(time.Second)
				}
				row, err := h.store.Get(t.Context(), id)
				require.NoError(t, err)
				require.NotZero(t, row.CancelRequestedAt, "the request was stored after all")
				h.finish(id, "too late")
				require.Equal(t, subagent.StatusCancelled, h.get(id).Status)
				row, err = h.store.Get(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, subagent.StatusCancelled, row.Status)
				require.False(t, row.Detached)
			})
		})
	}
}

func TestB030_B032_StopsByManyWhileAParentWaits(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("work")
		waiter := make(chan agenttool.Answer, 1)
		go func() { // ends with the task
			waiter <- h.in(session, "wait", "await_tasks", args{"task_ids": []uuid.UUID{id}, "timeout": 600_000})
		}()
		synctest.Wait()
		before := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				a := h.in(session, "stop", "task_stop", args{"task_id": id})
				require.False(t, a.IsError, a.Text)
				require.True(t, data[stopData](t, a).OK)
			})
		}
		all.Wait()
		a := <-waiter
		require.Zero(t, time.Since(before))
		require.Contains(t, a.Text, "1 of 1 tasks have ended.")
		require.Equal(t, subagent.StatusCancelled, data[tasksData](t, a).Tasks[0].Status)
		require.NotContains(t, h.call("list_tasks", args{"status": "running"}).Text, id.String())
		end := h.get(id)
		a = h.call("task_stop", args{"task_id": id})
		require.False(t, a.IsError)
		require.True(t, strings.HasPrefix(a.Text, "The task had ended before; nothing was stopped:"), a.Text)
		require.Equal(t, end, h.get(id))
	})
}

func TestB035_TaskStopNeverWaits(t *testing.T) {
	inHostOf(t, subagent.Config{CancelGrace: 30 * time.Second}, agenttool.Options{}, func(t *testing.T, h *host) {
		id := h.spawn(t.Context(), func(q *subagent.Request) { q.Func = h.gate.DeafFunc() })
		h.gate.WaitEntered(t, id)
		asked := time.Now()
		for range 40 {
			before := time.Now()
			a := h.call("task_stop", args{"task_id": id, "reason": "again"})
			require.False(t, a.IsError, a.Text)
			require.Zero(t, time.Since(before))
			want := subagent.StatusRunning
			if time.Since(asked) >= 30*time.Second {
				want = subagent.StatusCancelled
			}
			require.Equal(t, want, data[stopData](t, a).Status, "%v", time.Since(asked))
			time.Sleep(900 * time.Millisecond)
		}
		end := h.get(id)
		require.Equal(t, 30*time.Second, end.CompletedAt.Sub(end.CancelRequestedAt))
	})
}

// A model that reads how a task ended reads who stopped it.
func TestB037_ToolsSayWhoStoppedATask(t *testing.T) {
	stops := map[subagent.Reason]func(h *host, id uuid.UUID){
		subagent.ReasonAgent: func(h *host, id uuid.UUID) { h.call("task_stop", args{"task_id": id}) },
		subagent.ReasonUser: func(h *host, id uuid.UUID) {
			_, _ = h.Cancel(context.Background(), id, subagent.CancelOptions{})
		},
		subagent.ReasonSession: func(h *host, id uuid.UUID) {
			_, _ = h.CancelSession(context.Background(), session, subagent.CancelOptions{})
		},
		subagent.ReasonShutdown: func(h *host, id uuid.UUID) { _ = h.Shutdown(context.Background()) },
	}
	for reason, stop := range stops {
		inHost(t, func(t *testing.T, h *host) {
			id, _ := h.runs("work")
			stop(h, id)
			synctest.Wait()
			for _, ask := range asks {
				require.Contains(t, h.call(ask.tool, ask.args(id.String())).Text, "reason="+string(reason), ask.tool)
			}
			require.Equal(t, reason, data[tasksData](t, h.call("list_tasks", args{})).Tasks[0].Reason)
		})
	}
}
