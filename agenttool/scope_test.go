package agenttool_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/agenttool"
	"github.com/go-subagent/subagent/subagenttest"
)

// asks is a call to each tool that takes an id.
var asks = []struct {
	tool string
	args func(id string) args
}{
	{"task_output", func(id string) args { return args{"task_id": id, "block": false} }},
	{"task_output", func(id string) args { return args{"task_id": id} }},
	{"task_stop", func(id string) args { return args{"task_id": id} }},
	{"await_tasks", func(id string) args { return args{"task_ids": []string{id}} }},
}

// A foreign id and one that was made up get the same answer, which names the
// caller's live tasks and nobody else's.
func TestForeignAndUnknownIDsAreAlike(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 3}, agenttool.Options{}, func(t *testing.T, h *host) {
		mine := h.start("mine")
		ended := h.start("ended")
		h.finish(ended, "over")
		foreign := h.spawn(t.Context(), func(q *subagent.Request) { q.ParentSessionID = "chat-2"; q.ExternalTaskID = "call_x" })
		foreignEnded := h.spawn(t.Context(), func(q *subagent.Request) { q.ParentSessionID = "chat-2" })
		h.finish(foreignEnded, "secret")
		h.gate.WaitEntered(t, foreign)
		for _, ask := range asks {
			var texts []string
			for _, id := range []uuid.UUID{foreign, foreignEnded, uuid.New(), uuid.Nil} {
				a := h.call(ask.tool, ask.args(id.String()))
				refused(t, a, ask.tool+": there is no task "+id.String(), mine.String())
				require.NotContains(t, a.Text, ended.String(), "only what is live is named")
				texts = append(texts, strings.Replace(a.Text, id.String(), "ID", 1))
			}
			for _, text := range texts {
				require.Equal(t, texts[0], text)
				require.NotContains(t, text, foreign.String())
			}
			refused(t, h.call(ask.tool, ask.args("call_x")), `"call_x" is no task_id`) // nor is a foreign external id known
		}
		require.Zero(t, h.get(foreign).CancelRequestedAt)
		require.Zero(t, h.get(foreignEnded).NotifiedAt, "nothing was delivered")
		list := h.call("list_tasks", args{})
		require.NotContains(t, list.Text, foreign.String())
		require.Len(t, data[tasksData](t, list).Tasks, 2)
	})
}

func TestIDsAreUUIDsInAnyCaseAndTrimmed(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id, _ := h.runs("work")
		plain := id.String()
		for _, ask := range asks[:1] {
			for _, good := range []string{plain, strings.ToUpper(plain), " \t" + plain + "\n"} {
				a := h.call(ask.tool, ask.args(good))
				require.False(t, a.IsError, a.Text)
				require.Equal(t, id, a.TaskID)
			}
		}
		for _, ask := range asks {
			for _, bad := range []string{"nope", "5", strings.ReplaceAll(plain, "-", ""), "{" + plain + "}", "x" + plain + "x", "urn:uuid:" + plain, plain[1:], plain + "0", strings.Repeat("z", 36), strings.Repeat("9", 5000)} {
				refused(t, h.call(ask.tool, ask.args(bad)), "is no task_id, which is a UUID", "live now: "+plain)
			}
		}
		require.Zero(t, h.get(id).CancelRequestedAt)
	})
}

// The id of a tool call is no task_id, even if it is a UUID; the answer has
// the ids of what it started.
func TestAnExternalIDIsRefusedWithTheExecutionsThatCarryIt(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		for _, external := range []string{"call_7", uuid.NewString(), strings.ToUpper(uuid.NewString())} {
			a := h.spawn(t.Context(), func(q *subagent.Request) { q.ExternalTaskID = external })
			b := h.spawn(t.Context(), func(q *subagent.Request) { q.ExternalTaskID = external })
			h.spawn(t.Context(), func(q *subagent.Request) { q.ExternalTaskID = external; q.ParentSessionID = "chat-2" })
			for _, ask := range asks {
				refused(t, h.call(ask.tool, ask.args(" "+external)),
					`"`+external+`" is the id of a tool call, not a task_id; the task_id of what it started is `+b.String()+", "+a.String()+";")
			}
		}
	})
}

