package web_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
	"github.com/go-subagent/subagent/adapters/web"
)

// mark is in every text of every task that the client must not learn of.
const mark = "zzhidden"

// scoped are Options that give each client the sessions in its X-See header.
var scoped = web.Options{Sessions: func(r *http.Request) (web.SessionScope, error) {
	see := r.Header.Get("X-See")
	if see == "*" {
		return web.SessionScope{All: true}, nil
	}
	return web.SessionScope{IDs: strings.Split(see, ",")}, nil
}}

// hidden is a request whose every text is marked.
func hidden(session string) subagent.Request {
	return subagent.Request{
		ParentSessionID: session, Description: mark + " prompt", Subject: mark, AgentID: mark, ExternalTaskID: mark,
		ParentMsgID: mark, Metadata: map[string]string{mark: mark},
	}
}

// work has the task say marked things if it is hidden itself.
func work(run *subagent.Run) {
	word := "plain"
	if run.Task().AgentID == mark {
		word = mark
	}
	run.Progress(word)
	run.ToolUse(word)
	_, _ = run.Write([]byte(word))
}

// Whatever happens in other sessions, a client gets not one byte of it over
// any transport: not a text, not an id, not a count.
func TestScopeHidesOtherSessions(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 3}, scoped)
	mine, all := []string{"X-See", "a,b"}, []string{"X-See", "*"}
	s, e := g.dial("/ws", mine...), g.events("/events", mine...)
	boss := g.dial("/ws", all...)
	s.call("subscribe", nil)
	boss.call("subscribe", nil)
	e.kind("live_tasks")

	other := g.spawn(hidden(mark))
	own := g.spawn(subagent.Request{ParentSessionID: "a", Description: "mine"})
	work(g.gate.WaitEntered(t, other.ID))
	work(g.gate.WaitEntered(t, own.ID))
	failing := g.spawn(hidden(mark))
	g.gate.WaitEntered(t, failing.ID)
	waiting := g.spawn(hidden(mark))
	queued := g.spawn(subagent.Request{ParentSessionID: "b", Description: "mine too"})

	// While all of them live.
	var raw strings.Builder
	look := func() {
		for _, path := range []string{"/tasks", "/tasks?status_filter=queued", "/tasks?after=" + waiting.ID.String(), "/badge", "/gauge"} {
			raw.WriteString(g.get(path, mine...).raw)
		}
		for _, session := range []string{"a", "b"} {
			raw.WriteString(g.get("/tasks?session_id="+session, mine...).raw)
		}
		late := g.events("/events", mine...)
		late.kind("live_tasks")
		raw.WriteString(late.raw.String())
		resumed := g.events("/events", append(mine, "Last-Event-ID", g.runner.ID()+"-1")...)
		resumed.kind("live_tasks")
		raw.WriteString(resumed.raw.String())
		s.call("list_tasks", nil)
		s.call("get_task", object{"task_id": own.ID.String()})
	}
	look()
	require.JSONEq(t, `{"running":1,"queued":1}`, g.get("/badge", mine...).raw)
	require.JSONEq(t, `{"limit":3,"running":1,"queued":1}`, g.get("/gauge", mine...).raw)
	require.JSONEq(t, `{"running":3,"queued":2}`, g.get("/badge", all...).raw)
	require.JSONEq(t, `{"running":0,"queued":0}`, g.get("/badge", "X-See", "").raw)

	// They end in every way.
	_, err := g.runner.Cancel(t.Context(), waiting.ID, subagent.CancelOptions{Message: mark})
	require.NoError(t, err)
	g.gate.Release(failing.ID, subagent.Result{}, context.DeadlineExceeded)
	g.finish(other, mark)
	g.finish(own, "plain")
	g.finish(queued, "plain")
	for _, task := range []subagent.Task{failing, waiting} {
		g.ended(task)
	}
	look()
	s.status(queued.ID.String(), subagent.StatusCompleted)
	e.status(queued.ID.String(), subagent.StatusCompleted)
	raw.WriteString(s.raw.String() + e.raw.String())

	require.NotContains(t, raw.String(), mark)
	for _, task := range []subagent.Task{other, failing, waiting} {
		require.NotContains(t, raw.String(), task.ID.String())
		boss.event("task_status", task.ID.String()) // it was there to be seen
	}
	require.Contains(t, raw.String(), own.ID.String())
	require.Contains(t, boss.raw.String(), mark)
}

