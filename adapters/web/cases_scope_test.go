package web_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-subagent/subagent"
)

// What happens in one user's chat is sent to nobody else: no event of a task of
// it, over any transport, whatever is asked for and from wherever it is resumed.
func TestB223_ResultsStayWithTheirUser(t *testing.T) {
	g := newRig(t, subagent.Config{}, scoped)
	a, b := []string{"X-See", "chat-a"}, []string{"X-See", "chat-b"}
	wa, wb := g.watch(a...), g.watch(b...)
	waiter := g.dial("/ws", b...) // waits for a task of its own: its connection hears of nothing else
	waiter.send(object{"action": "spawn_task", "id": "w", "session_id": "chat-b", "prompt": "p", "wait": true})
	own, err := g.gate.Entered(t.Context())
	require.NoError(t, err)
	var foreign []uuid.UUID
	for range 3 {
		req := hidden("chat-a")
		task := g.spawn(req)
		work(g.gate.WaitEntered(t, task.ID))
		g.finish(task, mark)
		foreign = append(foreign, task.ID)
	}
	marker := g.finish(own.Task(), "mine")
	waiter.want(func(f object) bool { return f["id"] == "w" })
	wa.upTo(foreign[2], subagent.StatusCompleted)
	require.Contains(t, wa.ws.raw.String()+wa.sse.raw.String(), mark, "it was there to be told")
	wb.upTo(marker.ID, subagent.StatusCompleted)
	raw := wb.ws.raw.String() + wb.sse.raw.String() + waiter.raw.String()
	for _, after := range []string{"0", "1", "2", "5", "9"} {
		late := g.events("/events?after="+g.runner.ID()+"-"+after, b...)
		late.kind("live_tasks")
		raw += late.raw.String()
		again := g.dial("/ws", b...)
		again.call("subscribe", object{"after": g.runner.ID() + "-" + after})
		raw += again.raw.String()
	}
	for _, path := range []string{"/tasks", "/badge", "/gauge", "/tasks?after=" + foreign[0].String(), "/tasks?status_filter=completed"} {
		raw += g.get(path, b...).raw
	}
	require.NotContains(t, raw, mark)
	require.NotContains(t, raw, "chat-a")
	for _, id := range foreign {
		require.NotContains(t, raw, id.String())
	}
}

// reach is every way in which a client can name a task or a session: each sends
// the two and returns all that it was answered, without what differs by nature.
var reach = map[string]func(g *rig, task, session string, who ...string) string{
	"GET tasks/{id}": func(g *rig, task, _ string, who ...string) string { return g.get("/tasks/"+task, who...).whole() },
	"POST tasks/{id}/cancel": func(g *rig, task, _ string, who ...string) string {
		return g.post("/tasks/"+task+"/cancel", "{}", who...).whole()
	},
	"POST sessions/{id}/cancel": func(g *rig, _, s string, who ...string) string {
		return g.post("/sessions/"+s+"/cancel", "{}", who...).whole()
	},
	"POST tasks": func(g *rig, _, s string, who ...string) string {
		return g.post("/tasks", object{"session_id": s, "prompt": "p"}, who...).whole()
	},
	"POST tasks, wait": func(g *rig, _, s string, who ...string) string {
		return g.post("/tasks", object{"session_id": s, "prompt": "p", "wait": true}, who...).whole()
	},
	"GET tasks":        func(g *rig, _, s string, who ...string) string { return g.get("/tasks?session_id="+s, who...).whole() },
	"GET tasks, after": func(g *rig, task, _ string, who ...string) string { return g.get("/tasks?after="+task, who...).whole() },
	"GET events":       func(g *rig, _, s string, who ...string) string { return g.get("/events?session_id="+s, who...).whole() },
	"ws get_task": func(g *rig, task, _ string, who ...string) string {
		return g.over("get_task", object{"task_id": task}, who)
	},
	"ws cancel_task": func(g *rig, task, _ string, who ...string) string {
		return g.over("cancel_task", object{"task_id": task}, who)
	},
	"ws cancel_session": func(g *rig, _, s string, who ...string) string {
		return g.over("cancel_session", object{"session_id": s}, who)
	},
	"ws list_tasks": func(g *rig, _, s string, who ...string) string {
		return g.over("list_tasks", object{"session_id": s}, who)
	},
	"ws subscribe": func(g *rig, _, s string, who ...string) string {
		return g.over("subscribe", object{"session_id": s}, who)
	},
	"ws spawn_task": func(g *rig, _, s string, who ...string) string {
		return g.over("spawn_task", object{"session_id": s, "prompt": "p"}, who)
	},
	"ws spawn_task, wait": func(g *rig, _, s string, who ...string) string {
		return g.over("spawn_task", object{"session_id": s, "prompt": "p", "wait": true}, who)
	},
}

