package agenttool_test

import (
	"context"
	"encoding/json"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/subagenttest"
)

// in makes a call of a chat.
func (h *host) in(chat, id, tool string, a any) agenttool.Answer {
	h.t.Helper()
	return h.callAs(h.t.Context(), agenttool.Call{ID: id, Name: tool, SessionID: chat}, a)
}

// only is the one task of a chat.
func (h *host) only(chat string) subagent.Task {
	h.t.Helper()
	list, err := h.List(h.t.Context(), subagent.Filter{SessionID: chat})
	require.NoError(h.t, err)
	require.Len(h.t, list, 1)
	return list[0]
}

func TestB001_ParallelRunsWithOneCallID(t *testing.T) {
	for _, background := range []bool{false, true} {
		inHostOf(t, subagent.Config{Workers: 2}, agenttool.Options{}, func(t *testing.T, h *host) {
			answers := map[string]agenttool.Answer{}
			var mu sync.Mutex
			var calls sync.WaitGroup
			for _, chat := range []string{"A", "B"} {
				calls.Go(func() {
					a := h.in(chat, "call_0", "agent", args{"prompt": "p", "description": "d", "run_in_background": background})
					mu.Lock()
					defer mu.Unlock()
					answers[chat] = a
				})
			}
			synctest.Wait()
			a, b := h.only("A"), h.only("B")
			require.NotEqual(t, a.ID, b.ID)
			require.False(t, h.in("B", "call_1", "task_stop", args{"task_id": b.ID}).IsError)
			synctest.Wait()
			require.Equal(t, subagent.StatusRunning, h.get(a.ID).Status)
			h.finish(a.ID, "A's own")
			calls.Wait()
			a, b = h.get(a.ID), h.get(b.ID)
			require.Equal(t, "A's own", a.ResultText)
			require.Equal(t, subagent.StatusCompleted, a.Status)
			require.Equal(t, subagent.StatusCancelled, b.Status)
			require.Equal(t, "call_0", a.ExternalTaskID)
			require.Equal(t, "call_0", b.ExternalTaskID)
			require.Equal(t, a.ID, answers["A"].TaskID)
			require.Equal(t, b.ID, answers["B"].TaskID)
			if !background {
				require.True(t, strings.HasPrefix(answers["A"].Text, "A's own"), answers["A"].Text)
				require.True(t, strings.HasPrefix(answers["B"].Text, "[cancelled]"), answers["B"].Text)
			}
		})
	}
}

func TestB002_TurnsWithOneCallIDAreTwoTasksInTheList(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		var ids []uuid.UUID
		for range 2 {
			a := h.in(session, "call_0", "agent", args{"prompt": "p", "description": "d", "run_in_background": true})
			ids = append(ids, a.TaskID)
			h.finish(a.TaskID, "of "+a.TaskID.String())
		}
		list := data[tasksData](t, h.call("list_tasks", args{})).Tasks
		require.Len(t, list, 2)
		require.ElementsMatch(t, ids, []uuid.UUID{list[0].ID, list[1].ID})
		for _, id := range ids {
			require.Contains(t, h.call("task_output", args{"task_id": id}).Text, "of "+id.String())
		}
	})
}

// asked is every way to name a task to a tool.
func (h *host) asked(id string, check func(tool string, a agenttool.Answer)) {
	h.t.Helper()
	for _, ask := range asks {
		began := time.Now()
		check(ask.tool, h.call(ask.tool, ask.args(id)))
		require.Zero(h.t, time.Since(began), "nothing is waited for")
	}
}

func TestB003_ACallIDIsNoTaskID(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		share := func(q *subagent.Request) { q.ExternalTaskID = "x" }
		done, live := h.spawn(t.Context(), share), h.spawn(t.Context(), share)
		h.finish(done, "over")
		h.gate.WaitEntered(t, live)
		before := h.get(done)
		h.asked("x", func(tool string, a agenttool.Answer) {
			refused(t, a, tool+`: "x" is the id of a tool call, not a task_id`, done.String(), live.String())
		})
		require.Zero(t, h.get(live).CancelRequestedAt)
		require.Equal(t, before, h.get(done), "nothing was delivered")
		// Among good ids it spoils the wait, and at once.
		a := h.call("await_tasks", args{"task_ids": []string{done.String(), "x"}})
		refused(t, a, `"x" is the id of a tool call`)
	})
}