// A foreign task or session and one that never was get the same answer, and
// nothing happens to the foreign one.
func TestScopeAnswersAlike(t *testing.T) {
	g := newRig(t, subagent.Config{}, scoped)
	mine := []string{"X-See", "a"}
	foreign := g.spawn(hidden(mark))
	g.gate.WaitEntered(t, foreign.ID)
	id, unknown := foreign.ID.String(), uuid.NewString()
	s := g.dial("/ws", mine...)
	alike := func(name string, ask func(task, session string) string) {
		t.Helper()
		a, b := ask(id, mark), ask(unknown, "nowhere")
		require.Equal(t, b, a, name)
		require.Contains(t, a, "not_found", name)
		require.NotContains(t, a, mark, name)
	}
	call := func(action string, fields object) string {
		answer := s.call(action, fields)
		delete(answer, "id")
		return string(mustJSON(t, answer))
	}
	alike("get", func(task, _ string) string { return g.get("/tasks/"+task, mine...).raw })
	alike("cancel", func(task, _ string) string { return g.post("/tasks/"+task+"/cancel", "{}", mine...).raw })
	alike("cancel session", func(_, session string) string { return g.post("/sessions/"+session+"/cancel", "{}", mine...).raw })
	alike("list", func(_, session string) string { return g.get("/tasks?session_id="+session, mine...).raw })
	alike("events", func(_, session string) string { return g.get("/events?session_id="+session, mine...).raw })
	alike("spawn", func(_, session string) string {
		return g.post("/tasks", object{"session_id": session, "prompt": "p"}, mine...).raw
	})
	alike("ws get", func(task, _ string) string { return call("get_task", object{"task_id": task}) })
	alike("ws cancel", func(task, _ string) string { return call("cancel_task", object{"task_id": task}) })
	alike("ws cancel session", func(_, session string) string { return call("cancel_session", object{"session_id": session}) })
	alike("ws list", func(_, session string) string { return call("list_tasks", object{"session_id": session}) })
	alike("ws subscribe", func(_, session string) string { return call("subscribe", object{"session_id": session}) })
	alike("ws spawn", func(_, session string) string {
		return call("spawn_task", object{"session_id": session, "prompt": "p", "wait": true})
	})
	require.Equal(t, "not_found", g.post("/sessions/a/cancel", "{}", "X-See", "").code(), "who sees nothing stops nothing")

	now, err := g.runner.Get(t.Context(), foreign.ID)
	require.NoError(t, err)
	require.Equal(t, subagent.StatusRunning, now.Status)
	require.Zero(t, now.CancelRequestedAt)
	tasks, err := g.runner.List(t.Context(), subagent.Filter{})
	require.NoError(t, err)
	require.Len(t, tasks, 1)
}

// family runs a parent whose child is of another session, and lets both stand.
func family(g *rig, parent, child subagent.Request) (p, c subagent.Task) {
	g.t.Helper()
	var once sync.Once
	spawned := make(chan subagent.Task, 1)
	parent.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		once.Do(func() {
			task, err := g.runner.Spawn(ctx, child)
			if err == nil {
				spawned <- task
			}
		})
		return g.gate.Func()(ctx, run)
	}
	p = g.spawn(parent)
	g.gate.WaitEntered(g.t, p.ID)
	c = <-spawned
	g.gate.WaitEntered(g.t, c.ID)
	return p, c
}

// A stop goes down the tree, also into another session. The client is told of
// its own tasks only.
func TestScopeAndDescendantsElsewhere(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 8}, scoped)
	mine := []string{"X-See", "a"}
	s, e := g.dial("/ws", mine...), g.events("/events", mine...)
	s.call("subscribe", nil)
	e.kind("live_tasks")
	p1, c1 := family(g, subagent.Request{ParentSessionID: "a"}, hidden(mark))
	p2, c2 := family(g, subagent.Request{ParentSessionID: "a"}, hidden(mark))
	p3, c3 := family(g, subagent.Request{ParentSessionID: "a"}, hidden(mark))
	require.Equal(t, p1.ID.String(), s.call("cancel_task", object{"task_id": p1.ID.String()})["task_id"])
	session := s.call("cancel_session", object{"session_id": "a"})
	require.Len(t, session["tasks"], 2)
	raw := g.post("/sessions/a/cancel", "{}", mine...).raw
	for _, task := range []subagent.Task{p1, c1, p2, c2, p3, c3} {
		require.Equal(t, subagent.StatusCancelled, g.ended(task).Status)
	}
	marker := g.spawn(subagent.Request{ParentSessionID: "a"})
	s.event("running_task", marker.ID.String())
	e.want(func(ev sseEvent) bool { return ev.kind == "running_task" && taskID(ev.data) == marker.ID.String() })
	raw += s.raw.String() + e.raw.String() + g.get("/tasks", mine...).raw
	require.NotContains(t, raw, mark)
	for _, task := range []subagent.Task{c1, c2, c3} {
		require.NotContains(t, raw, task.ID.String())
	}
}

