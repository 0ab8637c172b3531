package agenttool_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

// After a crash the same chat calls every tool at once: what the dead process
// left has ended, in whatever state it was, and new work is accepted.
func TestB126_AChatGoesOnAfterACrash(t *testing.T) {
	for _, status := range []subagent.Status{subagent.StatusPending, subagent.StatusQueued, subagent.StatusRunning} {
		t.Run(string(status), func(t *testing.T) {
			inDesk(t, subagent.Config{}, func(t *testing.T, d *desk) {
				ghost := subagent.Task{ID: uuid.Must(uuid.NewV7()), Subject: "ghost", Description: "ghost", ParentSessionID: session,
					ExternalTaskID: "call_1", Status: status, Owner: "dead", Background: true, CreatedAt: time.Now().UTC()}
				require.NoError(t, d.store.Create(t.Context(), ghost))
				next, err := subagent.New(t.Context(), subagent.Config{Store: d.store.Store(), Workers: 1, Func: d.gate.Func(), Cards: d, Notifier: d})
				require.NoError(t, err)
				defer func() { // before that of the desk
					d.gate.ReleaseAll()
					require.NoError(t, next.Shutdown(t.Context()))
				}()
				h := &host{Runner: next, t: t, gate: d.gate, store: d.store, tools: agenttool.New(next, agenttool.Options{PlanTools: true})}
				id := h.start("new work")
				list := data[tasksData](t, h.call("list_tasks", args{})).Tasks
				require.Len(t, list, 2)
				require.Equal(t, id, list[0].ID, "live ones come first")
				require.Equal(t, subagent.ReasonLost, list[1].Reason)
				stop := h.call("task_stop", args{"task_id": ghost.ID})
				require.False(t, stop.IsError)
				require.Contains(t, stop.Text, "had ended before")
				require.Equal(t, subagent.StatusErrored, data[stopData](t, stop).Status)
				output := h.call("task_output", args{"task_id": ghost.ID})
				require.Contains(t, output.Text, "[task error] worker died before completion")
				require.True(t, output.IsError)
				for _, task := range data[tasksData](t, h.call("list_tasks", args{"status": status})).Tasks {
					require.Equal(t, id, task.ID, "the ghost is not among them")
				}
				h.gate.WaitEntered(t, id)
				require.Equal(t, 1, h.gate.Inside(), "the ghost is not run again")
				h.finish(id, "done")
				require.Contains(t, h.call("task_output", args{"task_id": id}).Text, "done")
			})
		})
	}
}
