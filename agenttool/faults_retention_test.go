package agenttool_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/internal/bubble"
	"github.com/go-subagent/subagent/subagenttest"
)

// A task whose record has gone, by retention or because the host forgot it, is
// unknown to all tools alike.
func TestB180_AllToolsAgreeOnWhatIsGone(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			store, gate := subagent.NewMemoryStore(), subagenttest.NewGate()
			r, err := subagent.New(t.Context(), subagent.Config{Store: store, Func: gate.Func()})
			require.NoError(t, err)
			defer func() { require.NoError(t, r.Shutdown(context.Background())) }()
			h := &host{Runner: r, t: t, gate: gate, tools: agenttool.New(r, agenttool.Options{PlanTools: true})}
			id, _ := h.runs("work")
			h.finish(id, "done")
			require.Contains(t, h.call("task_output", args{"task_id": id}).Text, "done")
			if forgotten {
				require.NoError(t, r.Forget(t.Context(), id))
			} else {
				store.SetRetention(0)
			}
			for _, a := range []agenttool.Answer{
				h.call("task_output", args{"task_id": id}),
				h.call("task_output", args{"task_id": id, "block": false}),
				h.call("task_stop", args{"task_id": id}),
				h.call("await_tasks", args{"task_ids": []uuid.UUID{id}}),
				h.call("await_tasks", args{"task_ids": []uuid.UUID{id}, "mode": "any"}),
			} {
				refused(t, a, "there is no task "+id.String())
			}
			require.Equal(t, "There are no such tasks.", h.call("list_tasks", args{}).Text)
		})
	}
}

// A task that has ended and was delivered is known as such, and an invented id
// is not.
func TestB181_DeliveredIsNotUnknown(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("work")
		h.finish(id, "done")
		first := h.call("task_output", args{"task_id": id})
		synctest.Wait()
		require.NotZero(t, h.get(id).NotifiedAt)
		for _, tool := range []string{"task_output", "task_stop", "await_tasks"} {
			known, unknown := h.call(tool, good(id)[tool]), h.call(tool, good(uuid.New())[tool])
			require.False(t, known.IsError, tool)
			require.Contains(t, known.Text, "status=completed", tool)
			refused(t, unknown, "there is no task ")
		}
		require.Equal(t, first.Text, h.call("task_output", args{"task_id": id}).Text)
		require.True(t, strings.Contains(h.call("list_tasks", args{"status": "completed"}).Text, id.String()))
	})
}
