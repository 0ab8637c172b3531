package agenttool_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// A model asks where its task stands that waits behind two others.
func TestB061_B062_ToolsShowThePlaceInLine(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		first, _ := h.runs("runs")
		other := h.spawn(t.Context(), func(q *subagent.Request) { q.ParentSessionID = "chat-2" })
		one := h.start("one")
		id := h.start("mine")
		time.Sleep(time.Minute)
		shows := func(place string) {
			t.Helper()
			a := h.call("task_output", args{"task_id": id, "block": false})
			require.False(t, a.IsError, a.Text)
			require.Contains(t, a.Text, "status=queued")
			require.Contains(t, a.Text, place)
			require.Zero(t, data[taskData](t, a).StartedAt)
			require.NotZero(t, data[taskData](t, a).QueuedAt)
			list := h.call("list_tasks", args{})
			require.Contains(t, list.Text, id.String()+" queued mine")
			require.NotContains(t, list.Text, other.String(), "whose the others are is not told")
			require.NotContains(t, h.call("list_tasks", args{"status": "running"}).Text, id.String())
			wait := h.call("await_tasks", args{"task_ids": []uuid.UUID{id}, "timeout": 0})
			require.Contains(t, wait.Text, place)
		}
		shows("number 3 in the queue")
		h.call("task_stop", args{"task_id": one})
		shows("number 2 in the queue")
		h.finish(first, "")
		shows("number 1 in the queue")
		h.finish(other, "")
		require.Contains(t, h.call("task_output", args{"task_id": id, "block": false}).Text, "status=running")
	})
}