// A call id may look like a task_id, and even be that of another task: a
// task_id always means the task.
func TestB003_ACallIDThatIsAnotherTasksID(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		one, _ := h.runs("one")
		other := h.spawn(t.Context(), func(q *subagent.Request) { q.ExternalTaskID = one.String() })
		a := h.call("task_output", args{"task_id": one, "block": false})
		require.Equal(t, one, a.TaskID)
		require.False(t, h.call("task_stop", args{"task_id": one}).IsError)
		synctest.Wait()
		require.Equal(t, subagent.StatusCancelled, h.get(one).Status)
		require.Equal(t, subagent.StatusRunning, h.get(other).Status)
	})
}

func TestB007_EveryIDOfAnAnswerIsTakenOrNamed(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 3}, agenttool.Options{}, func(t *testing.T, h *host) {
		_, ctx := h.runsInside(t.Context())
		for name, from := range map[string]context.Context{"a chat": t.Context(), "a sub-agent": ctx} {
			call := agenttool.Call{ID: "toolu_01", Name: "agent", SessionID: session, MessageID: "msg_01"}
			a := h.callAs(from, call, args{"prompt": "p", "description": "d", "agent_id": "coder", "run_in_background": true})
			require.False(t, a.IsError, a.Text)
			require.Equal(t, []string{a.TaskID.String()}, uuids.FindAllString(a.Text, -1), "the text has the one that works")
			require.NotContains(t, a.Text, "toolu_01", "and none that does not")
			var fields []string
			for field, value := range data[map[string]any](t, a) {
				if !strings.HasSuffix(field, "_id") {
					continue
				}
				fields = append(fields, field)
				for _, ask := range asks {
					answer := h.callAs(from, agenttool.Call{Name: ask.tool, SessionID: session}, ask.args(value.(string)))
					switch field {
					case "task_id":
						require.False(t, answer.IsError, "%s, %s: %s", name, ask.tool, answer.Text)
					case "external_task_id":
						refused(t, answer, "is the id of a tool call, not a task_id; the task_id of what it started is "+a.TaskID.String())
					case "parent_task_id":
						refused(t, answer, "there is no task "+value.(string)) // the caller itself
					default:
						refused(t, answer, "is no task_id, which is a UUID")
					}
				}
			}
			sort.Strings(fields)
			want := []string{"agent_id", "external_task_id", "parent_msg_id", "parent_session_id", "task_id"}
			if from == ctx {
				want = []string{"agent_id", "external_task_id", "parent_msg_id", "parent_session_id", "parent_task_id", "task_id"}
			}
			require.Equal(t, want, fields)
			h.finish(a.TaskID, "")
			require.NoError(t, h.Forget(t.Context(), a.TaskID))
		}
	})
}

func TestB008_EveryToolSaysWhatIsWrongWithAnID(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 2}, agenttool.Options{}, func(t *testing.T, h *host) {
		mine, _ := h.runs("mine")
		other := h.spawn(t.Context(), func(q *subagent.Request) { q.ParentSessionID = "chat-2" })
		random := uuid.New()
		for id, says := range map[string]string{
			random.String(): "there is no task " + random.String() + "; live now: " + mine.String() + ".",
			other.String():  "there is no task " + other.String() + "; live now: " + mine.String() + ".",
			"the second":    `"the second" is no task_id, which is a UUID; live now: ` + mine.String() + ".",
		} {
			h.asked(id, func(tool string, a agenttool.Answer) { refused(t, a, tool+": "+says) })
		}
		require.Zero(t, h.get(mine).CancelRequestedAt)
		h.finish(mine, "over")
		for _, good := range []string{strings.ToUpper(mine.String()), "  " + mine.String() + "\n", mine.String()} {
			h.asked(good, func(tool string, a agenttool.Answer) {
				require.False(t, a.IsError, a.Text)
				require.Contains(t, a.Text, mine.String())
			})
		}
	})
}