// A task whose parent is of another session has, for the client, no parent: its
// id, the reason and the words of the one who stopped it stay away too.
func TestScopeAndAncestorsElsewhere(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 8}, scoped)
	mine := []string{"X-See", "a"}
	s, e := g.dial("/ws", mine...), g.events("/events", mine...)
	s.call("subscribe", nil)
	e.kind("live_tasks")
	var grandchild subagent.Task
	inner := make(chan subagent.Task, 1)
	child := subagent.Request{ParentSessionID: "a", Description: "child"}
	child.Func = func(ctx context.Context, run *subagent.Run) (subagent.Result, error) {
		task, err := g.runner.Spawn(ctx, subagent.Request{Description: "grandchild"})
		if err != nil {
			return subagent.Result{}, err
		}
		inner <- task
		return g.gate.Func()(ctx, run)
	}
	p, c := family(g, hidden(mark), child)
	grandchild = <-inner
	g.gate.WaitEntered(t, grandchild.ID)
	raw := g.get("/tasks", mine...).raw + g.get("/tasks/"+c.ID.String(), mine...).raw
	_, err := g.runner.Cancel(t.Context(), p.ID, subagent.CancelOptions{Message: mark})
	require.NoError(t, err)
	for _, task := range []subagent.Task{p, c, grandchild} {
		g.ended(task)
	}
	stored, err := g.runner.Get(t.Context(), grandchild.ID)
	require.NoError(t, err)
	require.Equal(t, mark, stored.CancelMessage, "there was something to hide")
	require.Equal(t, c.ID, stored.ParentTaskID)

	for _, event := range []object{
		s.status(c.ID.String(), subagent.StatusCancelled)["task"].(object),
		g.get("/tasks/"+c.ID.String(), mine...).body,
		s.call("get_task", object{"task_id": c.ID.String()}),
	} {
		require.Equal(t, "cancelled", event["status"])
		require.NotContains(t, event, "parent_task_id")
		require.NotContains(t, event, "reason")
	}
	got := g.get("/tasks/"+grandchild.ID.String(), mine...).body
	require.Equal(t, c.ID.String(), got["parent_task_id"], "the parent is in view")
	require.Equal(t, "parent", got["reason"])
	s.status(grandchild.ID.String(), subagent.StatusCancelled)
	marker := g.spawn(subagent.Request{ParentSessionID: "a"})
	e.want(func(ev sseEvent) bool { return taskID(ev.data) == marker.ID.String() })
	late := g.events("/events", append(mine, "Last-Event-ID", g.runner.ID()+"-1")...)
	late.kind("live_tasks")
	raw += s.raw.String() + e.raw.String() + late.raw.String() + g.get("/tasks", mine...).raw + g.get("/tasks/"+grandchild.ID.String(), mine...).raw
	require.NotContains(t, raw, mark)
	require.NotContains(t, raw, p.ID.String())

	boss := g.get("/tasks/"+c.ID.String(), "X-See", "*").body
	require.Equal(t, p.ID.String(), boss["parent_task_id"])
	require.Equal(t, mark, boss["cancel_message"])
}

// Each client of one handler sees its own.
func TestScopesSideBySide(t *testing.T) {
	g := newRig(t, subagent.Config{}, scoped)
	var clients []*socket
	sessions := []string{"s0", "s1", "s2", "s3", "s4"}
	for _, session := range sessions {
		s := g.dial("/ws", "X-See", session)
		s.call("subscribe", nil)
		clients = append(clients, s)
	}
	tasks := map[string]string{}
	for range 10 {
		for _, session := range sessions {
			task := g.spawn(subagent.Request{ParentSessionID: session})
			tasks[task.ID.String()] = session
			g.finish(task, "")
		}
	}
	for i, s := range clients {
		for range 10 {
			end := s.want(func(f object) bool {
				task, _ := f["task"].(object)
				return task["status"] == "completed"
			})
			require.Equal(t, sessions[i], tasks[taskID(end)])
		}
		for id, session := range tasks {
			if session != sessions[i] {
				require.NotContains(t, s.raw.String(), id)
			}
		}
		list := s.call("list_tasks", nil)
		require.Len(t, list["tasks"], 10)
	}
}
