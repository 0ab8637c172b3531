package agenttool_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/subagenttest"
)

func TestTaskStop(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		running := h.spawn(t.Context(), func(q *subagent.Request) { q.Func = h.gate.DeafFunc() })
		h.gate.WaitEntered(t, running)
		queued := h.start("queued")
		a := h.call("task_stop", args{"task_id": queued, "reason": "not needed"})
		require.Equal(t, fmt.Sprintf("The task was stopped: task_id=%s status=cancelled reason=agent", queued), a.Text)
		require.Equal(t, stopData{true, subagent.StatusCancelled, queued, []uuid.UUID{}}, data[stopData](t, a))
		require.Contains(t, string(a.Data), `"stopped":[]`)
		require.Equal(t, "not needed", h.get(queued).CancelMessage)
		require.Equal(t, queued, a.TaskID)
		require.Nil(t, a.Usage, "a stop delivers nothing")

		a = h.call("task_stop", args{"task_id": running})
		require.Equal(t, fmt.Sprintf("The task was asked to stop and will end soon: task_id=%s status=running reason=agent", running), a.Text)
		require.Equal(t, stopData{true, subagent.StatusRunning, running, []uuid.UUID{}}, data[stopData](t, a))
		h.finish(running, "what there was")
		require.Equal(t, subagent.StatusCancelled, h.get(running).Status)
		require.Equal(t, subagent.ReasonAgent, h.get(running).Reason)
		require.Zero(t, h.get(running).NotifiedAt)

		before := h.get(running)
		for range 2 {
			a = h.call("task_stop", args{"task_id": running})
			require.Equal(t, fmt.Sprintf("The task had ended before; nothing was stopped: task_id=%s status=cancelled reason=agent", running), a.Text)
			require.True(t, data[stopData](t, a).OK)
			require.False(t, a.IsError)
		}
		require.Equal(t, before, h.get(running))
	})
}

// A stop takes everything below with it, except what is Independent, and names
// it, descendants first. What had ended or was stopping before is not named.
func TestTaskStopNamesWhatItStopped(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 20, CancelGrace: time.Minute}, agenttool.Options{}, func(t *testing.T, h *host) {
		top, ctx := h.runsInside(t.Context())
		child, childCtx := h.runsInside(ctx)
		grand, _ := h.runsInside(childCtx)
		ended, endedCtx := h.runsInside(ctx)
		below, _ := h.runsInside(endedCtx)
		h.finish(ended, "")
		deaf := h.spawn(ctx, func(q *subagent.Request) { q.Func = h.gate.DeafFunc() })
		h.gate.WaitEntered(t, deaf)
		h.call("task_stop", args{"task_id": deaf})
		alone := h.spawn(ctx, func(q *subagent.Request) { q.Independent = true })
		other, _ := h.runsInside(ctx)
		h.gate.WaitEntered(t, alone)
		a := h.call("task_stop", args{"task_id": top, "reason": "enough"})
		stopped := data[stopData](t, a).Stopped
		require.ElementsMatch(t, []uuid.UUID{child, grand, below, other}, stopped)
		at := func(id uuid.UUID) int { return strings.Index(a.Text, "\ntask_id="+id.String()) }
		for _, id := range stopped {
			require.Positive(t, at(id))
		}
		require.Less(t, at(grand), at(child))
		require.Contains(t, a.Text, "\nStopped with it: 4\n")
		for _, id := range []uuid.UUID{ended, deaf, alone} {
			require.NotContains(t, a.Text, id.String())
		}
		synctest.Wait()
		require.Equal(t, subagent.ReasonParent, h.get(grand).Reason)
		require.Equal(t, subagent.StatusRunning, h.get(alone).Status)
		again := h.call("task_stop", args{"task_id": top})
		require.Empty(t, data[stopData](t, again).Stopped, "this call has stopped nothing")
		h.gate.ReleaseAll()
	})
}

// The turn that asked for a stop may end meanwhile; what it asked for is done.
func TestTaskStopOfATurnThatHasEnded(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("work")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a := h.callAs(ctx, agenttool.Call{Name: "task_stop", SessionID: session}, args{"task_id": id})
		require.False(t, a.IsError, a.Text)
		synctest.Wait()
		require.Equal(t, subagent.StatusCancelled, h.get(id).Status)
	})
}

// If the store fails while a stop is asked for, the answer is what is true: it
// is stopping, and never that it has ended while its Func is alive.
func TestTaskStopWhileTheStoreFails(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id := h.spawn(t.Context(), func(q *subagent.Request) { q.Func = h.gate.DeafFunc() })
		h.gate.WaitEntered(t, id)
		h.store.On(subagenttest.OpUpdate, func(c subagenttest.Call) subagenttest.Fault {
			if c.N == 1 {
				return subagenttest.Fault{Err: errors.New("busy")}
			}
			return subagenttest.Fault{}
		})
		a := h.call("task_stop", args{"task_id": id})
		require.Contains(t, a.Text, "was asked to stop and will end soon: task_id="+id.String()+" status=running")
		require.Equal(t, subagent.StatusRunning, data[stopData](t, a).Status)
		require.Contains(t, h.call("task_output", args{"task_id": id, "block": false}).Text, "asked to stop")
		h.finish(id, "too late")
		require.Equal(t, subagent.StatusCancelled, h.get(id).Status)
	})
}

// A stop that cannot be carried out says so.
func TestTaskStopThatFails(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		// A row of another Runner that is alive, on the shared store.
		other, err := subagent.New(t.Context(), subagent.Config{Store: h.store.Store(), Func: h.gate.Func()})
		require.NoError(t, err)
		defer other.Shutdown(context.Background())
		task, err := other.Spawn(t.Context(), subagent.Request{Description: "elsewhere", ParentSessionID: session})
		require.NoError(t, err)
		h.gate.WaitEntered(t, task.ID)
		h.store.On(subagenttest.OpUpdate, func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Err: errors.New("read-only")} })
		a := h.call("task_stop", args{"task_id": task.ID})
		require.True(t, a.IsError)
		require.Contains(t, a.Text, "The store failed: ")
		require.Contains(t, a.Text, "read-only")
		require.False(t, data[stopData](t, a).OK)
		require.Equal(t, subagent.StatusRunning, data[stopData](t, a).Status)
		h.store.On(subagenttest.OpUpdate, nil)
		a = h.call("task_stop", args{"task_id": task.ID})
		require.True(t, data[stopData](t, a).OK)
		end, err := other.Wait(t.Context(), task.ID)
		require.NoError(t, err)
		require.Equal(t, subagent.StatusCancelled, end.Status)
	})
}
