package agenttool_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
)

// list_tasks shows the live ones first and then the newest first, however the
// members of batches end, and tasks of one instant in one order.
func TestB212_B213_ListTasksHasOneOrder(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 16}, agenttool.Options{}, func(t *testing.T, h *host) {
		var made []uuid.UUID
		for batch := range 2 {
			for i := range 3 {
				id, _ := h.runs(fmt.Sprint(batch, i))
				made = append(made, id)
			}
			time.Sleep(time.Second)
		}
		for range 10 {
			made = append(made, h.start("at once"))
		}
		over := make(map[uuid.UUID]bool)
		for _, i := range []int{5, 4, 3, 0, 2, 1, 15, 9, 12} {
			h.finish(made[i], "")
			over[made[i]] = true
			var want []uuid.UUID
			for _, ended := range []bool{false, true} {
				for n := len(made) - 1; n >= 0; n-- {
					if over[made[n]] == ended {
						want = append(want, made[n])
					}
				}
			}
			for range 10 {
				require.Equal(t, want, listed(t, h.call("list_tasks", args{})))
			}
		}
	})
}

// list_tasks by status right after the answer that told of the end.
func TestB214_ListTasksRightAfterTheEnd(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		for range 20 {
			id, _ := h.runs("work")
			require.Contains(t, listed(t, h.call("list_tasks", args{"status": "running"})), id)
			h.gate.Release(id, subagent.Result{}, nil)
			h.call("task_output", args{"task_id": id})
			require.Contains(t, listed(t, h.call("list_tasks", args{"status": "completed"})), id)
			require.NotContains(t, listed(t, h.call("list_tasks", args{"status": "running"})), id)
			synctest.Wait()
		}
	})
}
