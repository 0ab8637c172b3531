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
)

// ends starts n tasks side by side.
func inPlan(t *testing.T, n int, f func(t *testing.T, h *host, ids []uuid.UUID)) {
	t.Helper()
	inHostOf(t, subagent.Config{Workers: n}, agenttool.Options{}, func(t *testing.T, h *host) {
		ids := make([]uuid.UUID, n)
		for i := range ids {
			ids[i], _ = h.runs(fmt.Sprintf("step %d", i))
		}
		f(t, h, ids)
	})
}

func statuses(t *testing.T, a agenttool.Answer) (s string) {
	for _, task := range data[tasksData](t, a).Tasks {
		s += string(task.Status)[:3] + " "
	}
	return strings.TrimSpace(s)
}

func TestAwaitAllAnswersInTheOrderAsked(t *testing.T) {
	inPlan(t, 4, func(t *testing.T, h *host, ids []uuid.UUID) {
		for i, end := range []func(){
			func() { h.gate.Release(ids[2], subagent.Result{Text: "third"}, nil) },
			func() { h.gate.Release(ids[0], subagent.Result{}, errors.New("no model")) },
			func() { _, _ = h.Cancel(t.Context(), ids[3], subagent.CancelOptions{Message: "enough"}) },
			func() { h.gate.Release(ids[1], subagent.Result{Text: "second"}, nil) },
		} {
			time.AfterFunc(time.Duration(i+1)*time.Second, end)
		}
		began := time.Now()
		a := h.call("await_tasks", args{"task_ids": []uuid.UUID{ids[3], ids[0], ids[2], ids[1]}})
		require.Equal(t, 4*time.Second, time.Since(began))
		require.False(t, a.IsError, "that one of several failed is in the text")
		require.Equal(t, fmt.Sprintf(`4 of 4 tasks have ended.

task_id=%s status=cancelled reason=user
[cancelled] enough

task_id=%s status=errored reason=error
[task error] no model

task_id=%s status=completed
third

task_id=%s status=completed
second`, ids[3], ids[0], ids[2], ids[1]), a.Text)
		require.True(t, data[tasksData](t, a).Done)
		require.Equal(t, "can err com com", statuses(t, a))
		require.Equal(t, uuid.Nil, a.TaskID)
		require.Nil(t, a.Usage, "Data has each one's")
		for _, task := range data[tasksData](t, a).Tasks {
			require.NotNil(t, task.Usage)
		}
		again := h.call("await_tasks", args{"task_ids": []uuid.UUID{ids[3], ids[0], ids[2], ids[1]}})
		require.Equal(t, a.Text, again.Text)
		for _, task := range data[tasksData](t, again).Tasks {
			require.Nil(t, task.Usage)
		}
	})
}

// Any is over with the first end, however it ends, or at once if one has ended
// before. The others go on.
func TestAwaitAny(t *testing.T) {
	for name, end := range map[string]func(h *host, id uuid.UUID){
		"com": func(h *host, id uuid.UUID) { h.gate.Release(id, subagent.Result{Text: "first"}, nil) },
		"err": func(h *host, id uuid.UUID) { h.gate.Release(id, subagent.Result{}, errors.New("no model")) },
		"can": func(h *host, id uuid.UUID) {
			_, _ = h.Cancel(context.Background(), id, subagent.CancelOptions{})
		},
	} {
		for _, before := range []bool{false, true} {
			inPlan(t, 3, func(t *testing.T, h *host, ids []uuid.UUID) {
				want := time.Second
				if before {
					end(h, ids[1])
					synctest.Wait()
					want = 0
				} else {
					time.AfterFunc(want, func() { end(h, ids[1]) })
				}
				began := time.Now()
				a := h.call("await_tasks", args{"task_ids": ids, "mode": "any"})
				require.Equal(t, want, time.Since(began), name)
				require.Equal(t, "run "+name+" run", statuses(t, a))
				require.True(t, data[tasksData](t, a).Done)
				require.True(t, strings.HasPrefix(a.Text, "1 of 3 tasks have ended.\n\n"), a.Text)
				require.Equal(t, 2, strings.Count(a.Text, "\nstill running for "))
				for i, task := range data[tasksData](t, a).Tasks {
					require.Equal(t, i == 1, task.Usage != nil)
					require.Zero(t, i != 1 && !h.get(ids[i]).CancelRequestedAt.IsZero())
				}
			})
		}
	}
}

