package web_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
)

// A parent waits for its task, and somebody stops the task in the panel: the
// waiter, the registry, the store and the panel tell of the same end.
func TestB030_B037_AStopInThePanelReachesEverybody(t *testing.T) {
	store := subagent.NewMemoryStore()
	g := newRig(t, subagent.Config{Store: store}, web.Options{})
	panel := g.dial("/ws")
	panel.call("subscribe", object{"session_id": "s"})
	task := g.spawn(subagent.Request{})
	g.gate.WaitEntered(t, task.ID)
	var waiters sync.WaitGroup
	for range 3 {
		waiters.Go(func() { // ends with the task
			end, err := g.runner.Wait(t.Context(), task.ID)
			require.NoError(t, err)
			require.Equal(t, subagent.StatusCancelled, end.Status)
			require.Equal(t, subagent.ReasonUser, end.Reason)
			require.False(t, end.Detached, "its Func was told, not given up")
		})
	}
	answer := panel.call("cancel_task", object{"task_id": task.ID.String(), "reason": "too dear"})
	require.Nil(t, answer["error"], "%v", answer)
	waiters.Wait()
	shown := panel.status(task.ID.String(), subagent.StatusCancelled)["task"].(object)
	row, err := store.Get(t.Context(), task.ID)
	require.NoError(t, err)
	got, err := g.runner.Get(t.Context(), task.ID)
	require.NoError(t, err)
	require.Equal(t, row, got)
	require.Equal(t, subagent.ReasonUser, row.Reason)
	require.Equal(t, "too dear", row.CancelMessage)
	require.Equal(t, "user", shown["reason"])
	live, err := g.runner.List(t.Context(), subagent.Filter{Statuses: []subagent.Status{subagent.StatusRunning}})
	require.NoError(t, err)
	require.Empty(t, live)
}

// Several people press stop at once, and one of them once more.
func TestB032_ManyPanelsStopOneTask(t *testing.T) {
	g := newRig(t, subagent.Config{}, web.Options{})
	watcher := g.dial("/ws")
	watcher.call("subscribe", object{"session_id": "s"})
	task := g.spawn(subagent.Request{})
	g.gate.WaitEntered(t, task.ID)
	var all sync.WaitGroup
	for range 20 {
		panel := g.dial("/ws")
		all.Go(func() {
			answer := panel.call("cancel_task", object{"task_id": task.ID.String()})
			require.Nil(t, answer["error"], "%v", answer)
		})
	}
	all.Wait()
	end := g.ended(task)
	require.Equal(t, subagent.StatusCancelled, end.Status)
	again := watcher.call("cancel_task", object{"task_id": task.ID.String()})
	require.Nil(t, again["error"], "%v", again)
	require.Equal(t, "cancelled", again["status"])
	watcher.status(task.ID.String(), subagent.StatusCancelled)
	other := g.spawn(subagent.Request{}) // what comes after it has been told of in order
	watcher.event("task_created", other.ID.String())
	for _, f := range watcher.kept {
		shown, _ := f["task"].(object)
		require.False(t, shown["task_id"] == task.ID.String() && shown["status"] == "cancelled", "told twice")
	}
}
