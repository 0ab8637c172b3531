package agenttool_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// A task whose status this version does not know is shown as such by each tool:
// it neither waits for a slot nor has it been asked to stop.
func TestB194_ToolsAboutAStatusThatIsNotKnown(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		odd := subagent.Task{ID: uuid.Must(uuid.NewV7()), Subject: "odd", Description: "odd", ParentSessionID: session,
			Status: "paused", Owner: "dead", CreatedAt: time.Now().UTC()}
		require.NoError(t, h.store.Create(t.Context(), odd))
		for _, a := range []struct {
			tool string
			args args
		}{
			{"task_output", args{"task_id": odd.ID, "timeout": 1000}},
			{"task_output", args{"task_id": odd.ID, "block": false}},
			{"await_tasks", args{"task_ids": []uuid.UUID{odd.ID}, "timeout": 1000}},
		} {
			answer := h.call(a.tool, a.args)
			require.False(t, answer.IsError)
			require.Contains(t, answer.Text, "status=paused")
			require.Contains(t, answer.Text, "in a state that this version does not know")
			require.NotContains(t, answer.Text, "slot")
		}
		refused(t, h.call("task_stop", args{"task_id": odd.ID}), `from "paused" to "cancelled"`)
		require.Contains(t, h.call("list_tasks", args{}).Text, "paused")
		require.NotContains(t, h.call("list_tasks", args{"status": "running"}).Text, odd.ID.String())
		require.EqualValues(t, 1, h.get(odd.ID).Version)
	})
}
