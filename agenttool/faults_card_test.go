package agenttool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/subagenttest"
)

// What the tools answer about a task, in every state and read in every way, is
// what the store has.
func TestB232_AnswersAgreeWithTheStore(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 2}, agenttool.Options{}, func(t *testing.T, h *host) {
		var ids []uuid.UUID
		for range 3 {
			id, _ := h.runs("ends")
			ids = append(ids, id)
			h.gate.Release(id, subagent.Result{Text: "done"}, map[int]error{2: errors.New("no")}[len(ids)])
			synctest.Wait()
		}
		running, _ := h.runs("runs")
		deaf := h.spawn(t.Context(), func(q *subagent.Request) { q.Func = h.gate.DeafFunc() })
		h.gate.WaitEntered(t, deaf)
		queued, stopped := h.start("in line"), h.start("stopped in line")
		h.call("task_stop", args{"task_id": stopped})
		h.call("task_stop", args{"task_id": deaf})
		ids = append(ids, running, deaf, queued, stopped)
		synctest.Wait()
		lists := data[tasksData](t, h.call("list_tasks", args{})).Tasks
		require.Len(t, lists, len(ids))
		awaited := data[tasksData](t, h.call("await_tasks", args{"task_ids": ids, "timeout": 0})).Tasks
		for i, id := range ids {
			row, err := h.store.Get(t.Context(), id)
			require.NoError(t, err)
			shown := []taskData{awaited[i], data[taskData](t, h.call("task_output", args{"task_id": id, "block": false}))}
			for _, task := range lists {
				if task.ID == id {
					shown = append(shown, task)
				}
			}
			require.Len(t, shown, 3)
			for _, task := range shown {
				require.Equal(t, []any{id, row.Status, row.Reason, row.Error, row.CompletedAt, row.CancelRequestedAt},
					[]any{task.ID, task.Status, task.Reason, task.Error, task.CompletedAt, task.CancelRequestedAt})
			}
		}
		h.finish(deaf, "")
	})
}

// An agent call that could not be stored says so: nothing runs, nothing is listed.
func TestB199_AnAgentCallThatWasNotStored(t *testing.T) {
	for _, background := range []bool{false, true} {
		inFuncHost(t, func(context.Context, *subagent.Run) (subagent.Result, error) {
			t.Error("it ran")
			return subagent.Result{}, nil
		}, func(t *testing.T, h *host) {
			h.store.On(subagenttest.OpCreate, func(subagenttest.Call) subagenttest.Fault {
				return subagenttest.Fault{Err: errors.New("disk full")}
			})
			a := h.call("agent", args{"prompt": "p", "description": "d", "run_in_background": background})
			require.True(t, a.IsError)
			require.Contains(t, a.Text, "[task error] No task was started: ")
			require.Contains(t, a.Text, "disk full")
			require.Equal(t, uuid.Nil, a.TaskID)
			synctest.Wait()
			require.Equal(t, "There are no such tasks.", h.call("list_tasks", args{}).Text)
		})
	}
}