func TestB009_ATaskOfAnAgentTypeThatIsGone(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		odd := "no\nsuch \"agent\"" // what another version of the host called it
		gone := h.spawn(t.Context(), func(q *subagent.Request) { q.AgentID = odd })
		h.gate.WaitEntered(t, gone)
		known := h.spawn(t.Context(), func(q *subagent.Request) { q.AgentID = "coder" })
		h.tools = agenttool.New(h.Runner, agenttool.Options{Agents: []agenttool.Agent{{ID: "coder"}}, PlanTools: true})
		list := h.call("list_tasks", args{})
		require.Contains(t, list.Text, gone.String())
		require.Contains(t, list.Text, known.String())
		both := data[tasksData](t, list).Tasks
		require.Equal(t, odd, both[1].AgentID)
		require.False(t, h.call("task_output", args{"task_id": gone, "block": false}).IsError)
		require.False(t, h.call("task_stop", args{"task_id": gone}).IsError)
		h.finish(known, "intact")
		a := h.call("await_tasks", args{"task_ids": []uuid.UUID{gone, known}})
		require.False(t, a.IsError, a.Text)
		require.Contains(t, a.Text, "2 of 2 tasks have ended.")
		require.Contains(t, a.Text, "intact")
		require.Equal(t, subagent.StatusCancelled, data[tasksData](t, a).Tasks[0].Status)
		refused(t, h.call("agent", args{"prompt": "p", "description": "d", "agent_id": odd}), `allowed are ["coder"]`)
	})
}

func TestB010_ATaskIsFoundAtOnceWhateverTheStoreTakes(t *testing.T) {
	slow := subagenttest.Fault{Delay: 200 * time.Millisecond}
	inHost(t, func(t *testing.T, h *host) {
		h.start("runs already") // so that the next one is queued
		h.store.On(subagenttest.OpCreate, func(subagenttest.Call) subagenttest.Fault { return slow })
		h.store.On(subagenttest.OpUpdate, func(subagenttest.Call) subagenttest.Fault { return slow })
		id := h.start("work")
		look := func() {
			a := h.callAs(t.Context(), agenttool.Call{Name: "task_output", SessionID: session}, args{"task_id": id, "block": false})
			require.False(t, a.IsError, a.Text)
			require.False(t, data[taskData](t, a).Status.Terminal())
			list := h.callAs(t.Context(), agenttool.Call{Name: "list_tasks", SessionID: session}, args{})
			require.Contains(t, list.Text, id.String())
		}
		look()
		var all sync.WaitGroup
		for range 20 {
			all.Go(look)
		}
		all.Wait()
	})
}

// Also before its agent call has answered, a task that can be listed can be
// read, waited for and stopped.
func TestB010_ATaskThatIsListedIsThere(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		h.store.On(subagenttest.OpCreate, func(subagenttest.Call) subagenttest.Fault {
			return subagenttest.Fault{Committed: true, Delay: time.Second}
		})
		started := make(chan agenttool.Answer, 1)
		go func() { // ends with the slow Create
			started <- h.in(session, "call_0", "agent", args{"prompt": "p", "description": "d", "run_in_background": true})
		}()
		synctest.Wait()
		list := data[tasksData](t, h.call("list_tasks", args{})).Tasks
		require.Len(t, list, 1)
		id := list[0].ID
		require.Equal(t, id, h.call("task_output", args{"task_id": id, "block": false}).TaskID)
		require.False(t, h.call("task_stop", args{"task_id": id}).IsError)
		require.Empty(t, started, "its call is still under way")
		require.Contains(t, h.call("await_tasks", args{"task_ids": []uuid.UUID{id}}).Text, "1 of 1 tasks have ended.")
		a := <-started
		require.Equal(t, id, a.TaskID)
		require.Contains(t, a.Text, "status=cancelled")
		require.Zero(t, h.get(id).StartedAt)
	})
}

func TestB012_ATaskKeepsTheConversationThatStartedIt(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		a := h.in("S1", "call_0", "agent", args{"prompt": "p", "description": "d", "run_in_background": true})
		id := a.TaskID
		h.gate.WaitEntered(t, id)
		refused(t, h.in("S2", "call_1", "task_output", args{"task_id": id}), "there is no task "+id.String())
		require.Contains(t, h.in("S1", "call_1", "list_tasks", args{}).Text, id.String())
		h.finish(id, "of S1")
		require.NotContains(t, h.in("S2", "call_2", "list_tasks", args{}).Text, id.String())
		require.Contains(t, h.in("S1", "call_2", "task_output", args{"task_id": id}).Text, "of S1")
		var record map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(a.Data, &record))
		require.JSONEq(t, `"S1"`, string(record["parent_session_id"]))
		require.False(t, h.in("S1", "call_3", "task_stop", args{"task_id": id}).IsError)
	})
}