// A wait that runs out says what has ended and what has not, stops nothing, and
// what it delivered is delivered.
func TestAwaitRunsOut(t *testing.T) {
	inPlan(t, 2, func(t *testing.T, h *host, ids []uuid.UUID) {
		for mode, want := range map[string]string{"all": "run run", "any": "run run"} {
			began := time.Now()
			a := h.call("await_tasks", args{"task_ids": ids, "mode": mode, "timeout": 200})
			require.Equal(t, 200*time.Millisecond, time.Since(began))
			require.Equal(t, want, statuses(t, a))
			require.False(t, data[tasksData](t, a).Done)
			require.False(t, a.IsError)
			require.True(t, strings.HasPrefix(a.Text, "0 of 2 tasks have ended. Waited 200ms; the others go on.\n\n"), a.Text)
		}
		h.finish(ids[1], "second")
		a := h.call("await_tasks", args{"task_ids": ids, "timeout": 1})
		require.Equal(t, "run com", statuses(t, a))
		require.False(t, data[tasksData](t, a).Done)
		require.NotNil(t, data[tasksData](t, a).Tasks[1].Usage)
		require.NotZero(t, h.get(ids[1]).NotifiedAt)
		require.Zero(t, h.get(ids[0]).CancelRequestedAt)
	})
}

func TestAwaitTakesDuplicatesForOne(t *testing.T) {
	inPlan(t, 2, func(t *testing.T, h *host, ids []uuid.UUID) {
		a, b := ids[0].String(), ids[1].String()
		h.finish(ids[0], "first")
		for _, mode := range []string{"all", "any"} {
			answer := h.call("await_tasks", args{"task_ids": []string{a, strings.ToUpper(a), " " + a}, "mode": mode})
			require.Len(t, data[tasksData](t, answer).Tasks, 1)
			require.True(t, data[tasksData](t, answer).Done)
			require.Equal(t, ids[0], answer.TaskID, "an answer about one task")
			require.Equal(t, mode == "all", answer.Usage != nil, "the first of the two")
		}
		answer := h.call("await_tasks", args{"task_ids": []string{b, a, b}, "timeout": 0})
		require.Equal(t, "run com", statuses(t, answer))
	})
}

// One answer names every id that is bad, and nothing was waited for or
// delivered.
func TestAwaitNamesEveryBadID(t *testing.T) {
	inPlan(t, 2, func(t *testing.T, h *host, ids []uuid.UUID) {
		h.finish(ids[1], "over")
		made, foreign := uuid.New(), h.spawn(t.Context(), func(q *subagent.Request) { q.ParentSessionID = "chat-2" })
		began := time.Now()
		a := h.call("await_tasks", args{"task_ids": []any{ids[0], "nope", made, 5, nil, foreign, "call_1", "nope", ids[1], args{"id": ids[0]}}})
		refused(t, a, `"nope" is no task_id`, "there is no task "+made.String(), `"5" is no`, `"null" is no`, "there is no task "+foreign.String(),
			`"call_1" is the id of a tool call`, `"{\"id\":`, "live now: "+ids[0].String())
		require.Equal(t, 1, strings.Count(a.Text, `"nope"`))
		require.Zero(t, time.Since(began))
		require.Zero(t, h.get(ids[1]).NotifiedAt)
		bad := make([]string, 100)
		for i := range bad {
			bad[i] = fmt.Sprint(i) + strings.Repeat("x", 1000)
		}
		require.LessOrEqual(t, len(h.call("await_tasks", args{"task_ids": bad}).Text), 32000)
	})
}

func TestAwaitAHundred(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 7}, agenttool.Options{}, func(t *testing.T, h *host) {
		var ids []uuid.UUID
		for range 100 {
			ids = append(ids, h.start("step"))
		}
		time.AfterFunc(time.Second, h.gate.ReleaseAll)
		a := h.call("await_tasks", args{"task_ids": ids})
		require.Equal(t, strings.TrimSpace(strings.Repeat("com ", 100)), statuses(t, a))
		require.True(t, strings.HasPrefix(a.Text, "100 of 100 tasks have ended."))
		for i, task := range data[tasksData](t, a).Tasks {
			require.Equal(t, ids[i], task.ID)
		}
	})
}

// A plan: every step in the background, wait for all, and, where one result is
// enough, wait for any and stop the rest.
func TestPlanMode(t *testing.T) {
	inPlan(t, 3, func(t *testing.T, h *host, ids []uuid.UUID) {
		time.AfterFunc(time.Second, func() { h.gate.Release(ids[1], subagent.Result{Text: "good enough"}, nil) })
		a := h.call("await_tasks", args{"task_ids": ids, "mode": "any"})
		for _, task := range data[tasksData](t, a).Tasks {
			if !task.Status.Terminal() {
				require.False(t, h.call("task_stop", args{"task_id": task.ID, "reason": "no longer needed"}).IsError)
			}
		}
		a = h.call("await_tasks", args{"task_ids": ids})
		require.Equal(t, "can com can", statuses(t, a))
		require.Equal(t, 2, strings.Count(a.Text, "[cancelled] no longer needed"))
		require.True(t, data[tasksData](t, a).Done)
		charged := map[uuid.UUID]bool{}
		for _, task := range data[tasksData](t, a).Tasks {
			charged[task.ID] = task.Usage != nil
		}
		require.Equal(t, map[uuid.UUID]bool{ids[0]: true, ids[1]: false, ids[2]: true}, charged)
	})
}