// Every id that a tool hands out as task_id works in all of them.
func TestTheIDThatAgentAnswersWithWorksEverywhere(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		a := h.call("agent", args{"prompt": "p", "description": "d", "run_in_background": true})
		d := data[taskData](t, a)
		require.Equal(t, a.TaskID, d.ID)
		require.Equal(t, "call_1", d.ExternalTaskID)
		require.Contains(t, a.Text, "task_id="+d.ID.String())
		require.NotContains(t, a.Text, "call_1", "what is only correlation is not shown as an id")
		for _, ask := range asks {
			require.False(t, h.call(ask.tool, ask.args(d.ID.String())).IsError)
		}
	})
}

// Inside a Func a call sees what descends from its task: not the task itself,
// nor its siblings, its ancestors or the rest of the session.
func TestInsideAFuncOnlyDescendantsAreSeen(t *testing.T) {
	inHostOf(t, subagent.Config{Workers: 10}, agenttool.Options{}, func(t *testing.T, h *host) {
		top, topRun := h.runsInside(t.Context())
		sibling, _ := h.runsInside(topRun)
		me, meRun := h.runsInside(topRun)
		child, childRun := h.runsInside(meRun)
		grand, _ := h.runsInside(childRun)
		inside := func(tool string, a args) agenttool.Answer {
			return h.callAs(meRun, agenttool.Call{ID: "call", Name: tool, SessionID: session}, a)
		}
		for _, id := range []uuid.UUID{top, sibling, me, uuid.New()} {
			for _, ask := range asks {
				a := inside(ask.tool, ask.args(id.String()))
				refused(t, a, "there is no task "+id.String()+"; live now: "+grand.String()+", "+child.String()+".")
			}
		}
		list := data[tasksData](t, inside("list_tasks", args{}))
		require.Len(t, list.Tasks, 2)
		require.Equal(t, grand, list.Tasks[0].ID)
		require.Equal(t, child, list.Tasks[1].ID)
		for _, id := range []uuid.UUID{child, grand} {
			require.False(t, inside("task_output", args{"task_id": id, "block": false}).IsError)
		}
		require.Len(t, data[tasksData](t, h.call("list_tasks", args{})).Tasks, 5, "outside the session is what counts")

		a := inside("agent", args{"prompt": "p", "description": "d", "run_in_background": true})
		require.False(t, a.IsError, a.Text)
		require.Equal(t, me, h.get(a.TaskID).ParentTaskID)
		require.False(t, inside("task_stop", args{"task_id": grand}).IsError)
		require.NotZero(t, h.get(grand).CancelRequestedAt)
		require.Zero(t, h.get(child).CancelRequestedAt)
	})
}

// runsInside starts a task with the ctx of another's Func and returns the ctx
// of its own.
func (h *host) runsInside(ctx context.Context) (uuid.UUID, context.Context) {
	h.t.Helper()
	ctxs := make(chan context.Context, 1)
	id := h.spawn(ctx, func(q *subagent.Request) {
		q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
			ctxs <- ctx
			return h.gate.Func()(ctx, run)
		}
	})
	h.gate.WaitEntered(h.t, id)
	return id, <-ctxs
}

// An empty session would be every session in a filter: it is none.
func TestACallWithoutSessionSeesNothing(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id := h.spawn(t.Context())
		for _, none := range []string{"", " ", "\t\n"} {
			for tool, least := range good(id) {
				a := h.callAs(t.Context(), agenttool.Call{Name: tool, SessionID: none}, least)
				refused(t, a, tool+": the host made this call without a session")
				require.NotContains(t, a.Text, id.String())
			}
		}
		ctxs := make(chan context.Context, 1)
		h.finish(id, "")
		inner := h.spawn(t.Context(), func(q *subagent.Request) {
			q.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
				ctxs <- ctx
				return h.gate.Func()(ctx, run)
			}
		})
		a := h.callAs(<-ctxs, agenttool.Call{Name: "agent"}, args{"prompt": "p", "description": "d", "run_in_background": true})
		require.False(t, a.IsError, "inside a Func the session is the parent's")
		require.Equal(t, session, h.get(a.TaskID).ParentSessionID)
		require.Equal(t, inner, h.get(a.TaskID).ParentTaskID)
	})
}

