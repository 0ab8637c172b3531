package agenttool_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

// A replayed turn: the model's calls come again with the same ids. The answers
// are the same but for the usage, which the first ones had; the same agent call
// starts another task, whose usage is its own.
func TestB164_B175_AReplayedTurn(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 2}, agenttool.Options{}, func(t *testing.T, h *host) {
		var c conversation
		u := spent(10)
		id := h.startIn(&c, "call_0", &u)
		h.finish(id, "done")
		first := h.call("task_output", args{"task_id": id})
		c.take(t, first)
		subagent.AttributeUsage(c.messages)
		before := h.get(id)
		for range 3 {
			for _, a := range []agenttool.Answer{
				h.call("task_output", args{"task_id": id}),
				h.call("task_output", args{"task_id": id, "block": false}),
				h.call("await_tasks", args{"task_ids": []uuid.UUID{id}}),
				h.call("await_tasks", args{"task_ids": []uuid.UUID{id}, "mode": "any"}),
			} {
				require.Contains(t, a.Text, "done")
				require.Nil(t, a.Usage)
				require.NotContains(t, string(a.Data), `"usage"`)
			}
			require.Empty(t, subagent.AttributeUsage(c.messages))
		}
		require.Equal(t, []int64{30}, c.charged())

		again := agenttool.Call{ID: "call_0", Name: "agent", SessionID: session, MessageID: before.ParentMsgID}
		a := h.callAs(t.Context(), again, args{"prompt": "p", "description": "d", "run_in_background": true})
		require.NotEqual(t, id, a.TaskID)
		run := h.gate.WaitEntered(t, a.TaskID)
		run.ReportUsage("m", spent(1))
		h.finish(a.TaskID, "once more")
		require.EqualValues(t, 3, h.call("task_output", args{"task_id": a.TaskID}).Usage.TotalTokens)
		require.Equal(t, before, h.get(id), "the first is as it was")
	})
}

// The answer about a parent has its own tokens, not those of the child.
func TestB173_AnAnswerHasTheTokensOfItsTask(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 2}, agenttool.Options{}, func(t *testing.T, h *host) {
		lead, ctx := h.runsInside(t.Context())
		run, _ := subagent.RunFromContext(ctx)
		run.ReportUsage("m", spent(100))
		child, inner := h.runsInside(ctx)
		run, _ = subagent.RunFromContext(inner)
		run.ReportUsage("m", spent(1))
		h.finish(child, "")
		h.finish(lead, "")
		require.EqualValues(t, 300, h.call("task_output", args{"task_id": lead}).Usage.TotalTokens)
		of, err := h.UsageTree(t.Context(), lead)
		require.NoError(t, err)
		require.EqualValues(t, 303, of.TotalTokens)
	})
}