// whole is all of a response but the time at which it was sent.
func (r reply) whole() string {
	r.header.Del("Date")
	return fmt.Sprint(r.status, r.header, r.raw)
}

// over asks over a WebSocket of its own and returns the whole answer.
func (g *rig) over(action string, fields object, who []string) string {
	g.t.Helper()
	s := g.dial("/ws", who...)
	defer s.conn.CloseNow()
	s.call(action, fields)
	return s.raw.String()
}

// foreigners are tasks of chat-a in every state in which somebody else could
// reach for them. The last two have begun to run.
func foreigners(g *rig) (all []subagent.Task) {
	g.t.Helper()
	ended := g.spawn(hidden("chat-a"))
	g.finish(ended, mark)
	running, second := g.spawn(hidden("chat-a")), g.spawn(hidden("chat-a"))
	g.gate.WaitEntered(g.t, running.ID)
	g.gate.WaitEntered(g.t, second.ID)
	queued := g.spawn(hidden("chat-a"))
	return []subagent.Task{ended, queued, running, second}
}

// Whoever knows the id of another's task can neither read nor stop nor follow
// it, over any transport: the task goes on and nothing of it is told.
func TestB224_NobodyReachesAnothersTask(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 2}, scoped)
	tasks := foreigners(g)
	before, err := g.runner.List(t.Context(), subagent.Filter{})
	require.NoError(t, err)
	for name, ask := range reach {
		for _, task := range tasks {
			answer := ask(g, task.ID.String(), "chat-a", "X-See", "chat-b")
			if name != "GET tasks, after" { // it is a place in a list, and the list is empty
				require.Contains(t, answer, "not_found", name)
			}
			require.NotContains(t, answer, mark, name)
			require.NotContains(t, answer, task.ID.String(), name)
		}
	}
	now, err := g.runner.List(t.Context(), subagent.Filter{})
	require.NoError(t, err)
	require.Equal(t, before, now, "nothing was spawned, stopped, or taken for read")
	for i, want := range []subagent.Status{subagent.StatusCompleted, subagent.StatusQueued, subagent.StatusRunning, subagent.StatusRunning} {
		task, err := g.runner.Get(t.Context(), tasks[i].ID)
		require.NoError(t, err)
		require.Equal(t, want, task.Status)
		require.Zero(t, task.CancelRequestedAt)
	}
}

// A task or session of somebody else and one that never was are answered alike,
// to the last byte and header, over all transports.
func TestB225_ForeignAndUnknownAreAlike(t *testing.T) {
	g := newRig(t, subagent.Config{Workers: 2}, scoped)
	tasks := foreigners(g)
	for name, ask := range reach {
		unknown := ask(g, uuid.Must(uuid.NewV7()).String(), "chat-x", "X-See", "chat-b")
		for _, task := range tasks {
			for _, id := range []string{task.ID.String(), strings.ToUpper(task.ID.String())} {
				require.Equal(t, unknown, ask(g, id, "chat-a", "X-See", "chat-b"), name)
			}
		}
		require.Equal(t, unknown, ask(g, uuid.NewString(), "chat-a/../chat-b", "X-See", "chat-b"), name)
	}
}