// A task whose profile is no longer offered is read, listed and stopped.
func TestTasksOfForgottenProfiles(t *testing.T) {
	inHostOf(t, subagent.Config{}, agenttool.Options{Agents: profiles}, func(t *testing.T, h *host) {
		id := h.spawn(t.Context(), func(q *subagent.Request) { q.AgentID = "long gone" })
		require.Contains(t, h.call("list_tasks", args{}).Text, id.String())
		require.False(t, h.call("task_output", args{"task_id": id, "block": false}).IsError)
		require.False(t, h.call("task_stop", args{"task_id": id}).IsError)
	})
}

// As many live tasks are named as an answer has room for.
func TestAsManyLiveTasksAreNamedAsFit(t *testing.T) {
	for limit, named := range map[int]int{0: 25, 1027: 25, 1026: 24, 500: 10, 150: 1} {
		inHostOf(t, subagent.Config{}, agenttool.Options{MaxText: limit}, func(t *testing.T, h *host) {
			var newest uuid.UUID
			for range 25 {
				newest = h.start("work")
			}
			a := h.call("task_output", args{"task_id": uuid.Nil})
			refused(t, a, "live now: "+newest.String())
			require.Len(t, uuids.FindAllString(a.Text, -1), named, "%d: %s", limit, a.Text)
			if named < 25 {
				require.True(t, strings.HasSuffix(a.Text, fmt.Sprintf(" and %d more.", 25-named)), a.Text)
			}
			if limit > 0 {
				require.LessOrEqual(t, len(a.Text), limit)
			}
		})
	}
}

// However many ids are bad, what descends from the caller is read once.
func TestBadIDsAreLookedUpInOneWalk(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		_, ctx := h.runsInside(t.Context())
		var child uuid.UUID
		for range 30 {
			child = h.spawn(ctx)
		}
		var reads atomic.Int64
		h.store.On(subagenttest.OpList, func(subagenttest.Call) subagenttest.Fault {
			reads.Add(1)
			return subagenttest.Fault{}
		})
		ids := []string{"first", child.String()}
		for range 20 {
			ids = append(ids, uuid.NewString())
		}
		a := h.callAs(ctx, agenttool.Call{Name: "await_tasks"}, args{"task_ids": ids})
		refused(t, a, `"first" is no task_id`, "there is no task "+ids[21], "live now: "+child.String())
		require.NotContains(t, a.Text, "no task "+child.String())
		require.LessOrEqual(t, reads.Load(), int64(31), "one for the caller and one for each child")

		reads.Store(0)
		require.False(t, h.callAs(ctx, agenttool.Call{Name: "task_output"}, args{"task_id": child, "block": false}).IsError)
		require.Zero(t, reads.Load(), "a good id needs no walk")
	})
}

// A store that cannot be read is not the same as a task that does not exist.
func TestAFailingStoreIsSaid(t *testing.T) {
	inHost(t, func(t *testing.T, h *host) {
		id := h.start("work")
		h.finish(id, "over")
		h.call("task_output", args{"task_id": id}) // now only the store has it
		broken := func(subagenttest.Call) subagenttest.Fault { return subagenttest.Fault{Err: errors.New("disk on fire")} }
		h.store.On(subagenttest.OpGet, broken)
		h.store.On(subagenttest.OpList, broken)
		for tool, least := range good(id) {
			if tool != "agent" {
				refused(t, h.call(tool, least), tool+": the tasks could not be read: ", "disk on fire")
			}
		}
	})
}
